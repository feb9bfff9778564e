//! Ends of processes that rdma_cm's peers hear of though the process says nothing: one that is killed, as a kernel's
//! communication manager would tell of it (IBTA vol. 1, 12.9.8).
//!
//! A process keeps in a file in memory, for each of its connections, the message that would end it ([`Farewells`]). The
//! [`Keeper`] is another process: it holds the file, is told by the kernel when the process has ended, and sends then what
//! the file has. What has been said is taken out, so that who ends as it should leaves nothing to send.
//!
//! Nothing is shared while both are there: one writes, and the other reads when the writer is gone.
//!
//! Believed are processes of the keeper's own user. Whoever else connects is sent away. A process can have sent, in its own
//! name or that of another of its user, what it could send itself.
#![forbid(unsafe_code)]

mod farewells;
mod keeper;
mod record;
mod say;

pub use farewells::Farewells;
pub use keeper::Keeper;
pub use record::RECORDS_MAX;

/// The variable of the environment by which processes know their keeper's name.
pub const KEEPER: &str = "ELVER_KEEPER";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
