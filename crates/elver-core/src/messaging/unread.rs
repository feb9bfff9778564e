use elver_verbs::Time;

use crate::VqpId;
use crate::due::DueQueue;
use crate::vqp::seq::SendSeq;

/// Long messages that their receivers have not read, by when they are looked after: the VQP of each, and
/// its number there.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    messages: DueQueue<(VqpId, SendSeq)>,
}

impl Unread {
    /// A message is looked after then.
    pub(crate) fn look_after(&mut self, due: Time, vqp: VqpId, seq: SendSeq) {
        self.messages.push(due, (vqp, seq));
    }

    /// The next that is to be looked after now, or that is not `awaited` any longer.
    pub(crate) fn pop(
        &mut self,
        now: Time,
        awaited: impl Fn(VqpId, SendSeq) -> bool,
    ) -> Option<(VqpId, SendSeq)> {
        self.messages.pop_due_unless(now, |(vqp, seq)| awaited(*vqp, *seq))
    }

    /// Those that are looked after, each once or more.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VqpId, SendSeq)> {
        self.messages.iter().copied()
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.messages.next_due()
    }
}
