//! Who guesses keys of regions. The node looks up each that its processes use, and tells them whether it
//! is there: so whoever is wrong too often is not told for a while, and causes no READs meanwhile.
//!
//! What counts is the account ([`crate::ClientLimits::account`]), since a process costs its user nothing.

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Look-ups of an account that may find nothing: so many at once,
const GUESSES_AT_ONCE: u64 = 1_000;
/// and then so many a second.
const GUESSES_PER_S: u64 = 10;
/// An account that stops guessing is asked for again after so many seconds at most.
const GRUDGE_S: u64 = 10;
/// Accounts that are remembered at once. Beyond, the one that has guessed least is forgotten.
const GUESSERS_MAX: usize = 1_024;

/// What was looked up in vain, by account.
#[derive(Debug, Default)]
pub(crate) struct Guesses(HashMap<u64, Tally, FxBuildHasher>);

#[derive(Clone, Copy, Debug)]
struct Tally {
    /// Look-ups that were not forgiven yet.
    wrong: u64,
    /// When the last one was forgiven.
    at: Time,
}

impl Guesses {
    /// An account had a region looked up that its peer does not have.
    #[cold]
    pub(crate) fn wrong(&mut self, account: u64, now: Time) {
        if !self.0.contains_key(&account) && self.0.len() >= GUESSERS_MAX {
            self.make_room(now);
        }
        let tally = self.0.entry(account).or_insert(Tally { wrong: 0, at: now });
        tally.forgive(now);
        tally.wrong = (tally.wrong + 1).min(GUESSES_AT_ONCE + GUESSES_PER_S * GRUDGE_S);
    }

    /// Whether an account was wrong too often.
    pub(crate) fn holds(&self, account: u64, now: Time) -> bool {
        self.0.get(&account).is_some_and(|tally| {
            let mut tally = *tally;
            tally.forgive(now);
            tally.wrong >= GUESSES_AT_ONCE
        })
    }

    fn make_room(&mut self, now: Time) {
        self.0.retain(|_, tally| {
            tally.forgive(now);
            tally.wrong > 0
        });
        if self.0.len() >= GUESSERS_MAX
            && let Some(least) =
                self.0.iter().min_by_key(|(account, tally)| (tally.wrong, **account))
        {
            let least = *least.0;
            self.0.remove(&least);
        }
    }
}

impl Tally {
    fn forgive(&mut self, now: Time) {
        let apart = 1_000_000_000 / GUESSES_PER_S;
        let forgiven = now.ns_since(self.at) / apart;
        if forgiven >= self.wrong {
            (self.wrong, self.at) = (0, now);
        } else {
            self.wrong -= forgiven;
            self.at = self.at.saturating_add_ns(forgiven * apart);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_may_be_wrong_so_often_at_once_and_then_so_often_a_second() {
        let mut guesses = Guesses::default();
        let mut tries = |from: u64, count: u64, apart: u64| {
            let times = (0..count).map(|n| Time(from + n * apart));
            let mut made = 0;
            for now in times {
                if !guesses.holds(7, now) {
                    guesses.wrong(7, now);
                    made += 1;
                }
            }
            made
        };
        assert_eq!(tries(5, 3_000, 0), GUESSES_AT_ONCE);
        let in_ten_seconds: u64 = tries(5, 10_000, 1_000_000);
        assert!(in_ten_seconds.abs_diff(10 * GUESSES_PER_S) <= 1, "{in_ten_seconds}");
        assert!(!guesses.holds(8, Time(10_000_000_000)));
        assert!(!guesses.holds(7, Time(30_000_000_000)), "it is forgiven");
    }

    #[test]
    fn who_is_wrong_now_and_then_is_not_held() {
        let mut guesses = Guesses::default();
        for second in 0..10_000 {
            for _ in 0..GUESSES_PER_S {
                guesses.wrong(7, Time(second * 1_000_000_000));
            }
            assert!(!guesses.holds(7, Time(second * 1_000_000_000)));
        }
    }

    #[test]
    fn accounts_are_bounded_and_who_guesses_most_is_remembered() {
        let mut guesses = Guesses::default();
        for _ in 0..GUESSES_AT_ONCE {
            guesses.wrong(7, Time(5));
        }
        for account in 100..5_000 {
            guesses.wrong(account, Time(5));
            assert!(guesses.0.len() <= GUESSERS_MAX);
        }
        assert!(guesses.holds(7, Time(5)));
        guesses.wrong(5_000, Time(1_000_000_000_000));
        assert_eq!(guesses.0.len(), 1, "who is forgiven takes no room");
    }
}
