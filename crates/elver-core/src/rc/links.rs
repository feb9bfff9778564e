//! RC QPs between two nodes, from the handshake over UD to their end (sections 4.2 and 4.3).
//!
//! ```text
//!   asks:      Asking ──Accepted──► Ready ──► Leaving ──► Closing ──Closed──► gone
//!   is asked:  Listening ──first packet──► Ready ──► Leaving ──► gone, answers Closed
//! ```
//!
//! Either side may close a link. It first takes its own VQPs off and lets their work end, then asks
//! the other to do the same; the answer says that nothing of either side is under way any more. One
//! that has failed is closed in the same way, after both sides have told each other how far its ends
//! got: see [`crate::rc::fate`].

mod ask;
mod attend;
pub(crate) mod audit;
mod closing;
mod ended;
mod fate;
mod handshake;
mod laneless;
mod leases;
mod needed;
mod past;
mod reminders;
mod requests;
mod waiting;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_control::{Control, ControlAddr, ControlConfig};
use elver_verbs::{Class, Time, Wc};

use self::ended::{Ended, Unsettled};
use self::reminders::{Reminder, Reminders};
use self::waiting::{Laneless, Waiting};
use crate::Config;
use crate::VqpId;
use crate::discovery::strangers::Strangers;
use crate::ids::{CallId, LinkId, OpId, PeerId};
use crate::rc::back_off::BackOff;
use crate::rc::pool::RcPool;
use crate::rc::ud::Ud;
use crate::slots::{SLOTS_MAX, Slots};

/// How often what has no moment of its own is looked after, in nanoseconds.
const SWEEP_NS: u64 = BackOff::WAIT_NS;
/// A link that a peer asked for and never used is closed after this long, and a connect that waits
/// for a link is given up.
const SILENCE_NS: u64 = 4_000_000_000;
/// Marks the completion of a greeting among those of the UD QP; the rest is the lane.
const GREETING: u32 = 1 << 31;
/// Answers kept for requests that come again.
const REPLIES_MAX: usize = 4_096;
/// Ends that are remembered which went before their peers had agreed.
const ENDED_MAX: usize = 256;

/// A node's RC QPs, and what it needs to agree on them with others.
#[derive(Debug)]
pub(crate) struct Links<M> {
    pub(crate) control: Control,
    pub(crate) strangers: Strangers,
    pub(crate) ud: Ud<M>,
    pub(crate) rc: RcPool,
    calls: Slots<CallId, CallFor>,
    waiting: Waiting,
    /// Peers that became hot.
    pub(crate) hot: VecDeque<(PeerId, Class)>,
    /// Links whose VQPs leave.
    leaving: Vec<LinkId>,
    /// Ends that have gone, and whose peers have not been heard to know it.
    pub(crate) reminders: Reminders,
    /// Ends that went before their peers had agreed, oldest first.
    ended: VecDeque<Ended>,
    /// Ends in error of which it is not known yet how far they got.
    unsettled: Vec<Unsettled>,
    /// Links of single VQPs that are not needed any longer.
    pub(crate) ended_leases: Vec<LinkId>,
    /// VQPs that move and of which nothing is under way any longer, in no order; see
    /// [`crate::rc::transfer`].
    pub(crate) moved: Vec<VqpId>,
    /// What completed before a QP was destroyed, in order: before anything that the device tells next.
    pub(crate) kept: Vec<Wc>,
    sweep: Option<Time>,
    /// There is no link to a meta server, but one is due: the server asks for it and has refused ours for
    /// that, the one before has ended, or too much else is being asked for. Its request is on its way, or
    /// the next sweep asks again. Look-ups wait for it until then.
    meta_link_due: Option<Time>,
}

/// What a request of ours is for.
#[derive(Clone, Copy, Debug)]
enum CallFor {
    Connect { link: LinkId, qpn: u32, to: ControlAddr },
    Close { link: LinkId },
    Fate { link: LinkId },
    Remind(Reminder),
    Meta { peer: PeerId },
    Past { peer: PeerId },
}

impl<M: elver_verbs::Memory> Links<M> {
    pub(crate) fn new(config: &Config, ud: Ud<M>) -> Links<M> {
        let handshakes = config.storm.handshakes_max as usize;
        let control = Control::new(ControlConfig {
            calls_max: handshakes,
            waiting_max: config.storm.connects_waiting_max as usize,
            serving_max: handshakes,
            replies_max: REPLIES_MAX,
        });
        Links {
            control,
            strangers: Strangers::default(),
            ud,
            rc: RcPool::new(config.transfer.clone()),
            calls: Slots::new(SLOTS_MAX),
            waiting: Waiting::default(),
            hot: VecDeque::new(),
            leaving: Vec::new(),
            reminders: Reminders::default(),
            ended: VecDeque::new(),
            unsettled: Vec::new(),
            ended_leases: Vec::new(),
            moved: Vec::new(),
            kept: Vec::new(),
            sweep: None,
            meta_link_due: None,
        }
    }

    /// When something is due next.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let stirred = self.waiting.stirred && !self.waiting.is_empty();
        let listed = !self.ended_leases.is_empty() || !self.hot.is_empty();
        let pending = listed || !self.kept.is_empty() || stirred;
        let now = pending.then_some(Time::ZERO);
        self.sweep.into_iter().chain(self.control.poll_timeout()).chain(now).min()
    }

    /// Has links looked after some time from now, if that is not to happen sooner.
    fn sweep_soon(&mut self, now: Time) {
        self.sweep_at(now.saturating_add_ns(SWEEP_NS));
    }

    fn sweep_at(&mut self, due: Time) {
        let sweep = self.sweep.get_or_insert(due);
        *sweep = due.min(*sweep);
    }

    /// Look-ups wait for a link that does not come at once.
    fn await_meta_link(&mut self, now: Time) {
        self.meta_link_due.get_or_insert(now.saturating_add_ns(SILENCE_NS));
    }

    /// An operation waits for a link to its peer.
    pub(crate) fn await_way(&mut self, op: OpId, (peer, class): (PeerId, Class), now: Time) {
        let until = now.saturating_add_ns(SILENCE_NS);
        self.waiting.ops.push(Laneless { op, peer, class, until });
        // The sweep asks for the link, and not this call: what follows if it cannot may be that another
        // operation waits.
        self.sweep_at(now);
    }

    /// Whether an operation to a peer waits for a link of a class.
    pub(crate) fn has_laneless_op(&self, peer: PeerId, class: Class) -> bool {
        self.waiting.ops.iter().any(|one| (one.peer, one.class) == (peer, class))
    }

    fn take_laneless(&mut self, which: impl Fn(&Laneless) -> bool) -> Vec<Laneless> {
        self.waiting.ops.extract_if(.., |one| which(one)).collect()
    }

    /// For [`crate::Core::audit`]: operations that wait.
    pub(crate) fn laneless_ops(&self) -> impl Iterator<Item = OpId> {
        self.waiting.ops.iter().map(|one| one.op)
    }

    /// Ends that have gone, and whose peers have not been heard to know it.
    pub(crate) fn untold(&self) -> u64 {
        let told = self.calls.iter().filter(|(_, call)| matches!(call, CallFor::Remind(_)));
        (self.reminders.len() + told.count()) as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rc.bytes() + self.calls.bytes()
    }
}
