//! What is known of peers, and which ways lead to them.

use elver_control::{ControlAddr, NodeRecord};
use elver_verbs::{AddressVector, Ah, Class, Device, Gid, Policy, Time, VerbsError, Via};

use crate::Core;
use crate::VqpId;
use crate::discovery::Discovery;
use crate::discovery::peer::Peers;
use crate::discovery::peer::Place;
use crate::ids::{LaneIx, MaybeVqp, PeerId};
use crate::pool::lane::LaneState;
use crate::vqp::Vqp;

impl Peers {
    /// The GID of a peer that is known.
    pub(crate) fn gid_of(&self, peer: PeerId) -> Gid {
        let Some(entry) = self.get(peer) else {
            bug!("a peer that is gone is named");
            return Gid::default();
        };
        entry.gid
    }

    /// Where a peer takes control messages, if that is known.
    pub(crate) fn control_addr(&self, peer: PeerId) -> Option<ControlAddr> {
        let entry = self.get(peer)?;
        let (qpn, qkey) = entry.control?;
        Some(ControlAddr { gid: entry.gid, qpn, qkey })
    }

    /// One reason less to remember a peer.
    pub(crate) fn unpin(&mut self, peer: PeerId) {
        if let Some(entry) = self.get_mut(peer) {
            count_off!(entry.pins, 1);
            self.rest(peer);
        }
    }
}

impl<M> Discovery<M> {
    pub(crate) fn is_meta_server(&self, peer: PeerId) -> bool {
        self.lookups.servers.peers().any(|server| server == peer)
    }
}

impl<D: Device> Core<D> {
    /// The peer of a GID, new if need be; none when as many are in use as may be.
    pub(crate) fn peer_of(&mut self, gid: Gid) -> Option<PeerId> {
        let known = self.peers.find(&gid);
        match known.filter(|peer| !self.peers.is_spare(*peer) || self.takes_place(*peer)) {
            Some(peer) => Some(peer),
            None => self.place_for(gid, Place::Own),
        }
    }

    /// The peer of a GID that has sent a message, new if need be; none when as many are told that there is no place
    /// for them as may be.
    pub(crate) fn peer_that_sends(&mut self, gid: Gid) -> Option<PeerId> {
        self.peers.find(&gid).or_else(|| self.place_for(gid, Place::Spare))
    }

    /// Whether a peer that has a spare place may be in use: others give way.
    pub(crate) fn takes_place(&mut self, peer: PeerId) -> bool {
        let Some(entry) = self.peers.get_mut(peer) else {
            bug!("a peer that is gone takes a place");
            return false;
        };
        // It is not the one that does.
        entry.pins += 1;
        while self.peers.is_spare(peer)
            && let Some(freed) = self.peers.make_room(Place::Own)
        {
            self.forget_address(freed);
        }
        self.peers.unpin(peer);
        !self.peers.is_spare(peer)
    }

    fn forget_address(&mut self, ah: Option<Ah>) {
        if let Some(ah) = ah {
            // It fails only if it is no handle, and then there is nothing to free.
            let _ = self.device.destroy_ah(ah);
        }
    }

    fn place_for(&mut self, gid: Gid, place: Place) -> Option<PeerId> {
        while let Some(freed) = self.peers.make_room(place) {
            self.forget_address(freed);
        }
        // One that had a spare place may have given way.
        let peer = match self.peers.find(&gid) {
            Some(_) if place == Place::Own => return None,
            Some(peer) => peer,
            None => self.peers.insert(gid, place)?,
        };
        // Its number was another's before, who may have sent the last message.
        let is_anothers = |(known, last): (Gid, PeerId)| last == peer && known != gid;
        if self.messaging.sender_last.is_some_and(is_anothers) {
            self.messaging.sender_last = None;
        }
        Some(peer)
    }

    /// The address handle of a peer, made if need be.
    pub(crate) fn address_of(&mut self, peer: PeerId) -> Result<Ah, VerbsError> {
        let what = "the peer is not remembered";
        let entry = self.peers.get_mut(peer).ok_or(VerbsError::InvalidArgument { what })?;
        if let Some(ah) = entry.ah {
            return Ok(ah);
        }
        let av = AddressVector { dgid: entry.gid, ..AddressVector::default() };
        let ah = self.device.create_ah(self.pool.pd, av)?;
        entry.ah = Some(ah);
        Ok(ah)
    }

    /// Whether a peer whose record is known cannot be reached over DC, since one of the two devices
    /// has none. Then all VQPs share RC QPs.
    pub(crate) fn lacks_dc(&self, peer: PeerId) -> bool {
        let record = self.peers.get(peer).and_then(|entry| entry.record);
        self.pool.dct.is_none() || record.is_some_and(|record| !record.has_dc())
    }

    /// The lane that the core's own operations to a peer take, and whether it works.
    pub(crate) fn op_lane(&self, peer: PeerId, class: Class) -> Option<LaneIx> {
        let entry = self.peers.get(peer)?;
        let [own, other] = [entry.rc[class as usize], entry.rc[1 - class as usize]];
        let runs = |rc: &LaneIx| self.lanes.lanes[*rc].state != LaneState::Gone;
        let rc = own.or(other).filter(runs);
        if rc.is_none() && self.lacks_dc(peer) {
            return self.links.rc.lanes_to(peer).find(runs);
        }
        let dc = || self.lanes.dc_lane(entry.hash, class).filter(|_| entry.record.is_some());
        rc.or_else(dc)
    }

    /// What connects to a peer without asking anybody.
    pub(crate) fn at_hand(&self, peer: PeerId, class: Class, policy: Policy) -> Option<Via> {
        let entry = self.peers.get(peer)?;
        match policy {
            Policy::Leased => None,
            _ if entry.rc[class as usize].is_some() => Some(Via::Rc),
            Policy::Lite => None,
            Policy::Shared | Policy::RpcMeta => {
                let over_dc = |record: &&NodeRecord| self.pool.dct.is_some() && record.has_dc();
                entry.sure_record().filter(over_dc).map(|_| Via::DcCached)
            }
        }
    }

    /// Whether this node is a meta server, at which a peer can only look up over an RC QP.
    pub(crate) fn is_looked_up_at_by(&self, peer: PeerId) -> bool {
        let own = self.peers.find(&self.gid);
        own.is_some_and(|own| self.discovery.is_meta_server(own)) && self.lacks_dc(peer)
    }

    /// Whether a peer is a meta server, at which this node can only look up over an RC QP.
    pub(crate) fn looks_up_over_rc_at(&self, peer: PeerId) -> bool {
        self.discovery.is_meta_server(peer) && self.lacks_dc(peer)
    }

    /// The VQPs that are connected to a peer, the latest first.
    pub(crate) fn vqps_to(&self, peer: PeerId) -> impl Iterator<Item = (VqpId, &Vqp)> {
        let mut next = self.peers.get(peer).map_or(MaybeVqp::default(), |entry| entry.last_vqp);
        core::iter::from_fn(move || {
            let vqp = self.vqps.get(next.get()?)?;
            next = vqp.beside[1];
            Some((vqp.id, &**vqp))
        })
    }

    /// Sets what messages a VQP's peer has room for, and which of them it reads.
    pub(crate) fn measure_room(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone is measured");
        };
        let last = vqp.peer.and_then(|peer| self.peers.get(peer)?.last.as_ref());
        vqp.measure_room(last, self.pool.rooms());
    }

    /// A peer did not answer, or no meta server knows it: who connects next asks anew. What this node
    /// knows of itself, and of meta servers, it does not have from them.
    pub(crate) fn forget_record(&mut self, peer: PeerId) {
        if self.discovery.is_meta_server(peer) {
            return;
        }
        if let Some(entry) = self.peers.get_mut(peer)
            && entry.gid != self.gid
        {
            // It does not answer as this one: perhaps the other news was the late one.
            if entry.record.is_some() {
                entry.before = None;
            }
            entry.set_record(None);
        }
    }

    /// A peer was looked up. If something else was told of it lately than what is believed now, who waited goes on with
    /// that, and who connects next asks anew: the table may be late.
    pub(crate) fn weigh(&mut self, peer: PeerId, now: Time) {
        let is_server = self.discovery.is_meta_server(peer);
        if let Some(entry) = self.peers.get_mut(peer)
            && let Some(believed) = entry.record
        {
            let disputed = self.discovery.lookups.news.disputes(entry.gid, believed, now);
            entry.doubted = !is_server && entry.gid != self.gid && disputed;
        }
    }

    /// A peer has not answered a request: it may take them elsewhere by now.
    pub(crate) fn doubt(&mut self, peer: PeerId) {
        self.forget_record(peer);
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.doubted = entry.gid != self.gid;
        }
    }
}
