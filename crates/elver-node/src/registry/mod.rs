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
mod news;
mod output;
mod pipe;
#[cfg(test)]
pub(crate) mod samples;
mod seal;
mod secret;
mod server;
mod session;
#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "how long a test waits")]
mod tests;
mod watchers;

pub use client::{RegistryClient, RegistryClientConfig};
pub use members::{NodeTable, RegistryConfig, RegistryCounters};
pub use news::{News, Registry};
pub use secret::{Secret, SecretError};
pub use server::RegistryServer;
