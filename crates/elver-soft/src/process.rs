//! The memory of another process, as `/proc/PID/mem` gives it.
//!
//! That file stays with the memory that it was opened for: when the process ends, or runs another
//! program, also one of another user's, every access fails. `process_vm_readv` would take whatever
//! then has the number.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Another process's memory, to be registered piece by piece ([`crate::SoftMemory::of_process`]).
#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process of this user.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if the system does not let us at it: then the process is
    /// another user's, or runs another user's program, or Yama forbids it. Where
    /// `/proc/sys/kernel/yama/ptrace_scope` is 1, the process must allow it by
    /// `prctl(PR_SET_PTRACER, …)`, or this one needs `CAP_SYS_PTRACE`.
    pub fn open(pid: i32, uid: u32) -> io::Result<ProcessMemory> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        // After it was opened: what runs now is what was opened, or that has ended.
        let owner = fs::metadata(format!("/proc/{pid}"))?.uid();
        if owner != uid {
            let what = format!("process {pid} belongs to user {owner}, not to {uid}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(ProcessMemory { file })
    }

    /// Copies from the process; false if it has nothing there.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes.
    pub(crate) unsafe fn read(&self, from: usize, to: *mut u8, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            let Ok(at) = libc::off_t::try_from(from + done) else { return false };
            // SAFETY: by the caller's contract; `done` lies below `len`.
            let count =
                unsafe { libc::pread(self.file.as_raw_fd(), to.add(done).cast(), len - done, at) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => done += count,
                _ => return false,
            }
        }
        true
    }

    /// Copies to the process; false if it has nothing there, or forbids it.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    pub(crate) unsafe fn write(&self, to: usize, from: *const u8, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            let Ok(at) = libc::off_t::try_from(to + done) else { return false };
            // SAFETY: by the caller's contract; `done` lies below `len`.
            let count = unsafe {
                libc::pwrite(self.file.as_raw_fd(), from.add(done).cast(), len - done, at)
            };
            match usize::try_from(count) {
                Ok(count) if count > 0 => done += count,
                _ => return false,
            }
        }
        true
    }
}
