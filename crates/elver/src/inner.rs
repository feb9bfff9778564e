//! What a session and its handles share; and the handles, since each holds the other: they keep their session, and
//! that finds them by what the node tells.

mod asking;
mod awaited;
mod entry;
mod late;
mod post;
mod told;
mod undo;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::task;

use elver_portal::{RefusalCode, Socket};
use elver_verbs::{QpState, Wc};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::arena::{Arena, Piece};
use crate::direct::{Direct, Way};
use crate::fork::Origin;
use crate::link::Link;
use crate::regions::Regions;
use crate::{Error, fork};

use awaited::Awaited;
pub(crate) use awaited::Outcome;
pub(crate) use late::Late;

/// A process's connection to its node. Clones are the same session; it ends with the last of them
/// and of what it made, and the node then takes everything back.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Rc<Shared>,
    pub(crate) socket: Rc<Socket>,
}

/// What a session's handles share.
pub(crate) struct Shared {
    inner: RefCell<Inner>,
    /// How many keep tasks from being woken.
    holders: Cell<u32>,
    /// This is a child, and its parent alone has the session's memory.
    is_left: Cell<bool>,
}

/// No task is woken while this is there.
pub(crate) struct Held<'a>(&'a Shared);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        let holders = self.0.holders.get() - 1;
        self.0.holders.set(holders);
        // One who uses the session still wakes them then.
        if holders == 0
            && let Ok(inner) = self.0.inner.try_borrow_mut()
        {
            drop(self.0.in_use(inner));
        }
    }
}

/// It, in use. Handles that are kept no more go when it is not, and tasks are woken then: both need it, a waker that runs
/// its task at once as well.
pub(crate) struct InUse<'a> {
    // Behind it, as fields go in their order.
    inner: RefMut<'a, Inner>,
    holders: &'a Cell<u32>,
    released: Vec<Rc<Handle>>,
    roused: Roused,
}

/// Tasks that are woken when this goes.
#[derive(Default)]
struct Roused(Vec<task::Waker>);

impl Drop for Roused {
    #[inline]
    fn drop(&mut self) {
        self.0.drain(..).for_each(task::Waker::wake);
    }
}

impl Shared {
    fn new(link: Link) -> Shared {
        let (inner, holders) = (RefCell::new(Inner::new(link)), Cell::new(0));
        Shared { inner, holders, is_left: Cell::new(false) }
    }

    /// Whether the session's memory was left to the process that opened it.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.get()
    }

    /// Leaves the session's memory, and what of others' it reaches, to the process that opened it.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        let mut inner = self.inner.borrow_mut();
        if inner.is_own() {
            return Err(Error::Invalid { what: "the session is this process's, and no parent's" });
        }
        if !self.is_left.get() {
            inner.link.leave()?;
            inner.direct = Direct::new();
            self.is_left.set(true);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn borrow(&self) -> Ref<'_, Inner> {
        self.inner.borrow()
    }

    #[inline]
    pub(crate) fn borrow_mut(&self) -> InUse<'_> {
        self.in_use(self.inner.borrow_mut())
    }

    #[inline]
    fn in_use<'a>(&'a self, inner: RefMut<'a, Inner>) -> InUse<'a> {
        let (released, roused) = (Vec::new(), Roused::default());
        InUse { inner, holders: &self.holders, released, roused }
    }

    /// Keeps tasks from being woken until the last of these goes.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        self.holders.set(self.holders.get() + 1);
        Held(self)
    }
}

impl Deref for InUse<'_> {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for InUse<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.inner.released.is_empty() {
            self.released = std::mem::take(&mut self.inner.released);
        }
        if !self.inner.roused.is_empty() && self.holders.get() == 0 {
            self.roused.0 = std::mem::take(&mut self.inner.roused);
        }
    }
}

/// A VQP as its user holds it: destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) session: Session,
    pub(crate) id: u32,
}

/// The same of a CQ.
pub(crate) struct CqHandle {
    pub(crate) session: Session,
    pub(crate) id: u32,
}

pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) vqps: FxHashMap<u32, Entry>,
    /// Queues of completions that VQPs share.
    pub(crate) cqs: FxHashMap<u32, Queue>,
    /// What may have something to take: each once, and all that have.
    pub(crate) ready: VecDeque<Of>,
    /// Tasks that sleep until something was taken from the ring, by whomever.
    pub(crate) sleepers: Vec<task::Waker>,
    /// Of these, those to be woken when the session is not in use.
    roused: Vec<task::Waker>,
    /// Times that such were woken.
    pub(crate) news: u64,
    /// Handles to let go when the session is not in use.
    pub(crate) released: Vec<Rc<Handle>>,
    /// VQPs back to senders that have failed, and go when their messages are taken and nobody holds them.
    pub(crate) let_go_later: FxHashSet<u32>,
    /// How many messages name a VQP back to a sender that their user has not taken.
    pub(crate) untaken: FxHashMap<u32, u32>,
    /// Requests that somebody waits for.
    awaited: Vec<Awaited>,
    pub(crate) arena: Arena,
    pub(crate) regions: Regions,
    pub(crate) direct: Direct,
    /// The node wakes who waits for the descriptor, so that WRs go through it.
    pub(crate) is_armed: bool,
    /// What the node is to be told once there is room.
    late: VecDeque<Late>,
    /// It is of a version that knows no NUMA nodes.
    pub(crate) places_nothing: bool,
    /// It took nothing for as long as it may, and has said nothing since.
    is_unheard: bool,
    /// How many replies it gave.
    heard: u64,
    /// Why it tells nothing more, which the last look met behind what it told.
    end: Option<Error>,
    /// Pieces of the arena that are free when the request is answered: the regions' deregistration.
    leaving: Vec<(u32, Piece)>,
    last_request: u32,
    last_cq: u32,
    generation: u32,
}

pub(crate) const UNEXPECTED: Error =
    Error::Invalid { what: "the node's answer does not fit the command; are both of one version?" };

/// A VQP as the client knows it.
pub(crate) struct Entry {
    pub(crate) handle: Weak<Handle>,
    pub(crate) completions: VecDeque<Wc>,
    /// Completions of messages that came to a bound VQP, with the VQP back to the sender.
    pub(crate) messages: VecDeque<(Wc, u32)>,
    /// VQPs back to senders, oldest first.
    pub(crate) accepted: VecDeque<Rc<Handle>>,
    /// Why it failed, where no completion tells it.
    pub(crate) failure: Option<(RefusalCode, String)>,
    /// Its user has looked at that.
    pub(crate) failure_told: bool,
    /// The connect that was asked for last.
    pub(crate) connect: u32,
    /// The bound VQP that keeps it, of one back to a sender, whether its user holds it or not.
    pub(crate) kept_by: Option<u32>,
    /// The CQ that its completions go to, if it shares one.
    cq: Option<u32>,
    /// It stands in the list of those that may have something.
    listed: bool,
    state: QpState,
    signal_all: bool,
    confirm_sends: bool,
    sends: Sends,
    receives: u32,
    max_send_wr: u32,
    max_recv_wr: u32,
    way: Way,
}

/// A CQ as the client knows it.
pub(crate) struct Queue {
    pub(crate) handle: Weak<CqHandle>,
    completions: VecDeque<Wc>,
    listed: bool,
}

/// What may be ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Vqp(u32),
    Cq(u32),
}

/// The send WRs that are outstanding: a completion also ends the unsignalled ones before it.
struct Sends {
    posted: u64,
    completed: u64,
    /// Of these, the last one that the node was given.
    at_node: u64,
    signalled: VecDeque<u64>,
}

/// Entries that queues have room for from the beginning: what makes them longer stands far away in
/// a program, where a first call costs a new process some microseconds.
const ROOM: usize = 4;

impl Session {
    pub(crate) fn of(link: Link) -> Session {
        let socket = link.socket.clone();
        Session { inner: Rc::new(Shared::new(link)), socket }
    }
}

impl Inner {
    pub(crate) fn new(link: Link) -> Inner {
        Inner {
            link,
            vqps: FxHashMap::default(),
            cqs: FxHashMap::default(),
            ready: VecDeque::with_capacity(ROOM),
            sleepers: Vec::new(),
            roused: Vec::new(),
            news: 0,
            released: Vec::new(),
            let_go_later: FxHashSet::default(),
            untaken: FxHashMap::default(),
            awaited: Vec::with_capacity(ROOM),
            arena: Arena::new(),
            regions: Regions::new(),
            direct: Direct::new(),
            is_armed: false,
            late: VecDeque::new(),
            places_nothing: false,
            is_unheard: false,
            heard: 0,
            end: None,
            leaving: Vec::new(),
            last_request: 0,
            last_cq: 0,
            generation: fork::generation(),
        }
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin(self.generation)
    }

    /// Whose the session is. What others make of it, and drop, tells the node nothing.
    pub(crate) fn belongs_to(&mut self, origin: Origin) {
        self.generation = origin.0;
    }

    /// Whether this is still the process that opened the session.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.origin().is_here()
    }

    #[inline]
    pub(crate) fn check_own(&self) -> Result<(), Error> {
        if self.is_own() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Notes which bound VQP keeps another one, if any.
    pub(crate) fn keep(&mut self, id: u32, kept_by: Option<u32>) {
        if let Some(entry) = self.vqps.get_mut(&id) {
            entry.kept_by = kept_by;
        }
    }

    /// A message that names a VQP is taken, or concerns nobody any more.
    pub(crate) fn taken(&mut self, source: u32) {
        let Some(untaken) = self.untaken.get_mut(&source) else { return };
        *untaken -= 1;
        if *untaken == 0 {
            self.untaken.remove(&source);
        }
    }

    /// Wakes the tasks that sleep: what they would have been woken for may have been taken by another.
    #[inline]
    pub(crate) fn rouse(&mut self) {
        if !self.sleepers.is_empty() {
            self.news += 1;
            self.roused.append(&mut self.sleepers);
        }
    }

    /// Wakes the node if it sleeps. Where the system cannot, who sleeps is woken, to try again before he sleeps on.
    #[inline]
    fn ring(&mut self) -> Result<(), Error> {
        self.link.ring()?;
        if self.link.owes_waking() {
            self.rouse();
        }
        Ok(())
    }

    /// Whether a request that somebody asks for has an answer that he has not heard.
    pub(crate) fn has_outcome(&self) -> bool {
        self.awaited.iter().any(|awaited| awaited.outcome.is_some() && !awaited.told)
    }

    /// Whether a VQP is one that this process's user, or a bound VQP for him, has a handle of.
    fn is_held(&self, vqp: u32) -> bool {
        self.vqps.get(&vqp).is_some_and(|entry| entry.handle.strong_count() > 0)
    }

    /// A VQP is gone.
    fn forget_vqp(&mut self, id: u32) -> Option<Entry> {
        let entry = self.vqps.remove(&id)?;
        self.let_go_later.remove(&id);
        if entry.is_listed() {
            self.unlist(Of::Vqp(id));
        }
        Some(entry)
    }

    /// Lists something no more, which is gone.
    pub(crate) fn unlist(&mut self, gone: Of) {
        self.ready.retain(|of| *of != gone);
    }

    pub(crate) fn next_cq(&mut self) -> u32 {
        self.last_cq += 1;
        self.last_cq
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut inner = self.session.inner.borrow_mut();
        let entry = inner.forget_vqp(self.id);
        inner.forget_connects(self.id);
        inner.direct.forget(self.id);
        // Those that it kept are now whose user holds them.
        let accepted = entry.iter().flat_map(|entry| &entry.accepted);
        accepted.for_each(|handle| inner.keep(handle.id, None));
        let messages = entry.iter().flat_map(|entry| &entry.messages);
        let mut ids: Vec<u32> = messages.map(|(_, source)| *source).collect();
        ids.iter().for_each(|source| inner.taken(*source));
        if inner.is_own() {
            // VQPs back to senders of messages that nobody took go too.
            ids.retain(|id| !inner.is_held(*id));
            ids.sort_unstable();
            ids.dedup();
            for id in &ids {
                inner.forget_vqp(*id);
            }
            ids.push(self.id);
            for vqp in ids {
                inner.let_go(Late::Vqp(vqp));
            }
        }
        drop(inner);
        // Its accepted VQPs need the session as well.
        drop(entry);
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        let mut inner = self.session.inner.borrow_mut();
        inner.cqs.remove(&self.id);
        inner.unlist(Of::Cq(self.id));
    }
}
