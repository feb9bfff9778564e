//! KRCORE's virtual queue pairs (Wei et al., USENIX ATC 2022, sections 4.1 to 4.6) as a sans-IO
//! library: many VQPs of many clients on a fixed pool of DC queue pairs and a few RC ones, over any
//! [`elver_verbs::Device`].
//!
//! A [`Core`] owns a device and all that is on it. It has no thread, no clock and no socket: its
//! host calls [`Core::poll`] with the time, and takes completions and events. Clients do not trust
//! each other, and the core trusts none of them: whatever one posts, registers or leaves behind
//! ends in errors of its own, and nothing that a client or a peer does takes a shared queue pair
//! from the others. Peers' cores are trusted as far as they own what they send; what they send is
//! checked all the same.
//!
//! # How a WR travels
//!
//! ```text
//!   post_send ─▶ checks ─▶ the VQP's ring ──▶ lane: a stream of a DCI, or an RC QP ─▶ device
//!                             │    ▲                │
//!                 waits for: a connection, a        └─ one CQ for all ─▶ complete ─▶ in order
//!                 look-up of the peer's region,        to the client's completions
//!                 room on the lane, a transfer,
//!                 tokens of its class
//! ```
//!
//! A WR stays in its VQP's ring until its completion is told, so that it can be posted again when
//! another VQP's fault flushed it. When nothing is in its way, it goes to the device within the
//! call that posts it, and nothing on that way allocates. Work on the fast path does not grow with
//! the number of VQPs, peers or regions.
//!
//! # Where what is
//!
//! | module | what it does | paper |
//! | --- | --- | --- |
//! | `core` | the state, polling | |
//! | `clients`, `client` | clients, VQPs coming and going, ports | 4.1 |
//! | `connect` | `qconnect` and `warm` | 4.1, algorithm 1 |
//! | `lookup` | look-ups of nodes and regions by READs: coalesced, admitted, failing over | 4.2 |
//! | `servers` | which meta server is asked: the nearest | 4.2 |
//! | `meta`, `record` | the meta server's role, records of nodes | 4.2 |
//! | `regions`, `mr`, `mr_store` | local regions, ValidMR, MRStore with its leases | 4.2 |
//! | `post`, `ring` | checks, the VQPs' own queues | 4.4, algorithm 2 |
//! | `burst`, `outgoing`, `wr_id` | what goes to the device, headers of messages | 4.4, algorithm 2 |
//! | `turns` | turns among VQPs on a lane | 4.4 |
//! | `complete` | completions in order | 4.4 |
//! | `recovery`, `outage` | failed lanes; DCIs that the device does not set going again | 4.4 |
//! | `fate` | whether what an RC QP flushed was executed | |
//! | `inbox`, `message`, `recv_ring` | messages: ports, accepting, backlog, refusals | 4.1, 4.4 |
//! | `backpressure` | senders that wait for their receivers | |
//! | `landing` | messages whose receives are not at hand | 4.4 |
//! | `rendezvous` | long messages, read by the receiver | 4.5 |
//! | `inquiry` | what two cores tell each other of such messages, and whose they are when one fails | |
//! | `pool`, `lane` | physical queue pairs, buffers | 4.3 |
//! | `peer` | the DCCache | 4.2 |
//! | `ops`, `own_ops` | the core's own READs and messages | |
//! | `control`, `ud` | requests between cores over UD | 4.2 |
//! | `strangers` | whose requests are answered | |
//! | `links`, `rc`, `reluctance`, `transfer` | RC queue pairs, and moving VQPs to them and back | 4.6 |
//! | `qos` | priority classes | arXiv version, 4.7 |
//! | `slots`, `stats` | tables with ids that miss, counters | |
//! | `audit` | every count against what it counts, for tests | |
//!
//! # What differs from KRCORE
//!
//! Peers are spread over the streams of the DCIs by their GID, and what is posted to one peer shares
//! a stream: a peer that does not answer stops few others, and those only until its stream is reset.
//! A message carries nothing of its sender's but the VQP: what is believed of a node comes from a meta
//! server's table or from the registry, and who sent a message from the device. So a VQP back to a
//! sender stands at once, as in KRCORE, but the first reply to a node of which nothing is known, or the
//! first READ of a long message of its, costs a look-up. For the same reason control requests are
//! answered for nodes that are known, and others are looked up first.
//! A VQP that moves between DC and RC waits for the last WR of its last burst, which is signalled
//! anyway, and not for a fake request. An RC QP is used from the side that was asked for it only when
//! something has come over it, and vanishes only when both sides have left it.
//! WRITE_WITH_IMM is a WRITE and a short message behind it. Windows belong to a queue pair, and are
//! not offered on VQPs.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod audit;
mod backpressure;
mod burst;
mod client;
mod clients;
mod complete;
mod config;
mod connect;
mod control;
mod core;
mod error;
mod event;
mod fate;
mod ids;
mod inbox;
mod inquiry;
mod landing;
mod lane;
mod links;
mod lookup;
mod message;
mod meta;
mod mr;
mod mr_store;
mod ops;
mod outage;
mod outgoing;
mod own_ops;
mod peer;
mod pool;
mod post;
mod qos;
mod rc;
mod record;
mod recovery;
mod recv_ring;
mod regions;
mod reluctance;
mod rendezvous;
mod ring;
mod servers;
mod slots;
mod stats;
mod strangers;
mod transfer;
mod turns;
mod ud;
mod vqp;
mod wr_id;

pub use audit::Holdings;
pub use config::{ClientLimits, Config, QosConfig, StormConfig, TransferConfig};
pub use control::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, RcEnd, Refusal, Request,
    Shortage,
};
pub use core::Core;
pub use elver_random::Seed;
pub use error::{ConnectError, CoreError};
pub use event::{Completion, Event, Via};
pub use ids::{ClientId, VqpId};
pub use landing::LANDINGS_MAX;
pub use record::{
    META_SERVER_BYTES, MetaServer, NODE_RECORD_BYTES, NodeRecord, RecordError, Terms,
};
pub use stats::{PeerInfo, Stats};
pub use vqp::{Class, ConnectOptions, Policy, VqpInfo, VqpInit, VqpState};
