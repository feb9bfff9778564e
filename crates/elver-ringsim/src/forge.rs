//! Somebody who sends what is forged. Off the path he knows every queue pair, number and key but those that admit him, and
//! speaks from his own address, or from a node's where he guesses the rest: nothing comes of it. Nor does it where he has the
//! key to a node's DC target, as all nodes have, and none to its memory. On the path he says again
//! what nodes have said, whole or damaged, at any later time: that may cost connections, and nothing else.

use elver_sim::{Datagram, Fault};
use elver_verbs::{Device, Gid, QpType, RemoteAddr};
use elver_wire::{Message, Reth, Route};

use crate::canary::Canary;
use crate::cluster::address;
use crate::forger::{Known, OWN, Operation, dc_route, packet};
use crate::model::Violation;
use crate::world::World;

/// What he sends arrives so late, at most.
const SPREAD_NS: u64 = 2_000;

impl World {
    /// He sends something.
    pub(crate) fn forge(&mut self) -> Result<(), Violation> {
        self.cluster.net.overhear();
        for heard in self.cluster.net.take_heard() {
            self.fate.forger.remember(heard);
        }
        self.cluster.net.take_strays();
        let forged =
            if self.fate.forger.rng.percent(40) { self.on_path() } else { self.off_path() };
        let Some(forged) = forged else { return Ok(()) };
        let late = self.fate.forger.rng.between(1, SPREAD_NS);
        let (from, to) = (forged.flow.src, forged.flow.dst.ip());
        let opcode = forged.bytes.first().copied().unwrap_or(0);
        self.befell(Fault::Forge, format_args!("packet {opcode:#04x}, {from} -> {to}"));
        self.cluster.net.inject(self.now().saturating_add_ns(late), forged);
        Ok(())
    }

    /// What a node has said to another, once more.
    fn on_path(&mut self) -> Option<Datagram> {
        let heard = self.fate.forger.recall()?;
        for node in 0..self.plan.nodes {
            if [heard.flow.src.ip(), heard.flow.dst.ip()].contains(&address(node)) {
                self.cluster.net.disturb(node);
            }
        }
        Some(self.fate.forger.again(&heard))
    }

    /// A WRITE to the words or the slots of an end, by one who may not.
    fn off_path(&mut self) -> Option<Datagram> {
        let living: Vec<_> = self
            .living
            .iter()
            .copied()
            .filter(|end| !self.cluster.is_down(self.ends[*end].node))
            .collect();
        let end = self.fate.forger.any(&living)?;
        let node = self.ends[end].node;
        let [slots, cells] = self.ends[end].writable();
        let rng = &mut self.fate.forger.rng;
        let RemoteAddr { addr: va, rkey } = rng.pick(&[slots, cells, cells]);
        let word = rng.pick(&[1, 2, u64::MAX, 1 << 63, 77]);
        let write = Message::WriteOnly(Reth { va, rkey, len: 8 }, None);
        let payload = word.to_le_bytes();
        let over_rc = rng.percent(50);
        if over_rc {
            return self.over_rc(node, (write, &payload));
        }
        let (core, _) = self.cluster.core(node)?;
        let record = core.record();
        let rng = &mut self.fate.forger.rng;
        let session = rng.next_u64() as u32;
        // All is right but one key, which he does not have.
        let (access_key, rkey, from) = if rng.percent(50) {
            let is_taken = self.planter.strikes(Canary::UncheckedDcKey);
            let other = record.dc_key ^ 1 << rng.below(64);
            let other = rng.pick(&[0, other]);
            let access_key = if is_taken { record.dc_key } else { other };
            let from = if rng.percent(50) { OWN } else { address(rng.index(self.plan.nodes)) };
            (access_key, rkey, from)
        } else {
            let is_taken = self.planter.strikes(Canary::UncheckedRkey);
            let other = rkey ^ 1 << rng.below(32);
            let other = rng.pick(&[0, other]);
            (record.dc_key, if is_taken { rkey } else { other }, OWN)
        };
        let write = Message::WriteOnly(Reth { va, rkey, len: 8 }, None);
        let route = dc_route(access_key, session);
        packet((from, address(node)), route, (write, &payload), record.dctn, session)
    }

    /// With everything right but his address.
    fn over_rc(&mut self, node: usize, write: Operation<'_>) -> Option<Datagram> {
        let known = self.rc_of(node);
        let Known { qpn, peer, expects } = self.fate.forger.any(&known)?;
        let is_taken = self.planter.strikes(Canary::UncheckedSource);
        let from = if is_taken { peer } else { OWN };
        packet((from, address(node)), Route::Rc, write, qpn, expects)
    }

    /// RC queue pairs of a node's, in the same order in each run of a seed.
    fn rc_of(&mut self, node: usize) -> Vec<Known> {
        let nodes = self.plan.nodes;
        let Some((core, _)) = self.cluster.core(node) else { return Vec::new() };
        let device = core.device();
        let peer_of = |gid| (0..nodes).map(address).find(|address| Gid::from(*address) == gid);
        let known = device.qps().filter_map(|qp| {
            let (attr, init) = device.query_qp(qp).ok()?;
            let peer = peer_of(attr.ah_attr.dgid)?;
            (init.qp_type == QpType::Rc).then_some(Known { qpn: qp.0, peer, expects: attr.rq_psn })
        });
        let mut known: Vec<Known> = known.collect();
        known.sort_by_key(|known| known.qpn);
        known
    }
}
