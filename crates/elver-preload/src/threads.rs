//! Threads of this library's own, which a program does not know.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// What a thread's own instructions cause: blocked, it ends the process without asking the program's handler.
const FAULTS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// The shortest slice that the kernel grants, in nanoseconds.
const SLICE: u64 = 100_000;
/// How much later than it is to end a sleep may end, in nanoseconds.
const TIMER_SLACK: libc::c_ulong = 1_000;

/// How others come to a core that a thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    /// By turns, and whoever lets them run is not run before they have.
    Shared,
    /// Not before it sleeps: it has the program's real-time policy.
    None,
}

/// Has this thread run soon when it is woken, though another one has the core that looks at memory without end: who asks
/// for short slices gets them earlier (Linux 6.12; before that, nothing changes), and has its sleeps end when they are to.
/// Under seccomp it does not ask: a filter may end the process for it.
pub(crate) fn run_soon() -> Turns {
    // SAFETY: it takes and returns numbers.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } != 0 {
        return Turns::Shared;
    }
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK) };
    // SAFETY: the attributes are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: it is written as far as it goes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return Turns::Shared;
    }
    let is_real_time = [libc::SCHED_FIFO, libc::SCHED_RR].map(|policy| policy as u32);
    if is_real_time.contains(&attributes.sched_policy) {
        return Turns::None;
    }
    if attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE;
        // SAFETY: it is read as far as it goes.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
    Turns::Shared
}

/// Starts a thread that takes no signal of the program's: libibverbs has none, so that programs rely on their own
/// threads' masks alone.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are ours to write, and the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    // It has the mask of who starts it.
    let started = builder.spawn(body);
    // SAFETY: the call above has filled it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started.map(drop)
}
