//! A call as the server has it.

use crate::protocol::flow::{Inflow, Outflow};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Free,
    /// Its message comes.
    Reading,
    /// It was handed on.
    Running,
    /// Its answer goes.
    Answering,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) turn: u32,
    pub(super) state: State,
    pub(super) method: u32,
    pub(super) deadline: u64,
    pub(super) total: u32,
    /// The request's message, if it came in pieces.
    pub(super) message: Vec<u8>,
    /// What `held` has of it.
    pub(super) reserved: u64,
    /// A stream from the client.
    pub(super) upload: Option<Inflow>,
    /// A stream back.
    pub(super) back: Outflow,
}
