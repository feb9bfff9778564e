//! Bursts: which of a VQP's WRs may go, and how they go to the device (Algorithm 2,
//! `post_send_virtualized`).

use elver_verbs::{
    AccessFault, Class, Device, Payload, Qp, SendFlags, SendOp, SendOpcode, SendWr, Time, Via,
    WcStatus,
};

use crate::Core;
use crate::VqpId;
use crate::datapath::Datapath;
use crate::datapath::plain::{BURST, Plain, post, posted, send_accesses, send_shorts};
use crate::datapath::wr_id::WrId;
use crate::effects::Effect;
use crate::ids::{LaneIx, PeerId};
use crate::memory::Regions;
use crate::memory::mr_store::{MrStore, RemoteMr};
use crate::messaging::Messaging;
use crate::vqp::seq::SendSeq;
use crate::vqp::sq_entry::{Bytes, SqEntry};
use crate::vqp::{Fault, Vqp, Wait};

/// What a WR counts as besides its bytes, in its VQP's turn.
const WR_BYTES: i64 = 256;
/// Bytes that a VQP may post in each of its turns on a lane that others wait for.
pub(crate) const QUANTUM: i64 = 64 << 10;
/// The most that a VQP may owe; a WR may be as long as 2 GB.
const DEBT_MAX: i64 = 8 * QUANTUM;

/// What stopped a VQP's posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nothing is left.
    Empty,
    /// The lane has no room, or the turn is over.
    Room,
    /// Something else, which brings it back when it is there.
    Waits,
}

/// What the checks say of a WR that is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Ready,
    /// The peer's region must be looked up.
    Unknown(u32),
    /// The peer's region does not permit it.
    Refused,
    /// The VQP's class has no tokens.
    Held,
    /// The receiver wants no message now.
    NoCredit,
    /// Its region cannot be shared with the receiver.
    Failed,
    /// Its bytes do not fit a buffer of the receiver's, and stand where it cannot read them.
    TooLong,
    /// There is no send slot for its header.
    NoSlot,
    /// It takes more room than there is, or must be posted by itself.
    Apart,
    /// Its VQP's turn is over.
    TurnOver,
}

/// WRs that go in one call.
struct Burst {
    count: u32,
    bytes: u64,
    /// They are plain, and whether they are short messages.
    plain: Option<bool>,
    /// It is one WRITE_WITH_IMM, which takes two physical WRs.
    pair: bool,
    /// What stopped the WR behind them, if one did.
    stopped: Check,
    /// The receiver's leave to send messages runs out.
    asks: bool,
    /// PSNs that they take beyond one each.
    psns: u32,
    /// They are of the low class, and the high one is loaded.
    gives_way: bool,
}

impl Burst {
    const NONE: Burst = Burst {
        count: 0,
        bytes: 0,
        plain: None,
        pair: false,
        stopped: Check::Ready,
        asks: false,
        psns: 0,
        gives_way: false,
    };
}

impl<D: Device> Core<D> {
    /// Posts a VQP's WRs, as many as are there and the lane has room for; in its turn, as many as
    /// its deficit allows.
    pub(crate) fn post_ready(&mut self, id: VqpId, in_turn: bool, now: Time) -> Stop {
        loop {
            let Some(vqp) = self.vqps.get(id) else {
                bug!("a VQP that is gone posts");
                return Stop::Waits;
            };
            let mut unposted = vqp.sq.unposted();
            if unposted == 0 {
                return Stop::Empty;
            }
            if let Some(Fault { seq, status }) = vqp.fault {
                unposted = seq.since(vqp.sq.posted);
                if unposted == 0 {
                    self.fail_next(id, status, now);
                    return Stop::Waits;
                }
            }
            let Some(at) = vqp.lane else {
                bug!("a VQP posts that has no lane");
                return Stop::Waits;
            };
            let lane = &self.lanes.lanes[at];
            let room = lane.room(&self.lanes.qps[lane.qp]);
            if room == 0 {
                return Stop::Room;
            }
            let burst = self.next_burst(id, at, unposted.min(BURST), room, in_turn, now);
            if burst.count > 0 && !self.post_burst(id, at, &burst, now) {
                self.stats.device_refusals += 1;
                self.fail_next(id, WcStatus::LocQpOpErr, now);
                return Stop::Waits;
            }
            if burst.asks {
                self.ask_for_credit(id, now);
                if !in_turn {
                    // The question goes first.
                    self.effects.push(Effect::Pump(id));
                    return Stop::Waits;
                }
            }
            match burst.stopped {
                Check::Ready => {}
                Check::Apart if burst.count > 0 => {}
                Check::Apart | Check::TurnOver => return Stop::Room,
                other => {
                    self.wait_for(id, other, now);
                    return Stop::Waits;
                }
            }
        }
    }

    /// Posts the WRs of a VQP that wait in its ring, which are plain and for which the lane has room. Returns
    /// whether the device took all of them; if not, the VQP fails.
    #[inline]
    pub(crate) fn post_plain(&mut self, id: VqpId, at: LaneIx, wrs: Plain, now: Time) -> bool {
        let Plain { count, bytes, short } = wrs;
        let Some(vqp) = self.vqps.get_mut(id) else {
            bug!("a VQP that is gone posts");
            return true;
        };
        vqp.deficit = owed(vqp.deficit, count, bytes);
        let burst = Burst { count, bytes, plain: Some(short), ..Burst::NONE };
        let taken = self.post_burst(id, at, &burst, now);
        if !taken {
            self.stats.device_refusals += 1;
            self.fail_next(id, WcStatus::LocQpOpErr, now);
        }
        taken
    }

    /// What of a VQP's WRs may go next, of those that wait at most `most`: which are then counted as
    /// gone, and messages among them have their headers.
    fn next_burst(
        &mut self,
        id: VqpId,
        lane: LaneIx,
        most: u32,
        room: u32,
        in_turn: bool,
        now: Time,
    ) -> Burst {
        let query_at = Self::query_at(now);
        let Core {
            vqps,
            device,
            pool,
            lanes,
            regions: Regions { of_peers: store, local: mrs, .. },
            messaging: Messaging { blank, unread, .. },
            datapath: Datapath { qos, .. },
            ..
        } = self;
        let mut burst = Burst::NONE;
        let Some(vqp) = vqps.get_mut(id) else {
            bug!("a VQP that is gone posts");
            return burst;
        };
        let limit = most.min(room);
        let path = &lanes.lanes[lane].path;
        let counted = vqp.class == Class::Low && qos.counts_low(now);
        burst.gives_way = counted;
        let mut deficit = vqp.deficit;
        while burst.count < limit {
            if in_turn && deficit <= 0 {
                burst.stopped = Check::TurnOver;
                break;
            }
            let seq = vqp.sq.posted.after(burst.count);
            let entry = vqp.sq.entry(seq);
            let (length, is_message) = (entry.length, entry.is_message());
            burst.stopped =
                check_remote((&mut vqp.remote_key, &mut vqp.remote), vqp.peer, store, entry, now);
            if burst.stopped != Check::Ready {
                break;
            }
            if counted && !qos.ready(now) {
                burst.stopped = Check::Held;
                break;
            }
            if is_message {
                if vqp.credit.is_used_up() {
                    burst.stopped = Check::NoCredit;
                    break;
                }
                burst.pair = entry.opcode == SendOpcode::WriteWithImm;
                if burst.pair && (burst.count > 0 || room < 2) {
                    (burst.pair, burst.stopped) = (false, Check::Apart);
                    break;
                }
                let before = entry.was_shared();
                burst.stopped = vqp.prepare(seq, pool, blank, mrs, device);
                if !before && vqp.sq.entry(seq).was_shared() {
                    unread.look_after(query_at, id, seq);
                }
                if burst.stopped != Check::Ready {
                    break;
                }
                vqp.credit.use_one();
            }
            if counted {
                qos.charge(length.into());
            }
            deficit = owed(deficit, 1, length.into());
            burst.bytes += u64::from(length);
            if let Some(path) = path
                && length > path.one_packet
            {
                burst.psns += path.more_psns(&vqp.sq, seq);
            }
            burst.count += 1;
            if burst.pair {
                break;
            }
        }
        vqp.deficit = deficit;
        burst.asks = vqp.credit.runs_out();
        burst
    }

    /// Posts a burst. Returns whether the device took all of it.
    fn post_burst(&mut self, id: VqpId, at: LaneIx, burst: &Burst, now: Time) -> bool {
        let Core {
            vqps,
            lanes,
            peers,
            device,
            stats,
            links,
            config,
            datapath: Datapath { qos, shorts, .. },
            ..
        } = self;
        let Some(vqp) = vqps.get_mut(id) else {
            bug!("a VQP that is gone posts");
            return true;
        };
        let lane = &mut lanes.lanes[at];
        let phys = &mut lanes.qps[lane.qp];
        let first = vqp.sq.posted;
        if phys.short_turns != burst.gives_way {
            phys.short_turns = burst.gives_way;
            device.take_short_turns(phys.qp, burst.gives_way);
        }
        // What the device takes of them, and how many physical WRs that makes.
        let (posted, physical) = if burst.pair {
            let cost = vqp.sq.entry(first).cost();
            let posted = send_pair(device, phys.qp, vqp, first);
            (posted, cost * posted)
        } else {
            let (qp, count) = (phys.qp, burst.count);
            let posted = match burst.plain {
                Some(false) => send_accesses(device, qp, vqp, first, count),
                Some(true) => send_shorts(device, qp, (vqp, shorts), first, count),
                None => send(device, qp, vqp, first, count),
            };
            (posted, posted)
        };
        vqp.sq.posted = first.after(posted);
        vqp.inflight += physical;
        if vqp.class == Class::High {
            qos.high_posted(physical, now);
        }
        lane.uncompleted += physical;
        if let Some(path) = &mut lane.path {
            let mut psns = burst.psns;
            if posted != burst.count {
                let taken = (0..posted).map(|at| first.after(at));
                psns = taken.map(|seq| path.more_psns(&vqp.sq, seq)).sum();
            }
            path.advance(physical + psns);
        }
        phys.posted += physical;
        stats.posts += 1;
        if let Some(peer) = vqp.peer
            && let Some(entry) = peers.get_mut(peer)
        {
            entry.ops += u64::from(posted);
            entry.bytes += burst.bytes;
            let heat = &mut entry.heat[vqp.class as usize];
            if heat.note(posted.into(), &config.transfer, now) && vqp.via != Some(Via::Leased) {
                links.hot.push_back((peer, vqp.class));
            }
        }
        posted == burst.count
    }

    /// A VQP's next WR does not go: it waits for something, or ends.
    fn wait_for(&mut self, id: VqpId, stopped: Check, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone waits") };
        match stopped {
            Check::Unknown(rkey) => {
                let Some(peer) = vqp.peer else {
                    return bug!("a VQP posts that is connected to nobody");
                };
                self.want_mr(peer, rkey, id, now);
            }
            Check::Held => {
                vqp.wait = Wait::Tokens;
                self.datapath.qos.hold(id, now);
                self.stats.low_held += 1;
            }
            Check::NoCredit => vqp.wait = Wait::Credit,
            Check::NoSlot => {
                vqp.wait = Wait::Slot;
                self.datapath.slot_waiters.push_back(id);
            }
            Check::Refused => {
                self.stats.mr_refusals += 1;
                let (at, length) =
                    (vqp.sq.entry(vqp.sq.posted).addr, vqp.sq.entry(vqp.sq.posted).length);
                let is_inside = vqp.remote.holds(at, length);
                let fault = if is_inside { AccessFault::Right } else { AccessFault::Range };
                self.fail_access(id, fault, now);
            }
            Check::Failed => {
                self.stats.messages_unopened += 1;
                self.fail_next(id, WcStatus::LocQpOpErr, now);
            }
            Check::TooLong => self.fail_next(id, WcStatus::LocLenErr, now),
            Check::Ready | Check::Apart | Check::TurnOver => {}
        }
    }
}

/// What is left of a VQP's turn when it has posted so many WRs of so many bytes.
#[inline]
fn owed(deficit: i64, wrs: u32, bytes: u64) -> i64 {
    (deficit - bytes as i64 - i64::from(wrs) * WR_BYTES).max(-DEBT_MAX)
}

/// Posts `count` WRs of a VQP, from sequence number `first` on, in one call. Returns how many the
/// device took.
#[inline]
fn send<D: Device>(device: &mut D, qp: Qp, vqp: &Vqp, first: SendSeq, count: u32) -> u32 {
    let wrs = (0..count).map(|at| physical(vqp, first.after(at), at + 1 == count));
    post(device, qp, wrs, count)
}

/// A WR of any kind as it goes to the device.
#[inline(always)] // The device writes it down in its own form: it need not exist in this one.
fn physical(vqp: &Vqp, seq: SendSeq, last: bool) -> SendWr<'_> {
    let entry = vqp.sq.entry(seq);
    let (op, payload) = if entry.is_send() {
        // Immediate data travels in the header. Of a message that is read later only that goes.
        let sges = vqp.sq.message_sges(seq);
        (SendOp::Send, Payload::Sges(if entry.was_shared() { &sges[..1] } else { sges }))
    } else if entry.bytes == Bytes::Inline {
        (vqp.sq.op(seq), Payload::Inline(vqp.sq.inline(seq)))
    } else {
        (vqp.sq.op(seq), Payload::Sges(vqp.sq.sges(seq)))
    };
    posted((vqp, entry), op, payload, (seq, last))
}

/// Posts a WRITE_WITH_IMM: a WRITE, and a message behind it. Returns whether the device took both.
fn send_pair<D: Device>(device: &mut D, qp: Qp, vqp: &Vqp, seq: SendSeq) -> u32 {
    let entry = vqp.sq.entry(seq);
    let flags = entry.flags - SendFlags::SIGNALED;
    let op = SendOp::Write(entry.remote_addr());
    let write = SendWr { op, flags, ..physical(vqp, seq, false) };
    let message = SendWr {
        wr_id: WrId::User { vqp: vqp.id, seq: seq.low(), second: true }.encode(),
        op: SendOp::Send,
        flags: flags | SendFlags::SIGNALED,
        payload: Payload::Sges(&vqp.sq.message_sges(seq)[..1]),
        dest: vqp.dest,
    };
    let wrs = [write, message];
    let wrs = if entry.first_done { &wrs[1..] } else { &wrs[..] };
    u32::from(device.post_send(qp, wrs).is_ok())
}

/// Checks a WR against what is known of the peer's region. `hit` is what its VQP used last.
#[inline]
fn check_remote(
    (key, hit): (&mut u32, &mut RemoteMr),
    peer: Option<PeerId>,
    store: &MrStore,
    entry: &SqEntry,
    now: Time,
) -> Check {
    let Some((at, needs)) = entry.remote() else { return Check::Ready };
    // A WR of no bytes touches no memory; the device does not look at its key either.
    if entry.length == 0 {
        return Check::Ready;
    }
    if *key != at.rkey || hit.until <= now {
        match peer.and_then(|peer| store.get(peer, at.rkey, now)) {
            Some(mr) => (*key, *hit) = (at.rkey, mr),
            None => return Check::Unknown(at.rkey),
        }
    }
    if hit.permits(&at, entry.length, needs) { Check::Ready } else { Check::Refused }
}
