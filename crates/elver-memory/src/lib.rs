//! Memory that the soft device registers: its own mappings, files that it shares with a process,
//! memory of the caller's, or memory of another process.
//!
//! The device, the application and, through the device, peers work on the same bytes at once, as
//! with hardware. Words of 8 aligned bytes are read and written whole; longer pieces are copied in
//! no particular order. Memory of another process is copied by the kernel, and its words are not
//! whole to a peer; see [`SoftMemory::of_process`].
//!
//! # Where what is
//!
//! | file | in it |
//! | --- | --- |
//! | `soft_memory` | [`SoftMemory`], and how it comes to be; `access`: reading and writing it; `words`: copies for threads that share it, by whole words |
//! | `mapping`, `populate` | mappings of this process, and having their pages come; `reservation`: address space for one |
//! | [`fault`] | what becomes of a mapping whose file loses pages |
//! | [`peer`] | memory of another process that maps the same files |
//! | `process` | reaching another process's memory; `foreign`: a piece of it; `sought`: one that is looked for |
//! | `copier` | who makes copies that may have to wait |
//! | `error` | why memory is not to be had |

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod access;
mod copier;
mod error;
pub mod fault;
mod foreign;
mod mapping;
pub mod peer;
mod populate;
mod process;
mod reservation;
mod soft_memory;
mod sought;
mod words;

pub use copier::{Copier, CopierCounters, Ended, LOOK};
pub use error::MapError;
pub use process::ProcessMemory;
pub use reservation::Reservation;
pub use soft_memory::SoftMemory;
pub use sought::Sought;
