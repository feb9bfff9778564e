//! Refuses messages, and tells their senders until they hear.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::messaging::message::{Kind, Refusal};
use crate::messaging::notes::Note;
use crate::messaging::refusals::Sender;

impl<D: Device> Core<D> {
    /// Tells the sender of a message that it was refused, and takes none of it that come behind.
    pub(crate) fn refuse(&mut self, to: Sender, refusal: Refusal, cookie: u64) {
        self.stats.messages_refused += 1;
        self.messaging.refusals.refuse(to, refusal, cookie);
        self.tell_refusal(to, refusal, cookie);
    }

    fn tell_refusal(&mut self, to: Sender, refusal: Refusal, cookie: u64) {
        let note = Note::to_sender(Kind::Nack, to.1, cookie);
        let note = Note { detail: refusal as u16, ..note };
        if !self.messaging.notes.tell(&mut self.stats, to.0, note) {
            self.messaging.refusals.tell_again(
                Self::query_at(self.arrivals.heard.now()),
                to,
                cookie,
            );
        }
    }

    /// A sender was told of a refusal, or could not be told.
    pub(crate) fn refusal_told(&mut self, to: Sender, cookie: u64, ok: bool, now: Time) {
        if ok {
            self.messaging.refusals.told(to, cookie);
        } else if self.peers.get(to.0).is_none() {
            self.messaging.refusals.forget(to);
        } else {
            self.messaging.refusals.tell_again(Self::query_at(now), to, cookie);
        }
    }

    /// Tells those again that did not hear of refusals. Whether there were any.
    #[inline]
    pub(crate) fn attend_refusals(&mut self, now: Time) -> bool {
        self.messaging.refusals.next_due().is_some_and(|due| due <= now) && self.refusals_due(now)
    }

    #[cold]
    fn refusals_due(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((to, refused)) = self.messaging.refusals.pop_due(now) {
            if let Some((refusal, cookie)) = refused {
                self.tell_refusal(to, refusal, cookie);
            }
            busy = true;
        }
        busy
    }
}
