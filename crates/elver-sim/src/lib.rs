//! The software RDMA NIC in virtual time: many devices on one network and one clock, with faults,
//! and a model that checks everything they do.
//!
//! [`run`] is a pure function of its seed. It makes hosts, connects queue pairs of all transports,
//! posts WRs of all operations, good ones and bad ones, and lets packets be lost, copied, held
//! back, damaged, replayed and forged, hosts be cut off, stand still and crash, CQs overflow, regions and
//! DCTs go while they are in use. That is the safety phase:
//! nothing wrong may happen. Then all faults end, and in the liveness phase every WR must complete
//! within the time that its QP's retries allow. The code that is run is the code that ships:
//! [`elver_rnic`] does not know that its clock is not real.
//!
//! ```
//! use elver_sim::{Options, run};
//!
//! let report = run(42, &Options::default()).unwrap();
//! assert_eq!(run(42, &Options::default()).unwrap().trace_hash, report.trace_hash);
//! ```
//!
//! [`SimNet`] offers the same devices on the same network for others to run on: a [`SimDevice`] is a
//! [`elver_verbs::Device`] whose clock and packets are the simulation's.
//!
//! A [`Canary`] plants a bug, which the model must catch: [`run`] then fails.
#![forbid(unsafe_code)]

#[macro_use]
mod planting;

mod attributes;
mod canary;
mod coverage;
mod device;
mod engine;
mod errands;
mod events;
mod faults;
mod forge;
mod host;
mod journal;
mod memory;
mod model;
mod net;
mod network;
mod options;
mod overflow;
mod pattern;
mod plan;
mod rng;
mod run;
mod seats;
mod setup;
mod trace;
mod workload;
mod world;

pub use canary::Canary;
pub use coverage::Coverage;
pub use device::SimDevice;
pub use elver_rnic::{Config, FlowConfig};
pub use faults::{Fault, FaultPlan, Rates};
pub use journal::Journal;
pub use memory::SimMemory;
pub use net::SimNet;
pub use network::Datagram;
pub use options::{Failure, OpCount, Options, Report, Transport, UnknownTransport};
pub use planting::{Plantable, Planter, UnknownCanary};
pub use rng::Rng;
pub use run::run;
pub use seats::Which;
