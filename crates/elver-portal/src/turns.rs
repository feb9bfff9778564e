use std::time::{Duration, Instant};

/// A turn of another thread that is longer is none of a thread that waits as well: it ends when the system ends
/// it, after some milliseconds. What ends of rings do in a turn takes a tenth of this.
const LONG: Duration = Duration::from_micros(500);
/// A turn that was no shorter was one; without anybody to yield to, a thread has its core back sooner.
const SHORTEST: Duration = Duration::from_micros(2);
/// And a turn up to this may have been the other end's of a ring: it did what it was asked, and yielded.
const SHORT: Duration = Duration::from_micros(100);
/// How long to sleep instead, at first and at most.
const HELD_FIRST: Duration = Duration::from_millis(2);
const HELD_LONGEST: Duration = Duration::from_millis(512);
/// Who is to look for so long has a core for it, and looks on whatever others do.
const THROUGHOUT: Duration = Duration::from_secs(1);
/// Short turns in a row after which a long one is the first again.
const SHORT_TURNS: u32 = 256;

/// How a thread that looks for something again and again lets others run, and when it had better sleep.
///
/// Who yields to a thread that never waits gets its core back when that one's time is over, some milliseconds
/// later; who sleeps gets it at once when it is woken. So after a long turn of others, a thread looks on no
/// more for a while: two milliseconds, and four times as long after each try that ends so again.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    held_until: Option<Instant>,
    held_for: Duration,
    short: u32,
    /// The last turn of others was a short one.
    shares: bool,
}

impl Turns {
    /// Whether who is to look for so long in a wait does so whatever turns others have: from a second on.
    #[inline]
    pub fn are_ignored(spin: Duration) -> bool {
        spin >= THROUGHOUT
    }

    /// Whether it is better to sleep now than to look on.
    #[inline]
    pub fn is_held(&mut self, now: Instant) -> bool {
        let is_held = self.held_until.is_some_and(|until| now < until);
        if !is_held {
            self.held_until = None;
        }
        is_held
    }

    /// As [`Turns::is_held`], by the clock of now, which is not asked while nothing is held.
    #[inline]
    pub fn is_held_now(&mut self) -> bool {
        self.may_be_held() && self.is_held(Instant::now())
    }

    /// As [`Turns::is_held`], as far as is known without the time: false is certain.
    #[inline]
    pub fn may_be_held(&self) -> bool {
        self.held_until.is_some()
    }

    /// Whether others had a short turn when they could run last: the other end of a ring may be among them,
    /// and does nothing before it is let run.
    #[inline]
    pub fn shares_core(&self) -> bool {
        self.shares && self.held_until.is_none()
    }

    /// Lets other threads run once.
    #[inline]
    pub fn pass(&mut self) {
        let from = Instant::now();
        // Not by the C library, where the call stands on a page that a new process has not looked at.
        rustix::thread::sched_yield();
        self.passed(from, Instant::now());
    }

    /// Others may have run from one time to the other.
    #[inline]
    pub fn passed(&mut self, from: Instant, to: Instant) {
        let turn = to.saturating_duration_since(from);
        self.shares = (SHORTEST..=SHORT).contains(&turn);
        if turn >= LONG {
            self.hold(to);
        } else if self.short < SHORT_TURNS {
            self.short += 1;
        } else {
            self.held_for = Duration::ZERO;
        }
    }

    #[cold]
    fn hold(&mut self, now: Instant) {
        self.short = 0;
        self.held_for = (self.held_for * 4).clamp(HELD_FIRST, HELD_LONGEST);
        self.held_until = Some(now + self.held_for);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_shared_with_who_had_it_last_for_a_short_time() {
        let mut turns = Turns::default();
        let now = Instant::now();
        assert!(!turns.shares_core());
        for (turn, shares) in
            [(SHORTEST, true), (SHORTEST / 2, false), (SHORT, true), (2 * SHORT, false)]
        {
            turns.passed(now, now + turn);
            assert_eq!(turns.shares_core(), shares, "after {turn:?}");
        }
        // Who is held does not yield, whoever was short behind that.
        turns.passed(now, now + LONG);
        turns.passed(now, now + SHORT);
        assert!(!turns.shares_core());
    }

    #[test]
    fn long_turns_hold_for_longer_each_time_and_short_ones_make_up_for_it() {
        let mut turns = Turns::default();
        let mut now = Instant::now();
        let short = LONG / 2;
        let mut held = Vec::new();
        for _ in 0..6 {
            turns.passed(now, now + short);
            assert!(!turns.is_held(now));
            turns.passed(now, now + LONG);
            now += LONG;
            assert!(turns.may_be_held() && turns.is_held(now));
            let began = now;
            while turns.is_held(now) {
                now += Duration::from_millis(1);
            }
            assert!(!turns.may_be_held());
            held.push((now - began).as_millis());
        }
        assert_eq!(held, [2, 8, 32, 128, 512, 512]);
        for _ in 0..=SHORT_TURNS {
            turns.passed(now, now + short);
        }
        turns.passed(now, now + LONG);
        assert!(!turns.is_held(now + LONG + HELD_FIRST));
    }
}
