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
use super::members::{Members, NodeTable, RegistryConfig, RegistryCounters};
use super::output::{ConnectionId, Output};
use super::pipe::{Ended, Pipe};
use super::seal::Nonce;

/// Events that are taken at a turn.
const EVENTS_MAX: usize = 256;
/// Connections that are accepted at a turn.
const ACCEPTS_MAX: usize = 64;
/// Bytes that may wait for a client to take them.
const OUTBOX_BYTES_MAX: usize = 256 * 1024;
/// Lists and news go on while fewer wait.
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
        self.look_around(Timespec::try_from(wait).unwrap_or_default())
    }

    fn look_around(&mut self, timeout: Timespec) -> io::Result<()> {
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
        self.take_ready(now);
        // What came counts before what did not, and after a time in which this thread stood still that is
        // more than a turn takes.
        let mut turns = self.pipes.len() / EVENTS_MAX + 1;
        while turns > 0
            && self.members.poll_timeout().is_some_and(|due| due <= now)
            && self.look_around(Timespec::default()).is_ok()
            && !self.ready.is_empty()
        {
            self.take_ready(now);
            turns -= 1;
        }
        self.members.handle_timeout(now);
        self.put_out();
        // What a client does not take now, it is told when its socket has room.
        let takes = |pipes: &BTreeMap<ConnectionId, Pipe>, id| {
            pipes.get(&id).is_some_and(|pipe| pipe.outbox_bytes() < LIST_BYTES)
        };
        while self.members.inform(now, |id| takes(&self.pipes, id)) {
            self.put_out();
        }
    }

    fn take_ready(&mut self, now: Time) {
        for token in std::mem::take(&mut self.ready) {
            match token {
                LISTENER => self.accept(now),
                WAKE => {}
                id => self.serve(ConnectionId(id), now),
            }
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    use elver_core::{MetaServer, NodeRecord};
    use elver_verbs::Gid;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    use super::super::frame::Frame;
    use super::super::samples::{meta_server, record};
    use super::*;

    struct Table;

    impl NodeTable for Table {
        fn server(&self) -> MetaServer {
            meta_server(1)
        }

        fn put(&mut self, _: Gid, _: NodeRecord) -> Result<(), String> {
            Ok(())
        }

        fn remove(&mut self, _: Gid) {}
    }

    /// All but 256 of them were taken for dead.
    #[test]
    fn nodes_that_spoke_while_the_registry_stood_still_are_alive() {
        const NODES: u32 = EVENTS_MAX as u32 + 50;
        const TTL_NS: u64 = 1_000_000;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let config = RegistryConfig {
            ttl_ns: TTL_NS,
            connections_per_address: NODES,
            verify_source: false,
            ..RegistryConfig::default()
        };
        let start = Time(0);
        let mut server = RegistryServer::new(listener, config, Table, wake.as_fd(), start).unwrap();
        let address = server.address().unwrap();
        let say = |mut stream: &TcpStream, frame: Frame| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes, None);
            stream.write_all(&bytes).unwrap();
        };
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let stream = TcpStream::connect(address).unwrap();
            say(&stream, Frame::Hello { nonce: [0; 32] });
            let gid = Gid::from(Ipv4Addr::from(0x0a00_0000 + n));
            say(&stream, Frame::Register { gid, record: record(n) });
            nodes.push(stream);
            while server.counters().registered <= u64::from(n) {
                server.wait(start, Duration::from_secs(20)).unwrap();
                server.poll(start);
            }
        }
        for node in &nodes {
            say(node, Frame::Heartbeat);
        }
        for pipe in server.pipes.values() {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            let mut fds = [PollFd::new(pipe, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1);
        }
        let late = Time(2 * TTL_NS);
        server.wait(late, Duration::ZERO).unwrap();
        server.poll(late);
        assert_eq!((server.counters().expired, server.pipes.len()), (0, NODES as usize));
        // And who says nothing is not.
        server.poll(Time(4 * TTL_NS));
        assert_eq!((server.counters().expired, server.pipes.len()), (NODES.into(), 0));
    }
}
