//! Protection domains and memory regions.
//!
//! A region is the program's own bytes, which a device reads and writes while the program does as it
//! likes: they are only ever copied, never borrowed.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use elver_soft::SoftMemory;
use elver_verbs::{AccessFlags, Device as _, Mr as MrHandle, Pd as PdHandle};

use crate::engine::Engine;
use crate::errno::{code, object, of_verbs};
use crate::layout::{Context, Mr, Pd};

/// `IBV_ACCESS_OPTIONAL_RANGE`: what a device may leave aside, relaxed ordering among it.
const OPTIONAL: c_uint = 0x3ff0_0000;
const PAGE: usize = 4096;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    object(|| {
        let handle = Engine::get()?.lock().device.alloc_pd().map_err(of_verbs)?;
        Ok(Box::into_raw(Box::new(Pd { context, handle: handle.0 })))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = PdHandle(unsafe { (*pd).handle });
        Engine::get()?.lock().device.dealloc_pd(handle).map_err(of_verbs)?;
        // SAFETY: it is ours, and nothing uses it.
        drop(unsafe { Box::from_raw(pd) });
        Ok(())
    })
}

/// Whether all of it is mapped: the kernel would pin it now, and fail where it is not.
fn is_mapped(addr: usize, length: usize) -> bool {
    let first = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(length) else { return false };
    // SAFETY: a flush that nobody waits for changes no memory.
    unsafe { libc::msync(first as *mut c_void, end - first, libc::MS_ASYNC) == 0 }
}

/// Registers memory of the program's.
///
/// # Safety
/// The verbs contract of `ibv_reg_mr`: it stays mapped until it is deregistered.
unsafe fn reg(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut Mr, c_int> {
    let rights = access & !OPTIONAL;
    let access = AccessFlags::from_bits(rights).ok_or(libc::EOPNOTSUPP)?;
    // The kernel refuses these too: who may write from afar must be able to here.
    if access.intersects(AccessFlags::REMOTE_CHANGES) && !access.contains(AccessFlags::LOCAL_WRITE)
    {
        return Err(libc::EINVAL);
    }
    let start = NonNull::new(addr.cast::<u8>()).filter(|_| length > 0).ok_or(libc::EINVAL)?;
    if !is_mapped(addr as usize, length) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the verbs contract; nobody here holds references to it.
    let memory = unsafe { SoftMemory::from_raw_parts(start, length) };
    // SAFETY: the verbs contract.
    let (context, handle) = unsafe { ((*pd).context, PdHandle((*pd).handle)) };
    let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
    let info = Engine::get()?
        .lock()
        .device
        .reg_mr(handle, memory, Some(iova), access)
        .map_err(of_verbs)?;
    // SAFETY: null pointers and numbers may be zero.
    let mut mr: Box<Mr> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
    *mr = Mr { context, pd, addr, length, handle: info.mr.0, lkey: info.lkey, rkey: info.rkey };
    Ok(Box::into_raw(mr))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the verbs contract.
    object(|| unsafe { reg(pd, addr, length, addr as u64, access as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the verbs contract.
    object(|| unsafe { reg(pd, addr, length, iova, access as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    // SAFETY: the verbs contract.
    object(|| unsafe { reg(pd, addr, length, iova, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = MrHandle(unsafe { (*mr).handle });
        Engine::get()?.lock().device.dereg_mr(handle).map_err(of_verbs)?;
        // SAFETY: it is ours, and nothing uses it.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    })
}
