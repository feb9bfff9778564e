//! Where processes come in: the listening socket, the epoll that watches all sockets, and shared
//! memory that was made ready for the next ones ([`Spares`]).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use elver_portal::{Listener, Socket};
use rustix::event::epoll;
use rustix::time::Timespec;

use super::spares::Spares;

/// What an epoll event is of, if it is not a session.
pub(super) const LISTENER: u64 = u64::MAX;
pub(super) const INLET: u64 = u64::MAX - 1;
/// In a session's token: the event is of its process. No session's place has such a number.
pub(super) const PROCESS: u64 = 1 << 31;

/// Events that are taken at a turn.
pub(super) const EVENTS_MAX: usize = 32;

pub(super) struct Door {
    listener: Option<Listener>,
    epoll: OwnedFd,
    pub(super) spares: Spares,
    /// The listener is not watched, since the process has no descriptor left.
    paused: bool,
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
        let spares = Spares::new(spares_max)?;
        Ok(Door { listener, epoll, spares, paused: false })
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
