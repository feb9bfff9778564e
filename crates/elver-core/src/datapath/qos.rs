//! Priority classes (the arXiv version of KRCORE, section 4.7): see [`Qos`].

mod release;

use alloc::collections::VecDeque;

use elver_verbs::Time;

use crate::QosConfig;
use crate::VqpId;

/// What a WR costs on top of its bytes: so that small WRs, of which the device does a limited
/// number a second, are slowed too.
const WR_COST_BYTES: u64 = 64;
/// The low class may get ahead of its rate by what this time gives.
const BURST_NS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// How much of the time the high class has WRs on their way: what it asks for, and not what it got.
///
/// A rate would tell the reverse: who sends one READ after the other sends the fewer the more the low
/// class is in its way. Time is cut into windows of one length. In each the class is loaded if it was
/// busy for its share of the window before, or has been for that of this one already.
#[derive(Clone, Debug)]
struct Load {
    window_ns: u64,
    /// Time of a window that makes the class loaded; at least 1 ns.
    share_ns: u64,
    /// Physical WRs of the class on their lanes.
    inflight: u32,
    /// When the window began, and from when on `busy_ns` does not count yet.
    began: Time,
    since: Time,
    /// Time of this window in which there were some.
    busy_ns: u64,
    /// The class was loaded in the window before.
    before: bool,
}

impl Load {
    fn new(config: &QosConfig) -> Load {
        let window_ns = config.load_window_ns.max(1);
        let share = u128::from(window_ns) * u128::from(config.load_percent) / 100;
        Load {
            window_ns,
            share_ns: (share as u64).max(1),
            inflight: 0,
            began: Time::ZERO,
            since: Time::ZERO,
            busy_ns: 0,
            before: false,
        }
    }

    /// Counts the time up to now.
    #[inline]
    fn advance(&mut self, now: Time) {
        let elapsed = now.ns_since(self.began);
        if elapsed >= self.window_ns {
            let end = self.began.saturating_add_ns(self.window_ns);
            self.count_up_to(end);
            let windows = elapsed / self.window_ns;
            // In those between either WRs were on their way all along, or none.
            self.before =
                if windows > 1 { self.inflight > 0 } else { self.busy_ns >= self.share_ns };
            self.began = self.began.saturating_add_ns(windows.saturating_mul(self.window_ns));
            (self.busy_ns, self.since) = (0, self.began);
        }
        self.count_up_to(now);
    }

    fn count_up_to(&mut self, now: Time) {
        if self.inflight > 0 {
            self.busy_ns += now.ns_since(self.since);
        }
        self.since = self.since.max(now);
    }

    fn is_loaded(&mut self, now: Time) -> bool {
        self.advance(now);
        self.before || self.busy_ns >= self.share_ns
    }

    /// Whether it was silent long enough for nothing of it to count.
    fn is_forgotten(&self) -> bool {
        self.inflight == 0 && self.busy_ns == 0 && !self.before
    }

    fn window_end(&self) -> Time {
        self.began.saturating_add_ns(self.window_ns)
    }
}

/// Holds the low class to a rate while the high class is loaded: a token bucket.
///
/// A WR goes when the bucket is not empty and may leave it in debt by its own size, so that one
/// larger than the burst goes too and the rate holds all the same. While the high class is not
/// loaded, nothing is counted, and the bucket is full when it becomes so.
#[derive(Clone, Debug)]
pub(crate) struct Qos {
    bytes_per_s: u64,
    load: Load,
    /// The high class sent something, not long ago.
    high: bool,
    /// The high class was loaded when it was last looked at.
    loaded: bool,
    /// Tokens in byte-nanoseconds per second: a byte is [`NS_PER_S`] of them. Negative is debt.
    tokens: i128,
    /// When the tokens were last counted.
    counted: Time,
    /// VQPs that wait for tokens, in order, and when there are some.
    held: VecDeque<VqpId>,
    due: Time,
}

impl Qos {
    pub(crate) fn new(config: &QosConfig) -> Qos {
        Qos {
            bytes_per_s: config.low_bytes_per_s,
            load: Load::new(config),
            high: false,
            loaded: false,
            tokens: 0,
            counted: Time::ZERO,
            held: VecDeque::new(),
            due: Time::ZERO,
        }
    }

    /// Whether WRs of the low class need tokens now: each then asks whether it is ready.
    #[inline]
    pub(crate) fn counts_low(&mut self, now: Time) -> bool {
        self.high && self.look_at_high(now)
    }

    #[inline(never)]
    fn look_at_high(&mut self, now: Time) -> bool {
        let loaded = self.load.is_loaded(now);
        if loaded && !self.loaded {
            self.tokens = self.burst();
            self.counted = now;
        }
        self.loaded = loaded;
        self.high = !self.load.is_forgotten();
        loaded
    }

    /// Whether a WR of the low class may go while they need tokens; [`Qos::charge`] counts it when
    /// it goes.
    #[inline]
    pub(crate) fn ready(&mut self, now: Time) -> bool {
        let elapsed = i128::from(now.ns_since(self.counted));
        self.counted = self.counted.max(now);
        let earned = elapsed * i128::from(self.bytes_per_s);
        self.tokens = (self.tokens + earned).min(self.burst());
        self.tokens > 0
    }

    /// Counts a WR of `bytes` of the low class.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes + WR_COST_BYTES) * i128::from(NS_PER_S);
    }

    /// A VQP waits for tokens.
    pub(crate) fn hold(&mut self, vqp: VqpId, now: Time) {
        self.held.push_back(vqp);
        self.due = self.next_low(now);
    }

    /// Whether a VQP waits for tokens.
    pub(crate) fn holds(&self, vqp: VqpId) -> bool {
        self.held.contains(&vqp)
    }

    /// When VQPs that wait may go on.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.held.is_empty()).then_some(self.due)
    }

    /// When a WR of the low class that was not admitted may be tried again: there are tokens then,
    /// or the high class may not be loaded any longer.
    fn next_low(&self, now: Time) -> Time {
        let missing = (1 - self.tokens).max(0).unsigned_abs();
        let wait = match self.bytes_per_s {
            0 => u64::MAX,
            rate => u64::try_from(missing.div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
        };
        self.counted.saturating_add_ns(wait).min(self.load.window_end()).max(now)
    }

    /// The high class has physical WRs on a lane.
    #[inline]
    pub(crate) fn high_posted(&mut self, wrs: u32, now: Time) {
        self.load.advance(now);
        self.load.inflight += wrs;
        self.high = true;
    }

    /// Physical WRs of the high class have ended.
    #[inline]
    pub(crate) fn high_ended(&mut self, wrs: u32, now: Time) {
        self.load.advance(now);
        count_off!(self.load.inflight, wrs);
    }

    /// Physical WRs of the high class on their lanes.
    pub(crate) fn high_inflight(&self) -> u32 {
        self.load.inflight
    }

    fn burst(&self) -> i128 {
        i128::from(self.bytes_per_s) * i128::from(BURST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: u64 = 1_000_000;
    const CONFIG: QosConfig = QosConfig {
        high_dc_qps: 2,
        load_window_ns: WINDOW,
        load_percent: 25,
        low_bytes_per_s: 1_000_000_000,
    };

    /// Whether a WR of the low class goes; counts it if so.
    fn admit(qos: &mut Qos, bytes: u64, now: Time) -> bool {
        if !qos.counts_low(now) {
            return true;
        }
        let ready = qos.ready(now);
        if ready {
            qos.charge(bytes);
        }
        ready
    }

    /// A high class that is loaded from `WINDOW` on.
    fn loaded(config: &QosConfig) -> Qos {
        let mut qos = Qos::new(config);
        qos.high_posted(1, Time(0));
        assert!(qos.counts_low(Time(WINDOW)));
        qos
    }

    /// Whether the low class is ever held in a thousand windows in each of which the high class has
    /// a WR on its way for `busy` nanoseconds.
    fn is_held(busy: u64) -> bool {
        let mut qos = Qos::new(&CONFIG);
        let mut held = false;
        for window in 0..1_000 {
            let began = window * WINDOW;
            qos.high_posted(1, Time(began));
            qos.high_ended(1, Time(began + busy));
            for at in [busy, WINDOW / 2, WINDOW - 1] {
                held |= !admit(&mut qos, 10_000_000, Time(began + at));
            }
        }
        held
    }

    /// One WR now and then is no load: nobody is slowed for it.
    #[test]
    fn a_high_class_that_does_little_holds_nobody() {
        assert!(!is_held(1_000));
        assert!(!is_held(WINDOW / 4 - 1));
        assert!(is_held(WINDOW / 4));
    }

    #[test]
    fn a_claim_alone_is_no_load() {
        let mut qos = Qos::new(&CONFIG);
        qos.high_posted(1, Time(5));
        qos.high_ended(1, Time(6));
        for n in 0..10_000 {
            assert!(admit(&mut qos, 1 << 20, Time(7 + n)));
        }
    }

    #[test]
    fn who_is_busy_is_loaded_before_the_window_ends() {
        let mut qos = Qos::new(&CONFIG);
        qos.high_posted(1, Time(0));
        assert!(!qos.counts_low(Time(WINDOW / 4 - 1)));
        assert!(qos.counts_low(Time(WINDOW / 4)));
        qos.high_ended(1, Time(WINDOW / 4));
        assert!(qos.counts_low(Time(2 * WINDOW - 1)), "and in the next one");
        assert!(!qos.counts_low(Time(2 * WINDOW)), "but not beyond");
    }

    /// READs one after the other, each of which takes long because of the low class, are a load, and
    /// a short one because of the hold is one too: it does not come and go.
    #[test]
    fn one_read_after_the_other_is_a_load_however_long_they_take() {
        for takes in [5_000, 100_000, 10_000_000] {
            let mut qos = Qos::new(&CONFIG);
            let mut now = 0;
            while now < 100 * WINDOW {
                qos.high_posted(1, Time(now));
                now += takes;
                qos.high_ended(1, Time(now));
                now += 1_000;
                assert!(now <= WINDOW || qos.counts_low(Time(now)), "{takes} ns each, at {now}");
            }
        }
    }

    #[test]
    fn a_long_time_without_a_look_is_counted_as_what_it_was() {
        let mut qos = loaded(&CONFIG);
        assert!(qos.counts_low(Time(1_000 * WINDOW)), "on its way all the time");
        qos.high_ended(1, Time(1_000 * WINDOW));
        assert!(!qos.counts_low(Time(2_000 * WINDOW)), "nothing since");
        assert!(!qos.high, "and the next look costs nothing");
    }

    #[test]
    fn a_wr_larger_than_the_burst_goes_and_is_paid_for() {
        let mut qos = loaded(&CONFIG);
        assert!(admit(&mut qos, 5_000_000, Time(WINDOW)));
        assert!(!admit(&mut qos, 0, Time(WINDOW + 3_000_000)));
        assert!(admit(&mut qos, 0, Time(WINDOW + 5_000_000)));
    }

    #[test]
    fn a_rate_of_nothing_holds_until_the_high_class_rests() {
        let mut qos = loaded(&QosConfig { low_bytes_per_s: 0, ..CONFIG });
        assert!(!admit(&mut qos, 0, Time(WINDOW)));
        qos.high_ended(1, Time(WINDOW));
        assert_eq!(qos.next_low(Time(WINDOW)), Time(2 * WINDOW));
        assert!(admit(&mut qos, 0, Time(2 * WINDOW)));
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
            // The high class is loaded all along.
            let mut qos = loaded(&config);
            let (mut now, mut sent) = (Time(WINDOW), 0);
            for size in &sizes {
                while !admit(&mut qos, *size, now) {
                    let next = qos.next_low(now);
                    prop_assert!(next > now);
                    now = next;
                }
                sent += size + WR_COST_BYTES;
            }
            let largest = u128::from(sizes.iter().max().unwrap() + WR_COST_BYTES);
            let elapsed = u128::from(now.0 - WINDOW + BURST_NS);
            let allowed = elapsed * u128::from(rate) / u128::from(NS_PER_S);
            prop_assert!(u128::from(sent) <= allowed + largest + 1);
            prop_assert!(u128::from(sent) + largest + 1 >= allowed.saturating_sub(
                u128::from(BURST_NS) * u128::from(rate) / u128::from(NS_PER_S)
            ));
        }

        /// The load is the time with something on its way, however often it is looked at.
        #[test]
        fn looks_do_not_change_what_is_counted(
            steps in prop::collection::vec((0..3_000_000u64, 0..3u8), 1..100),
        ) {
            let (mut seen, mut unseen) = (Load::new(&CONFIG), Load::new(&CONFIG));
            let mut now = 0;
            for (wait, act) in steps {
                for at in (0..wait).step_by(170_003) {
                    seen.is_loaded(Time(now + at));
                }
                now += wait;
                for load in [&mut seen, &mut unseen] {
                    load.advance(Time(now));
                    match act {
                        0 => load.inflight += 1,
                        1 => load.inflight = load.inflight.saturating_sub(1),
                        _ => {}
                    }
                }
                prop_assert_eq!(seen.is_loaded(Time(now)), unseen.is_loaded(Time(now)));
                prop_assert_eq!(seen.busy_ns, unseen.busy_ns);
            }
        }
    }
}
