//! What must hold at any moment, and at the end.

use std::collections::BTreeMap;

use elver_core::Holdings;
use elver_verbs::{Device, QpType};

use crate::model::{ClientIx, OpState, Phase, Violation, broken};
use crate::world::World;

impl World {
    /// Looks at every node's pool and at all memory.
    pub(crate) fn check_all(&mut self) -> Result<(), Violation> {
        self.check_forge()?;
        for node in 0..self.nodes.len() {
            self.check_pool(node)?;
            self.check_regions(node)?;
            self.check_vias(node)?;
            self.reclaim(node);
        }
        self.model.check_memory()
    }

    /// How long anything that is pending may take.
    pub(crate) fn patience_ns(&self) -> u64 {
        let held = self.nodes.iter().filter_map(|node| node.engine.held());
        let requests = held.map(|held| held.requests).max();
        self.plan.patience_ns(requests.unwrap_or(0))
    }

    /// What a node is in the middle of.
    fn unrest(&self, number: usize) -> Option<String> {
        let held = self.nodes[number].engine.held()?;
        let busy = held.requests + held.rc_qps_changing > 0;
        busy.then(|| format!("node {number} makes or closes RC QPs: {held:?}"))
    }

    /// Whether a node's device has work, whoever waits for it.
    pub(crate) fn is_any_posting(&self) -> bool {
        self.nodes.iter().filter_map(|node| node.engine.held()).any(|held| held.posted > 0)
    }

    /// What is left at a node that has no clients, and should not be.
    pub(crate) fn remains(&mut self, number: usize) -> Option<String> {
        // A node that is bad keeps what it leases for as long as it lives.
        let members = self.rc_qps_of_member(number);
        let engine = &mut self.nodes[number].engine;
        let held = engine.held()?;
        let core = engine.inspect()?;
        let none = Holdings {
            // The node's own, which stay.
            dcis: held.dcis,
            other_qps: held.other_qps,
            rc_qps: held.rc_qps,
            rc_qps_leased: held.rc_qps_leased.min(members),
            ahs: held.ahs,
            mrs: held.mrs - core.stats().mrs as u32,
            receives: core.device().shared_receives(),
            ..Holdings::default()
        };
        (held != none).then(|| format!("node {number} without clients has {held:?}, not {none:?}"))
    }

    /// An RC QP that has no other end.
    pub(crate) fn lone_end(&mut self) -> Option<String> {
        let mut ends = BTreeMap::new();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let Some(core) = node.engine.inspect() else { continue };
            let device = core.device();
            for qp in device.qps() {
                let Ok((attr, init)) = device.query_qp(qp) else { continue };
                if init.qp_type == QpType::Rc {
                    let own = (self.gids[number], device.qp_num(qp).unwrap_or(0));
                    ends.insert(own, (attr.ah_attr.dgid, attr.dest_qp_num));
                }
            }
        }
        let is_members = |gid| self.forge.as_ref().is_some_and(|forge| forge.is(gid));
        let (own, other) = ends
            .iter()
            .find(|(own, other)| !is_members(other.0) && ends.get(other) != Some(own))?;
        Some(format!("RC QP {:#x} of {} has no other end at {}", own.1, own.0, other.0))
    }

    /// Looks whether anything is left of clients that have died.
    fn reclaim(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(core) = node.engine.core() else { return };
        let mut gone: Vec<ClientIx> = Vec::new();
        node.dying.retain(|client| {
            let left = !core.client_is_gone(self.model.clients[*client].id);
            if !left {
                gone.push(*client);
            }
            left
        });
        for client in gone {
            self.note(format_args!("node {number}: nothing is left of client {client}"));
            self.model.client_gone(client);
        }
    }

    /// What is pending: a connect, a deregistration, a signalled WR, a client that died.
    pub(crate) fn pending(&self) -> Option<String> {
        if let Some((token, pending)) = self.model.pending.iter().next() {
            return Some(format!("call {token} has no end: {pending:?}"));
        }
        for (vqp, known) in self.model.vqps.iter().enumerate() {
            let waits = |op: &&usize| self.model.ops[**op].signaled;
            if let Some(op) = known.sends.iter().find(waits) {
                let opcode = self.model.ops[*op].opcode;
                let client = &self.model.clients[known.client];
                let core = self.nodes[client.place.0].engine.core();
                let info = core.map(|core| core.vqp_info(client.id, known.id));
                return Some(format!("VQP {vqp}: WR {op} {opcode:?} has no completion, {info:?}"));
            }
        }
        let dying = self.nodes.iter().flat_map(|node| &node.dying).next();
        if let Some(client) = dying {
            return Some(format!("client {client} is dead, but something of it is left"));
        }
        (0..self.nodes.len()).find_map(|node| self.unrest(node))
    }

    /// When nothing is in flight any more: all memory, and all messages.
    pub(crate) fn check_rest(&mut self) -> Result<(), Violation> {
        self.check_all()?;
        let now = self.model.tick();
        for (index, region) in self.model.regions.iter().enumerate() {
            region
                .check_rest(index, &self.model.ops, now)
                .map_err(|what| Violation(format!("region {index}: {what}")))?;
        }
        for (vqp, known) in self.model.vqps.iter().enumerate() {
            if known.phase == Phase::Gone {
                continue;
            }
            // A lane that failed through another's fault may have hidden the cause.
            let (node, _) = self.model.place(vqp);
            if let Some((_, op)) = known.unexplained
                && !self.disturbed(node)
            {
                broken!("VQP {vqp}: WR {op} was flushed, and no WR failed");
            }
            if known.failed_in(known.epoch) {
                continue;
            }
            if self.should_have_failed(vqp) {
                broken!(
                    "VQP {vqp}: the node that it is connected to has gone, and it does not fail"
                );
            }
            if known.hole == Some(known.epoch) && !self.may_refuse(vqp) {
                broken!("VQP {vqp}: a message is lost, and later ones came");
            }
            let Some(to) = self.addressee(vqp) else { continue };
            let whole = |op: &&usize| {
                let op = &self.model.ops[**op];
                op.state == OpState::Succeeded && op.epoch == known.epoch
            };
            let waits = known.stream.iter().find(whole);
            if let Some(op) = waits
                && !self.model.vqps[to].recvs.is_empty()
                && !self.may_refuse(vqp)
            {
                broken!("VQP {vqp}: message {op} has never come to VQP {to}");
            }
        }
        Ok(())
    }
}
