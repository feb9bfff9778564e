//! Registration by attributes, and buffers that the library allocates for that, as rdma-core has both since 59 and 64.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::errno::{object, set};
use crate::layout::{Mr, Pd};
use crate::memory::reg;
use crate::owned::given;

/// `enum ibv_mr_init_attr_mask`.
const IOVA: u64 = 1 << 0;
const ADDR: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const BUF: u64 = 1 << 5;
/// The least that a buffer is aligned to, whatever it is made of.
const PAGE: usize = 4096;

/// `struct ibv_buf`, which programs only hand back.
struct Buffer {
    addr: *mut c_void,
    size: usize,
    pd: *mut Pd,
}

/// `struct ibv_mr_init_attr`.
#[repr(C)]
struct InitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buffer,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut Pd,
    size: usize,
    buffer: *mut *mut Buffer,
) -> *mut c_void {
    object(|| {
        // SAFETY: the verbs contract.
        unsafe {
            given(pd)?;
            let to = given(buffer)?;
            let mut addr = ptr::null_mut();
            match libc::posix_memalign(&mut addr, PAGE, size) {
                0 => {}
                error => return Err(error),
            }
            *to = Box::into_raw(Box::new(Buffer { addr, size, pd }));
            Ok(addr)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buffer: *mut Buffer) {
    if !buffer.is_null() {
        // SAFETY: the verbs contract: it came from `ibv_alloc_buf`, and so did its memory, which nobody uses any more.
        unsafe { libc::free(Box::from_raw(buffer).addr) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut Pd,
    buffer: *mut Buffer,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    object(|| {
        // SAFETY: the verbs contract.
        unsafe {
            within(pd, buffer, addr, length)?;
            reg(pd, addr, length, addr as u64, access as c_uint)
        }
    })
}

/// Whether memory lies in a buffer, and its domain is the buffer's.
///
/// # Safety
/// Null, or what came from `ibv_alloc_buf`.
unsafe fn within(
    pd: *mut Pd,
    buffer: *mut Buffer,
    addr: *mut c_void,
    length: usize,
) -> Result<(), c_int> {
    // SAFETY: the caller's word.
    let buffer = unsafe { given(buffer)? };
    let offset = (addr as usize).checked_sub(buffer.addr as usize);
    let room = offset.and_then(|offset| buffer.size.checked_sub(offset));
    if pd == buffer.pd && room.is_some_and(|room| length <= room) {
        return Ok(());
    }
    Err(libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut Pd, attr: *const InitAttr) -> *mut Mr {
    object(|| {
        if attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract: what the mask names is there, and nothing else is looked at. It has no buffer as
        // rdma-core 59 has it.
        unsafe {
            let mask = (*attr).comp_mask;
            let has = |field: u64| mask & field != 0;
            // Steering tags are for caches that a NIC writes into, and DMA-bufs other devices' memory.
            if mask & !(IOVA | ADDR | FD | FD_OFFSET | BUF) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if has(FD) && !has(ADDR) && !has(BUF) && has(FD_OFFSET) && has(IOVA) {
                return Err(libc::EOPNOTSUPP);
            }
            if has(FD) || has(FD_OFFSET) || !has(ADDR) {
                return Err(libc::EINVAL);
            }
            let (addr, length) = ((*attr).addr, (*attr).length);
            if has(BUF) {
                within(pd, (*attr).buf, addr, length)?;
            }
            let iova = if has(IOVA) { (*attr).iova } else { addr as u64 };
            reg(pd, addr, length, iova, (*attr).access as c_uint)
        }
    })
}

/// A buffer is memory of the process's own, and no DMA-buf.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd() -> c_int {
    set(libc::ENODATA);
    -1
}
