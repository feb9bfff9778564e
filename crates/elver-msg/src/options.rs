use std::time::Duration;

use elver::{Numa, Policy};
use elver_ring::Config;

use crate::Error;
use crate::protocol::Limits;

/// What is spoken over the rings of groups ([`elver_ring::Options::application`]): other pairs are refused when
/// they are connected. The version is in the greeting.
pub const APPLICATION: u64 = u64::from_le_bytes(*b"messages");

/// Bytes of a slot: a header, and a message of 40 bytes.
const SLOT_BYTES: u32 = 64;
/// Messages of a rendezvous, and pieces, need a few slots.
const RING_BYTES_MIN: u32 = 4 << 10;
const RING_BYTES_MAX: u32 = 64 << 20;

/// How a rank is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What it holds for a peer.
    pub limits: Limits,
    /// Bytes of each ring: a rank has four for each other rank, two of them to receive. A power of two, 4 KiB to
    /// 64 MiB. Who connects decides for both: the higher rank.
    pub ring_bytes: u32,
    /// How long a wait looks before it sleeps: less where others have long turns on its core, unless it is a second
    /// or longer ([`elver::Session::look_on`]).
    pub spin: Duration,
    /// What carries what this rank writes to each other one: shared queue pairs, or one for each
    /// ([`elver_ring::Options::policy`]).
    pub policy: Policy,
    /// At which NUMA node this rank's end of each ring lies: that of the thread which makes the rank
    /// ([`elver_ring::Options::numa`]).
    pub numa: Numa,
    /// How long the ranks have to come together.
    pub join: Duration,
    /// Most requests that go on, or were not waited for.
    pub requests: usize,
}

impl Default for Options {
    /// Rings of 256 KiB, 100 µs, 60 s, 65,536 requests.
    fn default() -> Options {
        Options {
            limits: Limits::default(),
            ring_bytes: 256 << 10,
            spin: Duration::from_micros(100),
            policy: Policy::Shared,
            numa: Numa::Here,
            join: Duration::from_secs(60),
            requests: 1 << 16,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Options { limits, ring_bytes, requests, .. } = self;
        let is_ring = ring_bytes.is_power_of_two();
        let what = if !limits.can_be() {
            "limits hold 1 to 65,535 messages, eager ones no longer than all bytes that are held and than a \
             message may be"
        } else if !is_ring || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(ring_bytes) {
            "a ring has a power of two of bytes, 4 KiB to 64 MiB (Options::ring_bytes)"
        } else if *requests == 0 {
            "a rank has one request at least (Options::requests)"
        } else {
            return Ok(());
        };
        Err(Error::Options { what })
    }

    /// The rings of a pair.
    pub(crate) fn rings(&self) -> elver_ring::Options {
        let config = Config { slot_bytes: SLOT_BYTES, ..Config::default() };
        let config = config.with_slots(self.ring_bytes / SLOT_BYTES);
        let (Options { spin, policy, numa, .. }, application) = (*self, APPLICATION);
        elver_ring::Options { spin, policy, numa, application, ..elver_ring::Options::both(config) }
    }

    /// What a listener takes.
    pub(crate) fn listener(&self) -> elver_ring::ListenerOptions {
        let ring_bytes_max = 2 * u64::from(RING_BYTES_MAX);
        let (Options { spin, policy, numa, .. }, application) = (*self, APPLICATION);
        let default = elver_ring::ListenerOptions::default();
        elver_ring::ListenerOptions { ring_bytes_max, spin, policy, numa, application, ..default }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_lie_where_the_rank_says() {
        for numa in [Numa::Any, Numa::Here, Numa::Node(3)] {
            let options = Options { numa, ..Options::default() };
            assert_eq!((options.rings().numa, options.listener().numa), (numa, numa));
        }
    }
}
