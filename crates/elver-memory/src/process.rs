//! Memory of another process, through `/proc/PID/mem`.
//!
//! An open `/proc/PID/mem` stands for the address space that it was opened for, and for no other: a
//! number that the system gave to a new process leads nowhere else, which `process_vm_writev` could
//! not promise, as it takes the number at every call. Small accesses are as fast, 0.4 µs here; at
//! 64 KB and more it is slower by half. As a debugger's, a write goes through where the process has
//! write-protected a page of its own.
//!
//! A copy waits for the page that it touches, and the process decides what page that is. So does whoever
//! opens that file: a process that begins another program (`execve`) keeps him waiting until its files
//! are closed, and one of these may lie in a file system that does not answer. See
//! [`ProcessMemory::guarded`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use rustix::time::Timespec;

use crate::copier::Copier;
use crate::error::MapError;

/// Bytes that a [`Copier`] copies at once.
pub(crate) const PIECE: usize = 64 * 1024;
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Another process's memory, to be registered piece by piece ([`crate::SoftMemory::of_process`]).
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    opened: OnceLock<Opened>,
    /// Whose it is to be, until it was opened.
    unopened: Mutex<Option<Whose>>,
    revoked: AtomicBool,
    /// Who copies, if a copy may not end.
    pub(crate) guard: Option<Guard>,
    /// Copies of its that somebody else makes.
    waiting: AtomicU32,
}

/// The files by which a process's memory is reached.
#[derive(Debug)]
pub(crate) struct Opened {
    memory: File,
    /// What is there is copied at once: `/proc/PID/pagemap`, which tells.
    pages: Option<File>,
}

/// A process, and the user that it must run as.
#[derive(Debug)]
struct Whose {
    uid: u32,
    pidfd: OwnedFd,
}

/// Who copies what may not end, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) copier: Arc<Copier>,
    pub(crate) account: u64,
    /// Pages that are there are copied without it.
    where_absent: bool,
}

impl ProcessMemory {
    /// Opens the memory of process `pid`, which `pidfd` must be of, and which must run as user
    /// `uid`: neither a process that got the number later, nor a program with more rights that the
    /// process runs now, is taken for it. What it runs later has another memory.
    ///
    /// # Errors
    /// That the process is gone, or that the system does not permit it, with what to do about it.
    pub fn open(pid: Pid, uid: u32, pidfd: impl AsFd) -> Result<ProcessMemory, MapError> {
        let opened = Opened::of(pid, uid, &pidfd, false)?;
        Ok(ProcessMemory::new(pid, opened.into(), None, None))
    }

    /// The same of a process that is not trusted to let it end: `copier` opens it, when it is first asked
    /// for, and makes all copies, for `account`. What takes too long fails, and so do the account's other
    /// copies for some time.
    pub fn guarded(
        pid: Pid,
        uid: u32,
        pidfd: OwnedFd,
        copier: Arc<Copier>,
        account: u64,
    ) -> ProcessMemory {
        let guard = Guard { copier, account, where_absent: false };
        ProcessMemory::new(pid, OnceLock::new(), Some(Whose { uid, pidfd }), Some(guard))
    }

    /// As [`ProcessMemory::guarded`], but pages that are there are copied without a change of threads:
    /// for a process that means no harm, and may have a file mapped that is slow to come. One that
    /// takes a page away at the wrong moment is waited for all the same.
    pub fn guarded_where_absent(
        pid: Pid,
        uid: u32,
        pidfd: OwnedFd,
        copier: Arc<Copier>,
        account: u64,
    ) -> ProcessMemory {
        let guard = Guard { copier, account, where_absent: true };
        ProcessMemory::new(pid, OnceLock::new(), Some(Whose { uid, pidfd }), Some(guard))
    }

    fn new(
        pid: Pid,
        opened: OnceLock<Opened>,
        unopened: Option<Whose>,
        guard: Option<Guard>,
    ) -> ProcessMemory {
        let (revoked, waiting) = (AtomicBool::new(false), AtomicU32::new(0));
        ProcessMemory { pid, opened, unopened: Mutex::new(unopened), revoked, guard, waiting }
    }

    /// Its files, opened now if they are not; that may wait for the process.
    pub(crate) fn opened(&self) -> Result<&Opened, MapError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let mut unopened = self.unopened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Whose { uid, pidfd }) = &*unopened {
            let where_absent = self.guard.as_ref().is_some_and(|guard| guard.where_absent);
            let opened = Opened::of(self.pid, *uid, pidfd, where_absent)?;
            // Who opens it has the lock.
            let _ = self.opened.set(opened);
            *unopened = None;
        }
        self.opened.get().ok_or_else(|| refused(self.pid, rustix::io::Errno::SRCH.into()))
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether a copier does its copies.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Refuses all further accesses to its memory.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// # Safety
    /// `into` must be valid for writes of `len` bytes.
    pub(crate) unsafe fn read(&self, at: i64, into: *mut u8, len: usize) -> Option<()> {
        self.transfer(len, |fd, done| {
            // SAFETY: `done` is less than `len`, for which the caller vouches.
            unsafe { libc::pread(fd, into.add(done).cast(), len - done, at + done as i64) }
        })
    }

    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    pub(crate) unsafe fn write(&self, at: i64, from: *const u8, len: usize) -> Option<()> {
        self.transfer(len, |fd, done| {
            // SAFETY: `done` is less than `len`, for which the caller vouches.
            unsafe { libc::pwrite(fd, from.add(done).cast(), len - done, at + done as i64) }
        })
    }

    /// Calls `copy` with the file and the bytes that are done, until all are.
    fn transfer(&self, len: usize, copy: impl Fn(i32, usize) -> isize) -> Option<()> {
        let memory = self.opened().ok()?.memory.as_raw_fd();
        let mut done = 0;
        while done < len {
            if self.revoked.load(Ordering::Acquire) {
                return None;
            }
            match copy(memory, done) {
                0 => return None,
                copied if copied > 0 => done += copied as usize,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
        Some(())
    }

    /// Lets the copier do a job, and waits for it.
    pub(crate) fn run(
        self: &Arc<Self>,
        job: impl FnOnce(&ProcessMemory) -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Vec<u8>> {
        let Guard { copier, account, .. } = self.guard.as_ref()?;
        let process = self.clone();
        copier.run(*account, move || job(&process))
    }

    /// Whether a copy is made at once: nobody has to wait for it. None is while another waits: it
    /// would come before that one, and the process's mappings may be locked, even for who only asks.
    pub(crate) fn is_at_hand(&self, at: i64, len: usize) -> bool {
        if self.guard.is_none() {
            return true;
        }
        let Some(Opened { pages: Some(pages), .. }) = self.opened.get() else { return false };
        self.waiting.load(Ordering::Acquire) == 0 && are_present(pages, at as u64, len as u64)
    }
}

impl Opened {
    fn of(pid: Pid, uid: u32, pidfd: impl AsFd, with_pages: bool) -> Result<Opened, MapError> {
        let refused = |reason: io::Error| refused(pid, reason);
        let path = format!("/proc/{pid}");
        let open = OpenOptions::new().read(true).write(true).open(format!("{path}/mem"));
        let memory = open.map_err(refused)?;
        let pages = if with_pages { File::open(format!("{path}/pagemap")).ok() } else { None };
        // After they were opened: who runs now is who was opened, or has ended.
        if std::fs::metadata(path).map_err(refused)?.uid() != uid {
            return Err(refused(io::ErrorKind::PermissionDenied.into()));
        }
        // The pidfd becomes readable when the process ends, and its number is free only after that.
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        let at_once = Timespec::try_from(Duration::ZERO).unwrap_or_default();
        match poll(&mut ended, Some(&at_once)) {
            Ok(0) => Ok(Opened { memory, pages }),
            Ok(_) => Err(refused(rustix::io::Errno::SRCH.into())),
            Err(error) => Err(refused(error.into())),
        }
    }
}

/// Why a process's memory cannot be opened.
fn refused(pid: Pid, reason: io::Error) -> MapError {
    let advice = advice(&reason);
    MapError::Process { pid, reason, advice }
}

/// A copy of a process's that somebody else makes.
pub(crate) struct Waits(Arc<ProcessMemory>);

impl Waits {
    pub(crate) fn of(process: &Arc<ProcessMemory>) -> Waits {
        process.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(process.clone())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether all pages of a range are in memory, as `/proc/PID/pagemap` says: a word a page.
fn are_present(pages: &File, at: u64, len: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    // Pages of 4 KB are the smallest that there are.
    const PAGES_MAX: usize = PIECE / 4_096 + 1;
    let page = rustix::param::page_size() as u64;
    let (first, last) = (at / page, (at + len.max(1) - 1) / page);
    let count = (last - first + 1) as usize;
    if count > PAGES_MAX {
        return false;
    }
    let mut words = [0; 8 * PAGES_MAX];
    let words = &mut words[..8 * count];
    let (words, _) = match pages.read_exact_at(words, first * 8) {
        Ok(()) => words.as_chunks::<8>(),
        Err(_) => return false,
    };
    words.iter().all(|word| u64::from_ne_bytes(*word) & PRESENT != 0)
}

/// What to do about a refusal.
fn advice(reason: &io::Error) -> String {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => {}
        io::ErrorKind::NotFound => return "the process has ended".into(),
        _ if reason.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return "the process has ended".into();
        }
        _ => return "allocate the memory at the node instead (Session::alloc)".into(),
    }
    let yama = std::fs::read_to_string(YAMA);
    let scope = match yama.as_deref().map(str::trim) {
        Ok("1") => format!(
            "{YAMA} is 1, which forbids it unless the process permits it by \
             prctl(PR_SET_PTRACER); "
        ),
        Ok(scope @ ("2" | "3")) => format!("{YAMA} is {scope}, which forbids it; "),
        _ => String::new(),
    };
    format!(
        "{scope}the node may look only into processes of its own user that run with no more \
         privileges than it has: run the node as root, or with CAP_SYS_PTRACE, or allocate the \
         memory at the node instead (Session::alloc)"
    )
}
