//! How often the processes of an account connect: what the engine learns of each, its process and its
//! namespaces, takes it tens of microseconds, and is on nobody's account before.
//!
//! So while somebody connects often it remembers who pays for those of one user number in one PID namespace, and turns
//! the next of them away before it looks at it, if that one has had its connects. Of numbers and PID namespaces whoever has
//! a user namespace makes as many as it likes, so that such of whom nobody is known to pay are looked at so often at most:
//! of each range of numbers, of which a user has few, and shares them with few.

use elver_portal::{Peer, pid_namespace};
use elver_verbs::Time;
use rustc_hash::FxHashMap;

use super::account::{Account, Host};

/// Connects of an account at once.
const BURST: u64 = 2_048;
/// It may connect once more after so long.
const EACH_NS: u64 = 1_000_000;
/// From so many on who pays is remembered.
const MANY: u64 = BURST / 2;
/// Places of which it is remembered.
const PAYERS_MAX: usize = 4_096;
/// Looks at once meanwhile at those of a range of whom nobody is known to pay, if anybody may make many such.
const LOOKS_AT_ONCE: u64 = 256;
/// One more is looked at after so long.
const EACH_LOOK_NS: u64 = 4_000_000;
/// User numbers from here on are, as a rule, those that users have in namespaces of their own; as many are a range.
const SUBORDINATE_UID: u32 = 65_536;
/// Time between two looks who is to be forgotten.
const FORGET_NS: u64 = 10_000_000;

/// Who connected lately.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// Until when the connects of each account are paid for.
    paid: FxHashMap<Account, Time>,
    /// Who pays for those of a place: while many are paid for ahead.
    payers: FxHashMap<Place, Account>,
    /// Whether an account has paid for many ahead.
    are_many: bool,
    /// Until when looks at those are paid for of whom nobody is known to pay, by their range.
    looks_paid: FxHashMap<Range, Time>,
    forgot_at: Time,
}

/// Where a process is, as far as a look of a microsecond tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    uid: u32,
    /// Its PID namespace; 0 where the system does not tell.
    pids: u64,
    /// A user has one such, and no more of them: its number where the node is.
    is_plain: bool,
}

/// Whose numbers are looked at together: one below [`SUBORDINATE_UID`] by itself, the others by as many as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Range {
    One(u32),
    Many(u32),
}

impl Range {
    fn of(uid: u32) -> Range {
        if uid < SUBORDINATE_UID { Range::One(uid) } else { Range::Many(uid / SUBORDINATE_UID) }
    }
}

impl Place {
    fn of(peer: &Peer, host: Host) -> Place {
        let pids = peer.pid.and_then(pid_namespace).unwrap_or(0);
        let is_here = pids != 0 && Some(pids) == pid_namespace(host.pid);
        Place { uid: peer.uid, pids, is_plain: is_here && peer.uid < SUBORDINATE_UID }
    }
}

impl Visits {
    /// Where a process is that connects, if that is to be known. Not where one may be whom the node trusts: he is not turned
    /// away for what another one did there.
    pub(super) fn place(&self, peer: &Peer, host: Host) -> Option<Place> {
        if !self.are_many {
            return None;
        }
        let place = Place::of(peer, host);
        let is_elsewhere = place.pids != 0 && Some(place.pids) != pid_namespace(host.pid);
        let may_be_trusted = (peer.uid == 0 || peer.uid == host.uid) && !is_elsewhere;
        (!may_be_trusted).then_some(place)
    }

    /// Whether a process may be looked at that connects from a place: not if it is known who pays for it, and he has had
    /// his connects, nor if that is not known and too many such were looked at.
    pub(super) fn may_look(&mut self, place: Option<Place>, now: Time) -> Result<(), Unseen> {
        let Some(place) = place else { return Ok(()) };
        if let Some(payer) = self.payers.get(&place) {
            let may = self.paid.get(payer).is_none_or(|paid| BY_ACCOUNT.allows(*paid, now));
            return if may { Ok(()) } else { Err(Unseen::Often) };
        }
        if place.is_plain {
            return Ok(());
        }
        let paid = self.looks_paid.entry(Range::of(place.uid)).or_insert(now);
        if !UNKNOWN.allows(*paid, now) {
            return Err(Unseen::Unknown);
        }
        *paid = UNKNOWN.after(*paid, now);
        Ok(())
    }

    /// A process of an account's connects; false if these did so too often.
    pub(super) fn enter(&mut self, account: Account, place: Option<Place>, now: Time) -> bool {
        if let Some(place) = place {
            if self.payers.len() >= PAYERS_MAX {
                // Those that come again are looked at again.
                self.payers.clear();
            }
            self.payers.insert(place, account);
        }
        let paid = self.paid.entry(account).or_insert(now);
        let may = BY_ACCOUNT.allows(*paid, now);
        if may {
            *paid = BY_ACCOUNT.after(*paid, now);
        }
        self.are_many |= paid.ns_since(now) >= MANY * EACH_NS;
        may
    }

    /// Forgets who has paid, now and then.
    pub(super) fn forget(&mut self, now: Time) {
        if now.ns_since(self.forgot_at) < FORGET_NS {
            return;
        }
        self.forgot_at = now;
        self.paid.retain(|_, paid| *paid > now);
        self.looks_paid.retain(|_, paid| *paid > now);
        if self.are_many {
            self.are_many = self.paid.values().any(|paid| paid.ns_since(now) >= MANY * EACH_NS);
            self.payers.retain(|_, payer| self.paid.contains_key(payer));
        }
        if !self.are_many {
            self.payers.clear();
        }
    }
}

/// Why a process is turned away before it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// Who pays for it has had his connects.
    Often,
    /// It is not known who does, and many such came.
    Unknown,
}

/// So many at once, and one more after each time of so long.
#[derive(Clone, Copy)]
struct Rate {
    at_once: u64,
    each_ns: u64,
}

/// Connects of an account.
const BY_ACCOUNT: Rate = Rate { at_once: BURST, each_ns: EACH_NS };
/// Looks at those of a range of whom nobody is known to pay.
const UNKNOWN: Rate = Rate { at_once: LOOKS_AT_ONCE, each_ns: EACH_LOOK_NS };

impl Rate {
    /// Whether one more may be where all until then are paid for.
    fn allows(self, paid: Time, now: Time) -> bool {
        self.after(paid, now).ns_since(now) <= self.at_once * self.each_ns
    }

    /// Until when they are with one more.
    fn after(self, paid: Time, now: Time) -> Time {
        paid.max(now).saturating_add_ns(self.each_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32, space: u64) -> Account {
        Account { uid, space, is_root: false }
    }

    #[test]
    fn an_account_connects_so_often_and_others_as_if_it_did_not() {
        let mut visits = Visits::default();
        let start = Time(1 << 40);
        let user = account(7, 0);
        assert!((0..BURST).all(|_| visits.enter(user, None, start)));
        assert!(!visits.enter(user, None, start) && visits.enter(account(8, 0), None, start));
        let later = start.saturating_add_ns(10 * EACH_NS);
        assert!((0..10).all(|_| visits.enter(user, None, later)));
        assert!(!visits.enter(user, None, later));
        visits.forget(later);
        assert_eq!(visits.paid.len(), 1);
        visits.forget(later.saturating_add_ns(BURST * EACH_NS));
        assert!(visits.paid.is_empty());
    }

    #[test]
    fn nobody_is_turned_away_for_what_others_did_where_the_trusted_are() {
        let mut visits = Visits::default();
        let host = Host { pid: rustix::process::getpid(), uid: 1_000 };
        let peer = |uid| Peer { pid: Some(host.pid), uid, gid: uid };
        assert_eq!(visits.place(&peer(7), host), None, "nobody has to be told apart");
        (0..MANY).for_each(|_| assert!(visits.enter(account(7, 0), None, Time(1))));
        assert_eq!([0, 1_000].map(|uid| visits.place(&peer(uid), host)), [None; 2]);
        let pids = pid_namespace(host.pid).unwrap();
        let place = |uid, pids, is_plain| Some(Place { uid, pids, is_plain });
        assert_eq!(visits.place(&peer(7), host), place(7, pids, true));
        assert_eq!(visits.place(&peer(100_000), host), place(100_000, pids, false));
        let unseen = Peer { pid: None, ..peer(7) };
        assert_eq!(visits.place(&unseen, host), place(7, 0, false));
    }

    /// Each of the 65,536 numbers that a user has in a namespace of its own had as many connects as the user, and root of
    /// a container as many as it liked.
    #[test]
    fn all_numbers_of_a_user_have_its_connects_together_and_each_is_looked_at_once_more() {
        let start = Time(1 << 40);
        let place = |uid, pids| Place { uid, pids, is_plain: true };
        for (payer, at) in [(account(1_000, 0), 100_000), (account(0, 0xf000_0001), 0)] {
            let mut visits = Visits::default();
            let (mut looks, mut served) = (0, 0);
            for round in 0..4 {
                for visitor in 0..BURST as u32 {
                    // Of a container's root, which has one number, in the one PID namespace of it.
                    let uid = if at == 0 { 0 } else { at + visitor };
                    let place = visits.are_many.then(|| place(uid, 9));
                    if visits.may_look(place, start).is_ok() {
                        looks += 1;
                        served += u64::from(visits.enter(payer, place, start));
                    }
                }
                let others = [(1, 0), (0, 5)].map(|(uid, pids)| place(uid, pids));
                for one in others {
                    assert_eq!(visits.may_look(Some(one), start), Ok(()), "{round}");
                }
            }
            assert_eq!(served, BURST);
            let numbers = if at == 0 { 0 } else { BURST };
            assert!(looks <= BURST + numbers, "{looks}");
            // All of it is forgotten with the debt.
            visits.forget(start.saturating_add_ns(MANY * EACH_NS + 1));
            assert!(visits.payers.is_empty() && !visits.are_many);
            let later = start.saturating_add_ns(BURST * EACH_NS);
            visits.forget(later);
            assert!(visits.paid.is_empty());
        }
    }

    /// A user with a namespace had each of its 65,536 numbers looked at, and again in each new PID namespace, and all of
    /// them gone through in every tidying.
    #[test]
    fn who_makes_places_without_end_has_so_many_looked_at_and_others_are_looked_at_all_the_same() {
        let start = Time(1 << 40);
        let user = account(1_000, 0);
        let mut visits = Visits::default();
        (0..BURST).for_each(|_| assert!(visits.enter(user, None, start)));
        let mut now = start;
        let (mut looks, mut others) = (0, 0);
        for uid in 0..400_000 {
            let place =
                Some(Place { uid: 100_000 + uid % 65_536, pids: u64::from(uid), is_plain: false });
            match visits.may_look(place, now) {
                Ok(()) => {
                    looks += 1;
                    visits.enter(user, place, now);
                    // It is known by now.
                    assert_ne!(visits.may_look(place, now), Err(Unseen::Unknown));
                }
                Err(unseen) => assert_eq!(unseen, Unseen::Unknown),
            }
            assert!(visits.payers.len() <= PAYERS_MAX);
            // Users of the host meanwhile.
            if uid % 1_000 == 0 {
                // And those of its directory, of containers, and of nodes that cannot tell where they are.
                let far = Place { uid: 1_200_000 + uid / 1_000, pids: 9, is_plain: false };
                let unseen = Place { uid: 1_001, pids: 0, is_plain: false };
                for place in [Place { uid: uid / 1_000, pids: 9, is_plain: true }, far, unseen] {
                    assert_eq!(visits.may_look(Some(place), now), Ok(()));
                    assert!(visits.enter(account(place.uid, 0), Some(place), now));
                }
                others += 1;
            }
            now = now.saturating_add_ns(EACH_LOOK_NS / 100);
            visits.forget(now);
        }
        // Its numbers are in two ranges.
        let most = 2 * (LOOKS_AT_ONCE + now.ns_since(start) / EACH_LOOK_NS);
        assert!((2 * LOOKS_AT_ONCE..=most).contains(&looks), "{looks}");
        assert_eq!(others, 400);
    }

    /// In all tidyings, five thousand a second, all were gone through.
    #[test]
    fn it_is_looked_now_and_then_who_is_to_be_forgotten() {
        let start = Time(1 << 40);
        let mut visits = Visits::default();
        visits.forget(start);
        visits.enter(account(7, 0), None, start);
        visits.forget(start.saturating_add_ns(FORGET_NS - 1));
        assert_eq!(visits.paid.len(), 1);
        visits.forget(start.saturating_add_ns(FORGET_NS));
        assert!(visits.paid.is_empty());
    }
}
