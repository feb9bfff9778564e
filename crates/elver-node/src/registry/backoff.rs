use elver_verbs::Time;

/// When to try again: after doubling distances with jitter, so that the nodes of a cluster do not
/// come back to a server that restarts all at once.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    first_ns: u64,
    most_ns: u64,
    next_ns: u64,
    random: u64,
}

impl Backoff {
    pub(super) fn new(first_ns: u64, most_ns: u64, seed: u64) -> Backoff {
        Backoff { first_ns, most_ns, next_ns: first_ns, random: seed | 1 }
    }

    /// The moment of the next try.
    pub(super) fn next(&mut self, now: Time) -> Time {
        let base = self.next_ns;
        self.next_ns = base.saturating_mul(2).min(self.most_ns);
        // Between three quarters and five quarters of it.
        let jitter = self.random() % (base / 2).max(1);
        now.saturating_add_ns(base - base / 4 + jitter)
    }

    /// It went well: the next distance is the first again.
    pub(super) fn reset(&mut self) {
        self.next_ns = self.first_ns;
    }

    /// Xorshift: this is no secret.
    fn random(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_double_up_to_the_most_and_begin_anew() {
        let mut backoff = Backoff::new(100, 1_000, 7);
        for base in [100, 200, 400, 800, 1_000, 1_000] {
            let at = backoff.next(Time(0)).0;
            assert!((base * 3 / 4..=base * 5 / 4).contains(&at), "{at} for {base}");
        }
        backoff.reset();
        assert!(backoff.next(Time(0)).0 <= 125);
    }
}
