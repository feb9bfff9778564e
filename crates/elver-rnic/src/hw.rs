use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;
use core::num::NonZeroU32;

use elver_verbs::{AddressVector, AsyncEvent, Cq, Memory, ObjectKind, Time, VerbsError, Wc};
use elver_wire::Qpn;

use crate::aside::Errands;
use crate::config::Config;
use crate::counters::Counters;
use crate::cq::{CompletionQueue, Pushed};
use crate::distrust::Distrust;
use crate::flow::Paths;
use crate::proof::Tokens;
use crate::recv_queue::{Recv, RecvQueue};
use crate::regions::{Regions, Segment};
use crate::route::{Route, Whither};
use crate::table::Table;
use elver_random::{KeyedHash, Rng};

/// Everything of a device but its queue pairs: what a queue pair works on while it handles a
/// packet or a WR.
#[derive(Debug)]
pub(crate) struct Hw<M> {
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    /// Where the numbers of the sessions towards a target begin.
    dc_starts: KeyedHash,
    /// DC sessions opened, modulo 2^32.
    dc_opened: u32,
    pub(crate) counters: Counters,
    /// When the driver last said that it had caught up.
    looked_at: Time,
    /// When a packet was taken last.
    taken_at: Time,
    /// Since when the driver was away, if he has not caught up since; or since when what is taken waited.
    pub(crate) dated: Option<Time>,
    /// Time in which the driver kept up: what the silence of initiators is measured by.
    pub(crate) awake: Time,
    pub(crate) regions: Regions<M>,
    pub(crate) pds: Table<ProtectionDomain>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) srqs: Table<SharedReceiveQueue>,
    pub(crate) xrcds: Table<XrcDomain>,
    pub(crate) ahs: Table<AddressHandle>,
    pub(crate) paths: Paths,
    pub(crate) tokens: Tokens,
    pub(crate) distrust: Distrust,
    pub(crate) timers: Timers,
    /// QPs that wait for room in a path's window.
    pub(crate) stalled: Vec<u32>,
    pub(crate) events: VecDeque<AsyncEvent>,
    pub(crate) cq_events: VecDeque<Cq>,
    /// Whom a CQ in error is still to stop.
    pub(crate) cut_off: Vec<CutOff>,
    /// QPs of this device may send packets to each other ([`crate::loopback`]).
    pub(crate) loops_back: bool,
    /// How often QPs failed of themselves.
    pub(crate) failures: u64,
    /// Copies to be made elsewhere.
    pub(crate) errands: Errands<M>,
    pub(crate) scratch: Scratch,
}

/// Whom a CQ in error stops (IBTA vol. 1, 10.2.7.2 and 11.6.3.2): work that completes nowhere is not to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutOff {
    /// It overflows: all that complete there.
    UsersOf(Cq),
    /// It has, and one completes there that was no user then, or in RESET: by its number on the wire. A CQ stays in
    /// error until it is destroyed, with room or without, as on hardware; rxe's goes on, and has lost completions.
    Qp(u32),
}

/// Buffers that are used again and again, so that the data path allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The local memory of a WR that is being copied.
    pub(crate) segments: Vec<Segment>,
    /// The bytes of an inline WR that is being copied.
    pub(crate) inline: Vec<u8>,
    pub(crate) recv: Recv,
}

#[derive(Debug, Default)]
pub(crate) struct ProtectionDomain {
    pub(crate) users: u32,
}

#[derive(Debug, Default)]
pub(crate) struct XrcDomain {
    /// SRQs and QPs.
    pub(crate) users: u32,
}

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: u32,
    pub(crate) queue: RecvQueue,
    /// The armed limit.
    pub(crate) limit: Option<NonZeroU32>,
    pub(crate) users: u32,
    /// Of an XRC SRQ, whose number peers know.
    pub(crate) xrc: Option<XrcSrq>,
}

/// What makes an SRQ one of XRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: u32,
    /// Where its receives complete.
    pub(crate) cq: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: u32,
    pub(crate) av: AddressVector,
    pub(crate) route: Route,
}

impl<M: Memory> Hw<M> {
    pub(crate) fn new(config: Config, mut rng: Rng) -> Hw<M> {
        Hw {
            dc_starts: rng.keyed_hash(),
            dc_opened: 0,
            counters: Counters::default(),
            looked_at: Time::ZERO,
            taken_at: Time::ZERO,
            dated: None,
            awake: Time::ZERO,
            regions: Regions::new(config.max_mr, config.max_mr_size),
            pds: Table::new(ObjectKind::Pd, config.max_pd, "max_pd"),
            cqs: Table::new(ObjectKind::Cq, config.max_cq, "max_cq"),
            srqs: Table::new(ObjectKind::Srq, config.max_srq, "max_srq"),
            xrcds: Table::new(ObjectKind::Xrcd, config.max_pd, "max_pd"),
            ahs: Table::new(ObjectKind::Ah, config.max_ah, "max_ah"),
            paths: Paths::new(config.max_paths, config.flow.clone()),
            tokens: Tokens::new(rng.keyed_hash(), config.dc_token_ns),
            distrust: Distrust::new(rng.keyed_hash(), config.bad_keys_burst, config.bad_keys_per_s),
            timers: Timers::default(),
            stalled: Vec::new(),
            events: VecDeque::new(),
            cq_events: VecDeque::new(),
            cut_off: Vec::new(),
            loops_back: false,
            failures: 0,
            errands: Errands::default(),
            scratch: Scratch::default(),
            config,
            rng,
        }
    }

    /// Gives a completion to a CQ.
    #[inline]
    pub(crate) fn complete(&mut self, cq: u32, wc: Wc, solicited: bool) {
        let Some(queue) = self.cqs.get_mut(cq) else {
            return bug!("a CQ went before the QPs that use it");
        };
        let qpn = wc.qp_num;
        match queue.push(wc, solicited) {
            Pushed::Quietly => {}
            Pushed::Event => self.cq_events.push_back(Cq(cq)),
            Pushed::Lost => self.cut_off(CutOff::Qp(qpn)),
            Pushed::Overflow => {
                self.cut_off(CutOff::UsersOf(Cq(cq)));
                self.event(AsyncEvent::CqErr(Cq(cq)));
            }
        }
    }

    /// What a QP flushes to a CQ in error says the same again and again.
    #[cold]
    fn cut_off(&mut self, who: CutOff) {
        if self.cut_off.last() != Some(&who) {
            self.cut_off.push(who);
        }
    }

    pub(crate) fn event(&mut self, event: AsyncEvent) {
        // Anybody causes one as often as he likes: it says the same each time, and would push out what says more.
        if matches!(event, AsyncEvent::DctAccessErr(_)) && self.events.contains(&event) {
            return;
        }
        if self.events.len() as u32 >= self.config.max_async_events {
            self.events.pop_front();
            self.counters.async_events_lost += 1;
        }
        self.events.push_back(event);
    }

    /// Takes the oldest receive of an SRQ, and tells when its limit is reached.
    pub(crate) fn take_shared(&mut self, srq: u32, recv: &mut Recv) -> bool {
        let Some(shared) = self.srqs.get_mut(srq) else {
            bug!("an SRQ went before the QPs that use it");
            return false;
        };
        let taken = shared.queue.pop(recv);
        if shared.limit.is_some_and(|limit| shared.queue.len() < limit.get()) {
            shared.limit = None;
            self.event(AsyncEvent::SrqLimitReached(elver_verbs::Srq(srq)));
        }
        taken
    }

    /// The number of a new session towards a target. They grow over the device's life, so that the
    /// target can tell a late packet of an earlier session, from a start that is each target's own:
    /// who knows his own numbers knows nobody else's.
    pub(crate) fn next_dc_session(&mut self, target: IpAddr, dctn: Qpn) -> u32 {
        self.dc_opened = self.dc_opened.wrapping_add(1);
        let start = self.dc_starts.of(target, [u64::from(dctn.get())]) as u32;
        start.wrapping_add(self.dc_opened)
    }

    /// The way of an address vector, with a path that is held once more.
    pub(crate) fn resolve(
        &mut self,
        av: &AddressVector,
        whither: Whither,
    ) -> Result<Route, VerbsError> {
        let route = Route::resolve(&self.config, &mut self.paths, av, whither);
        self.counters.paths_evicted = self.paths.evicted();
        route
    }

    /// The driver caught up. What passed since it last had counts as time in which initiators could
    /// be heard, unless it is more than a part of the idle time: who looks so seldom was asleep, or
    /// his clock jumped, and of who stood still again and again not even a part counts: eight times were
    /// silence enough to forget an initiator whose packets waited each time.
    #[inline]
    pub(crate) fn caught_up(&mut self, now: Time) {
        let passed = now.ns_since(self.looked_at);
        self.looked_at = now;
        self.dated = None;
        if passed <= self.config.dc_context_idle_ns / 8 {
            self.awake = self.awake.saturating_add_ns(passed);
        }
    }

    /// A packet is taken. Where the driver was away for long before, it may have come at any time since, and so
    /// may all that is taken before he has caught up.
    #[inline]
    pub(crate) fn takes(&mut self, now: Time) {
        let last = self.looked_at.max(self.taken_at);
        self.taken_at = now;
        if now.ns_since(last) > self.config.dc_context_idle_ns / 8 && last > Time::ZERO {
            self.dated.get_or_insert(last);
        }
    }

    /// When what is taken now was sent, at the earliest.
    #[inline]
    pub(crate) fn came_at(&self, now: Time) -> Time {
        self.dated.unwrap_or(now)
    }

    /// Whether an initiator last heard of at `heard`, in time awake, was silent for as long as a DCT
    /// must remember it.
    pub(crate) fn was_silent(&self, heard: Time) -> bool {
        self.awake.ns_since(heard) >= self.config.dc_context_idle_ns
    }

    pub(crate) fn use_pd(&mut self, pd: u32) -> Result<(), VerbsError> {
        self.pds.require_mut(pd)?.users += 1;
        Ok(())
    }

    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(domain) = self.pds.get_mut(pd) {
            domain.users -= 1;
        }
    }
}

/// Deadlines of lanes, soonest first.
///
/// A lane moves its deadline with every acknowledgement; the heap holds at most one entry a lane
/// that is not later than its deadline, and an entry that comes too early is put back.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32, u16)>>,
}

impl Timers {
    pub(crate) fn push(&mut self, at: Time, qpn: u32, lane: u16) {
        self.heap.push(Reverse((at, qpn, lane)));
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, u32, u16)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
