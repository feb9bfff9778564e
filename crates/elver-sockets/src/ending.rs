//! Streams that have ended, of which not all is on its way.

use std::time::{Duration, Instant};

use elver_stream::Closing;

/// How long what was written before the end of a stream may take to be on its way.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a look counts for at most: while nobody looks, nothing is let out.
const LOOK_MAX: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Ending {
    closing: Closing,
    patience: Patience,
}

impl Ending {
    pub(crate) fn new(closing: Closing) -> Ending {
        Ending { closing, patience: Patience::new(Instant::now()) }
    }

    /// Whether all is on its way, or has taken too long.
    pub(crate) fn is_over(&mut self) -> bool {
        self.closing.poll() || self.patience.is_over(Instant::now())
    }
}

#[derive(Debug)]
struct Patience {
    last: Instant,
    spent: Duration,
}

impl Patience {
    fn new(now: Instant) -> Patience {
        Patience { last: now, spent: Duration::ZERO }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        self.spent += (now - self.last).min(LOOK_MAX);
        self.last = now;
        self.spent > PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One look after a long sleep must not give up what it has just let out.
    #[test]
    fn time_in_which_nobody_looks_is_not_counted() {
        let began = Instant::now();
        let mut patience = Patience::new(began);
        assert!(!patience.is_over(began + Duration::from_secs(60)));
        let mut at = began + Duration::from_secs(60);
        let mut looks = 0;
        while !patience.is_over(at) {
            at += Duration::from_millis(1);
            looks += 1;
        }
        assert_eq!(looks, 991);
    }
}
