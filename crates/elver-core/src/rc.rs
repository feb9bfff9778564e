//! The RC QPs of the hybrid pool (KRCORE, sections 4.2 and 4.3): which there are, what they are
//! for, and which of them may go.

use alloc::format;
use alloc::string::String;

use elver_verbs::{Qp, Time};

use crate::control::Ticket;
use crate::ring::NONE;
use crate::rng::Rng;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{Class, TransferConfig};

/// Most RC QPs to meta servers, which come on top of the pool's.
pub(crate) const META_LINKS_MAX: u32 = 8;

/// What a leased RC QP counts as at the peer, in WRs.
const LEASE_WRS_MIN: u32 = 32;

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
    /// WRs that its send queue holds.
    pub(crate) depth: u32,
    /// When it was made.
    pub(crate) since: Time,
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
    /// Links of the pool.
    pooled: u32,
    /// Links to meta servers.
    meta: u32,
    /// Depth of all leased ones.
    leased_wrs: u32,
    /// Ends of leased ones of others.
    ends: u32,
    config: TransferConfig,
}

impl RcPool {
    pub(crate) fn new(config: TransferConfig) -> RcPool {
        RcPool { links: Slots::new(SLOTS_MAX), pooled: 0, meta: 0, leased_wrs: 0, ends: 0, config }
    }

    /// Whether one more of this purpose and depth has room: also in the node's completion queue,
    /// which was made for so many.
    pub(crate) fn has_room(&self, purpose: Purpose, depth: u32) -> bool {
        !self.links.is_full()
            && match purpose {
                Purpose::Pool => self.pooled < self.config.rc_qps_max,
                Purpose::Meta => self.meta < META_LINKS_MAX,
                Purpose::Leased(Some(_)) => {
                    self.leased_wrs.saturating_add(depth) <= self.config.leased_wrs_max
                }
                // Nothing is sent on it.
                Purpose::Leased(None) => self.ends < self.config.leased_wrs_max / LEASE_WRS_MIN,
            }
    }

    /// Takes a link in, if there is room.
    pub(crate) fn insert(&mut self, link: RcLink, rng: &mut Rng) -> Option<u32> {
        let (purpose, depth) = (link.purpose, link.depth);
        if !self.has_room(purpose, depth) {
            return None;
        }
        let id = self.links.insert(rng, |_| link)?;
        match purpose {
            Purpose::Pool => self.pooled += 1,
            Purpose::Meta => self.meta += 1,
            Purpose::Leased(Some(_)) => self.leased_wrs += depth,
            Purpose::Leased(None) => self.ends += 1,
        }
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
        match link.purpose {
            Purpose::Pool => self.pooled -= 1,
            Purpose::Meta => self.meta -= 1,
            Purpose::Leased(Some(_)) => self.leased_wrs -= link.depth,
            Purpose::Leased(None) => self.ends -= 1,
        }
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

    /// A lane to a peer that is not shared.
    pub(crate) fn any_lane(&self, peer: u32) -> Option<u32> {
        let ready = |link: &RcLink| link.peer == peer && link.state == LinkState::Ready;
        let mut lanes = self.links.iter().filter(|(_, link)| ready(link) && link.lane != NONE);
        lanes.next().map(|(_, link)| link.lane)
    }

    /// Links in whatever state.
    pub(crate) fn len(&self) -> u32 {
        self.links.len()
    }

    /// The link of this number.
    pub(crate) fn by_qpn(&self, qpn: u32) -> Option<u32> {
        self.matching(|link| link.qpn == qpn).next()
    }

    /// The link of this QP.
    pub(crate) fn by_qp(&self, qp: Qp) -> Option<(u32, &RcLink)> {
        self.links.iter().find(|(_, link)| link.qp == qp)
    }

    /// The links of which `which` says so.
    pub(crate) fn matching(&self, which: impl Fn(&RcLink) -> bool) -> impl Iterator<Item = u32> {
        self.links.iter().filter(move |(_, link)| which(link)).map(|(id, _)| id)
    }

    /// The least recently used link that may be reclaimed (section 4.3), when room is needed. `used`
    /// tells when a link was used, if it may be reclaimed at all. A link that is being made is not:
    /// the peer may learn any moment that it can use it.
    pub(crate) fn victim(&self, now: Time, used: impl Fn(&RcLink) -> Option<Time>) -> Option<u32> {
        let candidates = self.links.iter().filter_map(|(id, link)| {
            let ready = link.state == LinkState::Ready;
            let used = used(link).filter(|_| link.purpose == Purpose::Pool && ready)?;
            (now.ns_since(used) >= self.config.idle_ns).then_some((used, id))
        });
        candidates.min().map(|(_, id)| id)
    }

    /// Links on the way out, so that room comes without another being reclaimed.
    pub(crate) fn ending(&self) -> usize {
        let ends = |link: &RcLink| {
            link.purpose == Purpose::Pool
                && matches!(link.state, LinkState::Leaving(_) | LinkState::Closing)
        };
        self.links.iter().filter(|(_, link)| ends(link)).count()
    }

    /// Counts them anew, for [`crate::Core::audit`].
    pub(crate) fn audit(&self) -> Result<(), String> {
        let of = |which: fn(&RcLink) -> u32| self.links.iter().map(|(_, link)| which(link)).sum();
        let found: [u32; 4] = [
            of(|link| u32::from(link.purpose == Purpose::Pool)),
            of(|link| u32::from(link.purpose == Purpose::Meta)),
            of(
                |link| {
                    if matches!(link.purpose, Purpose::Leased(Some(_))) { link.depth } else { 0 }
                },
            ),
            of(|link| u32::from(link.purpose == Purpose::Leased(None))),
        ];
        let counted = [self.pooled, self.meta, self.leased_wrs, self.ends];
        if found != counted {
            return Err(format!("RC QPs by purpose: {found:?}, counted as {counted:?}"));
        }
        let most = [self.config.rc_qps_max, META_LINKS_MAX, self.config.leased_wrs_max];
        if found.iter().zip(most).any(|(found, most)| *found > most) {
            return Err(format!("RC QPs by purpose: {found:?}, at most {most:?}"));
        }
        Ok(())
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
    last: Time,
    ops: u64,
}

impl Heat {
    /// When it was last talked to.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    /// Counts operations; whether the peer became hot by them, which it does once a window.
    #[inline]
    pub(crate) fn note(&mut self, ops: u64, config: &TransferConfig, now: Time) -> bool {
        if now.ns_since(self.start) >= config.window_ns {
            (self.start, self.ops) = (now, 0);
        }
        self.last = now;
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

    const CONFIG: TransferConfig = TransferConfig {
        rc_qps_max: 4,
        leased_wrs_max: 250,
        hot_ops: 100,
        window_ns: 1_000,
        idle_ns: 50,
    };

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
            depth: 100,
            since: Time(used),
        }
    }

    #[test]
    fn each_purpose_has_room_of_its_own() {
        let mut rng = crate::rng::Rng::new(1);
        let mut pool = RcPool::new(CONFIG);
        let mut insert = |pool: &mut RcPool, purpose| pool.insert(link(9, purpose, 0), &mut rng);
        for _ in 0..4 {
            insert(&mut pool, Purpose::Pool).unwrap();
        }
        assert_eq!(insert(&mut pool, Purpose::Pool), None);
        for _ in 0..META_LINKS_MAX {
            insert(&mut pool, Purpose::Meta).unwrap();
        }
        assert_eq!(insert(&mut pool, Purpose::Meta), None);
        insert(&mut pool, Purpose::Leased(Some(1))).unwrap();
        let leased = insert(&mut pool, Purpose::Leased(Some(2))).unwrap();
        assert_eq!(insert(&mut pool, Purpose::Leased(Some(3))), None);
        assert!(insert(&mut pool, Purpose::Leased(None)).is_some());
        pool.remove(leased).unwrap();
        assert!(insert(&mut pool, Purpose::Leased(Some(3))).is_some());
        assert_eq!(insert(&mut pool, Purpose::Pool), None);
    }

    #[test]
    fn a_ready_link_is_found_before_one_that_is_not() {
        let mut rng = crate::rng::Rng::new(1);
        let mut pool = RcPool::new(CONFIG);
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
            let mut pool = RcPool::new(CONFIG);
            let ids: Vec<u32> = (0..4)
                .map(|peer| pool.insert(link(peer, Purpose::Pool, u64::from(peer)), &mut rng))
                .map(Option::unwrap)
                .collect();
            let mut order: Vec<(u32, u64)> = (0..4).map(|peer| (peer, u64::from(peer))).collect();
            let mut now = 10;
            for (peer, step) in uses {
                now += step;
                pool.get_mut(ids[peer as usize]).unwrap().since = Time(now);
                order.retain(|(other, _)| *other != peer);
                order.push((peer, now));
                let oldest = order[0];
                let expected = (now - oldest.1 >= CONFIG.idle_ns).then(|| ids[oldest.0 as usize]);
                prop_assert_eq!(pool.victim(Time(now), |link| Some(link.since)), expected);
            }
        }
    }
}
