//! The designs that RB² is compared with (table I, section V-A), and the four of its micro-benchmark
//! (section IV-A): one state machine at each end, which makes each one's choices.

mod bench;
mod choices;
mod lane;
mod layout;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use bench::{latency, throughput};
pub(super) use choices::Choices;
