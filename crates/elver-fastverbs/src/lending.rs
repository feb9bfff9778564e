//! Queue pairs for the children of a process (Swift, section 3.4), over the host's own libibverbs: `elver_lending.h`.
//!
//! The queues of a software device stand in memory that the kernel shares with whoever has them mapped, which a fork's child
//! has. What it lacks is the right to ring the doorbell, a write to the device that the kernel takes of its opener alone; so
//! a thread of the opener's rings for it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `table`, `bell` | what the lender and its children share |
//! | `lender` | which process it is that lends |
//! | `registry` | which queue pairs are lent, in a process's own memory |
//! | `checks` | which can be |
//! | `posting` | stands before the provider's functions that post |
//! | `limits` | what these never take |
//! | `forks` | keeps forks and the lender's thread's use of queue pairs apart |
//! | `owner` | the lender's thread |
//! | `returning` | what a child left on its queue pair ends |
//! | `verbs` | libibverbs' structures |

mod bell;
mod checks;
mod forks;
mod lender;
mod limits;
mod owner;
mod posting;
mod registry;
mod returning;
mod table;
mod verbs;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use self::checks::Refusal;
use self::lender::{is_lender, is_orphan};
use self::table::{State, Table};
use self::verbs::{Context, Qp, RTS};
use crate::real;

/// `ELVER_LEND_NO_WRITE` of `elver_lending.h`.
const NO_WRITE: c_uint = 1;

thread_local! {
    static REASON: Cell<&'static CStr> = const { Cell::new(c"nothing was refused") };
}

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
pub unsafe extern "C" fn elver_lend_qp(qp: *mut c_void, flags: c_uint) -> c_int {
    // SAFETY: by the caller's promise.
    answer(unsafe { lend(qp.cast(), flags) })
}

/// # Safety
/// As [`elver_lend_qp`].
unsafe fn lend(qp: *mut Qp, flags: c_uint) -> Result<(), Refusal> {
    // SAFETY: by the caller's promise.
    let Some(named) = (unsafe { qp.as_ref() }) else {
        return Err((libc::EINVAL, c"there is no queue pair"));
    };
    if flags & !NO_WRITE != 0 {
        return Err((libc::EINVAL, c"there is no such flag"));
    }
    if lender::table().is_some() && !is_lender() {
        return Err((libc::EPERM, c"a child of a process that lends queue pairs lends none"));
    }
    let _changing = registry::change();
    if registry::slot_of(qp).is_some() {
        return Err((libc::EALREADY, c"the queue pair is lent already"));
    }
    // SAFETY: as above.
    let limits = unsafe { checks::can_be_lent(qp) }?;
    let queues = [named.send_cq, named.recv_cq];
    // SAFETY: what is lent is open.
    let is_shared = |(_, other): (usize, *mut Qp)| unsafe {
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
    let slot = registry::add(qp, limits, flags & NO_WRITE == 0)
        .ok_or((libc::ENOSPC, c"as many queue pairs as can be are lent already"))?;
    table.slot(slot).begin(registry::generation(slot));
    Ok(())
}

/// The table, made if this is the first that is lent.
fn table() -> Result<Table, Refusal> {
    if let Some(table) = lender::table() {
        return Ok(table);
    }
    let table = Table::new()
        .map_err(|_| (libc::ENOMEM, c"there is no memory for the table of children"))?;
    owner::start(table).map_err(|_| (libc::EAGAIN, c"the lender's thread cannot be started"))?;
    extern "C" fn child() {
        posting::forked();
        forks::child();
    }
    // SAFETY: the functions take and leave a lock, and write words; they stay loaded: they are this library's, which providers
    // hold.
    unsafe { libc::pthread_atfork(Some(forks::prepare), Some(forks::parent), Some(child)) };
    Ok(lender::is_this(table))
}

/// `elver_take_qp` of `elver_lending.h`.
///
/// # Safety
/// A queue pair that the parent had open when it forked.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn elver_take_qp(qp: *mut c_void) -> c_int {
    // SAFETY: by the caller's promise.
    answer(unsafe { take(qp.cast()) })
}

/// # Safety
/// As [`elver_take_qp`].
unsafe fn take(qp: *mut Qp) -> Result<(), Refusal> {
    let (Some(slot), Some(table)) = (registry::slot_of(qp), lender::table()) else {
        return Err(NOT_LENT);
    };
    if is_orphan() {
        return Err((libc::EPERM, c"this process is no child of the one that lends it"));
    }
    if !table.bell().is_there() {
        return Err((
            libc::EBADF,
            c"this process has closed what it inherited, and cannot call the lender",
        ));
    }
    let (pid, generation) = (std::process::id(), registry::generation(slot));
    if !table.slot(slot).take(generation, pid, posting::taker()) {
        return Err(match table.look(slot, generation).0 {
            State::Taken => (libc::EBUSY, c"another child has the queue pair"),
            State::Returning => (libc::EAGAIN, c"the child that had the queue pair has just ended"),
            State::Reset => (libc::ENOTCONN, c"the queue pair waits to be connected anew"),
            State::Broken => (libc::EIO, c"what a child left on the queue pair did not end"),
            State::Free => (libc::EAGAIN, c"the queue pair has just come back"),
            State::Not => NOT_LENT,
        });
    }
    table
        .ask(slot, is_orphan)
        .map_err(|code| (code, c"the lender does not see this process as a child, or has ended"))?;
    // The copy of who was forked while the queue pair was being connected says otherwise, and its provider believes that.
    // SAFETY: by the caller's promise; what is FREE is in RTS.
    unsafe { (&raw mut (*qp).state).write(RTS) };
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
        (Some(at), Some(table)) => {
            let seen = table.look(at, registry::generation(at));
            let is_lent = seen.0 != State::Not;
            (seen, if is_lent { table.slot(at).returned.load(Relaxed) } else { 0 })
        }
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
    checks::is_connected(qp)?;
    let _changing = registry::change();
    let generation = registry::generation(slot);
    match !registry::is_busy(slot) && table.slot(slot).change(State::Reset, State::Free, generation)
    {
        true => Ok(()),
        false => Err((libc::EINVAL, c"the queue pair does not wait to be connected anew")),
    }
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
    let _changing = registry::change();
    leave(table, at)?;
    registry::remove(at);
    Ok(())
}

/// No child takes a slot's queue pair from here on; how it was.
fn leave(table: Table, at: usize) -> Result<State, Refusal> {
    let (slot, generation) = (table.slot(at), registry::generation(at));
    let mut idle = [State::Free, State::Reset, State::Broken].into_iter();
    let was = match registry::is_busy(at) {
        true => None,
        false => idle.find(|state| slot.change(*state, State::Not, generation)),
    };
    was.ok_or_else(|| {
        // A child that was killed before the owner knew of it is found by who looks, as this program may do in no other way.
        table.look(at, generation);
        (libc::EBUSY, c"a child has the queue pair")
    })
}

/// What is lent of a context that is about to be closed is lent no more, unless a child has some of it.
fn leave_all(context: *mut Context) -> Result<(), Refusal> {
    let Some(table) = lender::table().filter(|_| is_lender()) else { return Ok(()) };
    let _changing = registry::change();
    // SAFETY: what is lent is open: nothing of it goes without this library.
    let its = registry::all().filter(|(_, qp)| ptr::eq(unsafe { (**qp).context }, context));
    let mut left = Vec::new();
    for (at, _) in its {
        match leave(table, at) {
            Ok(was) => left.push((at, was)),
            Err(refusal) => {
                for (at, was) in left {
                    table.slot(at).set(was, registry::generation(at));
                }
                return Err(refusal);
            }
        }
    }
    left.into_iter().for_each(|(at, _)| registry::remove(at));
    registry::forget(context);
    Ok(())
}

/// `elver_lending_error` of `elver_lending.h`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn elver_lending_error() -> *const c_char {
    REASON.try_with(Cell::get).unwrap_or(c"the thread is about to end").as_ptr()
}

/// ibv_destroy_qp(3): one that a child has stays, and a child destroys none that is lent.
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

/// ibv_modify_qp(3): a child leaves what is lent as it is, since who has it next would find it otherwise, and not know.
///
/// # Safety
/// As its manual page says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut c_void,
    attributes: *mut c_void,
    mask: c_int,
) -> c_int {
    if registry::slot_of(qp.cast()).is_some() && !is_lender() {
        return answer(Err(NOT_THE_LENDER));
    }
    // SAFETY: the caller's own call.
    unsafe { real::ibv_modify_qp(qp, attributes, mask) }.unwrap_or(libc::ENOSYS)
}

/// ibv_close_device(3), which frees what the lender's thread uses: not while a child has a queue pair of it.
///
/// # Safety
/// As its manual page says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_close_device(context: *mut c_void) -> c_int {
    if let Err(refusal) = leave_all(context.cast()) {
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = answer(Err(refusal)) };
        return -1;
    }
    // SAFETY: the caller's own call.
    unsafe { real::ibv_close_device(context) }.unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::table::Slot;
    use super::verbs::Limits;
    use super::*;

    /// A slot with a queue pair of no device's, which is only named.
    fn lent(table: Table) -> (usize, u32, &'static Slot) {
        let limits = Limits { sges: 1, inline_bytes: 0 };
        let at = registry::add(ptr::without_provenance_mut(0x70), limits, true).unwrap();
        table.slot(at).begin(registry::generation(at));
        (at, registry::generation(at), table.slot(at))
    }

    #[test]
    fn who_asks_for_it_back_finds_a_child_that_was_killed_before_it_was_seen() {
        let _alone = registry::change();
        let table = Table::new().unwrap();
        let (at, generation, slot) = lent(table);
        assert!(slot.take(generation, 7, 70));
        assert_eq!(leave(table, at).unwrap_err().0, libc::EBUSY);
        assert_eq!(table.wanted().collect::<Vec<_>>(), [at], "the owner is told to look");
        slot.set(State::Reset, generation);
        assert_eq!(leave(table, at), Ok(State::Reset));
        assert!(!slot.take(generation, 8, 80));
        registry::remove(at);
    }

    #[test]
    fn what_a_child_writes_gives_nothing_back_that_the_owner_has_not_seen_drained() {
        let _alone = registry::change();
        let table = Table::new().unwrap();
        let (at, generation, slot) = lent(table);
        assert!(slot.take(generation, 7, 70));
        registry::set_busy(at, true);
        slot.set(State::Free, generation);
        assert_eq!(leave(table, at).unwrap_err().0, libc::EBUSY);
        registry::set_busy(at, false);
        assert_eq!(leave(table, at), Ok(State::Free));
        registry::remove(at);
    }
    #[test]
    fn a_fork_of_a_lender_waits_while_its_thread_uses_a_queue_pair() {
        let _alone = forks::tests::ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        table().unwrap();
        let turn = forks::Between::default().turn().unwrap();
        let fork = std::thread::spawn(|| {
            // SAFETY: the child does nothing but end.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                child
            }
        });
        forks::tests::until_one_waits(|| fork.is_finished());
        assert!(!fork.is_finished());
        drop(turn);
        let (child, mut status) = (fork.join().unwrap(), -1);
        // SAFETY: a child of this process's, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
