//! On-demand paging: regions of memory that need not be there, and may go and come while they are
//! registered. The kernel copies it (`/proc/self/mem`), and says where there is none.
//!
//! Such copies are not atomic for the program, so that peers have no atomics on these regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use elver_soft::{ProcessMemory, SoftMemory};
use elver_verbs::{AccessFlags, Mr as Handle, Pd as PdHandle};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};

use crate::addresses::ADDRESSES;
use crate::engine::{Engine, Kind, Region};
use crate::errno::code;
use crate::layout::{Mr, Pd, Sge};
use crate::owned::given;
use crate::region::{HUGE, ON_DEMAND, register, rights};

/// `enum ibv_odp_transport_cap_bits`: all but atomics and, where there are none, WRITE and READ.
const RC: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5;
const UC: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 5;
const UD: u32 = 1 | 1 << 1 | 1 << 5;
/// `IBV_ODP_SUPPORT` and `IBV_ODP_SUPPORT_IMPLICIT`.
const GENERAL: u64 = 1 | 1 << 1;

/// `enum ib_uverbs_advise_mr_advice`, and `IB_UVERBS_ADVISE_MR_FLAG_FLUSH`.
const PREFETCH: c_uint = 0;
const PREFETCH_WRITE: c_uint = 1;
const PREFETCH_NO_FAULT: c_uint = 2;
const FLUSH: u32 = 1;

const PAGE: u64 = 4096;

/// This process's memory, opened by the first who asks; a child has another.
fn own_memory() -> Result<Arc<ProcessMemory>, c_int> {
    static OWN: Mutex<Option<(Pid, Arc<ProcessMemory>)>> = Mutex::new(None);
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = getpid();
    if let Some((of, memory)) = &*own
        && *of == pid
    {
        return Ok(memory.clone());
    }
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| error.raw_os_error())?;
    let memory = ProcessMemory::open(pid, geteuid().as_raw(), pidfd);
    let memory = Arc::new(memory.map_err(|_| libc::EOPNOTSUPP)?);
    *own = Some((pid, memory.clone()));
    Ok(memory)
}

/// `struct ibv_odp_caps`: nothing where the system keeps a process from its own memory.
pub(crate) fn caps() -> [u64; 3] {
    match own_memory() {
        Ok(_) => [GENERAL, u64::from(RC) | u64::from(UC) << u32::BITS, UD.into()],
        Err(_) => [0; 3],
    }
}

/// What XRC does on demand: as RC.
pub(crate) fn xrc_caps() -> u32 {
    if own_memory().is_ok() { RC } else { 0 }
}

/// Registers memory on demand: none is looked at now. No address and all bytes are the whole of the
/// process's memory.
pub(crate) fn reg(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut Mr, c_int> {
    let access = rights(access & !(ON_DEMAND | HUGE))?;
    if access.contains(AccessFlags::ZERO_BASED) {
        return Err(libc::EOPNOTSUPP);
    }
    let implicit = addr.is_null() && length == usize::MAX;
    if !implicit && (addr.is_null() || length == 0) {
        return Err(libc::EINVAL);
    }
    let bytes = if implicit { ADDRESSES } else { length as u64 };
    let memory = SoftMemory::of_process_unseen(own_memory()?, addr as u64, bytes);
    let memory = memory.map_err(|_| libc::EINVAL)?;
    let kind = Kind::OnDemand { addr: addr as u64 };
    // A peer's atomic is refused as if its right had not been asked for.
    register(pd, memory, iova, access - AccessFlags::REMOTE_ATOMIC, addr, length, kind)
}

/// Has pages of such regions come now.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut Pd,
    advice: c_uint,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    code(|| {
        if flags & !FLUSH != 0 || list.is_null() || count == 0 {
            return Err(libc::EINVAL);
        }
        if !matches!(advice, PREFETCH | PREFETCH_WRITE | PREFETCH_NO_FAULT) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the verbs contract.
        let domain = PdHandle(unsafe { given(pd)? }.handle);
        let mut pieces = Vec::new();
        {
            let state = Engine::of(pd)?.lock();
            for at in 0..count as usize {
                // SAFETY: the verbs contract: the list has `count` entries.
                let sge = unsafe { list.add(at).read_unaligned() };
                let region = state.mrs.get(&Handle(sge.lkey >> 8));
                pieces.push(checked(region, &sge, domain, advice)?);
            }
        }
        if advice == PREFETCH_NO_FAULT {
            // What is there is at hand already.
            return Ok(());
        }
        let come =
            if advice == PREFETCH { libc::MADV_POPULATE_READ } else { libc::MADV_POPULATE_WRITE };
        for (first, length) in pieces {
            // SAFETY: pages that come change no memory.
            let failed = unsafe {
                libc::madvise(ptr::with_exposed_provenance_mut(first), length, come) != 0
            };
            // Who does not wait for them is told of nothing.
            if failed && flags & FLUSH != 0 {
                return Err(libc::EFAULT);
            }
        }
        Ok(())
    })
}

/// The pages of a piece, if it is of a region on demand that one may do that to.
fn checked(
    region: Option<&Region>,
    sge: &Sge,
    domain: PdHandle,
    advice: c_uint,
) -> Result<(usize, usize), c_int> {
    let region = region.filter(|region| region.lkey == sge.lkey).ok_or(libc::ENOENT)?;
    if region.pd != domain {
        return Err(libc::ENOENT);
    }
    let Kind::OnDemand { addr } = region.kind else { return Err(libc::EINVAL) };
    if advice == PREFETCH_WRITE && !region.writable {
        return Err(libc::EPERM);
    }
    let length = u64::from(sge.length);
    let inside = sge.addr.checked_sub(addr).and_then(|offset| offset.checked_add(length));
    if inside.is_none_or(|end| end > region.length as u64) {
        return Err(libc::EFAULT);
    }
    let first = sge.addr & !(PAGE - 1);
    Ok((first as usize, (sge.addr + length - first) as usize))
}
