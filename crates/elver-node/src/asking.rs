//! What who asks a node something checks, and is told where he does not hear it.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::config::SOCKET_VARIABLE;

/// Refuses a socket below `/tmp` that another user made, as programs do: anybody may make one there, and say anything.
pub(crate) fn trusted(path: &Path, stream: &UnixStream) -> io::Result<()> {
    if !path.starts_with("/tmp") {
        return Ok(());
    }
    let uid = elver_portal::peer_of(stream)?.uid;
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let path = path.display();
    let what = format!(
        "{path} is user {uid}'s, and not root's or this user's, and is not asked; name the node's socket \
         with --socket or in {SOCKET_VARIABLE}"
    );
    Err(io::Error::new(ErrorKind::PermissionDenied, what))
}

/// An error, and what it came of.
pub(crate) fn told(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// What the node at a socket answers cannot be read; it had so long.
pub(crate) fn unheard(error: io::Error, what: &str, socket: &Path, wait: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let (socket, wait) = (socket.display(), wait.as_secs());
            let what = format!(
                "the node ({socket}) has not answered for {wait} s: it hangs or is stopped; what it \
                 says on its standard error may tell where (journalctl -u elverd)"
            );
            io::Error::new(ErrorKind::TimedOut, what)
        }
        _ => told(error, what),
    }
}
