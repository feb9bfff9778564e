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

/// What must not allocate is seen not to: `watchdog` counts.
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;
