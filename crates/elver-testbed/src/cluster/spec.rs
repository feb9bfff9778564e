//! What a cluster is made of.

use crate::seat::Seat;

/// Where the nodes of a cluster stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A network namespace for each. Needs root.
    Netns,
    /// An address of the loopback for each.
    Loopback,
}

impl Ground {
    /// Namespaces for root, else the loopback.
    pub fn best() -> Ground {
        if rustix::process::geteuid().is_root() { Ground::Netns } else { Ground::Loopback }
    }

    /// As `--placement` has it.
    pub fn name(self) -> &'static str {
        match self {
            Ground::Netns => "netns",
            Ground::Loopback => "loopback",
        }
    }
}

/// What a node of a cluster is made with.
#[derive(Clone, Debug, Default)]
pub struct NodeSpec {
    /// Its name in messages.
    pub name: &'static str,
    /// Where it runs.
    pub seat: Seat,
    /// Options of its configuration, such as `engine.spin_us = 100`.
    pub options: Vec<String>,
}
