//! A device that is opened by a thread while the program starts, for who asks for it then. Only where the environment
//! names it: a device that nobody opens would otherwise be opened in vain.
//!
//! The thread holds locks of this library and of libibverbs, which a child that is forked meanwhile would have locked for
//! ever: who forks waits for it.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::counts::{Count, count};
use crate::{list, real};

/// A context of libibverbs.
struct Context(*mut c_void);

// SAFETY: libibverbs lets any thread use a context, whoever opened it.
unsafe impl Send for Context {}

/// Who opens a device.
struct Opening {
    /// After a fork the thread is not there.
    process: u32,
    thread: JoinHandle<Option<Context>>,
}

static OPENING: Mutex<Option<Opening>> = Mutex::new(None);

/// How long a fork waits at most: it may be one by a library's constructor, for which the thread waits in turn.
const FORK_MAX: Duration = Duration::from_secs(2);

/// Whether the thread is at work.
static AT_WORK: Mutex<bool> = Mutex::new(false);
static DONE: Condvar = Condvar::new();

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Begins to open the device of this name.
pub(crate) fn begin(name: String) {
    // SAFETY: the function takes nothing, and the C library forgets it when this library is unloaded.
    if unsafe { libc::pthread_atfork(Some(before_fork), None, None) } != 0 {
        return;
    }
    *AT_WORK.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let opens = move || {
        IS_OWN.set(true);
        let _done = Done;
        open(&name)
    };
    let thread = std::thread::Builder::new().name("elver-warm".into()).spawn(opens);
    let Ok(thread) = thread else {
        // Without it the device is opened when it is asked for.
        drop(Done);
        return;
    };
    let opening = Opening { process: std::process::id(), thread };
    *OPENING.lock().unwrap_or_else(PoisonError::into_inner) = Some(opening);
}

/// The thread is not at work any more.
struct Done;

impl Drop for Done {
    fn drop(&mut self) {
        *AT_WORK.lock().unwrap_or_else(PoisonError::into_inner) = false;
        DONE.notify_all();
    }
}

extern "C" fn before_fork() {
    if !IS_OWN.get() {
        let at_work = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner);
        // One that takes longer is not waited for.
        let _ = DONE.wait_timeout_while(at_work, FORK_MAX, |at_work| *at_work);
    }
}

/// The context of this device, if it was opened ahead, or is being opened: waits for that.
///
/// # Safety
/// It is a device of libibverbs.
pub(crate) unsafe fn take(device: *mut c_void) -> Option<*mut c_void> {
    let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    // Its own thread asks too, and a child of the process has none.
    if opening.process != std::process::id()
        || opening.thread.thread().id() == std::thread::current().id()
    {
        return None;
    }
    let context = opening.thread.join().ok()??;
    // SAFETY: the context is open, and a context's first member is its device.
    let its = unsafe { context.0.cast::<*mut c_void>().read() };
    if its == device {
        count(Count::Warm);
        return Some(context.0);
    }
    // SAFETY: nobody else has it.
    unsafe { real::ibv_close_device(context.0) };
    None
}

fn open(name: &str) -> Option<Context> {
    let mut length = 0;
    // SAFETY: the list is freed below, and a device of it used only while it is there or the context holds it.
    unsafe {
        let list = list::device_list(&raw mut length);
        if list.is_null() {
            return None;
        }
        let devices = (0..usize::try_from(length).unwrap_or(0)).map(|at| *list.add(at));
        let mut wanted = devices.filter(|device| {
            let its = real::ibv_get_device_name(*device).filter(|its| !its.is_null());
            its.is_some_and(|its| {
                name == "any" || CStr::from_ptr(its).to_bytes() == name.as_bytes()
            })
        });
        let context = wanted.next().and_then(|device| real::ibv_open_device(device));
        real::ibv_free_device_list(list);
        context.filter(|context| !context.is_null()).map(Context)
    }
}
