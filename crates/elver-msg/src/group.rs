use std::fmt;
use std::rc::Rc;

use elver::{Session, SessionCell};
use elver_ring::Listener;

use crate::environment::Launched;
use crate::error::Loss;
use crate::inner::Inner;
use crate::join::{Place, join};
use crate::protocol::{EngineCounters, Held, Lent, Status};
use crate::rank::wanted;
use crate::rendezvous::{Ask, ask, check_size};
use crate::request::Request;
use crate::{Address, Error, Options, Payload, Region, Source, TAG_MAX, Tag};

/// One rank of a group of processes, which send each other messages. Clones are the same rank; it belongs to its
/// session's thread.
///
/// It ends by [`Group::finish`]. Dropped before, it leaves, as one that dies does: what it sent whole still arrives.
#[derive(Clone)]
pub struct Group {
    pub(crate) inner: Rc<SessionCell<Inner>>,
    rank: u32,
    size: u32,
}

/// What a rank's messages were, and what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What was sent and received.
    pub messages: EngineCounters,
    /// Messages that wait for a receive.
    pub waiting: usize,
    /// Bytes that they hold.
    pub waiting_bytes: u64,
    /// Requests that go on, or were not waited for.
    pub requests: usize,
    /// Times that a rank's memory could not be READ. It is lost for that a second later, unless it has gone.
    pub unreadable: u64,
}

impl Group {
    /// The group that `elver launch` has started this process in, at the host's node. Returns when all ranks are
    /// together.
    ///
    /// # Errors
    /// [`Error::NotLaunched`] in a process that it has not started; [`Error::Session`] if there is no node; else as
    /// [`Group::meet`].
    pub fn from_env() -> Result<Group, Error> {
        let launched = Launched::from_env()?;
        let session = Session::connect_default()?;
        Group::meet(&session, &launched, Options::default())
    }

    /// The group whose ranks meet at a rendezvous ([`crate::Rendezvous`]), each at any node. Returns when all are
    /// together.
    ///
    /// # Errors
    /// [`Error::Join`] with who is missing when the time is over; [`Error::Unwanted`] if this is no rank of that
    /// group; [`Error::Ring`] and [`Error::Session`] if memory or a port cannot be had.
    pub fn meet(session: &Session, launched: &Launched, options: Options) -> Result<Group, Error> {
        options.check()?;
        let Launched { rank, size, rendezvous, token } = *launched;
        let listener = Listener::bind(session, 0, options.listener())?;
        let address = Address { gid: session.gid(), port: listener.port() };
        let own = Ask { rank, size, token, address };
        let addresses = ask(session, rendezvous, own, options.join)?;
        Group::together(session, &listener, Place { rank, addresses, token }, options)
    }

    /// The group whose ranks know of each other where they are, by rank; this one is there too. Returns when all
    /// are together. The token is the same at all of them, and no other group's.
    ///
    /// # Errors
    /// As [`Group::meet`]; [`Error::Rank`] if `addresses` has no such rank.
    pub fn join(
        session: &Session,
        rank: u32,
        addresses: &[Address],
        token: u128,
        options: Options,
    ) -> Result<Group, Error> {
        options.check()?;
        let size = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        check_size(size)?;
        let own = addresses.get(rank as usize).ok_or(Error::Rank { rank, size })?;
        let listener = Listener::bind(session, own.port, options.listener())?;
        let place = Place { rank, addresses: addresses.to_vec(), token };
        Group::together(session, &listener, place, options)
    }

    fn together(
        session: &Session,
        listener: &Listener,
        place: Place,
        options: Options,
    ) -> Result<Group, Error> {
        let inner = Inner::new(session, join(session, listener, place, &options)?, &options);
        let (rank, size) = (inner.rank, inner.size());
        Ok(Group { inner: Rc::new(SessionCell::new(session, inner)), rank, size })
    }

    /// This rank, from 0 on.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The session.
    pub fn session(&self) -> Session {
        self.inner.borrow().session.clone()
    }

    /// Registered memory for messages.
    ///
    /// # Errors
    /// [`Error::Session`] if the node has none left.
    pub fn alloc(&self, len: u64) -> Result<Region, Error> {
        Ok(Region::new(&self.inner.borrow().session, len)?)
    }

    /// What it did, and what waits.
    pub fn counters(&self) -> Counters {
        let inner = self.inner.borrow();
        let (waiting, waiting_bytes) = inner.engine.waiting();
        let (messages, requests) = (inner.engine.counters(), inner.engine.requests());
        Counters { messages, waiting, waiting_bytes, requests, unreadable: inner.unreadable }
    }

    /// How a rank was lost; none if it is there, as far as this one knows by its last call.
    pub fn loss(&self, rank: u32) -> Option<Loss> {
        self.check_rank(rank).ok()?;
        self.inner.borrow().loss(rank).cloned()
    }

    /// Sends a message, and returns when the bytes may be used again: a short one is on its way or waits for room at
    /// this end, a long one has been received in part at least. So a long one waits until its receiver receives.
    ///
    /// To itself a rank sends without waiting: what is not received by then is copied. No signal ends the wait.
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::Tag`], [`Error::TooLong`]; [`Error::Lost`] if the receiver is not there.
    pub fn send(&self, to: u32, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        self.check(to, tag)?;
        self.inner.borrow_mut().send(to, tag, bytes, |_, _| None)
    }

    /// The same, of registered memory. A long message is not copied if its receiver has such too.
    ///
    /// # Errors
    /// As [`Group::send`]. Behind [`Error::Lost`] the receiver may still READ the region: whatever it is used for next may be
    /// seen there.
    pub fn send_region(&self, to: u32, tag: u32, region: &Region) -> Result<(), Error> {
        self.check(to, tag)?;
        self.inner.borrow_mut().send_region(to, tag, region)
    }

    /// Begins to send. Dropped, the request goes on.
    ///
    /// # Errors
    /// As [`Group::send`], of a region as [`Group::send_region`]; [`Error::TooMany`].
    pub fn isend(&self, to: u32, tag: u32, payload: impl Into<Payload>) -> Result<Request, Error> {
        self.check(to, tag)?;
        let payload = payload.into();
        let mut inner = self.inner.borrow_mut();
        let id = inner.engine.send(to, tag, payload.len(), Held::Own(payload))?;
        inner.send_to(to, &mut Lent::none());
        Ok(Request::send(&self.inner, id))
    }

    /// Receives a message into memory that has room for it, and waits until it is here.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the first message that fits is longer: it stays, and can be received with more room.
    /// [`Error::Lost`] if the sender is not there, or, of [`Source::Any`], if any rank has died;
    /// [`Error::Itself`] if nobody else could send it. [`Error::Rank`], [`Error::Tag`]. [`Error::Session`] if a signal came
    /// before a message did ([`elver::SessionOptions::end_on_signal`]).
    pub fn recv(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &mut [u8],
    ) -> Result<Status, Error> {
        let wanted = self.wanted(source.into(), tag.into())?;
        self.inner.borrow_mut().receive(wanted, into, Inner::interruption_of)
    }

    /// The same, into memory that grows to the message's length.
    ///
    /// # Errors
    /// As [`Group::recv`], but for [`Error::Truncated`].
    pub fn recv_vec(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<(Status, Vec<u8>), Error> {
        let completed = self.irecv(source, tag, usize::MAX)?.wait()?;
        Ok((completed.status, completed.bytes))
    }

    /// The same, into registered memory: a long message that comes from such is not copied.
    ///
    /// # Errors
    /// As [`Group::recv`].
    pub fn recv_region(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
        region: &Region,
    ) -> Result<Status, Error> {
        Ok(self.irecv_region(source, tag, region)?.wait()?.status)
    }

    /// Begins to receive a message of at most so many bytes. Dropped, the request is taken back, unless a message has
    /// come for it: then that is lost.
    ///
    /// # Errors
    /// As [`Group::recv`], but what becomes of it [`Request::wait`] tells; [`Error::TooMany`].
    pub fn irecv(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
        max: usize,
    ) -> Result<Request, Error> {
        self.begin_receive(source.into(), tag.into(), max as u64, Payload::Bytes(Vec::new()))
    }

    /// The same, into registered memory. What the region holds before the request is over may be anything. If the sender is
    /// lost while the message is READ, the request is over when nothing of it can come any more.
    ///
    /// # Errors
    /// As [`Group::irecv`].
    pub fn irecv_region(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
        region: &Region,
    ) -> Result<Request, Error> {
        self.begin_receive(source.into(), tag.into(), region.len(), region.into())
    }

    fn begin_receive(
        &self,
        source: Source,
        tag: Tag,
        room: u64,
        payload: Payload,
    ) -> Result<Request, Error> {
        let wanted = self.wanted(source, tag)?;
        let mut inner = self.inner.borrow_mut();
        let id = inner.engine.receive(wanted, room, payload)?;
        Ok(Request::receive(&self.inner, id))
    }

    /// The message that a receive would take, if one is there. Takes in what has come.
    ///
    /// # Errors
    /// As [`Group::recv`].
    pub fn try_probe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Status>, Error> {
        let wanted = self.wanted(source.into(), tag.into())?;
        let mut inner = self.inner.borrow_mut();
        inner.progress(&mut Lent::none())?;
        inner.probed(&wanted).transpose()
    }

    /// As [`Group::try_probe`], but waits for one.
    ///
    /// # Errors
    /// As [`Group::recv`].
    pub fn probe(&self, source: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        let wanted = self.wanted(source.into(), tag.into())?;
        self.inner.borrow_mut().wait(None, &mut Lent::none(), |inner| {
            let found = inner.probed(&wanted).or_else(|| inner.probe_is_stuck(&wanted));
            found.or_else(|| inner.interruption().map(Err))
        })
    }

    /// Sends what is left of a batch, and takes in what has come: for who computes for long behind a send.
    ///
    /// # Errors
    /// [`Error::Session`] if the node is gone.
    pub fn flush(&self) -> Result<(), Error> {
        let mut inner = self.inner.borrow_mut();
        inner.progress(&mut Lent::none())?;
        inner.flush(&mut Lent::none());
        Ok(())
    }

    fn check(&self, to: u32, tag: u32) -> Result<(), Error> {
        self.check_rank(to)?;
        if tag > TAG_MAX { Err(Error::Tag { tag }) } else { Ok(()) }
    }

    pub(crate) fn check_rank(&self, rank: u32) -> Result<(), Error> {
        let size = self.size;
        if rank < size { Ok(()) } else { Err(Error::Rank { rank, size }) }
    }

    fn wanted(&self, source: Source, tag: Tag) -> Result<crate::protocol::Wanted, Error> {
        if let Source::Rank(rank) = source {
            self.check_rank(rank)?;
        }
        match tag {
            Tag::Is(tag) if tag > TAG_MAX => Err(Error::Tag { tag }),
            tag => Ok(wanted(source, tag)),
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Group { rank, size, .. } = self;
        f.debug_struct("Group").field("rank", rank).field("size", size).finish_non_exhaustive()
    }
}
