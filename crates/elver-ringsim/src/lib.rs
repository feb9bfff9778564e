//! Rings in virtual time: [`elver_ring`]'s protocol between clients of whole nodes ([`elver_core::Core`])
//! on a simulated network, and a model of what must arrive.
//!
//! [`run`] is a pure function of its seed. Pairs of ends come and go, over VQPs of all policies, between
//! nodes and within one, with rings of all measures; they send, flush, read slowly, end and stop; the
//! network loses, delays and damages packets and is cut, engines stand still, nodes crash; clocks jump, memory is given
//! back while peers write to it, nodes lose their DC target, completions are left where they are, and somebody forges
//! ([`SWITCHED`]). That is the
//! safety phase: whatever is read was sent, whole, once and in order, and does not change while it is read;
//! no end takes the other for a liar; and a pair ends only for a reason. Then all faults end, and in the
//! liveness phase everything that was sent must arrive, and an end whose peer is gone must learn of it.
//!
//! ```
//! use elver_ringsim::{Options, run};
//!
//! let report = run(42, &Options::default()).unwrap();
//! assert_eq!(run(42, &Options::default()).unwrap().trace_hash, report.trace_hash);
//! ```
//!
//! A [`Canary`] plants a bug, which the model must catch: [`run`] then fails.
#![forbid(unsafe_code)]

mod befall;
mod canary;
mod cluster;
mod drive;
mod end;
mod excuses;
mod forge;
mod forger;
mod model;
mod options;
mod plan;
mod run;
mod strange;
mod world;

pub use canary::Canary;
pub use elver_sim::Failure;
pub use options::{Acts, Options, Report};
pub use run::{run, run_under};
pub use strange::SWITCHED;
