//! Objects as programs see them, and behind each what they do not see; and the counts of events that
//! somebody took and has yet to acknowledge.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use elver_verbs::Wc as Done;
use libc::{pthread_cond_t, pthread_mutex_t};

use crate::direct::Link;
use crate::layout::{Cq, CqEx, Qp, QpEx, Srq};
use crate::mlx5::layout::QpEx as DcQpEx;
use crate::staged::Batch;
use crate::timed::Stamp;

/// A CQ.
#[repr(C)]
pub(crate) struct OwnedCq {
    pub(crate) ex: CqEx,
    /// Events of its channel that were taken.
    pub(crate) taken: AtomicU32,
    /// Asynchronous events that were taken.
    pub(crate) taken_async: AtomicU32,
    /// The completion that `read_*` speak of, and whose turn it is to poll.
    pub(crate) done: Done,
    pub(crate) stamp: Stamp,
    pub(crate) turn: Turn,
}

/// A QP.
#[repr(C)]
pub(crate) struct OwnedQp {
    pub(crate) ex: QpEx,
    /// What libmlx5 adds to it.
    pub(crate) dc: DcQpEx,
    pub(crate) taken_async: AtomicU32,
    /// Whether it was made with operations for `wr_start`.
    pub(crate) is_extended: bool,
    /// WRs between `wr_start` and `wr_complete`, and whose turn it is to make some.
    pub(crate) batch: Batch,
    pub(crate) turn: Turn,
    /// Of a QP whose peer is reached directly; it is the engine's lock that protects it.
    pub(crate) link: Option<Link>,
}

/// An SRQ.
#[repr(C)]
pub(crate) struct OwnedSrq {
    pub(crate) srq: Srq,
    pub(crate) taken_async: AtomicU32,
}

impl OwnedCq {
    pub(crate) fn new() -> Box<OwnedCq> {
        Box::new(OwnedCq {
            // SAFETY: zero is a fresh mutex and condition on Linux, null, no function, or a number.
            ex: unsafe { MaybeUninit::zeroed().assume_init() },
            taken: AtomicU32::new(0),
            taken_async: AtomicU32::new(0),
            done: Done::default(),
            stamp: Stamp::default(),
            turn: Turn::default(),
        })
    }
}

impl OwnedQp {
    pub(crate) fn new(batch: Batch) -> Box<OwnedQp> {
        Box::new(OwnedQp {
            // SAFETY: as above.
            ex: unsafe { MaybeUninit::zeroed().assume_init() },
            // SAFETY: zero is no function, or a number.
            dc: unsafe { MaybeUninit::zeroed().assume_init() },
            taken_async: AtomicU32::new(0),
            is_extended: false,
            batch,
            turn: Turn::default(),
            link: None,
        })
    }
}

impl OwnedSrq {
    pub(crate) fn new() -> Box<OwnedSrq> {
        Box::new(OwnedSrq {
            // SAFETY: as above.
            srq: unsafe { MaybeUninit::zeroed().assume_init() },
            taken_async: AtomicU32::new(0),
        })
    }
}

/// Whose turn it is, between one call of a program's and a later one. Threads may share the object.
#[derive(Default)]
pub(crate) struct Turn(AtomicBool);

impl Turn {
    pub(crate) fn begin(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Programs end what they did not begin, when beginning it failed.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// An object that was given: null is refused.
///
/// # Safety
/// If it is not null, it is one of this library's that was not destroyed.
pub(crate) unsafe fn given<'a, T>(object: *mut T) -> Result<&'a mut T, c_int> {
    // SAFETY: the caller's word.
    unsafe { object.as_mut() }.ok_or(libc::EINVAL)
}

/// An asynchronous event of this type was taken.
///
/// # Safety
/// `element` is the object of such an event, and alive.
pub(crate) unsafe fn take_async(event_type: u32, element: *mut c_void) {
    // SAFETY: the caller's word.
    unsafe {
        let taken = match event_type {
            0 => &(*element.cast::<OwnedCq>()).taken_async,
            1..=5 | 16 => &(*element.cast::<OwnedQp>()).taken_async,
            14 | 15 => &(*element.cast::<OwnedSrq>()).taken_async,
            _ => return,
        };
        taken.fetch_add(1, Ordering::Relaxed);
    }
}

/// An asynchronous event of this type was acknowledged.
///
/// # Safety
/// As [`take_async`].
pub(crate) unsafe fn ack_async(event_type: u32, element: *mut c_void) {
    // SAFETY: the caller's word.
    unsafe {
        match event_type {
            0 => {
                let cq = element.cast::<Cq>();
                let count = &raw mut (*cq).async_events_completed;
                acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, count, 1);
            }
            1..=5 | 16 => {
                let qp = element.cast::<Qp>();
                let count = &raw mut (*qp).events_completed;
                acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, count, 1);
            }
            14 | 15 => {
                let srq = element.cast::<Srq>();
                let count = &raw mut (*srq).events_completed;
                acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, count, 1);
            }
            _ => {}
        }
    }
}

/// Counts acknowledged events of an object, and wakes who waits to destroy it.
///
/// # Safety
/// The pointers are fields of one object that is alive.
pub(crate) unsafe fn acknowledge(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    count: *mut u32,
    more: u32,
) {
    // SAFETY: the caller's word; the mutex and the condition were fresh when the object was made.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        ptr::write(count, ptr::read(count).wrapping_add(more));
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Waits until all events that were taken are acknowledged.
///
/// # Safety
/// As [`acknowledge`]; no event of the object can be taken any more.
pub(crate) unsafe fn await_acks(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    counts: &[(*const u32, &AtomicU32)],
) {
    // SAFETY: the caller's word.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        let is_behind = |(count, taken): &(*const u32, &AtomicU32)| {
            // Programs that read descriptors themselves acknowledge what was not seen being taken.
            (taken.load(Ordering::Relaxed).wrapping_sub(ptr::read(*count)) as i32) > 0
        };
        while counts.iter().any(is_behind) {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
