use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use elver_verbs::Time;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::time::Timespec;

use super::frame::FrameError;
use super::members::{ConnectionId, Members, NodeTable, Output, RegistryConfig, RegistryCounters};
use super::pipe::{Ended, Pipe};
use super::seal::Nonce;

/// Events that are taken at a turn.
const EVENTS_MAX: usize = 256;
/// Connections that are accepted at a turn.
const ACCEPTS_MAX: usize = 64;
/// Bytes that may wait for a client to take them.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;
/// A list goes on while fewer wait.
const LIST_BYTES: usize = 32 * 1024;
/// Time for which the listener is not looked at when there was no descriptor for a connection: it is
/// others that hold them, and nobody tells when they have done.
const DEAF_NS: u64 = 100_000_000;
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// The number of the first connection.
const CONNECTIONS: u64 = 2;

/// The registry that runs beside a meta server, over TCP.
///
/// A thread of its own calls [`RegistryServer::wait`] and [`RegistryServer::poll`] by turns.
/// Nothing that a client sends harms it: frames, connections and what waits for a client are
/// bounded, and a client that breaks the rules is cut off.
pub struct RegistryServer<T> {
    listener: TcpListener,
    epoll: rustix::fd::OwnedFd,
    /// What [`RegistryServer::wait`] found ready.
    ready: Vec<u64>,
    members: Members<T>,
    pipes: BTreeMap<ConnectionId, Pipe>,
    next_id: u64,
    /// When the listener is looked at again, since the process had no descriptor left.
    deaf_until: Option<Time>,
}

impl<T: NodeTable> RegistryServer<T> {
    /// Serves on a listener. [`RegistryServer::wait`] also returns when `wake` is readable.
    ///
    /// # Errors
    ///
    /// What the system said: there is no descriptor left.
    pub fn new(
        listener: TcpListener,
        config: RegistryConfig,
        table: T,
        wake: BorrowedFd<'_>,
        now: Time,
    ) -> io::Result<RegistryServer<T>> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let input = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), input)?;
        epoll::add(&epoll, wake, epoll::EventData::new_u64(WAKE), input)?;
        Ok(RegistryServer {
            listener,
            epoll,
            ready: Vec::with_capacity(EVENTS_MAX),
            members: Members::new(config, table, now),
            pipes: BTreeMap::new(),
            next_id: CONNECTIONS,
            deaf_until: None,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// What the system said of a listener that has none.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What it has seen.
    pub fn counters(&self) -> &RegistryCounters {
        &self.members.counters
    }

    /// Waits until there is something to do, at most so long.
    ///
    /// # Errors
    ///
    /// What the system said, where it is no signal.
    pub fn wait(&mut self, now: Time, at_most: Duration) -> io::Result<()> {
        let due = self.members.poll_timeout().into_iter().chain(self.deaf_until).min();
        let wait = due.map_or(at_most, |due| at_most.min(Duration::from_nanos(due.ns_since(now))));
        let timeout = Timespec::try_from(wait).unwrap_or_default();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.ready.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) => {
                self.ready.extend(events.iter().map(|event| event.data.u64()));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what there is to do.
    pub fn poll(&mut self, now: Time) {
        if self.deaf_until.is_some_and(|until| until <= now) {
            self.listen();
        }
        for token in std::mem::take(&mut self.ready) {
            match token {
                LISTENER => self.accept(now),
                WAKE => {}
                id => self.serve(ConnectionId(id), now),
            }
        }
        // What came counts before what did not.
        self.members.handle_timeout(now);
        self.put_out();
        // What a client does not take now, it is told when its socket has room.
        let takes = |pipes: &BTreeMap<ConnectionId, Pipe>, id| {
            pipes.get(&id).is_some_and(|pipe| pipe.outbox_bytes() < LIST_BYTES)
        };
        while self.members.list(now, |id| takes(&self.pipes, id)) {
            self.put_out();
        }
    }

    fn accept(&mut self, now: Time) {
        for _ in 0..ACCEPTS_MAX {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Who connected is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // Out of descriptors: those who wait are served when there are some again.
                Err(_) => return self.be_deaf(now),
            };
            let id = ConnectionId(self.next_id);
            self.next_id += 1;
            let Ok(pipe) = Pipe::new(stream, OUTBOX_BYTES_MAX) else { continue };
            let Ok(nonce) = nonce() else { continue };
            let data = epoll::EventData::new_u64(id.0);
            if epoll::add(&self.epoll, &pipe, data, epoll::EventFlags::IN).is_err() {
                continue;
            }
            if self.members.open(id, from.ip(), nonce, now) {
                self.pipes.insert(id, pipe);
            }
        }
    }

    fn be_deaf(&mut self, now: Time) {
        let data = epoll::EventData::new_u64(LISTENER);
        let none = epoll::EventFlags::empty();
        if epoll::modify(&self.epoll, &self.listener, data, none).is_ok() {
            self.deaf_until = Some(now.saturating_add_ns(DEAF_NS));
        }
    }

    fn listen(&mut self) {
        let data = epoll::EventData::new_u64(LISTENER);
        let input = epoll::EventFlags::IN;
        if self.deaf_until.is_some()
            && epoll::modify(&self.epoll, &self.listener, data, input).is_ok()
        {
            self.deaf_until = None;
        }
    }

    fn serve(&mut self, id: ConnectionId, now: Time) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        let mut result = pipe.receive();
        while result.is_ok() {
            match pipe.next() {
                Ok(Some(frame)) => {
                    self.members.handle(id, frame, now);
                    if let Some(seals) = self.members.take_seals(id) {
                        // Also what has come already must be sealed.
                        pipe.seal(seals);
                    }
                }
                Ok(None) => break,
                Err(ended) => result = Err(ended),
            }
        }
        let result = result.and_then(|()| pipe.flush());
        match result {
            Ok(()) => self.look(id),
            Err(Ended::Nonsense(FrameError::Seal)) => self.members.unproven(id),
            Err(Ended::Nonsense(_)) => self.members.violates(id),
            Err(Ended::Gone | Ended::Overflow) => self.close(id),
        }
    }

    /// Sends what the members have to say.
    fn put_out(&mut self) {
        let mut touched = Vec::new();
        while let Some(output) = self.members.poll_output() {
            match output {
                Output::Close(id) => {
                    // What was said before, the reason of a refusal, goes out first.
                    if let Some(pipe) = self.pipes.get_mut(&id) {
                        let _ = pipe.flush();
                    }
                    self.close(id);
                }
                Output::Send(id, frame) => {
                    let Some(pipe) = self.pipes.get_mut(&id) else { continue };
                    if !pipe.wants_to_write() {
                        touched.push(id);
                    }
                    if pipe.send(&frame).is_err() {
                        self.members.counters.overflowed += 1;
                        self.close(id);
                    }
                }
            }
        }
        for id in touched {
            match self.pipes.get_mut(&id).map(Pipe::flush) {
                Some(Ok(())) => self.look(id),
                Some(Err(_)) => self.close(id),
                None => {}
            }
        }
    }

    /// Waits for room in the socket, or no longer.
    fn look(&mut self, id: ConnectionId) {
        let Some(pipe) = self.pipes.get(&id) else { return };
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, pipe.wants_to_write());
        if epoll::modify(&self.epoll, pipe, epoll::EventData::new_u64(id.0), flags).is_err() {
            self.close(id);
        }
    }

    fn close(&mut self, id: ConnectionId) {
        if let Some(pipe) = self.pipes.remove(&id) {
            // Closing takes it out of the epoll anyway.
            let _ = epoll::delete(&self.epoll, pipe.as_fd());
            self.members.closed(id);
            self.listen();
        }
    }
}

/// A number that nobody can foresee, from the operating system's generator.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    let given = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    if given < nonce.len() {
        // A signal came in between.
        return Err(io::ErrorKind::Interrupted.into());
    }
    Ok(nonce)
}
