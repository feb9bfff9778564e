use alloc::vec::Vec;

use elver_control::ControlAddr;
use proptest::prelude::*;

use super::*;
use crate::VqpId;
use crate::rc::link::Reached;

const CONFIG: TransferConfig = TransferConfig {
    rc_qps_max: 4,
    leased_wrs_max: 250,
    hot_ops: 100,
    window_ns: 1_000,
    idle_ns: 50,
};

fn link(peer: u32, purpose: Purpose, used: u64) -> RcLink {
    RcLink {
        qp: Qp(peer),
        qpn: 1_000 + peer,
        psn: 0,
        peer_end: None,
        peer: PeerId::numbered(peer),
        control: ControlAddr { gid: elver_verbs::Gid::default(), qpn: 2, qkey: 2 },
        class: Class::Low,
        purpose,
        state: LinkState::Ready,
        lane: None,
        depth: 100,
        since: Time(used),
        reached: Reached::Unasked,
    }
}

#[test]
fn each_purpose_has_room_of_its_own() {
    let mut pool = RcPool::new(CONFIG);
    let insert = |pool: &mut RcPool, purpose| pool.insert(link(9, purpose, 0));
    for _ in 0..4 {
        insert(&mut pool, Purpose::Pool).unwrap();
    }
    assert_eq!(insert(&mut pool, Purpose::Pool), None);
    for _ in 0..META_LINKS_MAX {
        insert(&mut pool, Purpose::Meta).unwrap();
    }
    assert_eq!(insert(&mut pool, Purpose::Meta), None);
    let readers: Vec<LinkId> = (0..READERS_MAX)
        .map(|peer| pool.insert(link(peer + 10, Purpose::Reader, 0)).unwrap())
        .collect();
    assert_eq!(insert(&mut pool, Purpose::Reader), None);
    let full = Some((Shortage::Device, READERS_MAX, READERS_MAX));
    assert_eq!(pool.shortage(Purpose::Reader, 1), full);
    pool.remove(readers[0]).unwrap();
    assert!(insert(&mut pool, Purpose::Reader).is_some());
    assert_eq!(
        pool.victim(Time(u64::MAX), |link| Some(link.since))
            .map(|id| pool.get(id).unwrap().purpose),
        Some(Purpose::Pool)
    );
    insert(&mut pool, Purpose::Leased(Some(VqpId(1)))).unwrap();
    let leased = insert(&mut pool, Purpose::Leased(Some(VqpId(2)))).unwrap();
    assert_eq!(insert(&mut pool, Purpose::Leased(Some(VqpId(3)))), None);
    assert!(insert(&mut pool, Purpose::Leased(None)).is_some());
    pool.remove(leased).unwrap();
    assert!(insert(&mut pool, Purpose::Leased(Some(VqpId(3)))).is_some());
    assert_eq!(insert(&mut pool, Purpose::Pool), None);
}

/// One reader does not take the places of others.
#[test]
fn a_reader_has_so_many_ends_at_a_meta_server() {
    let mut pool = RcPool::new(CONFIG);
    let peer = PeerId::numbered(9);
    for _ in 0..PEER_LINKS_MAX {
        assert_eq!(pool.share_used(peer, Purpose::Reader), None);
        pool.insert(link(9, Purpose::Reader, 0)).unwrap();
    }
    let most = Some((PEER_LINKS_MAX, PEER_LINKS_MAX));
    assert_eq!(pool.share_used(peer, Purpose::Reader), most);
    assert_eq!(pool.share_used(peer, Purpose::Pool), None, "what it shares is counted apart");
    assert_eq!(pool.share_used(PeerId::numbered(8), Purpose::Reader), None);
    assert!(pool.find(peer, Class::Low).is_none(), "nothing is sent on them");
    assert_eq!(pool.to_peer(peer).count(), PEER_LINKS_MAX as usize);
}

#[test]
fn a_ready_link_is_found_before_one_that_is_not() {
    let mut pool = RcPool::new(CONFIG);
    let ready = pool.insert(link(1, Purpose::Pool, 0)).unwrap();
    let asking = pool.insert(link(1, Purpose::Pool, 0)).unwrap();
    pool.get_mut(asking).unwrap().state = LinkState::Asking;
    assert_eq!(pool.find(PeerId::numbered(1), Class::Low).unwrap().0, ready);
    pool.get_mut(ready).unwrap().state = LinkState::Leaving(None);
    assert_eq!(pool.find(PeerId::numbered(1), Class::Low).unwrap().0, asking);
    assert!(
        pool.find(PeerId::numbered(1), Class::High).is_none()
            && pool.find(PeerId::numbered(2), Class::Low).is_none()
    );
    assert_eq!(pool.ending(), 1);
    assert_eq!(pool.by_qpn(1_001).map(|id| id == ready || id == asking), Some(true));
}

proptest! {
    /// The victim is the idle link that was used longest ago, as a list in order of use says.
    #[test]
    fn the_least_recently_used_goes_first(
        uses in prop::collection::vec((0..4u32, 1..40u64), 1..60),
    ) {
        let mut pool = RcPool::new(CONFIG);
        let ids: Vec<LinkId> = (0..4)
            .map(|peer| pool.insert(link(peer + 1, Purpose::Pool, u64::from(peer))))
            .map(Option::unwrap)
            .collect();
        let mut order: Vec<(u32, u64)> = (0..4).map(|peer| (peer, u64::from(peer))).collect();
        let mut now = 10;
        for (peer, step) in uses {
            now += step;
            pool.get_mut(ids[peer as usize]).unwrap().since = Time(now);
            order.retain(|(other, _)| *other != peer);
            order.push((peer, now));
            let oldest = order[0];
            let expected = (now - oldest.1 >= CONFIG.idle_ns).then(|| ids[oldest.0 as usize]);
            prop_assert_eq!(pool.victim(Time(now), |link| Some(link.since)), expected);
        }
    }
}
