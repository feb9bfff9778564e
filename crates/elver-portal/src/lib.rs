//! The portal: what an application process and its Elver node share.
//!
//! A client connects to the node's Unix socket ([`Socket`], [`Listener`]), says
//! [`Message::Hello`] and gets [`Message::Welcome`] with a file in memory, which both map. In it
//! stand three rings, each with one producer and one consumer ([`Layout`]):
//!
//! ```text
//!            commands, send WQEs                       client -> node
//!   client   posted receives                           client -> node        node
//!            completions, answers, events              node -> client
//! ```
//!
//! and behind them an arena ([`ARENA_BYTES`]), of which the client has small regions registered.
//!
//! [`ClientEnd`] and [`NodeEnd`] are the two ends. After the welcome nothing of the data path makes
//! a system call, except to wake an end that sleeps: it announces that in shared memory, and whoever
//! puts something in then sends a byte over the socket. The end of the socket is the end of the
//! session.
//!
//! A process that reaches memory of others of its user itself does so by a [`ClientGate`], whose doors the node shuts
//! ([`NodeGate`]).
//!
//! The node trusts nothing in shared memory. It copies an entry out, whole, before it looks at it;
//! what makes no sense is a [`Violation`], which ends that session alone.
//!
//! Ends of one major version understand each other: [`version`].
//!
//! `unsafe` stands in five modules: `memory`, `numa` for where pages lie, `peer` for a socket option and a descriptor that
//! changes, `standing` for what the system tells of a process's namespaces and capabilities, `lineage` for whose child it is.

// A model has no files to map, and takes rings without the ends around them.
#![cfg_attr(loom, allow(dead_code))]

mod command;
mod ends;
mod fields;
mod first;
mod gate;
#[cfg(not(loom))]
mod heirs;
mod layout;
mod lineage;
pub mod memfd;
mod memory;
mod message;
#[cfg(all(loom, test))]
mod model;
pub mod numa;
mod peer;
mod reply;
mod ring;
mod socket;
mod standing;
mod sync;
mod turns;
pub mod version;
mod wqe;

pub use command::{Command, VqpOptions, WARM_GIDS_MAX};
pub use elver_verbs::{Class, ConnectOptions, Policy, Via, VqpState};
pub use ends::{ClientEnd, NodeEnd, PushError, Receives, Request, Scratch};
pub use first::First;
pub use gate::{ClientGate, DOORS_MAX, GATE_BYTES, GateCounts, Inside, NodeGate};
#[cfg(not(loom))]
pub use heirs::{Heirs, HeirsLayout, NodeHeir, NodeRecords, Record, VQPS_PER_HEIR_MAX};
pub use layout::{ARENA_BYTES, ENTRY_SLOTS_MAX, Layout, LayoutError, SLOT_WORDS};
pub use lineage::parent_of;
pub use message::{Limits, MESSAGE_BYTES_MAX, Message, MessageError, Welcome};
pub use peer::{Peer, of as peer_of};
pub use reply::{
    Answer, Completion, REPLY_SLOTS_MAX, Reach, Refusal, RefusalCode, Reply, TEXT_MAX, VqpInfo,
};
pub use ring::Violation;
pub use socket::{Listener, Received, Socket, connect_stream};
pub use standing::{Space, Standing, pid_namespace};
pub use turns::Turns;
pub use version::VERSION;
pub use wqe::{BATCH_MAX, INLINE_MAX, RecvBatch, SGES_MAX, SendBatch};
