//! What all memory regions have: rights, and a place among those of the process.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use elver_soft::SoftMemory;
use elver_verbs::{AccessFlags, Device as _, Pd as PdHandle};

use crate::device_memory::all;
use crate::direct::{Told, tell_region};
use crate::engine::{Engine, Kind, Region};
use crate::errno::of_verbs;
use crate::layout::{Mr, Pd};
use crate::owned::given;
use crate::parents::Made;
use crate::told::Told as Of;

/// `IBV_ACCESS_OPTIONAL_RANGE`: what a device may leave aside, relaxed ordering among it.
const OPTIONAL: c_uint = 0x3ff0_0000;
/// `IBV_ACCESS_ON_DEMAND`, and `IBV_ACCESS_HUGETLB`, which is a hint beside it: how memory is there, and no
/// right.
pub(crate) const ON_DEMAND: c_uint = 1 << 6;
pub(crate) const HUGE: c_uint = 1 << 7;

/// What a QP lets peers do, of the flags that regions have.
pub(crate) fn rights_of_qp(access: c_uint) -> Result<AccessFlags, c_int> {
    AccessFlags::from_bits(access & !(OPTIONAL | ON_DEMAND | HUGE)).ok_or(libc::EINVAL)
}

/// The rights that a program asks for.
pub(crate) fn rights(access: c_uint) -> Result<AccessFlags, c_int> {
    let access = AccessFlags::from_bits(access & !OPTIONAL).ok_or(libc::EOPNOTSUPP)?;
    // The kernel refuses these too: who may write from afar must be able to here.
    if access.intersects(AccessFlags::REMOTE_CHANGES) && !access.contains(AccessFlags::LOCAL_WRITE)
    {
        return Err(libc::EINVAL);
    }
    Ok(access)
}

/// Whether somebody may write with such rights, a window's peer among them (`ib_access_writable` of the kernel's).
pub(crate) fn writes(access: AccessFlags) -> bool {
    access.intersects(AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND | AccessFlags::REMOTE_CHANGES)
}

/// Registers memory, the program's or a device memory's.
pub(crate) fn register(
    pd: *mut Pd,
    memory: SoftMemory,
    iova: u64,
    access: AccessFlags,
    addr: *mut c_void,
    length: usize,
    kind: Kind,
) -> Result<*mut Mr, c_int> {
    // SAFETY: the verbs contract.
    let (context, domain) = unsafe { (given(pd)?.context, PdHandle((*pd).handle)) };
    let engine = Engine::of(pd)?;
    let start = memory.as_ptr().expose_provenance() as u64;
    let mut state = engine.lock();
    let info = state.device.reg_mr(domain, memory, Some(iova), access).map_err(of_verbs)?;
    if let Kind::DeviceMemory(dm) = &kind
        && let Some(dm) = all().dms.get_mut(dm)
    {
        dm.users += 1;
    }
    if matches!(kind, Kind::Own) {
        let (rkey, base, length) = (info.rkey, info.addr, info.length);
        let told = Told { rkey, pd: domain, base, length, access, address: start };
        tell_region(engine.hub.as_ref(), &told);
    }
    let (lkey, rkey, writable) = (info.lkey, info.rkey, writes(access));
    let mr = boxed(Mr { context, pd, addr, length, handle: info.mr.0, lkey, rkey });
    let of = Of { context, element: mr.cast() };
    state.parents.made(Made::Mr(info.mr), pd);
    state.mrs.insert(info.mr, Region { of, pd: domain, length, lkey, rkey, writable, kind });
    Ok(mr)
}

pub(crate) fn boxed(value: Mr) -> *mut Mr {
    // SAFETY: null pointers and numbers may be zero; so the padding is too.
    let mut mr: Box<Mr> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
    *mr = value;
    Box::into_raw(mr)
}
