//! Why a thread that is watched stands still, and letting it go on. Signals are plain numbers here: those of real time have no
//! names, and belong to the program as others do.

use std::io;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

pub(super) const SIGTRAP: i32 = libc::SIGTRAP;
/// What a thread begins with.
pub(super) const SIGSTOP: i32 = libc::SIGSTOP;
/// In place of a signal.
pub(super) const NONE: i32 = 0;

/// `PTRACE_O_TRACESYSGOOD` adds it to the signal of a stop at a system call.
const SYSTEM_CALL: i32 = SIGTRAP | 0x80;

/// What a thread has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The end, with an exit code.
    Exited(u8),
    /// The end, by a signal.
    Killed(u8),
    /// Entry of a system call, or return from it.
    SystemCall,
    /// One of `PTRACE_EVENT_…`.
    Event(i32),
    /// A signal, which it has not got yet.
    Signal(i32),
}

impl Stop {
    pub(super) fn is_end(self) -> bool {
        matches!(self, Stop::Exited(_) | Stop::Killed(_))
    }

    fn of(status: WaitStatus) -> Option<Stop> {
        if let Some(code) = status.exit_status() {
            return Some(Stop::Exited(code as u8));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Stop::Killed(signal as u8));
        }
        let event = status.as_raw() >> 16;
        Some(match status.stopping_signal()? {
            SYSTEM_CALL => Stop::SystemCall,
            _ if event != 0 => Stop::Event(event),
            signal => Stop::Signal(signal),
        })
    }
}

/// Waits for the next thread of those that this one watches; none if there are no more.
pub(super) fn next() -> io::Result<Option<(Pid, Stop)>> {
    // Other threads of this process have children of their own.
    let whose = WaitOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD) as u32);
    loop {
        match rustix::process::wait(whose) {
            Ok(Some((id, status))) => {
                let id = Pid::from_raw(id.as_raw_nonzero().get());
                if let Some(stop) = Stop::of(status) {
                    return Ok(Some((id, stop)));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// How a thread goes on, and with which signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// To its next system call.
    On(i32),
    /// By one instruction.
    Step(i32),
}

/// Lets a thread go on. One that was killed meanwhile will be waited for.
#[allow(unsafe_code)]
pub(super) fn go(id: Pid, how: Go) -> nix::Result<()> {
    let (request, signal) = match how {
        Go::On(signal) => (libc::PTRACE_SYSCALL, signal),
        Go::Step(signal) => (libc::PTRACE_SINGLESTEP, signal),
    };
    let nowhere = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these two requests take numbers alone, and touch no memory of this process.
    let result = unsafe { libc::ptrace(request, id.as_raw(), nowhere, libc::c_long::from(signal)) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a thread that stood still was killed meanwhile, so that nothing can be done with it; it will be waited for.
pub(super) fn was_killed(id: Pid) -> bool {
    matches!(ptrace::getregs(id), Err(Errno::ESRCH))
}

/// Whether a thread has come to a breakpoint, and not to the end of a step.
pub(super) fn met_breakpoint(id: Pid) -> bool {
    ptrace::getsiginfo(id).is_ok_and(|about| about.si_code == libc::SI_KERNEL)
}
