//! Where processes come in: the listening socket, the epoll that watches all sockets, and shared
//! memory that was made ready for the next ones.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use elver_portal::memfd::Pages;
use elver_portal::{ARENA_BYTES, Layout, Listener, NodeEnd, Socket};
use elver_soft::SoftMemory;
use elver_verbs::Time;
use rustix::event::epoll;
use rustix::time::Timespec;

use super::room::{self, Backing};

/// What an epoll event is of, if it is not a session.
pub(super) const LISTENER: u64 = u64::MAX;
pub(super) const INLET: u64 = u64::MAX - 1;
/// In a session's token: the event is of its process. No session's place has such a number.
pub(super) const PROCESS: u64 = 1 << 31;

/// Events that are taken at a turn.
pub(super) const EVENTS_MAX: usize = 32;

/// After so long memory for a session is looked for again.
const REFILL_AGAIN_NS: u64 = 1_000_000_000;

pub(super) struct Door {
    listener: Option<Listener>,
    epoll: OwnedFd,
    spares: Vec<Spare>,
    spares_max: usize,
    /// There was no memory for one: until then none is made.
    refill_at: Time,
    /// The listener is not watched, since the process has no descriptor left.
    paused: bool,
}

/// Shared memory for a session that has none yet.
pub(super) struct Spare {
    pub(super) file: Backing,
    pub(super) end: NodeEnd,
    pub(super) arena: SoftMemory,
}

impl Door {
    pub(super) fn new(
        listener: Option<Listener>,
        inlet: BorrowedFd<'_>,
        spares_max: usize,
    ) -> io::Result<Door> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let input = epoll::EventFlags::IN;
        if let Some(listener) = &listener {
            epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), input)?;
        }
        epoll::add(&epoll, inlet, epoll::EventData::new_u64(INLET), input)?;
        let mut door = Door {
            listener,
            epoll,
            spares: Vec::new(),
            spares_max,
            refill_at: Time::ZERO,
            paused: false,
        };
        while door.wants_refill(Time::ZERO) {
            door.spares.push(Spare::make(Layout::default())?);
        }
        Ok(door)
    }

    /// Makes one session's memory ready. Without memory for it there will be fewer for a time.
    pub(super) fn refill(&mut self, now: Time) {
        self.keep(Spare::make(Layout::default()), now);
    }

    fn keep(&mut self, made: io::Result<Spare>, now: Time) {
        match made {
            Ok(spare) => self.spares.push(spare),
            Err(_) => self.refill_at = now.saturating_add_ns(REFILL_AGAIN_NS),
        }
    }

    /// Whether [`Door::refill`] has something to do.
    pub(super) fn wants_refill(&self, now: Time) -> bool {
        self.spares.len() < self.spares_max && now >= self.refill_at
    }

    /// Shared memory of a layout: ready made if it is the usual one.
    pub(super) fn memory(&mut self, layout: Layout) -> io::Result<Spare> {
        if layout == Layout::default()
            && let Some(spare) = self.spares.pop()
        {
            return Ok(spare);
        }
        Spare::make(layout)
    }

    /// Whether processes may come through a socket that listens.
    pub(super) fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// Takes a process that waits.
    pub(super) fn accept(&self) -> io::Result<Option<Socket>> {
        self.listener.as_ref().map_or(Ok(None), Listener::accept)
    }

    /// Lets processes wait until [`Door::resume`].
    pub(super) fn pause(&mut self) {
        self.watch_listener(false);
    }

    /// Lets processes in again.
    pub(super) fn resume(&mut self) {
        if self.paused {
            self.watch_listener(true);
        }
    }

    /// Whether processes are let wait.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    fn watch_listener(&mut self, on: bool) {
        let Some(listener) = &self.listener else { return };
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, listener, data, flags).is_ok() {
            self.paused = !on;
        }
    }

    /// Watches a session's socket.
    pub(super) fn watch(&self, socket: &Socket, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// Watches for the end of a session's process: another, which it forked, may hold its socket.
    pub(super) fn watch_process(&self, pidfd: &OwnedFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token | PROCESS);
        Ok(epoll::add(&self.epoll, pidfd, data, epoll::EventFlags::IN)?)
    }

    /// Watches a session's socket and its process no more. The end of the session's own handles would not do it: what
    /// is watched is watched for as long as anybody has it open, and nobody could name it then.
    pub(super) fn unwatch(&self, socket: &Socket, process: Option<&OwnedFd>) {
        // What is not watched is no failure.
        let _ = epoll::delete(&self.epoll, socket);
        if let Some(process) = process {
            let _ = epoll::delete(&self.epoll, process);
        }
    }

    /// What is ready, without waiting. Returns how many tokens it wrote.
    pub(super) fn ready(&self, tokens: &mut [u64; EVENTS_MAX]) -> usize {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()))
        else {
            // Interrupted: what is ready now is ready at the next look.
            return 0;
        };
        for (token, event) in tokens.iter_mut().zip(ready.iter()) {
            *token = event.data.u64();
        }
        ready.len()
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Spare {
    fn make(layout: Layout) -> io::Result<Spare> {
        let file = room::memfd("elver-portal", layout.bytes() as u64, Pages::Small, None)?;
        let end = NodeEnd::map(&file, layout)?;
        let arena = SoftMemory::map_file_from(&file, layout.arena_at() as u64, ARENA_BYTES);
        Ok(Spare { file, end, arena: arena.map_err(io::Error::other)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::notice::channel;
    use super::*;

    /// One moment without memory, or descriptors, and each process had to wait for its session's for good.
    #[test]
    fn spare_sessions_that_could_not_be_made_are_made_later() {
        let (_outlet, inlet) = channel().unwrap();
        let mut door = Door::new(None, inlet.as_fd(), 2).unwrap();
        let now = Time(1 << 40);
        assert!(!door.wants_refill(now));
        door.memory(Layout::default()).unwrap();
        assert!(door.wants_refill(now));
        door.keep(Err(io::ErrorKind::OutOfMemory.into()), now);
        let later = now.saturating_add_ns(REFILL_AGAIN_NS);
        assert!(!door.wants_refill(Time(later.0 - 1)) && door.wants_refill(later));
        door.refill(later);
        assert_eq!((door.spares.len(), door.wants_refill(later)), (2, false));
    }
}
