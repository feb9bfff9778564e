//! Programs that know nothing of Elver, with the library under them, beside a node.

mod calls;
mod common;
mod debian;
mod direct;
mod edges;
mod programs;
mod readiness;
mod strangers;
