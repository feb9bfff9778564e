//! A node: one device, one engine, and what lets processes and other nodes find it.

#![forbid(unsafe_code)]

mod clock;
pub mod config;
pub mod registry;

pub use clock::now;
