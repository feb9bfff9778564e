//! How often the processes of a user connect: what the engine learns of each, its process and its
//! namespaces, takes it tens of microseconds, and is on nobody's account before.

use elver_verbs::Time;
use rustc_hash::FxHashMap;

/// Connects of a user at once.
const BURST: u64 = 2_048;
/// A user may connect once more after so long.
const EACH_NS: u64 = 1_000_000;

/// Who connected lately: until when the connects of each user are paid for.
#[derive(Debug, Default)]
pub(super) struct Visits(FxHashMap<u32, Time>);

impl Visits {
    /// A process of a user's connects; false if these did so too often.
    pub(super) fn enter(&mut self, uid: u32, now: Time) -> bool {
        let paid = self.0.entry(uid).or_insert(now);
        let until = (*paid).max(now).saturating_add_ns(EACH_NS);
        let may = until.ns_since(now) <= BURST * EACH_NS;
        if may {
            *paid = until;
        }
        may
    }

    /// Forgets who has paid.
    pub(super) fn forget(&mut self, now: Time) {
        self.0.retain(|_, paid| *paid > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_connects_so_often_and_others_as_if_it_did_not() {
        let mut visits = Visits::default();
        let start = Time(1 << 40);
        assert!((0..BURST).all(|_| visits.enter(7, start)));
        assert!(!visits.enter(7, start) && visits.enter(8, start));
        let later = start.saturating_add_ns(10 * EACH_NS);
        assert!((0..10).all(|_| visits.enter(7, later)) && !visits.enter(7, later));
        visits.forget(later);
        assert_eq!(visits.0.len(), 1);
        visits.forget(later.saturating_add_ns(BURST * EACH_NS));
        assert!(visits.0.is_empty());
    }
}
