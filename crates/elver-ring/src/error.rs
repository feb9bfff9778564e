use thiserror::Error;

use crate::protocol::{ConfigError, Fault, Refused};

/// Why a call failed, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no room until the receiver has read more.
    #[error("the ring is full: wait (Sender::reserve, Sender::send), or come back later")]
    Full,
    /// No room will ever be enough.
    #[error(
        "a message of {len} bytes does not fit: the ring takes {max} at most; make its slots longer, or more"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Most that fit.
        max: u32,
    },
    /// This end has ended.
    #[error("the ring was ended by this end")]
    Ended,
    /// The receiver reads no more.
    #[error("the receiver reads no more")]
    Deaf,
    /// The peer wrote what cannot be: the ring is over, and nothing of that was delivered.
    #[error("the peer broke the ring's rules: {0}")]
    Fault(#[from] Fault),
    /// A ring cannot have these measures.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The peer speaks another version.
    #[error("the peer's rings are of version {theirs}, and these of {ours}: both need the same")]
    Version {
        /// The peer's.
        theirs: u16,
        /// This crate's.
        ours: u16,
    },
    /// What came in answer is nothing of a ring's.
    #[error("what answers there is no listener for rings: {what}")]
    NoListener {
        /// What is wrong with its answer.
        what: &'static str,
    },
    /// The listener does not take the ring.
    #[error("the listener refused the ring: {reason}")]
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// The node takes no bytes inline, by which a ring writes its pointers.
    #[error(
        "the node takes {max} bytes inline, and a ring needs {needed}: raise its `pool.max_inline`"
    )]
    Inline {
        /// What the node takes.
        max: u32,
        /// What is needed.
        needed: u32,
    },
    /// A ring is longer than what one WRITE of this node's may move.
    #[error("a ring of {bytes} bytes is longer than the node's longest transfer, {max} bytes")]
    Transfer {
        /// Bytes of the ring's slots.
        bytes: u64,
        /// The node's limit.
        max: u64,
    },
    /// The time that the caller gave has passed.
    #[error("nothing came within the time given")]
    TimedOut,
    /// The nodes have no queue pair for a ring whose policy asks for one ([`crate::Options::policy`]).
    #[error(
        "the ring has no queue pair by Policy::{policy:?}: {reason}; or connect it by Policy::Shared, which needs none of its own"
    )]
    NoQueuePair {
        /// The policy.
        policy: elver::Policy,
        /// What the node said: of what there is too little, where, and what raises it.
        reason: String,
    },
    /// What carries the ring failed: the peer is gone, or the node.
    #[error(transparent)]
    Carrier(elver::Error),
}

/// Why a listener does not take a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It is of another version.
    #[error("it is of another version")]
    Version,
    /// It cannot make sense of what it was asked.
    #[error("it cannot make sense of what it was asked")]
    Malformed,
    /// The measures do not fit together.
    #[error("the measures do not fit together")]
    Config,
    /// The rings are longer than it allows (`ListenerOptions::ring_bytes_max`).
    #[error("the rings are longer than it allows")]
    TooLarge,
    /// It has no memory for them, or no VQP.
    #[error("it has no memory for them, or no VQP: raise the quotas of its session")]
    Memory,
    /// Something else is spoken over its rings (`Options::application`).
    #[error(
        "something else is spoken over its rings: messages, streams, or another's; check the port"
    )]
    Application,
    /// It takes no more.
    #[error("it takes no more")]
    Closed,
    /// The node that asks has as many pairs, or as many bytes of them, as one node may
    /// (`ListenerOptions::pairs_per_peer`, `ListenerOptions::bytes_per_peer`).
    #[error(
        "it has as many rings of this node, or as long ones together, as it takes of one: end some, or raise its limits for a peer"
    )]
    PeerShare,
    /// It has no queue pair for the way back by the policy that it was given (`ListenerOptions::policy`).
    #[error(
        "it cannot connect back by its policy (ListenerOptions::policy): no queue pair is left; raise `transfer.leased_wrs_max` or `transfer.rc_qps_max` at both nodes, or give it Policy::Shared"
    )]
    Connection,
    /// It cannot connect back, though it has what that takes (`ListenerOptions::policy`).
    #[error(
        "it cannot connect back: its node does not reach this one, is about to end, or may not; ask it for its connects"
    )]
    Unreachable,
    /// As many offers of the node that asks wait there as may of one node.
    #[error(
        "as many offers of this node wait there as it keeps of one: offer again when some of them have been answered"
    )]
    Crowded,
    /// It has nothing of the offer any longer.
    #[error(
        "it has nothing of this offer any longer: its answer was lost, as when this host stood still, or it has given the pair up; offer it again"
    )]
    Lost,
}

impl From<elver::Error> for Error {
    fn from(error: elver::Error) -> Error {
        match error {
            elver::Error::TimedOut => Error::TimedOut,
            error => Error::Carrier(error),
        }
    }
}

impl From<elver::PostFailed> for Error {
    fn from(failed: elver::PostFailed) -> Error {
        failed.error.into()
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Full => Error::Full,
            Refused::TooLong { len, max } => Error::TooLong { len, max },
            Refused::Ended => Error::Ended,
            Refused::Deaf => Error::Deaf,
            Refused::Fault(fault) => Error::Fault(fault),
        }
    }
}
