//! The memory of the program that is watched.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::unistd::Pid;

/// The longest string that is read.
const STRING_MAX: usize = 4096;

pub(super) struct Memory(File);

impl Memory {
    pub(super) fn of(pid: Pid) -> Result<Memory> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Memory(file.with_context(|| format!("cannot open {path}"))?))
    }

    /// As many bytes as are there, of so many.
    pub(super) fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let count = self.0.read_at(&mut bytes, at).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    pub(super) fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).with_context(|| format!("no memory at {at:#x}"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A string that ends with a zero.
    pub(super) fn string(&self, at: u64) -> String {
        let mut bytes = Vec::new();
        while bytes.len() < STRING_MAX {
            let from = at + bytes.len() as u64;
            // Not beyond the page: the next may not be there.
            let part = self.read(from, 256.min(4096 - (from % 4096) as usize));
            if part.is_empty() {
                break;
            }
            if let Some(end) = part.iter().position(|byte| *byte == 0) {
                bytes.extend(&part[..end]);
                break;
            }
            bytes.extend(part);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, at).with_context(|| format!("cannot write at {at:#x}"))
    }
}
