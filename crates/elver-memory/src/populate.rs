//! Maps the pages of a shared file ahead of whoever uses them, in steps: all others of the process who map something wait
//! as long as a step takes. What cannot be had is left to whoever touches it, and nothing is ever unmapped.

use std::ops::Range;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::Advice;

/// Bytes of which the pages are mapped at once: whole huge pages.
pub(crate) const STEP: usize = 4 << 20;
/// The smallest page that there is, and how many are touched in one call.
const PAGE: usize = 4_096;
const TOUCHED_MAX: usize = 256;

/// How pages are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By a call for that, since Linux 5.14.
    Asked,
    Touched,
}

/// Maps the pages of a range of a mapping.
///
/// # Safety
/// The range must lie in a mapping that may be read and written, and that stays meanwhile.
pub(crate) unsafe fn populate(range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { populate_by(Way::Asked, range) }
}

/// # Safety
/// As of [`populate`].
unsafe fn populate_by(mut way: Way, range: Range<usize>) {
    for (at, len) in steps(range.len(), STEP) {
        let step = range.start + at..range.start + at + len;
        // SAFETY: the caller's promise, of a part of the range.
        let mut populated = unsafe { step_by(way, step.clone()) };
        if populated == Err(Errno::INVAL) && way == Way::Asked {
            way = Way::Touched;
            // SAFETY: as above.
            populated = unsafe { step_by(way, step) };
        }
        // What is not to be had now whoever touches it sees.
        if populated.is_err() {
            return;
        }
    }
}

/// The steps of so many bytes, as offset and length. Between two of them others have their turn.
pub(crate) fn steps(len: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(step).map(move |at| {
        if at > 0 {
            std::thread::yield_now();
        }
        (at, step.min(len - at))
    })
}

/// # Safety
/// As of [`populate`].
unsafe fn step_by(way: Way, step: Range<usize>) -> Result<(), Errno> {
    match way {
        Way::Asked => {
            let start = ptr::with_exposed_provenance_mut(step.start);
            // SAFETY: the caller's promise; it changes no byte.
            unsafe { rustix::mm::madvise(start, step.len(), Advice::LinuxPopulateWrite) }
        }
        Way::Touched => step.clone().step_by(PAGE * TOUCHED_MAX).try_for_each(|first| {
            let end = step.end.min(first + PAGE * TOUCHED_MAX);
            touch((first..end).step_by(PAGE))
        }),
    }
}

/// Has the system read a byte of each page, for which it maps them. It says so if one cannot be had, where who reads it
/// himself gets a signal.
fn touch(addresses: impl Iterator<Item = usize>) -> Result<(), Errno> {
    let nothing = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut pages = [nothing; TOUCHED_MAX];
    let mut count = 0;
    for (page, at) in pages.iter_mut().zip(addresses) {
        *page = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: 1 };
        count += 1;
    }
    let mut bytes = [0u8; TOUCHED_MAX];
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: count };
    // SAFETY: the system writes into `bytes` alone, at most `count` of them, and reads where it finds something mapped.
    let read = unsafe {
        let own = libc::getpid();
        libc::process_vm_readv(own, &raw const to, 1, pages.as_ptr(), count as libc::c_ulong, 0)
    };
    // Fewer are those before the first that it did not get.
    if read == count as isize { Ok(()) } else { Err(Errno::FAULT) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    /// A file of so many bytes, of which there are no pages.
    pub(crate) fn file(len: u64) -> std::os::fd::OwnedFd {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    /// Bytes of the pages that a file has.
    pub(crate) fn bytes_of(file: &std::os::fd::OwnedFd) -> usize {
        rustix::fs::fstat(file).unwrap().st_blocks as usize * 512
    }

    /// A mapping of a file, without its pages.
    struct Bare(Range<usize>);

    impl Bare {
        fn new(file: &OwnedFd, len: usize) -> Bare {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
            let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
            let start = start.unwrap().expose_provenance();
            Bare(start..start + len)
        }

        /// Bytes of it that are mapped, as the system says.
        fn mapped(&self) -> usize {
            let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let first = format!("{:08x}-{:08x} ", self.0.start, self.0.end);
            let own = all.split_once(&first).expect("a mapping of its own").1;
            let rss = own.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
        }
    }

    impl Drop for Bare {
        fn drop(&mut self) {
            let start = ptr::with_exposed_provenance_mut(self.0.start);
            // SAFETY: the mapping is the test's own.
            unsafe { munmap(start, self.0.len()) }.unwrap();
        }
    }

    #[test]
    fn steps_are_whole_and_leave_nothing_out() {
        for (len, step) in [(1, 4), (4, 4), (5, 4), (12, 4), (13, 4)] {
            let all: Vec<_> = steps(len, step).collect();
            assert!(all.iter().all(|(at, len)| at % step == 0 && (1..=step).contains(len)));
            assert!(all.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0));
            assert_eq!(all.last().map(|(at, len)| at + len), Some(len));
        }
    }

    #[test]
    fn all_pages_are_mapped_either_way_and_no_byte_changes() {
        const BYTES: usize = 3 * STEP + PAGE;
        for way in [Way::Asked, Way::Touched] {
            let file = file(BYTES as u64);
            let last = (BYTES - 8) as u64;
            rustix::io::pwrite(&file, b"anything", last).unwrap();
            let mapping = Bare::new(&file, BYTES);
            assert_eq!(mapping.mapped(), 0);
            // SAFETY: the mapping is there until the end.
            unsafe { populate_by(way, mapping.0.clone()) };
            assert_eq!((bytes_of(&file), mapping.mapped()), (BYTES, BYTES), "{way:?}");
            let mut bytes = [0; 8];
            rustix::io::pread(&file, &mut bytes, last).unwrap();
            assert_eq!(&bytes, b"anything");
        }
    }

    /// They were mapped anew, and where that failed nothing was mapped any more. Who touches one himself gets a signal.
    #[test]
    fn pages_that_cannot_be_had_are_left_alone_either_way() {
        const HALF: usize = STEP + PAGE;
        for way in [Way::Asked, Way::Touched] {
            let file = file(HALF as u64);
            // There is no file behind its half.
            let mapping = Bare::new(&file, 2 * HALF);
            // SAFETY: the mapping is there until the end.
            unsafe { populate_by(way, mapping.0.clone()) };
            assert_eq!(mapping.mapped(), HALF, "{way:?}");
            rustix::fs::ftruncate(&file, 2 * HALF as u64).unwrap();
            // SAFETY: as above.
            unsafe { populate_by(way, mapping.0.clone()) };
            assert_eq!(mapping.mapped(), 2 * HALF, "{way:?}");
        }
    }
}
