//! How a wire sleeps, and waits for what it has posted when it goes.
//!
//! A WRITE makes no completion at the peer, so that one who sleeps must be woken by a message. Who is about
//! to sleep writes a new number into the peer's nap word. The peer looks at that word whenever it writes a
//! pointer, and again when a tail has completed; when the number is one that it has not seen, it sends a
//! message: to who connected one of one byte on the VQP, or on the one back to it where the rings have another
//! ([`crate::side`]), and to a listener's end one to its port ([`crate::ringer`]). A pointer that was under way while the word was written may be missed by both; the
//! first sleep is therefore short, and each one twice as long as the one before, up to a quarter of a
//! second. Then, and when it was woken and finds nothing, it writes the word anew. That shows at the same
//! time whether the peer is there; who looks without sleeping writes the old number as often, for this alone.

use std::time::{Duration, Instant};

use super::{NAP_LONGEST, Shared};
use crate::Error;
use crate::carrier::Pause;

/// The first sleep; the longest is [`NAP_LONGEST`].
const NAP_FIRST: Duration = Duration::from_millis(1);
/// How long an end that is dropped waits for what it has posted.
const SETTLE: Duration = Duration::from_secs(1);

impl Shared {
    #[cold]
    pub(super) fn rest(&self, pause: &mut Pause) -> Result<(), Error> {
        let Some(slice) = self.before_sleep(pause)? else { return Ok(()) };
        let slept = self.session.wait_ready(Some(slice)).map(drop);
        self.after_sleep(pause, slept)
    }

    /// How long to sleep before the next look, when the peer knows of it; nothing as long as this end
    /// looks on.
    pub(crate) fn before_sleep(&self, pause: &mut Pause) -> Result<Option<Duration>, Error> {
        pause.looks = pause.looks.saturating_add(1);
        if pause.looks < self.eager_looks {
            std::hint::spin_loop();
            return Ok(None);
        }
        let now = Instant::now();
        let left = pause.left(now)?;
        let looked_for = now - *pause.began.get_or_insert(now);
        if looked_for < self.spin && self.session.look_on(now, self.spin) {
            return Ok(None);
        }
        let told = pause.told;
        let slice = self.lie_down(pause, now)?;
        if pause.told != told {
            // What came before the peer knew of it is looked for once more.
            return Ok(None);
        }
        let due = pause.due.map(|due| due.saturating_duration_since(now));
        Ok(Some([left, due].into_iter().flatten().fold(slice, Duration::min)))
    }

    /// Tells the peer that this end sleeps, unless it knows; how long to sleep at most.
    pub(super) fn lie_down(&self, pause: &mut Pause, now: Instant) -> Result<Duration, Error> {
        // One that was woken, by a pointer that it knew maybe, is not woken again from the same nap.
        let rung = self.rung.get();
        let is_awake = std::mem::replace(&mut pause.rung, rung) != rung;
        if is_awake || pause.told.is_none_or(|told| now - told >= NAP_LONGEST) {
            let nap = self.nap.get() + 1;
            if self.post(&[], Some(nap))? {
                self.nap.set(nap);
                pause.told = Some(now);
                pause.slice = NAP_FIRST;
            }
        }
        Ok(pause.slice.max(NAP_FIRST))
    }

    /// Whether this end was woken since it lay down.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_roused(&self, pause: &Pause) -> bool {
        self.rung.get() != pause.rung
    }

    /// What woke this end: the next sleep is longer if nothing did.
    pub(crate) fn after_sleep(
        &self,
        pause: &mut Pause,
        slept: Result<(), elver::Error>,
    ) -> Result<(), Error> {
        match slept {
            Ok(()) => {}
            Err(elver::Error::TimedOut) => pause.slice = (pause.slice * 2).min(NAP_LONGEST),
            Err(error) => return Err(error.into()),
        }
        self.look_around()
    }
}

impl Drop for Shared {
    /// Lets what was posted arrive, the end of a ring above all, for a short time: with the VQP it would go.
    fn drop(&mut self) {
        if self.hurries.get() {
            return;
        }
        let (began, mut is_told) = (Instant::now(), false);
        loop {
            if self.poll().is_err() {
                return;
            }
            if !is_told {
                // Behind what the ends had still to say; where there is no room for it, behind what has arrived.
                let Ok(is_said) = self.say_left() else { return };
                // Signalled, and no news for the peer.
                let told = is_said.then(|| self.post(&[], Some(self.nap.get())));
                let Ok(told) = told.unwrap_or(Ok(false)) else { return };
                is_told = told;
            }
            if is_told && self.has_arrived() || began.elapsed() >= SETTLE {
                return;
            }
            let _ = self.session.wait_ready(Some(NAP_FIRST));
        }
    }
}
