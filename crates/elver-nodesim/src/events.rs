//! What nodes tell their clients besides completions.

use elver_core::{ClientId, ConnectError, Event, VqpId};
use elver_verbs::Time;

use crate::canary::Canary;
use crate::model::{ClientIx, Pending, Phase, Violation, VqpIx, broken};
use crate::world::World;

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
        | Event::Failed { client, .. }
        | Event::GaveWay { client, .. }) = &event;
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
            // Its client has not used it, so that nothing of it is waited for.
            Event::GaveWay { .. } => Ok(()),
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
        let no_room = matches!(cause, ConnectError::Overrun { .. } | ConnectError::Crowded { .. });
        self.model.vqps[vqp].crowded_out |= no_room;
        self.model.vqps[vqp].fail(cause.to_string());
        Ok(())
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
                let unheard = |to| self.net.disturbed(node, to) || self.cannot_look_up(to);
                to.is_none_or(unheard) || unsure
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
}
