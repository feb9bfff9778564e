//! Contexts as this library knows them, and the asynchronous events that they are told.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use elver_verbs::{AsyncEvent as Event, DeviceAttr};

use crate::layout::{AsyncEvent, Context, VerbsContext};
use crate::owned::{ack_async, given, take_async};
use crate::rung::Rung;

/// Peers cause some events as often as they like (a DCT's access errors), and a program need not take them: behind so many
/// that wait, each is told of once.
const MANY: usize = 1 << 10;

/// The generation of no process: a context's that is closed, and that something is left of.
pub(crate) const CLOSED: u32 = 0;

/// A context, and what a program does not see of it.
#[repr(C)]
pub(crate) struct Owned {
    pub(crate) verbs: VerbsContext,
    pub(crate) fd: OwnedFd,
    /// The file that stands for the device; another process of ours may import nothing by it.
    pub(crate) cmd: OwnedFd,
    pub(crate) events: Mutex<Rung<AsyncEvent>>,
    /// What the device said of itself, which a child of `fork` asks for too.
    pub(crate) attr: DeviceAttr,
    /// Of the process that opened it.
    pub(crate) generation: u32,
}

impl Owned {
    fn events(&self) -> MutexGuard<'_, Rung<AsyncEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom an event is told: an object of the program's, and its context.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) context: *mut Context,
    pub(crate) element: *mut c_void,
}

// SAFETY: the pointers are followed only under the engine's lock, from whose tables they go before
// their objects are freed.
unsafe impl Send for Told {}

/// The whole of a context.
///
/// # Safety
/// `context` came from `ibv_open_device` and is not closed.
pub(crate) unsafe fn owned<'a>(context: *mut Context) -> &'a Owned {
    let start = context.cast::<u8>();
    // SAFETY: contexts of ours stand at this place of an `Owned`.
    unsafe { &*start.sub(offset_of!(Owned, verbs) + offset_of!(VerbsContext, context)).cast() }
}

/// Queues an event for whoever asks its context.
pub(crate) fn tell(told: Told, event: Event) {
    let event_type = match event {
        Event::CqErr(_) => 0,
        Event::QpFatal(_) => 1,
        Event::QpReqErr(_) => 2,
        Event::QpAccessErr(_) | Event::DctAccessErr(_) => 3,
        Event::CommEst(_) => 4,
        Event::SqDrained(_) => 5,
        Event::SrqErr(_) => 14,
        Event::SrqLimitReached(_) => 15,
        Event::QpLastWqeReached(_) => 16,
    };
    queue(told, event_type);
}

/// The same of the port, which came up or went down.
pub(crate) fn tell_port(context: *mut Context, up: bool) {
    // Not a pointer but the port's number stands there.
    let element = std::ptr::without_provenance_mut(1);
    queue(Told { context, element }, if up { 9 } else { 10 });
}

fn queue(told: Told, event_type: u32) {
    // SAFETY: objects leave the engine's tables before they are freed, and their contexts after.
    let owned = unsafe { owned(told.context) };
    let mut events = owned.events();
    let is_it = |it: &AsyncEvent| (it.element, it.event_type) == (told.element, event_type);
    if events.waiting().len() >= MANY && events.waiting().any(is_it) {
        return;
    }
    events.push(AsyncEvent { element: told.element, event_type });
}

/// Forgets events of an object that is going.
pub(crate) fn forget(told: Told) {
    // SAFETY: as in `tell`.
    let owned = unsafe { owned(told.context) };
    owned.events().extract(|event| event.element == told.element);
}

/// What is rung for each event.
///
/// # Safety
/// The verbs contract of `ibv_get_async_event`.
pub(crate) unsafe fn bell(context: *mut Context) -> Result<RawFd, c_int> {
    // SAFETY: the caller's word.
    Ok(unsafe { owned(given(context)?) }.fd.as_raw_fd())
}

/// Takes the event of a ring; whether it was there: it may have gone with its object meanwhile.
///
/// # Safety
/// The verbs contract of `ibv_get_async_event`, which writes to an address that is not null.
pub(crate) unsafe fn get(
    context: *mut Context,
    ring: u64,
    to: *mut AsyncEvent,
) -> Result<bool, c_int> {
    // SAFETY: the caller's word.
    let owned = unsafe { owned(given(context)?) };
    let mut events = owned.events();
    let Some(event) = events.pop(ring) else { return Ok(false) };
    // SAFETY: the caller's word; the object's events go before it does, and the lock is held.
    unsafe {
        take_async(event.event_type, event.element);
        to.write_unaligned(event);
    }
    Ok(true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: the verbs contract: it came from `ibv_get_async_event`, and its object is alive.
    unsafe {
        if !event.is_null() {
            let event = event.read_unaligned();
            ack_async(event.event_type, event.element);
        }
    }
}
