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

use elver_verbs::MemoryError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use rustix::time::Timespec;

use super::copier::{Copier, Ended};
use crate::MapError;

/// Bytes that a [`Copier`] copies at once.
const PIECE: usize = 64 * 1024;
/// Bytes that are copied at once between two pieces of other processes' memory.
const CHUNK: usize = 16 * 1024;
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
    guard: Option<Guard>,
    /// Copies of its that somebody else makes.
    waiting: AtomicU32,
}

/// The files by which a process's memory is reached.
#[derive(Debug)]
struct Opened {
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
struct Guard {
    copier: Arc<Copier>,
    account: u64,
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
    fn opened(&self) -> Result<&Opened, MapError> {
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
    unsafe fn read(&self, at: i64, into: *mut u8, len: usize) -> Option<()> {
        self.transfer(len, |fd, done| {
            // SAFETY: `done` is less than `len`, for which the caller vouches.
            unsafe { libc::pread(fd, into.add(done).cast(), len - done, at + done as i64) }
        })
    }

    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    unsafe fn write(&self, at: i64, from: *const u8, len: usize) -> Option<()> {
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
    fn run(
        self: &Arc<Self>,
        job: impl FnOnce(&ProcessMemory) -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Vec<u8>> {
        let Guard { copier, account, .. } = self.guard.as_ref()?;
        let process = self.clone();
        copier.run(*account, move || job(&process))
    }

    /// Whether a copy is made at once: nobody has to wait for it. None is while another waits: it
    /// would come before that one, and the process's mappings may be locked, even for who only asks.
    fn is_at_hand(&self, at: i64, len: usize) -> bool {
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
struct Waits(Arc<ProcessMemory>);

impl Waits {
    fn of(process: &Arc<ProcessMemory>) -> Waits {
        process.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(process.clone())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Memory of a process that somebody has looked at: see [`crate::SoftMemory::of_process_later`].
#[derive(Debug)]
pub struct Sought {
    foreign: Foreign,
    /// That the process's memory could not be opened.
    refused: Option<MapError>,
    ended: Ended,
}

impl Sought {
    /// The piece, if it is there.
    pub(super) fn found(self) -> Result<Foreign, MapError> {
        let Sought { foreign, refused, ended } = self;
        if let Some(Guard { copier, .. }) = &foreign.process.guard {
            copier.end(&ended);
        }
        match (ended.bytes, refused) {
            (Some(_), _) => Ok(foreign),
            (None, Some(refused)) => Err(refused),
            (None, None) => Err(foreign.refused(rustix::io::Errno::FAULT.into())),
        }
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

/// A piece of a process's memory.
#[derive(Debug)]
pub(super) struct Foreign {
    process: Arc<ProcessMemory>,
    pub(super) addr: u64,
    pub(super) len: u64,
}

impl Foreign {
    /// Checks that both ends of the piece can be read.
    pub(super) fn new(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
    ) -> Result<Foreign, MapError> {
        let foreign = Foreign::unseen(process, addr, len)?;
        for offset in [0, len - 1] {
            let read = foreign.read_waiting(offset, &mut [0]);
            read.map_err(|_| foreign.refused(rustix::io::Errno::FAULT.into()))?;
        }
        Ok(foreign)
    }

    /// One that nobody has looked at.
    pub(super) fn unseen(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
    ) -> Result<Foreign, MapError> {
        let foreign = Foreign { process, addr, len };
        let fits = addr.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        if !fits || len == 0 {
            return Err(foreign.refused(io::ErrorKind::InvalidInput.into()));
        }
        Ok(foreign)
    }

    /// Has the copier open the process's memory, if nobody has, and look whether both ends can be read.
    pub(super) fn seek(
        process: Arc<ProcessMemory>,
        addr: u64,
        len: u64,
        told: impl FnOnce(Sought) + Send + 'static,
    ) -> Result<(), MapError> {
        let foreign = Foreign::unseen(process.clone(), addr, len)?;
        let busy = foreign.refused(io::ErrorKind::WouldBlock.into());
        let Some(Guard { copier, account, .. }) = process.guard.clone() else {
            return Err(busy);
        };
        let ends = [foreign.check(0, 1), foreign.check(len - 1, 1)];
        let waits = Waits::of(&process);
        let refused = Arc::new(OnceLock::new());
        let refusal = refused.clone();
        let look = move || {
            let _held = waits;
            if let Err(error) = process.opened() {
                let _ = refusal.set(error);
                return None;
            }
            for at in ends {
                let mut byte = 0;
                // SAFETY: the byte is ours alone.
                unsafe { process.read(at.ok()?, &raw mut byte, 1) }?;
            }
            Some(Vec::new())
        };
        let told = Box::new(move |ended| {
            // Who looked has gone.
            let refused = Arc::into_inner(refused).and_then(OnceLock::into_inner);
            told(Sought { foreign, refused, ended });
        });
        copier.submit(account, Box::new(look), told).map(drop).ok_or(busy)
    }

    /// Why it is not to be had.
    fn refused(&self, reason: io::Error) -> MapError {
        let guard = self.process.guard.as_ref();
        let slow = guard.is_some_and(|guard| guard.copier.refuses(guard.account));
        let advice = if slow {
            "reading it took too long; keep it in a file system that answers, or allocate it at the \
             node instead (Session::alloc)"
                .to_string()
        } else {
            format!("it has no {} bytes mapped at {:#x}", self.len, self.addr)
        };
        MapError::Process { pid: self.process.pid(), advice, reason }
    }

    /// The account that its copies are made for.
    pub(super) fn payer(&self) -> u64 {
        self.process.guard.as_ref().map_or(0, |guard| guard.account)
    }

    /// Copies out of the process; [`MemoryError::Later`] if that could have to wait.
    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, dst.len())?;
        if !self.process.is_at_hand(at, dst.len()) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the slice is valid for its length, and ours alone.
        let read = unsafe { self.process.read(at, dst.as_mut_ptr(), dst.len()) };
        read.ok_or(MemoryError::Gone { offset, len: dst.len() as u64 })
    }

    /// Copies into the process; [`MemoryError::Later`] if that could have to wait.
    pub(super) fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, src.len())?;
        if !self.process.is_at_hand(at, src.len()) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the slice is valid for its length.
        let written = unsafe { self.process.write(at, src.as_ptr(), src.len()) };
        written.ok_or(MemoryError::Gone { offset, len: src.len() as u64 })
    }

    /// As [`Foreign::read`], but it waits, for as long as a copier does.
    pub(super) fn read_waiting(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        let gone = MemoryError::Gone { offset, len: dst.len() as u64 };
        let mut from = offset;
        for piece in dst.chunks_mut(PIECE) {
            match self.read(from, piece) {
                Err(MemoryError::Later) => {
                    let (at, len) = (self.check(from, piece.len())?, piece.len());
                    let bytes = self.process.run(move |process| {
                        let mut bytes = vec![0; len];
                        // SAFETY: the vector has so many bytes, and is ours alone.
                        unsafe { process.read(at, bytes.as_mut_ptr(), len) }.map(|()| bytes)
                    });
                    piece.copy_from_slice(
                        bytes.filter(|bytes| bytes.len() == len).as_ref().ok_or(gone)?,
                    );
                }
                read => read?,
            }
            from += piece.len() as u64;
        }
        Ok(())
    }

    /// As [`Foreign::write`], but it waits, for as long as a copier does.
    pub(super) fn write_waiting(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        let gone = MemoryError::Gone { offset, len: src.len() as u64 };
        let mut to = offset;
        for piece in src.chunks(PIECE) {
            match self.write(to, piece) {
                Err(MemoryError::Later) => {
                    let (at, bytes) = (self.check(to, piece.len())?, piece.to_vec());
                    let written = self.process.run(move |process| {
                        // SAFETY: the vector has so many bytes.
                        unsafe { process.write(at, bytes.as_ptr(), bytes.len()) }.map(|()| bytes)
                    });
                    written.ok_or(gone)?;
                }
                written => written?,
            }
            to += piece.len() as u64;
        }
        Ok(())
    }

    /// Has a copy made by the copier: of `bytes` into the process, or over them. `told` gets them
    /// back. Returns the account that it is made for; none if it is not made.
    pub(super) fn submit(
        &self,
        offset: u64,
        mut bytes: Vec<u8>,
        writes: bool,
        told: impl FnOnce(Ended) + Send + 'static,
    ) -> Option<(Arc<Copier>, u64)> {
        let at = self.check(offset, bytes.len()).ok()?;
        let process = self.process.clone();
        let Guard { copier, account, .. } = process.guard.clone()?;
        let waits = Waits::of(&process);
        let job = move || {
            let _held = waits;
            let len = bytes.len();
            let done = match writes {
                // SAFETY: the vector has so many bytes.
                true => unsafe { process.write(at, bytes.as_ptr(), len) },
                // SAFETY: as above, and they are ours alone.
                false => unsafe { process.read(at, bytes.as_mut_ptr(), len) },
            };
            done.map(|()| bytes)
        };
        copier.submit(account, Box::new(job), Box::new(told))?;
        Some((copier, account))
    }

    /// Copies between two processes, or inside of one, through a buffer. The ranges may overlap.
    /// What could have to wait is answered [`MemoryError::Later`], and then nothing is copied.
    pub(super) fn copy_from(
        &self,
        offset: u64,
        src: &Foreign,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len, self.len)?;
        MemoryError::check_range(src_offset, len, src.len)?;
        if [(self, offset), (src, src_offset)].iter().any(|(at, offset)| {
            // A long copy is begun only where nothing is ever waited for.
            at.process.guard.is_some() && {
                let all = at.check(*offset, len as usize);
                len > PIECE as u64 || !all.is_ok_and(|all| at.process.is_at_hand(all, len as usize))
            }
        }) {
            return Err(MemoryError::Later);
        }
        let mut buffer = [0; CHUNK];
        // From the end where the destination lies behind the source, so that nothing is overwritten
        // before it is read.
        let backwards = self.addr + offset > src.addr + src_offset;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(CHUNK as u64);
            let at = if backwards { len - done - piece } else { done };
            let buffer = &mut buffer[..piece as usize];
            src.read_now(src_offset + at, buffer)?;
            self.write_now(offset + at, buffer)?;
            done += piece;
        }
        Ok(())
    }

    /// Copies out of the process, at hand or not.
    fn read_now(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, dst.len())?;
        // SAFETY: the slice is valid for its length, and ours alone.
        let read = unsafe { self.process.read(at, dst.as_mut_ptr(), dst.len()) };
        read.ok_or(MemoryError::Gone { offset, len: dst.len() as u64 })
    }

    /// Copies into the process, at hand or not.
    fn write_now(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, src.len())?;
        // SAFETY: the slice is valid for its length.
        let written = unsafe { self.process.write(at, src.as_ptr(), src.len()) };
        written.ok_or(MemoryError::Gone { offset, len: src.len() as u64 })
    }

    /// Copies into memory of this process, whose range the kernel writes.
    ///
    /// # Safety
    /// `into` must be valid for writes of `len` bytes.
    pub(super) unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        let at = self.check(offset, len)?;
        if !self.process.is_at_hand(at, len) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the caller vouches for `len` bytes.
        let read = unsafe { self.process.read(at, into, len) };
        read.ok_or(MemoryError::Gone { offset, len: len as u64 })
    }

    /// Copies out of memory of this process, whose range the kernel reads.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    pub(super) unsafe fn write_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        let at = self.check(offset, len)?;
        if !self.process.is_at_hand(at, len) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the caller vouches for `len` bytes.
        let written = unsafe { self.process.write(at, from, len) };
        written.ok_or(MemoryError::Gone { offset, len: len as u64 })
    }

    /// Where a range begins.
    fn check(&self, offset: u64, len: usize) -> Result<i64, MemoryError> {
        MemoryError::check_range(offset, len as u64, self.len)?;
        // It fits: the whole piece was checked when it was made.
        Ok((self.addr + offset) as i64)
    }
}
