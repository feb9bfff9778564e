//! Forking and ending, which the standard library does not have.

use std::io::{self, Write};

use rustix::process::{Pid, set_child_subreaper};

/// Which of the two this is.
pub(crate) enum Forked {
    /// It has this child.
    Parent(Pid),
    /// It is the child.
    Child,
}

/// Forks. Refused where this process has several threads, whose locks the child could wait for without end.
pub(crate) fn fork() -> io::Result<Forked> {
    // Links of a directory: itself, the one above, and one for each thread.
    let threads = rustix::fs::stat("/proc/self/task")?.st_nlink.saturating_sub(2);
    if threads > 1 {
        let what = format!("it has {threads} threads, and a process that is forked has one");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    flush();
    // SAFETY: this process has one thread, so that the child has all of its state, whole.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Forked::Child, Forked::Parent)),
    }
}

/// Has children that end stay until they are waited for: a handler may have had the system forget them.
pub(crate) fn keep_ended() -> io::Result<()> {
    // SAFETY: the default does nothing, and calls nothing of this process.
    match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Processes that lose their parent become children of this one.
pub(crate) fn keep_strays() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Ends a child: what the parent has registered for its own end is not the child's to do.
pub(crate) fn exit(code: i32) -> ! {
    flush();
    // SAFETY: it ends this process alone, and needs nothing of its state.
    unsafe { libc::_exit(code) }
}

/// Writes what is still in buffers, Rust's and, for handlers in C, the C library's: two processes would write it.
fn flush() {
    // What cannot be written is lost with the process.
    let _ = io::stdout().flush();
    // SAFETY: null stands for all streams that are open for writing; each is locked while it is written.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}
