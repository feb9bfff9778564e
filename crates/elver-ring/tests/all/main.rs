//! Rings, alone and between sessions: one program of tests, so that what they share is used by all of it.

mod allocations;
mod common;
mod deaths;
mod examples;
mod floods;
mod halts;
mod handshakes;
mod hostile;
mod in_parts;
mod listeners;
mod lossless;
mod memory_orders;
mod policies;
mod protocol;
mod rings;
mod rules;
mod tasks;
mod whole_orders;

/// What is hot allocates nothing: `allocations` counts.
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;
