//! How connections are made.

use elver::{ConnectOptions, Policy};

/// Over queue pairs that the node shares, or leased: over an RC queue pair of its own.
pub(crate) fn connect_options(leased: bool) -> ConnectOptions {
    let policy = if leased { Policy::Leased } else { Policy::Shared };
    ConnectOptions { policy, ..ConnectOptions::default() }
}
