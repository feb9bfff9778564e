//! Sparing the network and the peers' socket buffers.
//!
//! Towards each remote address the device keeps one window of packets in flight that all its RC
//! and DC traffic shares. The window grows by about one packet per window of acknowledged packets,
//! twice as fast until the first cut; a CNP halves it, a lost packet takes a quarter of it. UC and
//! UD traffic, which nobody acknowledges, draws from a token bucket whose rate a CNP halves and
//! time restores. This is the sender's half of RoCEv2 congestion management (IBTA vol. 1, annex
//! A17.9.3) with windows in place of rates.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU64;

use elver_verbs::{ObjectKind, Time, VerbsError};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::config::FlowConfig;

/// Index of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathId(u32);

#[derive(Debug)]
pub(crate) struct Paths {
    by_address: HashMap<IpAddr, u32, FxBuildHasher>,
    paths: Vec<Path>,
    limit: u32,
    /// Paths that nothing uses, longest first; each stands here once. Who was looked up again
    /// meanwhile is passed over.
    unused: VecDeque<u32>,
    evicted: u64,
    config: FlowConfig,
    /// Room came back in some window since it was last asked.
    freed: bool,
}

#[derive(Debug)]
struct Path {
    address: IpAddr,
    /// Address handles, QPs and streams of DCIs that go this way.
    users: u32,
    /// It stands among the unused.
    listed: bool,
    /// What the device at the address told us last, to prove by it that we are here.
    token: Option<NonZeroU64>,
    window: u32,
    in_flight: u32,
    acked: u32,
    growing_fast: bool,
    cut_at: Option<Time>,
    cnp_at: Option<Time>,
    tokens: u64,
    rate: u64,
    refilled_at: Time,
}

impl Paths {
    pub(crate) fn new(limit: u32, config: FlowConfig) -> Paths {
        Paths {
            by_address: HashMap::default(),
            paths: Vec::new(),
            limit,
            unused: VecDeque::new(),
            evicted: 0,
            config,
            freed: false,
        }
    }

    /// The path to an address, made if there is none, for one user more. What is known of a path
    /// outlives its users, until its room is needed.
    pub(crate) fn open(&mut self, address: IpAddr) -> Result<PathId, VerbsError> {
        if let Some(&id) = self.by_address.get(&address) {
            self.hold(PathId(id));
            return Ok(PathId(id));
        }
        let id = match self.paths.len() as u32 {
            count if count < self.limit => {
                let path = self.fresh(address);
                self.paths.push(path);
                count
            }
            _ => self.evict(address)?,
        };
        self.by_address.insert(address, id);
        Ok(PathId(id))
    }

    /// One user more of a path.
    pub(crate) fn hold(&mut self, id: PathId) {
        self.paths[id.0 as usize].users += 1;
    }

    /// One user less of a path.
    pub(crate) fn close(&mut self, id: PathId) {
        let path = &mut self.paths[id.0 as usize];
        path.users -= 1;
        if path.users == 0 && !path.listed {
            path.listed = true;
            self.unused.push_back(id.0);
        }
    }

    /// The token that the address told us last.
    pub(crate) fn token(&self, id: PathId) -> Option<NonZeroU64> {
        self.paths[id.0 as usize].token
    }

    pub(crate) fn told(&mut self, id: PathId, token: Option<NonZeroU64>) {
        self.paths[id.0 as usize].token = token;
    }

    /// Users of all paths.
    pub(crate) fn users(&self) -> u32 {
        self.paths.iter().map(|path| path.users).sum()
    }

    /// Paths that gave way to others.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Gives the place of the path that was unused longest to another address.
    fn evict(&mut self, address: IpAddr) -> Result<u32, VerbsError> {
        while let Some(id) = self.unused.pop_front() {
            let path = &mut self.paths[id as usize];
            path.listed = false;
            if path.users > 0 {
                continue;
            }
            self.by_address.remove(&path.address);
            self.paths[id as usize] = self.fresh(address);
            self.evicted += 1;
            return Ok(id);
        }
        Err(VerbsError::Limit {
            kind: ObjectKind::Ah,
            limit: u64::from(self.limit),
            setting: "max_paths",
        })
    }

    fn fresh(&self, address: IpAddr) -> Path {
        Path {
            address,
            users: 1,
            listed: false,
            token: None,
            window: self
                .config
                .window_initial
                .clamp(self.config.window_min, self.config.window_max),
            in_flight: 0,
            acked: 0,
            growing_fast: true,
            cut_at: None,
            cnp_at: None,
            tokens: self.config.unacked_burst_bytes,
            rate: self.config.unacked_bytes_per_s,
            refilled_at: Time::ZERO,
        }
    }

    pub(crate) fn find(&self, address: IpAddr) -> Option<PathId> {
        self.by_address.get(&address).copied().map(PathId)
    }

    /// Whether one more packet may be sent. A path with nothing in flight always lets one go.
    #[inline]
    pub(crate) fn has_room(&self, id: PathId) -> bool {
        let path = &self.paths[id.0 as usize];
        path.in_flight < path.window
    }

    /// Whether so many packets more would leave no room.
    #[inline]
    pub(crate) fn would_fill(&self, id: PathId, packets: u32) -> bool {
        let path = &self.paths[id.0 as usize];
        path.in_flight + packets >= path.window
    }

    #[inline]
    pub(crate) fn sent(&mut self, id: PathId, packets: u32) {
        self.paths[id.0 as usize].in_flight += packets;
    }

    /// Takes packets out of flight that were neither acknowledged nor lost for congestion.
    #[inline]
    pub(crate) fn forgotten(&mut self, id: PathId, packets: u32) {
        let path = &mut self.paths[id.0 as usize];
        count_off!(path.in_flight, packets);
        self.freed |= packets > 0;
    }

    /// Whether room came back that a stalled QP may use.
    #[inline]
    pub(crate) fn has_freed(&self) -> bool {
        self.freed
    }

    /// Stalled QPs are about to be woken.
    pub(crate) fn clear_freed(&mut self) {
        self.freed = false;
    }

    #[inline]
    pub(crate) fn acked(&mut self, id: PathId, packets: u32) {
        let path = &mut self.paths[id.0 as usize];
        count_off!(path.in_flight, packets);
        self.freed |= packets > 0;
        path.acked += if path.growing_fast { packets * 8 } else { packets };
        if path.acked >= path.window {
            path.window = (path.window + path.acked / path.window).min(self.config.window_max);
            path.acked = 0;
        }
    }

    /// Reacts to a lost packet; returns whether the window was cut.
    pub(crate) fn lost(&mut self, now: Time, id: PathId) -> bool {
        self.cut(now, id, 3, 4)
    }

    /// Reacts to a congestion notification; returns whether the window was cut.
    pub(crate) fn congested(&mut self, now: Time, id: PathId) -> bool {
        if !self.cut(now, id, 1, 2) {
            return false;
        }
        let floor = self.config.unacked_bytes_per_s / 64;
        let path = &mut self.paths[id.0 as usize];
        path.rate = (path.rate / 2).max(floor);
        true
    }

    fn cut(&mut self, now: Time, id: PathId, numerator: u32, denominator: u32) -> bool {
        let path = &mut self.paths[id.0 as usize];
        if path.cut_at.is_some_and(|at| now.ns_since(at) < self.config.cut_interval_ns) {
            return false;
        }
        path.cut_at = Some(now);
        path.growing_fast = false;
        path.acked = 0;
        path.window = (path.window / denominator * numerator).max(self.config.window_min);
        true
    }

    /// Takes the tokens of a UC or UD packet, or tells when there will be enough.
    pub(crate) fn take_tokens(&mut self, now: Time, id: PathId, bytes: u64) -> Result<(), Time> {
        let path = &mut self.paths[id.0 as usize];
        let elapsed = now.ns_since(path.refilled_at);
        let per_ns = |rate: u64, ns: u64| {
            (u128::from(rate) * u128::from(ns) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
        };
        if elapsed >= 1_000 {
            path.refilled_at = now;
            path.tokens = path
                .tokens
                .saturating_add(per_ns(path.rate, elapsed))
                .min(self.config.unacked_burst_bytes);
            let restored = self.config.unacked_bytes_per_s / 64;
            let recovered = per_ns(restored, elapsed.saturating_mul(1_000));
            path.rate = path.rate.saturating_add(recovered).min(self.config.unacked_bytes_per_s);
        }
        let needed = bytes.min(self.config.unacked_burst_bytes);
        if path.tokens >= needed {
            path.tokens -= needed;
            return Ok(());
        }
        let missing = needed - path.tokens;
        let wait = u128::from(missing) * 1_000_000_000 / u128::from(path.rate.max(1));
        Err(now.saturating_add_ns(wait as u64 + 1_000))
    }

    /// Whether a CNP may go to this path now.
    pub(crate) fn may_notify(&mut self, now: Time, id: PathId) -> bool {
        let path = &mut self.paths[id.0 as usize];
        if path.cnp_at.is_some_and(|at| now.ns_since(at) < self.config.cnp_interval_ns) {
            return false;
        }
        path.cnp_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> (Paths, PathId) {
        let mut paths = Paths::new(4, FlowConfig::default());
        let id = paths.open("10.0.0.1".parse().unwrap()).unwrap();
        (paths, id)
    }

    #[test]
    fn a_cnp_halves_and_acknowledgements_restore() {
        let (mut paths, id) = path();
        let before = paths.paths[0].window;
        assert!(paths.congested(Time(1_000_000), id));
        assert_eq!(paths.paths[0].window, before / 2);
        assert!(!paths.congested(Time(1_000_001), id), "one cut an interval");
        for _ in 0..before * before {
            paths.sent(id, 1);
            paths.acked(id, 1);
        }
        assert!(paths.paths[0].window >= before);
    }

    #[test]
    fn the_window_keeps_its_floor() {
        let (mut paths, id) = path();
        for round in 0..100 {
            paths.lost(Time(round * 1_000_000), id);
        }
        assert_eq!(paths.paths[0].window, FlowConfig::default().window_min);
    }

    #[test]
    fn tokens_run_out_and_come_back() {
        let (mut paths, id) = path();
        let now = Time(1_000_000_000);
        let mut taken = 0;
        let later = loop {
            match paths.take_tokens(now, id, 4096) {
                Ok(()) => taken += 4096,
                Err(later) => break later,
            }
        };
        assert!(taken <= FlowConfig::default().unacked_burst_bytes);
        assert!(paths.take_tokens(later, id, 4096).is_ok());
    }

    #[test]
    fn paths_are_bounded() {
        let mut paths = Paths::new(1, FlowConfig::default());
        let first = paths.open("10.0.0.1".parse().unwrap()).unwrap();
        assert!(paths.open("10.0.0.1".parse().unwrap()).is_ok());
        assert!(paths.open("10.0.0.2".parse().unwrap()).is_err());
        paths.close(first);
        assert!(paths.open("10.0.0.2".parse().unwrap()).is_err(), "it has a user still");
        paths.close(first);
        assert!(paths.open("10.0.0.2".parse().unwrap()).is_ok());
        assert!(paths.find("10.0.0.1".parse().unwrap()).is_none());
    }

    #[test]
    fn the_path_unused_longest_gives_way() {
        let mut paths = Paths::new(3, FlowConfig::default());
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let [a, b, c] = [1, 2, 3].map(|last| paths.open(address(last)).unwrap());
        for id in [c, a, b] {
            paths.close(id);
        }
        assert_eq!(paths.open(address(3)), Ok(c), "it is remembered");
        paths.open(address(4)).unwrap();
        let known = [1, 2, 3, 4].map(|last| paths.find(address(last)).is_some());
        assert_eq!(known, [false, true, true, true]);
        assert_eq!((paths.users(), paths.evicted()), (2, 1));
    }
}
