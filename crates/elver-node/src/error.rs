use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use elver_core::CoreError;
use elver_soft::SoftError;
use thiserror::Error;

use crate::config::ConfigError;

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
    #[error("cannot listen at {address} for {what}: {reason}; set `{option}`")]
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
    #[error("cannot listen at {path}: {reason}")]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Another daemon serves there.
    #[error("another elverd serves {path}; end it, or set `socket.path` or ELVER_SOCKET")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// A call to the system failed.
    #[error("{call}: {reason}")]
    System {
        /// What was tried.
        call: &'static str,
        /// What the system said.
        reason: io::Error,
    },
}
