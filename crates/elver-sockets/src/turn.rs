//! When a call looks at connections that it is not of, and that have not been agreed on.

use std::time::{Duration, Instant};

/// So many are looked at in each call.
const FEW: usize = 16;
/// How long more than that are left alone at least, and how many times as long as the look at them took.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES_PER_LOOK: u32 = 8;

#[derive(Debug, Default)]
pub(crate) struct Turn {
    next: Option<Instant>,
}

impl Turn {
    /// Whether it is time to look at so many.
    pub(crate) fn is_due(&self, count: usize, now: Instant) -> bool {
        count <= FEW || self.next.is_none_or(|next| now >= next)
    }

    /// They were looked at.
    pub(crate) fn looked(&mut self, began: Instant, ended: Instant) {
        self.next = Some(ended + PAUSE.max((ended - began) * PAUSES_PER_LOOK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call looked at all: of thousands that came at once each cost as many looks.
    #[test]
    fn however_many_there_are_they_have_a_ninth_of_the_time_at_most() {
        let (began, mut turn) = (Instant::now(), Turn::default());
        let mut now = began;
        let (mut looks, mut looked) = (0, Duration::ZERO);
        while now < began + Duration::from_secs(1) {
            if turn.is_due(2_000, now) {
                let took = Duration::from_micros(600);
                turn.looked(now, now + took);
                (looks, looked, now) = (looks + 1, looked + took, now + took);
            }
            now += Duration::from_micros(2);
        }
        assert!(looks > 100 && looked < Duration::from_millis(112), "{looks} looks, {looked:?}");
    }

    #[test]
    fn few_are_looked_at_in_each_call() {
        let (now, mut turn) = (Instant::now(), Turn::default());
        turn.looked(now, now + Duration::from_micros(5));
        assert!(turn.is_due(16, now) && !turn.is_due(17, now));
    }
}
