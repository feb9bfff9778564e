//! A node: one device, one engine, and what lets processes and other nodes find it.
//!
//! [`Node`] is the whole of it, embedded in a process or as the daemon `elverd`. Its engine owns
//! the device and [`elver_core::Core`] and serves processes over portals; [`registry`] joins it to
//! a cluster; [`config`] is what it is made with, and [`Status`] how it is.
//!
//! # Where what is
//!
//! | folder | in it | paper |
//! | --- | --- | --- |
//! | `node`, `error` | the node, driven by its owner or by a thread of its own; why it does not run | |
//! | `engine` | the thread that owns device, core and sessions: its rounds; `counters` | |
//! | | `door`, `greet`, `visits`: how processes come in, and how often; `spares`: memory that is there for them; `sessions`, `session`: those that are there (`described`: what `elver status` says of them); `endings`, `ends`, `ghosts`, `partings`: how they end, and what counts for them until it is gone | |
//! | | `requests`, `desk`: what sessions ask, and what comes of it; `translate`: the portal's words for the core's; `tell`: what they are told; `turns`: whose turn it is | |
//! | | `account`, `quota`, `leases`: who pays, and what each may have, of leased queue pairs too; `room`, `shelf`: whether there is memory, and the files that an account has | |
//! | | `maker`: memory for processes (`jobs`: whose turn it is; `pieces`: what is made at one); `held`, `shares`: what they have registered, also several sessions of one; `looks`: whether memory is there; `asides`: what may have to wait for a process | |
//! | | `directs`, `gate`: who reads and writes memory of other processes itself, and how that is taken back | |
//! | | `heirs`: sessions for children of a process; `preparing`, `taking`: how they are asked for and taken over; `plan`: where their VQPs are connected; `making`, `leaving`, `files`: how they come, go, and what they take | Swift, 3.4 |
//! | | `notice`, `orders`, `news`: what other threads tell it and do for it; `membership`: the registry's news, for the core | |
//! | `registry` | who is in the cluster. `client`, `session`: a node's side, and each server that it sees; `backoff`: when it tries again; `news`: what it hears | KRCORE, 4.2 |
//! | | `server`, `members`, `watchers`: a meta server's side, who is known, and who is told; `output`: what the server is to do | KRCORE, 4.2 |
//! | | `pipe`, `frame`: TCP, and what it carries; `seal`, `secret`: how both ends prove that they know the cluster's secret; `samples`: records for tests | |
//! | `config` | `file`, `sections`, `check`: the file, its parts, what they may be; `classes`: who may have the high class; `paths`: where sockets are; `error` | KRCORE's arXiv version, 4.7 |
//! | `status`, `metrics` | how a node is, in `elver status` and in OpenMetrics; `observer` (`requests`, `askers`): the thread that tells it, to all who wait at once | |
//! | `capture` | recording what goes over the link: `server`: the node's side; `options`: what is wanted; `names`: whose packets they are | |
//! | `slow`, `worker` | the threads of the registry and of the node's own registration; threads that end with what they belong to | |
//! | `pulse`, `words`, `clock` | whether the engine turns, and what is said of one that does not; the time | |
//! | `asking` | what is said to who asks a node, and does not hear it | |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod asking;
pub mod capture;
mod clock;
pub mod config;
mod engine;
mod error;
mod metrics;
mod node;
mod observer;
mod pulse;
pub mod registry;
mod slow;
mod status;
mod words;
mod worker;

pub use clock::now;
pub use error::NodeError;
pub use node::{Node, NodeThread, Stopper};
pub use observer::Observer;
pub use pulse::Watchdog;
pub use status::{
    LatencyStatus, PeerStatus, RefusalStatus, SessionStatus, Status, UserStatus, VqpStatus,
};
pub use words::Words;
