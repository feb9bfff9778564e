//! KRCORE's virtual queue pairs (USENIX ATC 2022, sections 4.1 to 4.6) as a sans-IO library: many
//! VQPs of many clients on a fixed pool of DC queue pairs and a few RC ones, over any
//! [`elver_verbs::Device`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod client;
mod clients;
mod complete;
mod config;
mod connect;
mod control;
mod core;
mod error;
mod event;
mod ids;
mod inbox;
mod lane;
mod links;
mod lookup;
mod message;
mod meta;
mod mr;
mod mr_store;
mod ops;
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
mod rendezvous;
mod ring;
mod rng;
mod slots;
mod stats;
mod transfer;
mod ud;
mod vqp;
mod wr_id;

pub use config::{ClientLimits, Config, QosConfig, StormConfig, TransferConfig};
pub use control::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, RcEnd, Refusal, Request,
};
pub use core::Core;
pub use error::{ConnectError, CoreError};
pub use event::{Completion, Event, Via};
pub use ids::{ClientId, VqpId};
pub use record::{META_SERVER_BYTES, MetaServer, NODE_RECORD_BYTES, NodeRecord, RecordError};
pub use stats::{PeerInfo, Stats};
pub use vqp::{Class, ConnectOptions, Policy, VqpInfo, VqpInit, VqpState};
