//! What threads of `elver-init` tell the one that has its state.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

use elver::Gid;
use rustix::process::Pid;

use crate::protocol::{Order, RuntimeReport};
use crate::schedule::ProcessId;

/// What threads tell the one that has the state.
#[derive(Debug)]
pub(super) enum Event {
    /// The orchestrator can be told things here.
    Orchestrator(UnixStream),
    /// The orchestrator orders.
    Order(Order),
    /// A process has ended, of this container, whoever's child it was.
    Reaped(Pid, String),
    /// A runtime reports.
    Runtime(ProcessId, RuntimeReport),
    /// The node has, or has not, made ready what an INIT process connects to.
    Connected(ProcessId, BTreeSet<Gid>),
}
