use alloc::vec::Vec;
use core::net::IpAddr;

use elver_wire::Psn;
use thiserror::Error;

/// A connection, or a look-up of a UD service; its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// What somebody listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// Its number.
    pub id: u64,
    /// The address that peers are to name, of which the unspecified one is any of its family; none if it may be any, or
    /// none at all. One of IPv4 is written as such.
    pub address: Option<IpAddr>,
}

impl Service {
    /// A service at all addresses.
    pub const fn everywhere(id: u64) -> Service {
        Service { id, address: None }
    }
}

/// What a connection is asked for with.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Where the peer's manager is.
    pub peer: IpAddr,
    /// Which service.
    pub service_id: u64,
    /// Our QP.
    pub qpn: u32,
    /// 0 for RC, 1 for UC.
    pub transport: u8,
    /// READs and atomics that we would serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we would have outstanding.
    pub initiator_depth: u8,
    /// First PSN that the peer is to send.
    pub starting_psn: Psn,
    /// Retries of the QP.
    pub retry_count: u8,
    /// RNR retries of the QP.
    pub rnr_retry_count: u8,
    /// Whether our QP has an SRQ.
    pub srq: bool,
    /// Whether we count credits.
    pub flow_control: bool,
    /// Code of the path's MTU.
    pub path_mtu: u8,
    /// Our GID.
    pub local_gid: [u8; 16],
    /// The peer's.
    pub remote_gid: [u8; 16],
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// ACK timeout of the QPs: 4.096 µs · 2^this.
    pub ack_timeout: u8,
    /// At most 92 bytes.
    pub private: Vec<u8>,
}

/// What a connection is agreed to with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The QP.
    pub qpn: u32,
    /// First PSN that who receives this sends.
    pub starting_psn: Psn,
    /// READs and atomics that are served at once.
    pub responder_resources: u8,
    /// READs and atomics that are outstanding at once.
    pub initiator_depth: u8,
    /// RNR retries of the QP.
    pub rnr_retry_count: u8,
    /// Whether the QP has an SRQ.
    pub srq: bool,
    /// Whether credits are counted.
    pub flow_control: bool,
    /// At most 196 bytes; from a peer, all of them.
    pub private: Vec<u8>,
}

/// What a peer asks for a connection with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it came from.
    pub peer: IpAddr,
    /// Which listener's it is.
    pub service: Service,
    /// The peer's QP.
    pub qpn: u32,
    /// 0 for RC, 1 for UC.
    pub transport: u8,
    /// READs and atomics that the peer serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the peer has outstanding.
    pub initiator_depth: u8,
    /// First PSN that we are to send.
    pub starting_psn: Psn,
    /// Retries of the QPs.
    pub retry_count: u8,
    /// RNR retries of the QPs.
    pub rnr_retry_count: u8,
    /// Whether the peer's QP has an SRQ.
    pub srq: bool,
    /// Whether credits are counted.
    pub flow_control: bool,
    /// Code of the path's MTU.
    pub path_mtu: u8,
    /// The peer's GID.
    pub peer_gid: [u8; 16],
    /// Ours.
    pub own_gid: [u8; 16],
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// ACK timeout of the QPs: 4.096 µs · 2^this.
    pub ack_timeout: u8,
    /// All 92 bytes of private data.
    pub private: Vec<u8>,
}

/// What the consumer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection.
    Request(Id, Request),
    /// The peer agrees; [`crate::Manager::ready`] is next.
    Answered(Id, Answer),
    /// The peer has what it needs; the connection that we agreed to is there.
    Established(Id),
    /// The peer refuses, or takes back its request.
    Rejected {
        /// The connection.
        id: Id,
        /// Why.
        reason: u16,
        /// All 148 bytes of private data.
        private: Vec<u8>,
    },
    /// Nobody answers.
    Unreachable(Id),
    /// The connection has ended.
    Disconnected(Id),
    /// Nothing of the connection is under way any more.
    Released(Id),
    /// A request waited too long for us, and was refused.
    Expired(Id),
    /// A peer asks for a UD service.
    ServiceRequest {
        /// Its question.
        id: Id,
        /// Where it came from.
        peer: IpAddr,
        /// Which listener's it is.
        service: Service,
        /// All 216 bytes of private data.
        private: Vec<u8>,
    },
    /// The answer to a question of ours.
    Service {
        /// The question.
        id: Id,
        /// 0 if there is such a service.
        status: u8,
        /// Its QP.
        qpn: u32,
        /// The QP's Q_Key.
        qkey: u32,
        /// All 136 bytes of private data.
        private: Vec<u8>,
    },
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no such connection.
    #[error("connection {0:?} is not there")]
    Unknown(Id),
    /// The connection is in a state that has no such command.
    #[error("connection {0:?} is not in a state for this")]
    State(Id),
    /// The table is full.
    #[error("{0} connections are all there may be (max_connections)")]
    Full(usize),
    /// The service is taken.
    #[error("somebody listens for service {0:#018x} already")]
    Taken(u64),
    /// A message cannot be written.
    #[error(transparent)]
    Message(#[from] elver_wire::cm::CmError),
}
