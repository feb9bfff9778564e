use alloc::format;
use alloc::string::String;

use elver_control::Shortage;
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
    /// The node was silent for so long, though it was asked again and again.
    #[error(
        "node {gid} has gone: it did not answer for {} ms (`pool.keep_alive_ms`)",
        .for_ns / 1_000_000
    )]
    Silent {
        /// Its GID.
        gid: Gid,
        /// For how long at most, in nanoseconds.
        for_ns: u64,
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
    #[error(
        "the VQP at node {gid} that this one was connected to is gone, perhaps with its process"
    )]
    PeerGone {
        /// Its GID.
        gid: Gid,
    },
    /// The receive that a message came to does not take it, or a long message was not read in its time.
    #[error(
        "a receive at node {gid} is too short for the message, or its memory is gone, or the message was not \
         read there in time"
    )]
    ReceiveUnfit {
        /// Its GID.
        gid: Gid,
    },
    /// The connection needs an RC QP, and this node or the peer cannot have another one.
    #[error("no RC QP is left for a connection to node {gid}: {}", shortage(.of, .used, .limit, .here))]
    NoRcQp {
        /// The peer's GID.
        gid: Gid,
        /// Whether it is this node that cannot.
        here: bool,
        /// What there is too little of.
        of: Shortage,
        /// How much of it is in use.
        used: u32,
        /// How much may be.
        limit: u32,
    },
    /// There is no VQP for the sender at the receiver.
    #[error(
        "the receiver at node {gid} holds as many VQPs for its senders, or for those of one node, as \
         it may; destroy some there, or raise `quota.session_vqps` or \
         `quota.session_accepts_per_peer` there"
    )]
    Crowded {
        /// Its GID.
        gid: Gid,
    },
    /// Too many connects wait already.
    #[error(
        "{waiting} connects wait already, of {limit} that may; try again later, or raise \
         `storm.connects_waiting_max`"
    )]
    Busy {
        /// How many wait.
        waiting: u32,
        /// How many may.
        limit: u32,
    },
    /// The VQP was destroyed, or connected anew, meanwhile.
    #[error("the VQP was destroyed or connected anew meanwhile")]
    Cancelled,
}

fn shortage(of: &Shortage, used: &u32, limit: &u32, here: &bool) -> String {
    let place = if *here { "here" } else { "there" };
    match of {
        Shortage::Pool => format!(
            "of those that all VQPs share, {used} of {limit} are in use {place}; raise \
             `transfer.rc_qps_max` {place}"
        ),
        Shortage::Leased => format!(
            "those of single VQPs hold {used} of {limit} send WRs {place}; destroy such VQPs, make \
             them for fewer WRs, or raise `transfer.leased_wrs_max` {place}"
        ),
        Shortage::Share => format!(
            "{used} of the {limit} that one node may have made {place} are there; close some"
        ),
        Shortage::Peers => format!(
            "{used} of {limit} peers that may be remembered {place} are in use; raise `pool.max_peers` \
             {place}"
        ),
        Shortage::Device => format!(
            "the device {place} makes no more queue pairs; RC QPs are {used}, and it may have \
             {limit} of any kind"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_shortage_says_of_what_where_and_what_to_do() {
        let gid = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 7));
        let text = |of, here| {
            ConnectError::NoRcQp { gid, here, of, used: 130_944, limit: 131_072 }.to_string()
        };
        let leased = text(Shortage::Leased, true);
        for part in [
            "to node 10.0.0.7:",
            "130944 of 131072 send WRs here",
            "raise `transfer.leased_wrs_max` here",
        ] {
            assert!(leased.contains(part), "{leased}");
        }
        let pool = text(Shortage::Pool, false);
        assert!(pool.contains("raise `transfer.rc_qps_max` there"), "{pool}");
        let busy = ConnectError::Busy { waiting: 12, limit: 12 }.to_string();
        assert!(busy.contains("12 connects wait already, of 12"), "{busy}");
    }
}
