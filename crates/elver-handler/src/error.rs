//! What can go wrong between a function and its platform.

use std::io;

/// Why a function cannot be served, or has no RDMA.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable is not there, or is not what the platform sets.
    #[error(
        "{0} is not set as a platform sets it: `elver faas` starts programs like this one, with runtime = \"native\""
    )]
    NoPlatform(&'static str),
    /// `ELVER_CONNECTIONS` is neither of what a platform sets there.
    #[error("ELVER_CONNECTIONS is {0:?}; it is shared or leased")]
    Connections(String),
    /// A call of the system.
    #[error("{call}: {reason}")]
    System {
        /// The call, or what it was for.
        call: &'static str,
        /// What the system said.
        reason: io::Error,
    },
    /// The platform's Runtime API answered something else than was expected.
    #[error("the platform's Runtime API: {0}")]
    Conversation(String),
    /// The platform's configuration has no node.
    #[error("the platform gives no RDMA: its configuration needs platform.node_socket")]
    NoNode,
    /// A destination is no GID.
    #[error("{0:?} is no GID, which is written as the IP address of its node: 10.0.0.1, fe80::1")]
    NoGid(String),
    /// RDMA.
    #[error("{0}")]
    Rdma(#[from] elver::Error),
}

/// An error of a call.
pub(crate) fn system(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |reason| Error::System { call, reason }
}
