//! RB²: a ring of messages from one process to another, over one-sided WRITEs (RB², the paper, sections
//! III and IV).
//!
//! What is here so far is the protocol, [`protocol`]: which slots to WRITE when, what a pointer of the
//! peer's may say, and what is a message. It does no IO, and has no clock and no randomness.

#![warn(clippy::missing_errors_doc)]

pub mod protocol;
