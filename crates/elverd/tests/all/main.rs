//! The built daemon, from without: one program of tests, so that what they share is used by all of it.

mod attacker;
mod attacks;
mod capture;
mod common;
mod elverd;
mod hostile;
mod limits;
mod lost;
mod registry;
mod shares;
mod sockets;
mod storms;
mod watchdog;
