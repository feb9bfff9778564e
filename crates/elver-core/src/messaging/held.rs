//! Messages that wait at VQPs for receives, of all VQPs together.

use alloc::format;
use alloc::string::String;

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::VqpId;
use crate::due::DueQueue;

/// What messages that wait cost in bytes, and which VQPs look at what waits again by the clock: their senders are asked, or
/// looked up.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: u64,
    /// The same by who answers for the VQPs' clients.
    of_accounts: HashMap<u64, u64, FxBuildHasher>,
    asking: DueQueue<VqpId>,
}

impl Held {
    /// What those that wait cost.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether so many more bytes may wait for an account, where `limit` may in all: none has more than half of what the
    /// others leave, or one that takes nothing would have everybody's messages refused.
    pub(crate) fn has_room(&self, account: u64, bytes: u64, limit: u64) -> bool {
        let own = self.of_accounts.get(&account).copied().unwrap_or(0);
        own + bytes <= limit.saturating_sub(self.bytes - own) / 2
    }

    /// A message that costs so many bytes waits.
    pub(crate) fn add(&mut self, account: u64, bytes: u64) {
        self.bytes += bytes;
        *self.of_accounts.entry(account).or_default() += bytes;
    }

    /// Messages that cost so many bytes wait no longer.
    pub(crate) fn remove(&mut self, account: u64, bytes: u64) {
        // None was there to be taken.
        if bytes == 0 {
            return;
        }
        count_off!(self.bytes, bytes);
        let Some(own) = self.of_accounts.get_mut(&account) else {
            return bug!("messages waited for nobody");
        };
        count_off!(*own, bytes);
        if *own == 0 {
            self.of_accounts.remove(&account);
        }
    }

    /// Checks the accounts against the whole.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let all: u64 = self.of_accounts.values().sum();
        if all == self.bytes {
            Ok(())
        } else {
            Err(format!("{} bytes of messages wait, of accounts {all}", self.bytes))
        }
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
        assert!(held.has_room(1, 50, 100) && !held.has_room(1, 51, 100));
        held.add(1, 30);
        held.add(1, 20);
        assert!(!held.has_room(1, 1, 100));
        // The others have their half of the rest.
        assert!(held.has_room(2, 25, 100) && !held.has_room(2, 26, 100));
        held.add(2, 25);
        held.remove(1, 30);
        assert_eq!((held.bytes(), held.has_room(1, 17, 100)), (45, true));
        held.remove(1, 20);
        held.remove(2, 25);
        held.remove(3, 0);
        assert_eq!((held.bytes(), held.of_accounts.len()), (0, 0));
        held.audit().unwrap();
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
