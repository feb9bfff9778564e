//! What is done with any bytes. `scripts/fuzz` looks for bytes that break it; `tests/corpora.rs` runs
//! those that were found to reach something.

pub mod cm;
pub mod control;
pub mod core;
pub mod direct;
pub mod frames;
pub mod gate;
pub mod hostcache;
pub mod msg;
pub mod portal;
pub mod ring;
pub mod rpc;
pub mod verbs;
pub mod wire;
