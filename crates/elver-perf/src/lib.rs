//! Verbs operations between two ends, measured as perftest does.
//!
//! | module | what |
//! | --- | --- |
//! | [`perf`] | `elver perf`: both ends are ours |
//! | [`peers`] | what is common to the two whose far end is another's program |
//! | [`perftest`] | `elver perftest`: perftest's `ib_write_bw` and others |
//! | [`pingpong`] | `elver pingpong`: rdma-core's `ibv_rc_pingpong` and others |
//! | [`device`], [`link`] | how an end's device is opened, and what its packets travel over |
//!
//! Each command's arguments stand beside what they are for.

pub mod device;
pub mod link;
pub mod peers;
pub mod perf;
pub mod perftest;
pub mod pingpong;
