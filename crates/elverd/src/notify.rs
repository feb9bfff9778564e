//! `sd_notify`: telling systemd, or whoever else started the daemon, how it is.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends a state to the socket that NOTIFY_SOCKET names. Without one, nobody wants to know.
pub(crate) fn send(state: &str) {
    if let Some(address) = std::env::var_os("NOTIFY_SOCKET").and_then(address)
        && let Ok(socket) = UnixDatagram::unbound()
    {
        // Who asked and does not listen has to do without.
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

/// How often whoever started the daemon wants to hear WATCHDOG=1 at least (`sd_watchdog_enabled`).
pub(crate) fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        // Meant for the process that started this one.
        return None;
    }
    number("WATCHDOG_USEC").filter(|us| *us > 0).map(Duration::from_micros)
}

fn address(name: OsString) -> Option<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
        _ => None,
    }
}
