//! WRs of one piece for which nothing has to be waited: they are checked once, and go to the device by the call that
//! posts them (Algorithm 2); they end in runs. They are READs and WRITEs of regions that are known, and messages so
//! short that they are copied behind their headers at once, and the device takes them inline.

use core::num::NonZeroU8;

use elver_verbs::{
    AccessFlags, Class, Device, Memory, Payload, Qp, SendFlags, SendOp, SendOpcode, SendWr, Time,
};

use crate::datapath::qos::Qos;
use crate::datapath::wr_id::WrId;
use crate::ids::LaneIx;
use crate::memory::mr::{LocalMrs, Users};
use crate::memory::mr_store::MrStore;
use crate::messaging::message::{HEADER_BYTES, Header};
use crate::pool::lane::LaneState;
use crate::pool::lanes::Lanes;
use crate::vqp::Vqp;
use crate::vqp::seq::SendSeq;
use crate::vqp::sq_entry::SqEntry;

/// Most WRs posted to the device by one call: as many as the device sends in one piece.
pub(crate) const BURST: u32 = 64;
/// Most bytes of a short message.
const SHORT_MAX: usize = 64;

/// A short message with its header.
pub(crate) type Short = [u8; HEADER_BYTES + SHORT_MAX];

/// Room for a short message.
pub(crate) const NO_SHORT: Short = [0; HEADER_BYTES + SHORT_MAX];

/// WRs that a VQP's ring took in, all of which may go to the device now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plain {
    pub(crate) count: u32,
    pub(crate) bytes: u64,
    /// They are messages, and stand among the short ones; otherwise READs and WRITEs.
    pub(crate) short: bool,
}

/// Plain WRs as they are taken in.
#[derive(Default)]
struct Intake {
    taken: Plain,
    users: Users,
    run: u8,
}

impl Intake {
    /// Takes the next one into the ring, which has room.
    #[inline(always)]
    fn push<M: Memory>(&mut self, vqp: &mut Vqp, mrs: &mut LocalMrs<M>, entry: SqEntry) {
        if let Some(others) = self.users.next(entry.mr) {
            mrs.add_users(others);
            self.run = 0;
        }
        let run = self.run + 1;
        let signaled = entry.flags.contains(SendFlags::SIGNALED);
        self.taken.count += 1;
        self.taken.bytes += u64::from(entry.length);
        vqp.sq.push(SqEntry { num_sge: 1, run: NonZeroU8::new(run), ..entry });
        self.run = if signaled { 0 } else { run };
    }

    #[inline]
    fn end<M: Memory>(self, mrs: &mut LocalMrs<M>) -> Plain {
        mrs.add_users(self.users);
        self.taken
    }
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

    /// Takes in the WRs that `wrs` begins with, as many as are plain READs and WRITEs of at most so many bytes. The
    /// ring has room, and what is refused is not told why.
    #[inline]
    pub(crate) fn accept_accesses<M: Memory>(
        &mut self,
        wrs: &[SendWr<'_>],
        (mrs, store): (&mut LocalMrs<M>, &MrStore),
        longest: u32,
        now: Time,
    ) -> Plain {
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let mut intake = Intake::default();
        for wr in wrs {
            let (remote, opcode, needs) = match wr.op {
                SendOp::Read(at) => (at, SendOpcode::Read, AccessFlags::REMOTE_READ),
                SendOp::Write(at) => (at, SendOpcode::Write, AccessFlags::REMOTE_WRITE),
                _ => break,
            };
            let (Payload::Sges(&[sge]), None) = (wr.payload, wr.dest) else { break };
            // What has no bytes needs no region.
            if sge.length == 0 || sge.length > longest {
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
            let (wr_id, flags, length) = (wr.wr_id, wr.flags | sig_all, sge.length);
            let (addr, rkey) = (remote.addr, remote.rkey);
            let entry = SqEntry { wr_id, opcode, flags, length, sge, mr, ..SqEntry::BLANK };
            intake.push(self, mrs, SqEntry { addr, rkey, ..entry });
        }
        intake.end(mrs)
    }

    /// Takes in the WRs that `wrs` begins with, as many as are messages of at most so many bytes, and copies them to
    /// `shorts`. `blank` has what all headers of the node have. The ring has room, and what is refused is not
    /// told why.
    #[inline]
    pub(crate) fn accept_shorts<M: Memory>(
        &mut self,
        wrs: &[SendWr<'_>],
        mrs: &mut LocalMrs<M>,
        (shorts, blank): (&mut [Short], &Header),
        longest: u32,
    ) -> Plain {
        let mut intake = Intake::default();
        // What is counted is sent one by one, and so is what its receiver reads.
        let longest = longest.min(SHORT_MAX as u32).min(self.read_from.saturating_sub(1));
        if !self.credit.is_free() {
            return intake.taken;
        }
        let sig_all = if self.sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let (dst_port, dst_vqp) = self.destination();
        let common = Header { dst_port, dst_vqp, src_vqp: self.id.0, ..*blank };
        for (wr, short) in wrs.iter().zip(shorts) {
            let (opcode, imm) = match wr.op {
                SendOp::Send => (SendOpcode::Send, None),
                SendOp::SendWithImm(imm) => (SendOpcode::SendWithImm, Some(imm)),
                _ => break,
            };
            let (Payload::Sges(&[sge]), None) = (wr.payload, wr.dest) else { break };
            // What is fenced may be what a READ before it has yet to bring: the device fetches it in its turn.
            if wr.flags.contains(SendFlags::FENCE) || sge.length == 0 || sge.length > longest {
                break;
            }
            let Ok(mr) = mrs.check(self.client, &mut self.local, &sge, false) else { break };
            let Some(region) = mrs.of(mr) else { break };
            let (header, body) = short.split_at_mut(HEADER_BYTES);
            let body = &mut body[..sge.length as usize];
            // What is not at hand is fetched by the device.
            if region.memory.read(sge.addr - region.info.addr, body).is_err() {
                break;
            }
            let (length, cookie) = (sge.length, self.cookie(self.sq.tail));
            header.copy_from_slice(&Header { imm, length, cookie, ..common }.encode());
            let (wr_id, flags, imm) = (wr.wr_id, wr.flags | sig_all, imm.unwrap_or(0));
            let entry = SqEntry { wr_id, opcode, flags, imm, length, sge, mr, ..SqEntry::BLANK };
            intake.push(self, mrs, entry);
        }
        self.sq.sent_short |= intake.taken.count > 0;
        Plain { short: true, ..intake.end(mrs) }
    }

    /// Whether `count` WRs, from the oldest in the ring to the one with this number, end as one: they are plain, of
    /// one region, and none but the last is signalled.
    #[inline]
    pub(crate) fn ends_in_run(&self, seq: SendSeq, count: u32) -> bool {
        self.sq.head == self.sq.done && self.sq.entry(seq).run() >= count && !self.phase.flushes()
    }
}

/// Posts READs and WRITEs of a VQP in one call, `count` from sequence number `first` on, which are plain. Returns how
/// many the device took.
#[inline]
pub(crate) fn send_accesses<D: Device>(
    device: &mut D,
    qp: Qp,
    vqp: &Vqp,
    first: SendSeq,
    count: u32,
) -> u32 {
    let wrs = (0..count).map(|at| {
        let entry = vqp.sq.entry(first.after(at));
        let remote = entry.remote_addr();
        let op = match entry.opcode {
            SendOpcode::Read => SendOp::Read(remote),
            _ => SendOp::Write(remote),
        };
        let payload = Payload::Sges(core::slice::from_ref(&entry.sge));
        posted((vqp, entry), op, payload, (first.after(at), at + 1 == count))
    });
    post(device, qp, wrs, count)
}

/// The same for short messages. Immediate data travels in their headers.
#[inline]
pub(crate) fn send_shorts<D: Device>(
    device: &mut D,
    qp: Qp,
    (vqp, shorts): (&Vqp, &[Short]),
    first: SendSeq,
    count: u32,
) -> u32 {
    let wrs = (0..count).zip(shorts).map(|(at, short)| {
        let entry = vqp.sq.entry(first.after(at));
        let payload = Payload::Inline(&short[..HEADER_BYTES + entry.length as usize]);
        posted((vqp, entry), SendOp::Send, payload, (first.after(at), at + 1 == count))
    });
    post(device, qp, wrs, count)
}

/// Posts `count` WRs in one call. Returns how many the device took.
#[inline(always)]
pub(crate) fn post<'a, D: Device>(
    device: &mut D,
    qp: Qp,
    wrs: impl Iterator<Item = SendWr<'a>>,
    count: u32,
) -> u32 {
    match device.post_sends(qp, wrs) {
        Ok(()) => count,
        Err((taken, _)) => taken as u32,
    }
}

/// A WR as it goes to the device. The last of a burst is signalled, so that the lane's room is known, whatever the user
/// asked for.
#[inline(always)]
pub(crate) fn posted<'a>(
    (vqp, entry): (&Vqp, &SqEntry),
    op: SendOp,
    payload: Payload<'a>,
    (seq, last): (SendSeq, bool),
) -> SendWr<'a> {
    let signaled = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendWr {
        wr_id: WrId::User { vqp: vqp.id, seq: seq.low(), second: false }.encode(),
        op,
        flags: entry.flags | signaled,
        payload,
        dest: vqp.dest,
    }
}
