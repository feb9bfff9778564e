//! Clients: what each may have and has, and the VQPs that messages made.

mod lifecycle;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{ClientLimits, Completion};

/// A client of the core's.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) limits: ClientLimits,
    /// Its VQPs, in no order.
    pub(crate) vqps: Vec<u32>,
    /// Of these, the ones that messages made.
    pub(crate) accepted: Accepted,
    /// The same, by the peer that the messages came from.
    pub(crate) accepted_of: HashMap<u32, Accepted, FxBuildHasher>,
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

/// VQPs that messages made.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// How many there are.
    pub(crate) now: u32,
    /// Which they are, those first that were made, or looked at, longest ago. Ids of the gone mean
    /// nothing.
    pub(crate) order: VecDeque<u32>,
}

/// Ids of the gone in an order of accepted VQPs, beyond as many as there are VQPs.
const GONE_MAX: usize = 64;

impl Accepted {
    /// Takes one in. `is_there` tells which ids are not of the gone.
    pub(crate) fn push(&mut self, id: u32, is_there: impl Fn(u32) -> bool) {
        self.now += 1;
        self.order.push_back(id);
        if self.order.len() > 2 * self.now as usize + GONE_MAX {
            self.order.retain(|id| is_there(*id));
        }
    }
}

impl Client {
    /// A message of a peer's made a VQP. `is_there` tells which of them still are.
    pub(crate) fn accept(&mut self, id: u32, peer: u32, is_there: impl Fn(u32) -> bool) {
        self.accepted.push(id, &is_there);
        self.accepted_of.entry(peer).or_default().push(id, is_there);
    }

    /// A VQP that a message of a peer's made is none any longer.
    pub(crate) fn unaccept(&mut self, peer: u32) {
        count_off!(self.accepted.now, 1);
        let Some(of_peer) = self.accepted_of.get_mut(&peer) else {
            return bug!("a VQP that was accepted is of no peer");
        };
        count_off!(of_peer.now, 1);
        if of_peer.now == 0 {
            self.accepted_of.remove(&peer);
        }
    }

    /// Accepted VQPs of a peer.
    pub(crate) fn accepts_of(&self, peer: u32) -> u32 {
        self.accepted_of.get(&peer).map_or(0, |of_peer| of_peer.now)
    }

    /// Those of a peer, or all.
    pub(crate) fn accepted_mut(&mut self, peer: Option<u32>) -> Option<&mut Accepted> {
        match peer {
            Some(peer) => self.accepted_of.get_mut(&peer),
            None => Some(&mut self.accepted),
        }
    }

    pub(crate) fn new(limits: ClientLimits) -> Client {
        Client {
            limits,
            vqps: Vec::new(),
            accepted: Accepted::default(),
            accepted_of: HashMap::default(),
            zombies: 0,
            mrs: 0,
            completions: VecDeque::new(),
            pending: 0,
            ready: false,
            closed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gone_do_not_pile_up() {
        let mut client = Client::new(ClientLimits::default());
        for id in 1..10_000 {
            client.accept(id, id % 3, |other| other + 2 > id);
            assert!(client.accepted.now <= 2);
            let orders = [Some(0), Some(1), Some(2), None]
                .map(|peer| client.accepted_mut(peer).map_or(0, |accepted| accepted.order.len()));
            assert!(orders.iter().all(|len| *len <= GONE_MAX + 4), "{orders:?}");
            if id > 1 {
                client.unaccept((id - 1) % 3);
            }
        }
        assert_eq!((client.accepted.now, client.accepted_of.len()), (1, 1));
    }
}
