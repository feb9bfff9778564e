//! The one device of this process, who drives it, and who is told of its events.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use elver_soft::SoftDevice;
use elver_verbs::{Ah, AsyncEvent, Cq, Device, Mr, Mw, Pd, Qp, Srq, Time, VerbsError, Wc};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::Timespec;

use crate::addresses;
use crate::belongs::Belongs;
use crate::channel::CqObject;
use crate::cm::state::Cm;
use crate::device::node_guid;
use crate::direct::{self, Beside, Direct, Hub};
use crate::doze::Doze;
use crate::faults::Posts;
use crate::fork::{Own, close_in_child, generation};
use crate::gid_index;
use crate::link_layer;
use crate::lookout::{LOOKS, Lookout};
use crate::moderation::Moderated;
use crate::outage::Outage;
use crate::parents::Parents;
use crate::service::Service;
use crate::threads::{self, Turns};
use crate::timed::{Stamp, Timed};
use crate::told::{self, Told};
use crate::wishes::Wishes;
use crate::xrc_table::Xrc;

/// How long the thread leaves the device to a program that polls before it looks again.
const NAP: Duration = Duration::from_millis(1);
/// How long a program that polls may take to its next poll, once something has come for it.
const GLANCE: Duration = Duration::from_micros(20);
/// How long it sees to packets itself after one had waited for a program that no longer polled: such a program looks at
/// memory too. The longer the more often that happens.
const STAYS: RangeInclusive<Duration> = Duration::from_millis(16)..=Duration::from_secs(1);
/// Polls between two looks of the thread by which it knows a program that does nothing else.
const POLLS_A_ROUND: u64 = 16;
/// How long a process that ends waits for a thread that has the device.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often rdma_cm has its turn, one after the other, before the program has.
const CM_ROUNDS: u32 = 16;

/// The device of this process.
pub(crate) struct Engine {
    state: Mutex<State>,
    /// Whose it is.
    process: u32,
    /// Rises whenever a program polls.
    polls: AtomicU64,
    /// Whether the thread does not look at the socket just now.
    naps: AtomicBool,
    /// Until when it sleeps otherwise.
    doze: Doze,
    /// What `polls` was when a program last asked to be told of an event.
    asked: AtomicU64,
    wake: OwnedFd,
    socket: OwnedFd,
    /// What becomes readable when multicast came, once a QP is in a group.
    groups: OnceLock<OwnedFd>,
    /// What becomes readable when a process has ended that this one is connected to, once rdma_cm is open.
    ends: OnceLock<OwnedFd>,
    /// What contexts show as the descriptor of their device: another context can be made of it.
    pub(crate) file: OwnedFd,
    /// Finds processes that are reached directly.
    pub(crate) hub: Option<Arc<Hub>>,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) device: SoftDevice,
    /// The program's objects that events belong to.
    pub(crate) cqs: HashMap<Cq, CqObject>,
    /// Those whose completions are stamped.
    pub(crate) timed: HashMap<Cq, Timed>,
    /// Those whose events wait.
    pub(crate) moderated: Moderated,
    pub(crate) qps: HashMap<Qp, Told>,
    pub(crate) srqs: HashMap<Srq, Told>,
    /// What can be imported.
    pub(crate) pds: HashMap<Pd, Told>,
    pub(crate) mrs: HashMap<Mr, Region>,
    pub(crate) mws: HashMap<Mw, Told>,
    pub(crate) ahs: HashMap<Ah, Told>,
    /// What the device knows nothing of, by its address: channels, thread and parent domains, and what was imported.
    pub(crate) bare: HashMap<usize, Told>,
    pub(crate) parents: Parents,
    /// What means nothing on Ethernet of the addresses of QPs, as the program gave it.
    pub(crate) services: HashMap<Qp, Service>,
    pub(crate) xrc: Xrc,
    /// rdma_cm, once the program has opened it.
    pub(crate) cm: Option<Box<Cm>>,
    /// Something came for it that it has not taken.
    cm_arrived: bool,
    pub(crate) direct: Direct,
    /// What befalls posts, if anything.
    pub(crate) posts: Option<Box<Posts>>,
    /// What befalls the port, and whom that is told: contexts, without an element.
    outage: Option<Box<Outage>>,
    pub(crate) contexts: Vec<Told>,
}

/// The device in somebody's hands. Who lets go of it wakes the thread that has slept over a timer of his.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    engine: &'a Engine,
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.engine.doze.is_too_long(|| self.state.due()) {
            self.engine.wake();
        }
    }
}

/// A region, as who imports it is told of it.
pub(crate) struct Region {
    /// The program's object, and its context.
    pub(crate) of: Told,
    pub(crate) pd: Pd,
    pub(crate) length: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Whether its pages must be such as the program may write.
    pub(crate) writable: bool,
    pub(crate) kind: Kind,
}

/// What memory a region is of.
pub(crate) enum Kind {
    /// The program's, which stays mapped.
    Own,
    /// The program's, which comes and goes: from this address on.
    OnDemand { addr: u64 },
    /// A device memory, by its number.
    DeviceMemory(u32),
}

impl State {
    fn new(device: SoftDevice, hub: Option<Arc<Hub>>, wishes: &Wishes) -> State {
        let outage = wishes.outage.map(|plan| Box::new(Outage::new(plan, elver_soft::now())));
        State {
            direct: Direct::new(hub, device.address()),
            device,
            cqs: HashMap::new(),
            timed: HashMap::new(),
            moderated: Moderated::default(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            pds: HashMap::new(),
            mrs: HashMap::new(),
            mws: HashMap::new(),
            ahs: HashMap::new(),
            bare: HashMap::new(),
            parents: Parents::default(),
            services: HashMap::new(),
            xrc: Xrc::default(),
            cm: None,
            cm_arrived: false,
            posts: Posts::new(wishes.posts),
            outage,
            contexts: Vec::new(),
        }
    }
}

static ENGINE: Own<Engine> = Own::new();

impl Engine {
    /// The engine, opened by the first who asks.
    pub(crate) fn open() -> Result<&'static Engine, c_int> {
        // Each is made once, and alone.
        node_guid();
        ENGINE.get_or_make(Engine::make)
    }

    /// A device, and the thread that drives it.
    fn make() -> Result<Engine, c_int> {
        let refused = |error: String| {
            eprintln!("elver: no device: {error}");
            libc::ENODEV
        };
        let wishes = Wishes::told().map_err(refused)?;
        gid_index::told().map_err(refused)?;
        link_layer::told().map_err(refused)?;
        crate::device::told().map_err(refused)?;
        let mut device = addresses::open(&wishes).map_err(refused)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| refused(error.to_string()))?;
        let hub = match wishes.is_any() {
            // What befalls packets befalls all that is sent.
            true => None,
            false => direct::open(device.address(), &wake).map_err(refused)?,
        };
        if let Some(hub) = &hub {
            device.set_bypass(Box::new(Beside::new(hub.clone())));
        }
        let socket = device.as_fd().ok_or_else(|| refused("it has no socket".into()))?;
        let socket = socket.try_clone_to_owned().map_err(|error| refused(error.to_string()))?;
        let file = memfd_create("elver", MemfdFlags::CLOEXEC)
            .map_err(|error| refused(error.to_string()))?;
        for fd in [device.as_fd().map(|fd| fd.as_raw_fd()), Some(socket.as_raw_fd())] {
            fd.into_iter().for_each(close_in_child);
        }
        threads::spawn("elver", || {
            // It is there when its turn to be made is over.
            if let Ok(engine) = ENGINE.get_or_make(|| Err(())) {
                engine.attend(threads::run_soon());
            }
        })
        .map_err(|error| refused(error.to_string()))?;
        // SAFETY: the function takes nothing, and touches what stays to the end.
        unsafe { libc::atexit(last_words) };
        Ok(Engine {
            state: Mutex::new(State::new(device, hub.clone(), &wishes)),
            process: std::process::id(),
            polls: AtomicU64::new(0),
            naps: AtomicBool::new(false),
            doze: Doze::new(),
            asked: AtomicU64::new(0u64.wrapping_sub(POLLS_A_ROUND)),
            wake,
            socket,
            groups: OnceLock::new(),
            ends: OnceLock::new(),
            file,
            hub,
        })
    }

    /// The engine of a program that has a context.
    pub(crate) fn get() -> Result<&'static Engine, c_int> {
        ENGINE.get().ok_or(libc::ENODEV)
    }

    /// The engine of an object: what a child of `fork` inherited has none.
    #[inline]
    pub(crate) fn of<T: Belongs>(object: *const T) -> Result<&'static Engine, c_int> {
        // SAFETY: the verbs contract: null, or an object of ours, which has a context of ours.
        let context = unsafe { object.as_ref() }.ok_or(libc::EINVAL)?.context();
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        match unsafe { told::owned(context) }.generation == generation() {
            true => Engine::get(),
            false => Err(libc::ENODEV),
        }
    }

    /// The device, for who does not poll.
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { state: self.state.lock().unwrap_or_else(PoisonError::into_inner), engine: self }
    }

    /// The device, for a process that ends. Other threads have it for moments; but what ends the process may have
    /// interrupted this one while it had it.
    pub(crate) fn lock_at_last(&self) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= LAST_WORDS => return None,
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }

    /// The device, for a program that polls. Who posts sees to nothing that comes, so that his posts are no polls.
    pub(crate) fn drive(&self) -> Locked<'_> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.lock()
    }

    /// Whether it is not that of a parent whose memory this process has, by `vfork`.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Has the thread watch: a program is about to wait for an event.
    pub(crate) fn watch(&self) {
        self.asked.store(self.polls.load(Ordering::Relaxed), Ordering::SeqCst);
        if self.naps.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Whether a program waits for an event, or is about to: it looks once or twice more after it asked for one, and may then
    /// wait at a descriptor, which nobody sees. One that goes on polling does not.
    fn is_awaited(&self) -> bool {
        let asked = self.asked.load(Ordering::SeqCst);
        self.polls.load(Ordering::Relaxed).wrapping_sub(asked) < POLLS_A_ROUND
    }

    /// Has the thread look again: what it waits for may have changed.
    pub(crate) fn wake(&self) {
        // It can only fail when it was rung often enough already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Keeps peers from a QP that is to go or to change, until [`Direct::release`] or [`Direct::forget`]. Nobody waits for
    /// them with the device in hand.
    pub(crate) fn close_to_peers(&self, qp: Qp, qp_num: u32) -> Result<(), c_int> {
        self.lock().direct.hold(qp);
        direct::take_back_qp(self.hub.as_ref(), qp_num)
            .inspect_err(|_| self.lock().direct.release(qp))
    }

    /// Has the thread watch for multicast as well.
    pub(crate) fn watch_groups(&self, device: &SoftDevice) -> Result<(), c_int> {
        if self.groups.get().is_none()
            && let Some(groups) = device.groups_fd()
        {
            let held = groups.try_clone_to_owned().map_err(|_| libc::EMFILE)?;
            self.groups.get_or_init(|| held);
            self.wake();
        }
        Ok(())
    }

    /// Has the thread watch for the ends of processes as well.
    pub(crate) fn watch_ends(&self, ends: BorrowedFd<'_>) -> Result<(), c_int> {
        if self.ends.get().is_none() {
            let held = ends.try_clone_to_owned().map_err(|_| libc::EMFILE)?;
            self.ends.get_or_init(|| held);
            self.wake();
        }
        Ok(())
    }

    /// Whether a process has ended that this one is connected to.
    fn has_ends(&self) -> bool {
        self.ends.get().is_some_and(|ends| {
            let mut ready = [PollFd::new(ends, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
        })
    }

    /// What the thread does: it drives the device while the program does not. It looks on for packets only where others
    /// have their turns of its core.
    fn attend(&self, turns: Turns) {
        let (mut last, mut alarm) = (0, Time::ZERO);
        let mut lookout = (turns == Turns::Shared).then(|| Lookout::new(elver_soft::now()));
        let (mut stays, mut until) = (*STAYS.start(), Instant::now());
        loop {
            let seen = self.polls.load(Ordering::Relaxed);
            let many = seen.wrapping_sub(last) >= POLLS_A_ROUND;
            last = seen;
            let ended = self.has_ends();
            let busy = {
                let mut state = self.lock();
                let acted = state.device.progress();
                if ended {
                    state.end_orphans();
                }
                state.tell();
                acted
            };
            let polled = many || self.polls.load(Ordering::Relaxed) != seen;
            if polled && !self.is_awaited() && Instant::now() >= until {
                let begun = Instant::now();
                let is_seen_to = self.nap();
                // What was long ago says nothing.
                if begun.elapsed() >= *STAYS.end() {
                    stays = *STAYS.start();
                }
                stays = match is_seen_to {
                    true => (stays / 2).max(*STAYS.start()),
                    false => {
                        until = Instant::now() + stays;
                        (stays * 2).min(*STAYS.end())
                    }
                };
                last = self.polls.load(Ordering::Relaxed);
            } else if busy {
                std::thread::yield_now();
            } else {
                self.doze(&mut alarm, lookout.as_mut());
            }
        }
    }

    /// Sleeps until a packet arrives or a timer is due; where packets come often it looks for them first.
    fn doze(&self, alarm: &mut Time, lookout: Option<&mut Lookout>) {
        if let Some(hub) = &self.hub {
            hub.table.sleep(true);
        }
        let at_most = {
            let mut state = self.lock();
            let waits = state.device.has_beside();
            (!waits).then(|| {
                let now = elver_soft::now();
                let due = state.device.publish_in_time(now).into_iter().chain(state.due()).min();
                self.doze.begin(now, due, *alarm)
            })
        };
        if let Some(at_most) = at_most {
            let began = Instant::now();
            // What is due soon is not looked past.
            let lookout = lookout.filter(|_| at_most > LOOKS);
            let look = || !self.sleep(Duration::ZERO, true);
            let found = lookout.is_some_and(|lookout| {
                lookout.look_on(elver_soft::now, look, std::thread::yield_now)
            });
            if !found {
                self.sleep(at_most.saturating_sub(began.elapsed()), true);
            }
            *alarm = self.doze.end();
        }
        if let Some(hub) = &self.hub {
            hub.table.sleep(false);
        }
    }

    /// Leaves the device to who polls it, and so sees to packets and timers alike; now and then it looks itself, as who
    /// finds something each time he polls sees to little else. Says whether nothing was left lying.
    fn nap(&self) -> bool {
        self.naps.store(true, Ordering::SeqCst);
        let mut left_lying = false;
        // Who is about to wait for an event says so before it looks at `naps`.
        while !self.is_awaited() && !left_lying {
            let before = self.polls.load(Ordering::Relaxed);
            let slept = self.sleep(NAP, false);
            let polls = self.polls.load(Ordering::Relaxed);
            if !slept || before == polls {
                break;
            }
            // Nobody is made to wait for that: who has the device may just be seeing to it.
            let found = match self.state.try_lock() {
                Ok(mut state) => {
                    let found = state.device.progress();
                    state.tell();
                    found
                }
                Err(_) => false,
            };
            if found {
                // The program may be on this core, and behind this thread where it only yields.
                let slept = self.sleep(GLANCE, false);
                let polled = polls != self.polls.load(Ordering::Relaxed);
                left_lying = slept && !polled;
            }
        }
        self.naps.store(false, Ordering::SeqCst);
        !left_lying
    }

    /// Sleeps, or only looks; says whether nothing ended it: a call, a process's end, or packets where those do.
    fn sleep(&self, at_most: Duration, packets: bool) -> bool {
        // What is not there, or not looked at, is looked at with the first.
        let all = [
            Some(&self.wake),
            self.ends.get(),
            Some(&self.socket).filter(|_| packets),
            self.groups.get().filter(|_| packets),
        ];
        let mut all = all.map(|fd| PollFd::new(fd.unwrap_or(&self.wake), PollFlags::IN));
        let timeout = Timespec::try_from(at_most).ok();
        let _ = poll(&mut all, timeout.as_ref());
        if !all[0].revents().is_empty() {
            // Nobody else takes what was rung.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        all.iter().all(|fd| fd.revents().is_empty())
    }
}

/// What the device counted stays to be read, though nobody drops it. Signal handlers may call it.
pub(crate) extern "C" fn last_words() {
    // A child of `vfork` has its parent's memory, and is to leave it alone.
    let engine = ENGINE.get().filter(|engine| engine.is_of_this_process());
    if let Some(mut state) = engine.and_then(Engine::lock_at_last) {
        state.device.publish();
    }
}

impl State {
    /// Takes completions of a CQ, and drives the device if there are none.
    pub(crate) fn poll(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        // Nearly no program has any.
        if self.timed.is_empty() || !self.timed.contains_key(&cq) {
            return self.device.poll_cq(cq, wcs);
        }
        let mut count = 0;
        while count < wcs.len() {
            let Some((wc, _)) = self.poll_timed(cq) else { break };
            wcs[count] = wc;
            count += 1;
        }
        Ok(count)
    }

    /// Takes one completion of a CQ that stamps them.
    pub(crate) fn poll_timed(&mut self, cq: Cq) -> Option<(Wc, Stamp)> {
        let timed = self.timed.get_mut(&cq)?;
        timed.take().or_else(|| {
            self.device.progress();
            timed.stamp(&mut self.device, cq);
            timed.take()
        })
    }

    /// Whether the port is up, if it goes down on demand.
    pub(crate) fn port_on_demand(&self) -> Option<bool> {
        self.outage.as_ref().map(|outage| outage.is_up())
    }

    /// Has the port go down or come up, when that is due.
    #[cold]
    fn change_port(&mut self) {
        let change = |outage: &mut Box<Outage>| outage.change(elver_soft::now());
        while let Some(up) = self.outage.as_mut().and_then(change) {
            self.device.set_link(up);
            for open in &self.contexts {
                told::tell_port(open.context, up);
            }
        }
    }

    /// Tells channels and contexts of what happened.
    pub(crate) fn tell(&mut self) {
        if self.outage.is_some() {
            self.change_port();
        }
        self.tell_events();
        self.direct.look(&self.device);
        for _ in 0..CM_ROUNDS {
            let Some(cm) = &mut self.cm else { break };
            let now = elver_soft::now();
            if !self.cm_arrived && cm.due().is_none_or(|due| due > now) {
                break;
            }
            if std::mem::take(&mut self.cm_arrived) {
                cm.arrived(&mut self.device, now);
            }
            cm.look_again(now);
            cm.step(&mut self.device, now);
            self.device.progress();
            // What that has brought, nobody else tells before something else happens.
            self.tell_events();
        }
    }

    /// The same, of what the device has brought so far.
    fn tell_events(&mut self) {
        for (cq, timed) in &mut self.timed {
            timed.stamp(&mut self.device, *cq);
        }
        while let Some(cq) = self.device.poll_cq_event() {
            if self.cm.as_ref().is_some_and(|cm| cm.cq() == cq) {
                self.cm_arrived = true;
            } else if !self.moderated.holds(cq, elver_soft::now)
                && let Some(object) = self.cqs.get(&cq)
            {
                object.tell();
            }
        }
        if self.moderated.due().is_some() {
            self.tell_moderated();
        }
        while let Some(event) = self.device.poll_async_event() {
            if let AsyncEvent::CommEst(qp) = event {
                self.direct.tell_established(&self.device, qp);
            }
            let told = match event {
                AsyncEvent::CqErr(cq) => self.cqs.get(&cq).map(|object| object.told),
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpReqErr(qp)
                | AsyncEvent::QpAccessErr(qp)
                | AsyncEvent::CommEst(qp)
                | AsyncEvent::SqDrained(qp)
                | AsyncEvent::QpLastWqeReached(qp)
                | AsyncEvent::DctAccessErr(qp) => {
                    // Of a target all are told who opened it.
                    let all = self.xrc.objects(qp);
                    all.iter().for_each(|told| told::tell(*told, event));
                    if all.is_empty() { self.qps.get(&qp).copied() } else { None }
                }
                AsyncEvent::SrqErr(srq) | AsyncEvent::SrqLimitReached(srq) => {
                    self.srqs.get(&srq).copied()
                }
            };
            if let Some(told) = told {
                told::tell(told, event);
            }
        }
        if let Some(posts) = &mut self.posts {
            for qp in posts.failed.drain(..) {
                if let Some(told) = self.qps.get(&qp) {
                    told::tell(*told, AsyncEvent::QpFatal(qp));
                }
            }
        }
    }

    /// Tells of events that have waited.
    #[cold]
    fn tell_moderated(&mut self) {
        let now = elver_soft::now();
        let seen = |cq| self.timed.get(&cq).map_or(u64::MAX, Timed::seen);
        while let Some(cq) = self.moderated.next(now, seen) {
            if let Some(object) = self.cqs.get(&cq) {
                object.tell();
            }
        }
    }

    /// A program is about to ask for an event of a CQ.
    pub(crate) fn asked(&mut self, cq: Cq) {
        let State { timed, moderated, device, .. } = self;
        moderated.ask(cq, || {
            timed.get_mut(&cq).map_or(0, |timed| {
                timed.stamp(device, cq);
                timed.seen()
            })
        });
    }

    /// Ends what is connected with processes that have ended.
    #[cold]
    fn end_orphans(&mut self) {
        if let Some(cm) = &mut self.cm {
            let now = elver_soft::now();
            cm.end_orphans(&mut self.device, now);
            cm.step(&mut self.device, now);
            self.device.progress();
        }
    }

    /// When a timer is due, the device's or the communication manager's.
    fn due(&self) -> Option<Time> {
        if self.cm_arrived {
            return Some(Time::ZERO);
        }
        let connecting = self.cm.as_ref().and_then(|cm| cm.due());
        let outage = self.outage.as_ref().and_then(|outage| outage.due());
        let events = self.moderated.due();
        self.device.due().into_iter().chain(connecting).chain(outage).chain(events).min()
    }
}
