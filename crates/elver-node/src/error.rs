use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use elver_core::CoreError;
use elver_soft::SoftError;
use rustix::io::Errno;
use thiserror::Error;

use crate::config::{ConfigError, socket_option};

/// Why a node does not run.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Its configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its device cannot be opened, or failed.
    #[error(transparent)]
    Device(#[from] SoftError),
    /// Its core cannot be made.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A TCP port is not to be had.
    #[error("cannot listen at {address} for {what}: {}", advised(.reason, Some(.option)))]
    Listen {
        /// Where.
        address: SocketAddr,
        /// For what.
        what: &'static str,
        /// The option that says where.
        option: &'static str,
        /// What the system said.
        reason: io::Error,
    },
    /// The socket for processes is not to be had.
    #[error("cannot listen at {path}: {}", advised(.reason, Some(socket_option())))]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Another daemon serves there.
    #[error(
        "another elverd serves {path}, or a socket unit listens there for it; end that, or set `socket.path` or ELVER_SOCKET"
    )]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// A call to the system failed.
    #[error("{call}: {}", advised(.reason, None))]
    System {
        /// What was tried.
        call: &'static str,
        /// What the system said.
        reason: io::Error,
    },
}

/// What the system said, and what helps: a limit that is reached is none of an option's.
fn advised(reason: &io::Error, option: Option<&str>) -> String {
    let limit = match Errno::from_io_error(reason) {
        Some(Errno::MFILE) => "allow this process more descriptors (LimitNOFILE=, ulimit -n)",
        Some(Errno::NFILE) => "the machine has no descriptor left (sysctl fs.file-max)",
        Some(Errno::AGAIN) => {
            "allow more threads (TasksMax=, ulimit -u) or more address space (ulimit -v)"
        }
        Some(Errno::NOMEM) => "allow this process more memory (MemoryMax=, ulimit -v)",
        Some(Errno::FBIG) => "allow larger files (LimitFSIZE=, ulimit -f)",
        _ => {
            return option.map_or(reason.to_string(), |option| format!("{reason}; set `{option}`"));
        }
    };
    format!("{reason}; {limit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_not_blamed_on_an_option() {
        let error = |errno: Errno| {
            let reason = errno.into();
            let address = SocketAddr::from(([127, 0, 0, 1], 4_792));
            let option = "metrics.listen";
            NodeError::Listen { address, what: "metrics", option, reason }.to_string()
        };
        assert!(error(Errno::ADDRINUSE).ends_with("set `metrics.listen`"));
        for (errno, word) in [
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "fs.file-max"),
            (Errno::AGAIN, "ulimit -u"),
            (Errno::NOMEM, "ulimit -v"),
            (Errno::FBIG, "ulimit -f"),
        ] {
            let text = error(errno);
            assert!(text.contains(word) && !text.contains("metrics.listen"), "{text}");
        }
    }
}
