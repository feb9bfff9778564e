//! Waiting for events: before a program does, a thread is set to watch the device.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use crate::belongs::Belongs;
use crate::channel;
use crate::engine::Engine;
use crate::errno::{code, minus_one, object, whole};
use crate::layout::{AsyncEvent, CompChannel, Context, Cq};
use crate::ring::wait;
use crate::told::{self, Told};

/// Refuses null, before an event is taken that then nobody had.
fn room<T>(to: *mut T) -> Result<(), c_int> {
    if to.is_null() { Err(libc::EINVAL) } else { Ok(()) }
}

/// Has the device watched, and waits at a bell until it was rung for an event that is still there. Between the looks nothing
/// is held, as [`wait`] asks for.
fn await_event<T: Belongs>(
    of: *const T,
    bell: impl Fn() -> Result<RawFd, c_int>,
    get: impl Fn(u64) -> Result<bool, c_int>,
) -> c_int {
    let begun = whole(Err(libc::EIO), || {
        Engine::of(of)?.watch();
        bell()
    });
    let bell = match begun {
        Ok(bell) => bell,
        Err(error) => return minus_one(|| Err(error)),
    };
    loop {
        let got = match wait(bell) {
            Ok(ring) => whole(Err(libc::EIO), || get(ring)),
            Err(error) => Err(error),
        };
        match got {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(error) => return minus_one(|| Err(error)),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    of: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let bell = || {
        room(cq)?;
        room(cq_context)?;
        // SAFETY: the verbs contract.
        unsafe { channel::bell(of) }
    };
    // SAFETY: as above, and they are not null.
    await_event(of, bell, |ring| unsafe { channel::get(of, ring, cq, cq_context) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut Context,
    to: *mut AsyncEvent,
) -> c_int {
    let bell = || {
        room(to)?;
        // SAFETY: the verbs contract.
        unsafe { told::bell(context) }
    };
    // SAFETY: as above, and it is not null.
    await_event(context, bell, |ring| unsafe { told::get(context, ring, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    object(|| {
        let engine = Engine::of(context)?;
        let made = channel::make(context)?;
        let told = Told { context, element: made.cast() };
        engine.lock().bare.insert(made.addr(), told);
        Ok(made)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(of: *mut CompChannel) -> c_int {
    code(|| {
        let mut state = Engine::of(of)?.lock();
        // SAFETY: the verbs contract.
        unsafe { channel::destroy(of)? };
        state.bare.remove(&of.addr());
        Ok(())
    })
}
