//! The way of a WR: from `post_send` to its completion (section 4.4, algorithm 2), and back onto the
//! lane when another VQP's fault flushed it.

pub(crate) mod burst;
pub(crate) mod complete;
mod fail;
mod give_up;
mod lanes;
mod op_ended;
pub(crate) mod ops;
pub(crate) mod outage;
pub(crate) mod own_ops;
pub(crate) mod plain;
pub(crate) mod post;
pub(crate) mod qos;
pub(crate) mod recovery;
mod resume;
mod retire;
pub(crate) mod round_robin;
pub(crate) mod stalls;
pub(crate) mod wr_id;
