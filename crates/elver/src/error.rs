use std::io;
use std::path::PathBuf;

use elver_memory::MapError;
use elver_portal::{MessageError, RefusalCode, Violation};
use elver_verbs::PostError;
use thiserror::Error;

use crate::path::{Paths, SOCKET_VARIABLE};

/// Why a call failed, and what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no node listens at {paths}; start `elverd`, or name its socket in {SOCKET_VARIABLE}")]
    NoDaemon {
        /// Where it was looked for.
        paths: Paths,
    },
    /// The socket cannot be connected to.
    #[error("cannot connect to the node at {path}: {reason}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The node took the connection, and says nothing.
    #[error("the node does not answer; is `elverd` stopped, or busy beyond measure?")]
    Silent,
    /// The node lets this process in no more.
    #[error("the node refused a session: {text}")]
    Rejected {
        /// What it said.
        text: String,
    },
    /// The node is of another version.
    #[error(transparent)]
    Version(MessageError),
    /// The node has ended, or ended this session.
    #[error("the node is gone, and this session with it; open another once `elverd` runs again")]
    NodeGone,
    /// The session is another process's.
    #[error("this session belongs to the process that forked; open one in this process")]
    Forked,
    /// The node refused.
    #[error("{text}")]
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        text: String,
    },
    /// A WR was refused when it was posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The time that the caller gave has passed.
    #[error("nothing came within the time given")]
    TimedOut,
    /// The node wrote nonsense.
    #[error("the node broke the portal's rules: {0}")]
    Violation(#[from] Violation),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The node that this thread drives failed, or could not be made.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Node(#[from] elver_node::NodeError),
    /// A call that does not fit what was asked before.
    #[error("{what}")]
    Invalid {
        /// What is wrong and what to do.
        what: &'static str,
    },
    /// An operating system call failed.
    #[error("{call}: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        reason: io::Error,
    },
}
