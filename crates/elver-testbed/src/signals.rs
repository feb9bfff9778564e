//! What a signal leaves behind: nothing.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// How long processes may take that have others to end themselves.
const END_WAIT: Duration = Duration::from_secs(10);

/// Processes that end before this one does, by their numbers.
static GUESTS: Mutex<Vec<(u32, OwnedFd)>> = Mutex::new(Vec::new());

/// All directories of this process.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on a signal that ends this process ends its guests first, and removes its directories.
/// Its daemons get theirs from the kernel, by the death of their parent.
pub(crate) fn watch() -> Result<()> {
    static WATCHED: OnceLock<()> = OnceLock::new();
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch signals")?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end_guests();
            remove_directories();
            // It ends the process as if nobody had watched.
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// A process that uses directories of this one's, and has time to end before they go.
#[derive(Debug)]
pub(crate) struct Guest(u32);

impl Guest {
    pub(crate) fn of(child: &Child) -> Result<Guest> {
        let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        let handle = handle.context("cannot watch a process")?;
        guests().push((child.id(), handle));
        Ok(Guest(child.id()))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        guests().retain(|(number, _)| *number != self.0);
    }
}

/// A directory goes with this process.
pub(crate) fn removes(path: PathBuf) {
    directories().push(path);
}

/// It has gone.
pub(crate) fn removes_no_more(path: &Path) {
    directories().retain(|other| other != path);
}

fn directories() -> MutexGuard<'static, Vec<PathBuf>> {
    DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_directories() {
    for path in directories().drain(..) {
        // What cannot be removed is a few files in the directory for temporary ones.
        let _ = std::fs::remove_dir_all(path);
    }
}

fn guests() -> MutexGuard<'static, Vec<(u32, OwnedFd)>> {
    GUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends them as their user would, and waits for that.
fn end_guests() {
    let guests: Vec<(u32, OwnedFd)> = guests().drain(..).collect();
    for (_, guest) in &guests {
        // One that has ended needs no signal.
        let _ = pidfd_send_signal(guest, Signal::TERM);
    }
    let until = Instant::now() + END_WAIT;
    for (_, guest) in &guests {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            // It is readable once its process has ended.
            match poll(&mut [PollFd::new(guest, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
    }
}
