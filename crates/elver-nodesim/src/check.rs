//! What must hold at any moment, and at the end.

use elver_verbs::{Device, QpState, QpType};

use crate::model::{ClientIx, OpState, Phase, Violation, broken};
use crate::world::World;

impl World {
    /// Looks at every node's pool and at all memory.
    pub(crate) fn check_all(&mut self) -> Result<(), Violation> {
        for node in 0..self.nodes.len() {
            self.check_pool(node)?;
            self.reclaim(node);
        }
        self.model.check_memory()
    }

    /// The shared QPs of a node: as many as there shall be, and none in error because of a client.
    fn check_pool(&mut self, number: usize) -> Result<(), Violation> {
        let disturbed = self.disturbed(number);
        let quiet = self.quiet;
        let config = &self.plan.config;
        let Some(core) = &mut self.nodes[number].core else { return Ok(()) };
        let leased = core.vqps().filter(|vqp| vqp.via == Some(elver_core::Via::Leased)).count();
        let bytes = core.connection_bytes();
        let device = core.device();
        let (mut dcis, mut rcs, mut others) = (0, 0, 0);
        for qp in device.qps() {
            let Ok((attr, init)) = device.query_qp(qp) else { continue };
            let errored = match init.qp_type {
                QpType::Dci => device.errored_streams(qp).unwrap_or(0) > 0,
                _ => false,
            };
            if (attr.qp_state == QpState::Err || errored) && (!disturbed || quiet) {
                broken!("node {number}: {} QP {:#x} is in error", init.qp_type, qp.0);
            }
            match init.qp_type {
                QpType::Dci => dcis += 1,
                QpType::Rc => rcs += 1,
                _ => others += 1,
            }
        }
        if dcis > config.dc_qps as usize || others > 2 {
            broken!("node {number}: {dcis} DC QPs and {others} others, of {}", config.dc_qps);
        }
        // Each side of a handshake may hold one that is being made, or that goes.
        let handshakes = 2 * config.storm.handshakes_max as usize;
        let most = config.transfer.rc_qps_max as usize + leased + handshakes + self.plan.metas;
        let _ = most;
        if rcs > RC_QPS_MAX {
            broken!("node {number}: {rcs} RC QPs");
        }
        if device.counters().nak_fatal_sent > 0 {
            broken!(
                "node {number}: a request that its region does not allow has come to the device"
            );
        }
        if bytes > CONNECTION_BYTES_MAX {
            broken!("node {number}: connections take {bytes} bytes");
        }
        Ok(())
    }

    /// Looks whether anything is left of clients that have died.
    fn reclaim(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(core) = &node.core else { return };
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
                return Some(format!("VQP {vqp}: WR {op} {opcode:?} has no completion"));
            }
        }
        let dying = self.nodes.iter().flat_map(|node| &node.dying).next();
        dying.map(|client| format!("client {client} is dead, but something of it is left"))
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

/// RC QPs that a node never has more of.
const RC_QPS_MAX: usize = 64;
/// What the connections of a node of the simulation's size never take more of.
const CONNECTION_BYTES_MAX: u64 = 6_300_000;
