//! What the tests of several crates share. It depends on a node and its portal and on no client, so that the
//! client library's own tests can use it: who has sessions opens them at [`TestNode::path`].
//!
//! | for | there is |
//! | --- | --- |
//! | nodes on loopback addresses, each on a thread of its own | [`Place`], [`TestNode`] |
//! | other processes, which are tests of the same program | [`Launch`], [`Process`], [`role`] |
//! | a crate's examples, run as a user runs them | [`Examples`], [`examples!`] |
//! | the module for Python, the library for functions in C, libibverbs to link | [`python_module`], [`handler_library`], [`verbs_archive`] |
//! | paths that must not allocate | [`Counting`], [`Count`] |
//!
//! What goes wrong in it fails the test, by a panic that says what.

mod allocations;
mod examples;
mod libraries;
mod nodes;
mod process;
mod standing;
mod wait;

pub use allocations::{Count, Counting, allocations};
pub use examples::Examples;
pub use libraries::{handler_library, python_module, verbs_archive};
pub use nodes::{Place, TestNode, impatient, patient, watchful};
pub use process::{Launch, Process, Role, copy, is_root, role, stay};
pub use standing::Standing;
pub use wait::{PATIENCE, WAIT, hears_within_a_second, wait_for};
