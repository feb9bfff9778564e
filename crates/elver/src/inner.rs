//! What a session and its handles share; and the handles, since each holds the other: they keep their session, and
//! that finds them by what the node tells.

mod awaited;
mod entry;
mod post;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::task;
use std::time::Instant;

use elver_portal::{Answer, Command, Completion, First, RefusalCode, Reply, Socket, VqpOptions};
use elver_verbs::{QpState, Wc};
use rustc_hash::FxHashMap;

use crate::arena::{Arena, Piece};
use crate::direct::{Direct, Way};
use crate::fork::Origin;
use crate::link::{Link, Wait};
use crate::regions::Regions;
use crate::{Error, fork};

use awaited::Awaited;
pub(crate) use awaited::Outcome;

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
    /// Requests that somebody waits for.
    awaited: Vec<Awaited>,
    pub(crate) arena: Arena,
    pub(crate) regions: Regions,
    pub(crate) direct: Direct,
    /// The node wakes who waits for the descriptor, so that WRs go through it.
    pub(crate) is_armed: bool,
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
    /// It is one back to a sender that a bound VQP keeps, whether its user holds it or not.
    pub(crate) is_kept: bool,
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
            awaited: Vec::with_capacity(ROOM),
            arena: Arena::new(),
            regions: Regions::new(),
            direct: Direct::new(),
            is_armed: false,
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

    /// Takes all that the node told; whether there was something.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<bool, Error> {
        self.check_own()?;
        let mut any = self.tell_done();
        while let Some(reply) = self.link.next()? {
            any = true;
            match reply {
                Reply::Completion(completion) => {
                    complete(&mut self.vqps, &mut self.cqs, &mut self.ready, &completion);
                }
                Reply::Answer { request, answer } if self.direct.hears(request, &answer) => {}
                Reply::Answer { request, answer } => {
                    answered(&mut self.awaited, &mut self.vqps, request, &answer);
                    if !self.leaving.is_empty() {
                        left(&mut self.leaving, &mut self.arena, request, &answer);
                    }
                }
                // Until the node has answered, it tells of what the VQP was connected to before.
                Reply::VqpFailed { vqp, cause } if connects(&self.awaited, vqp) => {
                    let failure = (cause.code, cause.text.to_string());
                    failed_before(&mut self.awaited, vqp, failure);
                }
                Reply::VqpFailed { vqp, cause } => {
                    let failure = (cause.code, cause.text.to_string());
                    self.failed(vqp, failure);
                }
            }
        }
        if self.direct.was_told() {
            self.take_ways();
        }
        if any | self.link.took_waking() {
            self.rouse();
        }
        Ok(any)
    }

    /// Tells of the WRs that this process has done itself; whether there were any.
    #[inline]
    pub(crate) fn tell_done(&mut self) -> bool {
        let any = !self.direct.done.is_empty();
        while let Some((vqp, wc)) = self.direct.done.pop_front() {
            let completion = Completion { vqp, source: None, wc };
            complete(&mut self.vqps, &mut self.cqs, &mut self.ready, &completion);
        }
        any
    }

    /// Takes in what the node said of what this process may reach itself.
    #[cold]
    fn take_ways(&mut self) {
        let link = &mut self.link;
        if let Some((vqp, way)) = self.direct.take_in(|request| link.file(request).ok())
            && let Some(entry) = self.vqps.get_mut(&vqp)
        {
            entry.way = way;
        }
    }

    /// The node tells that a VQP has failed.
    #[cold]
    fn failed(&mut self, vqp: u32, failure: (RefusalCode, String)) {
        if !self.vqps.contains_key(&vqp) && self.vqps.values().any(|entry| entry.names(vqp)) {
            // Whoever takes the message that names it is to hear of it.
            let nobody = Entry::new(Weak::new(), QpState::Err, &VqpOptions::default());
            self.vqps.insert(vqp, nobody);
        }
        let Some(entry) = self.vqps.get_mut(&vqp) else { return };
        (entry.state, entry.failure, entry.failure_told) = (QpState::Err, Some(failure), false);
        entry.list(vqp, &mut self.ready);
        self.let_go(vqp);
    }

    /// A VQP back to a sender has failed: nobody needs it whom its user does not hold.
    #[cold]
    fn let_go(&mut self, vqp: u32) {
        let mut is_let_go = false;
        for entry in self.vqps.values_mut() {
            let at = entry.accepted.iter().position(|handle| handle.id == vqp);
            let unused = at.filter(|at| Rc::strong_count(&entry.accepted[*at]) == 1);
            if let Some(handle) = unused.and_then(|at| entry.accepted.remove(at)) {
                self.released.push(handle);
                is_let_go = true;
            }
        }
        if is_let_go && let Some(entry) = self.vqps.get_mut(&vqp) {
            // It is there until this call is over, and what is told of it is for nobody.
            (entry.is_kept, entry.failure_told) = (false, true);
            entry.completions.clear();
        }
    }

    /// Notes whether a bound VQP keeps another one.
    pub(crate) fn keep(&mut self, id: u32, is_kept: bool) {
        if let Some(entry) = self.vqps.get_mut(&id) {
            entry.is_kept = is_kept;
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

    /// Polls until `done` says so.
    #[inline]
    pub(crate) fn wait<R>(
        &mut self,
        mut wait: Wait,
        mut done: impl FnMut(&mut Inner) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            self.poll()?;
            if let Some(result) = done(self) {
                return Ok(result);
            }
            let slept = self.link.rest(&mut wait);
            if !matches!(slept, Ok(false)) {
                // The way by which the node wakes was used by this one.
                self.rouse();
            }
            slept?;
        }
    }

    /// Gives a command whose answer will be asked for; returns its request.
    pub(crate) fn ask(
        &mut self,
        command: &Command<'_>,
        connects: Option<u32>,
    ) -> Result<u32, Error> {
        self.ask_within(Wait::patient(), command, connects)
    }

    /// As [`Inner::ask`], while there is no room for it until a time at most: for who asks much.
    pub(crate) fn ask_until(
        &mut self,
        deadline: Instant,
        command: &Command<'_>,
    ) -> Result<u32, Error> {
        self.ask_within(Wait::until(deadline), command, None)
    }

    fn ask_within(
        &mut self,
        wait: Wait,
        command: &Command<'_>,
        connects: Option<u32>,
    ) -> Result<u32, Error> {
        let request = self.next_request();
        self.awaited.push(Awaited::new(request, connects));
        let told = self.tell_within(wait, request, command);
        if told.is_err() {
            self.forget(request);
        }
        told.map(|()| request)
    }

    /// Asks for a VQP to be connected; returns the request.
    pub(crate) fn ask_connect(
        &mut self,
        vqp: u32,
        is_own_node: bool,
        command: &Command<'_>,
    ) -> Result<u32, Error> {
        let request = self.ask(command, Some(vqp))?;
        let before = self.vqps.get_mut(&vqp).map(|entry| entry.begin_connect(is_own_node));
        if let Some(awaited) = self.awaited.iter_mut().find(|awaited| awaited.request == request) {
            awaited.before = before;
        }
        Ok(request)
    }

    /// The greeting asked for a VQP and its connect, whose ends will be asked for.
    pub(crate) fn expect_first(&mut self, options: VqpOptions) {
        let create = Awaited { creates: Some(options), ..Awaited::new(First::CREATE, None) };
        self.awaited.extend([create, Awaited::new(First::CONNECT, None)]);
        self.last_request = First::CONNECT;
    }

    /// Gives a command whose answer nobody asks for.
    pub(crate) fn tell_only(&mut self, command: &Command<'_>) -> Result<(), Error> {
        let request = self.next_request();
        self.tell(request, command)
    }

    /// Deregisters a region, of which a piece of the arena may become free. Returns the request; its
    /// answer will be asked for if `awaited`.
    pub(crate) fn deregister(
        &mut self,
        lkey: u32,
        piece: Option<Piece>,
        awaited: bool,
    ) -> Result<u32, Error> {
        let request = self.next_request();
        if awaited {
            self.awaited.push(Awaited::new(request, None));
        }
        self.regions.remove(lkey);
        let told = self.tell(request, &Command::DeregisterMr { lkey });
        match told {
            Ok(()) => self.leaving.extend(piece.map(|piece| (request, piece))),
            Err(_) => self.forget(request),
        }
        told.map(|()| request)
    }

    /// Gives a command and waits for the answer.
    pub(crate) fn call(&mut self, command: &Command<'_>) -> Result<Outcome, Error> {
        let request = self.ask(command, None)?;
        self.outcome(request, Wait::new(None))
    }

    /// Waits for an answer.
    pub(crate) fn outcome(&mut self, request: u32, wait: Wait) -> Result<Outcome, Error> {
        self.wait(wait, |inner| inner.take(request))?
    }

    /// Takes an answer, if it is there.
    pub(crate) fn take(&mut self, request: u32) -> Option<Result<Outcome, Error>> {
        let at = self.awaited.iter().position(|awaited| awaited.request == request)?;
        self.awaited[at].outcome.as_ref()?;
        self.awaited.swap_remove(at).outcome.map(Outcome::into_result)
    }

    /// How a connect ended, if it has; as often as it is asked.
    pub(crate) fn ended(&mut self, request: u32) -> Option<Result<Outcome, Error>> {
        let awaited = self.awaited.iter_mut().find(|awaited| awaited.request == request)?;
        let outcome = awaited.outcome.clone()?;
        awaited.told = true;
        Some(outcome.into_result())
    }

    /// Nobody asks for a connect any more: it goes on, and its VQP is connected by it.
    pub(crate) fn abandon(&mut self, request: u32) {
        let Some(at) = self.awaited.iter().position(|awaited| awaited.request == request) else {
            return;
        };
        if self.awaited[at].outcome.is_some() {
            self.awaited.swap_remove(at);
        } else {
            self.awaited[at].abandoned = true;
        }
    }

    /// A VQP has gone: what it waited for concerns nobody.
    pub(crate) fn forget_connects(&mut self, vqp: u32) {
        self.awaited.retain(|awaited| !awaited.abandoned || awaited.connects != Some(vqp));
    }

    /// Asks for an answer no more.
    pub(crate) fn forget(&mut self, request: u32) {
        self.awaited.retain(|awaited| awaited.request != request);
    }

    fn next_request(&mut self) -> u32 {
        next(&mut self.last_request)
    }

    fn tell(&mut self, request: u32, command: &Command<'_>) -> Result<(), Error> {
        self.tell_within(Wait::patient(), request, command)
    }

    fn tell_within(
        &mut self,
        mut wait: Wait,
        request: u32,
        command: &Command<'_>,
    ) -> Result<(), Error> {
        self.check_own()?;
        while !self.link.command(request, command)? {
            self.make_room(&mut wait)?;
        }
        self.link.ring()
    }

    /// Waits a little for the node to take something out of a full ring. What it tells meanwhile is
    /// taken, so that the two never wait for each other.
    #[cold]
    fn make_room(&mut self, wait: &mut Wait) -> Result<(), Error> {
        self.link.ring()?;
        if !self.poll()? && self.link.rest(wait)? {
            self.rouse();
        }
        Ok(())
    }
}

/// The number of the next request.
fn next(last: &mut u32) -> u32 {
    *last = last.wrapping_add(1);
    *last
}

#[inline]
fn complete(
    vqps: &mut FxHashMap<u32, Entry>,
    cqs: &mut FxHashMap<u32, Queue>,
    ready: &mut VecDeque<Of>,
    completion: &Completion,
) {
    // A VQP that was destroyed meanwhile has no entry: nobody waits for this.
    let Some(entry) = vqps.get_mut(&completion.vqp) else { return };
    entry.complete(&completion.wc);
    match (completion.source, entry.cq) {
        (Some(source), _) => entry.messages.push_back((completion.wc, source)),
        (None, None) if entry.is_unheld() => return,
        (None, None) => entry.completions.push_back(completion.wc),
        (None, Some(cq)) => {
            // One that is gone is missed by nobody.
            if cqs.get_mut(&cq).is_some_and(|queue| queue.push(completion.wc)) {
                ready.push_back(Of::Cq(cq));
            }
            return;
        }
    }
    entry.list(completion.vqp, ready);
}

/// Frees the piece of a region that nobody can touch any more. One whose deregistration is refused
/// stays in use.
#[cold]
fn left(leaving: &mut Vec<(u32, Piece)>, arena: &mut Arena, request: u32, answer: &Answer<'_>) {
    let Some(at) = leaving.iter().position(|(of, _)| *of == request) else { return };
    let (_, piece) = leaving.swap_remove(at);
    if matches!(answer, Answer::Done) {
        arena.give_back(piece);
    }
}

/// Whether the node has not answered a connect of a VQP's.
fn connects(awaited: &[Awaited], vqp: u32) -> bool {
    awaited.iter().any(|awaited| awaited.connects == Some(vqp) && awaited.outcome.is_none())
}

/// A VQP failed before the node took up that it be connected anew: the failure stands if it does not.
#[cold]
fn failed_before(awaited: &mut [Awaited], vqp: u32, failure: (RefusalCode, String)) {
    let asked = awaited.iter_mut().filter(|awaited| awaited.connects == Some(vqp));
    for before in asked.filter_map(|awaited| awaited.before.as_mut()) {
        before.state = QpState::Err;
        before.failure = Some(failure.clone());
        before.failure_told = false;
    }
}

fn answered(
    awaited: &mut Vec<Awaited>,
    vqps: &mut FxHashMap<u32, Entry>,
    request: u32,
    answer: &Answer<'_>,
) {
    let Some(at) = awaited.iter().position(|awaited| awaited.request == request) else {
        return;
    };
    let Awaited { connects, creates, .. } = awaited[at];
    let outcome = match *answer {
        Answer::Done => Outcome::Done,
        Answer::Vqp(vqp) => Outcome::Vqp(vqp),
        Answer::Port(port) => Outcome::Port(port),
        Answer::Connected(via) => Outcome::Connected(via),
        Answer::Warmed { ready, failed } => Outcome::Warmed { ready, failed },
        Answer::Mr { lkey, rkey, file_bytes } => Outcome::Mr { lkey, rkey, file_bytes },
        Answer::Info(info) => Outcome::Info(info),
        Answer::Prepared { set, file_bytes } => Outcome::Prepared { set, file_bytes },
        // An answer to no command that is waited for.
        Answer::Reached(_) => return,
        Answer::Refused(refusal) => {
            Outcome::Refused { code: refusal.code, text: refusal.text.to_string() }
        }
    };
    let before = awaited[at].before.take();
    if let Some(entry) = connects.and_then(|vqp| vqps.get_mut(&vqp)) {
        entry.end_connect(&outcome, before);
    }
    if awaited[at].abandoned {
        awaited.swap_remove(at);
    } else {
        awaited[at].outcome = Some(outcome);
    }
    if let (&Answer::Vqp(vqp), Some(options)) = (answer, creates) {
        // What is told of it next may come before anybody has looked.
        vqps.insert(vqp, Entry::new(Weak::new(), QpState::Init, &options));
        let connect = awaited.iter_mut().find(|awaited| awaited.request == First::CONNECT);
        if let Some(connect) = connect {
            connect.connects = Some(vqp);
        }
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
        accepted.for_each(|handle| inner.keep(handle.id, false));
        if inner.is_own() {
            // VQPs back to senders of messages that nobody took go too.
            let messages = entry.iter().flat_map(|entry| &entry.messages);
            let mut ids: Vec<u32> = messages.map(|(_, source)| *source).collect();
            ids.retain(|id| !inner.is_held(*id));
            ids.sort_unstable();
            ids.dedup();
            for id in &ids {
                inner.forget_vqp(*id);
            }
            ids.push(self.id);
            for vqp in ids {
                // If the node is gone, so is the VQP.
                let _ = inner.tell_only(&Command::DestroyVqp { vqp });
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
