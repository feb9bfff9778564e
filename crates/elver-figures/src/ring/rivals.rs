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

pub(crate) use bench::{BACK, THERE, flush, send};
pub(super) use bench::{latency, throughput};
pub(crate) use choices::Choices;
pub(crate) use lane::{Lane, Meeting};
pub(crate) use layout::Layout;
pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
