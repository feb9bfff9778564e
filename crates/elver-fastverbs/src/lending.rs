//! Queue pairs for the children of a process (Swift, section 3.4), over the host's own libibverbs: `elver_lending.h`.
//!
//! The queues of a software device stand in memory that the kernel shares with whoever has them mapped, which a fork's child
//! has. What it lacks is the right to ring the doorbell, a write to the device that the kernel takes of its opener alone; so
//! a thread of the opener's rings for it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `table` | what the lender and its children share |
//! | `lender` | which process it is that lends |
//! | `registry` | which queue pairs are lent, in a process's own memory |
//! | `posting` | stands before the provider's functions that post |
//! | `owner` | the lender's thread |
//! | `returning` | what a child left on its queue pair ends |
//! | `verbs` | libibverbs' structures |

mod lender;
mod owner;
mod posting;
mod registry;
mod returning;
mod table;
mod verbs;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use self::lender::{is_lender, is_orphan};
use self::table::{State, Table};
use self::verbs::{Attributes, Qp, RC, RTS, STATE};
use crate::real;

/// Providers whose queues a child shares with its parent.
const SHAREABLE: &str = "librxe-rdmav";

/// Who lends and takes back, one at a time. A child never has it: it may have been held when it was forked.
static CHANGING: Mutex<()> = Mutex::new(());

thread_local! {
    static REASON: Cell<&'static CStr> = const { Cell::new(c"nothing was refused") };
}

/// A call's refusal: what errno says, and in words.
type Refusal = (c_int, &'static CStr);

const NOT_LENT: Refusal = (libc::EINVAL, c"the queue pair is not lent");
const NOT_THE_LENDER: Refusal = (libc::EPERM, c"this process is not the one that lent it");

fn answer(result: Result<(), Refusal>) -> c_int {
    match result {
        Ok(()) => 0,
        Err((code, reason)) => {
            // A thread that is about to end has no words for it.
            let _ = REASON.try_with(|kept| kept.set(reason));
            code
        }
    }
}

/// `elver_lend_qp` of `elver_lending.h`.
///
/// # Safety
/// An open queue pair of libibverbs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_lend_qp(qp: *mut c_void) -> c_int {
    // SAFETY: by the caller's promise.
    answer(unsafe { lend(qp.cast()) })
}

/// # Safety
/// As [`elver_lend_qp`].
unsafe fn lend(qp: *mut Qp) -> Result<(), Refusal> {
    // SAFETY: by the caller's promise.
    let Some(named) = (unsafe { qp.as_ref() }) else {
        return Err((libc::EINVAL, c"there is no queue pair"));
    };
    if lender::table().is_some() && !is_lender() {
        return Err((libc::EPERM, c"a child of a process that lends queue pairs lends none"));
    }
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if registry::slot_of(qp).is_some() {
        return Err((libc::EALREADY, c"the queue pair is lent already"));
    }
    // SAFETY: as above.
    unsafe { can_be_lent(qp) }?;
    let queues = [named.send_cq, named.recv_cq];
    // SAFETY: what is lent is open.
    let is_shared = |other: *mut Qp| unsafe {
        queues.contains(&(*other).send_cq) || queues.contains(&(*other).recv_cq)
    };
    if registry::all().any(is_shared) {
        return Err((libc::EBUSY, c"another queue pair that is lent uses its completion queue"));
    }
    let table = table()?;
    // SAFETY: as above.
    if !unsafe { posting::stand_before(named.context) } {
        return Err((libc::ENOSPC, c"queue pairs of as many contexts as can be are lent already"));
    }
    let slot = registry::add(qp)
        .ok_or((libc::ENOSPC, c"as many queue pairs as can be are lent already"))?;
    table.slot(slot).clear();
    table.slot(slot).set(State::Free);
    Ok(())
}

/// # Safety
/// As [`elver_lend_qp`].
unsafe fn can_be_lent(qp: *mut Qp) -> Result<(), Refusal> {
    // SAFETY: by the caller's promise.
    let (named, providers) = unsafe { (&*qp, posting::providers((*qp).context)) };
    let library = providers.and_then(|own| verbs::library_of(own.post_send));
    if !library.is_some_and(|name| name.starts_with(SHAREABLE)) {
        return Err((
            libc::EOPNOTSUPP,
            c"the device's queues are memory of the process's own, of which a child gets a copy: rxe's can be shared",
        ));
    }
    if named.qp_type != RC {
        return Err((libc::EOPNOTSUPP, c"only RC queue pairs are lent"));
    }
    if !named.srq.is_null() {
        return Err((libc::EOPNOTSUPP, c"the queue pair has a shared receive queue"));
    }
    // SAFETY: an open queue pair.
    let extended = unsafe { real::ibv_qp_to_qp_ex(qp.cast()) };
    if extended.is_some_and(|extended| !extended.is_null()) {
        return Err((libc::EOPNOTSUPP, c"the queue pair was made for ibv_wr_start and its like"));
    }
    match state(qp) {
        Some(RTS) => Ok(()),
        _ => Err((libc::ENOTCONN, c"the queue pair is not connected: its state is not RTS")),
    }
}

/// The state of an open queue pair, as the device says.
fn state(qp: *mut Qp) -> Option<u32> {
    let (mut attributes, mut made) = (Attributes([0; 64]), Attributes([0; 64]));
    // SAFETY: an open queue pair; both are longer than libibverbs' own.
    let asked = unsafe {
        let [attributes, made] = [&raw mut attributes, &raw mut made];
        real::ibv_query_qp(qp.cast(), attributes.cast(), STATE, made.cast())
    };
    (asked == Some(0)).then_some(attributes.0[0])
}

/// The table, made if this is the first that is lent.
fn table() -> Result<Table, Refusal> {
    if let Some(table) = lender::table() {
        return Ok(table);
    }
    let table = Table::new()
        .map_err(|_| (libc::ENOMEM, c"there is no memory for the table of children"))?;
    owner::start(table).map_err(|_| (libc::EAGAIN, c"the lender's thread cannot be started"))?;
    // SAFETY: the function writes one word, and stays loaded: it is this library's, which providers hold.
    unsafe { libc::pthread_atfork(None, None, Some(posting::forked)) };
    Ok(lender::is_this(table))
}

/// `elver_take_qp` of `elver_lending.h`.
///
/// # Safety
/// A queue pair that the parent had open when it forked.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_take_qp(qp: *mut c_void) -> c_int {
    answer(take(qp.cast()))
}

fn take(qp: *mut Qp) -> Result<(), Refusal> {
    let (Some(slot), Some(table)) = (registry::slot_of(qp), lender::table()) else {
        return Err(NOT_LENT);
    };
    if is_orphan() {
        return Err((libc::EPERM, c"this process is no child of the one that lends it"));
    }
    let pid = std::process::id();
    table.slot(slot).take(pid).map_err(|_| match table.look(slot).0 {
        State::Taken => (libc::EBUSY, c"another child has the queue pair"),
        State::Returning => (libc::EAGAIN, c"the child that had the queue pair has just ended"),
        State::Reset => (libc::ENOTCONN, c"the queue pair waits to be connected anew"),
        State::Broken => (libc::EIO, c"what a child left on the queue pair did not end"),
        State::Free => (libc::EAGAIN, c"the queue pair has just come back"),
        State::Not => NOT_LENT,
    })?;
    table
        .ask(slot, is_orphan)
        .map_err(|code| (code, c"the lender does not see this process as a child, or has ended"))?;
    posting::is_child(pid);
    Ok(())
}

/// `elver_lent_state` of `elver_lending.h`.
///
/// # Safety
/// The pointers are null or have room.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_lent_state(
    qp: *const c_void,
    child: *mut libc::pid_t,
    returned: *mut u32,
) -> u32 {
    let ((state, pid), times) = match (registry::slot_of(qp.cast()), lender::table()) {
        (Some(at), Some(table)) => (table.look(at), table.slot(at).returned.load(Relaxed)),
        _ => ((State::Not, 0), 0),
    };
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(child) = child.as_mut() {
            *child = pid as libc::pid_t;
        }
        if let Some(returned) = returned.as_mut() {
            *returned = times;
        }
    }
    state as u32
}

/// `elver_lent_ready` of `elver_lending.h`.
///
/// # Safety
/// An open queue pair of libibverbs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_lent_ready(qp: *mut c_void) -> c_int {
    answer(ready(qp.cast()))
}

fn ready(qp: *mut Qp) -> Result<(), Refusal> {
    let (Some(slot), Some(table)) = (registry::slot_of(qp), lender::table()) else {
        return Err(NOT_LENT);
    };
    if !is_lender() {
        return Err(NOT_THE_LENDER);
    }
    if state(qp) != Some(RTS) {
        return Err((libc::ENOTCONN, c"the queue pair is not connected: its state is not RTS"));
    }
    let changed = table.slot(slot).change(State::Reset, State::Free);
    changed.map_err(|_| (libc::EINVAL, c"the queue pair does not wait to be connected anew"))
}

/// `elver_take_back_qp` of `elver_lending.h`.
///
/// # Safety
/// An open queue pair of libibverbs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_take_back_qp(qp: *mut c_void) -> c_int {
    answer(take_back(qp.cast()))
}

fn take_back(qp: *mut Qp) -> Result<(), Refusal> {
    let (Some(at), Some(table)) = (registry::slot_of(qp), lender::table()) else {
        return Err(NOT_LENT);
    };
    if !is_lender() {
        return Err(NOT_THE_LENDER);
    }
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = table.slot(at);
    let idle = [State::Free, State::Reset, State::Broken];
    if !idle.into_iter().any(|state| slot.change(state, State::Not).is_ok()) {
        return Err((libc::EBUSY, c"a child has the queue pair"));
    }
    registry::remove(at);
    Ok(())
}

/// `elver_lending_error` of `elver_lending.h`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn elver_lending_error() -> *const c_char {
    REASON.try_with(Cell::get).unwrap_or(c"the thread is about to end").as_ptr()
}

/// ibv_destroy_qp(3): one that a child has stays, and a child destroys none of its parent's.
///
/// # Safety
/// As its manual page says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut c_void) -> c_int {
    if registry::slot_of(qp.cast()).is_some()
        && let Err(refusal) = take_back(qp.cast())
    {
        return answer(Err(refusal));
    }
    // SAFETY: the caller's own call.
    unsafe { real::ibv_destroy_qp(qp) }.unwrap_or(libc::ENOSYS)
}
