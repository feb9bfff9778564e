//! The ways to connect through a node, for the rows of `bench connect`.

use anyhow::{Result, ensure};
use elver_core::{ConnectOptions, Policy, Via};

/// A way to connect through a node.
pub struct Way {
    /// The row's name.
    pub name: &'static str,
    /// How a VQP is connected.
    pub options: ConnectOptions,
    /// Whom it connects to.
    pub to: To,
    /// By what it must be connected.
    pub via: &'static [Via],
    /// What is there when it begins.
    pub before: Before,
}

/// What a node has when it begins to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing of the peer: no record, no RC QP.
    Nothing,
    /// The peer's record, so that it can be asked for a connection, and no RC QP to it: each peer
    /// serves for one connect.
    Addresses,
    /// The same, and what is connected is taken down again.
    Records,
    /// What connects it.
    AtHand,
    /// Whatever it has is not looked at.
    Ignored,
}

/// Whom it connects to, where that is one node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// The meta server, which answers.
    Meta,
    /// A node whose metadata is all that is needed of it.
    Idle,
}

impl Way {
    /// The way of a row.
    pub fn named(name: &str) -> Option<&'static Way> {
        WAYS.iter().find(|way| way.name == name)
    }

    /// Whether every connect is the first one to its peer.
    pub fn meets_strangers(&self) -> bool {
        matches!(self.before, Before::Nothing | Before::Addresses)
    }

    /// Whether it can lead to many nodes: what is at hand by an RC QP is not, since a node has few.
    pub fn leads_to_many(&self) -> bool {
        self.before != Before::AtHand
    }

    /// Whether the peers have a part in it.
    pub fn speaks_with_peers(&self) -> bool {
        self.options.policy != Policy::Shared
    }

    /// Whether it leaves RC QPs behind that others share.
    pub fn makes_shared_links(&self) -> bool {
        self.options.policy == Policy::Lite
    }

    /// Whether what connects it is there.
    pub fn is_at_hand(&self) -> bool {
        self.before == Before::AtHand || (self.via == [Via::DcCached])
    }

    /// Whether it was connected by what it should be.
    ///
    /// # Errors
    ///
    /// It was connected otherwise.
    pub fn check(&self, via: Via) -> Result<()> {
        ensure!(self.via.contains(&via), "{} connected by {via:?}", self.name);
        Ok(())
    }

    /// The options as the client library has them.
    pub fn options_of_a_process(&self) -> elver::ConnectOptions {
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
static WAYS: [Way; 8] = [
    Way {
        name: "verbs",
        options: options(Policy::Leased, false),
        to: To::Meta,
        via: &[Via::Leased],
        before: Before::Records,
    },
    Way {
        name: "lite-miss",
        options: options(Policy::Lite, false),
        to: To::Meta,
        via: &[Via::Rc],
        before: Before::Addresses,
    },
    Way {
        name: "lite-hit",
        options: options(Policy::Lite, false),
        to: To::Meta,
        via: &[Via::Rc],
        before: Before::AtHand,
    },
    Way {
        name: "rpc-meta",
        options: options(Policy::RpcMeta, true),
        to: To::Meta,
        via: &[Via::DcLookup],
        before: Before::Records,
    },
    Way {
        name: "vqp-cold",
        options: options(Policy::Shared, false),
        to: To::Idle,
        via: &[Via::DcLookup],
        before: Before::Nothing,
    },
    Way {
        name: "vqp-uncached",
        options: options(Policy::Shared, true),
        to: To::Idle,
        via: &[Via::DcLookup],
        before: Before::Ignored,
    },
    Way {
        name: "vqp-dccache",
        options: options(Policy::Shared, false),
        to: To::Idle,
        via: &[Via::DcCached],
        before: Before::Records,
    },
    Way {
        name: "vqp-rc",
        options: options(Policy::Shared, false),
        to: To::Meta,
        via: &[Via::Rc],
        before: Before::AtHand,
    },
];

/// What backs a VQP, in the core's words.
pub fn core_via(via: elver::Via) -> Via {
    match via {
        elver::Via::Rc => Via::Rc,
        elver::Via::DcCached => Via::DcCached,
        elver::Via::DcLookup => Via::DcLookup,
        elver::Via::Leased => Via::Leased,
    }
}
