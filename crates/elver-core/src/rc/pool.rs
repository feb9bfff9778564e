//! All RC QPs of a node: which there are, what each is found by, and which of them may go.

mod audit;

use alloc::collections::BTreeSet;
use core::ops::RangeInclusive;

use elver_control::{Shortage, Ticket};
use elver_verbs::{Class, Qp, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::TransferConfig;
use crate::ids::{LaneIx, LinkId, PeerId};
use crate::rc::link::{LinkState, Purpose, RcLink};
use crate::slots::{SLOTS_MAX, Slots};

/// Most RC QPs to meta servers where there is no DC, which come on top of the pool's.
pub(crate) const META_LINKS_MAX: u32 = 8;

/// Most ends of RC QPs over which nodes without DC look up at this one, half of what the soft device
/// makes: a meta server has one for each of them, and memory for those that are there.
pub(crate) const READERS_MAX: u32 = 8_192;

/// What a leased RC QP counts as at the peer, in WRs, and at least at who asked for it.
const LEASE_WRS_MIN: u32 = 32;

/// Most shared RC QPs to one peer: for each class and each side that may ask for it, one that works
/// and one that goes. Of the ends of leased ones, a peer may have three quarters.
const PEER_LINKS_MAX: u32 = 8;

/// All RC QPs of a node.
///
/// Each is found by what it is asked for: nothing that is done for one link, but for choosing a
/// victim of the pool, grows with the number of links.
#[derive(Debug)]
pub(crate) struct RcPool {
    links: Slots<LinkId, RcLink>,
    by_qpn: HashMap<u32, LinkId, FxBuildHasher>,
    by_qp: HashMap<Qp, LinkId, FxBuildHasher>,
    by_lane: HashMap<LaneIx, LinkId, FxBuildHasher>,
    /// Links by peer, what they are for, and id.
    by_peer: BTreeSet<PeerKey>,
    /// Links of the pool and to meta servers.
    shared: BTreeSet<LinkId>,
    /// Links of the pool.
    pooled: u32,
    /// Links to meta servers.
    meta: u32,
    /// Ends over which others look up here.
    readers: u32,
    /// Leased ones.
    leases: u32,
    /// WRs that these may have outstanding.
    leased_wrs: u32,
    /// Leased ones on the way out.
    leases_ending: u32,
    /// Ends of leased ones of others, and by peer.
    ends: u32,
    ends_of: HashMap<PeerId, u32, FxBuildHasher>,
    config: TransferConfig,
}

/// The peer, [`kind`], and the link's id.
type PeerKey = (PeerId, u8, LinkId);

/// What ranks a link among those of its peer: shared ones by their class, then leased ones, then those over which
/// it looks up here.
fn kind(purpose: Purpose, class: Class) -> u8 {
    match purpose {
        Purpose::Pool | Purpose::Meta => class as u8,
        Purpose::Leased(_) => LEASED,
        Purpose::Reader => READER,
    }
}

/// The [`kind`] of leased links.
const LEASED: u8 = 2;
/// The [`kind`] of ends over which the peer looks up here.
const READER: u8 = 3;

impl RcPool {
    pub(crate) fn new(config: TransferConfig) -> RcPool {
        RcPool {
            links: Slots::new(SLOTS_MAX),
            by_qpn: HashMap::default(),
            by_qp: HashMap::default(),
            by_lane: HashMap::default(),
            by_peer: BTreeSet::new(),
            shared: BTreeSet::new(),
            pooled: 0,
            meta: 0,
            readers: 0,
            leases: 0,
            leased_wrs: 0,
            leases_ending: 0,
            ends: 0,
            ends_of: HashMap::default(),
            config,
        }
    }

    /// Whether one more of this purpose and depth has room: also in the node's completion queue,
    /// which was made for so many.
    pub(crate) fn has_room(&self, purpose: Purpose, depth: u32) -> bool {
        self.shortage(purpose, depth).is_none()
    }

    /// Of what there is too little for one more of this purpose and depth: how much is in use, and
    /// how much may be.
    pub(crate) fn shortage(&self, purpose: Purpose, depth: u32) -> Option<(Shortage, u32, u32)> {
        let TransferConfig { rc_qps_max, leased_wrs_max, .. } = self.config;
        let ends_max = (leased_wrs_max / LEASE_WRS_MIN).max(1);
        let (of, used, limit, room) = match purpose {
            Purpose::Pool => (Shortage::Pool, self.pooled, rc_qps_max, self.pooled < rc_qps_max),
            Purpose::Meta => {
                (Shortage::Pool, self.meta, META_LINKS_MAX, self.meta < META_LINKS_MAX)
            }
            Purpose::Reader => {
                (Shortage::Device, self.readers, READERS_MAX, self.readers < READERS_MAX)
            }
            Purpose::Leased(Some(_)) => {
                let fits = self.leased_wrs.saturating_add(depth) <= leased_wrs_max;
                (Shortage::Leased, self.leased_wrs, leased_wrs_max, fits && self.leases < ends_max)
            }
            // Nothing is sent on it.
            Purpose::Leased(None) => {
                let used = self.ends.saturating_mul(LEASE_WRS_MIN);
                (Shortage::Leased, used, leased_wrs_max, self.ends < ends_max)
            }
        };
        let full = !room || self.links.is_full();
        full.then_some((of, used, limit))
    }

    /// What a peer has had made here of this purpose, and how much it may, if that is as much.
    pub(crate) fn share_used(&self, peer: PeerId, purpose: Purpose) -> Option<(u32, u32)> {
        let (used, limit) = match purpose {
            Purpose::Leased(_) => {
                let ends_max = (self.config.leased_wrs_max / LEASE_WRS_MIN).max(1);
                (self.ends_of.get(&peer).copied().unwrap_or(0), ends_max - ends_max / 4)
            }
            Purpose::Pool | Purpose::Meta => {
                let shared = self.of_peer(peer, 0, LEASED - 1);
                (shared.take(PEER_LINKS_MAX as usize).count() as u32, PEER_LINKS_MAX)
            }
            Purpose::Reader => {
                let ends = self.of_peer(peer, READER, READER);
                (ends.take(PEER_LINKS_MAX as usize).count() as u32, PEER_LINKS_MAX)
            }
        };
        (used >= limit).then_some((used, limit))
    }

    /// Links of the pool.
    pub(crate) fn pooled(&self) -> u32 {
        self.pooled
    }

    /// Takes a link in, if there is room.
    pub(crate) fn insert(&mut self, link: RcLink) -> Option<LinkId> {
        let (purpose, depth) = (link.purpose, link.depth);
        if !self.has_room(purpose, depth) {
            return None;
        }
        let (qp, qpn) = (link.qp, link.qpn);
        let (peer, kind) = (link.peer, kind(purpose, link.class));
        let id = self.links.insert_in_turn(link)?;
        self.by_qp.insert(qp, id);
        self.by_qpn.insert(qpn, id);
        self.by_peer.insert((peer, kind, id));
        if kind < LEASED {
            self.shared.insert(id);
        }
        match purpose {
            Purpose::Pool => self.pooled += 1,
            Purpose::Meta => self.meta += 1,
            Purpose::Reader => self.readers += 1,
            Purpose::Leased(Some(_)) => {
                self.leases += 1;
                self.leased_wrs += depth;
            }
            Purpose::Leased(None) => {
                self.ends += 1;
                *self.ends_of.entry(peer).or_default() += 1;
            }
        }
        Some(id)
    }

    pub(crate) fn get(&self, id: LinkId) -> Option<&RcLink> {
        self.links.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut RcLink> {
        self.links.get_mut(id)
    }

    /// A link has its lane.
    pub(crate) fn set_lane(&mut self, id: LinkId, lane: LaneIx) {
        if let Some(link) = self.links.get_mut(id) {
            link.lane = Some(lane);
            self.by_lane.insert(lane, id);
        }
    }

    /// A link is on the way out: a leased one makes room for others soon.
    pub(crate) fn set_leaving(&mut self, id: LinkId, ticket: Option<Ticket>) {
        let Some(link) = self.links.get_mut(id) else { return bug!("a link that is gone leaves") };
        if let (Purpose::Leased(Some(_)), false) = (link.purpose, link.is_ending()) {
            self.leases_ending += 1;
        }
        link.state = LinkState::Leaving(ticket);
    }

    /// Nothing of ours is on a link any longer, and the peer is asked to leave it: the WRs that it
    /// may have had outstanding are free for others.
    pub(crate) fn set_closing(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else { return bug!("a link that is gone closes") };
        if let Purpose::Leased(Some(_)) = link.purpose {
            self.leases_ending += u32::from(!link.is_ending());
            count_off!(self.leased_wrs, core::mem::take(&mut link.depth));
        }
        link.state = LinkState::Closing;
    }

    pub(crate) fn remove(&mut self, id: LinkId) -> Option<RcLink> {
        let link = self.links.remove(id)?;
        self.by_qp.remove(&link.qp);
        self.by_qpn.remove(&link.qpn);
        self.by_peer.remove(&(link.peer, kind(link.purpose, link.class), id));
        self.shared.remove(&id);
        if let Some(lane) = link.lane {
            self.by_lane.remove(&lane);
        }
        match link.purpose {
            Purpose::Pool => count_off!(self.pooled, 1),
            Purpose::Meta => count_off!(self.meta, 1),
            Purpose::Reader => count_off!(self.readers, 1),
            Purpose::Leased(Some(_)) => {
                count_off!(self.leases, 1);
                count_off!(self.leased_wrs, link.depth);
                count_off!(self.leases_ending, u32::from(link.is_ending()));
            }
            Purpose::Leased(None) => {
                count_off!(self.ends, 1);
                if let Some(of) = self.ends_of.get_mut(&link.peer) {
                    count_off!(*of, 1);
                    if *of == 0 {
                        self.ends_of.remove(&link.peer);
                    }
                }
            }
        }
        Some(link)
    }

    /// The link to a peer for a class, in whatever state: a node has one of each at most, but for
    /// its own second end and for those that leave.
    pub(crate) fn find(&self, peer: PeerId, class: Class) -> Option<(LinkId, &RcLink)> {
        let found = self.of_peer(peer, class as u8, class as u8);
        let lasting = found.filter(|(_, link)| !link.is_ending());
        lasting.max_by_key(|(id, link)| (link.state == LinkState::Ready, *id))
    }

    /// The lanes to a peer, also those that are not shared.
    pub(crate) fn lanes_to(&self, peer: PeerId) -> impl Iterator<Item = LaneIx> {
        let ready = |link: &RcLink| link.state == LinkState::Ready;
        let links = self.of_peer(peer, 0, LEASED).filter(move |(_, link)| ready(link));
        links.filter_map(|(_, link)| link.lane)
    }

    /// All links to a peer.
    pub(crate) fn to_peer(&self, peer: PeerId) -> impl Iterator<Item = (LinkId, &RcLink)> {
        self.of_peer(peer, 0, READER)
    }

    fn of_peer(
        &self,
        peer: PeerId,
        first: u8,
        last: u8,
    ) -> impl Iterator<Item = (LinkId, &RcLink)> {
        let keys = self.by_peer.range(range(peer, first, last));
        keys.filter_map(|(_, _, id)| Some((*id, self.links.get(*id)?)))
    }

    /// Links of the pool and to meta servers.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (LinkId, &RcLink)> {
        self.shared.iter().filter_map(|id| Some((*id, self.links.get(*id)?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &RcLink)> {
        self.links.iter()
    }

    /// Links in whatever state.
    pub(crate) fn len(&self) -> u32 {
        self.links.len()
    }

    /// The link of this number.
    pub(crate) fn by_qpn(&self, qpn: u32) -> Option<LinkId> {
        self.by_qpn.get(&qpn).copied()
    }

    /// The link of this QP.
    pub(crate) fn by_qp(&self, qp: Qp) -> Option<(LinkId, &RcLink)> {
        let id = *self.by_qp.get(&qp)?;
        Some((id, self.links.get(id)?))
    }

    /// The link of this lane.
    pub(crate) fn by_lane(&self, lane: LaneIx) -> Option<LinkId> {
        self.by_lane.get(&lane).copied()
    }

    /// The links of which `which` says so.
    pub(crate) fn matching(&self, which: impl Fn(&RcLink) -> bool) -> impl Iterator<Item = LinkId> {
        self.links.iter().filter(move |(_, link)| which(link)).map(|(id, _)| id)
    }

    /// The least recently used link that may be reclaimed (section 4.3), when room is needed. `used`
    /// tells when a link was used, if it may be reclaimed at all. A link that is being made is not:
    /// the peer may learn any moment that it can use it.
    pub(crate) fn victim(
        &self,
        now: Time,
        used: impl Fn(&RcLink) -> Option<Time>,
    ) -> Option<LinkId> {
        let candidates = self.shared().filter_map(|(id, link)| {
            let ready = link.state == LinkState::Ready;
            let used = used(link).filter(|_| link.purpose == Purpose::Pool && ready)?;
            (now.ns_since(used) >= self.config.idle_ns).then_some((used, id))
        });
        candidates.min().map(|(_, id)| id)
    }

    /// Links of the pool on the way out, so that room comes without another being reclaimed.
    pub(crate) fn ending(&self) -> usize {
        let ends = |link: &RcLink| link.purpose == Purpose::Pool && link.is_ending();
        self.shared().filter(|(_, link)| ends(link)).count()
    }

    /// Whether a shared link to a peer is on its way out.
    pub(crate) fn is_one_ending(&self, peer: PeerId) -> bool {
        self.of_peer(peer, 0, LEASED - 1).any(|(_, link)| link.is_ending())
    }

    /// Leased links on the way out, so that room for others comes.
    pub(crate) fn leases_ending(&self) -> u32 {
        self.leases_ending
    }

    /// Bytes of the pool itself.
    pub(crate) fn bytes(&self) -> u64 {
        let entry = size_of::<(u32, u32)>() + 1;
        let maps = self.by_qpn.capacity() + self.by_qp.capacity() + self.by_lane.capacity();
        let sets = self.by_peer.len() * size_of::<PeerKey>() + self.shared.len() * 4;
        self.links.bytes() + (maps * entry + sets) as u64
    }
}

/// The keys of a peer's links of these kinds.
fn range(peer: PeerId, first: u8, last: u8) -> RangeInclusive<PeerKey> {
    let (least, most) = LinkId::ENDS;
    (peer, first, least)..=(peer, last, most)
}

#[cfg(test)]
mod tests;
