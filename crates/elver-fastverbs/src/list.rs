//! The list of devices, for programs and for this library itself.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::counts::{Count, count};
use crate::plan::{Plan, plan};
use crate::{real, renew, window};

/// ibv_get_device_list(3).
///
/// # Safety
/// As its manual page says.
pub(crate) unsafe fn device_list(number: *mut c_int) -> *mut *mut c_void {
    let mut length = 0;
    // SAFETY: the number is our own.
    let real = |length: &mut c_int| unsafe { real::ibv_get_device_list(length) };
    let plan = plan();
    let list = match &plan {
        Plan::Answer(cache) => {
            count(Count::Lists);
            window::with(Some(cache.clone()), || real(&mut length))
        }
        Plan::Alone | Plan::Renew => {
            count(Count::Alone);
            real(&mut length)
        }
    };
    let Some(list) = list else {
        set_errno(libc::ENOSYS);
        return null_mut();
    };
    if matches!(plan, Plan::Renew) && !list.is_null() {
        let kept = errno_now();
        // SAFETY: libibverbs made the list, and said how long it is.
        unsafe { renew::renew(list, usize::try_from(length).unwrap_or(0)) };
        set_errno(kept);
    }
    if !number.is_null() {
        // SAFETY: by the manual's contract.
        unsafe { number.write(length) };
    }
    list
}

/// Makes a list that nobody asked for, for what follows from it.
pub(crate) fn renew() {
    // SAFETY: no number is asked for; and a list of libibverbs's is freed by it, once.
    unsafe {
        let list = device_list(null_mut());
        if !list.is_null() {
            let _ = real::ibv_free_device_list(list);
        }
    }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = value };
}

pub(crate) fn errno_now() -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}
