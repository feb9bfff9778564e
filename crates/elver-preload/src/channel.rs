//! Completion channels: descriptors that can be polled, and queues of CQs behind them.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::{CompChannel, Context, Cq};
use crate::owned::{OwnedCq, acknowledge, given};
use crate::rung::Rung;
use crate::told::Told;

/// A channel, and what a program does not see of it.
#[repr(C)]
pub(crate) struct Owned {
    channel: CompChannel,
    fd: OwnedFd,
    events: Mutex<Rung<usize>>,
}

impl Owned {
    fn events(&self) -> MutexGuard<'_, Rung<usize>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A CQ, as the engine knows it.
pub(crate) struct CqObject {
    pub(crate) told: Told,
    pub(crate) channel: *mut CompChannel,
}

// SAFETY: as `Told`: channels stay until the CQs that use them are gone.
unsafe impl Send for CqObject {}

impl CqObject {
    /// Queues an event on the CQ's channel, if it has one.
    pub(crate) fn tell(&self) {
        if self.channel.is_null() {
            return;
        }
        // SAFETY: the channel stays until its CQs are gone, and they leave the table before.
        let owned = unsafe { &*self.channel.cast::<Owned>() };
        // Who reads the descriptor himself finds what the kernel would write, the CQ.
        let cq = self.told.element as usize;
        owned.events().push_named(cq as u64, cq);
    }

    /// Forgets the CQ's events that nobody took.
    pub(crate) fn forget(&self) {
        if self.channel.is_null() {
            return;
        }
        // SAFETY: as above.
        let owned = unsafe { &*self.channel.cast::<Owned>() };
        owned.events().extract(|cq| *cq == self.told.element as usize);
    }
}

/// A channel of a context.
pub(crate) fn make(context: *mut Context) -> Result<*mut CompChannel, c_int> {
    let (fd, events) = Rung::new(libc::O_CLOEXEC).map_err(|error| error.raw_os_error())?;
    let channel = CompChannel { context, fd: fd.as_raw_fd(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(Owned { channel, fd, events: Mutex::new(events) })).cast())
}

/// Frees a channel that no CQ uses; under the engine's lock, which `refcnt` changes under alone.
///
/// # Safety
/// The verbs contract of `ibv_destroy_comp_channel`.
pub(crate) unsafe fn destroy(channel: *mut CompChannel) -> Result<(), c_int> {
    // SAFETY: the caller's word.
    if unsafe { given(channel)? }.refcnt > 0 {
        return Err(libc::EBUSY);
    }
    // SAFETY: it is ours, and no CQ uses it.
    drop(unsafe { Box::from_raw(channel.cast::<Owned>()) });
    Ok(())
}

/// What is rung for each event.
///
/// # Safety
/// The verbs contract of `ibv_get_cq_event`.
pub(crate) unsafe fn bell(channel: *mut CompChannel) -> Result<RawFd, c_int> {
    // SAFETY: the caller's word.
    Ok(unsafe { given(channel.cast::<Owned>())? }.fd.as_raw_fd())
}

/// Takes the event of a ring; whether it was there: it may have gone with its CQ meanwhile.
///
/// # Safety
/// The verbs contract of `ibv_get_cq_event`, which writes to addresses that are not null.
pub(crate) unsafe fn get(
    channel: *mut CompChannel,
    ring: u64,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> Result<bool, c_int> {
    // SAFETY: the caller's word.
    let owned = unsafe { given(channel.cast::<Owned>())? };
    let mut events = owned.events();
    let Some(found) = events.pop(ring) else { return Ok(false) };
    let found = ptr::with_exposed_provenance_mut::<Cq>(found);
    // SAFETY: the CQ's events go before it does, and the lock is held; the rest is the caller's word.
    unsafe {
        (*found.cast::<OwnedCq>()).taken.fetch_add(1, Ordering::Relaxed);
        cq.write_unaligned(found);
        cq_context.write_unaligned((*found).cq_context);
    }
    Ok(true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    // SAFETY: the verbs contract.
    unsafe {
        if let Ok(cq) = given(cq) {
            let completed = &raw mut cq.comp_events_completed;
            acknowledge(&raw mut cq.mutex, &raw mut cq.cond, completed, count);
        }
    }
}
