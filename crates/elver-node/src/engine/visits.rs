//! How often the processes of an account connect: what the engine learns of each, its process and its
//! namespaces, takes it tens of microseconds, and is on nobody's account before.
//!
//! So while somebody connects often it remembers who pays for those of one user number in one PID namespace, and turns
//! the next of them away before it looks at it, if that one has had its connects.

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

/// Who connected lately.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// Until when the connects of each account are paid for.
    paid: FxHashMap<Account, Time>,
    /// Who pays for those of a place: while many are paid for ahead.
    payers: FxHashMap<Place, Account>,
    /// Whether an account has paid for many ahead.
    are_many: bool,
}

/// Where a process is, as far as a look of a microsecond tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    uid: u32,
    /// Its PID namespace; 0 where the system does not tell.
    pids: u64,
}

impl Place {
    fn of(peer: &Peer) -> Place {
        Place { uid: peer.uid, pids: peer.pid.and_then(pid_namespace).unwrap_or(0) }
    }
}

impl Visits {
    /// Where a process is that connects, if that is to be known. Not where one may be whom the node trusts: he is not turned
    /// away for what another one did there.
    pub(super) fn place(&self, peer: &Peer, host: Host) -> Option<Place> {
        if !self.are_many {
            return None;
        }
        let place = Place::of(peer);
        let is_elsewhere = place.pids != 0 && Some(place.pids) != pid_namespace(host.pid);
        let may_be_trusted = (peer.uid == 0 || peer.uid == host.uid) && !is_elsewhere;
        (!may_be_trusted).then_some(place)
    }

    /// Whether a process may be looked at that connects from a place: not if it is known who pays for it, and he has had
    /// his connects.
    pub(super) fn may_look(&self, place: Option<Place>, now: Time) -> bool {
        let payer = place.and_then(|place| self.payers.get(&place));
        let paid = payer.and_then(|payer| self.paid.get(payer));
        paid.is_none_or(|paid| within(*paid, now))
    }

    /// A process of an account's connects; false if these did so too often.
    pub(super) fn enter(&mut self, account: Account, place: Option<Place>, now: Time) -> bool {
        if let Some(place) = place {
            self.payers.insert(place, account);
        }
        let paid = self.paid.entry(account).or_insert(now);
        let may = within(*paid, now);
        if may {
            *paid = (*paid).max(now).saturating_add_ns(EACH_NS);
        }
        self.are_many |= paid.ns_since(now) >= MANY * EACH_NS;
        may
    }

    /// Forgets who has paid.
    pub(super) fn forget(&mut self, now: Time) {
        self.paid.retain(|_, paid| *paid > now);
        if self.are_many {
            self.are_many = self.paid.values().any(|paid| paid.ns_since(now) >= MANY * EACH_NS);
            self.payers.retain(|_, payer| self.paid.contains_key(payer));
        }
        if !self.are_many {
            self.payers.clear();
        }
    }
}

/// Whether one who has paid until then may connect once more.
fn within(paid: Time, now: Time) -> bool {
    paid.max(now).saturating_add_ns(EACH_NS).ns_since(now) <= BURST * EACH_NS
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
        assert_eq!(visits.place(&peer(7), host), Some(Place { uid: 7, pids }));
        let unseen = Peer { pid: None, ..peer(7) };
        assert_eq!(visits.place(&unseen, host), Some(Place { uid: 7, pids: 0 }));
    }

    /// Each of the 65,536 numbers that a user has in a namespace of its own had as many connects as the user, and root of
    /// a container as many as it liked.
    #[test]
    fn all_numbers_of_a_user_have_its_connects_together_and_each_is_looked_at_once_more() {
        let start = Time(1 << 40);
        let place = |uid, pids| Place { uid, pids };
        for (payer, at) in [(account(1_000, 0), 100_000), (account(0, 0xf000_0001), 0)] {
            let mut visits = Visits::default();
            let (mut looks, mut served) = (0, 0);
            for round in 0..4 {
                for visitor in 0..BURST as u32 {
                    // Of a container's root, which has one number, in the one PID namespace of it.
                    let uid = if at == 0 { 0 } else { at + visitor };
                    let place = visits.are_many.then(|| place(uid, 9));
                    if visits.may_look(place, start) {
                        looks += 1;
                        served += u64::from(visits.enter(payer, place, start));
                    }
                }
                let others = [(1, 0), (0, 5)].map(|(uid, pids)| place(uid, pids));
                assert!(others.into_iter().all(|one| visits.may_look(Some(one), start)), "{round}");
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
}
