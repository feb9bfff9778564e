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
    let threads = threads()?;
    if threads > 1 {
        let what = format!("it has {threads} threads, and a process that is forked has one");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    flush();
    // SAFETY: this process has one thread that may still do something, so that the child has all of its state, whole.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Forked::Child, Forked::Parent)),
    }
}

/// How many threads this process has. One that is being ended by the system is none: it may be there for a while when it has been
/// joined.
fn threads() -> io::Result<usize> {
    const TASKS: &str = "/proc/self/task";
    // Links of a directory: itself, the one above, and one for each thread.
    if rustix::fs::stat(TASKS)?.st_nlink <= 3 {
        return Ok(1);
    }
    let mut threads = 0;
    for task in std::fs::read_dir(TASKS)? {
        // It may have gone meanwhile.
        let Ok(stat) = std::fs::read(task?.path().join("stat")) else { continue };
        threads += usize::from(!is_exiting(&stat));
    }
    Ok(threads)
}

/// Whether a thread has begun to end in the kernel, and does no more of its program, by its line in `/proc`.
fn is_exiting(stat: &[u8]) -> bool {
    /// `PF_EXITING`.
    const EXITING: u32 = 4;
    // Behind the program's name, which may have anything in it: the state, five numbers, and the flags.
    let end = stat.iter().rposition(|byte| *byte == b')');
    let fields = end.and_then(|end| std::str::from_utf8(&stat[end + 1..]).ok());
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse().ok()).is_some_and(|flags: u32| flags & EXITING != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One that had been joined was a thread for as long as the kernel had not come to remove it, and nothing was forked.
    #[test]
    fn a_thread_that_is_being_ended_is_none() {
        let line = |flags: u32| format!("7 (a) b (c) R 1 7 7 0 -1 {flags} 5 0 0 0 4 4");
        assert!(is_exiting(line(0x40_0144).as_bytes()));
        for other in [line(0x40_0140), line(0), "7 (4 4 4 4 4 4 4 4".into(), String::new()] {
            assert!(!is_exiting(other.as_bytes()), "{other}");
        }
        let own = std::fs::read("/proc/thread-self/stat").unwrap();
        assert!(!is_exiting(&own));
        // This one, at least, and the one that has started it.
        assert!(threads().unwrap() > 1);
    }
}
