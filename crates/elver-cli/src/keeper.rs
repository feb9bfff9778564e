//! Who speaks for programs of `elver run` that are killed: a process that outlives them (elver-farewell).

use std::env::current_exe;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use elver_farewell::Keeper;
use rustix::process::{PidfdFlags, getpid, pidfd_open, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The commands that this starts, which are none of the user's.
const START: &str = "start-keeper";
const KEEP: &str = "keeper";

/// Starts a keeper that is there as long as this process, whatever program it becomes; its name.
pub(crate) fn start() -> Result<String> {
    let (name, listener) = Keeper::listen().context("cannot make a name for the keeper")?;
    let until = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot watch this process")?;
    // Not a child of this process: its program waits for children of its own.
    let started = Command::new(current_exe()?)
        .arg(START)
        .stdin(listener)
        .stdout(until)
        .stderr(Stdio::null())
        .status()
        .context("cannot start the keeper")?;
    ensure!(started.success(), "the keeper did not start: {started}");
    Ok(name)
}

/// The command of this name, if it is one of these.
pub(crate) fn command(name: &OsStr) -> Option<fn() -> Result<()>> {
    match name.to_str()? {
        START => Some(part),
        KEEP => Some(keep),
        _ => None,
    }
}

/// Starts the keeper itself, whose parent then is nobody that waits for it.
fn part() -> Result<()> {
    // Who ends what runs in a terminal ends the programs, of which somebody has to tell.
    setsid().context("cannot leave the session")?;
    Command::new(current_exe()?).arg(KEEP).current_dir("/").spawn().context("cannot part")?;
    Ok(())
}

fn keep() -> Result<()> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // It ends when there is nobody to speak for, and not with them.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    let until = std::io::stdout().as_fd().try_clone_to_owned()?;
    Ok(Keeper::new(listener, until)?.run()?)
}
