//! What nodes tell their clients besides completions.

use elver_core::{ClientId, ConnectError, Event, VqpId, VqpState};
use elver_verbs::Time;

use crate::canary::Canary;
use crate::model::{Addressee, ClientIx, Hold, OpIx, Pending, Phase, Violation, VqpIx, broken};
use crate::world::World;

/// More than a look-up takes while nothing is lost, in nanoseconds.
const LOOKUP_NS: u64 = 1_000_000;

impl World {
    fn client_of(&self, node: usize, id: ClientId) -> Option<ClientIx> {
        let ours = |client: &&ClientIx| self.model.clients[**client].id == id;
        self.nodes[node].clients.iter().find(ours).copied()
    }

    /// A node tells something.
    pub(crate) fn event(&mut self, node: usize, event: Event) -> Result<(), Violation> {
        self.note(format_args!("node {node}: {event:?}"));
        let (Event::Connected { client, .. }
        | Event::Warmed { client, .. }
        | Event::Deregistered { client, .. }
        | Event::Failed { client, .. }) = &event;
        let Some(owner) = self.client_of(node, *client) else {
            // What a client that has died had pending may end in any way.
            return Ok(());
        };
        match event {
            Event::Connected { token, vqp, result, .. } => {
                if self.planter.strikes(Canary::LostConnect) {
                    return Ok(());
                }
                let pending = self.model.pending.remove(&token);
                let Some(Pending::Connect { client, vqp: ours, epoch, since, node: to, .. }) =
                    pending
                else {
                    broken!("node {node}: the end of connect {token} comes, which is not pending");
                };
                let known = &self.model.vqps[ours];
                if client != owner || known.id != vqp {
                    broken!("node {node}: the end of connect {token} is told of VQP {:#x}", vqp.0);
                }
                if known.phase == Phase::Gone {
                    return match result {
                        Err(ConnectError::Cancelled) => Ok(()),
                        other => broken!("VQP {ours} is gone, but its connect gave {other:?}"),
                    };
                }
                if known.epoch != epoch {
                    broken!("VQP {ours}: an old connect has ended: {result:?}");
                }
                match result {
                    Ok(_) if to.is_none() => {
                        broken!("VQP {ours} is connected to a GID of no node")
                    }
                    Ok(via) => {
                        let via = self.check_via(ours, via, false)?;
                        self.count(match via {
                            elver_core::Via::Rc => "connected by RC",
                            elver_core::Via::DcCached => "connected by DC, cached",
                            elver_core::Via::DcLookup => "connected by DC, looked up",
                            elver_core::Via::Leased => "connected by a leased QP",
                        });
                        // It may have started anew while that was on its way, before or after it was asked.
                        let is_past = |target| self.is_past(target);
                        let unsure = self.model.vqps[ours].target.is_some_and(is_past);
                        self.model.vqps[ours].outdated |= unsure;
                        self.model.vqps[ours].phase = Phase::Up;
                    }
                    Err(error) => {
                        if !self.explains_connect(ours, to, since, &error) {
                            broken!("VQP {ours}: connect failed without a cause: {error}");
                        }
                        self.count("connect failed");
                        let none_left = matches!(error, ConnectError::NoRcQp { .. });
                        self.model.vqps[ours].no_rc_qp = none_left;
                        self.model.vqps[ours].fail(error.to_string());
                    }
                }
                Ok(())
            }
            Event::Warmed { token, ready, failed, .. } => match self.model.pending.remove(&token) {
                Some(Pending::Warm { client, peers }) if client == owner => {
                    if ready + failed != peers {
                        broken!("node {node}: {peers} peers gave {ready} ready, {failed} failed");
                    }
                    Ok(())
                }
                other => broken!("node {node}: the end of warm-up {token}, which is {other:?}"),
            },
            Event::Deregistered { token, .. } => {
                let step = self.model.tick();
                match self.model.pending.remove(&token) {
                    Some(Pending::DropArena { client, arena }) if client == owner => {
                        self.model.arenas[arena].watch();
                    }
                    Some(Pending::DropRegion { client, region }) if client == owner => {
                        self.model.regions[region].watch(step);
                        self.model.clients[client].regions.retain(|other| *other != region);
                    }
                    other => broken!("node {node}: deregistration {token}, which is {other:?}"),
                }
                Ok(())
            }
            Event::Failed { vqp, cause, .. } => self.vqp_failed(node, owner, vqp, &cause),
        }
    }

    fn vqp_failed(
        &mut self,
        node: usize,
        owner: ClientIx,
        id: VqpId,
        cause: &ConnectError,
    ) -> Result<(), Violation> {
        let place = self.nodes[node].place(node);
        let Some(vqp) = self.model.find(place, id) else {
            // One that was accepted, but whose first message its client has not taken yet.
            return Ok(());
        };
        if self.model.vqps[vqp].client != owner {
            broken!("node {node}: the failure of VQP {vqp} is told to client {owner}");
        }
        if !self.explains_failure(vqp, cause) {
            broken!("VQP {vqp} failed without a cause: {cause}");
        }
        self.count("VQP failed");
        self.model.vqps[vqp].fail(cause.to_string());
        Ok(())
    }

    /// Whether anything between a node and any other was lost or late.
    pub(crate) fn disturbed(&self, node: usize) -> bool {
        (0..self.nodes.len()).any(|other| self.net.disturbed(node, other))
    }

    /// Whether the nodes knew each other before a moment, and nothing has changed since. Who asks joins
    /// a look-up that is under way, so it is that one which must have begun later.
    pub(crate) fn settled_since(&self, since: Time) -> bool {
        !self.has_tasks() && self.registry.changed_at.saturating_add_ns(LOOKUP_NS) < since
    }

    fn explains_connect(
        &self,
        vqp: VqpIx,
        to: Option<usize>,
        since: Time,
        error: &ConnectError,
    ) -> bool {
        let (node, _) = self.model.place(vqp);
        let unsure = self.disturbed(node) || !self.settled_since(since);
        match error {
            ConnectError::NoSuchNode { .. } => to.is_none() || unsure,
            ConnectError::NoMetaServer { .. } => unsure,
            ConnectError::Unreachable { .. } => {
                to.is_none_or(|to| self.net.disturbed(node, to)) || unsure
            }
            ConnectError::Busy { waiting, limit } => waiting >= limit,
            // Another node may have taken the last one.
            ConnectError::NoRcQp { .. } => true,
            ConnectError::PeerGone { .. } | ConnectError::NoSuchPort { .. } => {
                to.is_none_or(|to| self.net.disturbed(node, to))
            }
            ConnectError::Overrun { .. }
            | ConnectError::Crowded { .. }
            | ConnectError::ReceiveUnfit { .. }
            | ConnectError::Silent { .. }
            | ConnectError::Cancelled => false,
        }
    }

    fn explains_failure(&self, vqp: VqpIx, cause: &ConnectError) -> bool {
        let Some(target) = self.model.vqps[vqp].target else {
            return self.model.vqps[vqp].accepted_unknown;
        };
        let (node, _) = self.model.place(vqp);
        match cause {
            ConnectError::Unreachable { .. } | ConnectError::NoSuchNode { .. } => {
                target.place.0 >= self.nodes.len() || self.net.disturbed(node, target.place.0)
            }
            ConnectError::Silent { .. } => self.may_be_silent(vqp, target),
            ConnectError::NoSuchPort { .. } => self.may_refuse(vqp),
            // The news of its node may come after a long message of its, which nobody can read then.
            ConnectError::PeerGone { .. } => {
                let is_news = !self.settled_since(self.model.vqps[vqp].since);
                is_news || self.may_refuse(vqp) || self.may_be_past(vqp, target)
            }
            ConnectError::Overrun { .. } | ConnectError::Crowded { .. } => self.may_overrun(vqp),
            ConnectError::ReceiveUnfit { .. } => self.may_be_unfit(vqp),
            _ => false,
        }
    }

    /// Whether a VQP's messages may find nobody, or one who lost some of them.
    pub(crate) fn may_refuse(&self, vqp: VqpIx) -> bool {
        let Some(target) = self.model.vqps[vqp].target else { return true };
        let (node, _) = target.place;
        if self.nodes.get(node).is_none_or(|there| target.place.1 != there.boot) {
            return true;
        }
        let Some(to) = self.addressee(vqp) else { return true };
        let receiver = &self.model.vqps[to];
        let sender = &self.model.vqps[vqp];
        let moved = match target.to {
            Addressee::Port(_) => receiver.bound_at > sender.connected_at,
            Addressee::Vqp(_) => receiver.connected_at > sender.connected_at || sender.stale,
        };
        let core = self.nodes[node].engine.core();
        let owner = self.model.clients[receiver.client].id;
        let info = core.and_then(|core| core.vqp_info(owner, receiver.id).ok());
        let down = info.is_none_or(|info| info.state == VqpState::Error);
        moved || down || receiver.ever_failed() || self.may_be_unfit(vqp)
    }

    /// Whether the receiver of a VQP's messages has receives that do not take all of them.
    pub(crate) fn may_be_unfit(&self, vqp: VqpIx) -> bool {
        let Some(to) = self.addressee(vqp) else { return true };
        let (node, _) = self.model.place(to);
        if self.disturbed(node) || self.was_held_up() {
            return true;
        }
        let receiver = &self.model.vqps[to];
        let mut arenas = self.model.clients[receiver.client].arenas.iter();
        receiver.has_unfit || arenas.any(|arena| self.model.arenas[*arena].hold != Hold::Open)
    }

    /// Whether the receiver of a VQP's messages may hold as many as it can, or did when one of them
    /// came: that it was refused may be told much later.
    pub(crate) fn may_overrun(&self, vqp: VqpIx) -> bool {
        self.addressee(vqp).is_none() || self.model.vqps[vqp].crowded || self.is_crowded()
    }

    /// Whether one receiver may hold all that it can.
    fn is_crowded(&self) -> bool {
        if self.forge.as_ref().is_some_and(|forge| forge.has_sent_messages()) {
            return true;
        }
        // Also what senders have sent that are gone, or are connected elsewhere, may wait there.
        let (mut count, mut bytes) = (0, 0);
        for op in self.model.ops.iter().filter(|op| op.is_message() && !op.delivered) {
            count += 1;
            bytes += u64::from(op.len);
        }
        let config = &self.plan.config;
        count >= config.backlog || bytes >= config.backlog_bytes
    }

    /// A VQP sends a message: all whose messages are under way may find no room.
    pub(crate) fn message_sent(&mut self, vqp: VqpIx, op: OpIx) {
        let known = &mut self.model.vqps[vqp];
        known.crowded &= !known.stream.is_empty();
        known.stream.push_back(op);
        if self.is_crowded() {
            self.model.crowd();
        }
    }
}
