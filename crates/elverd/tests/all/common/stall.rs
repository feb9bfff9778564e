//! A page that does not come, and a file whose close does not end: they lie in a file system that answers for
//! all else (FUSE), spoken to by hand, since it needs few answers.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4_096;
/// Of the file.
const PAGES: u64 = 3;
/// A request's header.
const HEADER: usize = 40;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;

/// A file of three pages, mapped.
pub struct Stalling {
    /// Where it begins.
    pub start: u64,
    /// By which it is answered for. Who waits for an answer must not have it: it would wait for ever once this process has
    /// been killed.
    device: RawFd,
    shared: Arc<Shared>,
}

/// What its process and the thread that answers tell each other.
#[derive(Default)]
struct Shared {
    /// Somebody waits for the second page, or for the end of a close.
    is_wanted: AtomicBool,
    keeps_closes: AtomicBool,
    fails: AtomicBool,
}

impl Stalling {
    /// Whether somebody waits for the second page, or for the end of a close.
    pub fn is_wanted(&self) -> bool {
        self.shared.is_wanted.load(Ordering::Acquire)
    }

    /// To be called in a child that is to wait: this process alone answers.
    pub fn is_a_childs(device: RawFd) {
        // SAFETY: the child has a copy of its own, and no thread that answers.
        unsafe { libc::close(device) };
    }

    /// What [`Stalling::is_a_childs`] is to be told.
    pub fn device(&self) -> RawFd {
        self.device
    }

    /// Who closes the file waits from now on.
    pub fn keep_closes(&self) {
        self.shared.keeps_closes.store(true, Ordering::Release);
    }

    /// Who waits for the second page is told that there is none, and so are others from now on; and closes end.
    pub fn fail(&self) {
        self.shared.fails.store(true, Ordering::Release);
    }
}

/// Maps a file of three pages, of which the second never comes, over the file at `path`; where it
/// begins. To be called in a mount namespace of one's own. None where the system does not let this
/// process, or has no FUSE. It stays until the process ends.
pub fn map(path: &Path) -> Option<Stalling> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
    let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let (place, options) = (text(path.as_os_str().as_bytes()), text(options.as_bytes()));
    // SAFETY: all are strings that live while the call runs.
    let mounted = unsafe {
        libc::mount(c"elver".as_ptr(), place.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
    };
    if mounted != 0 {
        return None;
    }
    let shared = Arc::<Shared>::default();
    let (answering, number) = (shared.clone(), device.as_raw_fd());
    std::thread::spawn(move || answer(device, &answering));
    let file = File::open(path).unwrap();
    // Before it is asked how long it is, it has no pages.
    assert_eq!(file.metadata().unwrap().len(), PAGES * PAGE);
    let (len, flags) = ((PAGES * PAGE) as usize, libc::MAP_PRIVATE);
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the range is ours. Nothing is read ahead from then on.
    assert_eq!(unsafe { libc::madvise(start, len, libc::MADV_RANDOM) }, 0);
    for page in [0, 2] {
        // SAFETY: the page is mapped, and comes.
        let byte = unsafe { start.cast::<u8>().add(page * PAGE as usize).read_volatile() };
        assert_eq!(byte, b'x');
    }
    Some(Stalling { start: start as u64, device: number, shared })
}

/// Answers requests, but for the second page, and closes if these are kept.
fn answer(mut device: File, shared: &Shared) {
    let wait = || {
        shared.is_wanted.store(true, Ordering::Release);
        while !shared.fails.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    };
    let mut request = vec![0; 1 << 17];
    while let Ok(count) = device.read(&mut request) {
        let request = &request[..count];
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (mut error, mut body) = (0_i32, Vec::new());
        match word(4) {
            INIT => {
                body.resize(64, 0);
                // Version 7.31; nothing is read ahead; a page is written at once.
                body[..4].copy_from_slice(&7_u32.to_ne_bytes());
                body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
                body[20..24].copy_from_slice(&(PAGE as u32).to_ne_bytes());
            }
            GETATTR => {
                body.resize(104, 0);
                body[..8].copy_from_slice(&3_600_u64.to_ne_bytes());
                body[16..24].copy_from_slice(&1_u64.to_ne_bytes());
                body[24..32].copy_from_slice(&(PAGES * PAGE).to_ne_bytes());
                body[76..80].copy_from_slice(&0o100_644_u32.to_ne_bytes());
                body[80..84].copy_from_slice(&1_u32.to_ne_bytes());
            }
            OPEN => body.resize(16, 0),
            READ if long(HEADER + 8) == PAGE => {
                wait();
                error = -libc::EIO;
            }
            FLUSH if shared.keeps_closes.load(Ordering::Acquire) => wait(),
            FLUSH => {}
            READ => body.resize(word(HEADER + 16) as usize, b'x'),
            FORGET | INTERRUPT => continue,
            _ => error = -libc::ENOSYS,
        }
        let len = (16 + body.len()) as u32;
        let head = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), &long(8).to_ne_bytes()].concat();
        let answer = [head, body].concat();
        // Whoever asked may have given up.
        let _ = device.write(&answer);
    }
}
