//! Somebody on the network who is no node, or not the one that he says: what he sends is forged, and
//! ordinary nodes work on.
//!
//! What each kind cannot do is what `docs/node.md` and `docs/wire.md` promise, and here it is asserted
//! by the same model as ever: for all that clients see, memory, completions, messages and their order,
//! he is not there. One on the path may break connections, which the model takes for a fault of the
//! network, but has nothing executed twice, nor wrongly. Beside the model, this holds: no address is
//! sent more bytes than came from it, unless it has proved itself; and nodes remember nobody who is no
//! node, whatever he says.

mod craft;
mod kinds;
mod member;
mod on_path;
mod outsider;
mod state;

use std::net::IpAddr;

use elver_sim::{Datagram, Rng};
use elver_verbs::{Gid, QpType};

pub use kinds::{Forger, Forgers, UnknownForger};
pub(crate) use state::Forge;

use self::state::Prey;
use crate::model::{Violation, broken};
use crate::world::World;

/// Datagrams that he sends at once, at most.
const BURST_MAX: u64 = 4;
/// They arrive so late, at most.
const SPREAD_NS: u64 = 2_000;
impl World {
    /// Somebody forges.
    pub(crate) fn forge(&mut self) -> Result<(), Violation> {
        let Some(mut forge) = self.forge.take() else { return Ok(()) };
        let listened = self.listen(&mut forge);
        forge.enlist(self);
        for _ in 0..forge.rng.between(1, BURST_MAX) {
            let Some(prey) = self.prey(&mut forge.rng) else { break };
            let datagram = match forge.kind {
                Forger::Stranger => forge.stranger(self, &prey),
                Forger::Process => forge.process(self, &prey),
                Forger::Member => forge.member(self, &prey),
                Forger::OnPath if self.healed => None,
                Forger::OnPath => forge.on_path(self),
            };
            if let Some(datagram) = datagram {
                self.send_forged(&mut forge, datagram);
            }
        }
        self.forge = Some(forge);
        listened
    }

    fn send_forged(&mut self, forge: &mut Forge, datagram: Datagram) {
        let from = datagram.flow.src.ip();
        *forge.given.entry(from).or_default() += datagram.bytes.len() as u64;
        let late = forge.rng.between(1, SPREAD_NS);
        let opcode = datagram.bytes.first().copied().unwrap_or(0);
        self.note(format_args!(
            "{}: packet {opcode:#04x}, {} -> {}, {} bytes",
            forge.kind,
            datagram.flow.src,
            datagram.flow.dst.ip(),
            datagram.bytes.len()
        ));
        self.count("packet forged");
        self.net.inject(self.now.saturating_add_ns(late), datagram);
    }

    /// A node that is up.
    fn prey(&self, rng: &mut Rng) -> Option<Prey> {
        let up = |node: &usize| self.nodes[*node].engine.is_up();
        let up: Vec<usize> = (0..self.nodes.len()).filter(up).collect();
        let node = if up.is_empty() { return None } else { rng.pick(&up) };
        let record = self.nodes[node].engine.core()?.record();
        Some(Prey { node, address: crate::plan::Plan::address(node), record })
    }

    /// Takes what he has heard, and looks at how much was sent where.
    pub(crate) fn check_forge(&mut self) -> Result<(), Violation> {
        let Some(mut forge) = self.forge.take() else { return Ok(()) };
        let listened = self.listen(&mut forge);
        self.forge = Some(forge);
        listened
    }

    fn listen(&mut self, forge: &mut Forge) -> Result<(), Violation> {
        for datagram in self.net.take_heard() {
            forge.remember(datagram);
        }
        for stray in self.net.take_strays() {
            forge.took(&stray);
            if let Some(answer) = forge.reply(self, &stray) {
                self.send_forged(forge, answer);
            }
            let to = stray.flow.dst.ip();
            let Some(given) = forge.given.get(&to) else { continue };
            let taken = forge.taken[&to];
            if taken > *given && !forge.proved.contains(&to) {
                broken!("{to} was sent {taken} bytes, and {given} came from there");
            }
        }
        Ok(())
    }

    /// RC QPs that a node has made for somebody who is bad.
    pub(crate) fn rc_qps_of_member(&mut self, number: usize) -> u32 {
        let ends = self.qps_of(number, QpType::Rc);
        let forge = self.forge.as_ref();
        ends.iter().filter(|end| forge.is_some_and(|forge| forge.is(end.peer))).count() as u32
    }

    /// A node remembers nobody who is none.
    pub(crate) fn check_strangers(&self, number: usize) -> Result<(), Violation> {
        let Some(forge) = self.forge.as_ref().filter(|forge| forge.kind == Forger::Stranger) else {
            return Ok(());
        };
        let Some(core) = self.nodes[number].engine.core() else { return Ok(()) };
        for peer in core.peers() {
            let his = |address: &&IpAddr| Gid::from(**address) == peer.gid;
            let node = self.gids.contains(&peer.gid);
            if !node && let Some(address) = forge.given.keys().find(his) {
                broken!("node {number} remembers {address}, where there is no node");
            }
        }
        Ok(())
    }
}
