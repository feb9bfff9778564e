//! What the daemon is called with.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Read if no other is named and it is there.
pub(crate) const CONFIG_FILE: &str = "/etc/elver/elverd.toml";

/// The daemon of an Elver node: it owns a software RNIC and gives processes RDMA connections in
/// about a microsecond, over shared memory.
///
/// It needs no privileges. Processes find it by its Unix socket: ELVER_SOCKET if that is set, else
/// `socket.path` of the configuration, else /run/elver/elverd.sock for root and
/// $XDG_RUNTIME_DIR/elver/elverd.sock for others, or /tmp/elver-UID/elverd.sock where that is not set; a socket
/// that systemd passes goes before all.
/// Ends at SIGTERM, SIGINT and SIGHUP, with exit code 0; 1 means that it failed, 2 that its arguments or
/// its configuration cannot be.
#[derive(Debug, Parser)]
#[command(name = "elverd", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// Configuration; by default /etc/elver/elverd.toml if that is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration and end.
    #[arg(long)]
    pub(crate) check: bool,
    /// Print a commented configuration with all defaults and end.
    #[arg(long, conflicts_with_all = ["config", "check"])]
    pub(crate) print_config: bool,
    #[command(subcommand)]
    pub(crate) print: Option<Print>,
}

/// Something to print instead of serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Print {
    /// Prints the manual page, in roff: `elverd man | man -l -`.
    Man,
    /// Prints a completion script for a shell: `source <(elverd completions bash)`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}
