//! Messages that wait at VQPs for receives, of all VQPs together.

use elver_verbs::Time;

use crate::VqpId;
use crate::due::DueQueue;

/// How many bytes wait, and which VQPs look at what waits again by the clock: their senders are asked, or
/// looked up.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: u64,
    asking: DueQueue<VqpId>,
}

impl Held {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether no more than `limit` bytes wait with so many more.
    pub(crate) fn has_room(&self, bytes: u64, limit: u64) -> bool {
        self.bytes + bytes <= limit
    }

    /// A message of so many bytes waits.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Messages of so many bytes wait no longer.
    pub(crate) fn remove(&mut self, bytes: u64) {
        count_off!(self.bytes, bytes);
    }

    /// A VQP's first message is looked at again then.
    pub(crate) fn ask_later(&mut self, due: Time, vqp: VqpId) {
        self.asking.push(due, vqp);
    }

    /// A VQP's messages are looked at at the next opportunity: not on top of who says so.
    pub(crate) fn ask_now(&mut self, now: Time, vqp: VqpId) {
        self.asking.push_first(now, vqp);
    }

    /// The next VQP whose messages are to be looked at.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<VqpId> {
        self.asking.pop_due(now)
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.asking.next_due()
    }

    /// Whether a VQP's messages will be looked at.
    pub(crate) fn awaits(&self, vqp: VqpId) -> bool {
        self.asking.iter().any(|asks| *asks == vqp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_come_back() {
        let mut held = Held::default();
        assert!(held.has_room(100, 100) && !held.has_room(101, 100));
        held.add(60);
        held.add(40);
        assert!(!held.has_room(1, 100));
        held.remove(60);
        assert_eq!((held.bytes(), held.has_room(60, 100)), (40, true));
    }

    #[test]
    fn who_is_to_look_at_once_goes_first() {
        let mut held = Held::default();
        held.ask_later(Time(20), VqpId(1));
        held.ask_now(Time(10), VqpId(2));
        assert!(held.awaits(VqpId(1)) && held.awaits(VqpId(2)) && !held.awaits(VqpId(3)));
        assert_eq!((held.pop_due(Time(10)), held.pop_due(Time(10))), (Some(VqpId(2)), None));
        assert_eq!(held.next_due(), Some(Time(20)));
    }
}
