//! All clients of a core.

use crate::ClientId;
use crate::client::Client;
use crate::client::accept::Accepts;
use crate::client::ports::Ports;
use crate::client::tell::Told;
use crate::slots::{SLOTS_MAX, Slots};

/// All clients, and what they have between them.
#[derive(Debug)]
pub(crate) struct Clients {
    /// Also those that are closed, until nothing of theirs is left.
    pub(crate) all: Slots<ClientId, Client>,
    /// Where VQPs are bound.
    pub(crate) ports: Ports,
    /// VQPs that messages to bound ones made.
    pub(crate) accepts: Accepts,
    /// Those with completions to take.
    pub(crate) told: Told,
}

impl Clients {
    pub(crate) fn new() -> Clients {
        Clients {
            all: Slots::new(SLOTS_MAX),
            ports: Ports::default(),
            accepts: Accepts::default(),
            told: Told::default(),
        }
    }
}
