//! Clients: what each may have and has.

pub(crate) mod accept;
pub(crate) mod all;
mod end;
mod lifecycle;
mod owned;
pub(crate) mod ports;
pub(crate) mod tell;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::client::accept::AcceptedOf;
use crate::{ClientLimits, Completion, VqpId};

/// A client of the core's.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) limits: ClientLimits,
    /// Its VQPs, in no order.
    pub(crate) vqps: Vec<VqpId>,
    /// Of these, the ones that messages made.
    pub(crate) accepted: AcceptedOf,
    /// VQPs that it destroyed and of which something is in flight.
    pub(crate) zombies: u32,
    /// Its regions, those being deregistered included.
    pub(crate) mrs: u32,
    /// Completions that it has not taken.
    pub(crate) completions: VecDeque<Completion>,
    /// WRs that may still complete, and completions not taken.
    pub(crate) pending: u32,
    /// It stands in the list of clients with completions.
    pub(crate) ready: bool,
    /// It is gone, and this entry waits for its VQPs and regions.
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new(limits: ClientLimits) -> Client {
        Client {
            limits,
            vqps: Vec::new(),
            accepted: AcceptedOf::default(),
            zombies: 0,
            mrs: 0,
            completions: VecDeque::new(),
            pending: 0,
            ready: false,
            closed: false,
        }
    }
}
