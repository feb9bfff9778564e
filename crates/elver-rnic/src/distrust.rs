//! Who tries keys: sources that present wrong ones too often are not listened to for a while.
//!
//! Whoever forges a source must not silence its owner by that. So failures count in classes, and a
//! class loses only what it can do itself: an address that did not prove where it is has to, a
//! proved one may open no DC session, a port of a host that is not its device's is not heard by UD
//! QPs. What an established session or a connected QP sends is never held up: a session and an RC QP
//! end with the first wrong rkey, and a UC QP believes an address, so that who forges that could
//! silence it. Wrong rkeys of RC count as those of both, of UC as those of a stranger.

use alloc::vec::Vec;
use core::net::IpAddr;

use elver_random::KeyedHash;

use elver_verbs::Time;

/// Sources that are remembered at once. One that shares its place with another wears it off.
const SLOTS: usize = 1024;
/// A source that stops trying is heard again after so many seconds at most.
const GRUDGE_S: u64 = 10;

/// As what a source failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Somebody who says that he is at the address.
    Stranger,
    /// Who proved that he is there, or is connected.
    Proved,
    /// Another UDP port than that of the address's device.
    OtherPort,
}

#[derive(Debug)]
pub(crate) struct Distrust {
    hash: KeyedHash,
    /// None until somebody fails.
    slots: Vec<Slot>,
    burst: u64,
    per_s: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    source: (IpAddr, Class),
    /// Failures that were not forgiven yet.
    failures: u64,
    /// When the last one was forgiven.
    at: Time,
}

impl Distrust {
    /// Who fails more than `burst` times at once, or `per_s` times a second for long, is not heard.
    pub(crate) fn new(hash: KeyedHash, burst: u32, per_s: u32) -> Distrust {
        Distrust { hash, slots: Vec::new(), burst: burst.into(), per_s: per_s.into() }
    }

    /// A source presented a wrong key.
    #[cold]
    pub(crate) fn failed(&mut self, address: IpAddr, class: Class, now: Time) {
        let source = (address, class);
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Slot { source, failures: 0, at: now });
        }
        let at = self.slot(source);
        let slot = &mut self.slots[at];
        slot.forgive(self.per_s, now);
        if slot.source == source || slot.failures == 0 {
            slot.source = source;
            let most = self.burst + self.per_s * GRUDGE_S;
            slot.failures = (slot.failures + 1).min(most);
        } else {
            slot.failures -= 1;
        }
    }

    /// Whether a source failed too often.
    #[inline]
    pub(crate) fn holds(&self, address: IpAddr, class: Class, now: Time) -> bool {
        !self.slots.is_empty() && self.holds_slot((address, class), now)
    }

    fn holds_slot(&self, source: (IpAddr, Class), now: Time) -> bool {
        let mut slot = self.slots[self.slot(source)];
        slot.forgive(self.per_s, now);
        slot.source == source && slot.failures > self.burst
    }

    fn slot(&self, (address, class): (IpAddr, Class)) -> usize {
        self.hash.of(address, [class as u64]) as usize % SLOTS
    }
}

impl Slot {
    fn forgive(&mut self, per_s: u64, now: Time) {
        let apart = 1_000_000_000 / per_s;
        let forgiven = now.ns_since(self.at) / apart;
        if forgiven >= self.failures {
            (self.failures, self.at) = (0, now);
        } else {
            self.failures -= forgiven;
            self.at = self.at.saturating_add_ns(forgiven * apart);
        }
    }
}

#[cfg(test)]
mod tests {
    use elver_random::Rng;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn distrust() -> Distrust {
        Distrust::new(Rng::new(1).keyed_hash(), 100, 10)
    }

    #[test]
    fn who_fails_too_often_is_held_for_a_while_and_in_his_class_alone() {
        let mut distrust = distrust();
        for _ in 0..100 {
            distrust.failed(HERE, Class::Stranger, Time(5));
        }
        assert!(!distrust.holds(HERE, Class::Stranger, Time(5)));
        for _ in 0..1_000_000 {
            distrust.failed(HERE, Class::Stranger, Time(5));
        }
        assert!(distrust.holds(HERE, Class::Stranger, Time(5)));
        assert!(!distrust.holds(HERE, Class::Proved, Time(5)));
        assert!(distrust.holds(HERE, Class::Stranger, Time(9_900_000_000)));
        assert!(!distrust.holds(HERE, Class::Stranger, Time(10_100_000_000)));
    }

    #[test]
    fn who_fails_now_and_then_is_not() {
        let mut distrust = distrust();
        for second in 0..10_000 {
            for _ in 0..9 {
                distrust.failed(HERE, Class::Proved, Time(second * 1_000_000_000));
            }
            assert!(!distrust.holds(HERE, Class::Proved, Time(second * 1_000_000_000)));
        }
    }

    #[test]
    fn many_sources_cannot_hold_another() {
        let mut distrust = distrust();
        for number in 0..200_000u32 {
            let source = IpAddr::from(number.to_be_bytes());
            distrust.failed(source, Class::Stranger, Time(5));
        }
        let held = |number: u32| {
            distrust.holds(IpAddr::from(number.to_be_bytes()), Class::Stranger, Time(5))
        };
        assert_eq!((0..200_000).filter(|number| held(*number)).count(), 0);
    }
}
