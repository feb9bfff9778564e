//! Messages that wait for receives, and senders that wait until there are fewer.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::Config;
use crate::ids::PeerId;
use crate::messaging::incoming::Incoming;

/// A backlog is filling from this part of what it may hold on, and low below half of that.
const FILLING: u64 = 8;

/// Most senders that a VQP has a note of: beyond all accepted VQPs that a node has by default. One more asks
/// again until it may go on.
const HALTED_MAX: usize = 1 << 14;

/// A queue of so few messages gives no memory back before it is empty.
const ROOM_MIN: usize = 16;

const _: () = assert!(size_of::<(Incoming, Vec<u8>)>() as u64 <= Config::HELD_MESSAGE_BYTES);

/// What a message counts for that waits with so many bytes.
pub(crate) fn cost_of(bytes: usize) -> u64 {
    Config::HELD_MESSAGE_BYTES + bytes as u64
}

/// Senders that wait for a VQP: their nodes and VQPs, and the last cookie of each.
pub(crate) type Halted = BTreeMap<(PeerId, u32), u64>;

/// Messages that wait for receives.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) messages: VecDeque<(Incoming, Vec<u8>)>,
    /// What they cost.
    pub(crate) bytes: u64,
    /// Who answers for the VQP's client.
    pub(crate) account: u64,
    /// Senders that wait until there are fewer.
    pub(crate) halted: Halted,
}

impl Backlog {
    /// Whether its senders must wait.
    pub(crate) fn is_filling(&self, config: &Config) -> bool {
        self.has_part(FILLING, config)
    }

    /// Whether senders that wait may go on.
    pub(crate) fn is_low(&self, config: &Config) -> bool {
        !self.has_part(2 * FILLING, config)
    }

    /// Makes a note of a sender that waits, if there is room. Whether it was not known to wait before: who has connected
    /// anew was told over another connection, and its secret is another.
    pub(crate) fn halt(&mut self, from: (PeerId, u32), cookie: u64) -> bool {
        if self.halted.len() < HALTED_MAX || self.halted.contains_key(&from) {
            let before = self.halted.insert(from, cookie);
            before.is_none_or(|before| before >> 32 != cookie >> 32)
        } else {
            true
        }
    }

    /// Takes out the message at a place.
    pub(crate) fn take(&mut self, at: usize) -> Option<(Incoming, Vec<u8>)> {
        let taken = self.messages.remove(at);
        // What was kept for many is not kept for few: they count for their own places alone.
        let room = self.messages.capacity();
        if room > ROOM_MIN && self.messages.len() < room / 4 {
            self.messages.shrink_to(room / 2);
        }
        taken
    }

    /// Whether it has at least the `parts`th part of what it may hold.
    fn has_part(&self, parts: u64, config: &Config) -> bool {
        let messages = (self.messages.len() as u64).saturating_mul(parts);
        messages >= u64::from(config.backlog).max(1)
            || self.bytes.saturating_mul(parts) >= config.backlog_bytes.max(1)
    }
}

#[cfg(test)]
mod tests {
    use elver_verbs::Time;

    use super::*;
    use crate::messaging::message::Kind;

    fn held(n: u64) -> (Incoming, Vec<u8>) {
        let incoming = Incoming {
            kind: Kind::Eager,
            imm: None,
            length: 0,
            cookie: n,
            source: None,
            from: (PeerId::numbered(1), 1),
            tag: 0,
            until: Time::ZERO,
            ask_at: Time::ZERO,
        };
        (incoming, Vec::new())
    }

    #[test]
    fn few_messages_do_not_keep_what_many_took() {
        let mut backlog = Backlog::default();
        backlog.messages.extend((0..4_096).map(held));
        for n in 0..4_096 {
            let place = backlog.messages.len() / 2 * (n % 2);
            assert!(backlog.take(place).is_some());
            let (room, left) = (backlog.messages.capacity(), backlog.messages.len());
            assert!(room <= ROOM_MIN || room <= 4 * left, "room for {room} of {left}");
        }
        assert!(backlog.take(0).is_none());
    }

    /// Nor does one that comes and goes have them moved each time.
    #[test]
    fn messages_that_come_and_go_stay_where_they_are() {
        let mut backlog = Backlog::default();
        backlog.messages.extend((0..4_096).map(held));
        let mut rooms = Vec::new();
        while backlog.take(0).is_some() {
            backlog.messages.push_back(held(0));
            rooms.push(backlog.messages.capacity());
            backlog.take(0);
        }
        rooms.dedup();
        assert!(rooms.is_sorted_by(|before, after| before > after), "{rooms:?}");
    }

    #[test]
    fn so_many_senders_are_noted_and_each_once() {
        let mut backlog = Backlog::default();
        let sender = |n: usize| (PeerId::numbered(1), n as u32);
        for n in 0..HALTED_MAX + 5 {
            assert!(backlog.halt(sender(n), 1), "one more has not waited before");
        }
        assert_eq!(backlog.halted.len(), HALTED_MAX);
        assert!(!backlog.halt(sender(0), 2), "who is noted is still heard");
        assert_eq!(backlog.halted[&sender(0)], 2);
        assert!(backlog.halt(sender(0), 1 << 32 | 2), "of another connection");
        assert!(!backlog.halt(sender(0), 1 << 32 | 3));
    }
}
