//! Files in memory that two processes map: sessions' rings and allocated memory regions.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::numa;

/// What a shared file promises: neither end can make the other fault by changing its size.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Which pages a file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The system's.
    #[default]
    Small,
    /// Huge pages of 2 MB, which the administrator has set aside.
    Huge,
}

/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;

/// Makes a file of `len` zeroed bytes whose size is final. Its memory is set aside at once, so that
/// nobody runs out of it later. With [`Pages::Huge`] `len` must be a multiple of [`HUGE_PAGE`];
/// where too few such pages are free the call fails, and the caller may ask for small ones.
///
/// # Errors
///
/// What the system said: it has no memory, too few huge pages, or the process no descriptor left.
pub fn create(name: &str, len: u64, pages: Pages) -> io::Result<OwnedFd> {
    create_near(name, len, pages, None).map(|(file, _)| file)
}

/// As [`create`], its pages at a NUMA node as long as that one has some left. Also whether the system took that wish, if
/// there is one: there is memory in any case.
///
/// # Errors
///
/// As [`create`].
pub fn create_near(
    name: &str,
    len: u64,
    pages: Pages,
    node: Option<u16>,
) -> io::Result<(OwnedFd, bool)> {
    let mut making = Making::begin(name, len, pages, node)?;
    making.go_on(len)?;
    Ok(making.end())
}

/// A file that is being made, as by [`create_near`]: its size is final, and its memory is set aside piece by piece, since
/// much of it takes long.
#[derive(Debug)]
pub struct Making {
    file: OwnedFd,
    len: u64,
    done: u64,
    /// Where each piece of huge pages is to lie: the system keeps no such wish.
    node: Option<u16>,
    is_near: bool,
}

impl Making {
    /// Makes a file of which nothing is there.
    ///
    /// # Errors
    ///
    /// What the system said: the process has no descriptor left, or files may not be so large.
    pub fn begin(name: &str, len: u64, pages: Pages, node: Option<u16>) -> io::Result<Making> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if pages == Pages::Huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let (node, is_near) = match (pages, node) {
            // Before there are pages, which would stay where they are.
            (Pages::Small, Some(node)) => (None, numa::prefer(file.as_fd(), len, node).is_ok()),
            (_, node) => (node, true),
        };
        Ok(Making { file, len, done: 0, node, is_near })
    }

    /// Sets so many bytes more aside; of huge pages whole ones. How many of all are there by then.
    ///
    /// # Errors
    ///
    /// What the system said: it has no memory, or too few huge pages.
    pub fn go_on(&mut self, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.min(self.len - self.done);
        let file = &self.file;
        let none = rustix::fs::FallocateFlags::empty();
        let make = || rustix::fs::fallocate(file, none, self.done, bytes);
        let (made, is_near) = match self.node {
            Some(node) => numa::preferring(node, make),
            None => (make(), true),
        };
        made?;
        self.done += bytes;
        self.is_near &= is_near;
        Ok(self.done)
    }

    /// Bytes that were set aside.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The file, and whether the system took the wish where its pages lie, if there is one.
    pub fn end(self) -> (OwnedFd, bool) {
        (self.file, self.is_near)
    }
}

impl AsFd for Making {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Lets no other user open a file anew, for whatever: who has been handed one to be read ([`reopen`]) cannot get at one to
/// be written. To be called before anybody else has the file: the system takes its lock, which whoever has it can hold.
///
/// # Errors
///
/// What the system said: the file is another user's.
pub fn close_to_others(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)?)
}

/// The same file, opened to be read only. Takes none of its locks, and waits for nobody.
///
/// # Errors
///
/// What the system said: `/proc` is not there, the file is another user's ([`close_to_others`]), the process has no
/// descriptor left, or, with [`io::ErrorKind::WouldBlock`], somebody who has the file has a lease of it (`F_SETLEASE`).
pub fn reopen(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    // Or it waited for whoever has a lease: 45 s, if that one does not give it up.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Whether a file is of huge pages.
///
/// # Errors
///
/// What the system said of what is no file.
pub fn is_huge(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(fd)?.f_type == libc::HUGETLBFS_MAGIC)
}

/// Checks that a file is at least `len` bytes long and stays so.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] if it is not; what the system said of what has no seals.
pub fn check(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(fd.as_fd())?;
    let size = rustix::fs::fstat(fd.as_fd())?.st_size;
    if !seals.contains(SEALS) || u64::try_from(size).is_ok_and(|size| size < len) {
        return Err(Errno::INVAL.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_size_is_final() {
        let fd = create("test", 8192, Pages::Small).unwrap();
        assert!(check(fd.as_fd(), 8192).is_ok());
        assert!(check(fd.as_fd(), 8193).is_err());
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 16384), Err(Errno::PERM));
    }

    #[test]
    fn what_is_made_piece_by_piece_is_there_as_far_as_it_was_made() {
        let mut making = Making::begin("test", 12_288, Pages::Small, None).unwrap();
        assert!(check(making.as_fd(), 12_288).is_ok());
        for (bytes, all) in [(4_096, 4_096), (1 << 20, 12_288)] {
            assert_eq!(making.go_on(bytes).unwrap(), all);
            let there = rustix::fs::fstat(making.as_fd()).unwrap().st_blocks as u64 * 512;
            assert_eq!(there, all);
        }
        let (file, is_near) = making.end();
        assert!(is_near && check(file.as_fd(), 12_288).is_ok());
    }

    #[test]
    fn one_to_be_read_cannot_be_written() {
        let fd = create("test", 4096, Pages::Small).unwrap();
        assert!(!is_huge(fd.as_fd()).unwrap());
        close_to_others(fd.as_fd()).unwrap();
        let read = reopen(fd.as_fd()).unwrap();
        assert!(check(read.as_fd(), 4096).is_ok());
        assert_eq!(rustix::io::pwrite(&read, &[1], 0), Err(Errno::BADF));
        assert_eq!(rustix::io::pwrite(&fd, &[1], 0), Ok(1));
        let mut byte = [0];
        assert_eq!((rustix::io::pread(&read, &mut byte, 0), byte), (Ok(1), [1]));
    }

    /// Whoever had a lease of it kept the node waiting for 45 s.
    #[test]
    fn who_has_a_lease_is_not_waited_for() {
        let given = std::fs::read_to_string("/proc/sys/fs/leases-enable").unwrap_or_default();
        if given.trim() == "0" {
            // To the process's own, since what a test prints that passes is shown to nobody.
            let text = "skipped: who_has_a_lease_is_not_waited_for: fs.leases-enable is 0, and nobody has one";
            let _ = writeln!(io::stderr(), "{text}");
            return;
        }
        // Of the kernel's `fcntl.h`, which the libc crate does not have: which signal tells of the lease's end.
        const F_SETSIG: libc::c_int = 10;
        let fd = create("test", 4096, Pages::Small).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        // One that was opened, as only what is counted as open for writing can be leased.
        let leased = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let set = |what, how: libc::c_int| {
            // SAFETY: both take a number, and nothing of this process's memory.
            let result = unsafe { libc::fcntl(leased.as_raw_fd(), what, how) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        };
        // Which is ignored where nobody asks for it: the usual one would end the process.
        set(F_SETSIG, libc::SIGURG);
        set(libc::F_SETLEASE, libc::F_WRLCK);
        let refused = reopen(fd.as_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        set(libc::F_SETLEASE, libc::F_UNLCK);
        reopen(fd.as_fd()).unwrap();
    }

    #[test]
    fn an_unsealed_file_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        assert!(check(fd.as_fd(), 8192).is_err());
    }
}
