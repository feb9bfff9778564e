//! The requester: one ordered stream of send WRs (IBTA vol. 1, 9.7.3 and 9.7.5).
//!
//! An RC, UC or UD QP has one lane; a DCI has one for each of its streams. A lane assigns PSNs,
//! cuts messages into packets, keeps what is unacknowledged and sends it again from the oldest
//! (go-back-N), and completes its WRs in order. What is not done here: local copies
//! ([`crate::local`]) and the consequences of a failed WR for the QP ([`crate::qp`]).

mod answers;
mod clock;
mod endings;
mod recovery;
mod transmit;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::num::NonZeroU64;

use elver_verbs::{Dest, Memory, Time};
use elver_wire::{Psn, Qpn};

use crate::aside::Aside;
use crate::hw::Hw;
use crate::qp_core::QpCore;
use crate::route::Route;
use crate::send_queue::SendPool;

/// The retry count that stands for no bound (IBTA vol. 1, 9.7.5.2.8).
const RNR_RETRY_UNBOUNDED: u8 = 7;

/// Whether a lane is kept from sending, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is not.
    No,
    /// By the time: an RNR NAK, or pacing.
    Until(Time),
    /// By memory, which is told of: no timer ends this.
    Memory,
}

#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number: the DCI stream, else 0.
    index: u16,
    /// Slots of the outstanding WQEs, oldest first.
    pub(crate) queue: VecDeque<u32>,
    /// Position in the queue of the WQE that is sent next.
    cursor: usize,
    /// PSN that is sent next.
    next_psn: Psn,
    /// Oldest PSN not yet acknowledged.
    una: Psn,
    /// One beyond the highest PSN ever sent.
    sent_end: Psn,
    /// Packets charged to the path's window.
    charged: u32,
    /// Last PSNs of the READ requests and atomics that wait for responses.
    reads: VecDeque<Psn>,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    retry_left: u8,
    rnr_left: u8,
    /// When progress was last made, or the oldest outstanding packet was sent.
    last_heard: Time,
    /// When it was last certain that the oldest outstanding packet had not been executed: it was
    /// sent for the first time, or an answer said so.
    unexecuted_at: Time,
    /// When the answer came that its memory keeps waiting, and others behind it.
    pub(crate) answered_at: Option<Time>,
    pub(crate) hold: Hold,
    /// The earliest entry in the timer heap.
    timer_at: Option<Time>,
    /// Tail probes since progress was last made.
    probes: u32,
    /// When the next one is due.
    probe_at: Time,
    /// The oldest unacknowledged packet is to be sent again, ahead of what comes next.
    probing: bool,
    /// The last PSN that the probe stands for, until progress is made.
    probe_end: Option<Psn>,
    /// The last progress was just what a probe stood for: what was sent after it may be lost.
    suspect: bool,
    /// A gap in the responses led to a rewind since progress was last made.
    rewound: bool,
    /// The peer fell silent: what is unacknowledged is no longer counted as in flight, and until
    /// something is heard again one packet goes out at a time, outside of the path's window. The
    /// window is then for those whose peers answer.
    silent: bool,
    /// It waits for room in its path's window, which others of the path may make, and is to be woken.
    pub(crate) stalled: bool,
    /// A local copy was begun, and found its peer not ready to answer or to receive.
    pub(crate) unanswered: bool,
    /// The front WQE failed: the QP must act on it.
    pub(crate) fault: bool,
    /// A DCI stream in error: takes no WRs until it is reset.
    pub(crate) errored: bool,
    /// Where a DCI stream's outstanding requests go.
    target: Option<Target>,
    session: u32,
    /// The session was acknowledged: packets need no connect header.
    connected: bool,
    /// The target told a token, and did not say yet that it heard it back.
    telling: bool,
    /// What the target is told to prove where we are.
    token: Option<NonZeroU64>,
    /// What was sent before this was not sent with that token.
    unproved_end: Option<Psn>,
    /// We had to prove where we are since progress was last made.
    proved: bool,
    /// A WR's bytes wait for memory, or were read ahead. While it waits, so does the lane
    /// ([`Hold::Memory`]).
    pub(crate) sending: Option<Box<Aside>>,
    /// A response waits for memory.
    pub(crate) taking: Option<Box<Aside>>,
    /// The front WR is copied within the device so many bytes at a time, since it is long or its memory is not at
    /// hand.
    pub(crate) step: Option<u32>,
    /// So many of its bytes were.
    pub(crate) copied: u32,
    /// All its WRs are to be flushed when what is being written to their memory was.
    pub(crate) flushing: bool,
}

/// A DCT as a WR names it, and the way there.
#[derive(Clone, Copy, Debug)]
struct Target {
    dest: Dest,
    dctn: Qpn,
    access_key: u64,
    route: Route,
}

/// What a lane works with.
pub(crate) struct Env<'a, M> {
    pub(crate) core: &'a QpCore,
    pub(crate) pool: &'a mut SendPool,
    pub(crate) hw: &'a mut Hw<M>,
    pub(crate) now: Time,
}

impl Lane {
    pub(crate) fn new(index: u16) -> Lane {
        let zero = Psn::from_wrapping(0);
        Lane {
            index,
            queue: VecDeque::new(),
            cursor: 0,
            next_psn: zero,
            una: zero,
            sent_end: zero,
            charged: 0,
            reads: VecDeque::new(),
            unasked: 0,
            retry_left: 0,
            rnr_left: 0,
            last_heard: Time::ZERO,
            unexecuted_at: Time::ZERO,
            answered_at: None,
            hold: Hold::No,
            timer_at: None,
            probes: 0,
            probe_at: Time::ZERO,
            probing: false,
            probe_end: None,
            suspect: false,
            rewound: false,
            silent: false,
            stalled: false,
            unanswered: false,
            fault: false,
            errored: false,
            target: None,
            session: 0,
            connected: false,
            telling: false,
            token: None,
            unproved_end: None,
            proved: false,
            sending: None,
            taking: None,
            step: None,
            copied: 0,
            flushing: false,
        }
    }

    /// Whether memory of its WRs is being written, so that they must not end.
    pub(crate) fn is_landing(&self) -> bool {
        let landing = |aside: &Option<Box<Aside>>| aside.as_deref().is_some_and(Aside::is_landing);
        landing(&self.taking) || landing(&self.sending)
    }

    /// Nothing happens any more but that its WRs are flushed when they may be.
    #[cold]
    pub(crate) fn flush_later(&mut self) {
        self.flushing = true;
        self.hold = Hold::Memory;
    }

    /// Sets the first PSN and the retry budgets: the QP goes to RTS.
    pub(crate) fn start_sending(&mut self, sq_psn: Psn, core: &QpCore) {
        self.next_psn = sq_psn;
        self.una = sq_psn;
        self.sent_end = sq_psn;
        self.renew_budgets(core);
    }

    /// The PSN that would be sent next by a lane with nothing outstanding.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Whether a local copy was begun: its peer was asked, or it waits for memory.
    pub(crate) fn has_begun_copy(&self) -> bool {
        self.unanswered || self.copied > 0 || self.has_waited_to_copy()
    }

    /// Whether a local copy waits for memory, or has. What is read ahead for packets is no copy's.
    #[inline]
    pub(crate) fn has_waited_to_copy(&self) -> bool {
        self.sending.as_ref().is_some_and(|aside| aside.lands)
    }

    /// Whether a WR was started and has not ended.
    pub(crate) fn has_started(&self, pool: &SendPool) -> bool {
        let front = self.queue.front().map(|slot| pool.get(*slot));
        let begun = self.has_begun_copy() && !self.errored;
        front.is_some_and(|wqe| wqe.outcome.is_none() && (begun || wqe.started))
    }

    /// Whether packets or a local copy wait for an answer.
    fn in_flight(&self) -> bool {
        self.next_psn != self.una || self.unanswered
    }

    /// Whether the front WQE may be copied locally: nothing is on its way to anywhere.
    pub(crate) fn may_copy(&self) -> bool {
        !self.queue.is_empty()
            && self.cursor == 0
            && self.next_psn == self.una
            && matches!(self.hold, Hold::No)
            && !self.fault
            && !self.errored
    }

    /// Changes with each acknowledgement, and with each piece that is copied within the device.
    pub(crate) fn progress(&self) -> u32 {
        self.una.get().wrapping_add(self.copied)
    }

    /// The lane waits for memory with what it would send.
    #[cold]
    pub(crate) fn wait_for_memory(&mut self, aside: Box<Aside>) {
        self.sending = Some(aside);
        self.hold = Hold::Memory;
    }

    /// Drops all outstanding state; the WQEs are the caller's to release.
    pub(crate) fn reset<M: Memory>(&mut self, route: Option<Route>, hw: &mut Hw<M>) {
        self.uncharge(route, hw);
        if let Some(target) = self.target {
            hw.paths.close(target.route.path);
        }
        let (timer_at, stalled) = (self.timer_at, self.stalled);
        *self = Lane::new(self.index);
        self.timer_at = timer_at;
        self.stalled = stalled;
    }

    fn renew_budgets(&mut self, core: &QpCore) {
        self.retry_left = core.attr.retry_cnt;
        self.rnr_left = core.attr.rnr_retry;
        self.probes = 0;
        self.probe_end = None;
        self.rewound = false;
        self.silent = false;
        self.proved = false;
    }

    pub(crate) fn uncharge<M: Memory>(&mut self, route: Option<Route>, hw: &mut Hw<M>) {
        if let Some(route) = self.target.map(|target| target.route).or(route) {
            hw.paths.forgotten(route.path, self.charged);
        }
        self.charged = 0;
    }

    fn path(&self, core: &QpCore) -> Option<Route> {
        self.target.map(|target| target.route).or(core.remote)
    }
}
