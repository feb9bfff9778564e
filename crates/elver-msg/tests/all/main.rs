//! Groups of ranks, on threads and in processes: one program of tests, so that what they share is used by all of it.

mod allocations;
mod collectives;
mod common;
mod deaths;
mod examples;
mod hostile;
mod long;
mod meeting;
mod messages;
mod protocol;
mod random;
mod signals;
mod unexpected;

/// What is hot allocates nothing: `allocations` counts.
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;
