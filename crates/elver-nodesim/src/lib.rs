//! Whole nodes in virtual time: each is an [`elver_core::Core`] on a simulated device, with clients
//! that do as they please; a registry tells the nodes of each other; and a model checks all that
//! clients can see.
//!
//! [`run`] is a pure function of its seed. Clients connect VQPs under all policies, bind them, post
//! WRs of all operations, good ones and bad ones, register and drop memory that others are using,
//! and die; nodes crash and come back with other metadata, meta servers among them; the network
//! loses, delays and damages packets and is cut; engines stand still; the registry is late; some
//! nodes have no DC; in some runs nodes are suspended and clocks jump ([`Suspends`]), or somebody forges
//! packets ([`Forger`]). That is the safety phase:
//! nothing wrong may happen. Then all faults end, and in
//! the liveness phase everything that is pending must end within a time that follows from the
//! configuration; after it every client must be able to connect anew and move data. The code that is
//! run is the code that ships.
//!
//! ```
//! use elver_nodesim::{Options, run};
//!
//! let report = run(42, &Options::default()).unwrap();
//! assert_eq!(run(42, &Options::default()).unwrap().trace_hash, report.trace_hash);
//! ```
//!
//! A [`Canary`] plants a bug, which the model must catch: [`run`] then fails.
#![forbid(unsafe_code)]

mod acts;
mod alive;
mod answers;
mod canary;
mod check;
mod collide;
mod complete;
mod engine;
mod events;
mod excuses;
mod forge;
mod lapse;
mod life;
mod messages;
mod model;
mod node;
mod options;
mod plan;
mod pool;
mod post;
mod probe;
mod receive;
mod register;
mod registry;
mod run;
mod settle;
mod suspend;
mod world;

pub use canary::Canary;
pub use elver_sim::{Failure, OpCount};
pub use engine::SimCore;
pub use forge::{Forger, Forgers, UnknownForger};
pub use lapse::{Lapses, UnknownLapses};
pub use options::{Acts, Options, Report};
pub use run::run;
pub use suspend::{Suspends, UnknownSuspends};
