//! Device memory: memory that belongs to the device, which a program reaches by copies, and by WRs once
//! it is registered.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use elver_soft::SoftMemory;
use elver_verbs::{AccessFlags, Memory as _};

use crate::device_memory::all;
use crate::engine::{Engine, Kind};
use crate::errno::{code, object};
use crate::layout::{AllocDmAttr, Context, Dm, Mr, Pd};
use crate::owned::given;
use crate::region::{register, rights};
use crate::told::{CLOSED, Told, owned};

/// How much of it a device has, in bytes.
pub(crate) const DM_MAX: usize = 1 << 20;
/// What copies and registrations are aligned to, in bytes.
const WORD: u64 = 4;
/// Its memory begins at a page.
const LOG_ALIGN_MAX: u32 = 12;

/// The engine of a context that is not closed; none where it is a parent's, by which a child of `fork` has device memory too.
fn engine_of(context: *mut Context) -> Result<Option<&'static Engine>, c_int> {
    // SAFETY: the verbs contract.
    if unsafe { owned(given(context)?) }.generation == CLOSED {
        return Err(libc::ENODEV);
    }
    Ok(Engine::of(context).ok())
}

pub(crate) unsafe extern "C" fn alloc_dm(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    object(|| {
        // SAFETY: the verbs contract.
        let attr = unsafe { given(attr)? };
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > LOG_ALIGN_MAX {
            return Err(libc::EINVAL);
        }
        engine_of(context)?;
        let mut all = all();
        let used: usize = all.dms.values().map(|dm| dm.length).sum();
        if attr.length > DM_MAX - used {
            return Err(libc::ENOMEM);
        }
        let memory = SoftMemory::alloc(attr.length as u64).map_err(|_| libc::ENOMEM)?;
        let of = Told { context, element: std::ptr::null_mut() };
        Ok(boxed(context, all.keep(memory, attr.length, of)))
    })
}

fn boxed(context: *mut Context, handle: u32) -> *mut Dm {
    let (to, from) = (Some(memcpy_to_dm as _), Some(memcpy_from_dm as _));
    let dm = Dm { context, memcpy_to_dm: to, memcpy_from_dm: from, comp_mask: 0, handle };
    Box::into_raw(Box::new(dm))
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut Dm) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = unsafe { given(dm)? }.handle;
        let mut state = Engine::of(dm).ok().map(Engine::lock);
        let mut all = all();
        match all.dms.get(&handle) {
            None => return Err(libc::EINVAL),
            Some(found) if found.users > 0 => return Err(libc::EBUSY),
            Some(_) => all.dms.remove(&handle),
        };
        if let Some(state) = &mut state {
            state.bare.remove(&dm.addr());
        }
        // SAFETY: it is ours.
        drop(unsafe { Box::from_raw(dm) });
        Ok(())
    })
}

/// The memory, if what is to be copied lies in it.
fn checked(dm: *mut Dm, offset: u64, length: usize) -> Result<SoftMemory, c_int> {
    // SAFETY: the verbs contract.
    let handle = unsafe { given(dm)? }.handle;
    let all = all();
    let found = all.dms.get(&handle).ok_or(libc::EINVAL)?;
    let is_inside = offset.checked_add(length as u64).is_some_and(|end| end <= found.length as u64);
    if !is_inside || !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
        return Err(libc::EINVAL);
    }
    Ok(found.memory.clone())
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut Dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        let memory = checked(dm, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        if from.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the verbs contract: the program has `length` bytes there.
        let bytes = unsafe { slice::from_raw_parts(from.cast(), length) };
        memory.write(offset, bytes).map_err(|_| libc::EINVAL)
    })
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut Dm,
    offset: u64,
    length: usize,
) -> c_int {
    code(|| {
        let memory = checked(dm, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        if to.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the verbs contract: the program has room for `length` bytes there.
        let bytes = unsafe { slice::from_raw_parts_mut(to.cast(), length) };
        memory.read(offset, bytes).map_err(|_| libc::EINVAL)
    })
}

/// Registers a piece of it, whose addresses count from zero.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut Pd,
    dm: *mut Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut Mr {
    object(|| {
        let access = rights(access)?;
        if !access.contains(AccessFlags::ZERO_BASED) {
            return Err(libc::EINVAL);
        }
        let part =
            checked(dm, offset, length)?.part(offset, length as u64).map_err(|_| libc::EINVAL)?;
        // SAFETY: the verbs contract.
        let handle = unsafe { given(dm)? }.handle;
        register(pd, part, 0, access, std::ptr::null_mut(), length, Kind::DeviceMemory(handle))
    })
}

/// A device memory of this process by its number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(context: *mut Context, handle: u32) -> *mut Dm {
    object(|| {
        let mut state = engine_of(context)?.map(Engine::lock);
        if !all().dms.contains_key(&handle) {
            return Err(libc::ENOENT);
        }
        let dm = boxed(context, handle);
        if let Some(state) = &mut state {
            state.bare.insert(dm.addr(), Told { context, element: dm.cast() });
        }
        Ok(dm)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut Dm) {
    if !dm.is_null() {
        let _ = Engine::of(dm).map(|engine| engine.lock().bare.remove(&dm.addr()));
        // SAFETY: the verbs contract: it came from `ibv_import_dm`; the memory itself stays.
        drop(unsafe { Box::from_raw(dm) });
    }
}
