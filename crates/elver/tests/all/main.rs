//! The client library beside nodes, in this process and in others: one program of tests, so that what they
//! share is used by all of it.

mod common;
mod dial;
mod direct;
mod embedded;
mod examples;
mod fairness;
mod fork;
mod kv;
mod one_node;
mod operations;
mod placement;
mod processes;
mod shared_memory;
mod sharing;
mod tasks;
mod two_nodes;
mod waiting;
