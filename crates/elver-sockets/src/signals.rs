//! Signals that come to a thread in a call that waits. A sleep alone hears of a handler that has run, so from the first sleep
//! on the handlers run in sleeps: what comes while the thread looks ends the next one.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{
    SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, sigset_t, timespec,
};

use crate::{errno, real};

/// What a thread does itself: blocked, they would end the process.
const OWN: [c_int; 6] = [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];

/// A thread's, for the time of a call.
pub(crate) struct Signals {
    /// Those that the program has blocked while the call waits, if it says which.
    mask: *const sigset_t,
    /// Those that were blocked before the call's first sleep.
    before: Option<sigset_t>,
}

impl Signals {
    /// Of a call that has a mask, or none if it is null.
    pub(crate) fn by(mask: *const sigset_t) -> Signals {
        Signals { mask, before: None }
    }

    /// Of a call that has none.
    pub(crate) fn of_thread() -> Signals {
        Signals::by(ptr::null())
    }

    /// The call sleeps: from here on they come in sleeps alone. The mask for this one.
    pub(crate) fn held(&mut self) -> *const sigset_t {
        let before = self.before.get_or_insert_with(|| {
            let mut all = MaybeUninit::uninit();
            // SAFETY: it fills the set, which stands here.
            let mut all = unsafe {
                libc::sigfillset(all.as_mut_ptr());
                all.assume_init()
            };
            for signal in OWN {
                // SAFETY: the set stands here.
                unsafe { libc::sigdelset(&mut all, signal) };
            }
            change(SIG_BLOCK, &all)
        });
        if self.mask.is_null() { before } else { self.mask }
    }

    /// The time has passed, if there was any: those that the call's mask lets through come all the same.
    ///
    /// # Errors
    /// `EINTR`.
    pub(crate) fn passed(&self) -> Result<(), c_int> {
        if self.mask.is_null() {
            return Ok(());
        }
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time stands here, there are no entries, and the mask is the caller's caller's.
        match unsafe { real::ppoll(ptr::null_mut(), 0, &now, self.mask) } {
            told if told < 0 => Err(errno::get()),
            _ => Ok(()),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            change(SIG_SETMASK, before);
        }
    }
}

/// Changes which are blocked; those that were.
fn change(how: c_int, set: &sigset_t) -> sigset_t {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: both sets stand here, and zeros are one. It cannot fail with such a `how`.
    unsafe {
        libc::pthread_sigmask(how, set, before.as_mut_ptr());
        before.assume_init()
    }
}
