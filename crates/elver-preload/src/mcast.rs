//! Multicast: UD QPs in groups.

use std::ffi::c_int;

use elver_soft::SoftError;
use elver_verbs::{Gid as Address, Qp as Handle};

use crate::engine::Engine;
use crate::errno::{code, of_verbs};
use crate::layout::{Gid, Qp};
use crate::owned::given;

/// The errno of a group that could not be joined.
fn of_soft(error: SoftError) -> c_int {
    match error {
        SoftError::Config(error) => of_verbs(error),
        SoftError::Bind { reason, .. }
        | SoftError::Option { reason, .. }
        | SoftError::System { reason, .. } => reason.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EIO,
    }
}

/// What both calls are given; the LID says nothing on Ethernet.
///
/// # Safety
/// The verbs contract of `ibv_attach_mcast`.
unsafe fn named(qp: *mut Qp, group: *const Gid) -> Result<(Handle, Address), c_int> {
    // SAFETY: the caller's word. A `union ibv_gid` of the program's may be less aligned.
    unsafe {
        if group.is_null() {
            return Err(libc::EINVAL);
        }
        Ok((Handle(given(qp)?.handle), Address(group.read_unaligned().0)))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut Qp, group: *const Gid, _: u16) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, group) = unsafe { named(qp, group)? };
        let engine = Engine::of(qp)?;
        let mut state = engine.lock();
        state.device.attach_multicast(handle, group).map_err(of_soft)?;
        engine.watch_groups(&state.device)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut Qp, group: *const Gid, _: u16) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, group) = unsafe { named(qp, group)? };
        Engine::of(qp)?.lock().device.detach_multicast(handle, group).map_err(of_verbs)
    })
}
