//! What is said to who asks a node something, and does not hear it.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

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
