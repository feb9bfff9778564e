//! What a node asks of a registry, and hears from it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

/// What a node needs of the service that knows the cluster.
///
/// Its owner is a thread that may block, and calls [`Registry::wait`], then [`Registry::poll`] and
/// [`Registry::poll_news`] until there is none, over and over.
pub trait Registry: Send {
    /// Makes this node known, and keeps it known until [`Registry::leave`]. Called once.
    fn register(&mut self, gid: Gid, record: NodeRecord);

    /// Waits until there is something to do, `wake` is readable or `at_most` has passed.
    ///
    /// # Errors
    ///
    /// What the system said, where it does not wait. A signal ends the wait, and is no error.
    fn wait(&mut self, at_most: Duration, wake: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// Does what is due.
    fn poll(&mut self, now: Time);

    /// Takes a piece of news, oldest first.
    fn poll_news(&mut self) -> Option<News>;

    /// Withdraws this node, so that nobody has to wait for its time to live to run out.
    fn leave(&mut self);
}

/// What the registry tells a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The meta servers, the one to ask first in front. Not empty.
    MetaServers(Vec<MetaServer>),
    /// This node is in the table of so many meta servers now.
    Registered {
        /// How many.
        servers: usize,
    },
    /// A server refused this node, or is not reached, or does or is no longer so.
    Refused {
        /// Times that any did.
        refusals: u64,
        /// Those that do, or do not answer, and why.
        servers: Vec<(SocketAddr, String)>,
    },
    /// A node came, changed its record (`Some`), or is gone (`None`).
    Node {
        /// Its GID.
        gid: Gid,
        /// Its record now.
        record: Option<NodeRecord>,
    },
    /// A list of all nodes begins: one [`News::Node`] for each, until [`News::ListEnd`].
    ListBegin,
    /// The list has ended.
    ListEnd {
        /// Whether nodes that it does not have are gone. A registry that began a moment ago has not
        /// heard from all.
        complete: bool,
    },
}
