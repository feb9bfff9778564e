//! `qconnect` (Algorithm 1): an RC QP if there is one, else DC with metadata from the DCCache or
//! from a meta server.

use elver_control::Class;
use elver_verbs::{Device, Gid, Time, VerbsError};

use crate::discovery::lookups::WARMS_MAX;
use crate::discovery::peer::Waiter;
use crate::keep_alive::Watched;
use crate::pool::lane::{LaneKind, LaneState};
use crate::vqp::send_ring::NONE;
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
        let policy = match options.policy {
            // As if there was no RC QP yet: one is made, and is not left behind.
            Policy::Lite if options.uncached => Policy::Leased,
            policy => policy,
        };
        let entry = self.own_vqp(client, vqp)?;
        (entry.token, entry.peer_port, entry.policy) = (token, port, policy);
        let class = entry.class;
        if !options.uncached
            && let Some(via) = self.at_hand(peer, class, policy)
        {
            self.attach(vqp.0, peer, via, None)?;
            self.count_connect(via);
            return Ok(Some(via));
        }
        if self.lookups.waiting >= self.config.storm.connects_waiting_max {
            self.stats.connects_busy += 1;
            let limit = self.config.storm.connects_waiting_max;
            let result = Err(ConnectError::Busy { waiting: self.lookups.waiting, limit });
            self.events.push_back(Event::Connected { client, token, vqp, result });
            return Ok(None);
        }
        let attempt = self.lookups.attempt_begins();
        let entry = self.own_vqp(client, vqp)?;
        (entry.state, entry.attempt) = (VqpState::Connecting, attempt);
        let waiter = Waiter::Vqp { vqp: vqp.0, attempt };
        let doubted = self.peers.get(peer).is_some_and(|entry| entry.doubted);
        let address = !doubted && self.control_addr(peer).is_some();
        match policy {
            Policy::Lite | Policy::Leased if address => {
                self.connect_by_link(vqp.0, attempt, peer, now);
            }
            _ if address && self.lacks_dc(peer) && !options.uncached => {
                self.connect_by_link(vqp.0, attempt, peer, now);
            }
            Policy::RpcMeta if address => self.ask_meta(peer, waiter, now),
            _ => self.want_node(peer, waiter, now),
        }
        Ok(None)
    }

    /// Whether a peer whose record is known cannot be reached over DC, since one of the two devices
    /// has none. Then all VQPs share RC QPs.
    pub(crate) fn lacks_dc(&self, peer: u32) -> bool {
        let record = self.peers.get(peer).and_then(|entry| entry.record);
        self.pool.dct.is_none() || record.is_some_and(|record| record.dctn == 0)
    }

    /// A connect goes on with an RC QP: the peer's, or one of its own.
    fn connect_by_link(&mut self, id: u32, attempt: u32, peer: u32, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return bug!("a VQP that is gone connects") };
        let (class, policy) = (vqp.class, vqp.policy);
        if policy == Policy::Leased {
            return self.lease_link(id, attempt, peer, now);
        }
        match self.peers.get(peer).and_then(|entry| entry.rc[class as usize]) {
            Some(_) => self.link_found(id, attempt, peer, Ok(()), now),
            None => self.await_link(id, attempt, peer, now),
        }
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
        let full =
            CoreError::Limit { what: "warm calls", limit: WARMS_MAX as u64, setting: "warm" };
        let warm = self.begin_warm(client, token, gids.len() as u32).ok_or(full)?;
        for gid in gids {
            match self.peer_of(*gid) {
                None => self.warmed(warm, false),
                Some(peer) if self.peers.get(peer).is_some_and(|entry| entry.record.is_some()) => {
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
        let busy = entry.inflight > 0
            || entry.reads > 0
            || (matches!(entry.state, VqpState::Connected | VqpState::Error) && entry.sq.len() > 0);
        if busy {
            let state = "busy: WRs are outstanding";
            return Err(CoreError::State { state, call: "qconnect" });
        }
        // A new one has nothing to forget, and is not touched where it is not needed.
        if !entry.is_fresh() || entry.state != VqpState::Idle {
            let used = entry.via.is_some();
            self.cancel_connect(vqp.0);
            self.detach(vqp.0);
            let entry = self.own_vqp(client, vqp)?;
            entry.credit.reset();
            if entry.sq.len() == 0 {
                // Else it is of a WR that was posted while it connected, and waits.
                entry.fault = None;
            }
            (entry.failed, entry.read_until) = (false, None);
            if used {
                // Not when it is connected: nothing should stand between an answer and that.
                let nonce = self.rng.next_u32();
                self.own_vqp(client, vqp)?.nonce = nonce;
            }
        }
        let entry = self.own_vqp(client, vqp)?;
        entry.state = VqpState::Idle;
        Ok(())
    }

    /// What connects to a peer without asking anybody.
    pub(crate) fn at_hand(&self, peer: u32, class: Class, policy: Policy) -> Option<Via> {
        let entry = self.peers.get(peer)?;
        match policy {
            Policy::Leased => None,
            _ if entry.rc[class as usize].is_some() => Some(Via::Rc),
            Policy::Lite => None,
            Policy::Shared | Policy::RpcMeta if self.lacks_dc(peer) => None,
            Policy::Shared | Policy::RpcMeta => entry.record.map(|_| Via::DcCached),
        }
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
        let by_link = matches!(vqp.policy, Policy::Lite | Policy::Leased);
        if found.is_ok() && (by_link || self.lacks_dc(peer)) {
            return self.connect_by_link(id, attempt, peer, now);
        }
        self.connect_ended(id, peer, found.map(|()| (Via::DcLookup, None)), now);
    }

    /// The link that a connect waited for is there, or will not come.
    pub(crate) fn link_found(
        &mut self,
        id: u32,
        attempt: u32,
        peer: u32,
        found: Result<(), ConnectError>,
        now: Time,
    ) {
        let waits =
            |vqp: &crate::vqp::Vqp| vqp.state == VqpState::Connecting && vqp.attempt == attempt;
        if self.vqps.get(id).is_some_and(|vqp| waits(vqp)) {
            self.connect_ended(id, peer, found.map(|()| (Via::Rc, None)), now);
        }
    }

    /// A connect that was pending has ended: with what backs the VQP, and the lane of that if it is
    /// not the peer's.
    pub(crate) fn connect_ended(
        &mut self,
        id: u32,
        peer: u32,
        found: Result<(Via, Option<u32>), ConnectError>,
        now: Time,
    ) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone has connected");
        };
        let (client, token) = (ClientId(vqp.client), vqp.token);
        vqp.state = VqpState::Idle;
        count_off!(self.lookups.waiting, 1);
        let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
        let result = found.and_then(|(via, lane)| {
            let attached = self.attach(id, peer, via, lane);
            attached.map(|()| via).map_err(|_| ConnectError::Unreachable { gid })
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

    /// Ties a VQP to a peer and to the lane that `via` says, or to this `lane`. What it needs for
    /// that is at hand.
    pub(crate) fn attach(
        &mut self,
        id: u32,
        peer: u32,
        via: Via,
        lane: Option<u32>,
    ) -> Result<(), CoreError> {
        let what = "the device has no DC, and there is no RC QP to the peer";
        let none = CoreError::Device(VerbsError::Unsupported { what });
        let ah = self.address_of(peer)?;
        let gone = CoreError::NoSuchVqp(VqpId(id));
        let (Some(entry), Some(vqp)) = (self.peers.get_mut(peer), self.vqps.get_mut(id)) else {
            bug!("a VQP that is gone has connected");
            return Err(gone);
        };
        let shared = match via {
            Via::Rc | Via::Leased => entry.rc[vqp.class as usize],
            Via::DcCached | Via::DcLookup => {
                let lane = self.lanes.dc_lane(entry.hash, vqp.class);
                lane.filter(|_| entry.record.is_some())
            }
        };
        let lane = match lane.or(shared) {
            Some(lane) => lane,
            // It gets one when it needs it.
            None if via == Via::Rc || entry.record.is_none() => NONE,
            None => return Err(none),
        };
        debug_assert_eq!(entry.ah, Some(ah));
        vqp.dest = match self.lanes.lanes.get(lane as usize).map(|lane| lane.kind) {
            Some(LaneKind::Dc { stream }) => entry.dc_dest(stream),
            Some(LaneKind::Rc { .. }) | None => None,
        };
        (vqp.lane, vqp.via) = (lane, Some(via));
        vqp.state = VqpState::Connected;
        if let Some(tag) = entry.tag {
            (vqp.peer_tag, vqp.watched) = (tag, Watched::No);
        }
        self.keep_alive.connected(id);
        self.join_peer(id, peer);
        if let Some(lane) = self.lanes.lanes.get_mut(lane as usize) {
            lane.vqps += 1;
        }
        self.measure_room(id);
        Ok(())
    }

    /// Sets what messages a VQP's peer has room for, and which of them it reads.
    pub(crate) fn measure_room(&mut self, id: u32) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone is measured");
        };
        let last = self.peers.get(vqp.peer).and_then(|entry| entry.last);
        // Where nothing was ever known of the peer, it is taken to be as this node.
        let room = last.map_or(self.pool.room_bytes(), |last| last.terms.room_bytes());
        let eager_max = room.min(self.pool.eager_max);
        (vqp.room, vqp.read_from) = (room, if vqp.confirm_sends { 0 } else { eager_max + 1 });
    }

    /// Moves a connected VQP of which nothing is in flight to a DC lane: the QP that it was on is
    /// gone, or down. Returns whether it is on one.
    pub(crate) fn move_to_dc(&mut self, id: u32) -> bool {
        let Some(vqp) = self.vqps.get_mut(id) else {
            bug!("a VQP that is gone moves");
            return false;
        };
        let (peer, class, old) = (vqp.peer, vqp.class, vqp.lane);
        if vqp.inflight > 0 || self.lacks_dc(peer) || self.address_of(peer).is_err() {
            return false;
        }
        let Some(entry) = self.peers.get(peer) else {
            bug!("a VQP moves to a peer that is gone");
            return false;
        };
        let lane = self.lanes.dc_lane(entry.hash, class);
        let Some(lane) = lane.filter(|_| entry.record.is_some()) else { return false };
        if lane == old {
            return true;
        }
        let LaneKind::Dc { stream } = self.lanes.lanes[lane as usize].kind else {
            bug!("a lane of DC is none");
            return false;
        };
        let dest = entry.dc_dest(stream);
        self.leave_lane(id);
        self.lanes.lanes[lane as usize].vqps += 1;
        let Some(vqp) = self.vqps.get_mut(id) else {
            bug!("a VQP that moves is gone");
            return false;
        };
        (vqp.lane, vqp.dest) = (lane, dest);
        vqp.count_move(Via::DcCached, &mut self.stats);
        true
    }

    /// The lane that the core's own operations to a peer take, and whether it works.
    pub(crate) fn op_lane(&self, peer: u32, class: Class) -> Option<u32> {
        let entry = self.peers.get(peer)?;
        let [own, other] = [entry.rc[class as usize], entry.rc[1 - class as usize]];
        let runs = |rc: &u32| self.lanes.lanes[*rc as usize].state != LaneState::Gone;
        let rc = own.or(other).filter(runs);
        if rc.is_none() && self.lacks_dc(peer) {
            return self.links.rc.lanes_to(peer).find(runs);
        }
        let dc = || self.lanes.dc_lane(entry.hash, class).filter(|_| entry.record.is_some());
        let lane = rc.or_else(dc);
        lane.filter(|lane| *lane != NONE)
    }
}
