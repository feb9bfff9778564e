//! Which meta server a node asks first: the nearest of those that answer.
//!
//! How far one is the round trips of look-ups tell, by the time that is passed in; while there are
//! look-ups, one server a second is asked for this node's own record besides, for which nobody waits.
//! Among servers that are about as near as the nearest, each node keeps to another one.

use alloc::vec::Vec;
use core::hash::Hasher;

use crate::ids::PeerId;

use elver_kv::Descriptor;
use elver_verbs::{Gid, Time};
use siphasher::sip::SipHasher13;

/// How often a server is measured besides, at most, in nanoseconds,
const PROBE_NS: u64 = 1_000_000_000;
/// and one that does not answer: after this long at most, and before after half of that, and so on.
const PROBE_NS_MAX: u64 = 64 * PROBE_NS;
/// What a round trip may differ by chance, in nanoseconds, besides a third of the nearest one's.
const NOISE_NS: u64 = 2_000;

/// The meta servers.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    list: Vec<Server>,
    /// Index of the one that is asked first; none before one is chosen.
    preferred: Option<u32>,
    /// When the next one is measured, and which.
    probe_at: Time,
    probe_next: u32,
}

#[derive(Debug)]
struct Server {
    peer: PeerId,
    nodes: Descriptor,
    /// Where it stands among those that are as near: another place at another node.
    rank: u64,
    /// Smoothed, in nanoseconds; none before the first.
    round_trip_ns: Option<u64>,
    /// It did not answer: how long it is left alone, and until when.
    rest_ns: u64,
    rests_until: Time,
}

impl Servers {
    /// Takes servers over; what is known of those that were there stays. `own` is this node's GID.
    pub(crate) fn replace(
        &mut self,
        own: Gid,
        servers: Vec<(PeerId, Gid, Descriptor)>,
    ) -> Vec<PeerId> {
        let old = core::mem::take(&mut self.list);
        let before = self.preferred.and_then(|at| old.get(at as usize)).map(|server| server.peer);
        let known = |peer| old.iter().find(|server| server.peer == peer);
        for (peer, gid, nodes) in servers {
            let round_trip_ns = known(peer).and_then(|server| server.round_trip_ns);
            let rank = rank(own, gid);
            let (rest_ns, rests_until) = (0, Time::ZERO);
            self.list.push(Server { peer, nodes, rank, round_trip_ns, rest_ns, rests_until });
        }
        let place = |peer| self.list.iter().position(|server| server.peer == peer);
        self.preferred = before.and_then(place).map(|index| index as u32);
        self.probe_at = Time::ZERO;
        self.choose();
        old.into_iter().map(|server| server.peer).collect()
    }

    pub(crate) fn len(&self) -> u32 {
        self.list.len() as u32
    }

    pub(crate) fn get(&self, index: u32) -> Option<(PeerId, Descriptor)> {
        self.list.get(index as usize).map(|server| (server.peer, server.nodes))
    }

    /// Whether a peer is a meta server, and this is the key of the table that it has now.
    pub(crate) fn has_table(&self, peer: PeerId, rkey: u32) -> bool {
        self.list.iter().any(|server| server.peer == peer && server.nodes.rkey() == rkey)
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.list.iter().map(|server| server.peer)
    }

    /// Index of the one that is asked first, if there is any.
    pub(crate) fn preferred(&self) -> Option<u32> {
        self.preferred
    }

    /// A server answered a READ that was posted so long ago.
    pub(crate) fn answered(&mut self, peer: PeerId, round_trip_ns: u64) {
        // It may be one no longer.
        let Some(server) = self.list.iter_mut().find(|server| server.peer == peer) else { return };
        let smoothed = |before: u64| before - before / 8 + round_trip_ns / 8;
        server.round_trip_ns = Some(server.round_trip_ns.map_or(round_trip_ns, smoothed));
        if server.rest_ns > 0 {
            // It is back: nodes spread as they did before.
            (server.rest_ns, server.rests_until) = (0, Time::ZERO);
            self.preferred = None;
        }
        self.choose();
    }

    /// A server did not answer: it counts as far away until it does.
    pub(crate) fn failed(&mut self, peer: PeerId, now: Time) {
        // It may be one no longer.
        let Some(server) = self.list.iter_mut().find(|server| server.peer == peer) else { return };
        if server.rests_until > now {
            return;
        }
        server.rest_ns = (2 * server.rest_ns).clamp(PROBE_NS, PROBE_NS_MAX);
        server.rests_until = now.saturating_add_ns(server.rest_ns);
        self.choose();
    }

    /// A server that is to be measured now, besides.
    pub(crate) fn next_probe(&mut self, now: Time) -> Option<u32> {
        if self.len() < 2 || now < self.probe_at {
            return None;
        }
        let count = self.len();
        let others = (0..count).map(|step| (self.probe_next + step) % count);
        let mut due = others.filter(|index| {
            Some(*index) != self.preferred && self.list[*index as usize].rests_until <= now
        });
        let index = due.next();
        // The next one at once, as long as one was never measured.
        let unknown = |index: u32| {
            let server = &self.list[index as usize];
            server.round_trip_ns.is_none() && server.rest_ns == 0 && Some(index) != self.preferred
        };
        let soon = (0..count).any(unknown) && index.is_some_and(|at| at + 1 < count);
        self.probe_at = if soon { now } else { now.saturating_add_ns(PROBE_NS) };
        self.probe_next = index.map_or(0, |index| (index + 1) % count);
        index
    }

    /// Keeps to the server that is preferred while it is about as near as the nearest; else the first
    /// by rank of those that are.
    fn choose(&mut self) {
        let rests = |server: &Server| server.rest_ns > 0;
        let awake = || self.list.iter().filter(|server| !rests(server));
        let nearest = awake().filter_map(|server| server.round_trip_ns).min();
        let far = nearest.map_or(u64::MAX, |nearest| nearest + nearest / 3 + NOISE_NS);
        // One that was never measured may be as near.
        let near = |server: &Server| !rests(server) && server.round_trip_ns.unwrap_or(0) <= far;
        if self.preferred.and_then(|at| self.list.get(at as usize)).is_some_and(near) {
            return;
        }
        let of = |which: &dyn Fn(&Server) -> bool| {
            let ranked = self.list.iter().enumerate().filter(|(_, server)| which(server));
            ranked.min_by_key(|(_, server)| server.rank).map(|(index, _)| index as u32)
        };
        let next = || self.preferred.map_or(0, |at| at + 1).checked_rem(self.len());
        self.preferred = of(&near).or_else(next);
    }
}

/// Where a server stands at a node.
fn rank(own: Gid, server: Gid) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(&own.0);
    hasher.write(&server.0);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_kv::{Layout, TableId};

    fn gid(n: u8) -> Gid {
        Gid([n; 16])
    }

    /// The peer that the server of an index is.
    fn peer(index: u32) -> PeerId {
        PeerId::numbered(index + 1)
    }

    fn servers(own: u8, count: u8) -> Servers {
        let id = TableId { seed: 1, incarnation: 2 };
        let nodes = Descriptor::new(0, 1, Layout::new(1, 0, 16, 22).unwrap(), id).unwrap();
        let mut servers = Servers::default();
        let list = (0..count).map(|n| (peer(n.into()), gid(100 + n), nodes)).collect();
        assert_eq!(servers.replace(gid(own), list), []);
        servers
    }

    #[test]
    fn the_nearest_is_asked_and_a_little_does_not_count() {
        let mut servers = servers(7, 3);
        let first = servers.preferred().unwrap();
        let [second, third] = [1, 2].map(|step| (first + step) % 3);
        for _ in 0..50 {
            servers.answered(peer(first), 100_000);
            servers.answered(peer(second), 90_000);
            assert_eq!(servers.preferred().unwrap(), first, "about as near");
        }
        servers.answered(peer(third), 20_000);
        assert_eq!(servers.preferred().unwrap(), third);
        // One slow answer moves nobody.
        servers.answered(peer(third), 60_000);
        assert_eq!(servers.preferred().unwrap(), third);
        // Its network becomes slow.
        for _ in 0..50 {
            servers.answered(peer(third), 500_000);
        }
        assert_ne!(servers.preferred().unwrap(), third);
    }

    #[test]
    fn nodes_spread_over_servers_that_are_as_near() {
        let mut asked = [0; 4];
        for own in 0..200 {
            let mut servers = servers(own, 4);
            for n in 0..4 {
                servers.answered(peer(n), 10_000 + u64::from(n));
            }
            asked[servers.preferred().unwrap() as usize] += 1;
        }
        assert!(asked.iter().all(|count| (25..=75).contains(count)), "{asked:?}");
    }

    #[test]
    fn who_does_not_answer_is_left_alone_ever_longer_and_comes_back() {
        let mut servers = servers(7, 2);
        let first = servers.preferred().unwrap();
        for n in 0..2 {
            servers.answered(peer(n), 10_000);
        }
        let (mut now, mut probes) = (Time(0), Vec::new());
        servers.failed(peer(first), now);
        assert_eq!(servers.preferred().unwrap(), 1 - first);
        while now.0 < 300_000_000_000 {
            if let Some(index) = servers.next_probe(now) {
                assert_eq!(index, first);
                probes.push(now.0 / PROBE_NS);
                servers.failed(peer(first), now);
            }
            now = Time(now.0 + PROBE_NS / 10);
        }
        assert_eq!(probes, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
        servers.answered(peer(first), 1_000);
        assert_eq!(servers.preferred().unwrap(), first);
        // None answers: by turns, as a list.
        servers.failed(peer(first), now);
        servers.failed(peer(1 - first), now);
        assert!(servers.preferred().unwrap() < 2);
    }

    #[test]
    fn measuring_costs_one_read_a_second() {
        let mut servers = servers(7, 4);
        let mut probes = [0; 4];
        for tenth in 0..1_000 {
            while let Some(index) = servers.next_probe(Time(tenth * PROBE_NS / 10)) {
                probes[index as usize] += 1;
                servers.answered(peer(index), 10_000);
            }
        }
        assert_eq!(probes[servers.preferred().unwrap() as usize], 0);
        assert!((100..=103).contains(&probes.iter().sum::<u32>()), "{probes:?}");
        assert_eq!(probes.iter().filter(|count| **count > 30).count(), 3, "{probes:?}");
    }
}
