//! Posting to queue pairs that are lent: the child that has one posts into the queue that it shares with the kernel, which
//! then takes no doorbell of it, since it did not open the device; so the lender's thread rings. Everybody else is refused.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{SystemTime, UNIX_EPOCH};

use super::table::Table;
use super::verbs::{self, Context, Functions, PostRecv, PostSend, Qp};
use super::{lender, registry};

/// The number of this process, if it is a child that has taken a queue pair. A fork makes it 0.
static CHILD: AtomicU32 = AtomicU32::new(0);

/// The word with which this process takes queue pairs, if it has one. A fork makes it 0.
static TAKER: AtomicU64 = AtomicU64::new(0);

/// That word, which no other process of this one's number has had: when it was first asked for.
pub(crate) fn taker() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match TAKER.compare_exchange(0, since.as_nanos() as u64 | 1, Relaxed, Relaxed) {
        Ok(_) => TAKER.load(Relaxed),
        Err(known) => known,
    }
}

/// This process has taken a queue pair.
pub(crate) fn is_child(pid: u32) {
    CHILD.store(pid, Relaxed);
}

/// A fork has made this process.
pub(crate) extern "C" fn forked() {
    CHILD.store(0, Relaxed);
    TAKER.store(0, Relaxed);
}

/// The functions of this library.
fn own() -> Functions {
    let own: (PostSend, PostRecv) = (post_send, post_recv);
    Functions { post_send: own.0 as usize, post_recv: own.1 as usize }
}

/// A context's provider's own functions. One that was opened where another had been has its own again.
///
/// # Safety
/// It is an open context of libibverbs.
pub(crate) unsafe fn providers(context: *mut Context) -> Option<Functions> {
    // SAFETY: by the caller's promise.
    let theirs = unsafe { verbs::functions(context) };
    if theirs == own() { registry::functions(context) } else { Some(theirs) }
}

/// Stands before a context's own functions; false if there are too many contexts.
///
/// # Safety
/// As [`providers`].
pub(crate) unsafe fn stand_before(context: *mut Context) -> bool {
    // SAFETY: by the caller's promise.
    let known = unsafe { providers(context) }.is_some_and(|known| registry::know(context, known));
    if known {
        // SAFETY: these have the types of those that they stand before.
        unsafe { verbs::set_functions(context, own()) };
    }
    known
}

/// The table and the slot, if this process has the queue pair.
fn mine(slot: usize) -> Option<Table> {
    let table = lender::table()?;
    let own = CHILD.load(Relaxed);
    let (generation, taker) = (registry::generation(slot), TAKER.load(Relaxed));
    (own != 0 && table.slot(slot).is_taken(generation, own, taker)).then_some(table)
}

/// ibv_post_send(3).
unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut c_void, bad_wr: *mut *mut c_void) -> c_int {
    // SAFETY: the caller has an open queue pair.
    let Some(own) = registry::functions(unsafe { (*qp).context }) else { return libc::EINVAL };
    // SAFETY: the provider wrote a function of this type there.
    let post = unsafe { std::mem::transmute::<usize, PostSend>(own.post_send) };
    let Some(at) = registry::slot_of(qp) else {
        // SAFETY: the caller's own call.
        return unsafe { post(qp, wr, bad_wr) };
    };
    let Some(table) = mine(at) else {
        // SAFETY: the caller gives room for it, as the manual has it.
        unsafe { bad_wr.write(wr) };
        return libc::EPERM;
    };
    let slot = table.slot(at);
    slot.begun.fetch_add(1, Release);
    // SAFETY: as above.
    let result = unsafe {
        bad_wr.write(ptr::null_mut());
        post(qp, wr, bad_wr)
    };
    if result != libc::EACCES {
        return result;
    }
    match table.ask(at, lender::is_orphan) {
        // SAFETY: as above.
        Ok(()) => unsafe {
            slot.ended.fetch_add(1, Release);
            let bad = bad_wr.read();
            // The kernel's refusal of the doorbell hid the provider's own.
            match bad.is_null() {
                true => 0,
                false if registry::limits(at).exclude(bad.cast()) => libc::EINVAL,
                false => libc::ENOMEM,
            }
        },
        Err(error) => {
            // SAFETY: as above.
            unsafe { bad_wr.write(wr) };
            error
        }
    }
}

/// ibv_post_recv(3), which asks nothing of the kernel.
unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut c_void, bad_wr: *mut *mut c_void) -> c_int {
    // SAFETY: the caller has an open queue pair.
    let Some(own) = registry::functions(unsafe { (*qp).context }) else { return libc::EINVAL };
    if let Some(at) = registry::slot_of(qp) {
        let Some(table) = mine(at) else {
            // SAFETY: the caller gives room for it, as the manual has it.
            unsafe { bad_wr.write(wr) };
            return libc::EPERM;
        };
        table.slot(at).receives.store(1, Release);
    }
    // SAFETY: the provider wrote a function of this type there, and the call is the caller's.
    unsafe { std::mem::transmute::<usize, PostRecv>(own.post_recv)(qp, wr, bad_wr) }
}
