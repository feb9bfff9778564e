//! A testbed on one machine.
//!
//! | module | what it sets up |
//! | --- | --- |
//! | [`cluster`] | `elverd` processes, each on a host of its own: a network namespace, or a loopback address |
//! | [`worker`] | processes beside them, which attach, connect, move bytes and tell |
//! | [`programs`] | which programs these are |
//! | [`orchestrator`] | `elver faas serve`, which starts functions |
//! | [`pair`] | two ends, each a thread with a core, on two addresses or in two namespaces |
//! | [`apart`] | two ends in two processes at one node |
//! | [`node`](mod@node), [`node_pair`] | an embedded node, and such at the two ends of a pair |
//! | [`hosts`] | hosts by the hundred on one thread, which answer real packets; these three are the feature `nodes` |
//! | [`tcp`], [`ways`] | what is connected: TCP, and VQPs by each way |
//! | [`sample`], [`meet`], [`seat`], [`pattern`] | latencies; a common start; cores; bytes that say where they belong |
//! | [`scratch`] | a directory that goes with the process |
//!
//! Nothing is left behind, however the process ends that made it.

pub mod apart;
pub mod cluster;
#[cfg(feature = "nodes")]
pub mod hosts;
pub mod meet;
mod netns;
#[cfg(feature = "nodes")]
pub mod node;
#[cfg(feature = "nodes")]
pub mod node_pair;
pub mod orchestrator;
pub mod pair;
pub mod pattern;
pub mod programs;
pub mod sample;
pub mod scratch;
pub mod seat;
mod signals;
pub mod tcp;
pub mod ways;
pub mod worker;
