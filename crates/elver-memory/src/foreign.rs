//! A piece of another process's memory.

use std::io;
use std::sync::Arc;

use elver_verbs::MemoryError;

use crate::copier::{Copier, Ended};
use crate::error::MapError;
use crate::process::{Guard, PIECE, ProcessMemory, Waits};

/// Bytes that are copied at once between two pieces of other processes' memory.
const CHUNK: usize = 16 * 1024;

/// A piece of a process's memory.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) process: Arc<ProcessMemory>,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl Foreign {
    /// Checks that both ends of the piece can be read.
    pub(crate) fn new(
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
    pub(crate) fn unseen(
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

    /// Why it is not to be had.
    pub(crate) fn refused(&self, reason: io::Error) -> MapError {
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
    pub(crate) fn payer(&self) -> u64 {
        self.process.guard.as_ref().map_or(0, |guard| guard.account)
    }

    /// Copies out of the process; [`MemoryError::Later`] if that could have to wait.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, dst.len())?;
        if !self.process.is_at_hand(at, dst.len()) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the slice is valid for its length, and ours alone.
        let read = unsafe { self.process.read(at, dst.as_mut_ptr(), dst.len()) };
        read.ok_or(MemoryError::Gone { offset, len: dst.len() as u64 })
    }

    /// Copies into the process; [`MemoryError::Later`] if that could have to wait.
    pub(crate) fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, src.len())?;
        if !self.process.is_at_hand(at, src.len()) {
            return Err(MemoryError::Later);
        }
        // SAFETY: the slice is valid for its length.
        let written = unsafe { self.process.write(at, src.as_ptr(), src.len()) };
        written.ok_or(MemoryError::Gone { offset, len: src.len() as u64 })
    }

    /// As [`Foreign::read`], but it waits, for as long as a copier does.
    pub(crate) fn read_waiting(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
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
    pub(crate) fn write_waiting(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
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
    pub(crate) fn submit(
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
    pub(crate) fn copy_from(
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
    pub(crate) unsafe fn read_into(
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
    pub(crate) unsafe fn write_from(
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
    pub(crate) fn check(&self, offset: u64, len: usize) -> Result<i64, MemoryError> {
        MemoryError::check_range(offset, len as u64, self.len)?;
        // It fits: the whole piece was checked when it was made.
        Ok((self.addr + offset) as i64)
    }
}
