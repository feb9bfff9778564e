//! `qconnect` (Algorithm 1): an RC QP if there is one, else DC with metadata from the DCCache or
//! from a meta server.

use elver_verbs::{Device, Gid, Time, VerbsError};

use crate::lane::{LaneKind, LaneState};
use crate::peer::Waiter;
use crate::ring::NONE;
use crate::{
    ClientId, ConnectError, ConnectOptions, Core, CoreError, Event, Policy, Via, VqpId, VqpState,
};

impl<D: Device> Core<D> {
    /// Connects a VQP (Algorithm 1, `vqp_connect`). `Ok(Some)` if that was at hand; otherwise
    /// [`Event::Connected`] with the token follows.
    #[allow(clippy::too_many_arguments)] // The verbs' own call has them, and no group of them recurs.
    pub fn qconnect(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
        token: u64,
        now: Time,
    ) -> Result<Option<Via>, CoreError> {
        self.begin_connect(client, vqp)?;
        let limit = u64::from(self.config.max_peers);
        let all_used = CoreError::Limit { what: "peers in use", limit, setting: "max_peers" };
        let peer = self.peer_of(gid).ok_or(all_used)?;
        let entry = self.own_vqp(client, vqp)?;
        (entry.token, entry.peer_port) = (token, port);
        if options.policy != Policy::Shared {
            let what = "this way to connect";
            return Err(CoreError::Device(VerbsError::Unsupported { what }));
        }
        if !options.uncached
            && let Some(via) = self.at_hand(peer)
        {
            self.attach(vqp.0, peer, via)?;
            self.count_connect(via);
            return Ok(Some(via));
        }
        if self.lookups.waiting >= self.config.storm.connects_waiting_max {
            self.stats.connects_busy += 1;
            let waiting = self.lookups.waiting;
            let result = Err(ConnectError::Busy { waiting });
            self.events.push_back(Event::Connected { client, token, vqp, result });
            return Ok(None);
        }
        let entry = self.own_vqp(client, vqp)?;
        entry.state = VqpState::Connecting;
        let attempt = entry.attempt;
        self.lookups.waiting += 1;
        self.want_node(peer, Waiter::Vqp { vqp: vqp.0, attempt }, now);
        Ok(None)
    }

    /// Gets the metadata of many peers at once, ahead of connecting. [`Event::Warmed`] follows.
    pub fn warm(
        &mut self,
        client: ClientId,
        gids: &[Gid],
        token: u64,
        now: Time,
    ) -> Result<(), CoreError> {
        self.open_client(client)?;
        let max = u64::from(self.config.max_peers);
        let value = gids.len() as u64;
        if value > max {
            return Err(CoreError::OutOfRange { name: "GIDs of a warm call", value, min: 0, max });
        }
        if gids.is_empty() {
            self.events.push_back(Event::Warmed { client, token, ready: 0, failed: 0 });
            return Ok(());
        }
        let warm = self.begin_warm(client, token, gids.len() as u32);
        for gid in gids {
            match self.peer_of(*gid) {
                None => self.warmed(warm, false),
                Some(peer) if self.at_hand(peer).is_some() => {
                    self.peers.rest(peer);
                    self.warmed(warm, true);
                }
                Some(peer) => self.want_node(peer, Waiter::Warm(warm), now),
            }
        }
        Ok(())
    }

    /// Checks that a VQP may be connected now, and takes it off what it was connected to.
    fn begin_connect(&mut self, client: ClientId, vqp: VqpId) -> Result<(), CoreError> {
        self.open_client(client)?;
        let entry = self.own_vqp(client, vqp)?;
        let busy = entry.inflight > 0 || (entry.state == VqpState::Connected && entry.sq.len() > 0);
        if busy {
            let state = "busy: WRs are outstanding";
            return Err(CoreError::State { state, call: "qconnect" });
        }
        self.cancel_connect(vqp.0);
        self.detach(vqp.0);
        let entry = self.own_vqp(client, vqp)?;
        entry.state = VqpState::Idle;
        entry.attempt = entry.attempt.wrapping_add(1);
        entry.fault = None;
        Ok(())
    }

    /// What connects to a peer without asking anybody.
    fn at_hand(&self, peer: u32) -> Option<Via> {
        let entry = self.peers.get(peer)?;
        if entry.rc.is_some() {
            return Some(Via::Rc);
        }
        entry.record.map(|_| Via::DcCached)
    }

    fn count_connect(&mut self, via: Via) {
        match via {
            Via::Rc | Via::Leased => self.stats.connects_rc += 1,
            Via::DcCached => self.stats.connects_cached += 1,
            Via::DcLookup => self.stats.connects_looked_up += 1,
        }
    }

    /// The look-up that a connect waited for has ended.
    pub(crate) fn connect_found(
        &mut self,
        id: u32,
        attempt: u32,
        peer: u32,
        found: Result<(), ConnectError>,
        now: Time,
    ) {
        let Some(vqp) = self.vqps.get_mut(id) else { return };
        if vqp.state != VqpState::Connecting || vqp.attempt != attempt {
            return;
        }
        let (client, token) = (ClientId(vqp.client), vqp.token);
        vqp.state = VqpState::Idle;
        self.lookups.waiting = self.lookups.waiting.saturating_sub(1);
        let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
        let result = found.and_then(|()| {
            let attached = self.attach(id, peer, Via::DcLookup);
            attached.map(|()| Via::DcLookup).map_err(|_| ConnectError::Unreachable { gid })
        });
        match &result {
            Ok(via) => self.count_connect(*via),
            Err(_) => {
                self.stats.connects_failed += 1;
                self.fail(id, now);
            }
        }
        self.events.push_back(Event::Connected { client, token, vqp: VqpId(id), result });
        self.pump(id, now);
    }

    /// Ties a VQP to a peer and to the lane that `via` says. What it needs for that is at hand.
    pub(crate) fn attach(&mut self, id: u32, peer: u32, via: Via) -> Result<(), CoreError> {
        let what = "the device has no DC, and there is no RC QP to the peer";
        let none = CoreError::Device(VerbsError::Unsupported { what });
        let ah = self.address_of(peer)?;
        let gone = CoreError::NoSuchVqp(VqpId(id));
        let (Some(entry), Some(vqp)) = (self.peers.get_mut(peer), self.vqps.get_mut(id)) else {
            return Err(gone);
        };
        let lane = match via {
            Via::Rc | Via::Leased => entry.rc,
            Via::DcCached | Via::DcLookup => self.lanes.dc_lane(entry.hash, vqp.class),
        };
        let lane = lane.ok_or(none)?;
        debug_assert_eq!(entry.ah, Some(ah));
        vqp.dest = match self.lanes.lanes[lane as usize].kind {
            LaneKind::Dc { stream } => entry.dc_dest(stream),
            LaneKind::Rc { .. } => None,
        };
        (vqp.lane, vqp.peer, vqp.via) = (lane, peer, Some(via));
        vqp.state = VqpState::Connected;
        vqp.remote = crate::vqp::Vqp::NO_REMOTE;
        entry.vqps += 1;
        self.lanes.lanes[lane as usize].vqps += 1;
        Ok(())
    }

    /// Moves a connected VQP of which nothing is in flight to a DC lane: the RC QP that it was on is
    /// gone. Returns whether that was possible.
    pub(crate) fn move_to_dc(&mut self, id: u32) -> bool {
        let Some(vqp) = self.vqps.get_mut(id) else { return false };
        let (peer, old, class) = (vqp.peer, vqp.lane, vqp.class);
        if vqp.inflight > 0 || self.address_of(peer).is_err() {
            return false;
        }
        let Some(entry) = self.peers.get(peer) else { return false };
        let lane = self.lanes.dc_lane(entry.hash, class);
        let Some(lane) = lane.filter(|_| entry.record.is_some()) else { return false };
        let LaneKind::Dc { stream } = self.lanes.lanes[lane as usize].kind else { return false };
        let dest = entry.dc_dest(stream);
        if let Some(old) = self.lanes.lanes.get_mut(old as usize) {
            old.vqps = old.vqps.saturating_sub(1);
        }
        self.lanes.lanes[lane as usize].vqps += 1;
        let Some(vqp) = self.vqps.get_mut(id) else { return false };
        (vqp.lane, vqp.dest, vqp.via) = (lane, dest, Some(Via::DcCached));
        vqp.transfers += 1;
        true
    }

    /// The lane that the core's own operations to a peer take, and whether it works.
    pub(crate) fn op_lane(&mut self, peer: u32, class: crate::Class) -> Option<u32> {
        let entry = self.peers.get(peer)?;
        let rc = entry.rc.filter(|rc| self.lanes.lanes[*rc as usize].state != LaneState::Gone);
        let lane =
            rc.or_else(|| self.lanes.dc_lane(entry.hash, class).filter(|_| entry.record.is_some()));
        lane.filter(|lane| *lane != NONE)
    }
}
