//! The memory of a device: what its keys open ([`keys`]), and copying to, from and within it.

mod keys;
mod pieces;
mod windows;

use alloc::vec::Vec;

use elver_verbs::{Memory, MemoryError, Sge};

use self::keys::Keys;
pub use self::keys::MrChange;
use self::pieces::Pieces;
use crate::aside::{Desk, ERRAND_BYTES_MAX};
use crate::maybe_pd::MaybePd;
use crate::place::{Place, Refused};

/// What is registered, and the turn whose copies find out that some of it is not at hand.
#[derive(Debug)]
pub(crate) struct Regions<M> {
    pub(crate) keys: Keys<M>,
    /// Copies that wait.
    pub(crate) desk: Desk<M>,
}

/// A checked piece of local memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) place: Place,
    pub(crate) length: u32,
}

impl<M: Memory> Regions<M> {
    pub(crate) fn new(limit: u32, max_mr_size: u64) -> Regions<M> {
        Regions { keys: Keys::new(limit, max_mr_size), desk: Desk::default() }
    }

    #[inline]
    pub(crate) fn memory(&self, region: u32) -> Result<&M, Refused> {
        self.keys.memory(region)
    }

    #[inline(always)]
    pub(crate) fn read(&self, place: Place, dst: &mut [u8]) -> Result<(), Refused> {
        let memory = self.memory(place.region)?;
        let laid = self.desk.is_laid();
        let read = if laid { Err(MemoryError::Later) } else { memory.read(place.offset, dst) };
        read.or_else(|error| self.read_aside(memory, place, dst, &error))
    }

    #[inline(always)]
    pub(crate) fn write(&self, place: Place, src: &[u8]) -> Result<(), Refused> {
        let memory = self.memory(place.region)?;
        let laid = self.desk.is_laid();
        let written = if laid { Err(MemoryError::Later) } else { memory.write(place.offset, src) };
        written.or_else(|error| self.write_aside(memory, place, src, &error))
    }

    #[cold]
    fn read_aside(
        &self,
        memory: &M,
        place: Place,
        dst: &mut [u8],
        error: &MemoryError,
    ) -> Result<(), Refused> {
        match error {
            MemoryError::Later => self.desk.read(memory, place, dst),
            _ => Err(Refused::Access),
        }
    }

    #[cold]
    fn write_aside(
        &self,
        memory: &M,
        place: Place,
        src: &[u8],
        error: &MemoryError,
    ) -> Result<(), Refused> {
        match error {
            MemoryError::Later => self.desk.write(memory, place, src),
            _ => Err(Refused::Access),
        }
    }

    #[inline(always)]
    pub(crate) fn copy(&self, dst: Place, src: Place, length: u64) -> Result<(), Refused> {
        let from = self.memory(src.region)?;
        let to = self.memory(dst.region)?;
        let aside = self.desk.is_laid() && length <= u64::from(ERRAND_BYTES_MAX);
        let copied = match aside {
            true => Err(MemoryError::Later),
            false => to.copy_from(dst.offset, from, src.offset, length),
        };
        copied.or_else(|error| self.copy_aside(dst, src, length, &error))
    }

    /// As [`Regions::copy`], into a receive. One whose memory is not at hand serves nobody: while it
    /// is waited for another message might get it.
    #[inline]
    pub(crate) fn copy_in(&self, dst: Place, src: Place, length: u64) -> Result<(), Refused> {
        let (from, to) = (self.memory(src.region)?, self.memory(dst.region)?);
        match to.copy_from(dst.offset, from, src.offset, length) {
            Ok(()) => Ok(()),
            Err(MemoryError::Later) => {
                let bytes = self.fetch(src, length)?;
                to.write(dst.offset, &bytes).map_err(|_| Refused::Access)
            }
            Err(error) => self.copy_aside(dst, src, length, &error),
        }
    }

    /// Reads what is to be copied, if it is not too long for that.
    #[cold]
    fn fetch(&self, src: Place, length: u64) -> Result<Vec<u8>, Refused> {
        if length > u64::from(ERRAND_BYTES_MAX) {
            return Err(self.desk.refuse_length());
        }
        let mut bytes = alloc::vec![0; length as usize];
        match self.read(src, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(Refused::Later) => Err(Refused::Later),
            Err(_) => Err(Refused::Source),
        }
    }

    /// Copies from one region to another when that cannot be done at once: through a buffer, and
    /// what is not at hand by errands. Or it says whose memory was at fault.
    #[cold]
    fn copy_aside(
        &self,
        dst: Place,
        src: Place,
        length: u64,
        error: &MemoryError,
    ) -> Result<(), Refused> {
        if *error != MemoryError::Later {
            return match self.look_at(src, length) {
                Ok(()) => Err(Refused::Access),
                // Whether it can be read an errand finds out.
                Err(Refused::Later) => self.fetch(src, length).and(Err(Refused::Access)),
                Err(_) => Err(Refused::Source),
            };
        }
        self.write(dst, &self.fetch(src, length)?)
    }

    /// Reads bytes, to know whether that can be: when a copy failed, whose memory was at fault.
    pub(crate) fn look_at(&self, mut at: Place, mut length: u64) -> Result<(), Refused> {
        let mut bytes = [0; 256];
        while length > 0 {
            let len = length.min(bytes.len() as u64);
            self.read(at, &mut bytes[..len as usize])?;
            at.offset += len;
            length -= len;
        }
        Ok(())
    }

    pub(crate) fn compare_swap(&self, at: Place, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.memory(at.region)?.compare_swap(at.offset, compare, swap).map_err(|_| Refused::Access)
    }

    pub(crate) fn fetch_add(&self, at: Place, add: u64) -> Result<u64, Refused> {
        self.memory(at.region)?.fetch_add(at.offset, add).map_err(|_| Refused::Access)
    }

    /// Copies `dst.len()` bytes that begin `skip` bytes into the message of `sges`.
    #[inline(always)]
    pub(crate) fn gather(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        mut dst: &mut [u8],
    ) -> Result<(), Refused> {
        let mut pieces = Pieces { sges, skip, left: dst.len() as u32 };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.keys.local(pd, sge, skip, length, false)?;
            let (piece, rest) = dst.split_at_mut(length as usize);
            self.read(place, piece)?;
            dst = rest;
        }
        if dst.is_empty() { Ok(()) } else { Err(Refused::Access) }
    }

    /// Copies `src` to where the message of `sges` stands, `skip` bytes into it.
    #[inline]
    pub(crate) fn scatter(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        mut src: &[u8],
    ) -> Result<(), Refused> {
        let mut pieces = Pieces { sges, skip, left: src.len() as u32 };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.keys.local(pd, sge, skip, length, true)?;
            let (piece, rest) = src.split_at(length as usize);
            self.write(place, piece)?;
            src = rest;
        }
        if src.is_empty() { Ok(()) } else { Err(Refused::Access) }
    }

    /// Checks the SGEs of `length` bytes that begin `skip` bytes into a message, and appends their
    /// places to `segments`.
    pub(crate) fn resolve(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        length: u32,
        writes: bool,
        segments: &mut Vec<Segment>,
    ) -> Result<(), Refused> {
        self.walk(pd, sges, skip, length, writes, |_, place, length| {
            segments.push(Segment { place, length });
            Ok(())
        })
    }

    /// Calls `visit` for each checked piece of `length` bytes that begin `skip` bytes into the
    /// message. A message shorter than that is refused.
    #[inline(always)]
    pub(crate) fn walk<E: From<Refused>>(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        length: u32,
        writes: bool,
        mut visit: impl FnMut(&Self, Place, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pieces = Pieces { sges, skip, left: length };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.keys.local(pd, sge, skip, length, writes)?;
            visit(self, place, length)?;
        }
        if pieces.left == 0 { Ok(()) } else { Err(Refused::Access.into()) }
    }
}
