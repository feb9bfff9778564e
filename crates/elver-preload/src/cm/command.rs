//! A command that librdmacm writes: what it says, and where it is answered.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use elver_verbs::Time;

use crate::cm::abi::Plain;
use crate::cm::address;

/// `RDMA_UDP_QKEY`.
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;

/// A command of a program's.
pub(crate) struct Command<'a> {
    pub(crate) channel: RawFd,
    pub(crate) number: u32,
    pub(crate) bytes: &'a [u8],
    /// Room for the answer.
    pub(crate) room: usize,
    pub(crate) now: Time,
}

impl Command<'_> {
    /// What was written; bytes at its end that an older librdmacm leaves out are zeros.
    pub(crate) fn read<T: Plain>(&self, at_least: usize) -> Result<T, c_int> {
        if self.bytes.len() < at_least {
            return Err(libc::EINVAL);
        }
        let mut value = T::zero();
        let count = self.bytes.len().min(size_of::<T>());
        // SAFETY: numbers, of which so many bytes are there.
        unsafe {
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), (&raw mut value).cast(), count);
        }
        Ok(value)
    }

    pub(crate) fn whole<T: Plain>(&self) -> Result<T, c_int> {
        self.read(size_of::<T>())
    }

    /// Writes an answer where the program wants it.
    pub(crate) fn answer<T: Plain>(&self, at: u64, value: T) -> Result<(), c_int> {
        put(at, self.room, value)
    }
}

/// Writes an answer where a program wants it, as much as there is room for.
pub(crate) fn put<T: Plain>(at: u64, room: usize, value: T) -> Result<(), c_int> {
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(at as usize);
    if to.is_null() {
        return Err(libc::EFAULT);
    }
    let count = room.min(size_of::<T>());
    // SAFETY: the contract of the write: the program has that room there.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast(), to, count) };
    Ok(())
}

/// An address that must be there.
pub(crate) fn given<T: Plain>(at: &T) -> Result<SocketAddr, c_int> {
    address::of(at).ok_or(match address::family(at) {
        libc::AF_UNSPEC => libc::EINVAL,
        _ => libc::EAFNOSUPPORT,
    })
}
