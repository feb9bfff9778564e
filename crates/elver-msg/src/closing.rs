//! Ends that are done with, until what they were told has arrived.

use std::time::{Duration, Instant};

use elver::Session;
use elver_ring::Ends;

use crate::link::Link;

/// How long what an end was told last may take to arrive.
const CLOSING: Duration = Duration::from_millis(250);
/// Most that are waited for; the oldest one goes for a further one.
const CLOSING_MAX: usize = 16;
/// Until it is looked again whether it has arrived.
const LOOK: Duration = Duration::from_millis(1);

/// What ends without a wait.
pub(crate) trait Close {
    /// Ends both directions.
    fn begin_close(&mut self);

    /// Whether all has arrived, as far as it will. Dropped from then on, it waits for nothing.
    fn is_settled(&mut self) -> bool;
}

impl Close for Ends {
    fn begin_close(&mut self) {
        // Whoever is gone needs not hear of it.
        let _ = self.sender.begin_end();
        let _ = self.receiver.begin_stop();
    }

    fn is_settled(&mut self) -> bool {
        let polled = self.sender.poll().and_then(|()| self.receiver.poll());
        let is_posted = !self.sender.is_held_up() && !self.receiver.is_held_up();
        self.receiver.carrier().is_settled() && (is_posted || polled.is_err())
    }
}

impl Close for Link {
    fn begin_close(&mut self) {
        let _ = self.out.begin_end();
        let _ = self.incoming.begin_stop();
    }

    fn is_settled(&mut self) -> bool {
        let polled = self.out.poll().and_then(|()| self.incoming.poll());
        let is_posted = !self.out.is_held_up() && !self.incoming.is_held_up();
        self.wire().is_settled() && (is_posted || polled.is_err())
    }
}

/// Those that end, and since when.
pub(crate) struct Closing<T>(Vec<(T, Instant)>);

impl<T: Close> Closing<T> {
    pub(crate) fn new() -> Closing<T> {
        Closing(Vec::new())
    }

    /// One more, beside as many as are waited for.
    pub(crate) fn push(&mut self, end: T) {
        if self.0.len() >= CLOSING_MAX {
            // Asked once whether it is settled, it waits for nothing.
            self.0.remove(0).0.is_settled();
        }
        self.add(end);
    }

    fn add(&mut self, mut end: T) {
        end.begin_close();
        self.0.push((end, Instant::now()));
    }

    /// Lets those go that are over, and those that take too long.
    pub(crate) fn look(&mut self) {
        self.0.retain_mut(|(end, since)| !end.is_settled() && since.elapsed() < CLOSING);
    }

    /// Ends these too, and waits for all together.
    pub(crate) fn finish(&mut self, session: &Session, more: impl Iterator<Item = T>) {
        more.for_each(|end| self.add(end));
        loop {
            self.look();
            if self.0.is_empty() {
                return;
            }
            let _ = session.wait_ready(Some(LOOK));
        }
    }
}
