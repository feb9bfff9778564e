//! Which process a number means: numbers go to other processes when theirs have ended.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use elver_verbs::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long a process that was there is believed to be, and to run the same program. A number is not given again before all others were, which takes
/// any machine longer.
pub(crate) const BELIEVED_NS: u64 = 1_000_000;
/// How often a signal may come between. Each is handled before the next look.
const INTERRUPTIONS: u32 = 100;
/// `SO_PEERPIDFD`, of Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// PID and user of who has the other end; a PID that this namespace does not have is 0.
pub(crate) fn credentials(socket: &OwnedFd) -> Result<(libc::pid_t, libc::uid_t), Errno> {
    let mut told = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    let to = (&raw mut told).cast();
    // SAFETY: it writes `size` bytes at most, and all there are numbers of any value.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut size) } {
        0 => Ok((told.pid, told.uid)),
        _ => Err(Errno::NOTCONN),
    }
}

/// A process.
pub(crate) struct Identity {
    pid: Pid,
    /// Readable when it has ended.
    pub(crate) pidfd: OwnedFd,
    /// When it was there for certain.
    seen: AtomicU64,
}

/// The process itself that has the other end of a socket, where the kernel tells more than its number.
fn of_socket(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut fd: RawFd = -1;
    let mut size = size_of::<RawFd>() as libc::socklen_t;
    let (level, to) = (libc::SOL_SOCKET, (&raw mut fd).cast());
    // SAFETY: it writes `size` bytes at most, a number.
    let told =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, SO_PEERPIDFD, to, &raw mut size) };
    // SAFETY: the kernel has just opened it for this process.
    (told == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Who has the other end of a socket, by the kernel's word or else by this number; readable when he has ended.
pub(crate) fn pidfd_of(socket: &OwnedFd, pid: Option<Pid>) -> Result<OwnedFd, Errno> {
    match (of_socket(socket), pid) {
        (Some(pidfd), _) => Ok(pidfd),
        (None, Some(pid)) => pidfd_open(pid, PidfdFlags::empty()),
        (None, None) => Err(Errno::SRCH),
    }
}

impl Identity {
    /// Of who has the other end of a socket, whose number is this.
    pub(crate) fn of(socket: &OwnedFd, pid: Pid) -> Result<Identity, Errno> {
        Ok(Identity::new(pid, pidfd_of(socket, Some(pid))?))
    }

    fn new(pid: Pid, pidfd: OwnedFd) -> Identity {
        Identity { pid, pidfd, seen: AtomicU64::new(0) }
    }

    /// Its number, if that is still its own, and the process has not hung up a socket, as one does that becomes another
    /// program.
    #[inline]
    pub(crate) fn pid(&self, now: Time, socket: &OwnedFd) -> Option<Pid> {
        let seen = Time(self.seen.load(Ordering::Relaxed));
        (now.ns_since(seen) < BELIEVED_NS || self.look(now, socket)).then_some(self.pid)
    }

    #[cold]
    fn look(&self, now: Time, socket: &OwnedFd) -> bool {
        // What cannot be asked is taken for gone: then packets are used.
        let is_there = self.ended(socket) == Some(false);
        if is_there {
            self.seen.store(now.0, Ordering::Relaxed);
        }
        is_there
    }

    /// Whether it is known to have ended or hung up: who is to wait for it waits until then.
    pub(crate) fn has_ended(&self, socket: &OwnedFd) -> bool {
        self.ended(socket) == Some(true)
    }

    fn ended(&self, socket: &OwnedFd) -> Option<bool> {
        for _ in 0..INTERRUPTIONS {
            let mut ends =
                [PollFd::new(&self.pidfd, PollFlags::IN), PollFd::new(socket, PollFlags::HUP)];
            match poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Ok(count) => return Some(count > 0),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn child() -> (Child, Identity) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, Identity::new(pid, pidfd_open(pid, PidfdFlags::empty()).unwrap()))
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// From when its process is gone another may have the number.
    #[test]
    fn a_number_whose_process_has_ended_is_not_used() {
        let ((mut child, identity), (socket, _other)) = (child(), sockets());
        let start = Time(7 * BELIEVED_NS);
        let at = |ns: u64| identity.pid(start.saturating_add_ns(ns), &socket);
        assert_eq!(at(0), Some(Pid::from_child(&child)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            at(BELIEVED_NS - 1),
            Some(Pid::from_child(&child)),
            "numbers do not come round so fast"
        );
        assert_eq!(at(BELIEVED_NS), None);
        assert_eq!(at(BELIEVED_NS), None, "and it does not come back");
    }

    #[test]
    fn who_lives_is_found_again() {
        let ((mut child, identity), (socket, _other)) = (child(), sockets());
        for round in 1..100 {
            let time = Time(round * BELIEVED_NS);
            assert_eq!(identity.pid(time, &socket), Some(Pid::from_child(&child)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_socket_says_whose_it_is() {
        let (socket, _other) = sockets();
        let own = rustix::process::getpid();
        assert_eq!(Identity::of(&socket, own).unwrap().pid(Time(BELIEVED_NS), &socket), Some(own));
    }
}
