#![allow(clippy::disallowed_types, reason = "how long a farewell is waited for")]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::backoff::Backoff;
use super::frame::Frame;
use super::frame::FrameError;
use super::pipe::{Ended, Pipe};
use super::secret::Secret;
use super::server::nonce;
use super::session::{Session, Step};
use super::{News, Registry};
use crate::pulse::Proof;

/// A client says little; a server that does not take it is none.
const OUTBOX_BYTES_MAX: usize = 64 * 1024;
/// For how long a node that leaves waits until its registries have heard it.
const FAREWELL: Duration = Duration::from_millis(200);

/// How a node speaks to the registries of the meta servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryClientConfig {
    /// The registries, in order of preference.
    pub servers: Vec<SocketAddr>,
    /// The address of this host that connections come from.
    pub source: Option<IpAddr>,
    /// A server must welcome within this, in nanoseconds.
    pub answer_ns_max: u64,
    /// Time to the second try, in nanoseconds; then it doubles.
    pub retry_ns_first: u64,
    /// The longest time between two tries, in nanoseconds.
    pub retry_ns_max: u64,
    /// Seed of the jitter.
    pub seed: u64,
    /// What servers must prove to know, and this node to them, if anything.
    pub secret: Option<Secret>,
}

impl RegistryClientConfig {
    /// The default configuration for some servers.
    pub fn for_servers(servers: Vec<SocketAddr>) -> RegistryClientConfig {
        RegistryClientConfig {
            servers,
            source: None,
            answer_ns_max: 1_000_000_000,
            retry_ns_first: 20_000_000,
            retry_ns_max: 2_000_000_000,
            seed: 1,
            secret: None,
        }
    }
}

/// A client of the registries that run beside the meta servers; see [`super`].
#[derive(Debug)]
pub struct RegistryClient {
    servers: Vec<Server>,
    source: Option<IpAddr>,
    member: Option<(Gid, NodeRecord)>,
    /// The server that gives the news.
    watched: Option<usize>,
    /// What [`News::MetaServers`] last said.
    told: Vec<MetaServer>,
    told_registered: usize,
    /// Of how many tidings of servers [`News::Refused`] last told.
    told_tidings: u64,
    news: VecDeque<News>,
    /// Without which there are no heartbeats.
    proof: Option<Proof>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    session: Session,
    pipe: Option<Pipe>,
    /// The TCP connection is not made yet.
    connecting: bool,
    /// The engine's round of which the last heartbeat told.
    proven: u64,
}

impl RegistryClient {
    /// A client that connects to all servers at its first [`Registry::poll`].
    pub fn new(config: RegistryClientConfig, now: Time) -> RegistryClient {
        let server = |(index, address): (usize, &SocketAddr)| {
            let seed = config.seed.wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let backoff = Backoff::new(config.retry_ns_first, config.retry_ns_max, seed);
            let session = Session::new(backoff, config.answer_ns_max, config.secret.clone(), now);
            Server { address: *address, session, pipe: None, connecting: false, proven: 0 }
        };
        RegistryClient {
            servers: config.servers.iter().enumerate().map(server).collect(),
            source: config.source,
            member: None,
            watched: None,
            told: Vec::new(),
            told_registered: 0,
            told_tidings: 0,
            news: VecDeque::new(),
            proof: None,
        }
    }

    /// From now on a heartbeat is sent only if the engine turned since the last one.
    pub(crate) fn prove_by(&mut self, proof: Proof) {
        self.proof = Some(proof);
    }

    /// When [`Registry::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.servers.iter().map(|server| server.session.poll_timeout()).min()
    }

    /// Watches the first server that is up, and tells what that changes.
    fn settle(&mut self) {
        let first = self.servers.iter().position(|server| server.session.is_up());
        if let Some(first) = first
            && self.watched != Some(first)
        {
            if let Some(before) = self.watched {
                self.servers[before].session.watch(false);
            }
            self.watched = Some(first);
        }
        if let Some(watched) = self.watched {
            // It may have come back: then it must be asked anew.
            self.servers[watched].session.watch(true);
        }
        // Those that answer come first; another may still serve READs.
        let known = |up: bool| {
            let servers = self.servers.iter().filter(move |one| one.session.is_up() == up);
            servers.filter_map(|one| one.session.server)
        };
        let servers: Vec<MetaServer> = known(true).chain(known(false)).collect();
        if !servers.is_empty() && servers != self.told {
            self.told.clone_from(&servers);
            self.news.push_back(News::MetaServers(servers));
        }
        let registered = self.servers.iter().filter(|one| one.session.registered).count();
        let changed = registered != self.told_registered;
        if changed {
            self.told_registered = registered;
            self.news.push_back(News::Registered { servers: registered });
        }
        let tidings = self.servers.iter().map(|one| one.session.tidings).sum();
        if tidings != self.told_tidings || changed {
            self.told_tidings = tidings;
            let refusals = self.servers.iter().map(|one| one.session.refusals).sum();
            let refused = |one: &Server| Some((one.address, one.session.refusal.clone()?));
            let servers = self.servers.iter().filter_map(refused).collect();
            self.news.push_back(News::Refused { refusals, servers });
        }
    }
}

impl Registry for RegistryClient {
    fn register(&mut self, gid: Gid, record: NodeRecord) {
        self.member = Some((gid, record));
        for server in self.servers.iter_mut().filter(|server| server.session.is_up()) {
            server.session.register(gid, record);
        }
    }

    fn wait(&mut self, at_most: Duration, wake: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let now = crate::now();
        let due = self.poll_timeout();
        let wait = due.map_or(at_most, |due| at_most.min(Duration::from_nanos(due.ns_since(now))));
        let timeout = Timespec::try_from(wait).unwrap_or_default();
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.servers.len() + 1);
        for server in &self.servers {
            if let Some(pipe) = &server.pipe {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, server.connecting || pipe.wants_to_write());
                fds.push(PollFd::new(pipe, flags));
            }
        }
        if let Some(wake) = wake {
            fds.push(PollFd::from_borrowed_fd(wake, PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&mut self, now: Time) {
        for index in 0..self.servers.len() {
            let is_watched = self.watched == Some(index);
            let server = &mut self.servers[index];
            let proven = &mut server.proven;
            let turned = || self.proof.as_ref().is_none_or(|proof| proof.turned_since(proven));
            let step = server.session.poll(now, turned);
            let driven =
                server.drive(step, now, self.source, self.member, &mut self.news, is_watched);
            if driven.is_err() {
                server.pipe = None;
                server.session.disconnected(now);
            }
        }
        self.settle();
        for server in &mut self.servers {
            if server.put_out().is_err() {
                server.pipe = None;
                server.session.disconnected(now);
            }
        }
    }

    fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn leave(&mut self) {
        self.member = None;
        for server in &mut self.servers {
            server.session.leave();
            // If it does not arrive, the time to live does it.
            let _ = server.put_out();
        }
        let until = Instant::now() + FAREWELL;
        for server in self.servers.iter_mut().filter(|server| !server.connecting) {
            if let Some(pipe) = server.pipe.take() {
                pipe.finish(until);
            }
        }
    }
}

impl Server {
    /// One round of a server; an error ends its connection.
    fn drive(
        &mut self,
        step: Option<Step>,
        now: Time,
        source: Option<IpAddr>,
        member: Option<(Gid, NodeRecord)>,
        news: &mut VecDeque<News>,
        is_watched: bool,
    ) -> Result<(), Ended> {
        match step {
            Some(Step::Connect) => {
                match Pipe::connect(self.address, source, OUTBOX_BYTES_MAX) {
                    Ok(pipe) => self.pipe = Some(pipe),
                    Err(error) => return Err(self.unreached(&error)),
                }
                self.connecting = true;
                self.session.greet(nonce().map_err(|_| Ended::Gone)?);
            }
            Some(Step::Disconnect) => return Err(Ended::Gone),
            None => {}
        }
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        if self.connecting {
            // Until then nothing is read: it would fail.
            let mut fds = [PollFd::new(&*pipe, PollFlags::OUT)];
            let ready = poll(&mut fds, Some(&Timespec::default())).map_err(|_| Ended::Gone)?;
            if ready == 0 {
                return Ok(());
            }
            if let Err(error) = pipe.connected() {
                return Err(self.unreached(&error));
            }
            self.connecting = false;
        }
        pipe.receive()?;
        loop {
            let frame = match pipe.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(Ended::Nonsense(error)) => {
                    self.session.refuse(unheard(&error));
                    return Err(Ended::Nonsense(error));
                }
                Err(ended) => return Err(ended),
            };
            let was_up = self.session.is_up();
            let told = self.session.handle(frame, now).map_err(|()| Ended::Gone)?;
            if let Some(seals) = self.session.take_seals() {
                // What was said before has left: the server answered it.
                pipe.seal(seals);
            }
            if !was_up
                && self.session.is_up()
                && let Some((gid, record)) = member
            {
                self.session.register(gid, record);
            }
            if is_watched && let Some(frame) = told {
                news.extend(News::from_frame(frame));
            }
        }
    }

    /// There is no connection, for what the system said.
    fn unreached(&mut self, error: &io::Error) -> Ended {
        self.session.unreached(format!("it cannot be reached: {error}"));
        Ended::Gone
    }

    fn put_out(&mut self) -> Result<(), Ended> {
        if self.connecting {
            return Ok(());
        }
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        while let Some(frame) = self.session.poll_output() {
            pipe.send(&frame)?;
        }
        pipe.flush()
    }
}

/// Why what a server said ends its connection.
fn unheard(error: &FrameError) -> String {
    match error {
        FrameError::Seal => "what the registry says proves no knowledge of the cluster's secret: \
                             `registry.secret_file` must have the same content at all nodes, \
                             unless it is an impostor"
            .to_string(),
        error => format!("what answers there is no registry: {error}"),
    }
}

impl News {
    fn from_frame(frame: Frame) -> Option<News> {
        match frame {
            Frame::Node { gid, record } => Some(News::Node { gid, record }),
            Frame::ListBegin => Some(News::ListBegin),
            Frame::ListEnd { complete } => Some(News::ListEnd { complete }),
            _ => None,
        }
    }
}
