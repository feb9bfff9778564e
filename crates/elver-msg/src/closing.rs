//! Ends that are done with, until what they were told has arrived.

use std::time::{Duration, Instant};

use elver::Session;

use crate::link::Link;

/// How long what an end was told last may take to arrive.
const CLOSING: Duration = Duration::from_millis(250);
/// Most that are waited for; the oldest one goes for a further one.
const CLOSING_MAX: usize = 16;
/// Until it is looked again whether it has arrived.
const LOOK: Duration = Duration::from_millis(1);

/// Those that end, and since when.
pub(crate) struct Closing(Vec<(Link, Instant)>);

impl Closing {
    pub(crate) fn new() -> Closing {
        Closing(Vec::new())
    }

    /// One more, beside as many as are waited for.
    pub(crate) fn push(&mut self, end: Link) {
        if self.0.len() >= CLOSING_MAX {
            // Asked once whether it is settled, it waits for nothing.
            self.0.remove(0).0.is_settled();
        }
        self.add(end);
    }

    fn add(&mut self, mut end: Link) {
        end.begin_close();
        self.0.push((end, Instant::now()));
    }

    /// Lets those go that are over, and those that take too long.
    pub(crate) fn look(&mut self) {
        self.0.retain_mut(|(end, since)| !end.is_settled() && since.elapsed() < CLOSING);
    }

    /// Ends these too, and waits for all together.
    pub(crate) fn finish(&mut self, session: &Session, more: impl Iterator<Item = Link>) {
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
