//! Calls, alone and between sessions: one program of tests, so that what they share is used by all of it.

mod allocations;
mod calls;
mod common;
mod deaths;
mod examples;
mod hostile;
mod protocol;
mod shares;

/// What is hot allocates nothing: `allocations` counts.
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;
