//! Who pays for what a process has, and who is trusted.
//!
//! A user's number is no account: a user namespace gives its maker 65,536 of them, and root of a
//! container can take any. So what runs in a namespace below the node's is on the account of whoever
//! made that, or, if root did, on an account of the namespace's own.

use std::os::fd::OwnedFd;

use elver_portal::{Peer, Socket, Space, Standing};
use rustix::process::{Pid, geteuid, getpid};

use crate::config::QuotaConfig;

/// Whoever pays for some processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Account {
    pub(super) uid: u32,
    /// The namespace whose processes have an account of their own; 0 for none.
    pub(super) space: u64,
    /// The host's root, which could raise its own quota.
    pub(super) is_root: bool,
}

/// A process that connected, as far as accounts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Customer {
    pub(super) account: Account,
    /// It could end the node, or stop it, whatever the node did: it need not be kept from that.
    pub(super) is_trusted: bool,
}

/// This process, as others see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) pid: Pid,
    pub(super) uid: u32,
}

impl Host {
    pub(super) fn own() -> Host {
        Host { pid: getpid(), uid: geteuid().as_raw() }
    }
}

impl Account {
    pub(super) fn of_user(uid: u32) -> Account {
        Account { uid, space: 0, is_root: false }
    }

    /// A number that tells it from all others.
    pub(super) fn number(self) -> u64 {
        // Namespaces have numbers of 32 bits, of which the system gives none below 0xf000_0000. Root has none.
        (self.space | u64::from(self.is_root)) << 32 | u64::from(self.uid)
    }
}

impl Customer {
    /// Who connected over a socket, where its process stands, and that process if it is another one and the system
    /// shows it.
    pub(super) fn over(
        socket: &Socket,
        peer: &Peer,
        rules: &QuotaConfig,
        host: Host,
    ) -> (Customer, Standing, Option<OwnedFd>) {
        let is_own = peer.pid == Some(host.pid);
        let process = if is_own { None } else { socket.peer_pidfd().ok() };
        let standing = match &process {
            Some(process) => Standing::of(peer.pid, process),
            None if is_own => Standing::OWN,
            None => Standing::UNSEEN,
        };
        (Customer::of(peer.uid, &standing, rules, host), standing, process)
    }

    fn of(uid: u32, standing: &Standing, rules: &QuotaConfig, host: Host) -> Customer {
        let at_home = (standing.users, standing.pids) == (Space::Own, Space::Own);
        let is_trusted = at_home && standing.able && (uid == 0 || uid == host.uid);
        let plain = Account { is_root: is_trusted && uid == 0, ..Account::of_user(uid) };
        let account =
            if rules.by_namespace { paid_by(uid, standing).unwrap_or(plain) } else { plain };
        Customer { account, is_trusted }
    }
}

/// Who pays for a process that is elsewhere.
fn paid_by(uid: u32, standing: &Standing) -> Option<Account> {
    let of_space = |uid, number| Some(Account { uid, space: number, is_root: false });
    match (standing.users, standing.pids) {
        // Who runs containers as root keeps them apart.
        (Space::Below { number, owner: 0 }, _) => of_space(0, number),
        (Space::Below { owner, .. }, _) => Some(Account::of_user(owner)),
        (Space::Foreign { number }, _) => of_space(uid, number),
        // Its root may be any user.
        (Space::Own, Space::Below { number, .. }) => of_space(0, number),
        (_, Space::Foreign { number }) => of_space(uid, number),
        (Space::Own, Space::Own | Space::Unseen) | (Space::Unseen, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Host = Host { pid: Pid::INIT, uid: 0 };
    const OWN: Standing = Standing::OWN;

    fn of(uid: u32, standing: Standing) -> Customer {
        Customer::of(uid, &standing, &QuotaConfig::default(), HOST)
    }

    fn account(uid: u32, space: u64) -> Account {
        Account { uid, space, is_root: false }
    }

    #[test]
    fn root_is_who_could_end_the_node() {
        let root = of(0, OWN);
        assert!(root.is_trusted && root.account.is_root);
        let below = Space::Below { number: 9, owner: 0 };
        for standing in [
            Standing { able: false, ..OWN },
            Standing { pids: below, ..OWN },
            Standing { users: below, ..OWN },
            Standing { pids: Space::Unseen, ..OWN },
            Standing { pids: Space::Foreign { number: 9 }, ..OWN },
            Standing::UNSEEN,
        ] {
            let other = of(0, standing);
            assert!(!other.is_trusted && !other.account.is_root, "{standing:?}");
            assert_ne!(other.account, root.account);
        }
        assert!(!of(1_000, OWN).is_trusted);
        let users =
            Customer::of(1_000, &OWN, &QuotaConfig::default(), Host { pid: Pid::INIT, uid: 1_000 });
        assert!(users.is_trusted && !users.account.is_root);
    }

    /// Root and a user 0 that is not trusted were one to the core: the one's guesses at keys held the other.
    #[test]
    fn each_account_has_a_number_of_its_own() {
        let root = of(0, OWN).account;
        assert!(root.is_root);
        let others = [
            account(0, 0),
            account(0, 0xf000_0001),
            account(1, 0),
            account(7, u64::from(u32::MAX)),
        ];
        let mut numbers: Vec<u64> = others.into_iter().chain([root]).map(Account::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 5);
    }

    #[test]
    fn the_numbers_of_a_namespace_are_its_makers() {
        let maker = of(1_000, OWN).account;
        for uid in [1_000, 100_000, 165_535, 0] {
            let standing = Standing { users: Space::Below { number: 9, owner: 1_000 }, ..OWN };
            assert_eq!(of(uid, standing).account, maker);
        }
        // What root keeps apart is apart, and not root's.
        for uid in [0, 100_000] {
            let standing = Standing { users: Space::Below { number: 9, owner: 0 }, ..OWN };
            assert_eq!(of(uid, standing).account, account(0, 9));
            let standing = Standing { pids: Space::Below { number: 8, owner: 0 }, ..OWN };
            assert_eq!(of(uid, standing).account, account(0, 8));
        }
        // Whoever may not look goes by the number alone, as one does who does not want more.
        assert_eq!(of(7, Standing::UNSEEN).account, account(7, 0));
        let rules = QuotaConfig { by_namespace: false, ..QuotaConfig::default() };
        let standing = Standing { users: Space::Below { number: 9, owner: 1_000 }, ..OWN };
        assert_eq!(Customer::of(7, &standing, &rules, HOST).account, account(7, 0));
        assert!(!Customer::of(0, &standing, &rules, HOST).is_trusted);
    }
}
