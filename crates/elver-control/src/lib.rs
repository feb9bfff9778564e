//! What nodes tell each other of themselves, and what one asks of another: the control protocol of
//! KRCORE's virtual queue pairs (Wei et al., USENIX ATC 2022, sections 4.2 and 4.3), without IO.
//!
//! - A [`NodeRecord`] is what others must know of a node to reach it: meta servers keep it, and a
//!   [`MetaServer`] is what members are told of one. [`Terms`] are what two nodes must agree on.
//! - A [`ControlMessage`] is a request or an answer: make an RC queue pair, take one down, tell how far
//!   its end got, tell your record, say that you are there.
//! - [`Control`] sees to it that each request is done once and answered, over a service of datagrams that
//!   loses, doubles and reorders.
//!
//! | file | in it |
//! | --- | --- |
//! | `control` | [`Control`]: `calls`: requests to others, whose turn it is and when one is sent again; `peer`, `address`: whom they go to; `serving`: requests of others, each done once; `outgoing`: what waits to be sent; `audit`: every count against what it counts, for tests |
//! | `message` | the messages; `codec`: their bytes |
//! | `record` | what is told of nodes and meta servers |
//!
//! `docs/wire.md` has the bytes. Bytes are checked where they are decoded, and what decodes encodes to
//! the same bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[macro_use(bug, count_off)]
extern crate elver_verbs;

mod control;
mod message;
mod record;

pub use control::{Control, ControlAddr, ControlConfig, ControlStats, Done, Served, Ticket};
pub use message::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, PORTS_ASKED, PSN_MASK,
    RcEnd, Refusal, Request, Shortage,
};
pub use record::{
    META_SERVER_BYTES, MR_VALUE_BYTES, MRS_ADDR, MetaServer, NODE_RECORD_BYTES, NodeRecord,
    RecordError, Terms, control_qkey, mrs_id, mrs_layout,
};
