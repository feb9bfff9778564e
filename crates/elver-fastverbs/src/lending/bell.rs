//! The bell by which a child wakes the lender's thread: two sockets, so that a child which has closed what it inherited, and
//! whose number for it is another file's by now, is told so, and writes nothing to that.

use std::io;
use std::mem::MaybeUninit;

/// Rings that are taken at once: more than a socket holds.
const RINGS_MAX: usize = 1024;

/// Both ends, which stay open until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Bell {
    ring: i32,
    hear: i32,
    /// The device and inode of the end that is rung.
    identity: (u64, u64),
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let [ring, hear] = ends;
        let identity = identity(ring).ok_or_else(io::Error::last_os_error)?;
        Ok(Bell { ring, hear, identity })
    }

    /// What the owner waits at.
    pub(crate) fn hear(&self) -> i32 {
        self.hear
    }

    /// Whether this process still has it.
    pub(crate) fn is_there(&self) -> bool {
        identity(self.ring) == Some(self.identity)
    }

    /// Wakes the owner.
    ///
    /// # Errors
    /// EBADF: this process has closed it.
    pub(crate) fn ring(&self) -> Result<(), i32> {
        if !self.is_there() {
            return Err(libc::EBADF);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a byte of a constant's. What fails is a socket that is full, which has been rung.
        unsafe { libc::send(self.ring, [0_u8].as_ptr().cast(), 1, flags) };
        Ok(())
    }

    /// Takes all rings; whether there were any.
    pub(crate) fn drain(&self) -> bool {
        let mut byte = 0_u8;
        // SAFETY: a byte of a local's.
        let mut take = || unsafe { libc::recv(self.hear, (&raw mut byte).cast(), 1, 0) } == 1;
        (0..RINGS_MAX).take_while(|_| take()).count() != 0
    }
}

fn identity(fd: i32) -> Option<(u64, u64)> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills it if it succeeds, and only then it is read.
    unsafe {
        (libc::fstat(fd, about.as_mut_ptr()) == 0)
            .then(|| (about.assume_init_ref().st_dev, about.assume_init_ref().st_ino))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn it_is_heard_however_often_it_is_rung() {
        let bell = Bell::new().unwrap();
        assert!(!bell.drain());
        for _ in 0..RINGS_MAX {
            bell.ring().unwrap();
        }
        assert!(bell.drain());
        assert!(!bell.drain());
    }

    #[test]
    fn another_file_of_its_number_is_not_written_to() {
        let bell = Bell::new().unwrap();
        let file = tempfile::tempfile().unwrap();
        // SAFETY: the descriptor is the bell's own, of which nobody else knows.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), bell.ring) }, bell.ring);
        assert_eq!((bell.ring(), bell.is_there()), (Err(libc::EBADF), false));
        assert_eq!(file.metadata().unwrap().len(), 0);
        // Another socket is none either.
        let other = Bell::new().unwrap();
        // SAFETY: likewise.
        assert_eq!(unsafe { libc::dup2(other.ring, bell.ring) }, bell.ring);
        assert_eq!(bell.ring(), Err(libc::EBADF));
        assert!(!other.drain());
    }
}
