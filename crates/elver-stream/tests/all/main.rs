//! Streams between sessions: one program of tests, so that what they share is used by all of it.

mod allocations;
mod common;
mod deaths;
mod descriptor;
mod examples;
mod halts;
mod hostile;
mod streams;
mod tasks;

/// What is hot allocates nothing: `allocations` counts.
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;
