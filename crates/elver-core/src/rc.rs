//! The RC QPs of the hybrid pool (KRCORE, sections 4.2 and 4.3): which there are, what they are
//! for, and which of them may go.

use elver_verbs::{Qp, Time};

use crate::control::Ticket;
use crate::rng::Rng;
use crate::slots::Slots;
use crate::{Class, TransferConfig};

/// An RC QP, from its creation to its end.
#[derive(Debug)]
pub(crate) struct RcLink {
    pub(crate) qp: Qp,
    pub(crate) qpn: u32,
    /// PSN that it sends first.
    pub(crate) psn: u32,
    /// QPN of the other end, once it is known.
    pub(crate) peer_qpn: u32,
    /// The peer.
    pub(crate) peer: u32,
    /// Whose traffic it carries.
    pub(crate) class: Class,
    /// What it serves.
    pub(crate) purpose: Purpose,
    pub(crate) state: LinkState,
    /// The lane that it is.
    pub(crate) lane: u32,
    /// Whether this node asked for it. Who did not cannot tell an idle link from one that the peer
    /// only reads and writes through.
    pub(crate) ours: bool,
    /// When it was last used from here.
    pub(crate) used: Time,
}

/// What an RC QP serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All VQPs of its class to the peer.
    Pool,
    /// As `Pool`, and it is never reclaimed: look-ups at a meta server go over it.
    Meta,
    /// One VQP alone; at the peer, nobody.
    Leased(Option<u32>),
}

/// State of an RC QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The peer was asked to make its end.
    Asking,
    /// Made at the peer's request; it sends only when something came over it, since the peer may
    /// have given up meanwhile.
    Listening,
    /// It takes WRs.
    Ready,
    /// Its VQPs leave and its work ends. Then it is closed: at the peer's request if there is a
    /// ticket.
    Leaving(Option<Ticket>),
    /// Nothing of ours is on it, and the peer was asked to leave it too.
    Closing,
}

/// All RC QPs of a node.
#[derive(Debug)]
pub(crate) struct RcPool {
    links: Slots<RcLink>,
    /// Links that are not leased.
    pooled: u32,
    config: TransferConfig,
}

impl RcPool {
    /// A pool that has room for `leases_max` leased QPs beside those of the configuration.
    pub(crate) fn new(config: TransferConfig, leases_max: u32) -> RcPool {
        let links = Slots::new(config.rc_qps_max.saturating_add(leases_max));
        RcPool { links, pooled: 0, config }
    }

    /// Whether one more of this purpose has room.
    pub(crate) fn has_room(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Leased(_) => !self.links.is_full(),
            // Meta servers are few, and nothing works without them.
            Purpose::Meta => !self.links.is_full(),
            Purpose::Pool => self.pooled < self.config.rc_qps_max && !self.links.is_full(),
        }
    }

    /// Takes a link in, if there is room.
    pub(crate) fn insert(&mut self, link: RcLink, rng: &mut Rng) -> Option<u32> {
        if !self.has_room(link.purpose) {
            return None;
        }
        let pooled = !matches!(link.purpose, Purpose::Leased(_));
        let id = self.links.insert(rng, |_| link)?;
        self.pooled += u32::from(pooled);
        Some(id)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&RcLink> {
        self.links.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut RcLink> {
        self.links.get_mut(id)
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<RcLink> {
        let link = self.links.remove(id)?;
        self.pooled -= u32::from(!matches!(link.purpose, Purpose::Leased(_)));
        Some(link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &RcLink)> {
        self.links.iter()
    }

    /// The link to a peer for a class, in whatever state: a node has one of each at most, but for
    /// its own second end and for those that leave.
    pub(crate) fn find(&self, peer: u32, class: Class) -> Option<(u32, &RcLink)> {
        let fits = |link: &RcLink| {
            let lasting = !matches!(link.state, LinkState::Leaving(_) | LinkState::Closing);
            let pooled = !matches!(link.purpose, Purpose::Leased(_));
            link.peer == peer && link.class == class && lasting && pooled
        };
        let found = self.links.iter().filter(|(_, link)| fits(link));
        found.max_by_key(|(id, link)| (link.state == LinkState::Ready, *id))
    }

    /// The link of this number.
    pub(crate) fn by_qpn(&self, qpn: u32) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.qpn == qpn).map(|(id, _)| id)
    }

    /// The least recently used link that may be reclaimed (section 4.3), when room is needed.
    pub(crate) fn victim(&self, now: Time) -> Option<u32> {
        let idle = |link: &RcLink| {
            link.purpose == Purpose::Pool
                && matches!(link.state, LinkState::Ready | LinkState::Listening)
                && now.ns_since(link.used) >= self.config.idle_ns
        };
        let idle = self.links.iter().filter(|(_, link)| idle(link));
        idle.min_by_key(|(id, link)| (link.used, *id)).map(|(id, _)| id)
    }

    /// Links on the way out, so that room comes without another being reclaimed.
    pub(crate) fn ending(&self) -> usize {
        let ends = |link: &RcLink| {
            link.purpose == Purpose::Pool
                && matches!(link.state, LinkState::Leaving(_) | LinkState::Closing)
        };
        self.links.iter().filter(|(_, link)| ends(link)).count()
    }

    /// Bytes of the pool itself.
    pub(crate) fn bytes(&self) -> u64 {
        self.links.bytes()
    }
}

/// How much a peer is talked to: operations within a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heat {
    start: Time,
    ops: u64,
}

impl Heat {
    /// Counts operations; whether the peer became hot by them, which it does once a window.
    #[inline]
    pub(crate) fn note(&mut self, ops: u64, config: &TransferConfig, now: Time) -> bool {
        if now.ns_since(self.start) >= config.window_ns {
            *self = Heat { start: now, ops: 0 };
        }
        let before = self.ops;
        self.ops += ops;
        before < config.hot_ops && self.ops >= config.hot_ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const CONFIG: TransferConfig =
        TransferConfig { rc_qps_max: 4, hot_ops: 100, window_ns: 1_000, idle_ns: 50 };

    fn link(peer: u32, purpose: Purpose, used: u64) -> RcLink {
        RcLink {
            qp: Qp(peer),
            qpn: 1_000 + peer,
            psn: 0,
            peer_qpn: 0,
            peer,
            class: Class::Low,
            purpose,
            state: LinkState::Ready,
            lane: 0,
            ours: true,
            used: Time(used),
        }
    }

    #[test]
    fn leased_and_meta_links_have_room_of_their_own() {
        let mut rng = crate::rng::Rng::new(1);
        let mut pool = RcPool::new(CONFIG, 2);
        for peer in 0..4 {
            pool.insert(link(peer, Purpose::Pool, 0), &mut rng).unwrap();
        }
        assert_eq!(pool.insert(link(9, Purpose::Pool, 0), &mut rng), None);
        let leased = pool.insert(link(9, Purpose::Leased(None), 0), &mut rng).unwrap();
        pool.insert(link(9, Purpose::Meta, 0), &mut rng).unwrap();
        assert_eq!(pool.insert(link(9, Purpose::Leased(None), 0), &mut rng), None);
        pool.remove(leased).unwrap();
        assert_eq!(pool.insert(link(9, Purpose::Pool, 0), &mut rng), None);
    }

    #[test]
    fn a_ready_link_is_found_before_one_that_is_not() {
        let mut rng = crate::rng::Rng::new(1);
        let mut pool = RcPool::new(CONFIG, 0);
        let ready = pool.insert(link(1, Purpose::Pool, 0), &mut rng).unwrap();
        let asking = pool.insert(link(1, Purpose::Pool, 0), &mut rng).unwrap();
        pool.get_mut(asking).unwrap().state = LinkState::Asking;
        assert_eq!(pool.find(1, Class::Low).unwrap().0, ready);
        pool.get_mut(ready).unwrap().state = LinkState::Leaving(None);
        assert_eq!(pool.find(1, Class::Low).unwrap().0, asking);
        assert!(pool.find(1, Class::High).is_none() && pool.find(2, Class::Low).is_none());
        assert_eq!(pool.ending(), 1);
        assert_eq!(pool.by_qpn(1_001).map(|id| id == ready || id == asking), Some(true));
    }

    #[test]
    fn a_peer_is_hot_once_a_window() {
        let mut heat = Heat::default();
        assert!(!heat.note(99, &CONFIG, Time(5)));
        assert!(heat.note(1, &CONFIG, Time(6)));
        assert!(!heat.note(1_000, &CONFIG, Time(7)));
        assert!(!heat.note(99, &CONFIG, Time(2_000)), "a new window");
        assert!(!heat.note(99, &CONFIG, Time(4_000)));
        assert!(heat.note(1_000, &CONFIG, Time(4_001)));
    }

    proptest! {
        /// The victim is the idle link that was used longest ago, as a list in order of use says.
        #[test]
        fn the_least_recently_used_goes_first(
            uses in prop::collection::vec((0..4u32, 1..40u64), 1..60),
        ) {
            let mut rng = crate::rng::Rng::new(1);
            let mut pool = RcPool::new(CONFIG, 0);
            let ids: Vec<u32> = (0..4)
                .map(|peer| pool.insert(link(peer, Purpose::Pool, u64::from(peer)), &mut rng))
                .map(Option::unwrap)
                .collect();
            let mut order: Vec<(u32, u64)> = (0..4).map(|peer| (peer, u64::from(peer))).collect();
            let mut now = 10;
            for (peer, step) in uses {
                now += step;
                pool.get_mut(ids[peer as usize]).unwrap().used = Time(now);
                order.retain(|(other, _)| *other != peer);
                order.push((peer, now));
                let oldest = order[0];
                let expected = (now - oldest.1 >= CONFIG.idle_ns).then(|| ids[oldest.0 as usize]);
                prop_assert_eq!(pool.victim(Time(now)), expected);
            }
        }
    }
}
