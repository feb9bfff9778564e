//! Questions of peers, and their answers.

use core::num::NonZeroU16;

use elver_control::{Answer, ControlAddr};
use elver_verbs::{Device, Gid};

use super::watch::PortsAsked;
use super::{Failing, Loss};
use crate::Core;
use crate::client::all::Clients;
use crate::ids::PeerId;

impl Clients {
    /// The numbers of the bindings of ports.
    pub(crate) fn bindings(&self, ports: PortsAsked) -> PortsAsked {
        ports.map(|port| self.ports.binding_of(port.map(NonZeroU16::get)?))
    }
}

impl<D: Device> Core<D> {
    /// Whether this node turns by itself. One that turns only when its owner calls it may be silent for
    /// long, and tells its peers so: none of them takes it for dead. It does, unless this says otherwise.
    pub fn turns_by_itself(&mut self, turns: bool) {
        self.keep_alive.drives_itself = turns;
    }

    /// A node asks whether this one is there. Who knows the Q_Key to ask is answered, known or not: with as
    /// many bytes as it sent, and nothing is kept of it.
    pub(crate) fn answer_alive(
        &mut self,
        (gid, qpn): (Gid, u32),
        id: u64,
        qkey: u32,
        ports: PortsAsked,
    ) {
        self.stats.peers_assured += 1;
        let answer = Answer::Alive {
            turns: self.keep_alive.drives_itself,
            bound: self.clients.bindings(ports),
        };
        self.links.control.answer_once(ControlAddr { gid, qpn, qkey }, id, answer);
    }

    /// A node has answered that it is there.
    pub(crate) fn heard_alive(
        &mut self,
        (gid, qpn): (Gid, u32),
        id: u64,
        turns: bool,
        bound: &PortsAsked,
    ) {
        // Of those that nobody remembers nobody has asked.
        let peer = self.peers.find(&gid);
        if peer.is_none_or(|peer| !self.peer_answered((peer, qpn), id, turns, bound)) {
            self.stats.control_stray += 1;
        } else {
            self.stats.peers_answered += 1;
        }
    }

    /// The same of a peer; whether it was asked.
    pub(crate) fn peer_answered(
        &mut self,
        from: (PeerId, u32),
        id: u64,
        turns: bool,
        bound: &PortsAsked,
    ) -> bool {
        let Some((_, parted)) = self.keep_alive.answered(from, id, turns, bound) else {
            return false;
        };
        let vqps = &self.vqps;
        let lost = parted.into_iter().filter_map(|id| {
            let nonce = vqps.get(id)?.nonce;
            Some(Failing { vqp: id, nonce, loss: Loss::Port })
        });
        self.keep_alive.fail_all(lost);
        true
    }
}
