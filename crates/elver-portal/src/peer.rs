//! Who is at the other end of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Who is at the other end, as the system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

pub(crate) fn of(socket: impl AsFd) -> io::Result<Peer> {
    let cred = rustix::net::sockopt::socket_peercred(&socket)?;
    Ok(Peer {
        pid: cred.pid.as_raw_nonzero().get(),
        uid: cred.uid.as_raw(),
        gid: cred.gid.as_raw(),
    })
}

/// A handle of the process that connected. Linux 6.5 and later give it exactly; before, it is made
/// from the number, which another process may have if the one that connected has ended.
pub(crate) fn pidfd_of(socket: impl AsFd) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` is valid for the `len` bytes that the kernel may write.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result == 0 && fd >= 0 {
        // SAFETY: the kernel just made the descriptor for us.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let pid = Pid::from_raw(of(socket)?.pid).ok_or(rustix::io::Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
