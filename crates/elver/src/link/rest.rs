//! What a call does while there is nothing to take: it spins, lets others run, and sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elver_portal::{Command, Turns};

use super::{Host, Link};
use crate::wait::{Sign, Wait, sleep};
use crate::waker::Bell;
use crate::{Error, Waker};

/// The longest sleep while the node cannot be woken.
const WAKE_AGAIN: Duration = Duration::from_millis(10);
/// What the node is asked for a sign: a question that it answers at once, whatever the answer is, which nobody waits for.
const SIGN: (u32, Command<'_>) = (0, Command::QueryVqp { vqp: 0 });

impl Link {
    /// To be called when a look found nothing: spins, yields or sleeps. Whether it slept.
    pub(crate) fn rest(&mut self, wait: &mut Wait) -> Result<bool, Error> {
        if wait.is_eager() {
            if self.one_core && !self.turns.may_be_held() {
                wait.let_others_run();
                self.turns.pass();
            } else {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        if wait.asks_the_time() || self.turns.may_be_held() {
            let now = Instant::now();
            // Looks take no time of note, so that a gap between them is others'.
            let (looked, sign) = wait.look_at(now, self.patience);
            if let Some(looked) = looked.filter(|_| self.is_driven()) {
                self.turns.passed(looked, now);
            }
            // Before the time: a wait of no time at all is how one takes back a waking.
            if wait.is_endable() && self.bell.as_ref().is_some_and(|bell| bell.take()) {
                return Err(Error::Woken);
            }
            if wait.is_over(now) {
                return Err(Error::TimedOut);
            }
            match sign {
                Sign::NotYet => {}
                Sign::Ask if self.ask_for_a_sign()? => wait.asked(self.patience),
                // Its ring has no room for that; it may have.
                Sign::Ask => {}
                Sign::None => return Err(Error::Silent),
            }
            let is_held = self.turns.is_held(now) && !Turns::are_ignored(self.spin);
            if wait.looked_for(now) >= self.spin || is_held {
                let at_most = wait.sleep_max(now, self.patience);
                return self.sleep(at_most, wait.is_endable()).map(|()| true);
            }
        }
        if !self.is_driven() {
            self.turns.pass();
        }
        Ok(false)
    }

    /// Asks the node for a sign; false if there is no room for that.
    #[cold]
    fn ask_for_a_sign(&mut self) -> Result<bool, Error> {
        let (request, command) = SIGN;
        let asks = self.command(request, &command)?;
        match self.ring() {
            // It may have answered before, which the next look takes.
            Ok(()) | Err(Error::NodeGone) => Ok(asks),
            Err(error) => Err(error),
        }
    }

    /// Asks the node to wake this end. False if there is something to take, and if the node is asleep and cannot be woken.
    pub(crate) fn arm(&mut self) -> Result<bool, Error> {
        if !matches!(self.host, Host::Apart) {
            return Err(DRIVEN);
        }
        if !self.wake_if_owed()? {
            return Ok(false);
        }
        // What woke this end before.
        self.look()?;
        Ok(self.end.sleep())
    }

    /// Takes what woke this end.
    pub(crate) fn disarm(&mut self) -> Result<(), Error> {
        self.end.awake();
        self.look().map(drop)
    }

    /// What ends waits.
    pub(crate) fn waker(&mut self) -> Result<Waker, Error> {
        let bell = match &self.bell {
            Some(bell) => bell.clone(),
            None => self.bell.insert(Arc::new(Bell::new()?)).clone(),
        };
        Ok(Waker(bell))
    }

    #[cold]
    fn sleep(&mut self, at_most: Duration, endable: bool) -> Result<(), Error> {
        #[cfg(feature = "embedded")]
        if let Host::Inline(node) = &self.host {
            return Ok(node.borrow_mut().rest(at_most)?);
        }
        let at_most = if self.wake_if_owed()? { at_most } else { at_most.min(WAKE_AGAIN) };
        if !self.end.sleep() {
            return Ok(());
        }
        let bell = self.bell.as_deref().filter(|_| endable);
        let slept = sleep(&self.socket, bell, at_most);
        self.end.awake();
        if slept? && endable && self.end_on_signal {
            return Err(Error::Interrupted);
        }
        if bell.is_some_and(Bell::take) {
            return Err(Error::Woken);
        }
        self.look().map(drop)
    }
}

const DRIVEN: Error = Error::Invalid {
    what: "a node that this thread drives wakes nobody; give it a thread of its own (Node::spawn)",
};
