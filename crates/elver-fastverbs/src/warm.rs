//! A device that is opened by a thread while the program starts, for who asks for it then. Only where the environment
//! names it: a device that nobody opens would otherwise be opened in vain.

use std::ffi::{CStr, c_void};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use crate::counts::{Count, count};
use crate::{list, real};

/// A context of libibverbs.
struct Context(*mut c_void);

// SAFETY: libibverbs lets any thread use a context, whoever opened it.
unsafe impl Send for Context {}

/// Who opens a device.
struct Opening {
    process: u32,
    thread: ThreadId,
    opened: Opened,
}

/// What comes of it.
enum Opened {
    /// The thread tells.
    Soon(Receiver<Option<Context>>),
    Now(Option<Context>),
}

/// For how long a fork waits for the thread: one that forks within the loader, which the thread may wait for, goes on.
const FORK_MAX: Duration = Duration::from_secs(10);

static OPENING: Mutex<Option<Opening>> = Mutex::new(None);

/// Begins to open the device of this name.
pub(crate) fn begin(name: String) {
    let (tell, soon) = mpsc::channel();
    let mut opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let thread = std::thread::Builder::new().name("elver-warm".into()).spawn(move || {
        // Nobody takes it where the program has ended.
        let _ = tell.send(open(&name));
    });
    // Without it the device is opened when it is asked for.
    let Ok(thread) = thread else { return };
    let (process, thread) = (std::process::id(), thread.thread().id());
    *opening = Some(Opening { process, thread, opened: Opened::Soon(soon) });
    // SAFETY: the function waits for a thread, and stays loaded: providers hold this library.
    unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
}

/// A child would have the locks that the thread holds, this library's and libibverbs' own, and nobody who unlocks them.
extern "C" fn before_fork() {
    let mut opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(opening) = opening.as_mut().filter(|opening| opening.is_others()) else { return };
    let Opened::Soon(soon) = &opening.opened else { return };
    opening.opened = Opened::Now(match soon.recv_timeout(FORK_MAX) {
        Ok(context) => context,
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => return,
    });
}

impl Opening {
    /// Whether the calling thread may wait for it: its own asks for devices too, and a child of the process has none.
    fn is_others(&self) -> bool {
        self.process == std::process::id() && self.thread != std::thread::current().id()
    }
}

/// The context of this device, if it was opened ahead, or is being opened: waits for that.
///
/// # Safety
/// It is a device of libibverbs.
pub(crate) unsafe fn take(device: *mut c_void) -> Option<*mut c_void> {
    let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    if !opening.is_others() {
        return None;
    }
    let context = match opening.opened {
        Opened::Soon(soon) => soon.recv().ok()?,
        Opened::Now(context) => context,
    }?;
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
