//! Memory of another process, through `/proc/PID/mem`.
//!
//! An open `/proc/PID/mem` stands for the address space that it was opened for, and for no other: a
//! number that the system gave to a new process leads nowhere else, which `process_vm_writev` could
//! not promise, as it takes the number at every call. Small accesses are as fast, 0.4 µs here; at
//! 64 KB and more it is slower by half. As a debugger's, a write goes through where the process has
//! write-protected a page of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use elver_verbs::MemoryError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::SoftError;

/// Bytes that are copied at once between two pieces of other processes' memory.
const CHUNK: usize = 16 * 1024;
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Another process's memory, to be registered piece by piece ([`crate::SoftMemory::of_process`]).
#[derive(Debug)]
pub struct ProcessMemory {
    pid: i32,
    memory: File,
    revoked: AtomicBool,
}

impl ProcessMemory {
    /// Opens the memory of process `pid`, which `pidfd` must be of, and which must run as user
    /// `uid`: neither a process that got the number later, nor a program with more rights that the
    /// process runs now, is taken for it. What it runs later has another memory.
    ///
    /// # Errors
    /// That the process is gone, or that the system does not permit it, with what to do about it.
    pub fn open(pid: i32, uid: u32, pidfd: impl AsFd) -> Result<ProcessMemory, SoftError> {
        let refused = |reason: io::Error| {
            let advice = advice(&reason);
            SoftError::Process { pid, reason, advice }
        };
        let path = format!("/proc/{pid}");
        let open = OpenOptions::new().read(true).write(true).open(format!("{path}/mem"));
        let memory = open.map_err(refused)?;
        // After it was opened: who runs now is who was opened, or has ended.
        if std::fs::metadata(path).map_err(refused)?.uid() != uid {
            return Err(refused(io::ErrorKind::PermissionDenied.into()));
        }
        // The pidfd becomes readable when the process ends, and its number is free only after that.
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        let at_once = Timespec::try_from(Duration::ZERO).unwrap_or_default();
        match poll(&mut ended, Some(&at_once)) {
            Ok(0) => Ok(ProcessMemory { pid, memory, revoked: AtomicBool::new(false) }),
            Ok(_) => Err(refused(rustix::io::Errno::SRCH.into())),
            Err(error) => Err(refused(error.into())),
        }
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Refuses all further accesses to its memory.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }
}

/// What to do about a refusal.
fn advice(reason: &io::Error) -> String {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => {}
        io::ErrorKind::NotFound => return "the process has ended".into(),
        _ if reason.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return "the process has ended".into();
        }
        _ => return "allocate the memory at the node instead (Mr::alloc)".into(),
    }
    let yama = std::fs::read_to_string(YAMA);
    let scope = match yama.as_deref().map(str::trim) {
        Ok(scope @ ("1" | "2" | "3")) => format!("{YAMA} is {scope}, which forbids it; "),
        _ => String::new(),
    };
    format!(
        "{scope}the node may look only into processes of its own user that run with no more \
         privileges than it has: run the node as root, or with CAP_SYS_PTRACE, or allocate the \
         memory at the node instead (Mr::alloc)"
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
    ) -> Result<Foreign, SoftError> {
        let pid = process.pid();
        let refused = |reason: io::Error| SoftError::Process {
            pid,
            advice: format!("it has no {len} bytes mapped at {addr:#x}"),
            reason,
        };
        let fits = addr.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        if !fits || len == 0 {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        }
        let foreign = Foreign { process, addr, len };
        for offset in [0, len - 1] {
            let read = foreign.read(offset, &mut [0]);
            read.map_err(|_| refused(rustix::io::Errno::FAULT.into()))?;
        }
        Ok(foreign)
    }

    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        // SAFETY: the slice is valid for its length, and ours alone.
        unsafe { self.read_into(offset, dst.as_mut_ptr(), dst.len()) }
    }

    pub(super) fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        // SAFETY: the slice is valid for its length.
        unsafe { self.write_from(offset, src.as_ptr(), src.len()) }
    }

    /// Copies out of the process.
    ///
    /// # Safety
    /// `into` must be valid for writes of `len` bytes.
    pub(super) unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        self.transfer(offset, len, |fd, done, rest, at| {
            // SAFETY: `done + rest` is `len`, for which the caller vouches.
            unsafe { libc::pread(fd, into.add(done).cast(), rest, at) }
        })
    }

    /// Copies into the process.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    pub(super) unsafe fn write_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        self.transfer(offset, len, |fd, done, rest, at| {
            // SAFETY: `done + rest` is `len`, for which the caller vouches.
            unsafe { libc::pwrite(fd, from.add(done).cast(), rest, at) }
        })
    }

    /// Copies between two processes, or inside of one, through a buffer. The ranges may overlap.
    pub(super) fn copy_from(
        &self,
        offset: u64,
        src: &Foreign,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len, self.len)?;
        MemoryError::check_range(src_offset, len, src.len)?;
        let mut buffer = [0; CHUNK];
        // From the end where the destination lies behind the source, so that nothing is overwritten
        // before it is read.
        let backwards = self.addr + offset > src.addr + src_offset;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(CHUNK as u64);
            let at = if backwards { len - done - piece } else { done };
            let buffer = &mut buffer[..piece as usize];
            src.read(src_offset + at, buffer)?;
            self.write(offset + at, buffer)?;
            done += piece;
        }
        Ok(())
    }

    /// Calls `copy` until all bytes are copied: with the file, the bytes that are done and those
    /// that are not, and the address.
    fn transfer(
        &self,
        offset: u64,
        len: usize,
        copy: impl Fn(i32, usize, usize, i64) -> isize,
    ) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len as u64, self.len)?;
        let ProcessMemory { memory, revoked, .. } = &*self.process;
        let gone = MemoryError::Gone { offset, len: len as u64 };
        let mut done = 0;
        while done < len {
            if revoked.load(Ordering::Acquire) {
                return Err(gone);
            }
            // It fits: the whole piece was checked.
            let at = (self.addr + offset) as i64 + done as i64;
            match copy(memory.as_raw_fd(), done, len - done, at) {
                0 => return Err(gone),
                copied if copied > 0 => done += copied as usize,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(gone),
            }
        }
        Ok(())
    }
}
