//! Sockets that the daemon was started with (`sd_listen_fds`): the one module of the crate with
//! `unsafe`.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, bail};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// Takes the socket that was passed to this process, if one was. To be called once, before the
/// process opens anything that it keeps.
pub(crate) fn take() -> anyhow::Result<Option<OwnedFd>> {
    let Some(pid) = std::env::var_os("LISTEN_PID") else { return Ok(None) };
    if pid.to_str().and_then(|pid| pid.parse().ok()) != Some(std::process::id()) {
        // Meant for the process that started this one.
        return Ok(None);
    }
    let count = std::env::var("LISTEN_FDS").context("LISTEN_PID is set without LISTEN_FDS")?;
    match count.parse() {
        Ok(0) => return Ok(None),
        Ok(1) => {}
        _ => bail!("LISTEN_FDS is {count}, but elverd takes one socket"),
    }
    if std::fs::symlink_metadata(format!("/proc/self/fd/{FIRST}")).is_err() {
        bail!("LISTEN_FDS is 1, but descriptor {FIRST} is not open");
    }
    // SAFETY: whoever started this process passed the descriptor and says so, and it is open; nobody
    // in it has taken it, since it is taken here alone and once.
    let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .context("cannot take the socket that was passed")?;
    Ok(Some(fd))
}
