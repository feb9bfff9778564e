//! Waiting for events: before a program does, a thread is set to watch the device.

use std::ffi::{c_int, c_void};

use crate::belongs::Belongs;
use crate::channel;
use crate::engine::Engine;
use crate::errno::{code, minus_one};
use crate::layout::{AsyncEvent, CompChannel, Context, Cq};
use crate::told;

/// Has the device watched, and waits.
fn watched<T: Belongs>(of: *const T, wait: impl FnOnce() -> c_int) -> c_int {
    match Engine::of(of) {
        Ok(engine) => {
            engine.watch();
            wait()
        }
        Err(error) => minus_one(|| Err(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    of: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the verbs contract.
    watched(of, || unsafe { channel::get(of, cq, cq_context) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut Context, to: *mut AsyncEvent) -> c_int {
    // SAFETY: the verbs contract.
    watched(context, || unsafe { told::get(context, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(of: *mut CompChannel) -> c_int {
    code(|| {
        let _state = Engine::of(of)?.lock();
        // SAFETY: the verbs contract.
        unsafe { channel::destroy(of) }
    })
}
