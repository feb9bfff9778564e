//! How a pair of rings comes about: who connects says which measures it has, and where; the listener makes
//! its end, and answers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver::{
    AccessFlags, Completed, ConnectOptions, Gid, Mr, Session, Vqp, VqpOptions, Wc, WcOpcode,
    WcStatus,
};

use crate::error::Refusal;
use crate::greeting::{GREETING_BYTES, Greeting, Nonsense, Place, VERSION};
use crate::inbox::{Inbox, greet, refuse};
use crate::protocol::Config;
use crate::ringer::Ringer;
use crate::wire::{BELL_BYTES, BELLS, CELLS_BYTES, Parts, Role, SENDS_MAX, Wire, post_bell};
use crate::{Error, Receiver, Sender};

/// How an end is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The ring from who connects to the listener.
    pub there: Config,
    /// The ring back.
    pub back: Config,
    /// Slots from huge pages, at this end, where the system has them ([`Session::alloc_huge`]).
    pub huge_pages: bool,
    /// How long a wait looks before it sleeps: less where others have long turns on its core, unless it is a
    /// second or longer ([`Session::look_on`]).
    pub spin: Duration,
    /// What the listener is told of this pair: which of several it is, for example.
    pub token: u64,
    /// What is spoken over the rings: a listener takes pairs of its own ([`ListenerOptions::application`])
    /// alone. 0 for messages of the user's, about which the two agree elsewhere.
    pub application: u64,
}

impl Default for Options {
    /// The paper's measures both ways.
    fn default() -> Options {
        Options::both(Config::default())
    }
}

impl Options {
    /// The same measures both ways.
    pub fn both(config: Config) -> Options {
        let spin = Duration::from_micros(100);
        Options { there: config, back: config, huge_pages: false, spin, token: 0, application: 0 }
    }
}

/// One end of a pair of rings.
#[derive(Debug)]
pub struct Ends {
    /// Sends to the peer.
    pub sender: Sender<Wire>,
    /// Receives from it.
    pub receiver: Receiver<Wire>,
    /// What who connected said of the pair.
    pub token: u64,
}

/// Connects to a listener, waiting at most so long.
///
/// # Errors
/// [`Error::Config`], [`Error::Refused`], [`Error::Version`], [`Error::NoListener`], [`Error::TimedOut`];
/// [`Error::Carrier`] if the node refuses memory or the connection.
pub fn connect(
    session: &Session,
    gid: Gid,
    port: u16,
    options: Options,
    at_most: Option<Duration>,
) -> Result<Ends, Error> {
    Connecting::start(session, gid, port, options)?.wait(at_most)
}

/// A pair of rings that is being connected. Dropped, it is given up.
#[derive(Debug)]
pub struct Connecting {
    vqp: Vqp,
    /// The listener.
    to: (Gid, u16),
    /// As long as the VQP is not connected.
    asked: Option<elver::Connecting>,
    /// The end's memory, and that of what comes to it, until the pair is made.
    memory: Option<(Memory, Mr)>,
    options: Options,
}

impl Connecting {
    /// Begins to connect to a listener, and does not wait for it.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn start(
        session: &Session,
        gid: Gid,
        port: u16,
        options: Options,
    ) -> Result<Connecting, Error> {
        let vqp_options =
            VqpOptions { max_send_wr: SENDS_MAX + 1, max_recv_wr: BELLS, ..VqpOptions::default() };
        let place = Where { huge: options.huge_pages, here: gid == session.gid() };
        let memory = Memory::new(session, options.there, options.back, place)?;
        let bells = session.alloc(u64::from(BELLS * BELL_BYTES), AccessFlags::LOCAL_WRITE)?;
        let vqp = session.create_vqp(vqp_options)?;
        let asked = Some(vqp.qconnect_start(gid, port, ConnectOptions::default())?);
        Ok(Connecting { vqp, to: (gid, port), asked, memory: Some((memory, bells)), options })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        self.vqp.session()
    }

    /// The connect of the VQP, as long as it goes on.
    #[cfg(feature = "tokio")]
    pub(crate) fn asked(&self) -> Option<&elver::Connecting> {
        self.asked.as_ref()
    }

    /// The pair, once, if the listener has answered.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn poll(&mut self) -> Result<Option<Ends>, Error> {
        if let Some(asked) = &self.asked {
            if asked.poll()?.is_none() {
                return Ok(None);
            }
            self.greet()?;
        }
        let mut wcs = [Wc::default()];
        while self.vqp.poll_cq(&mut wcs)? > 0 {
            if let Some(ends) = self.hear(wcs[0])? {
                return Ok(Some(ends));
            }
        }
        self.vqp.failure().map_or(Ok(None), |failure| Err(failure.into()))
    }

    /// As [`Connecting::poll`], but waits, at most so long.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn wait(mut self, at_most: Option<Duration>) -> Result<Ends, Error> {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(asked) = &self.asked {
            asked.wait(left())?;
            self.greet()?;
        }
        loop {
            let mut wcs = [Wc::default()];
            self.vqp.wait_cq(&mut wcs, left())?;
            if let Some(ends) = self.hear(wcs[0])? {
                return Ok(ends);
            }
        }
    }

    /// The VQP is connected: says what is wanted.
    fn greet(&mut self) -> Result<(), Error> {
        self.asked = None;
        let (memory, bells) = self.memory.as_ref().ok_or(MADE)?;
        for bell in 0..BELLS {
            post_bell(&self.vqp, bells, bell.into())?;
        }
        let place = memory.place();
        let Options { there, back, token, application, .. } = self.options;
        greet(&self.vqp, &Greeting::Hello { there, back, place, token, application })
    }

    /// Takes a completion; the pair, if it is the answer's.
    fn hear(&mut self, wc: Wc) -> Result<Option<Ends>, Error> {
        if wc.status == WcStatus::WrFlushErr
            && let Some(failure) = self.vqp.failure()
        {
            return Err(failure.into());
        }
        wc.succeeded()?;
        if wc.opcode != WcOpcode::Recv {
            return Ok(None);
        }
        let mut bytes = [0; BELL_BYTES as usize];
        let bytes = &mut bytes[..wc.byte_len.min(BELL_BYTES) as usize];
        let index = wc.wr_id >> 2;
        let (memory, bells) = self.memory.take().ok_or(MADE)?;
        bells.read(index * u64::from(BELL_BYTES), bytes)?;
        post_bell(&self.vqp, &bells, index)?;
        let (peer, bell) = welcome(bytes)?;
        let Memory { cells, outgoing, incoming } = memory;
        let vqp = self.vqp.clone();
        let ringer = Ringer::new(vqp.session().clone(), self.to.0, self.to.1, bell);
        let role = Role::Connected { bells, ringer };
        let Options { there, back, spin, token, .. } = self.options;
        let packed = there.is_packed() && back.is_packed();
        let parts = Parts { vqp, role, cells, outgoing, incoming, peer, packed, spin };
        ends(parts, there, back, token).map(Some)
    }
}

const MADE: elver::Error = elver::Error::Invalid { what: "the pair of rings was made already" };

/// What a listener answers.
fn welcome(bytes: &[u8]) -> Result<(Place, u64), Error> {
    match Greeting::decode(bytes) {
        Ok(Greeting::Welcome(place, bell)) => Ok((place, bell)),
        Ok(Greeting::Refused(reason)) => Err(Error::Refused { reason }),
        Ok(Greeting::Hello { .. }) => Err(Error::NoListener { what: "it connects itself" }),
        Err(Nonsense::Version(theirs)) => Err(Error::Version { theirs, ours: VERSION }),
        Err(Nonsense::Malformed(what)) => Err(Error::NoListener { what }),
    }
}

/// What a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Most bytes of the slots of a pair's rings, both together.
    pub ring_bytes_max: u64,
    /// As [`Options::huge_pages`].
    pub huge_pages: bool,
    /// As [`Options::spin`].
    pub spin: Duration,
    /// As [`Options::application`]: others are refused.
    pub application: u64,
}

impl Default for ListenerOptions {
    /// 64 MiB a pair.
    fn default() -> ListenerOptions {
        let Options { huge_pages, spin, application, .. } = Options::default();
        ListenerOptions { ring_bytes_max: 64 << 20, huge_pages, spin, application }
    }
}

/// What a listener has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Pairs that were made.
    pub accepted: u64,
    /// Greetings that were refused, each with its reason told to who sent it.
    pub refused: u64,
    /// Messages that came while too many waited, and those that are no wakings, of who is connected already.
    pub dropped: u64,
}

/// Takes pairs of rings that others connect. Their wakings come by its port, which stays taken as long as
/// one of them lives; dropped, the listener refuses others.
pub struct Listener {
    session: Session,
    inbox: Rc<Inbox>,
    port: u16,
    options: ListenerOptions,
    counters: Cell<ListenerCounters>,
}

impl Listener {
    /// Listens at a port of the session's node; 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Carrier`] if another has the port.
    pub fn bind(session: &Session, port: u16, options: ListenerOptions) -> Result<Listener, Error> {
        inline_fits(session)?;
        let (inbox, port) = Inbox::bind(session, port)?;
        let (session, inbox) = (session.clone(), Rc::new(inbox));
        Ok(Listener { session, inbox, port, options, counters: Cell::default() })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has seen.
    pub fn counters(&self) -> ListenerCounters {
        ListenerCounters { dropped: self.inbox.dropped(), ..self.counters.get() }
    }

    /// The next pair, if somebody has connected one. Who says what does not fit is told, and counted.
    ///
    /// # Errors
    /// [`Error::Carrier`] if the node is gone.
    pub fn try_accept(&self) -> Result<Option<Ends>, Error> {
        self.inbox.drain()?;
        while let Some((source, bytes)) = self.inbox.next() {
            let mut counters = self.counters.get();
            match self.take(&source, &bytes) {
                Ok(ends) => {
                    counters.accepted += 1;
                    self.counters.set(counters);
                    return Ok(Some(ends));
                }
                Err(reason) => {
                    counters.refused += 1;
                    self.counters.set(counters);
                    refuse(&source, reason);
                }
            }
        }
        Ok(None)
    }

    /// As [`Listener::try_accept`], but waits for one, at most so long.
    ///
    /// # Errors
    /// As [`Listener::try_accept`]; [`Error::TimedOut`].
    pub fn accept(&self, at_most: Option<Duration>) -> Result<Ends, Error> {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        loop {
            if let Some(ends) = self.try_accept()? {
                return Ok(ends);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // The session may always have something, of other VQPs.
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::TimedOut);
            }
            self.session.wait_ready(left)?;
        }
    }

    /// Whether somebody has greeted who was not looked at.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_greeted(&self) -> bool {
        self.inbox.is_greeted()
    }

    fn take(&self, source: &Vqp, bytes: &[u8]) -> Result<Ends, Refusal> {
        let greeting = Greeting::decode(bytes).map_err(|nonsense| match nonsense {
            Nonsense::Version(_) => Refusal::Version,
            Nonsense::Malformed(_) => Refusal::Malformed,
        })?;
        let Greeting::Hello { there, back, place: peer, token, application } = greeting else {
            return Err(Refusal::Malformed);
        };
        if application != self.options.application {
            return Err(Refusal::Application);
        }
        let shapes = [there, back].map(|config| config.check().map_err(|_| Refusal::Config));
        let [there_shape, back_shape] = shapes;
        if there_shape?.bytes() + back_shape?.bytes() > self.options.ring_bytes_max {
            return Err(Refusal::TooLarge);
        }
        let ListenerOptions { huge_pages, spin, .. } = self.options;
        let info = source.info().map_err(|_| Refusal::Memory)?;
        let here = info.peer.is_some_and(|(gid, _)| gid == self.session.gid());
        let memory = Memory::new(&self.session, back, there, Where { huge: huge_pages, here });
        let memory = memory.map_err(|_| Refusal::Memory)?;
        let bell = self.inbox.attach(source.id());
        let welcome = Greeting::Welcome(memory.place(), bell.number);
        greet(source, &welcome).map_err(|_| Refusal::Memory)?;
        let Memory { cells, outgoing, incoming } = memory;
        let (vqp, role) = (source.clone(), Role::Accepted(bell));
        let packed = there.is_packed() && back.is_packed();
        let parts = Parts { vqp, role, cells, outgoing, incoming, peer, packed, spin };
        ends(parts, back, there, token).map_err(|_| Refusal::Config)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // What came and was not looked at. If the node is gone, so are they.
        let _ = self.inbox.drain();
        self.inbox.close();
    }
}

/// The memory of an end.
#[derive(Debug)]
struct Memory {
    cells: Mr,
    outgoing: Mr,
    incoming: Mr,
}

/// What an end's memory is for.
#[derive(Clone, Copy, Debug)]
struct Where {
    /// Huge pages, for the slots.
    huge: bool,
    /// The peer is at this node: what it writes has files of its own, so that it can do so itself.
    here: bool,
}

impl Memory {
    fn new(session: &Session, out: Config, into: Config, place: Where) -> Result<Memory, Error> {
        inline_fits(session)?;
        let Where { huge, here } = place;
        let alloc = |bytes, access: AccessFlags| {
            if here && access.contains(AccessFlags::REMOTE_WRITE) {
                session.alloc_apart(bytes, access)
            } else {
                session.alloc(bytes, access)
            }
        };
        let written = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let max = session.limits().message_bytes;
        let slots = |config: Config, access| {
            let bytes = config.check()?.bytes();
            if bytes > max {
                return Err(Error::Transfer { bytes, max });
            }
            Ok(if huge { session.alloc_huge(bytes, access) } else { alloc(bytes, access) }?)
        };
        Ok(Memory {
            cells: alloc(CELLS_BYTES, written)?,
            // Peers have no business here.
            outgoing: slots(out, AccessFlags::empty())?,
            incoming: slots(into, written)?,
        })
    }

    fn place(&self) -> Place {
        Place { cells: self.cells.remote(0), slots: self.incoming.remote(0) }
    }
}

fn ends(parts: Parts, out: Config, into: Config, token: u64) -> Result<Ends, Error> {
    let wire = Wire::new(parts);
    let (sender, receiver) = (Sender::new(out, wire.clone())?, Receiver::new(into, wire)?);
    Ok(Ends { sender, receiver, token })
}

/// Pointers and greetings are written inline.
fn inline_fits(session: &Session) -> Result<(), Error> {
    let (max, needed) = (session.limits().max_inline, GREETING_BYTES as u32);
    if max < needed { Err(Error::Inline { max, needed }) } else { Ok(()) }
}
