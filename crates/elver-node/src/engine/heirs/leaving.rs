//! Sessions that children gave back, until nobody has anything of them.

use std::os::fd::OwnedFd;

use elver_core::ClientId;
use elver_verbs::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::account::Account;

/// How long after the first look whether a process has ended comes the second, in nanoseconds; each further one after twice
/// as long. One that ends closes its session a moment before.
const LOOK_NS: u64 = 20_000;
/// The longest time that this becomes.
const LOOK_NS_MAX: u64 = 1_000_000_000;

/// An heir whose session has ended. The child that had it may live on, with its memory mapped: so nobody else gets that before
/// the child has ended, too.
pub(super) struct Leaving {
    place: (u32, u32),
    client: ClientId,
    account: Account,
    /// The child, until it is known to have ended.
    process: Option<OwnedFd>,
    look_at: Time,
    wait_ns: u64,
}

impl Leaving {
    pub(super) fn new(
        place: (u32, u32),
        client: ClientId,
        (account, process): (Account, Option<OwnedFd>),
        now: Time,
    ) -> Leaving {
        Leaving { place, client, account, process, look_at: now, wait_ns: LOOK_NS }
    }

    /// Its set, and which of that.
    pub(super) fn place(&self) -> (u32, u32) {
        self.place
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    /// Whose set it is.
    pub(super) fn account(&self) -> Account {
        self.account
    }

    /// When it is looked next whether its process has ended; none if that is known.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.process.as_ref().map(|_| self.look_at)
    }

    /// Whether its process has ended.
    pub(super) fn has_ended(&mut self, now: Time) -> bool {
        let Some(process) = &self.process else { return true };
        if now < self.look_at {
            return false;
        }
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // What cannot be asked is not taken for ended.
        if poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)) == Ok(1) {
            self.process = None;
            return true;
        }
        self.look_at = now.saturating_add_ns(self.wait_ns);
        self.wait_ns = LOOK_NS_MAX.min(2 * self.wait_ns);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Command, Stdio};

    const USER: Account = Account { uid: 1_001, space: 0, is_root: false };

    #[test]
    fn it_is_looked_ever_more_rarely_whether_a_process_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let client = ClientId(1);
        let mut leaving = Leaving::new((2, 3), client, (USER, Some(process)), Time(5));
        let mut waits = Vec::new();
        for _ in 0..20 {
            let now = leaving.look_at().unwrap();
            assert!(!leaving.has_ended(now));
            waits.push(leaving.look_at().unwrap().ns_since(now));
        }
        let doubled: Vec<_> = (0..20).map(|n| (LOOK_NS << n).min(LOOK_NS_MAX)).collect();
        assert_eq!(waits, doubled);
        drop(child.stdin.take());
        child.wait().unwrap();
        let due = leaving.look_at().unwrap();
        assert!(!leaving.has_ended(Time(due.0 - 1)), "it is not looked before");
        assert!(leaving.has_ended(due) && leaving.look_at().is_none());
        let mut unseen = Leaving::new((2, 3), client, (USER, None), Time(5));
        assert!(unseen.has_ended(Time(5)));
    }
}
