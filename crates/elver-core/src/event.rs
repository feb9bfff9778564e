use elver_verbs::{Via, Wc};

use crate::{ClientId, ConnectError, VqpId};

/// A completion of a VQP's, as it goes to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The VQP that it belongs to.
    pub vqp: VqpId,
    /// For a message at a bound VQP: a VQP that is connected to the sender (`qpop_msgs`, section
    /// 4.1). The first message of a sender makes it.
    pub source: Option<VqpId>,
    /// The completion with the user's `wr_id`. `qp_num` is the VQP's id.
    pub wc: Wc,
}

/// What happened to a client that is no completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A `qconnect` that was pending has ended.
    Connected {
        /// Whose.
        client: ClientId,
        /// The token of the call.
        token: u64,
        /// The VQP.
        vqp: VqpId,
        /// How it ended.
        result: Result<Via, ConnectError>,
    },
    /// A `warm` call has ended.
    Warmed {
        /// Whose.
        client: ClientId,
        /// The token of the call.
        token: u64,
        /// Peers whose metadata is at hand now.
        ready: u32,
        /// Peers that could not be found.
        failed: u32,
    },
    /// A deregistration that waited for leases and for work in flight is done: the memory is the
    /// client's alone again.
    Deregistered {
        /// Whose.
        client: ClientId,
        /// The token of the call.
        token: u64,
    },
    /// A VQP went to its error state for a reason that no completion tells: the peer refused a
    /// message.
    Failed {
        /// Whose.
        client: ClientId,
        /// The VQP.
        vqp: VqpId,
        /// Why.
        cause: ConnectError,
    },
    /// A VQP that a message made, and that its client has not used, or that had failed, was destroyed, so
    /// that another could be made. Its client may have heard of it by a completion.
    GaveWay {
        /// Whose.
        client: ClientId,
        /// The VQP, which is gone.
        vqp: VqpId,
    },
}

impl Event {
    /// Whether it tells that a VQP of a client's has failed.
    pub(crate) fn is_failure_of(&self, client: ClientId, vqp: VqpId) -> bool {
        matches!(self, Event::Failed { client: of, vqp: failed, .. } if (*of, *failed) == (client, vqp))
    }
}
