use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use elver::{AccessFlags, Error, Mr, RemoteAddr, Session, Sge};

/// Registered memory for messages, or a part of it ([`crate::Group::alloc`]). A long message from one region to
/// another is not copied: the receiver's node READs it from the sender's memory. Clones are the same memory, which
/// lasts as long as one of them, and as the requests that use it.
///
/// A message is what the region holds while it is sent: who writes into it before the send is over may send old
/// bytes, new ones, or both. That holds also behind a send that failed since its receiver is lost ([`crate::Error::Lost`]):
/// the receiver may still READ the memory, and sees what it is used for next. Memory that it must not see is to be another
/// region's.
#[derive(Clone)]
pub struct Region {
    mr: Rc<Mr>,
    offset: u64,
    len: u64,
}

impl Region {
    pub(crate) fn new(session: &Session, len: u64) -> Result<Region, Error> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        Ok(Region { mr: Rc::new(session.alloc(len.max(1), access)?), offset: 0, len })
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it: the same memory.
    ///
    /// # Errors
    /// [`elver::Error::Invalid`] if it does not lie inside.
    pub fn slice(&self, range: Range<u64>) -> Result<Region, Error> {
        let Range { start, end } = range;
        if start > end || end > self.len {
            return Err(Error::Invalid { what: "the range does not lie in the region" });
        }
        Ok(Region { mr: self.mr.clone(), offset: self.offset + start, len: end - start })
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`elver::Error::Invalid`] if they do not lie inside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.mr.read(self.within(offset, into.len())?, into)
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// [`elver::Error::Invalid`] if they do not lie inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.mr.write(self.within(offset, bytes.len())?, bytes)
    }

    fn within(&self, offset: u64, len: usize) -> Result<u64, Error> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::Invalid { what: "the bytes do not lie in the region" });
        }
        Ok(self.offset + offset)
    }

    /// Where peers READ it.
    pub(crate) fn remote(&self) -> RemoteAddr {
        self.mr.remote(self.offset)
    }

    /// A part of it, for a WR.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        self.mr.sge(self.offset + offset, len)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}
