//! Work requests that this process executes itself in a peer's memory. All others it posts, in their
//! order: as long as one is on its way, those behind it follow it, but for long ones, which wait for it.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use elver_soft::{SoftDevice, SoftMemory, now};
use elver_verbs::{AccessFlags, Device as _, Payload, PostError, Qp, RemoteAddr, SendOp, SendWr};

use super::hub::Hub;
use super::peer::Peer;
use super::stage::{INLINE, LONG, MOST, PIECES_A_WR, Stage, Staged, WRS, piece};
use super::table::{Inside, Name};
use super::told::{Door, Place};

/// It waits a nanosecond for so many: longer than it takes by packets, so that a queue that is kept full runs
/// empty.
const BYTES_A_NS: u64 = 2;
/// How long the WRs of one call wait at most, in nanoseconds: others of the program want the device. And how long, once, a WR of
/// any length waits for the peer to tell of its QP: one in RTR is told of behind its first packet.
const LONGEST: u64 = 10_000_000;
/// Behind a wait in vain none is begun for a peer for so many times as long.
const IN_VAIN: u64 = 16;
/// How often the device is seen to between two such calls, at most, as long as it has work.
const BURSTS: u32 = 64;
/// Looks at the device without any work in it before the core is left to others.
const SPINS: u32 = 256;

/// A QP whose peer is reached directly.
pub(crate) struct Link {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    /// The address of this process's device, and the numbers of the QPs.
    own: IpAddr,
    qpn: u32,
    dest_qpn: u32,
    /// The peer's QP was waited for to be told of.
    met: Cell<bool>,
}

impl Link {
    /// With the numbers of the QP and its peer.
    pub(crate) fn new(hub: Arc<Hub>, peer: Arc<Peer>, own: IpAddr, numbers: (u32, u32)) -> Link {
        let (qpn, dest_qpn) = numbers;
        Link { hub, peer, own, qpn, dest_qpn, met: Cell::new(false) }
    }

    /// What the peer's QP tells now.
    #[inline]
    fn door(&self) -> Option<[u64; 6]> {
        let open = !self.peer.is_closed();
        if open { self.peer.view.look_up(Name::Qp(self.dest_qpn)) } else { None }
    }
}

/// What becomes of a WR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is to be executed with those before it.
    Taken,
    /// It may be, once those before it were.
    Full,
    /// It may be, once nothing is on its way any more, for which it waits so many nanoseconds at most.
    Behind(u64),
    Packets,
}

/// WRs of one call, being executed or posted.
pub(crate) struct Run<'a> {
    device: &'a mut SoftDevice,
    stage: &'a mut Stage,
    link: &'a Link,
    qp: Qp,
    /// What the peer's QP tells.
    door: Option<[u64; 6]>,
    /// None while it waits.
    inside: Option<Inside<'a>>,
    /// How long its WRs may wait yet, in nanoseconds.
    patience_ns: u64,
    /// Bytes that were moved since the device was seen to.
    moved: u64,
}

fn length_of(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    }
}

/// Where in its memory the peer lets a WR reach.
#[inline]
fn granted(
    door: Option<&[u64; 6]>,
    link: &Link,
    remote: RemoteAddr,
    length: u32,
    access: AccessFlags,
) -> Option<u64> {
    let pd = Door::admits(door?, link.own, link.qpn, access)?;
    let place = Place::of(remote.rkey, &link.peer.view.look_up(Name::Region(remote.rkey))?);
    place.grants(pd, remote, length.into(), access)
}

/// What a READ or WRITE reaches for, and the right that it needs.
#[inline]
fn wanted(op: &SendOp) -> Option<(RemoteAddr, AccessFlags)> {
    match *op {
        SendOp::Read(remote) => Some((remote, AccessFlags::REMOTE_READ)),
        SendOp::Write(remote) => Some((remote, AccessFlags::REMOTE_WRITE)),
        _ => None,
    }
}

/// The first byte of a piece of memory in this process; none of what has no address here.
fn address_of(memory: &SoftMemory, offset: u64) -> Option<*mut u8> {
    (!memory.is_foreign()).then(|| memory.as_ptr().wrapping_add(offset as usize))
}

impl<'a> Run<'a> {
    #[inline]
    pub(crate) fn begin(
        device: &'a mut SoftDevice,
        stage: &'a mut Stage,
        link: &'a Link,
        qp: Qp,
    ) -> Run<'a> {
        let inside = Some(link.hub.table.enter());
        let (door, patience_ns) = (link.door(), LONGEST);
        Run { device, stage, link, qp, door, inside, patience_ns, moved: 0 }
    }

    /// Executes a WR with those before it, or posts it behind them.
    #[inline]
    pub(crate) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), (usize, PostError)> {
        match self.stage(wr) {
            Way::Taken => return Ok(()),
            Way::Full => {
                self.settle();
                if self.moved >= MOST {
                    self.breathe();
                }
                if self.stage(wr) == Way::Taken {
                    return Ok(());
                }
            }
            Way::Behind(wait_ns) => {
                if self.wait(wait_ns) && self.stage(wr) == Way::Taken {
                    return Ok(());
                }
            }
            Way::Packets if self.stage.wrs.is_empty() => {}
            Way::Packets => self.settle(),
        }
        self.device.post_send(self.qp, &[*wr])
    }

    /// Drives the device until all that was posted has come to its end and the peer tells of its QP. Says whether that
    /// came in time.
    #[cold]
    fn wait(&mut self, for_ns: u64) -> bool {
        let begun = now();
        let until = begun.saturating_add_ns(for_ns.min(self.patience_ns));
        // Who takes something back does not wait for this.
        self.inside = None;
        let (mut idle, before) = (0, self.device.outstanding(self.qp));
        let came = loop {
            if self.device.progress() {
                idle = 0;
            } else {
                idle += 1;
                if idle > SPINS {
                    std::thread::yield_now();
                }
            }
            let waits = self.device.outstanding(self.qp) > 0 || self.link.door().is_none();
            if !waits || self.link.peer.is_closed() || now() >= until {
                break !waits;
            }
        };
        let ended = now();
        let took = ended.ns_since(begun);
        self.patience_ns = self.patience_ns.saturating_sub(took);
        if !came && self.device.outstanding(self.qp) >= before {
            self.link.peer.wait_no_more_before(ended.saturating_add_ns(took * IN_VAIN));
        }
        self.inside = Some(self.link.hub.table.enter());
        self.door = self.link.door();
        came
    }

    /// Sees to the device between two calls that move much, and lets go on who takes something back. What the peer tells may
    /// be another thing then.
    #[cold]
    fn breathe(&mut self) {
        self.inside = None;
        let mut bursts = 0;
        while bursts < BURSTS && self.device.progress() {
            bursts += 1;
        }
        self.inside = Some(self.link.hub.table.enter());
        self.door = self.link.door();
        self.moved = 0;
    }

    /// Executes what is left.
    #[inline]
    pub(crate) fn end(mut self) {
        if !self.stage.wrs.is_empty() {
            self.settle();
        }
    }

    fn may_wait(&self) -> bool {
        self.patience_ns > 0 && now() >= self.link.peer.waits_from()
    }

    /// Takes a WR to be executed with others, if it may be.
    fn stage(&mut self, wr: &SendWr<'_>) -> Way {
        let Some((remote, access)) = wanted(&wr.op) else { return Way::Packets };
        let outstanding = self.device.outstanding(self.qp) > 0;
        let meets = self.door.is_none() && outstanding && !self.link.met.get();
        let waits = outstanding && (meets || length_of(&wr.payload) >= LONG.into());
        if outstanding && !(waits && self.may_wait()) || self.door.is_none() && !meets {
            return Way::Packets;
        }
        let (stage, reads) = (&mut *self.stage, access == AccessFlags::REMOTE_READ);
        let ahead = stage.wrs.len();
        if ahead == WRS || ahead > 0 && (stage.reads != reads || stage.long > MOST) {
            return Way::Full;
        }
        let (pieces, room) = (stage.local.len(), stage.local.capacity() - PIECES_A_WR);
        let local = &mut stage.local;
        let length = self.device.check_direct(self.qp, wr, ahead, |memory, offset, length| {
            let Some(start) = address_of(memory, offset).filter(|_| local.len() < room) else {
                return false;
            };
            local.push(piece(start, length as usize));
            true
        });
        if meets && length.is_some() {
            stage.local.truncate(pieces);
            self.link.met.set(true);
            return Way::Behind(LONGEST);
        }
        let granted = length.filter(|length| *length > 0).and_then(|length| {
            Some((length, granted(self.door.as_ref(), self.link, remote, length, access)?))
        });
        let Some((length, address)) = granted else {
            stage.local.truncate(pieces);
            // Those before it may be what it has no room for.
            if ahead > 0 {
                return Way::Full;
            }
            self.device.count_direct_refused(length.is_some().into(), 0);
            return Way::Packets;
        };
        if outstanding {
            stage.local.truncate(pieces);
            return Way::Behind(u64::from(length) / BYTES_A_NS);
        }
        let (inline, end) = match wr.payload {
            Payload::Inline(bytes) => {
                if stage.bytes.len() + bytes.len() > INLINE {
                    stage.local.truncate(pieces);
                    return Way::Full;
                }
                // It does not move: there is room for all.
                let start = stage.bytes.len();
                stage.bytes.extend_from_slice(bytes);
                stage.local.push(piece(stage.bytes[start..].as_mut_ptr(), bytes.len()));
                (true, stage.bytes.len())
            }
            Payload::Sges(sges) => {
                if length >= LONG {
                    let long = stage.long + u64::from(length);
                    if long > MOST && ahead > 0 {
                        stage.local.truncate(pieces);
                        return Way::Full;
                    }
                    stage.long = long;
                }
                stage.sges.extend_from_slice(sges);
                (false, stage.sges.len())
            }
        };
        if !reads {
            stage.cut_end(address + u64::from(length));
        }
        stage.reach(address, length as usize);
        stage.reads = reads;
        let SendWr { wr_id, op, flags, .. } = *wr;
        stage.wrs.push(Staged { wr_id, op, flags, length, address, inline, end });
        Way::Taken
    }

    /// Executes what was taken. What the system refused is posted, and those behind it.
    fn settle(&mut self) {
        let moved = match self.stage.long > MOST {
            true => self.run_alone(),
            false => self.stage.run(&self.link.peer),
        };
        let (mut sum, mut sges, mut bytes) = (0, 0, 0);
        for wr in &self.stage.wrs {
            sum += u64::from(wr.length);
            let Staged { wr_id, op, flags, length, inline, end, .. } = *wr;
            if sum <= moved {
                self.device.end_direct(self.qp, wr_id, &op, flags, length);
            } else {
                let payload = match inline {
                    true => Payload::Inline(&self.stage.bytes[bytes..end]),
                    false => Payload::Sges(&self.stage.sges[sges..end]),
                };
                let wr = SendWr { wr_id, op, flags, payload, dest: None };
                self.device.count_direct_refused(1, 0);
                // The device would have taken all of them.
                let _ = self.device.post_send(self.qp, &[wr]);
            }
            if inline { bytes = end } else { sges = end }
        }
        self.stage.clear();
        self.moved += sum;
    }

    /// Moves the bytes of a WR that is there alone, by several calls; returns how many were. In between the peer may have taken
    /// back what it reaches for, and the QP may have failed.
    #[cold]
    fn run_alone(&mut self) -> u64 {
        let Some(wr) = self.stage.wrs.first() else { return 0 };
        let Staged { wr_id, op, flags, length, address, end, .. } = *wr;
        let Some((remote, access)) = wanted(&op) else { return 0 };
        let mut moved = 0;
        loop {
            let part = MOST.min(u64::from(length) - moved);
            let now = self.stage.run_part(&self.link.peer, part as usize);
            moved += now;
            if now < part || moved == length.into() {
                return moved;
            }
            self.breathe();
            let payload = Payload::Sges(&self.stage.sges[..end]);
            let wr = SendWr { wr_id, op, flags, payload, dest: None };
            let stands = self.device.check_direct(self.qp, &wr, 0, |_, _, _| true).is_some();
            let granted = granted(self.door.as_ref(), self.link, remote, length, access);
            // Where it was taken back before the first piece none of the others may go either.
            if !stands || granted != Some(address) {
                return moved;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use elver_soft::{Reach, SoftConfig};
    use elver_verbs::{
        AddressVector, CqInit, Gid, Memory as _, QpAttr, QpAttrMask, QpInit, QpState, QpType,
        SendFlags, Sge, qp_state,
    };

    use super::super::hub::watch::tests::two;
    use super::*;
    use crate::direct::told::Door;

    const RKEY: u32 = 0x709;
    const DEST_QPN: u32 = 9;
    const PD: u32 = 3;

    /// A QP that is connected, though nobody is there.
    fn connected(device: &mut SoftDevice, to: IpAddr) -> (elver_verbs::Pd, Qp) {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { cqe: 8 }).unwrap();
        let qp = device.create_qp(QpInit::new(QpType::Rc, pd, cq)).unwrap();
        let mut attr = QpAttr {
            ah_attr: AddressVector { dgid: Gid::from(to), ..AddressVector::default() },
            path_mtu: device.query_port().active_mtu,
            dest_qp_num: DEST_QPN,
            ..QpAttr::default()
        };
        let mut from = QpState::Reset;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = to;
            let row = qp_state::transition(QpType::Rc, from, to).unwrap();
            device.modify_qp(qp, &attr, row.required | QpAttrMask::STATE).unwrap();
            from = to;
        }
        (pd, qp)
    }

    #[test]
    fn once_a_region_is_taken_back_no_further_piece_is_written() {
        const LENGTH: u64 = 3 * MOST;
        let (first, second, peer) = two(209);
        let process = std::process::id();
        let own = IpAddr::from([127, 210, (process >> 8) as u8, process as u8]);
        let config = SoftConfig { publish: false, ..SoftConfig::for_address(own) };
        let mut device = SoftDevice::open(config).unwrap();
        let (pd, qp) = connected(&mut device, peer.address);
        let qpn = device.qp_num(qp).unwrap();
        let memory = device.alloc_memory(LENGTH).unwrap();
        memory.write(0, &vec![7; LENGTH as usize]).unwrap();
        let mr = device.reg_mr(pd, memory, None, AccessFlags::empty()).unwrap();

        let mut theirs = vec![0_u8; LENGTH as usize];
        let (access, address) =
            (AccessFlags::REMOTE_WRITE, theirs.as_mut_ptr().expose_provenance() as u64);
        let reach = Reach { rkey: RKEY, pd: PD, base: 0, length: LENGTH, access };
        let region = Name::Region(RKEY);
        assert!(second.table.tell(region, Place { reach, address }.words()));
        let door = Door { dest_qpn: qpn, dest: own, pd: PD, access, reads: 0 };
        assert!(second.table.tell(Name::Qp(DEST_QPN), door.words()));

        let link = Link::new(first, peer.clone(), own, (qpn, DEST_QPN));
        let mut stage = Stage::default();
        let mut run = Run::begin(&mut device, &mut stage, &link, qp);
        let sges = [Sge { addr: mr.addr, length: LENGTH as u32, lkey: mr.lkey }];
        run.post(&SendWr {
            wr_id: 1,
            op: SendOp::Write(RemoteAddr { addr: 0, rkey: RKEY }),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        })
        .unwrap();
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| second.take_back(region));
            // It is gone for who looks from now on, and waits for this one to leave.
            while peer.view.look_up(region).is_some() {
                std::thread::yield_now();
            }
            run.end();
            assert!(taking.join().unwrap().unwrap().is_some());
        });
        let (granted, rest) = theirs.split_at(MOST as usize);
        assert!(granted.iter().all(|byte| *byte == 7), "what was granted before is written");
        assert!(rest.iter().all(|byte| *byte == 0), "memory was written that was taken back");
        assert_eq!(device.outstanding(qp), 1, "the device is to say what becomes of it");
    }
}
