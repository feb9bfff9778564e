//! Who is in the cluster: a service that every node tells of itself, and that tells every node
//! where the meta servers are and which nodes changed or died (KRCORE, section 4.2: "the meta
//! server … updated by broadcast at boot").
//!
//! The registry that comes with Elver runs beside each meta server: [`RegistryServer`] over TCP.
//! A node registers at all of them ([`RegistryClient`]) and takes news from the first in order of
//! preference that answers. Each server alone decides who lives, by heartbeats; a node must be dead
//! to all of them before nobody finds it.
//!
//! Where a cluster has a [`Secret`], node and registry prove to each other that they know it before
//! they say anything else, and seal what they say from then on.
//!
//! It is off the data path: connects never wait for it, since they read the meta server's table.

mod backoff;
mod client;
mod frame;
mod members;
mod pipe;
#[cfg(test)]
mod samples;
mod seal;
mod secret;
mod server;
mod session;
#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "how long a test waits")]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

pub use client::{RegistryClient, RegistryClientConfig};
pub use members::{NodeTable, RegistryConfig, RegistryCounters};
pub use secret::{Secret, SecretError};
pub use server::RegistryServer;

/// What a node needs of the service that knows the cluster.
///
/// Its owner is a thread that may block, and calls [`Registry::wait`], then [`Registry::poll`] and
/// [`Registry::poll_news`] until there is none, over and over.
pub trait Registry: Send {
    /// Makes this node known, and keeps it known until [`Registry::leave`]. Called once.
    fn register(&mut self, gid: Gid, record: NodeRecord);

    /// Waits until there is something to do, `wake` is readable or `at_most` has passed.
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
    /// A server refused this node, or no longer does.
    Refused {
        /// Times that any did.
        refusals: u64,
        /// Those that do, and why.
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
