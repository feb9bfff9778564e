//! Elver streams under the TCP sockets of programs that know nothing of them: `elver run --streams`.
//! `docs/sockets.md` says what is carried, what stays with TCP, and why nobody else can attach a stream.
//!
//! The library stands before the C library (`LD_PRELOAD`). A connection is made by the kernel, and begins by TCP. At
//! the first byte that either end reads or writes, that end can be found by the other (`meeting`); when both have
//! the library, they connect a stream, and each says from which byte on it writes to that. So nobody waits for a peer
//! that has no such library, and no byte is on both ways.
//!
//! | module | what it does |
//! | --- | --- |
//! | `calls` | the C library's functions |
//! | `world`, `lock`, `holder` | all that is known, behind one lock |
//! | `world::descriptors` | what stands behind a descriptor |
//! | `world::agree`, `turn`, `brief` | how the ends of a connection agree, and when they look for each other |
//! | `world::wake`, `world::orphan` | who sleeps, and is woken; a node that has gone |
//! | `meeting`, `owner`, `diag` | how they find each other, and whom they believe |
//! | `conn`, `carried`, `frame`, `tcp`, `ending` | a connection, before and after |
//! | `wait`, `signals`, `sleeper`, `polled`, `epolls` | readiness |
//! | `link` | the way to the node |
//! | `fds`, `own`, `real`, `errno`, `tuple`, `log` | descriptors, the C library, errors, addresses, counts |
//!
//! `unsafe` stands in `calls`, `real`, `own`, `errno`, `tcp` for a descriptor, `wait` for one call, `signals`, `epolls` and `world::agree` for what the
//! kernel's epolls are told, and `lock`.
// Every exported function takes what the C library's function of that name takes, whose manual page states the contract.
// The SAFETY reasons refer to it as the manual's contract.
#![allow(clippy::missing_safety_doc)]
// In a program of tests they have no names, so that its own calls go to the C library.
#![cfg_attr(test, allow(dead_code))]

mod brief;
mod calls;
mod carried;
mod conn;
mod diag;
mod ending;
mod epolls;
mod errno;
mod fds;
mod frame;
mod holder;
mod link;
mod lock;
mod log;
mod meeting;
mod own;
mod owner;
mod polled;
mod real;
mod signals;
mod sleeper;
mod tcp;
mod tuple;
mod turn;
mod wait;
mod world;
