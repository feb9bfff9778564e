use std::rc::{Rc, Weak};
use std::time::Duration;

use elver_portal::{Command, ConnectOptions, First, Via, VqpInfo, VqpOptions};
use elver_verbs::{Gid, QpState, RecvWr, SendWr, Wc};

use crate::inner::{Entry, Handle, InUse, Inner, Outcome, UNEXPECTED};
use crate::wait::Wait;
use crate::{Connecting, Destination, Error, PostFailed, Session};

/// A virtual queue pair: an RC QP's meaning, and KRCORE's receives, on queue pairs that the node
/// shares among all. Clones are the same VQP; it is destroyed with the last of them.
#[derive(Clone, Debug)]
pub struct Vqp(Rc<Handle>);

/// A message that came to a bound VQP.
#[derive(Clone, Debug)]
pub struct Message {
    /// The completion of the receive that it filled.
    pub wc: Wc,
    /// A VQP that is connected to the sender: the same one for all of a sender's messages. It is kept
    /// while the bound VQP lives, or while it is one of the 1,024 that came last. As long as the program holds no clone of
    /// it, what becomes of its WRs, and that it failed, is told to nobody.
    pub source: Vqp,
}

/// VQPs back to senders that a bound VQP keeps though its user does not. A message that names one of
/// them may be on its way, so that they must not go when the user has answered the last one.
const ACCEPTED_KEPT_MAX: usize = 1024;

impl Vqp {
    pub(crate) fn of(handle: Rc<Handle>) -> Vqp {
        Vqp(handle)
    }

    pub(crate) fn create(
        session: &Session,
        options: VqpOptions,
        cq: Option<u32>,
    ) -> Result<Vqp, Error> {
        let mut inner = session.inner.borrow_mut();
        let Outcome::Vqp(id) = inner.call(&Command::CreateVqp(options))? else {
            return Err(UNEXPECTED);
        };
        let vqp = Vqp(Rc::new(Handle { session: session.clone(), id }));
        let weak = Rc::downgrade(&vqp.0);
        let mut entry = Entry::new(weak, QpState::Reset, &options);
        if let Some(cq) = cq {
            entry.share(cq);
        }
        inner.vqps.insert(id, entry);
        Ok(vqp)
    }

    /// The one that the session's greeting asked for, and its connect.
    pub(crate) fn first(session: &Session, to: &Destination) -> Result<(Vqp, Connecting), Error> {
        let mut inner = session.inner.borrow_mut();
        inner.expect_first(to.options);
        let Outcome::Vqp(id) = inner.outcome(First::CREATE, Wait::for_an_answer())? else {
            return Err(UNEXPECTED);
        };
        let vqp = Vqp(Rc::new(Handle { session: session.clone(), id }));
        inner.accept(id, Rc::downgrade(&vqp.0));
        let is_own_node = to.gid == inner.link.welcome.gid;
        if let Some(entry) = inner.vqps.get_mut(&id) {
            entry.goes_to(is_own_node);
        }
        drop(inner);
        Ok((vqp, Connecting::begun(session, First::CONNECT)))
    }

    /// One that was made ahead, for a session that this process has taken over.
    pub(crate) fn inherited(
        session: &Session,
        id: u32,
        state: QpState,
        options: &VqpOptions,
        peer: Option<Gid>,
    ) -> Vqp {
        let vqp = Vqp(Rc::new(Handle { session: session.clone(), id }));
        let mut entry = Entry::new(Rc::downgrade(&vqp.0), state, options);
        let mut inner = session.inner.borrow_mut();
        if let Some(peer) = peer {
            entry.goes_to(peer == inner.link.welcome.gid);
        }
        inner.vqps.insert(id, entry);
        drop(inner);
        vqp
    }

    /// Its number, which is `qp_num` in its completions.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Connects to a node, and to the VQP that is bound to `port` there for messages (KRCORE,
    /// Algorithm 1). Returns when it is done: in about a microsecond if the node knows the peer.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason; [`Error::Woken`] and [`Error::Interrupted`].
    pub fn qconnect(&self, gid: Gid, port: u16) -> Result<Via, Error> {
        self.qconnect_with(gid, port, ConnectOptions::default())
    }

    /// As [`Vqp::qconnect`], in a way of the caller's choice.
    ///
    /// # Errors
    /// As [`Vqp::qconnect`].
    pub fn qconnect_with(
        &self,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
    ) -> Result<Via, Error> {
        self.qconnect_start(gid, port, options)?.wait(None)
    }

    /// Begins to connect, and does not wait.
    ///
    /// # Errors
    /// [`Error::NodeGone`]; what becomes of the connect, [`Connecting`] tells.
    pub fn qconnect_start(
        &self,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
    ) -> Result<Connecting, Error> {
        Connecting::begin(&self.0.session, self.0.id, gid, port, options)
    }

    /// Lets messages to a port of this node come to the VQP; 0 takes a free one. Returns the port.
    ///
    /// # Errors
    /// [`Error::Refused`] if another has the port, or a quota is reached. After [`Error::Silent`] the node may bind it yet.
    pub fn qbind(&self, port: u16) -> Result<u16, Error> {
        match self.inner().call(&Command::Bind { vqp: self.0.id, port })? {
            Outcome::Port(port) => Ok(port),
            _ => Err(UNEXPECTED),
        }
    }

    /// Posts send WRs. What only the node or the peer can refuse, the peer's memory above all, is told by
    /// a completion: the VQP fails with it, and what was posted behind it is not done.
    ///
    /// # Errors
    /// The WRs before the refused one are posted: [`PostFailed::posted`] tells how many.
    /// [`Error::QueueFull`], [`Error::NotConnected`], and [`Error::Opcode`] and [`Error::Post`] for a
    /// WR that no VQP takes, or that names local memory which is not registered so.
    /// [`Error::TimedOut`] if the node took nothing of what the session has given it for as long as
    /// [`crate::SessionOptions::patience`] says.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostFailed> {
        let mut inner = self.inner();
        let patience = inner.link.patience;
        inner.post_send(self.0.id, wrs, patience)
    }

    /// As [`Vqp::post_send`], but does not wait for a node that has no room for more of what the session gives it.
    ///
    /// # Errors
    /// As [`Vqp::post_send`], but [`Error::TimedOut`] at once.
    pub fn try_post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostFailed> {
        self.inner().post_send(self.0.id, wrs, Duration::ZERO)
    }

    /// Posts receives, as [`Vqp::post_send`].
    ///
    /// # Errors
    /// As [`Vqp::post_send`].
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailed> {
        self.inner().post_recv(self.0.id, wrs)
    }

    /// Takes completions, oldest first; returns how many. Those of messages at a bound VQP come by
    /// [`Vqp::qpop_msgs`], and those of a VQP that shares a CQ from there.
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub fn poll_cq(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        let mut inner = self.inner();
        inner.check_own()?;
        match take(&mut inner, self.0.id, wcs) {
            0 => {
                inner.poll()?;
                Ok(take(&mut inner, self.0.id, wcs))
            }
            taken => Ok(taken),
        }
    }

    /// As [`Vqp::poll_cq`], but waits until there is one, at most so long.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Woken`], [`Error::Interrupted`] and [`Error::NodeGone`]; and what
    /// [`Vqp::failure`] says, once all completions are taken of a VQP that has failed so.
    pub fn wait_cq(&self, wcs: &mut [Wc], at_most: Option<Duration>) -> Result<usize, Error> {
        let id = self.0.id;
        self.inner().wait(Wait::endable(at_most), |inner| match take(inner, id, wcs) {
            0 => failure(inner, id).map(Err),
            taken => Some(Ok(taken)),
        })?
    }

    /// Takes the messages that came to a bound VQP, oldest first, each with a VQP back to its sender
    /// (KRCORE, section 4.1): connecting that one costs nothing more.
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub fn qpop_msgs(&self) -> Result<Vec<Message>, Error> {
        self.poll_msgs(true)
    }

    /// As [`Vqp::qpop_msgs`]. Who looks again and again lets VQPs that nobody holds any more go at his first look.
    pub(crate) fn poll_msgs(&self, is_first: bool) -> Result<Vec<Message>, Error> {
        let messages = self.inner().poll_for(|inner| {
            let messages = self.pop(inner, is_first);
            (!messages.is_empty()).then_some(messages)
        })?;
        Ok(messages.unwrap_or_default())
    }

    /// As [`Vqp::qpop_msgs`], but waits until there is one, at most so long.
    ///
    /// # Errors
    /// As [`Vqp::wait_cq`].
    pub fn wait_msgs(&self, at_most: Option<Duration>) -> Result<Vec<Message>, Error> {
        let mut is_first = true;
        self.inner().wait(Wait::endable(at_most), |inner| {
            let messages = self.pop(inner, std::mem::take(&mut is_first));
            (!messages.is_empty()).then_some(messages)
        })
    }

    /// Whether it is connected, as far as this process has been told: that it can be posted to.
    pub fn is_connected(&self) -> bool {
        self.inner().vqps.get(&self.0.id).is_some_and(Entry::is_connected)
    }

    /// How the node sees it.
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub fn info(&self) -> Result<VqpInfo, Error> {
        info(self.inner().call(&Command::QueryVqp { vqp: self.0.id })?)
    }

    /// Why it failed, if the peer refused a message or is gone: no completion tells that. It is there as soon as the
    /// first completion in error is taken, and stays until the VQP is connected anew.
    pub fn failure(&self) -> Option<Error> {
        failure(&mut self.inner(), self.0.id)
    }

    #[inline]
    fn inner(&self) -> InUse<'_> {
        self.0.session.inner.borrow_mut()
    }

    fn pop(&self, inner: &mut Inner, is_first: bool) -> Vec<Message> {
        if is_first && !inner.let_go_later.is_empty() {
            inner.let_taken_go();
        }
        let Some(entry) = inner.vqps.get_mut(&self.0.id) else { return Vec::new() };
        let arrived = std::mem::take(&mut entry.messages);
        let message = |(wc, source)| {
            inner.taken(source);
            Message { wc, source: self.accepted(inner, source) }
        };
        arrived.into_iter().map(message).collect()
    }

    /// The handle of a VQP that the node made for a sender.
    fn accepted(&self, inner: &mut Inner, id: u32) -> Vqp {
        let known = inner.vqps.get(&id).and_then(|entry| entry.handle.upgrade());
        if let Some(handle) = known {
            let Inner { vqps, ready, .. } = inner;
            if let Some(entry) = vqps.get_mut(&id)
                && entry.failure.is_some()
                && !entry.failure_told
            {
                // While nobody held it, nobody was told.
                entry.list(id, ready);
            }
            return Vqp(handle);
        }
        let handle = Rc::new(Handle { session: self.0.session.clone(), id });
        inner.accept(id, Rc::downgrade(&handle));
        if inner.vqps.get(&id).is_some_and(|entry| entry.failure.is_some()) {
            inner.let_go_later.insert(id);
        }
        let mut old = Vec::new();
        if let Some(bound) = inner.vqps.get_mut(&self.0.id) {
            bound.accepted.push_back(handle.clone());
            let over = bound.accepted.len().saturating_sub(ACCEPTED_KEPT_MAX);
            old.extend(bound.accepted.drain(..over));
            inner.keep(id, Some(self.0.id));
        }
        old.iter().for_each(|handle| inner.keep(handle.id, None));
        inner.released.extend(old);
        Vqp(handle)
    }
}

impl Inner {
    /// Notes whose handle a VQP has that came with a message, or with the session.
    fn accept(&mut self, id: u32, handle: Weak<Handle>) {
        if let Some(entry) = self.vqps.get_mut(&id) {
            entry.handle = handle;
            return;
        }
        let entry = Entry::new(handle, QpState::Rts, &VqpOptions::default());
        self.vqps.insert(id, entry);
    }
}

pub(crate) fn info(outcome: Outcome) -> Result<VqpInfo, Error> {
    match outcome {
        Outcome::Info(info) => Ok(info),
        _ => Err(UNEXPECTED),
    }
}

/// Why a VQP failed, where no completion tells it.
fn failure(inner: &mut Inner, id: u32) -> Option<Error> {
    let entry = inner.vqps.get_mut(&id)?;
    let (code, text) = entry.failure.clone()?;
    entry.failure_told = true;
    Some(Error::Refused { code, text })
}

#[inline]
fn take(inner: &mut Inner, id: u32, wcs: &mut [Wc]) -> usize {
    let Some(entry) = inner.vqps.get_mut(&id) else { return 0 };
    let count = entry.completions.len().min(wcs.len());
    for (wc, completion) in wcs.iter_mut().zip(entry.completions.drain(..count)) {
        *wc = completion;
    }
    count
}
