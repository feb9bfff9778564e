use std::io;

use rustix::process::Pid;
use thiserror::Error;

/// Why memory could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No memory could be mapped.
    #[error("cannot map {len} bytes: {reason}")]
    Memory {
        /// Bytes asked for.
        len: u64,
        /// What the kernel said.
        reason: rustix::io::Errno,
    },
    /// A file cannot be mapped as shared memory.
    #[error("cannot map {len} bytes of the file: {reason}")]
    Map {
        /// Bytes asked for.
        len: u64,
        /// What the kernel said.
        reason: io::Error,
    },
    /// The memory of another process cannot be reached.
    #[error("cannot reach the memory of process {pid}: {reason}; {advice}")]
    Process {
        /// The process.
        pid: Pid,
        /// What the kernel said.
        reason: io::Error,
        /// What to do.
        advice: String,
    },
}
