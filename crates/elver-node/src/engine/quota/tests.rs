//! What one account gets, and what it leaves to others.

use super::*;

const TOTAL: Usage = Usage {
    sessions: 1_000,
    vqps: 1_000,
    ports: 1_000,
    mrs: 1_000,
    bytes: u64::MAX,
    mappings: 100_000,
    leased_wrs: 1 << 17,
};
const ROOT: Account = Account { uid: 0, space: 0, is_root: true };

fn user(uid: u32) -> Account {
    Account { uid, space: 0, is_root: false }
}

#[test]
fn each_user_has_a_quota_of_its_own_and_root_none() {
    let config = QuotaConfig { vqps: 2, bytes: 100, ..QuotaConfig::default() };
    let mut quotas = Quotas::new(config, TOTAL);
    // A container's root among them.
    for account in [user(1000), user(1001), user(0), Account { space: 9, ..user(0) }] {
        quotas.take(account, Usage::VQP).unwrap();
        quotas.take(account, Usage::VQP).unwrap();
        let refused = quotas.take(account, Usage::VQP).unwrap_err();
        assert!(refused.text.contains("quota.vqps"), "{}", refused.text);
    }
    assert!(quotas.take(user(1000), Usage::region(101)).is_err());
    quotas.take(user(1000), Usage::region(100)).unwrap();
    assert!(quotas.take(user(1000), Usage::region(1)).is_err());
    quotas.give_back(user(1000), Usage::region(100));
    quotas.take(user(1000), Usage::region(1)).unwrap();
    for _ in 0..5 {
        quotas.take(ROOT, Usage::VQP).unwrap();
    }
    let config = QuotaConfig { vqps: 2, exempt_root: false, ..QuotaConfig::default() };
    let mut quotas = Quotas::new(config, TOTAL);
    assert!((0..3).any(|_| quotas.take(ROOT, Usage::VQP).is_err()));
}

/// At 65,530 of them the system gives the node no memory any more, and it ends.
#[test]
fn the_nodes_mappings_are_shared_and_nobody_takes_the_last_ones() {
    let total = Usage { mappings: 800, ..TOTAL };
    let config = QuotaConfig { mrs: 10_000, sessions: 10_000, ..QuotaConfig::default() };
    let mut quotas = Quotas::new(config.clone(), total);
    let region = Usage::region(1);
    let own = (0..).take_while(|_| quotas.take(user(1), region).is_ok()).count();
    assert_eq!(own, 400);
    let refused = quotas.take(user(1), region).unwrap_err();
    assert!(refused.text.contains("vm.max_map_count"), "{}", refused.text);
    // What takes none it may have as ever, and others have theirs.
    quotas.take(user(1), Usage::region(0)).unwrap();
    quotas.take(user(2), Usage::SESSION).unwrap();
    // Root has as many as it likes, but for an eighth.
    while quotas.take(ROOT, region).is_ok() {}
    assert_eq!(quotas.mappings(), 700);
    quotas.take(user(2), region).unwrap();
    quotas.take(user(3), Usage::SESSION).unwrap();
    for uid in 4..1_000 {
        while quotas.take(user(uid), region).is_ok() {}
    }
    assert_eq!(quotas.mappings(), 800 - 800 / ROOTS_MAPPINGS_PART);
    let roots = quotas.of(ROOT);
    quotas.give_back(ROOT, roots);
    quotas.take(user(1), region).unwrap_err();
    quotas.give_back(user(1), region.times(100));
    quotas.take(user(1), region).unwrap();
}

/// Users who together had seven eighths of them shut root out.
#[test]
fn root_has_some_mappings_whatever_all_others_have() {
    let total = Usage { mappings: 800, ..TOTAL };
    let mut quotas = Quotas::new(QuotaConfig::default(), total);
    for uid in 1..1_000 {
        while quotas.take(user(uid), Usage::region(1)).is_ok() {}
    }
    assert!(quotas.mappings() > 800 - 800 / 8);
    let had = (0..).take_while(|_| quotas.take(ROOT, Usage::SESSION).is_ok()).count();
    assert_eq!((had, quotas.mappings()), (4, 800));
}

/// One user's process took all of them.
#[test]
fn a_user_has_half_of_the_leased_queue_pairs_at_most_and_who_has_none_gets_one() {
    let lease = Usage::leased(LEASE_WRS);
    let mut quotas = Quotas::new(QuotaConfig::default(), TOTAL);
    let mut lease_all = |uid| (0..).take_while(|_| quotas.take(user(uid), lease).is_ok()).count();
    assert_eq!(lease_all(1), 455);
    assert!((1..455).contains(&lease_all(2)));
    for uid in 3..50 {
        assert!(lease_all(uid) > 0, "user {uid}");
    }
    let refused = quotas.take(user(1), lease).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Limit);
    for part in ["user 1 would have", "65664 send WRs", "`quota.leased_wrs`"] {
        assert!(refused.text.contains(part), "{}", refused.text);
    }
    let refused = quotas.take(user(2), lease).unwrap_err().text;
    for part in ["node's 131072 to others", "`transfer.leased_wrs_max`"] {
        assert!(refused.contains(part), "{refused}");
    }
    // What takes none it may have as ever; and root, who could raise its own, has no bound.
    quotas.take(user(1), Usage::SESSION).unwrap();
    quotas.take(ROOT, lease.times(500)).unwrap();
    quotas.give_back(ROOT, lease.times(500));
    quotas.give_back(user(1), lease.times(455));
    quotas.take(user(1), lease).unwrap();
}

#[test]
fn what_goes_with_work_on_its_way_counts_until_that_is_done_or_given_up() {
    let lease = Usage::leased(LEASE_WRS);
    let mut quotas = Quotas::new(QuotaConfig::default(), TOTAL);
    quotas.take(user(1), lease.times(3)).unwrap();
    let wrs = |quotas: &Quotas| quotas.of(user(1)).leased_wrs / LEASE_WRS;
    let [stays, goes] = [1, 2].map(|vqp| (ClientId(1), VqpId(vqp)));
    quotas.give_back_later(user(1), lease, stays);
    quotas.give_back_later(user(1), lease, goes);
    quotas.tend(|_, _| true);
    assert_eq!((wrs(&quotas), quotas.is_parting()), (3, true));
    quotas.tend(|_, vqp| vqp == stays.1);
    assert_eq!((wrs(&quotas), quotas.is_parting()), (2, true));
    quotas.tend(|_, _| false);
    assert_eq!((wrs(&quotas), quotas.is_parting()), (1, false));
    quotas.take(ROOT, lease).unwrap();
    quotas.give_back_later(ROOT, lease, stays);
    assert_eq!((quotas.of(ROOT), quotas.is_parting()), (Usage::NONE, false));
}

/// Of two one user would have none else.
#[test]
fn few_leased_queue_pairs_are_not_shared_but_for_the_quota() {
    let lease = Usage::leased(LEASE_WRS);
    let total = Usage { leased_wrs: 63 * LEASE_WRS, ..TOTAL };
    let mut quotas = Quotas::new(QuotaConfig::default(), total);
    quotas.take(user(1), lease.times(63)).unwrap();
    let config = QuotaConfig { leased_wrs: 2 * LEASE_WRS, ..QuotaConfig::default() };
    let mut quotas = Quotas::new(config, total);
    quotas.take(user(1), lease.times(2)).unwrap();
    let refused = quotas.take(user(1), lease).unwrap_err().text;
    assert!(refused.contains("288 are allowed") && refused.contains("`quota.leased_wrs`"));
}

#[test]
fn accepted_vqps_count_and_keep_nothing_else_from_a_user() {
    let config = QuotaConfig { vqps: 2, ..QuotaConfig::default() };
    let mut quotas = Quotas::new(config, TOTAL);
    quotas.take(user(7), Usage::VQP).unwrap();
    for _ in 0..2 {
        quotas.count(user(7), Usage::VQP);
    }
    assert!(quotas.take(user(7), Usage::VQP).is_err());
    quotas.take(user(7), Usage::SESSION).unwrap();
    for _ in 0..2 {
        quotas.give_back(user(7), Usage::VQP);
    }
    quotas.take(user(7), Usage::VQP).unwrap();
}

#[test]
fn a_user_with_nothing_is_forgotten() {
    let mut quotas = Quotas::new(QuotaConfig::default(), TOTAL);
    quotas.take(user(7), Usage::SESSION).unwrap();
    assert_eq!(quotas.accounts().count(), 1);
    quotas.give_back(user(7), Usage::SESSION);
    assert_eq!(quotas.accounts().count(), 0);
    assert_eq!(quotas.all, Usage::NONE);
}

/// With a quota as large as all that there is, as that of regions was, the first took all.
#[test]
fn whoever_takes_all_it_gets_leaves_some_to_one_more() {
    let quota = u32::MAX;
    let config = QuotaConfig { ports: quota, mrs: quota, ..QuotaConfig::default() };
    for greedy in [1, 2, 10, 100] {
        let mut quotas = Quotas::new(config.clone(), TOTAL);
        for one in [Usage::PORT, Usage::region(1)] {
            for uid in 1..=greedy {
                while quotas.take(user(uid), one).is_ok() {}
            }
            // Nor do they get more by coming back.
            for uid in (1..=greedy).cycle().take(3 * greedy as usize) {
                quotas.take(user(uid), one).ok();
            }
            let refused = quotas.take(user(1), one).unwrap_err();
            assert!(refused.text.contains("leaves some to others"), "{}", refused.text);
            quotas.take(user(7_777), one).unwrap_or_else(|_| panic!("{greedy} greedy ones"));
            quotas.give_back(user(7_777), one);
        }
        let first = quotas.of(user(1));
        assert_eq!((first.ports, first.mrs), (500, 500));
    }
}
