//! Ethernet frames over a socket: the device is then a station of a link, such as a virtual
//! machine's, with MAC and IP addresses of its own. It answers ARP, neighbour discovery and echo
//! requests, asks for its peers' MAC addresses, and writes IP and UDP headers itself, so that the
//! ICRC is computed and checked with the IPv4 identification that is really there.

mod adopt;
mod arp;
mod config;
mod counters;
mod ethernet;
mod host;
mod icmp;
mod ip;
mod link;
mod neighbour;
mod queue;
mod socket;
#[cfg(test)]
mod tests;

pub use config::{FrameLink, LocalAddress};
pub use counters::FrameCounters;
pub use ethernet::Mac;
pub(crate) use link::FramePort;
pub use socket::FrameSocket;
