//! The three programs that RB² is tried with in the paper (section V-C), without what carries their messages:
//!
//! - [`flows`]: a network function that counts packets and bytes by flow, from records of 40 bytes; [`trace`]
//!   makes them, and [`pcap`] takes them from a file (figure 8);
//! - [`store`]: a database that answers 16 bytes with 128; [`ycsb`] asks as YCSB's workload C does (figure 9);
//! - [`http`]: a server of one file, and its client (figure 10).
//!
//! The examples of this crate are the three over a ring; `elver bench cases` measures them over RB²'s rings and
//! over those that RB² is compared with.
#![forbid(unsafe_code)]

pub mod flows;
pub mod http;
pub mod pcap;
pub mod store;
pub mod trace;
pub mod ycsb;

/// The crate's README, whose commands are the examples.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
pub struct Readme;
