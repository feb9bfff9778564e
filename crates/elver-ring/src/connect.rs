//! How a pair of rings comes about: who connects says which measures it has, and where; the listener makes
//! its end, and answers.

use std::time::{Duration, Instant};

use elver::{
    AccessFlags, Completed, ConnectOptions, Gid, Mr, Numa, Policy, RefusalCode, Session, Vqp,
    VqpOptions, Wc, WcOpcode, WcStatus,
};

use crate::Error;
use crate::asker::{Asker, FIRST};
use crate::ends::{Ends, Memory, Where, ends};
use crate::greeting::{Greeting, Nonsense, Place, VERSION};
use crate::inbox::greet;
use crate::protocol::Config;
use crate::ringer::Ringer;
use crate::wire::progress::post_bell;
use crate::wire::{BELL_BYTES, BELLS, Parts, Role, SENDS_MAX};

/// How an end is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The ring from who connects to the listener.
    pub there: Config,
    /// The ring back.
    pub back: Config,
    /// Slots from huge pages, at this end, where the system has them ([`Session::alloc_huge`]).
    pub huge_pages: bool,
    /// At which NUMA node this end's memory lies, on a machine with several: that of the thread which makes the end, unless
    /// said otherwise ([`Session::alloc_placed`]). Whoever uses the end best stays there.
    pub numa: Numa,
    /// How long a wait looks before it sleeps: less where others have long turns on its core, unless it is a
    /// second or longer ([`Session::look_on`]).
    pub spin: Duration,
    /// What carries what this end writes: the node's shared queue pairs (DC, and RC to a peer that is hot), an RC queue
    /// pair that is shared ([`Policy::Lite`]), or one of its own ([`Policy::Leased`]). The messages that wake go by shared ones
    /// in any case. Over DC alone go the rings of nodes with `transfer.rc_qps_max = 0`.
    pub policy: Policy,
    /// What the listener is told of this pair: which of several it is, for example.
    pub token: u64,
    /// What is spoken over the rings: a listener takes pairs of its own ([`crate::ListenerOptions::application`])
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
        let (there, back, policy) = (config, config, Policy::Shared);
        let (huge_pages, numa) = (false, Numa::Here);
        Options { there, back, huge_pages, numa, spin, policy, token: 0, application: 0 }
    }
}

/// Connects to a listener, waiting at most so long.
///
/// # Errors
/// [`Error::Config`], [`Error::Refused`], [`Error::Version`], [`Error::NoListener`], [`Error::TimedOut`];
/// [`Error::NoQueuePair`] if there is none left for the policy; [`Error::Carrier`] if the node refuses memory or the
/// connection.
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
    /// Of the listener, whether it has the offer still.
    asker: Asker,
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
        let Options { huge_pages: huge, numa, .. } = options;
        let place = Where { huge, here: gid == session.gid(), numa };
        let memory = Memory::new(session, options.there, options.back, place)?;
        let bells = session.alloc(u64::from(BELLS * BELL_BYTES), AccessFlags::LOCAL_WRITE)?;
        let vqp = session.create_vqp(vqp_options)?;
        let asked = Some(vqp.qconnect_start(gid, port, by(options.policy))?);
        let (to, memory) = ((gid, port), Some((memory, bells)));
        Ok(Connecting { vqp, to, asked, memory, asker: Asker::new(), options })
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

    /// When to poll next, if the session's descriptor ([`Session::arm`]) tells of nothing before: the listener is then asked
    /// whether it has the offer still, since its answer may have been lost, or what it says is looked for. None before the
    /// offer has come to the listener, of which the descriptor tells, and once the pair is made. It changes with each [`Connecting::poll`].
    pub fn deadline(&self) -> Option<Instant> {
        self.memory.as_ref().and_then(|_| self.asker.deadline())
    }

    /// The pair, once, if the listener has answered. Who waits for it otherwise than by [`Connecting::wait`] calls this whenever
    /// the session has something to tell, and at the [`Connecting::deadline`].
    ///
    /// # Errors
    /// As [`connect`].
    pub fn poll(&mut self) -> Result<Option<Ends>, Error> {
        if let Some(asked) = &self.asked {
            if asked.poll().map_err(|error| unconnected(self.options.policy, error))?.is_none() {
                return Ok(None);
            }
            self.greet()?;
        }
        if let Some(ends) = self.look()? {
            return Ok(Some(ends));
        }
        if let Some(failure) = self.vqp.failure() {
            return Err(failure.into());
        }
        self.ask()
    }

    /// The pair, if the listener's answer has come.
    fn look(&mut self) -> Result<Option<Ends>, Error> {
        let mut wcs = [Wc::default()];
        while self.vqp.poll_cq(&mut wcs)? > 0 {
            if let Some(ends) = self.hear(wcs[0])? {
                return Ok(Some(ends));
            }
        }
        Ok(None)
    }

    /// As [`Connecting::poll`], but waits, at most so long.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn wait(mut self, at_most: Option<Duration>) -> Result<Ends, Error> {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(asked) = &self.asked {
            asked.wait(left()).map_err(|error| unconnected(self.options.policy, error))?;
            self.greet()?;
        }
        loop {
            let mut wcs = [Wc::default()];
            let due = self.due().saturating_duration_since(Instant::now());
            match self.vqp.wait_cq(&mut wcs, Some(left().map_or(due, |left| left.min(due)))) {
                Err(elver::Error::TimedOut) if left().is_none_or(|left| !left.is_zero()) => {
                    if let Some(ends) = self.ask()? {
                        return Ok(ends);
                    }
                }
                waited => {
                    waited?;
                    if let Some(ends) = self.hear(wcs[0])? {
                        return Ok(ends);
                    }
                }
            }
        }
    }

    /// When a wait looks next: at the deadline, and each second before there is one, which costs nothing.
    pub(crate) fn due(&self) -> Instant {
        self.deadline().unwrap_or_else(|| Instant::now() + FIRST)
    }

    /// Asks whether the listener has the offer still, when it is time to; the pair, if its answer came before it said that it
    /// has not.
    fn ask(&mut self) -> Result<Option<Ends>, Error> {
        // The pair is made once.
        let Some((memory, _)) = &self.memory else { return Ok(None) };
        let refused = match self.asker.tend(self.vqp.session(), self.to, memory.place()) {
            Ok(Some(Greeting::Refused(reason))) => Error::Refused { reason },
            Ok(_) => return Ok(None),
            Err(error) => error,
        };
        self.look()?.map_or(Err(refused), |ends| Ok(Some(ends)))
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
            // The greeting has arrived.
            self.asker.begin();
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

/// How to connect by a policy.
pub(crate) fn by(policy: Policy) -> ConnectOptions {
    ConnectOptions { policy, ..ConnectOptions::default() }
}

/// Why a VQP was not connected.
fn unconnected(policy: Policy, error: elver::Error) -> Error {
    match error {
        elver::Error::Refused { code: RefusalCode::Limit, text: reason }
            if matches!(policy, Policy::Leased | Policy::Lite) =>
        {
            Error::NoQueuePair { policy, reason }
        }
        error => error.into(),
    }
}

const MADE: elver::Error = elver::Error::Invalid { what: "the pair of rings was made already" };

/// What a listener answers.
fn welcome(bytes: &[u8]) -> Result<(Place, u64), Error> {
    match Greeting::decode(bytes) {
        Ok(Greeting::Welcome(place, bell)) => Ok((place, bell)),
        Ok(Greeting::Refused(reason)) => Err(Error::Refused { reason }),
        Ok(Greeting::Hello { .. } | Greeting::Waiting(_)) => {
            Err(Error::NoListener { what: "it connects itself" })
        }
        Err(Nonsense::Version(theirs)) => Err(Error::Version { theirs, ours: VERSION }),
        Err(Nonsense::Malformed(what)) => Err(Error::NoListener { what }),
    }
}
