//! The socket that the daemon was started with (`sd_listen_fds`).

use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use listenfd::ListenFd;

/// Takes the socket that was passed to this process, if one was. To be called once, before the
/// process opens anything that it keeps, or starts a thread.
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
    ListenFd::from_env()
        .take_custom(0, libc::AF_UNIX, libc::SOCK_SEQPACKET, "Unix socket of packets")
        .context("cannot take the socket that was passed (ListenSequentialPacket= in systemd)")
}
