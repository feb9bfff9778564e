//! Memory regions.
//!
//! A region is the program's own bytes, which a device reads and writes while the program does as it
//! likes: they are only ever copied, never borrowed.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use elver_soft::{MrChange, SoftMemory};
use elver_verbs::{AccessFlags, Device as _, Mr as Handle, Pd as PdHandle};

use crate::device_memory::all;
use crate::direct::{Change, take_back_region, tell_region_again};
use crate::engine::{Engine, Kind, Region, State};
use crate::errno::{code, object, of_verbs, set};
use crate::layout::{Mr, Pd};
use crate::odp;
use crate::owned::given;
use crate::parents::Made;
use crate::region::{ON_DEMAND, boxed, register, rights, writes};
use crate::told::Told;

const PAGE: usize = 4096;
/// `enum ibv_rereg_mr_flags`.
const TRANSLATION: c_int = 1;
const PD: c_int = 2;
const ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_INPUT` and `IBV_REREG_MR_ERR_CMD`.
const ERR_INPUT: c_int = -1;
const ERR_CMD: c_int = -4;

/// Whether all of it is there for who reads it, or writes it. The kernel would pin it now, and fail where it is not; this
/// has it come, as that does. Before Linux 5.14 nothing but maps says what may be done to memory: it is only looked whether it
/// is mapped.
fn is_there(addr: usize, length: usize, writes: bool) -> bool {
    let first = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(length) else { return false };
    let come = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let start = first as *mut c_void;
    // SAFETY: pages that come change no memory, no more than a flush that nobody waits for.
    unsafe {
        let is_known = || libc::madvise(start, 0, come) == 0;
        libc::madvise(start, end - first, come) == 0
            || !is_known() && libc::msync(start, end - first, libc::MS_ASYNC) == 0
    }
}

/// Memory of the program's, for who writes it too.
///
/// # Safety
/// The verbs contract of `ibv_reg_mr`: it stays mapped until it is deregistered.
unsafe fn memory(addr: *mut c_void, length: usize, writes: bool) -> Result<SoftMemory, c_int> {
    let start = NonNull::new(addr.cast::<u8>()).filter(|_| length > 0).ok_or(libc::EINVAL)?;
    if !is_there(addr as usize, length, writes) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's word; nobody here holds references to it.
    Ok(unsafe { SoftMemory::from_raw_parts(start, length) })
}

/// # Safety
/// As [`memory`].
pub(crate) unsafe fn reg(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut Mr, c_int> {
    if access & ON_DEMAND != 0 {
        return odp::reg(pd, addr, length, iova, access);
    }
    let access = rights(access)?;
    // SAFETY: the caller's word.
    let memory = unsafe { memory(addr, length, writes(access))? };
    let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
    register(pd, memory, iova, access, addr, length, Kind::Own)
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

/// Forgets a region that the device has no more.
pub(crate) fn forget(state: &mut State, mr: Handle) {
    let region = state.mrs.remove(&mr);
    state.parents.ended(Made::Mr(mr));
    if let Some(Region { kind: Kind::DeviceMemory(dm), .. }) = region
        && let Some(dm) = all().dms.get_mut(&dm)
    {
        dm.users -= 1;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, rkey) = unsafe { (Handle(given(mr)?.handle), (*mr).rkey) };
        let engine = Engine::of(mr)?;
        // Nobody may wait for a peer with the device in hand.
        let told = take_back_region(engine.hub.as_ref(), rkey)?;
        let mut state = engine.lock();
        state.device.dereg_mr(handle).map_err(|error| {
            tell_region_again(engine.hub.as_ref(), rkey, told, &Change::default());
            of_verbs(error)
        })?;
        forget(&mut state, handle);
        state.bare.remove(&mr.addr());
        // SAFETY: it is ours, and nothing uses it.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    })
}

/// What was wrong with `ibv_rereg_mr`, and the errno.
type Refused = (c_int, c_int);

/// # Safety
/// The verbs contract of `ibv_rereg_mr`.
unsafe fn rereg(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<(), Refused> {
    let wrong = |error| (ERR_INPUT, error);
    let has = |flag: c_int| flags & flag != 0;
    // SAFETY: the caller's word.
    let object = unsafe { given(mr) }.map_err(wrong)?;
    let handle = Handle(object.handle);
    if flags == 0 {
        return Err((ERR_CMD, libc::EINVAL));
    }
    if flags & !(TRANSLATION | PD | ACCESS) != 0
        || has(TRANSLATION) && (addr.is_null() || length == 0)
        || has(PD) && pd.is_null()
        || access != 0 && !has(ACCESS)
    {
        return Err(wrong(libc::EINVAL));
    }
    let engine = Engine::of(mr).map_err(wrong)?;
    let mut change = MrChange { memory: None, pd: None, access: None };
    if has(PD) {
        // SAFETY: the caller's word.
        change.pd = Some(PdHandle(unsafe { (*pd).handle }));
    }
    if has(ACCESS) {
        change.access = Some(rights(access as c_uint).map_err(wrong)?);
    }
    let writable = match change.access {
        Some(access) => writes(access),
        None => engine.lock().mrs.get(&handle).is_some_and(|region| region.writable),
    };
    if has(TRANSLATION) {
        // SAFETY: the caller's word.
        let memory = unsafe { memory(addr, length, writable) };
        change.memory = Some((memory.map_err(|error| (ERR_CMD, error))?, addr as u64));
    } else if has(ACCESS)
        // Who imported it does not know where it is.
        && !object.addr.is_null()
        && !is_there(object.addr as usize, object.length, writable)
    {
        return Err((ERR_CMD, libc::EFAULT));
    }
    let (domain, rights) = (change.pd, change.access);
    let (hub, rkey) = (engine.hub.as_ref(), object.rkey);
    let told = take_back_region(hub, rkey).map_err(|error| (ERR_CMD, error))?;
    let again = |refused| {
        tell_region_again(hub, rkey, told, &Change::default());
        refused
    };
    let mut state = engine.lock();
    let region = state.mrs.get(&handle).ok_or_else(|| again(wrong(libc::EINVAL)))?;
    if !matches!(region.kind, Kind::Own) {
        return Err(again(wrong(libc::EINVAL)));
    }
    let changed = state.device.rereg_mr(handle, change);
    changed.map_err(|error| again((ERR_CMD, of_verbs(error))))?;
    let memory = has(TRANSLATION).then_some((addr as u64, length as u64));
    tell_region_again(hub, rkey, told, &Change { memory, pd: domain, access: rights });
    if has(TRANSLATION) {
        (object.addr, object.length) = (addr, length);
    }
    if has(PD) {
        object.pd = pd;
        state.parents.ended(Made::Mr(handle));
        state.parents.made(Made::Mr(handle), pd);
    }
    if let Some(region) = state.mrs.get_mut(&handle) {
        region.length = object.length;
        region.pd = domain.unwrap_or(region.pd);
        region.writable = writable;
    }
    Ok(())
}

/// A refusal leaves the region as it was, whatever it is told as.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the verbs contract.
    let result = crate::guard(Err((ERR_CMD, libc::EIO)), || unsafe {
        rereg(mr, flags, pd, addr, length, access)
    });
    match result {
        Ok(()) => 0,
        Err((code, error)) => {
            set(error);
            code
        }
    }
}

/// A region of this process by its number. Its address is not told, as rdma-core's is not.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut Pd, handle: u32) -> *mut Mr {
    object(|| {
        // SAFETY: the verbs contract.
        let (context, domain) = unsafe { (given(pd)?.context, PdHandle((*pd).handle)) };
        let mut state = Engine::of(pd)?.lock();
        let Some(region) = state.mrs.get(&Handle(handle)) else { return Err(libc::ENOENT) };
        if region.pd != domain {
            return Err(libc::EINVAL);
        }
        let Region { length, lkey, rkey, .. } = *region;
        let mr = boxed(Mr { context, pd, addr: ptr::null_mut(), length, handle, lkey, rkey });
        state.bare.insert(mr.addr(), Told { context, element: mr.cast() });
        Ok(mr)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut Mr) {
    if !mr.is_null() {
        let _ = Engine::of(mr).map(|engine| engine.lock().bare.remove(&mr.addr()));
        // SAFETY: the verbs contract: it came from `ibv_import_mr`; the region itself stays.
        drop(unsafe { Box::from_raw(mr) });
    }
}
