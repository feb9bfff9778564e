//! What clients take: each completion against the WR that it ends.

use elver_core::{ClientId, Completion};
use elver_verbs::{SendOpcode, Wc, WcFlags, WcStatus};

use crate::canary::{Canary, spoil};
use crate::model::{
    ClientIx, Hold, Moment, Op, OpIx, OpState, Phase, Piece, Planted, Violation, VqpIx, broken,
};
use crate::world::World;

/// Completions that a client takes at once, at most.
const TAKEN_MAX: u64 = 16;

impl World {
    /// The clients of a node take the completions that are there.
    pub(crate) fn take_completions(&mut self, number: usize) -> Result<(), Violation> {
        while let Some(id) = self.nodes[number].ready.pop_first() {
            self.take_all(number, id)?;
        }
        Ok(())
    }

    fn take_all(&mut self, number: usize, id: ClientId) -> Result<(), Violation> {
        let ours = |client: &&ClientIx| self.model.clients[**client].id == id;
        let client = self.nodes[number].clients.iter().find(ours).copied();
        loop {
            let room = self.polling.between(1, TAKEN_MAX) as usize;
            let blank = Completion { vqp: elver_core::VqpId(0), source: None, wc: Wc::default() };
            let mut taken = vec![blank; room];
            let Some(core) = self.nodes[number].engine.call() else { return Ok(()) };
            let count = core.poll_completions(id, &mut taken);
            if count > room {
                broken!("node {number}: {count} completions were taken where {room} fit");
            }
            taken.truncate(count);
            let Some(client) = client else {
                if count > 0 {
                    broken!("node {number}: a client that is gone has completions");
                }
                return Ok(());
            };
            let vqps = &self.model.clients[client].vqps;
            let others: Vec<_> = vqps.iter().map(|vqp| self.model.vqps[*vqp].id).collect();
            spoil(&mut self.planter, &mut taken, &others);
            for completion in &taken {
                self.complete(number, client, completion)?;
            }
            if count < room {
                return Ok(());
            }
        }
    }

    fn complete(
        &mut self,
        number: usize,
        client: ClientIx,
        completion: &Completion,
    ) -> Result<(), Violation> {
        let wc = &completion.wc;
        let place = self.nodes[number].place(number);
        let Some(vqp) = self.model.find(place, completion.vqp) else {
            // What had completed when its VQP was destroyed may still stand in the client's queue.
            let before = self.model.destroyed.get(&(place, completion.vqp));
            if before.is_some_and(|vqp| self.model.vqps[*vqp].client == client) {
                return Ok(());
            }
            broken!("client {client}: a completion of VQP {:#x}, which is none", completion.vqp.0);
        };
        let kind = if wc.wr_id & 1 == 0 { "WR" } else { "receive" };
        self.note(format_args!("VQP {vqp}: {kind} {} completes: {}", wc.wr_id >> 1, wc.status));
        if self.model.vqps[vqp].client != client {
            broken!("client {client}: a completion of VQP {vqp}, which is another's");
        }
        if wc.qp_num != completion.vqp.0 {
            broken!("VQP {vqp}: a completion names QP {:#x}", wc.qp_num);
        }
        if wc.wr_id & 1 == 1 {
            return self.received(vqp, completion);
        }
        let op = (wc.wr_id >> 1) as OpIx;
        if wc.status == WcStatus::RespTimeoutErr && self.planter.plants(Canary::GuessedFate) {
            self.execute_again(op);
        }
        self.sent(vqp, op, wc)
    }

    /// Plants what a core would do that posts a WR again of which it cannot find out whether it was executed:
    /// an addition is done at its peer, whatever was before.
    fn execute_again(&mut self, op: OpIx) {
        let known = &self.model.ops[op];
        let (SendOpcode::FetchAdd, Some((region, offset))) = (known.opcode, known.remote) else {
            return;
        };
        let region = &self.model.regions[region];
        let is_there = region.hold == Hold::Open && !region.vanished && known.planted.is_none();
        if !is_there || !self.planter.strikes(Canary::GuessedFate) {
            return;
        }
        region.add_again(offset, known.operands.0);
    }

    /// A send WR has completed.
    fn sent(&mut self, vqp: VqpIx, op: OpIx, wc: &Wc) -> Result<(), Violation> {
        let sends = &self.model.vqps[vqp].sends;
        let Some(position) = sends.iter().position(|other| *other == op) else {
            broken!("VQP {vqp}: WR {op} completes, which is not outstanding there");
        };
        let step = self.model.tick();
        let passed: Vec<OpIx> = self.model.vqps[vqp].sends.drain(..=position).collect();
        let failed = wc.status != WcStatus::Success;
        for earlier in passed[..position].iter().copied() {
            if self.model.ops[earlier].signaled {
                broken!("VQP {vqp}: WR {op} completes before WR {earlier}, which is signalled");
            }
            // Those that were not signalled were done, unless what they are flushed with failed.
            let unsure = failed && wc.status == WcStatus::WrFlushErr;
            self.end(earlier, if unsure { wc.status } else { WcStatus::Success }, step)?;
        }
        self.end(op, wc.status, step)?;
        let known = &self.model.ops[op];
        if failed {
            return self.failed(vqp, op, wc.status);
        }
        if !known.signaled {
            broken!("VQP {vqp}: WR {op} is not signalled, but completes with success");
        }
        if self.model.vqps[vqp].flushing == Some(known.epoch) {
            broken!("VQP {vqp}: WR {op} succeeds behind one that failed");
        }
        if wc.opcode != known.opcode.wc_opcode() {
            broken!("VQP {vqp}: WR {op} is {:?}, completes as {:?}", known.opcode, wc.opcode);
        }
        if wc.flags != WcFlags::empty() {
            broken!("VQP {vqp}: WR {op} completes with {:?}", wc.flags);
        }
        if known.fills() && wc.byte_len != known.len {
            broken!("VQP {vqp}: WR {op} of {} bytes got {}", known.len, wc.byte_len);
        }
        Ok(())
    }

    /// Takes the end of a WR: its effect, if it had one for sure, must be right.
    fn end(&mut self, op: OpIx, status: WcStatus, step: u64) -> Result<(), Violation> {
        let pieces = self.model.ops[op].pieces.clone();
        if status == WcStatus::Success {
            self.model.ops[op].state = OpState::Succeeded;
            self.model.ops[op].ended = Some(step);
            self.check_effect(op).map_err(|what| Violation(format!("WR {op}: {what}")))?;
        } else {
            self.model.ops[op].state = OpState::Failed(status);
        }
        self.model.release(&pieces);
        Ok(())
    }

    fn check_effect(&mut self, index: OpIx) -> Result<(), String> {
        let op = self.model.ops[index].clone();
        if let Some(Planted::Remote(what)) = op.planted {
            return Err(format!("it succeeded with {what}"));
        }
        let Some((region, offset)) = op.remote else { return Ok(()) };
        let back = self.model.regions[region].back;
        if op.len > 0 && back.is_some_and(|back| back < op.posted) {
            return Err("it succeeded in a region that had been deregistered".into());
        }
        // Memory that its client has taken back meanwhile tells nothing any more.
        let back = |piece: &Piece| self.model.arenas[piece.arena].hold == Hold::Back;
        if !op.fills() || op.pieces.iter().any(back) {
            return Ok(());
        }
        let mut found = self.model.gather(&op.pieces, op.len);
        if !found.is_empty() && self.planter.strikes(Canary::CorruptData) {
            found[0] ^= 1;
        }
        if op.opcode == SendOpcode::Read {
            let moment = Moment::Op(index, &op);
            return self.model.regions[region].check_read(&self.model.ops, moment, offset, &found);
        }
        let word = u64::from_ne_bytes(found.try_into().map_err(|_| "not eight bytes")?);
        self.model.regions[region].atomic(&self.model.ops, &op, offset, word)
    }

    /// A WR failed: there must be a cause, and its VQP is down.
    fn failed(&mut self, vqp: VqpIx, index: OpIx, status: WcStatus) -> Result<(), Violation> {
        let op = &self.model.ops[index];
        let epoch = op.epoch;
        // With the cause, that there was no room, which must follow, the probe is content.
        let may_flush = status == WcStatus::WrFlushErr && self.forger_sends();
        if op.must_succeed && !may_flush {
            broken!("VQP {vqp}: WR {index} failed in peace: {status}");
        }
        if status == WcStatus::WrFlushErr && !self.explains_status(vqp, op, status) {
            // The WR that failed may stand behind those that were posted already: its completion
            // must follow.
            let known = &mut self.model.vqps[vqp];
            known.phase = Phase::Down;
            known.flushing = Some(epoch);
            known.unexplained.get_or_insert((epoch, index));
            return Ok(());
        }
        if !self.explains_status(vqp, op, status) {
            broken!("VQP {vqp}: WR {index} {:?} failed without a cause: {status}", op.opcode);
        }
        let known = &mut self.model.vqps[vqp];
        // Its client may have connected it anew before it looked at all that had completed.
        if known.unexplained.is_some_and(|(flushed, _)| flushed == epoch) {
            known.unexplained = None;
        }
        if epoch == known.epoch {
            known.fail(status.to_string());
            known.flushing = Some(epoch);
        } else if !known.ever_failed() {
            // Its receives of then were flushed, and are told later.
            known.failed = Some((epoch, status.to_string()));
        }
        Ok(())
    }

    /// Whether a node had no room for a message to be opened.
    fn has_unopened(&self, node: usize) -> bool {
        let core = self.nodes[node].engine.core();
        core.is_some_and(|core| core.stats().messages_unopened > 0)
    }

    /// Whether memory has vanished at one of two nodes.
    fn has_vanished(&self, node: usize, peer: usize) -> bool {
        let here = |number: usize| number == node || number == peer;
        self.model.regions.iter().any(|region| region.vanished && here(region.place.0))
    }

    /// Whether the peer of a VQP may be somebody whom its node has to look up, and cannot: what a node
    /// has accepted came from one that it may know nothing of.
    fn may_not_be_found(&self, vqp: VqpIx) -> bool {
        let known = &self.model.vqps[vqp];
        let (node, _) = self.model.place(vqp);
        let accepted = known.origin.is_some() || known.accepted_unknown;
        accepted && (self.disturbed(node) || !self.settled_since(known.since))
    }

    fn explains_status(&self, vqp: VqpIx, op: &Op, status: WcStatus) -> bool {
        let known = &self.model.vqps[vqp];
        if status == WcStatus::WrFlushErr {
            return known.failed_in(op.epoch) || op.epoch < known.epoch;
        }
        let Some(peer) = known.peer() else { return false };
        let (node, _) = self.model.place(vqp);
        let Some(there) = self.nodes.get(peer) else { return true };
        let disturbed = self.net.disturbed(node, peer);
        match status {
            WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr => {
                let bad = matches!(op.planted, Some(Planted::Remote(_)));
                let withdrawn = op
                    .remote
                    .is_some_and(|(region, _)| self.model.regions[region].hold != Hold::Open);
                let vanished =
                    op.remote.is_some_and(|(region, _)| self.model.regions[region].vanished);
                let refused = op.is_message() && (self.may_refuse(vqp) || self.may_overrun(vqp));
                bad || withdrawn || vanished || refused || (disturbed && there.boot > 1)
            }
            WcStatus::RetryExcErr => disturbed || self.may_not_be_found(vqp),
            // A WR to memory that is gone may break the RC QP of others at either end.
            WcStatus::RespTimeoutErr => disturbed || self.has_vanished(node, peer),
            WcStatus::RnrRetryExcErr => disturbed,
            // A message that is to be read, when as many are open to readers as may.
            WcStatus::LocQpOpErr => op.is_message() && self.has_unopened(node),
            _ => false,
        }
    }
}
