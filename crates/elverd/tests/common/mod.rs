//! What the tests share: the daemon as a process, other processes beside it, and the plain client of the
//! node's own tests.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

#[path = "../../../elver-node/tests/common/mod.rs"]
mod client;
pub mod daemon;
pub mod group;
pub mod process;
pub mod stall;

pub use client::*;
