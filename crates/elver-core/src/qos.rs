//! Priority classes (the arXiv version of KRCORE, section 4.7): see [`Qos`].

use alloc::collections::VecDeque;

use elver_verbs::{Device, Time};

use crate::vqp::Wait;
use crate::{Class, Core, QosConfig};

/// What a WR costs on top of its bytes: so that small WRs, of which the device does a limited
/// number a second, are slowed too.
const WR_COST_BYTES: u64 = 64;
/// The low class may get ahead of its rate by what this time gives.
const BURST_NS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Holds the low class to a rate while the high class is loaded: a token bucket.
///
/// A WR goes when the bucket is not empty and may leave it in debt by its own size, so that one
/// larger than the burst goes too and the rate holds all the same. While the high class rests,
/// nothing is counted, and the bucket is full when it wakes.
#[derive(Clone, Debug)]
pub(crate) struct Qos {
    active_ns: u64,
    bytes_per_s: u64,
    /// When the high class last posted.
    high: Option<Time>,
    /// Tokens in byte-nanoseconds per second: a byte is [`NS_PER_S`] of them. Negative is debt.
    tokens: i128,
    /// When the tokens were last counted.
    counted: Time,
    /// VQPs that wait for tokens, in order, and when there are some.
    held: VecDeque<u32>,
    due: Time,
}

impl Qos {
    pub(crate) fn new(config: &QosConfig) -> Qos {
        Qos {
            active_ns: config.high_active_ns,
            bytes_per_s: config.low_bytes_per_s,
            high: None,
            tokens: 0,
            counted: Time::ZERO,
            held: VecDeque::new(),
            due: Time::ZERO,
        }
    }

    /// Whether a WR may go now; [`Qos::charge`] counts it when it goes.
    #[inline]
    pub(crate) fn ready(&mut self, class: Class, now: Time) -> bool {
        match class {
            Class::High => {
                self.note_high(now);
                true
            }
            Class::Low => self.high.is_none() || self.low_is_ready(now),
        }
    }

    /// Whether WRs of the low class need tokens now: each then asks whether it is ready.
    #[inline]
    pub(crate) fn counts_low(&mut self, now: Time) -> bool {
        if self.high.is_some() && !self.high_is_active(now) {
            self.high = None;
        }
        self.high.is_some()
    }

    /// Counts a WR of `bytes`.
    #[inline]
    pub(crate) fn charge(&mut self, class: Class, bytes: u64) {
        if class == Class::Low && self.high.is_some() {
            self.tokens -= i128::from(bytes + WR_COST_BYTES) * i128::from(NS_PER_S);
        }
    }

    /// A VQP waits for tokens.
    pub(crate) fn hold(&mut self, vqp: u32, now: Time) {
        self.held.push_back(vqp);
        self.due = self.next_low(now);
    }

    /// Whether a VQP waits for tokens.
    pub(crate) fn holds(&self, vqp: u32) -> bool {
        self.held.contains(&vqp)
    }

    /// When VQPs that wait may go on.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.held.is_empty()).then_some(self.due)
    }

    /// When a WR of the low class that was not admitted may be tried again.
    fn next_low(&self, now: Time) -> Time {
        let Some(high) = self.high else { return now };
        let rest = high.saturating_add_ns(self.active_ns);
        let missing = (1 - self.tokens).max(0).unsigned_abs();
        let wait = match self.bytes_per_s {
            0 => u64::MAX,
            rate => u64::try_from(missing.div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
        };
        self.counted.saturating_add_ns(wait).min(rest).max(now)
    }

    /// The high class posts.
    pub(crate) fn note_high(&mut self, now: Time) {
        if !self.high_is_active(now) {
            self.tokens = self.burst();
            self.counted = now;
        }
        self.high = Some(now);
    }

    fn low_is_ready(&mut self, now: Time) -> bool {
        if !self.high_is_active(now) {
            self.high = None;
            return true;
        }
        let elapsed = i128::from(now.ns_since(self.counted));
        self.counted = self.counted.max(now);
        let earned = elapsed * i128::from(self.bytes_per_s);
        self.tokens = (self.tokens + earned).min(self.burst());
        self.tokens > 0
    }

    fn high_is_active(&self, now: Time) -> bool {
        self.high.is_some_and(|high| now.ns_since(high) < self.active_ns)
    }

    fn burst(&self) -> i128 {
        i128::from(self.bytes_per_s) * i128::from(BURST_NS)
    }
}

impl<D: Device> Core<D> {
    /// Lets VQPs go on that waited for tokens, in order, until there are none again. Returns
    /// whether one did.
    pub(crate) fn release_held(&mut self, now: Time) -> bool {
        let mut busy = false;
        for _ in 0..self.qos.held.len() {
            if self.qos.due > now {
                break;
            }
            let Some(id) = self.qos.held.pop_front() else { break };
            if let Some(vqp) = self.vqps.get_mut(id)
                && vqp.wait == Wait::Tokens
            {
                vqp.wait = Wait::Nothing;
                self.pump(id, now);
                busy = true;
            }
        }
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether a WR goes; counts it if so.
    fn admit(qos: &mut Qos, class: Class, bytes: u64, now: Time) -> bool {
        let ready = qos.ready(class, now);
        if ready {
            qos.charge(class, bytes);
        }
        ready
    }

    const CONFIG: QosConfig =
        QosConfig { high_dc_qps: 2, high_active_ns: 10_000_000, low_bytes_per_s: 1_000_000_000 };

    #[test]
    fn the_low_class_is_free_while_the_high_one_rests() {
        let mut qos = Qos::new(&CONFIG);
        for _ in 0..10_000 {
            assert!(admit(&mut qos, Class::Low, 1 << 20, Time(5)));
        }
        assert!(admit(&mut qos, Class::High, 0, Time(6)));
        let held = (0..10_000).find(|_| !admit(&mut qos, Class::Low, 1 << 10, Time(7)));
        assert!(held.is_some(), "loaded: the low class is held");
        let rested = Time(6 + CONFIG.high_active_ns);
        assert!(qos.next_low(Time(7)) <= rested);
        for _ in 0..10_000 {
            assert!(admit(&mut qos, Class::Low, 1 << 20, rested));
        }
    }

    #[test]
    fn the_high_class_is_never_held() {
        let mut qos = Qos::new(&CONFIG);
        for n in 0..10_000 {
            admit(&mut qos, Class::Low, 1 << 20, Time(n));
            assert!(admit(&mut qos, Class::High, 1 << 30, Time(n)));
        }
    }

    #[test]
    fn a_wr_larger_than_the_burst_goes_and_is_paid_for() {
        let mut qos = Qos::new(&CONFIG);
        admit(&mut qos, Class::High, 0, Time(0));
        assert!(admit(&mut qos, Class::Low, 5_000_000, Time(0)));
        assert!(!admit(&mut qos, Class::Low, 0, Time(3_000_000)));
        assert!(admit(&mut qos, Class::Low, 0, Time(5_000_000)));
    }

    #[test]
    fn a_rate_of_nothing_holds_until_the_high_class_rests() {
        let mut qos = Qos::new(&QosConfig { low_bytes_per_s: 0, ..CONFIG });
        admit(&mut qos, Class::High, 0, Time(1));
        assert!(!admit(&mut qos, Class::Low, 0, Time(2)));
        assert_eq!(qos.next_low(Time(2)), Time(1 + CONFIG.high_active_ns));
        assert!(admit(&mut qos, Class::Low, 0, Time(1 + CONFIG.high_active_ns)));
    }

    proptest! {
        /// Over any time the low class gets its rate, the burst and one WR at most, and it gets
        /// its rate if it asks when it is told to.
        #[test]
        fn the_rate_holds(
            sizes in prop::collection::vec(0..100_000u64, 1..200),
            rate in 1_000_000..10_000_000_000u64,
        ) {
            let config = QosConfig { low_bytes_per_s: rate, ..CONFIG };
            let mut qos = Qos::new(&config);
            let (mut now, mut sent) = (Time(1_000), 0);
            for size in &sizes {
                admit(&mut qos, Class::High, 0, now);
                while !admit(&mut qos, Class::Low, *size, now) {
                    // The high class is loaded all along.
                    let next = qos.next_low(now);
                    prop_assert!(next > now);
                    now = next.min(Time(now.0 + CONFIG.high_active_ns / 2));
                    admit(&mut qos, Class::High, 0, now);
                }
                sent += size + WR_COST_BYTES;
            }
            let largest = u128::from(sizes.iter().max().unwrap() + WR_COST_BYTES);
            let elapsed = u128::from(now.0 - 1_000 + BURST_NS);
            let allowed = elapsed * u128::from(rate) / u128::from(NS_PER_S);
            prop_assert!(u128::from(sent) <= allowed + largest + 1);
            prop_assert!(u128::from(sent) + largest + 1 >= allowed.saturating_sub(
                u128::from(BURST_NS) * u128::from(rate) / u128::from(NS_PER_S)
            ));
        }
    }
}
