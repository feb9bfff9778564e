//! Sockets of sessions that have ended, until they may be closed and count for nobody.
//!
//! A file that the node sent is the node's own in the system's books until the other end has taken it, or has closed, and of
//! these a user has so many in all. So a socket in which something is unread is shut, and kept: it counts on its account.
//!
//! Where the system does not keep files from being sent to the node (before Linux 6.16), closing a socket closes those that
//! nobody read, and that takes as long as their owner likes. A thread of the account's does it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

use elver_portal::Socket;
use elver_verbs::Time;
use rustc_hash::FxHashMap;

use super::account::Account;

#[cfg(test)]
mod tests;

/// Sockets that are looked at in a round of tidying.
const LOOKS_MAX: usize = 64;
/// Accounts whose sockets are closed at once by threads of their own.
const THREADS_MAX: usize = 64;
/// A thread that had nothing to close for so long ends.
const IDLE_NS: u64 = 1_000_000_000;

/// Sockets that are still to be closed.
#[derive(Default)]
pub(super) struct Partings {
    kept: VecDeque<Kept>,
    /// These by account.
    counts: FxHashMap<Account, u32>,
    closers: FxHashMap<Account, Closer>,
}

struct Kept {
    account: Account,
    socket: Socket,
}

/// A thread that closes an account's sockets.
struct Closer {
    sockets: Sender<Socket>,
    /// Those that it has not closed.
    left: Arc<AtomicU32>,
    busy_at: Time,
}

impl Partings {
    /// How many there are, but for those that are being closed.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// How many count on an account.
    pub(super) fn of(&self, account: Account) -> u32 {
        let kept = self.counts.get(&account).copied().unwrap_or(0);
        let closing = self.closers.get(&account);
        kept.saturating_add(closing.map_or(0, |one| one.left.load(Ordering::Relaxed)))
    }

    /// Parts with the socket of a session that may have been sent files.
    pub(super) fn part(&mut self, account: Account, socket: Socket, now: Time) {
        if socket.is_unread() {
            socket.shut();
            self.keep(account, socket);
        } else {
            self.close(account, socket, now);
        }
    }

    /// Closes a socket over which no file was sent.
    pub(super) fn close(&mut self, account: Account, socket: Socket, now: Time) {
        if !socket.may_hold_files() {
            return;
        }
        socket.shut();
        if let Err(socket) = self.pass_on(account, socket, now) {
            self.keep(account, socket);
        }
    }

    /// Looks at some of those that are kept, and ends threads that have nothing to do.
    pub(super) fn tend(&mut self, now: Time) {
        for _ in 0..self.kept.len().min(LOOKS_MAX) {
            let Some(Kept { account, socket }) = self.kept.pop_front() else { break };
            let kept = if socket.is_unread() {
                Some(socket)
            } else if socket.may_hold_files() {
                self.pass_on(account, socket, now).err()
            } else {
                None
            };
            match kept {
                Some(socket) => self.kept.push_back(Kept { account, socket }),
                None => self.forget(account),
            }
        }
        self.closers.retain(|_, closer| {
            closer.left.load(Ordering::Relaxed) > 0 || now.ns_since(closer.busy_at) < IDLE_NS
        });
    }

    fn keep(&mut self, account: Account, socket: Socket) {
        *self.counts.entry(account).or_default() += 1;
        self.kept.push_back(Kept { account, socket });
    }

    fn forget(&mut self, account: Account) {
        if let Some(count) = self.counts.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&account);
            }
        }
    }

    /// Gives a socket to the account's thread; back, if it can have none now.
    fn pass_on(&mut self, account: Account, socket: Socket, now: Time) -> Result<(), Socket> {
        if !self.closers.contains_key(&account) {
            let made = if self.closers.len() < THREADS_MAX { Closer::start(now) } else { None };
            let Some(made) = made else { return Err(socket) };
            self.closers.insert(account, made);
        }
        let Some(closer) = self.closers.get_mut(&account) else { return Err(socket) };
        closer.busy_at = now;
        closer.left.fetch_add(1, Ordering::Relaxed);
        closer.sockets.send(socket).map_err(|unsent| unsent.0)
    }
}

impl Closer {
    /// Nobody waits for the thread: it may stand in a close for longer than the node is there.
    fn start(now: Time) -> Option<Closer> {
        let (sockets, given) = channel();
        let left = Arc::new(AtomicU32::new(0));
        let open = left.clone();
        let work = move || {
            for socket in given {
                drop::<Socket>(socket);
                open.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("elver-close".into()).spawn(work).ok()?;
        Some(Closer { sockets, left, busy_at: now })
    }
}
