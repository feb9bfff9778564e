//! A software RDMA NIC as a sans-IO state machine: input is work requests, packets and the time;
//! output is packets, completions and accesses to registered memory.
//!
//! [`Rnic`] implements the InfiniBand transport for RC, UC and UD (IBTA vol. 1, chapter 9), XRC (annex A14) and DC,
//! which behaves as on mlx5 and travels in headers of our own. It has no socket, no thread, no
//! clock and no randomness but its seed: the code that a simulator runs under faults is the code
//! that a driver runs over UDP.
//!
//! # Driving it
//! Feed datagrams to [`Rnic::handle_datagram`], those that came to a multicast group to
//! [`Rnic::handle_multicast`]. After that, and after posting, call
//! [`Rnic::poll_transmit`] until it returns none, and send what it writes, sealed with the ICRC.
//! Call [`Rnic::handle_timeout`] when [`Rnic::poll_timeout`] says so. Time must not go backwards.
//! Each call does a bounded amount of work.
//!
//! # Memory
//! A QP holds, besides about 1 KB of its own, 136 bytes a WR plus 16 an SGE plus its inline bytes
//! for as many send WRs as were ever outstanding at once, and 16 bytes a receive plus 16 an SGE,
//! at most what its capacities say. A DCT holds about 300 bytes for each initiator, at most
//! [`Config::max_dc_contexts`] of them.
//!
//! # Where what is
//!
//! | file | in it |
//! | --- | --- |
//! | `rnic`, `hw` | the device, and driving it; what its QPs share |
//! | `config`, `counters` | what it is made with; what it counts |
//! | `control` | making, changing and destroying objects: `memory`, `queues`, `handles`, `queue_pairs`, `modify`, `dc`. `change`: calls that few programs make |
//! | `data`, `cq`, `send_queue`, `recv_queue`, `table` | posting and polling, and what holds WRs, completions and objects |
//! | `regions` | copying to and from registered memory; `keys`: what lkeys and rkeys open; `windows`; `pieces`: SGEs. `place`, `maybe_pd`: where in a region, and whose |
//! | `aside`, `ledger` | what waits for memory that is not at hand, and how much may; `turn`: taking its turn again |
//! | `qp`, `qp_core` | a queue pair: its attributes, lanes and responders |
//! | `lane`, `lane_set`, `head` | the requester: one stream of send WRs. `transmit`, `answers`, `endings`, `recovery`, `clock` |
//! | `responder` | one stream of requests: `history`: what duplicates need |
//! | `execute` | what a request does: `inbound`: SENDs and WRITEs; `access`: READs and atomics; `source`, `fault` |
//! | `dct` | a DC target: `contexts`: its initiators; `admission`: who is let in; `refusals`. `proof`, `distrust`: who is where he says, and who tries keys |
//! | `xrc`, `xrc_target` | XRC |
//! | `unreliable`, `grh`, `multicast`, `groups`, `services` | UC and UD |
//! | `ingress`, `egress`, `transmit`, `rx_meta`, `route` | packets in and out; `flow`: sparing the network |
//! | `local`, `loopback` | QPs of one device: `request`, `execution`, `steps`; long SENDs as packets |
//! | `direct`, `reach` | WRs that who posts them executes |
//! | `forward` | calls that a driver hands on |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
/// For [`calls_of_rnic`].
#[doc(hidden)]
#[macro_use(bug, count_off)]
pub extern crate elver_verbs as verbs;

mod aside;
mod change;
mod config;
mod control;
mod counters;
mod cq;
mod data;
mod dct;
mod direct;
mod distrust;
mod egress;
mod execute;
mod flow;
mod forward;
mod grh;
mod groups;
mod head;
mod hw;
mod ingress;
mod lane;
mod lane_set;
mod ledger;
mod local;
mod loopback;
mod maybe_pd;
mod multicast;
mod place;
mod proof;
mod qp;
mod qp_core;
mod reach;
mod recv_queue;
mod regions;
mod responder;
mod rnic;
mod route;
mod rx_meta;
mod send_queue;
mod services;
mod table;
mod transmit;
mod unreliable;
mod xrc;
mod xrc_target;

pub use aside::Errand;
pub use config::{Config, DC_RD_ATOMIC, FlowConfig, MAX_MESSAGE};
pub use counters::{Counters, DropReason};
pub use elver_random::Seed;
pub use elver_verbs::Time;
pub use reach::Reach;
pub use regions::MrChange;
pub use rnic::Rnic;
pub use rx_meta::RxMeta;
pub use transmit::Transmit;

/// A buffer of this size holds any packet that [`Rnic::poll_transmit`] writes.
pub const MAX_PACKET: usize = elver_wire::PACKET_MAX;
