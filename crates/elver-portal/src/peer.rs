//! Who is at the other end of a socket.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::{DupFlags, Errno};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Who is at the other end, as the system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected, unless it runs where this one cannot see it, in another PID
    /// namespace.
    pub pid: Option<Pid>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Who connected the other end of a Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// It is no Unix socket.
pub fn of(socket: impl AsFd) -> io::Result<Peer> {
    let none = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // Not through a type that has no place for 0, which the system gives for a process that it does
    // not show to this one.
    let libc::ucred { pid, uid, gid } = option(socket, libc::SO_PEERCRED, none)?;
    Ok(Peer { pid: Pid::from_raw(pid), uid, gid })
}

/// A handle of the process that connected. Linux 6.5 and later give it exactly; before, it is made
/// from the number, which another process may have if the one that connected has ended.
pub(crate) fn pidfd_of(socket: impl AsFd) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    match option(&socket, SO_PEERPIDFD, -1) {
        // SAFETY: the kernel just made the descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
            let pid = of(socket)?.pid.ok_or(Errno::SRCH)?;
            Ok(pidfd_open(pid, PidfdFlags::empty())?)
        }
        // It has ended, and its number says nothing any more.
        Ok(_) => Err(Errno::SRCH.into()),
        Err(error) => Err(error),
    }
}

/// Has a descriptor stand for what another one does.
pub(crate) fn replace(fd: &OwnedFd, by: impl AsFd) -> io::Result<()> {
    // SAFETY: the copy is not closed, and the descriptor stays open, whatever it stands for.
    let mut copy = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
    Ok(rustix::io::dup3(by, &mut copy, DupFlags::CLOEXEC)?)
}

/// Makes the system refuse files that are sent to this socket; whether it can (Linux 6.16).
pub(crate) fn refuse_files(socket: impl AsFd) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: `no` is valid for its size while the call runs.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

/// Bytes that were sent over a socket and that the other end has not taken, as the system counts them (`SIOCOUTQ`).
///
/// # Errors
/// It is no socket.
pub(crate) fn untaken(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` is valid for the number that the kernel writes.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(bytes.unsigned_abs()) } else { Err(io::Error::last_os_error()) }
}

/// An option of a socket, which is as long as `value`.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` is valid for the `len` bytes that the kernel may write, and the types that
    // this is called with take any.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len)
    };
    if result == 0 && len as usize == size_of::<T>() {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
