//! The neighbour cache: which MAC address an IP address of the link has, what is still being asked,
//! and for how long an answer holds. The states are those of neighbour unreachability detection
//! (RFC 4861, 7.3), less those that need hints from above; ARP uses them too.

use std::collections::HashMap;
use std::net::IpAddr;

use elver_rnic::Time;

use crate::frames::ethernet::Mac;

/// How long an answer holds, in nanoseconds; after that it is asked for again, while the old one
/// still serves.
const REACHABLE_NS: u64 = 30_000_000_000;
/// How long an answer may take before it is asked for again, in nanoseconds (RFC 4861, section 10).
const RETRY_NS: u64 = 1_000_000_000;
/// Requests without an answer before a neighbour is given up (RFC 4861, section 10).
const TRIES_MAX: u8 = 3;

/// What is known of a neighbour that something is to be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Where to send; nothing where the answer is still to come.
    pub(crate) mac: Option<Mac>,
    /// A request must go out now.
    pub(crate) ask: bool,
    /// A neighbour that had to be forgotten for this one.
    pub(crate) evicted: Option<IpAddr>,
}

/// What is due by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A request must go out again.
    Ask(IpAddr),
    /// Nothing answered: what waits for it is lost.
    Failed(IpAddr),
}

/// How an address was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// By a neighbour that asked for ours: it is about to talk to us.
    Asking,
    /// In answer to a request, or to all: of use only to whom it is known already.
    Answering,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// Until when the answer holds.
    fresh_until: Time,
    /// Requests that were not answered.
    tries: u8,
    /// When the next request goes out, if one is on its way.
    retry_at: Option<Time>,
    /// When it was last of use.
    used_at: Time,
}

pub(crate) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    max: usize,
    /// The earliest retry.
    due: Option<Time>,
}

impl Neighbours {
    /// A cache of at most `max` neighbours.
    pub(crate) fn new(max: usize) -> Neighbours {
        Neighbours { entries: HashMap::new(), max: max.max(1), due: None }
    }

    /// What is known of `ip`, to which something is to be sent now.
    #[inline]
    pub(crate) fn look_up(&mut self, now: Time, ip: IpAddr) -> Lookup {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.used_at = now;
            let ask = entry.retry_at.is_none() && now >= entry.fresh_until;
            let found = Lookup { mac: entry.mac, ask, evicted: None };
            if ask {
                entry.tries = 1;
                self.await_answer(now, ip);
            }
            return found;
        }
        let evicted = self.make_room();
        let entry = Entry { mac: None, fresh_until: now, tries: 1, retry_at: None, used_at: now };
        self.entries.insert(ip, entry);
        self.await_answer(now, ip);
        Lookup { mac: None, ask: true, evicted }
    }

    /// Takes down that `ip` has `mac`. Returns whether something may have waited for that, and a
    /// neighbour that had to be forgotten for this one.
    pub(crate) fn learn(
        &mut self,
        now: Time,
        ip: IpAddr,
        mac: Mac,
        told: Told,
    ) -> (bool, Option<IpAddr>) {
        let mut evicted = None;
        let waited = match self.entries.get(&ip) {
            Some(entry) => entry.mac.is_none(),
            None if told == Told::Asking => {
                evicted = self.make_room();
                false
            }
            None => return (false, None),
        };
        let fresh_until = now.saturating_add_ns(REACHABLE_NS);
        let used_at = self.entries.get(&ip).map_or(now, |entry| entry.used_at);
        let entry = Entry { mac: Some(mac), fresh_until, tries: 0, retry_at: None, used_at };
        self.entries.insert(ip, entry);
        self.find_due();
        (waited, evicted)
    }

    /// The MAC address that is held for `ip`, whether it is fresh or not.
    pub(crate) fn held(&self, ip: IpAddr) -> Option<Mac> {
        self.entries.get(&ip)?.mac
    }

    /// When [`Neighbours::poll_due`] has something next.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// One thing that is due; call until there is none.
    pub(crate) fn poll_due(&mut self, now: Time) -> Option<Due> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let is_due = |entry: &Entry| entry.retry_at.is_some_and(|at| at <= now);
        let ip = self.entries.iter().find(|(_, entry)| is_due(entry)).map(|(ip, _)| *ip);
        let Some(ip) = ip else {
            self.find_due();
            return None;
        };
        let tries = self.entries.get(&ip).map_or(TRIES_MAX, |entry| entry.tries);
        if tries >= TRIES_MAX {
            self.entries.remove(&ip);
            self.find_due();
            return Some(Due::Failed(ip));
        }
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.tries += 1;
        }
        self.await_answer(now, ip);
        Some(Due::Ask(ip))
    }

    /// Sets the time by which an answer should have come.
    fn await_answer(&mut self, now: Time, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.retry_at = Some(now.saturating_add_ns(RETRY_NS));
        }
        self.find_due();
    }

    fn find_due(&mut self) {
        self.due = self.entries.values().filter_map(|entry| entry.retry_at).min();
    }

    /// Forgets the neighbour that was longest of no use, if the cache is full.
    fn make_room(&mut self) -> Option<IpAddr> {
        if self.entries.len() < self.max {
            return None;
        }
        // The address decides between equals, so that a run can be repeated.
        let oldest = self.entries.iter().min_by_key(|(ip, entry)| (entry.used_at, **ip));
        let ip = oldest.map(|(ip, _)| *ip)?;
        self.entries.remove(&ip);
        Some(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const SECOND: u64 = 1_000_000_000;

    fn ip(last: u8) -> IpAddr {
        [10, 9, 0, last].into()
    }

    #[test]
    fn asks_three_times_and_gives_up() {
        let mut cache = Neighbours::new(8);
        let first = cache.look_up(Time(0), ip(1));
        assert_eq!(first, Lookup { mac: None, ask: true, evicted: None });
        assert!(!cache.look_up(Time(1), ip(1)).ask, "one request is on its way");
        assert_eq!(cache.poll_due(Time(SECOND - 1)), None);
        for second in 1..3 {
            let now = Time(second * SECOND);
            assert_eq!(cache.poll_timeout(), Some(now));
            assert_eq!(cache.poll_due(now), Some(Due::Ask(ip(1))));
            assert_eq!(cache.poll_due(now), None);
        }
        assert_eq!(cache.poll_due(Time(3 * SECOND)), Some(Due::Failed(ip(1))));
        assert_eq!(cache.poll_timeout(), None);
        assert!(cache.look_up(Time(3 * SECOND), ip(1)).ask, "it may be there by now");
    }

    #[test]
    fn an_answer_holds_and_is_renewed_while_it_serves() {
        let mut cache = Neighbours::new(8);
        cache.look_up(Time(0), ip(1));
        assert_eq!(cache.learn(Time(1), ip(1), MAC, Told::Answering), (true, None));
        assert_eq!(cache.poll_timeout(), None);
        let known = Lookup { mac: Some(MAC), ask: false, evicted: None };
        assert_eq!(cache.look_up(Time(2), ip(1)), known);
        let stale = Time(1 + REACHABLE_NS);
        assert_eq!(cache.look_up(stale, ip(1)), Lookup { ask: true, ..known });
        assert_eq!(cache.look_up(stale, ip(1)), known);
        assert_eq!(cache.learn(stale, ip(1), MAC, Told::Answering), (false, None));
        assert_eq!(cache.poll_timeout(), None);
        assert_eq!(cache.look_up(Time(stale.0 + 1), ip(1)), known);
    }

    #[test]
    fn answers_nobody_asked_for_are_not_kept() {
        let mut cache = Neighbours::new(8);
        assert_eq!(cache.learn(Time(0), ip(1), MAC, Told::Answering), (false, None));
        assert_eq!(cache.held(ip(1)), None);
        cache.learn(Time(0), ip(1), MAC, Told::Asking);
        assert_eq!(cache.held(ip(1)), Some(MAC));
    }

    #[test]
    fn strangers_displace_whom_nobody_uses() {
        let mut cache = Neighbours::new(4);
        cache.look_up(Time(0), ip(1));
        cache.learn(Time(0), ip(1), MAC, Told::Answering);
        for stranger in 2..100 {
            let now = Time(u64::from(stranger));
            cache.learn(now, ip(stranger), MAC, Told::Asking);
            assert_eq!(cache.look_up(Time(now.0 + 1), ip(1)).mac, Some(MAC), "still in use");
            assert!(cache.entries.len() <= 4);
        }
        let evicted = cache.look_up(Time(1000), ip(200)).evicted;
        assert_eq!(evicted, Some(ip(97)));
    }
}
