//! READs and WRITEs of one piece for which nothing has to be waited: they are checked once, and go to the device
//! by the call that posts them (Algorithm 2); they end in runs.

use elver_verbs::{
    AccessFlags, Class, Device, Memory, Payload, Qp, SendFlags, SendOp, SendOpcode, SendWr, Time,
    WrLimits,
};

use crate::datapath::qos::Qos;
use crate::datapath::wr_id::WrId;
use crate::ids::LaneIx;
use crate::memory::mr::{LocalMrs, Users};
use crate::memory::mr_store::MrStore;
use crate::pool::Lanes;
use crate::pool::lane::LaneState;
use crate::vqp::Vqp;
use crate::vqp::send_ring::SqEntry;

/// WRs that a VQP's ring took in, all of which may go to the device now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plain {
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

impl Vqp {
    /// The lane that takes WRs of its now, of whatever kind, and how many: nothing and nobody is before them.
    #[inline]
    pub(crate) fn free_lane(
        &self,
        lanes: &Lanes,
        qos: &mut Qos,
        now: Time,
    ) -> Option<(LaneIx, u32)> {
        let at = self.lane.filter(|_| self.may_post() && !self.ready)?;
        let lane = &lanes.lanes[at];
        let is_free =
            lane.state == LaneState::Running && lane.ready.is_empty() && lane.ops.is_empty();
        let waits = self.sq.unposted() > 0 || self.fault.is_some() || self.credit.runs_out();
        if !is_free || waits || (self.class == Class::Low && qos.counts_low(now)) {
            return None;
        }
        Some((at, lane.room(&lanes.qps[lane.qp])))
    }

    /// Takes in the WRs that `wrs` begins with, as many as are plain: each reads or writes through one piece of a
    /// region, its peer's region is known to permit it, and it takes one packet of the lane's. The ring has room.
    #[inline]
    pub(crate) fn accept_plain<M: Memory>(
        &mut self,
        wrs: &[SendWr<'_>],
        (mrs, store): (&mut LocalMrs<M>, &MrStore),
        (limits, one_packet): (&WrLimits, u32),
        now: Time,
    ) -> Plain {
        let longest = limits.max_length.min(one_packet.into());
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let (mut users, mut taken, mut run) = (Users::default(), Plain::default(), 0);
        for wr in wrs {
            let (remote, opcode, needs) = match wr.op {
                SendOp::Read(at) => (at, SendOpcode::Read, AccessFlags::REMOTE_READ),
                SendOp::Write(at) => (at, SendOpcode::Write, AccessFlags::REMOTE_WRITE),
                _ => break,
            };
            let (Payload::Sges(&[sge]), None) = (wr.payload, wr.dest) else { break };
            // What has no bytes needs no region.
            if sge.length == 0 || u64::from(sge.length) > longest {
                break;
            }
            if self.remote_key != remote.rkey || self.remote.until <= now {
                let found = self.peer.and_then(|peer| store.get(peer, remote.rkey, now));
                let Some(found) = found else { break };
                (self.remote_key, self.remote) = (remote.rkey, found);
            }
            if !self.remote.permits(&remote, sge.length, needs) {
                break;
            }
            let writes = opcode == SendOpcode::Read;
            let Ok(mr) = mrs.check(self.client, &mut self.local, &sge, writes) else { break };
            if let Some(others) = users.next(mr) {
                mrs.add_users(others);
                run = 0;
            }
            run += 1;
            let flags = wr.flags | sig_all;
            let (addr, rkey, length) = (remote.addr, remote.rkey, sge.length);
            let entry = SqEntry { wr_id: wr.wr_id, addr, rkey, sge, length, mr, ..SqEntry::BLANK };
            self.sq.push(SqEntry { opcode, num_sge: 1, flags, run, ..entry });
            if flags.contains(SendFlags::SIGNALED) {
                run = 0;
            }
            taken.count += 1;
            taken.bytes += u64::from(length);
        }
        mrs.add_users(users);
        taken
    }

    /// How many WRs up to the one with this number end as one, the first being the oldest that is in the ring:
    /// `count`, if these are plain, of one region, and none but the last is signalled.
    #[inline]
    pub(crate) fn ends_in_run(&self, seq: u32, count: u32) -> bool {
        self.sq.head == self.sq.done
            && u32::from(self.sq.entry(seq).run) >= count
            && !self.failed
            && !self.zombie
    }
}

/// Posts `count` WRs of a VQP in one call, from sequence number `first` on, which are plain. Returns how many
/// the device took.
#[inline]
pub(crate) fn send_plain<D: Device>(
    device: &mut D,
    qp: Qp,
    vqp: &Vqp,
    first: u32,
    count: u32,
) -> u32 {
    let wrs = (0..count).map(|at| plain(vqp, first.wrapping_add(at), at + 1 == count));
    match device.post_sends(qp, wrs) {
        Ok(()) => count,
        Err((taken, _)) => taken as u32,
    }
}

/// A WR as it goes to the device, as what is not plain does.
#[inline(always)]
fn plain(vqp: &Vqp, seq: u32, last: bool) -> SendWr<'_> {
    let entry = vqp.sq.entry(seq);
    let signaled = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
    let remote = entry.remote_addr();
    SendWr {
        wr_id: WrId::User { vqp: vqp.id, seq, second: false }.encode(),
        op: match entry.opcode {
            SendOpcode::Read => SendOp::Read(remote),
            _ => SendOp::Write(remote),
        },
        flags: entry.flags | signaled,
        payload: Payload::Sges(core::slice::from_ref(&entry.sge)),
        dest: vqp.dest,
    }
}
