//! Receives, and the messages that fill them.

use elver_core::{Completion, VqpState};
use elver_verbs::{Gid, RecvWr, WcFlags, WcOpcode, WcStatus};

use crate::canary::Canary;
use crate::model::{
    Addressee, Hold, Moment, OpIx, OpState, Phase, Piece, Recv, Target, Violation, VqpIx, broken,
    bytes,
};
use crate::post::MESSAGE_MAX;
use crate::world::World;

impl World {
    /// Posts up to `count` receives on a VQP.
    pub(crate) fn supply(&mut self, vqp: VqpIx, count: usize) -> Result<(), Violation> {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let now = self.time_at(node);
        for _ in 0..count {
            let most = self.model.vqps[vqp].init.max_recv_wr as usize;
            if self.model.vqps[vqp].recvs.len() >= most {
                break;
            }
            let short = !self.healed && self.posting.percent(self.plan.bad_percent / 4);
            let len = if short { self.posting.below(600) } else { MESSAGE_MAX } as u32;
            let pieces = self.pieces(client, len, true);
            let room: u32 = pieces.iter().map(|piece| piece.len).sum();
            if room < len {
                self.model.release(&pieces);
                break;
            }
            let (sges, index) = (self.sges(&pieces), self.model.recvs.len());
            let wr = RecvWr { wr_id: (index as u64) << 1 | 1, sges: &sges };
            let Some(core) = self.core(node) else { return Ok(()) };
            match core.post_recv(owner, id, &[wr], now) {
                Ok(()) => {
                    self.model.vqps[vqp].has_unfit |= short;
                    self.model.recvs.push(Recv { vqp, pieces, len });
                    self.model.vqps[vqp].recvs.push_back(index);
                }
                Err((_, error)) => {
                    self.model.release(&pieces);
                    // It may have failed, and its client not looked yet.
                    let info = self.core(node).map(|core| core.vqp_info(owner, id));
                    if matches!(info, Some(Ok(info)) if info.state == VqpState::Error) {
                        return Ok(());
                    }
                    broken!("VQP {vqp}: a receive was refused: {error}");
                }
            }
        }
        Ok(())
    }

    /// Whether an operation of a node's was held for what RC QPs failed for, which memory that is gone
    /// explains.
    fn was_suspected(&self, node: usize) -> bool {
        let ops_unsure =
            self.nodes[node].engine.core().is_some_and(|core| core.stats().ops_unsure > 0);
        ops_unsure && self.model.regions.iter().any(|region| region.vanished)
    }

    /// A receive has completed.
    pub(crate) fn received(
        &mut self,
        vqp: VqpIx,
        completion: &Completion,
    ) -> Result<(), Violation> {
        let wc = &completion.wc;
        let index = (wc.wr_id >> 1) as usize;
        let Some(front) = self.model.vqps[vqp].recvs.pop_front() else {
            broken!("VQP {vqp}: receive {index} completes, but none is outstanding");
        };
        if front != index {
            broken!("VQP {vqp}: receive {index} completes before receive {front}");
        }
        let (pieces, room) = (self.model.recvs[index].pieces.clone(), self.model.recvs[index].len);
        debug_assert_eq!(self.model.recvs[index].vqp, vqp);
        match wc.status {
            WcStatus::Success => {}
            WcStatus::LocLenErr if u64::from(room) < MESSAGE_MAX => {
                self.count("receive too short");
                self.accept(vqp, completion, None)?;
                self.model.release(&pieces);
                return Ok(());
            }
            WcStatus::LocProtErr if self.any_dropped(&pieces) => {
                self.accept(vqp, completion, None)?;
                self.model.release(&pieces);
                return Ok(());
            }
            // A message that could not be read: its sender does not answer, or has failed; or it was read
            // beside what both ends refused, over and over; or its time went by between two READs of it.
            WcStatus::RemOpErr | WcStatus::RetryExcErr
                if self.disturbed(self.model.place(vqp).0)
                    || self.was_held_up()
                    || self.was_suspected(self.model.place(vqp).0)
                    || self.forger_sends_long() =>
            {
                self.model.vqps[vqp].has_unfit = true;
                self.accept(vqp, completion, None)?;
                self.model.release(&pieces);
                return Ok(());
            }
            // One whose pieces do not make up its length: none of a node's.
            WcStatus::BadRespErr if self.forger_sends_long() => {
                self.model.vqps[vqp].has_unfit = true;
                self.accept(vqp, completion, None)?;
                self.model.release(&pieces);
                return Ok(());
            }
            WcStatus::WrFlushErr if self.is_down(vqp) => {
                self.model.release(&pieces);
                return Ok(());
            }
            status => broken!("VQP {vqp}: receive {index} failed without a cause: {status}"),
        }
        let back = |piece: &Piece| self.model.arenas[piece.arena].hold == Hold::Back;
        if pieces.iter().any(back) {
            // Its client has taken the memory back before it looked: which message came is not told.
            self.model.vqps[vqp].has_unfit = true;
            return self.accept(vqp, completion, None);
        }
        // What is written elsewhere fills none of it.
        let filled = if wc.opcode == WcOpcode::RecvRdmaWithImm { 0 } else { wc.byte_len };
        if self.planter.strikes(Canary::FilledTooFar) {
            self.model.overfill(&pieces, filled);
        }
        if let Some(at) = self.model.overfilled(&pieces, filled) {
            broken!("VQP {vqp}: byte {at} of receive {index} is new, behind its {filled} bytes");
        }
        let mut found = self.model.gather(&pieces, wc.byte_len);
        if !found.is_empty() && self.planter.strikes(Canary::CorruptData) {
            found[0] ^= 1;
        }
        let op = match wc.opcode {
            WcOpcode::RecvRdmaWithImm => wc.imm_data as usize,
            WcOpcode::Recv if wc.flags.contains(WcFlags::WITH_IMM) => wc.imm_data as usize,
            WcOpcode::Recv if found.len() >= 8 => {
                u64::from_le_bytes(found[..8].try_into().expect("eight bytes")) as usize
            }
            other => broken!("VQP {vqp}: a message of {} bytes, {other:?}", found.len()),
        };
        if self.forge.as_ref().is_some_and(|forge| forge.wrote(op)) {
            self.heard_of_member(vqp, completion)?;
        } else {
            self.deliver(vqp, op, completion, &found)?;
        }
        self.model.release(&pieces);
        Ok(())
    }

    /// A message of somebody's who is no node has come: it must be in his own name. His VQP its client
    /// does not look at.
    fn heard_of_member(&mut self, vqp: VqpIx, completion: &Completion) -> Result<(), Violation> {
        let bound = self.model.vqps[vqp].bound.is_some();
        let (node, owner) = self.at(self.model.vqps[vqp].client);
        let Some(source) = completion.source.filter(|_| bound) else {
            broken!("VQP {vqp}: a forged message, which is for no port");
        };
        self.count("message of a member gone bad");
        if self.model.destroyed.contains_key(&(self.model.place(vqp), source)) {
            return Ok(());
        }
        let info = self.core(node).map(|core| core.vqp_info(owner, source));
        match info {
            Some(Ok(info)) if !self.is_members(info.peer) => {
                broken!("VQP {vqp}: a forged message comes from {:?}", info.peer)
            }
            // It may have gone since.
            _ => Ok(()),
        }
    }

    /// Whether a VQP's peer is somebody who forges.
    fn is_members(&self, peer: Option<(Gid, u16)>) -> bool {
        let forge = self.forge.as_ref();
        peer.is_some_and(|(gid, _)| forge.is_some_and(|forge| forge.is(gid)))
    }

    /// Whether a client wants memory back that a WR uses.
    fn any_dropped(&self, pieces: &[Piece]) -> bool {
        pieces.iter().any(|piece| self.model.arenas[piece.arena].hold != Hold::Open)
    }

    /// A message has come to a VQP.
    fn deliver(
        &mut self,
        vqp: VqpIx,
        op: OpIx,
        completion: &Completion,
        found: &[u8],
    ) -> Result<(), Violation> {
        let Some(message) = self.model.ops.get(op).filter(|op| op.is_message()) else {
            broken!("VQP {vqp}: a message of WR {op}, which is none");
        };
        let (sender, epoch) = (message.vqp, message.epoch);
        let wc = &completion.wc;
        let writes = message.opcode == elver_verbs::SendOpcode::WriteWithImm;
        let right = wc.byte_len == message.len
            && writes == (wc.opcode == WcOpcode::RecvRdmaWithImm)
            && (writes || found == bytes(op as u64, message.len));
        if !right {
            broken!(
                "VQP {vqp}: message {op} of {} bytes came with {} bytes as {:?}, or with others",
                message.len,
                wc.byte_len,
                wc.opcode
            );
        }
        if writes {
            self.check_written(op).map_err(|what| {
                Violation(format!("VQP {vqp}: of WR {op} was told before it had written: {what}"))
            })?;
        }
        let message = &self.model.ops[op];
        if message.delivered {
            broken!("VQP {vqp}: message {op} came twice");
        }
        self.note(format_args!("VQP {vqp}: message {op} of VQP {sender} arrives"));
        self.model.messages += 1;
        self.model.ops[op].delivered = true;
        self.check_addressee(vqp, op)?;
        let stream = &mut self.model.vqps[sender].stream;
        let Some(position) = stream.iter().position(|waiting| *waiting == op) else {
            broken!("VQP {vqp}: message {op} came after a later one of VQP {sender}");
        };
        // What it sent before it was connected anew may still come, to whom it was for.
        let ops = &self.model.ops;
        let earlier = |at: usize, waiting: &OpIx| at < position && ops[*waiting].epoch == epoch;
        let mut at = 0;
        let mut passed: Vec<OpIx> = Vec::new();
        stream.retain(|waiting| {
            let goes = *waiting == op || earlier(at, waiting);
            at += 1;
            if goes && *waiting != op {
                passed.push(*waiting);
            }
            !goes
        });
        for lost in passed {
            let whole = !matches!(ops[lost].state, OpState::Failed(_) | OpState::Forgotten);
            if whole && !self.model.vqps[sender].failed_in(epoch) {
                // A message may be refused when the sender does not know yet: then it must fail.
                self.model.vqps[sender].hole = Some(epoch);
            }
        }
        self.accept(vqp, completion, Some(sender))?;
        let stale = epoch != self.model.vqps[sender].epoch;
        if stale && let Some(accepted) = self.model.vqps[vqp].accepted.get(&sender).copied() {
            self.model.vqps[accepted].stale = true;
        }
        Ok(())
    }

    /// Whether what a WRITE_WITH_IMM wrote is in place, of which somebody was told.
    fn check_written(&mut self, index: OpIx) -> Result<(), String> {
        let op = &self.model.ops[index];
        let Some((region, offset)) = op.remote.filter(|_| op.len > 0) else { return Ok(()) };
        let region = &self.model.regions[region];
        // Memory that its client has taken back tells nothing any more.
        if region.hold == Hold::Back || region.vanished {
            return Ok(());
        }
        let mut found = region.memory.view()[offset as usize..][..op.len as usize].to_vec();
        if self.planter.strikes(Canary::ToldBeforeWritten)
            && let Some(last) = found.last_mut()
        {
            *last ^= 1;
        }
        region.check_read(&self.model.ops, Moment::Told(index, op), offset, &found)
    }

    /// The VQP that got a message must be the one that it was for.
    fn check_addressee(&self, vqp: VqpIx, op: OpIx) -> Result<(), Violation> {
        let sender = self.model.ops[op].vqp;
        let Some(target) = self.model.vqps[sender].target else {
            // Its client does not know who made it by a message; it must be one at its node's peer.
            let (from, _) = self.model.place(sender);
            let back = self.model.vqps[vqp].target.is_some_and(|target| target.place.0 == from);
            if self.model.vqps[sender].accepted_unknown && back {
                return Ok(());
            }
            broken!("VQP {vqp}: message {op} of VQP {sender}, which is not connected");
        };
        // The sender may have been connected elsewhere meanwhile.
        if self.model.ops[op].epoch != self.model.vqps[sender].epoch {
            return Ok(());
        }
        let (node, _) = self.model.place(vqp);
        let right = match target.to {
            Addressee::Port(port) => {
                target.place.0 == node && self.model.vqps[vqp].bound == Some(port)
            }
            Addressee::Vqp(to) => to == vqp,
        };
        if !right {
            broken!("VQP {vqp}: message {op} was for {:?} of node {}", target.to, target.place.0);
        }
        Ok(())
    }

    /// Looks at the source of a message to a bound VQP: one accepted VQP for each sender.
    fn accept(
        &mut self,
        vqp: VqpIx,
        completion: &Completion,
        sender: Option<VqpIx>,
    ) -> Result<(), Violation> {
        let bound = self.model.vqps[vqp].bound.is_some();
        let place = self.model.place(vqp);
        let (Some(id), true) = (completion.source, bound) else {
            if bound {
                broken!("VQP {vqp}: a message without a source");
            }
            return match completion.source {
                None => Ok(()),
                Some(source) => broken!("VQP {vqp} is not bound, but got source {:#x}", source.0),
            };
        };
        if self.model.destroyed.contains_key(&(place, id)) {
            // It was destroyed while this completion stood in the client's queue.
            return Ok(());
        }
        let known = self.model.find(place, id);
        let Some(sender) = sender else {
            // Whose message was too long is not told.
            return match known {
                Some(_) => Ok(()),
                None => self.add_accepted(vqp, id, None),
            };
        };
        match (self.model.vqps[vqp].accepted.get(&sender).copied(), known) {
            (Some(before), Some(now)) if before == now => Ok(()),
            (Some(before), _) if self.is_whole(before) => {
                broken!("VQP {vqp}: source {:#x} for VQP {sender}, in place of VQP {before}", id.0)
            }
            (_, Some(now)) => {
                let accepted = &mut self.model.vqps[now];
                if accepted.origin.is_some() || !accepted.accepted_unknown {
                    broken!("VQP {vqp}: source {:#x} for VQP {sender} is another's", id.0);
                }
                self.settle_accepted(vqp, now, sender);
                Ok(())
            }
            (_, None) => self.add_accepted(vqp, id, Some(sender)),
        }
    }

    /// Whether a VQP failed, once or since it was last connected.
    pub(crate) fn is_down(&mut self, vqp: VqpIx) -> bool {
        self.is_in_error(vqp) || self.model.vqps[vqp].ever_failed()
    }

    /// Whether a VQP is in its error state, as its node says.
    pub(crate) fn is_in_error(&mut self, vqp: VqpIx) -> bool {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let info = self.core(node).map(|core| core.vqp_info(owner, id));
        matches!(info, Some(Ok(info)) if info.state == VqpState::Error)
    }

    /// Whether a VQP is there and has not failed, as its node says.
    fn is_whole(&mut self, vqp: VqpIx) -> bool {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let info = self.core(node).map(|core| core.vqp_info(owner, id));
        let whole = matches!(info, Some(Ok(info)) if info.state == VqpState::Connected);
        whole && !self.model.vqps[vqp].ever_failed() && self.model.vqps[vqp].phase != Phase::Gone
    }

    fn add_accepted(
        &mut self,
        vqp: VqpIx,
        id: elver_core::VqpId,
        sender: Option<VqpIx>,
    ) -> Result<(), Violation> {
        let client = self.model.vqps[vqp].client;
        let (node, owner) = self.at(client);
        let Some(core) = self.core(node) else { return Ok(()) };
        let info = match core.vqp_info(owner, id) {
            Ok(info) => info,
            Err(error) => broken!("VQP {vqp}: source {:#x} is none of its client's: {error}", id.0),
        };
        let from = sender.map(|sender| self.gids[self.model.place(sender).0]);
        if let (Some(from), Some((gid, _))) = (from, info.peer)
            && from != gid
        {
            broken!("VQP {vqp}: the source of a message from {from} is connected to {gid}");
        }
        if sender.is_none() && self.is_members(info.peer) {
            return Ok(());
        }
        let init = elver_core::VqpInit::default();
        let accepted = self.model.add_vqp(client, id, init, self.now)?;
        self.count("VQP accepted");
        self.model.vqps[accepted].phase = Phase::Up;
        self.model.vqps[accepted].accepted_unknown = true;
        let peer = info.peer.map(|(gid, _)| gid);
        self.model.vqps[accepted].accepted_from =
            self.gids.iter().position(|gid| Some(*gid) == peer);
        if let Some(sender) = sender {
            self.settle_accepted(vqp, accepted, sender);
        }
        Ok(())
    }

    fn settle_accepted(&mut self, vqp: VqpIx, accepted: VqpIx, sender: VqpIx) {
        let (place, step) = (self.model.place(sender), self.model.tick());
        let known = &mut self.model.vqps[accepted];
        known.connected_at = step;
        known.origin = Some(sender);
        known.accepted_unknown = false;
        known.epoch = 1;
        known.target = Some(Target { place, to: Addressee::Vqp(sender) });
        self.model.vqps[vqp].accepted.insert(sender, accepted);
        self.note(format_args!("VQP {vqp} accepts VQP {sender} as VQP {accepted}"));
    }
}
