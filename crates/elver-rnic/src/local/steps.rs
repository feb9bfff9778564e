//! A WR that is too long to be copied within the device at once, and how far it has come.

use elver_verbs::Memory;

use crate::lane::{Env, Lane};

impl Lane {
    /// How many bytes of the front WR are copied at once.
    #[inline]
    pub(crate) fn turn_of(&self, length: u32) -> u32 {
        match self.step {
            Some(step) => step.min(length - self.copied),
            None => length,
        }
    }

    /// Has the front WR copied step by step, each of so many bytes at most. False if it is already.
    #[cold]
    pub(crate) fn shorten(&mut self, step: u32) -> bool {
        let shorter = self.step.is_none_or(|before| step < before);
        if shorter {
            self.step = Some(step);
        }
        shorter
    }

    /// The front WR ends, with what of it was not copied.
    #[cold]
    pub(crate) fn leave_off(&mut self) {
        (self.sending, self.step, self.copied) = (None, None, 0);
    }

    /// A step of the front WR was done: whether there is more of it.
    #[inline]
    pub(crate) fn goes_on<M: Memory>(&mut self, env: &Env<'_, M>) -> bool {
        if self.sending.is_none() && self.step.is_none() {
            return false;
        }
        self.sending = None;
        if self.step.is_none() {
            return false;
        }
        let length = self.queue.front().map_or(0, |slot| env.pool.get(*slot).length);
        self.copied += self.turn_of(length);
        if self.copied < length {
            return true;
        }
        (self.step, self.copied) = (None, 0);
        false
    }
}
