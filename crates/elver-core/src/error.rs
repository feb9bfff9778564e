use elver_verbs::{Gid, VerbsError};
use thiserror::Error;

use crate::{ClientId, VqpId};

/// Why a call was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CoreError {
    /// No such client, or it is closed.
    #[error("client {} does not exist", .0.0)]
    NoSuchClient(ClientId),
    /// No such VQP, or it is another client's.
    #[error("VQP {:#x} does not exist or belongs to another", .0.0)]
    NoSuchVqp(VqpId),
    /// No region of the client's has this key.
    #[error("no memory region of lkey {lkey:#x} is registered")]
    NoSuchMr {
        /// The key as given.
        lkey: u32,
    },
    /// A limit of the client's, or of the node's, is reached.
    #[error("the limit of {limit} {what} is reached; release some or raise `{setting}`")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
        /// The configuration field that says so.
        setting: &'static str,
    },
    /// Another VQP is bound to the port.
    #[error("port {port} is in use; bind another, or destroy the VQP that holds it")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The call does not fit the VQP's state.
    #[error("the VQP is {state}, which does not allow {call}")]
    State {
        /// Its state.
        state: &'static str,
        /// What was asked for.
        call: &'static str,
    },
    /// A value out of its range.
    #[error("{name} is {value}, but must lie in {min}..={max}")]
    OutOfRange {
        /// Name of the value.
        name: &'static str,
        /// The value given.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

/// Why a VQP did not get, or lost, its connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No node of this GID is registered.
    #[error("no node {gid} is registered at the meta server; is it running?")]
    NoSuchNode {
        /// The GID.
        gid: Gid,
    },
    /// No meta server answers.
    #[error("none of the {tried} meta servers answers")]
    NoMetaServer {
        /// How many were tried.
        tried: u32,
    },
    /// The node does not answer.
    #[error("node {gid} does not answer")]
    Unreachable {
        /// Its GID.
        gid: Gid,
    },
    /// Nobody is bound to the port at the node.
    #[error("no VQP is bound to port {port} at node {gid}")]
    NoSuchPort {
        /// Its GID.
        gid: Gid,
        /// The port.
        port: u16,
    },
    /// The receiver has more messages than it may hold unreceived.
    #[error("the receiver at node {gid} holds as many messages as it may; post receives there")]
    Overrun {
        /// Its GID.
        gid: Gid,
    },
    /// The VQP that was sent to is gone.
    #[error("the VQP at node {gid} that was sent to is gone")]
    PeerGone {
        /// Its GID.
        gid: Gid,
    },
    /// The receive that a message came to does not take it.
    #[error("a receive at node {gid} is too short for the message, or its memory is gone")]
    ReceiveUnfit {
        /// Its GID.
        gid: Gid,
    },
    /// The connection needs an RC QP, and this node or the peer has as many as it may.
    #[error(
        "no RC QP is left for a connection to node {gid}; raise `rc_qps_max` or `leased_wrs_max`, \
         here or there"
    )]
    NoRcQp {
        /// The peer's GID.
        gid: Gid,
    },
    /// Too many connects wait already.
    #[error("{waiting} connects wait already; try again later")]
    Busy {
        /// How many wait.
        waiting: u32,
    },
    /// The VQP was destroyed, or connected anew, meanwhile.
    #[error("the VQP was destroyed or connected anew meanwhile")]
    Cancelled,
}
