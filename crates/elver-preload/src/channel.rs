//! Completion channels: descriptors that can be polled, and queues of CQs behind them.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::context::Told;
use crate::engine::Engine;
use crate::errno::{code, minus_one, object};
use crate::layout::{CompChannel, Context, Cq};

/// A channel, and what a program does not see of it.
#[repr(C)]
pub(crate) struct Owned {
    channel: CompChannel,
    fd: OwnedFd,
    events: Mutex<VecDeque<usize>>,
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
        let mut events = owned.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back(self.told.element as usize);
        ring(&owned.fd);
    }

    /// Forgets the CQ's events that nobody took.
    pub(crate) fn forget(&self) {
        if self.channel.is_null() {
            return;
        }
        // SAFETY: as above.
        let owned = unsafe { &*self.channel.cast::<Owned>() };
        let mut events = owned.events.lock().unwrap_or_else(PoisonError::into_inner);
        let before = events.len();
        events.retain(|cq| *cq != self.told.element as usize);
        for _ in events.len()..before {
            let _ = take(owned.fd.as_raw_fd(), false);
        }
    }
}

/// A descriptor that is readable as often as it was rung.
pub(crate) fn event_fd() -> Result<OwnedFd, c_int> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
        .map_err(|error| error.raw_os_error())
}

/// Makes it readable once more.
pub(crate) fn ring(fd: &OwnedFd) {
    // It fails only beyond 2^64 events.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes one ring, waiting for it unless the program made the descriptor nonblocking.
pub(crate) fn take(fd: RawFd, waits: bool) -> Result<(), c_int> {
    // SAFETY: who asks holds its owner.
    let fd: BorrowedFd<'_> = unsafe { BorrowedFd::borrow_raw(fd) };
    if !waits {
        let mut ready =
            [rustix::event::PollFd::from_borrowed_fd(fd.as_fd(), rustix::event::PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut ready, Some(&now)) != Ok(1) {
            return Err(libc::EAGAIN);
        }
    }
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).map(drop).map_err(|error| error.raw_os_error())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    object(|| {
        let fd = event_fd()?;
        let channel = CompChannel { context, fd: fd.as_raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Owned { channel, fd, events: Mutex::default() })).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    code(|| {
        let _state = Engine::get()?.lock();
        // SAFETY: the verbs contract; `refcnt` changes under the lock alone.
        if unsafe { (*channel).refcnt } > 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: it is ours, and no CQ uses it.
        drop(unsafe { Box::from_raw(channel.cast::<Owned>()) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        Engine::get()?.watch();
        // SAFETY: the verbs contract.
        let owned = unsafe { &*channel.cast::<Owned>() };
        take(owned.fd.as_raw_fd(), true)?;
        let mut events = owned.events.lock().unwrap_or_else(PoisonError::into_inner);
        let found: *mut Cq =
            ptr::with_exposed_provenance_mut(events.pop_front().ok_or(libc::EAGAIN)?);
        // SAFETY: the CQ's events go before it does; the rest is the verbs contract.
        unsafe {
            *cq = found;
            *cq_context = (*found).cq_context;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    // SAFETY: the verbs contract.
    unsafe {
        let completed = &raw mut (*cq).comp_events_completed;
        *completed = (*completed).wrapping_add(count);
    }
}
