//! The server: a port, its clients, and what does their calls.

mod connection;
mod context;
mod deferred;
mod methods;
mod shares;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use elver::Session;
use elver_ring::{Listener, ListenerCounters, ListenerOptions, Pause};

use crate::error::Error;
use crate::link::Link;
use crate::message::Message;
use crate::method::Method;
use crate::protocol::{CalleeCounters, Limits};
use crate::ring::APPLICATION;
use crate::status::{Code, Status};

pub use context::{Context, Responder};
pub use methods::{Sink, Source};

use connection::{Common, Connection, callee};
use context::{Late, Returns};
use deferred::Deferred;
use methods::Methods;
use shares::Shares;

/// How a server is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// What it takes of each client.
    pub limits: Limits,
    /// Most clients; who comes then is refused with [`Code::ResourceExhausted`].
    pub clients: usize,
    /// Most calls that are [answered later](Server::on_deferred), of all clients together. A call counts as long as it is
    /// worked on, also where its client has cancelled it or is gone.
    pub deferred: usize,
    /// Of these, most of the clients of one node.
    pub deferred_per_peer: usize,
    /// Most bytes of messages that are held for all clients together: those that come in pieces, and those that wait to be
    /// sent. Of one client it is [`Limits::held_bytes`].
    pub held_bytes: u64,
    /// Of these, most for the clients of one node.
    pub held_bytes_per_peer: u64,
    /// How long a client may take for its greeting.
    pub greeting_time: Duration,
    /// Rings of clients, how many clients and bytes of these one node may have, and how long to look before sleeping. Who
    /// comes beyond is refused with [`Code::ResourceExhausted`].
    pub listener: ListenerOptions,
    /// The ports of the group that it belongs to: the first, and how many. Clients that
    /// [spread](crate::ClientOptions::spread) choose one of these.
    pub group: (u16, u16),
}

impl Default for ServerOptions {
    /// 1024 clients with 4 MiB of rings each, of one node 256 with 256 MiB together, 4096 calls that are answered later, of one node
    /// 1024, 1 GiB of messages that are held, for one node 256 MiB, 5 s for a greeting, no group.
    fn default() -> ServerOptions {
        let listener = ListenerOptions {
            ring_bytes_max: 4 << 20,
            pairs_per_peer: 256,
            bytes_per_peer: 256 << 20,
            ..ListenerOptions::default()
        };
        ServerOptions {
            limits: Limits::default(),
            clients: 1024,
            deferred: 4096,
            deferred_per_peer: 1024,
            held_bytes: 1 << 30,
            held_bytes_per_peer: 256 << 20,
            greeting_time: Duration::from_secs(5),
            listener,
            group: (0, 0),
        }
    }
}

/// What a server has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Clients that are there.
    pub clients: usize,
    /// Clients that are over, and may not have heard of it yet.
    pub closing: usize,
    /// Clients that have been welcome.
    pub accepted: u64,
    /// Clients that were refused: too many, or rings too short for a frame.
    pub refused: u64,
    /// Clients that said no hello in time.
    pub ungreeted: u64,
    /// Calls that are answered later, and have not been.
    pub deferred: usize,
    /// Bytes of messages that are held for clients.
    pub held_bytes: u64,
    /// Times that an answer of another thread, or somebody else with the session's waker, ended its sleep.
    pub woken: u64,
    /// The calls of all clients, those that are gone as well.
    pub calls: CalleeCounters,
    /// Rings that came, and that did not come about.
    pub rings: ListenerCounters,
}

/// A server: one session and one thread, any number of clients.
///
/// It does its calls in [`Server::run`], or in [`Server::poll`] and [`Server::wait`] of a loop of the
/// caller's.
pub struct Server {
    session: Session,
    listener: Listener,
    options: ServerOptions,
    connections: Vec<Connection>,
    /// Those that are over, and since when: what was said to them last may be under way. Their rings count as their nodes'
    /// as long as they are here.
    closing: Vec<(Leaving, Instant)>,
    common: Common,
    shares: Shares,
    answers: mpsc::Receiver<Late>,
    next_client: u64,
    /// Since when nothing has come.
    idle: Option<Instant>,
    counters: ServerCounters,
}

impl Server {
    /// Listens at a port of the session's node; 0 takes a free one.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if another has the port.
    pub fn bind(session: &Session, port: u16, options: ServerOptions) -> Result<Server, Error> {
        let listener = ListenerOptions { application: APPLICATION, ..options.listener };
        let listener = Listener::bind(session, port, listener).map_err(Error::of_ring)?;
        let (late, answers) = mpsc::channel();
        let waker = session.waker().map_err(|error| Error::of_ring(error.into()))?;
        let common = Common {
            methods: Methods::default(),
            returns: Returns::new(late, waker),
            deferred: Deferred::new(options.deferred, options.deferred_per_peer),
            reply: Vec::new(),
        };
        Ok(Server {
            session: session.clone(),
            listener,
            options,
            connections: Vec::new(),
            closing: Vec::new(),
            common,
            shares: Shares::new(options.held_bytes, options.held_bytes_per_peer),
            answers,
            next_client: 0,
            idle: None,
            counters: ServerCounters::default(),
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Does a method, at once: other calls wait meanwhile.
    ///
    /// # Panics
    /// If another method has its number, as do all of these.
    pub fn on<Request: Message, Response: Message>(
        &mut self,
        method: Method<Request, Response>,
        handler: impl FnMut(Request, &Context) -> Result<Response, Status> + 'static,
    ) {
        self.common.methods.add(method, Methods::unary(handler));
    }

    /// Does a method, at once, on its message's bytes, which are borrowed, and into a buffer for the
    /// response's, which is empty and kept: nothing is allocated.
    pub fn on_bytes<Request, Response>(
        &mut self,
        method: Method<Request, Response>,
        handler: impl FnMut(&[u8], &Context, &mut Vec<u8>) -> Result<(), Status> + 'static,
    ) {
        self.common.methods.add(method, Methods::bytes(handler));
    }

    /// Does a method, and answers when it is done, from any thread.
    pub fn on_deferred<Request: Message, Response: Message>(
        &mut self,
        method: Method<Request, Response>,
        handler: impl FnMut(Request, Responder<Response>) + 'static,
    ) {
        self.common.methods.add(method, Methods::deferred(handler));
    }

    /// Does a method whose request goes on in a stream of bytes: the handler gives what takes it.
    pub fn on_upload<Request: Message, S: Sink + 'static>(
        &mut self,
        method: Method<Request, S::Response>,
        handler: impl FnMut(Request, &Context) -> Result<S, Status> + 'static,
    ) {
        self.common.methods.add(method, Methods::upload(handler));
    }

    /// Does a method that gives a stream of bytes back: the handler gives what it comes from.
    pub fn on_download<Request: Message, S: Source + 'static>(
        &mut self,
        method: Method<Request, S::Response>,
        handler: impl FnMut(Request, &Context) -> Result<S, Status> + 'static,
    ) {
        self.common.methods.add(method, Methods::download(handler));
    }

    /// What it has seen.
    pub fn counters(&self) -> ServerCounters {
        let mut counters = self.counters;
        counters.clients = self.connections.len();
        counters.closing = self.closing.len();
        counters.deferred = self.common.deferred.len();
        counters.held_bytes = self.shares.held();
        counters.rings = self.listener.counters();
        for connection in &self.connections {
            counters.calls.add(connection.counters());
        }
        counters
    }

    /// Serves until it is told to stop, which it sees within a quarter of a second, and at once where a handler of a signal
    /// tells it and signals end the session's waits (`SessionOptions::end_on_signal`).
    ///
    /// # Errors
    /// As [`Server::poll`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        while !stop.load(Ordering::Relaxed) {
            if !self.poll()? {
                self.wait(Some(Duration::from_millis(250)))?;
            }
        }
        // Answers that were given before it was told.
        self.poll().map(drop)
    }

    /// Takes in what has come, and does it; whether there was anything.
    ///
    /// # Errors
    /// [`Code::Unavailable`]: the node is gone. What clients do ends no more than their connection.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let mut busy = false;
        // Before others join them: who is refused in this round is counted as closing when it ends.
        self.closing.retain_mut(|(gone, since)| !gone.is_settled() && since.elapsed() < CLOSING);
        // So many at a time: whoever comes and goes without an end keeps nobody from his answers.
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(ends) = self.listener.try_accept().map_err(Error::of_ring)? else { break };
            busy = true;
            self.accept(Link::new(ends));
        }
        while let Ok(late) = self.answers.try_recv() {
            busy = true;
            self.answer(late);
        }
        let mut at = 0;
        while let Some(connection) = self.connections.get_mut(at) {
            if let Ok(came) = connection.round(&mut self.common) {
                if came {
                    connection.pause = None;
                }
                busy |= came;
                if connection.is_greeted() || connection.age() < self.options.greeting_time {
                    at += 1;
                    continue;
                }
                self.counters.ungreeted += 1;
            }
            busy = true;
            let gone = self.connections.swap_remove(at);
            self.counters.calls.add(gone.counters());
            self.close(gone);
        }
        if busy {
            self.idle = None;
        }
        Ok(busy)
    }

    fn accept(&mut self, mut link: Link) {
        let Some(mut callee) = callee(&link, self.options.limits, self.options.group) else {
            self.counters.refused += 1;
            link.begin_close();
            self.closing.push((Leaving::Unserved(Box::new(link)), Instant::now()));
            return;
        };
        callee.share(self.shares.of(link.wire().peer()));
        self.next_client += 1;
        let mut connection = Connection::new(self.next_client, link, callee);
        if self.connections.len() >= self.options.clients {
            self.counters.refused += 1;
            let most = self.options.clients;
            let why = format!("the server has {most} clients, and takes no more");
            connection.refuse(&Status::new(Code::ResourceExhausted, why));
            // It is told, and then it is over.
            let _ = connection.round(&mut self.common);
            self.close(connection);
            return;
        }
        self.counters.accepted += 1;
        self.connections.push(connection);
    }

    /// Ends a connection. Nobody else waits until its peer has heard of it.
    fn close(&mut self, mut connection: Connection) {
        connection.begin_close();
        self.closing.push((Leaving::Client(Box::new(connection)), Instant::now()));
    }

    fn answer(&mut self, late: Late) {
        self.common.deferred.give_back(late.place.node);
        let client = late.place.client;
        let connection = self.connections.iter_mut().find(|one| one.client == client);
        match connection {
            None => self.counters.calls.answers_dropped += 1,
            // One that has ended is seen by its next round.
            Some(connection) => {
                let _ = connection.answer_late(late.place.call, late.reply);
            }
        }
    }

    /// To be called when a poll found nothing: lets others run, or sleeps until something comes, at most
    /// so long.
    ///
    /// # Errors
    /// As [`Server::poll`].
    pub fn wait(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        let now = Instant::now();
        let looked_for = now - *self.idle.get_or_insert(now);
        let spin = self.options.listener.spin;
        if looked_for < spin && self.session.look_on(now, spin) {
            return Ok(());
        }
        let mut slice = at_most.unwrap_or(LONGEST).min(LONGEST);
        if self.common.deferred.len() > 0 && self.session.is_driven() {
            // A node's sleep on this thread is not ended by other threads.
            slice = slice.min(LATE);
        }
        if !self.closing.is_empty() || self.connections.iter().any(Connection::is_held_up) {
            slice = slice.min(HELD_UP);
        }
        if self.listener.is_answering() {
            slice = slice.min(ANSWERING);
        }
        let mut told = false;
        for connection in &mut self.connections {
            let naps = connection.wire().naps();
            let mut pause = connection.pause.take().unwrap_or_else(|| Pause::new(None));
            let nap = connection.wire().lie_down(&mut pause);
            connection.pause = Some(pause);
            let nap = match nap {
                Ok(Some(nap)) => nap,
                // Somebody wants to be accepted.
                Ok(None) => return Ok(()),
                // One that is gone is seen by its next round.
                Err(_) => Duration::ZERO,
            };
            let deadline = connection.next_deadline().unwrap_or(LONGEST);
            slice = slice.min(nap).min(deadline);
            told |= connection.wire().naps() != naps;
        }
        if told {
            // What came before the clients knew of it is looked for once more.
            return Ok(());
        }
        self.common.returns.lie_down();
        if let Ok(late) = self.answers.try_recv() {
            self.common.returns.rise();
            self.answer(late);
            return Ok(());
        }
        let slept = self.session.wait_ready(Some(slice)).map(drop);
        self.common.returns.rise();
        match slept {
            Err(elver::Error::Woken) => {
                self.counters.woken += 1;
                Ok(())
            }
            // Whom a signal is to end looks at what the handler left: [`Server::run`] at `stop`.
            Ok(()) | Err(elver::Error::TimedOut | elver::Error::Interrupted) => Ok(()),
            Err(error) => Err(Error::of_ring(error.into())),
        }
    }
}

/// Connections that are accepted in a round.
const ACCEPTS_AT_ONCE: usize = 16;
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(250);
/// The longest while something waits for room below, or for its arrival.
const HELD_UP: Duration = Duration::from_millis(2);
/// How long what was said to a client last may take to arrive.
const CLOSING: Duration = Duration::from_millis(250);
/// The longest while answers are to come from other threads, and the node runs on this one.
const LATE: Duration = Duration::from_millis(1);
/// While a connection back is being made, whose end ends no wait.
const ANSWERING: Duration = Duration::from_millis(1);

/// Who hears of the end of its connection, and is waited for a little.
enum Leaving {
    Client(Box<Connection>),
    /// Its rings are too short for any frame.
    Unserved(Box<Link>),
}

impl Leaving {
    fn is_settled(&mut self) -> bool {
        match self {
            Leaving::Client(connection) => connection.is_settled(),
            Leaving::Unserved(link) => link.is_settled(),
        }
    }
}

impl Drop for Server {
    /// Its clients hear of its end, all at once: those that let nothing through are waited for together.
    fn drop(&mut self) {
        for mut connection in self.connections.drain(..) {
            connection.begin_close();
            self.closing.push((Leaving::Client(Box::new(connection)), Instant::now()));
        }
        loop {
            self.closing
                .retain_mut(|(gone, since)| !gone.is_settled() && since.elapsed() < CLOSING);
            if self.closing.is_empty() {
                return;
            }
            let _ = self.session.wait_ready(Some(HELD_UP));
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("port", &self.port()).finish_non_exhaustive()
    }
}
