//! The ways to connect through a node, for the rows of `bench connect`.

use anyhow::{Result, ensure};
use elver_core::{ConnectOptions, Policy, Via};

/// A way to connect through a node.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) options: ConnectOptions,
    pub(crate) to: To,
    /// By what it must be connected.
    pub(crate) via: &'static [Via],
}

/// Whom it connects to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// The meta server, which answers and has an RC QP to it.
    Meta,
    /// A node whose metadata is all that is needed of it.
    Idle,
}

impl Way {
    /// The way of a row.
    pub(crate) fn named(name: &str) -> Option<&'static Way> {
        WAYS.iter().find(|way| way.name == name)
    }

    /// Whether it supposes that the node knows the peer.
    pub(crate) fn is_cached(&self) -> bool {
        !self.options.uncached && self.options.policy == Policy::Shared
    }

    /// Whether it was connected by what it should be.
    pub(crate) fn check(&self, via: Via) -> Result<()> {
        ensure!(self.via.contains(&via), "{} connected by {via:?}", self.name);
        Ok(())
    }

    /// The options as the client library has them.
    pub(crate) fn options_of_a_process(&self) -> elver::ConnectOptions {
        let policy = match self.options.policy {
            Policy::Shared => elver::Policy::Shared,
            Policy::Lite => elver::Policy::Lite,
            Policy::RpcMeta => elver::Policy::RpcMeta,
            Policy::Leased => elver::Policy::Leased,
        };
        elver::ConnectOptions { policy, uncached: self.options.uncached }
    }
}

const fn options(policy: Policy, uncached: bool) -> ConnectOptions {
    ConnectOptions { policy, uncached }
}

/// In the order of the table.
static WAYS: [Way; 6] = [
    Way {
        name: "verbs",
        options: options(Policy::Leased, false),
        to: To::Meta,
        via: &[Via::Leased],
    },
    Way {
        name: "lite",
        options: options(Policy::Lite, true),
        to: To::Meta,
        via: &[Via::Rc, Via::Leased],
    },
    Way {
        name: "rpc-meta",
        options: options(Policy::RpcMeta, true),
        to: To::Meta,
        via: &[Via::DcLookup, Via::DcCached],
    },
    Way {
        name: "vqp-uncached",
        options: options(Policy::Shared, true),
        to: To::Idle,
        via: &[Via::DcLookup],
    },
    Way {
        name: "vqp-dccache",
        options: options(Policy::Shared, false),
        to: To::Idle,
        via: &[Via::DcCached],
    },
    Way { name: "vqp-rc", options: options(Policy::Shared, false), to: To::Meta, via: &[Via::Rc] },
];

/// What backs a VQP, in the core's words.
pub(crate) fn core_via(via: elver::Via) -> Via {
    match via {
        elver::Via::Rc => Via::Rc,
        elver::Via::DcCached => Via::DcCached,
        elver::Via::DcLookup => Via::DcLookup,
        elver::Via::Leased => Via::Leased,
    }
}
