use super::super::samples::{gid, meta_server, record};
use super::super::watchers::TOLD_AT_ONCE;
use super::*;

const TTL_NS: u64 = 1_000;
const OURS: Nonce = [1; 32];
const THEIRS: Nonce = [2; 32];

/// Whoever puts 666 waits in vain for the answer, and it is there all the same.
struct Table(BTreeMap<Gid, NodeRecord>);

const LATE: u32 = 666;

impl NodeTable for Table {
    fn server(&self) -> MetaServer {
        meta_server(1)
    }

    fn put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), String> {
        self.0.insert(gid, record);
        if record == self::record(LATE) { Err("no answer".to_string()) } else { Ok(()) }
    }

    fn remove(&mut self, gid: Gid) {
        self.0.remove(&gid);
    }
}

fn members() -> Members<Table> {
    let config = RegistryConfig {
        ttl_ns: TTL_NS,
        nodes_max: 3,
        connections_max: 4,
        connections_per_address: 2,
        strangers_max: 3,
        verify_source: true,
        secret: None,
    };
    Members::new(config, Table(BTreeMap::new()), Time(0))
}

fn address(number: u8) -> IpAddr {
    gid(number).to_ip()
}

fn greet(members: &mut Members<Table>, id: u64, number: u8, now: u64) -> ConnectionId {
    let id = ConnectionId(id);
    assert!(members.open(id, address(number), OURS, Time(now)));
    members.handle(id, Frame::Hello { nonce: THEIRS }, Time(now));
    assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Welcome { .. }))));
    id
}

fn register(members: &mut Members<Table>, id: ConnectionId, number: u8, tag: u32, now: u64) {
    let frame = Frame::Register { gid: gid(number), record: record(tag) };
    members.handle(id, frame, Time(now));
    assert_eq!(members.poll_output(), Some(Output::Send(id, Frame::Registered)));
}

/// What is to be done, when all have been told what they did not know.
fn outputs(members: &mut Members<Table>) -> Vec<Output> {
    list_all(members, 0);
    said(members)
}

fn said(members: &mut Members<Table>) -> Vec<Output> {
    std::iter::from_fn(|| members.poll_output()).collect()
}

/// Everybody takes whatever comes.
fn list_all(members: &mut Members<Table>, now: u64) {
    while members.inform(Time(now), |_| true) {}
}

#[test]
fn a_silent_node_is_removed_and_others_hear_of_it() {
    let mut members = members();
    let watcher = greet(&mut members, 1, 1, 0);
    // However often it asks, it is told once.
    for _ in 0..100 {
        members.handle(watcher, Frame::Watch { on: true }, Time(0));
    }
    list_all(&mut members, 0);
    let list = [Frame::ListBegin, Frame::ListEnd { complete: false }];
    assert_eq!(outputs(&mut members), list.map(|frame| Output::Send(watcher, frame)));
    let id = greet(&mut members, 2, 2, 10);
    register(&mut members, id, 2, 5, 10);
    let came = Frame::Node { gid: gid(2), record: Some(record(5)) };
    assert_eq!(outputs(&mut members), [Output::Send(watcher, came)]);

    // Its heartbeats keep it, also when the connection it owns is looked at late.
    members.handle(id, Frame::Heartbeat, Time(900));
    members.handle(watcher, Frame::Heartbeat, Time(900));
    outputs(&mut members);
    members.handle_timeout(Time(1_800));
    assert_eq!(outputs(&mut members), []);
    assert_eq!(members.table.0.len(), 1);

    // Its connection ends: that is no death yet.
    members.closed(id);
    members.handle(watcher, Frame::Heartbeat, Time(1_850));
    members.handle_timeout(Time(1_899));
    assert_eq!(members.table.0.len(), 1);
    outputs(&mut members);
    assert_eq!(members.poll_timeout(), Some(Time(1_900)));
    members.handle_timeout(Time(1_900));
    let went = Frame::Node { gid: gid(2), record: None };
    assert_eq!(outputs(&mut members), [Output::Send(watcher, went)]);
    assert_eq!(members.table.0.len(), 0);
    assert_eq!(members.counters.expired, 1);
}

#[test]
fn a_node_that_comes_back_takes_its_place() {
    let mut members = members();
    let old = greet(&mut members, 1, 2, 0);
    register(&mut members, old, 2, 5, 0);
    members.closed(old);
    let new = greet(&mut members, 2, 2, 100);
    register(&mut members, new, 2, 6, 100);
    assert_eq!(members.table.0[&gid(2)], record(6));
    members.handle_timeout(Time(1_099));
    assert_eq!(members.table.0.len(), 1);
    members.handle_timeout(Time(1_100));
    assert_eq!(members.table.0.len(), 0);
}

#[test]
fn another_of_its_host_neither_replaces_nor_removes_a_node_that_lives() {
    let mut members = members();
    let owner = greet(&mut members, 1, 2, 0);
    register(&mut members, owner, 2, 5, 0);
    let other = greet(&mut members, 2, 2, 100);
    members.handle(other, Frame::Register { gid: gid(2), record: record(6) }, Time(100));
    assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
    assert_eq!(members.poll_output(), Some(Output::Close(other)));
    members.closed(other);
    // With the right record neither.
    let other = greet(&mut members, 3, 2, 100);
    register(&mut members, other, 2, 5, 100);
    members.handle(other, Frame::Leave, Time(100));
    assert_eq!(members.table.0[&gid(2)], record(5));
    // It has left, and does not come and go without end.
    members.handle(other, Frame::Register { gid: gid(2), record: record(5) }, Time(100));
    assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
}

#[test]
fn a_node_with_two_connections_lives_while_one_does() {
    let mut members = members();
    let old = greet(&mut members, 1, 2, 0);
    register(&mut members, old, 2, 5, 0);
    let new = greet(&mut members, 2, 2, 500);
    register(&mut members, new, 2, 5, 500);
    members.handle(new, Frame::Heartbeat, Time(1_400));
    members.handle_timeout(Time(1_500));
    members.closed(old);
    members.handle_timeout(Time(2_399));
    assert_eq!(members.table.0.len(), 1);
    members.handle(new, Frame::Leave, Time(2_399));
    assert_eq!(members.table.0.len(), 0);
}

#[test]
fn the_same_record_again_is_no_news() {
    let mut members = members();
    let watcher = greet(&mut members, 1, 1, 0);
    let id = greet(&mut members, 2, 2, 0);
    register(&mut members, id, 2, 5, 0);
    members.handle(watcher, Frame::Watch { on: true }, Time(0));
    list_all(&mut members, 0);
    outputs(&mut members);
    let again = greet(&mut members, 3, 2, 1);
    register(&mut members, again, 2, 5, 1);
    assert_eq!(outputs(&mut members), []);
}

#[test]
fn a_node_may_not_flap() {
    let mut members = members();
    let id = greet(&mut members, 1, 2, 0);
    register(&mut members, id, 2, 5, 0);
    register(&mut members, id, 2, 5, 0);
    members.handle(id, Frame::Register { gid: gid(2), record: record(6) }, Time(0));
    assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
    assert_eq!(members.table.0[&gid(2)], record(5));
}

#[test]
fn strangers_and_too_many_are_refused() {
    let mut members = members();
    let id = greet(&mut members, 1, 1, 0);
    members.handle(id, Frame::Register { gid: gid(2), record: record(1) }, Time(0));
    let outs = outputs(&mut members);
    assert!(matches!(&outs[..], [Output::Send(_, Frame::Refused { .. }), Output::Close(_)]));
    assert!(members.open(ConnectionId(2), address(1), OURS, Time(0)));
    assert!(members.table.0.is_empty());
    // Of those that are somebody none gives way.
    members.config.secret = Some(Secret::new(b"of the cluster"));
    members.connections.get_mut(&ConnectionId(2)).unwrap().stage = Stage::Welcome;
    assert!(!members.open(ConnectionId(3), address(1), OURS, Time(0)), "two from one address");
    members.strangers.clear();
    for (id, number) in [(4, 2), (5, 3)] {
        assert!(members.open(ConnectionId(id), address(number), OURS, Time(0)));
        members.welcome(ConnectionId(id), Time(TTL_NS));
    }
    assert!(!members.open(ConnectionId(6), address(4), OURS, Time(0)), "four in all");
    members.closed(ConnectionId(2));
    assert!(members.open(ConnectionId(7), address(1), OURS, Time(0)));
    assert_eq!(members.counters.turned_away, 2);
}

#[test]
fn a_full_registry_refuses_new_nodes_only() {
    let mut members = members();
    members.config.connections_max = 100;
    for number in 1..=3 {
        let id = greet(&mut members, u64::from(number), number, 0);
        register(&mut members, id, number, 1, 0);
    }
    members.closed(ConnectionId(3));
    let id = greet(&mut members, 4, 4, 0);
    members.handle(id, Frame::Register { gid: gid(4), record: record(1) }, Time(0));
    let outs = outputs(&mut members);
    let Output::Send(_, Frame::Refused { reason }) = &outs[0] else { panic!("{outs:?}") };
    assert!(reason.contains("3 nodes") && reason.contains("`meta.nodes_max`"), "{reason}");
    assert_eq!(members.counters.refused, 1);
    let id = greet(&mut members, 5, 3, 0);
    register(&mut members, id, 3, 2, 0);
}

/// A list of all nodes does not lie whole in front of each who asks: with 10,000 of either that is
/// gigabytes. It goes on when its client has taken some, and news come in between.
#[test]
fn a_list_is_told_as_fast_as_it_is_taken() {
    let mut members = members();
    let config = &mut members.config;
    (config.nodes_max, config.connections_max, config.verify_source) = (2_000, 10, false);
    config.connections_per_address = 10;
    let name = |n: u32| Gid::from(std::net::Ipv4Addr::from(0x0a00_0000 + n));
    let owner = greet(&mut members, 1, 1, 0);
    for n in 0..1_000 {
        members.nodes.insert(
            name(n),
            Node { record: record(n), owner, expires: Time(TTL_NS), due: Time(TTL_NS) },
        );
    }
    let [slow, quick] = [2, 3].map(|id| greet(&mut members, id, 1, 0));
    for id in [slow, quick] {
        members.handle(id, Frame::Watch { on: true }, Time(0));
    }
    assert!(members.inform(Time(0), |_| true));
    let first = said(&mut members);
    assert_eq!(first.len(), 2 * (1 + TOLD_AT_ONCE));
    while members.inform(Time(0), |id| id == quick) {}
    let rest = said(&mut members);
    assert_eq!(rest.len(), 1_000 - TOLD_AT_ONCE + 1, "the quick one alone");
    // One that was told goes, one that was not goes, one comes among those that were told.
    for gone in [name(0), name(999)] {
        members.remove(gone);
    }
    let came = Gid::from(std::net::Ipv4Addr::from(0x0900_0000));
    members
        .nodes
        .insert(came, Node { record: record(7), owner, expires: Time(TTL_NS), due: Time(TTL_NS) });
    members.tell(came);
    list_all(&mut members, 0);
    let mut known = BTreeMap::new();
    let heard = first.into_iter().chain(outputs(&mut members));
    let mut ended = false;
    for output in heard {
        match output {
            Output::Send(id, Frame::Node { gid, record }) if id == slow => {
                assert!(!ended);
                known.insert(gid, record.is_some());
            }
            Output::Send(id, Frame::ListEnd { .. }) if id == slow => ended = true,
            _ => {}
        }
    }
    let there = known.iter().filter(|(_, there)| **there).map(|(gid, _)| gid);
    assert!(ended && there.eq(members.nodes.keys()));
}

/// As many nodes as the default allows, each over a connection of its own; the next one hears why
/// not, and those that are there may still change.
#[test]
fn a_registry_holds_65536_nodes_and_says_so_to_the_next() {
    const NODES: u32 = 65_536;
    let config = RegistryConfig { ttl_ns: TTL_NS, ..RegistryConfig::default() };
    assert_eq!(config.nodes_max, NODES);
    let mut members = Members::new(config, Table(BTreeMap::new()), Time(0));
    let name = |n: u32| Gid::from(std::net::Ipv4Addr::from(0x0a00_0000 + n));
    let register = |members: &mut Members<Table>, n: u32, tag: u32| {
        let id = ConnectionId(u64::from(n) + u64::from(tag) * 100_000);
        assert!(members.open(id, name(n).to_ip(), OURS, Time(0)));
        members.handle(id, Frame::Hello { nonce: THEIRS }, Time(0));
        members.handle(id, Frame::Register { gid: name(n), record: record(tag) }, Time(0));
        outputs(members).pop()
    };
    for n in 0..NODES {
        let said = register(&mut members, n, 1);
        assert!(matches!(said, Some(Output::Send(_, Frame::Registered))), "{n}: {said:?}");
    }
    assert!(matches!(register(&mut members, NODES, 1), Some(Output::Close(_))));
    assert_eq!((members.counters.refused, members.table.0.len()), (1, NODES as usize));
    members.closed(ConnectionId(100_000 + 5));
    let said = register(&mut members, 5, 2);
    assert!(matches!(said, Some(Output::Send(_, Frame::Registered))), "{said:?}");
    assert_eq!(members.table.0[&name(5)], record(2));
}

#[test]
fn a_connection_that_says_nothing_or_nonsense_ends() {
    let mut members = members();
    let id = ConnectionId(1);
    assert!(members.open(id, address(1), OURS, Time(0)));
    members.handle(id, Frame::Heartbeat, Time(0));
    assert_eq!(outputs(&mut members), [Output::Close(id)]);
    assert_eq!(members.counters.violations, 1);
    let silent = ConnectionId(2);
    assert!(members.open(silent, address(2), OURS, Time(0)));
    members.handle_timeout(Time(TTL_NS));
    assert_eq!(outputs(&mut members), [Output::Close(id), Output::Close(silent)]);
}

#[test]
fn a_list_is_complete_when_all_had_time_to_register() {
    let mut members = members();
    let id = greet(&mut members, 1, 1, 0);
    register(&mut members, id, 1, 1, 0);
    members.handle(id, Frame::Watch { on: true }, Time(3 * TTL_NS));
    list_all(&mut members, 3 * TTL_NS);
    let outs = outputs(&mut members);
    let node = Frame::Node { gid: gid(1), record: Some(record(1)) };
    let list = [Frame::ListBegin, node, Frame::ListEnd { complete: true }];
    assert_eq!(outs, list.map(|frame| Output::Send(id, frame)));
}

#[test]
fn who_knows_the_secret_is_welcome_and_nobody_else() {
    let mut members = members();
    let secret = Secret::new(b"of the cluster");
    members.config.secret = Some(secret.clone());
    let id = ConnectionId(1);
    let challenge = |members: &mut Members<Table>, id| {
        members.handle(id, Frame::Hello { nonce: THEIRS }, Time(0));
        let challenge = Output::Send(id, Frame::Challenge { nonce: OURS });
        assert_eq!(outputs(members), [challenge]);
        members.take_seals(id).unwrap()
    };
    assert!(members.open(id, address(1), OURS, Time(0)));
    let mut seals = challenge(&mut members, id);
    let mut node = Seals::of_node(&secret, &THEIRS, &OURS);
    assert!(seals.theirs.check(b"proof", &node.ours.next(b"proof")));
    members.handle(id, Frame::Proof, Time(0));
    let outs = outputs(&mut members);
    assert!(matches!(&outs[..], [Output::Send(_, Frame::Welcome { .. })]), "{outs:?}");
    register(&mut members, id, 1, 1, 0);

    // Until then it may do nothing, and says so once.
    let frames = [
        Frame::Register { gid: gid(2), record: record(1) },
        Frame::Hello { nonce: THEIRS },
        Frame::Watch { on: true },
        Frame::Heartbeat,
    ];
    for (number, frame) in frames.into_iter().enumerate() {
        let id = ConnectionId(10 + number as u64);
        assert!(members.open(id, address(2), OURS, Time(0)));
        challenge(&mut members, id);
        members.handle(id, frame, Time(0));
        assert_eq!(outputs(&mut members), [Output::Close(id)]);
        members.closed(id);
    }
    let id = ConnectionId(20);
    assert!(members.open(id, address(2), OURS, Time(0)));
    challenge(&mut members, id);
    members.unproven(id);
    let outs = outputs(&mut members);
    assert!(matches!(&outs[..], [Output::Send(_, Frame::Refused { .. }), Output::Close(_)]));
    assert_eq!((members.counters.violations, members.counters.unproven), (4, 1));
    assert_eq!(members.table.0.len(), 1);
}

#[test]
fn strangers_leave_room_and_go_in_time_whatever_they_say() {
    let mut members = members();
    members.config.secret = Some(Secret::new(b"of the cluster"));
    members.config.connections_max = 100;
    for number in 1..=3 {
        assert!(members.open(ConnectionId(number), address(number as u8), OURS, Time(0)));
    }
    // The fourth is let in, and the oldest goes.
    assert!(members.open(ConnectionId(4), address(4), OURS, Time(0)));
    assert_eq!(outputs(&mut members), [Output::Close(ConnectionId(1))]);
    assert_eq!((members.strangers.len(), members.counters.turned_away), (3, 1));
    members.handle(ConnectionId(2), Frame::Hello { nonce: THEIRS }, Time(TTL_NS - 1));
    outputs(&mut members);
    members.handle_timeout(Time(TTL_NS));
    assert_eq!(outputs(&mut members), [2, 3, 4].map(|id| Output::Close(ConnectionId(id))));
}

/// Whoever held all places kept the nodes of an address, or all nodes, from registering.
#[test]
fn strangers_give_way_to_whoever_comes_and_nodes_do_not() {
    for secret in [None, Some(Secret::new(b"of the cluster"))] {
        let mut members = members();
        let node = greet(&mut members, 1, 1, 0);
        register(&mut members, node, 1, 1, 0);
        members.config.secret = secret;
        members.config.connections_max = 100;
        // From the same address, and from others.
        for (id, number) in [(2, 1), (3, 1), (4, 2), (5, 3), (6, 4), (7, 1)] {
            assert!(members.open(ConnectionId(id), address(number), OURS, Time(0)));
            assert!(members.strangers.len() <= 3 && members.by_address[&address(1)].len() <= 2);
        }
        let closed = [2, 3, 4].map(|id| Output::Close(ConnectionId(id)));
        assert_eq!(outputs(&mut members), closed);
        assert!(members.connections.contains_key(&node));
        if members.config.secret.is_none() {
            // Nor does it help to say hello, without any proof.
            members.handle(ConnectionId(7), Frame::Hello { nonce: THEIRS }, Time(0));
            outputs(&mut members);
            assert!(members.open(ConnectionId(8), address(1), OURS, Time(0)));
            assert_eq!(outputs(&mut members)[0], Output::Close(ConnectionId(7)));
        }
        assert_eq!(members.connections.len(), members.due.len() - 1);
    }
}

/// They stayed, one more for each time, and each came up again whenever it was due.
#[test]
fn nodes_that_come_and_go_leave_nothing() {
    let mut members = members();
    members.config.connections_max = 100;
    for round in 0..50 {
        let id = greet(&mut members, round + 1, 2, round);
        register(&mut members, id, 2, 5, round);
        register(&mut members, id, 2, 5, round);
        members.handle(id, Frame::Leave, Time(round));
        members.closed(id);
        assert!(members.due.is_empty(), "{:?}", members.due);
    }
}

/// It stayed in the table for good: nobody knew of it, and so nobody removed it.
#[test]
fn a_record_that_was_put_too_late_goes() {
    let mut members = members();
    let watcher = greet(&mut members, 1, 1, 0);
    members.handle(watcher, Frame::Watch { on: true }, Time(0));
    outputs(&mut members);
    let put = |members: &mut Members<Table>, id| {
        members.handle(id, Frame::Register { gid: gid(2), record: record(LATE) }, Time(0));
        let outs = outputs(members);
        assert!(matches!(outs[0], Output::Send(_, Frame::Refused { .. })), "{outs:?}");
        assert!(members.table.0.is_empty() && members.nodes.is_empty());
        outs
    };
    let id = greet(&mut members, 2, 2, 0);
    put(&mut members, id);
    members.closed(id);
    // Nor does the record stay that was there before, which is another's.
    let id = greet(&mut members, 3, 2, 0);
    register(&mut members, id, 2, 5, 0);
    members.closed(id);
    outputs(&mut members);
    let id = greet(&mut members, 4, 2, 0);
    let outs = put(&mut members, id);
    let went = Frame::Node { gid: gid(2), record: None };
    assert!(outs.contains(&Output::Send(watcher, went)), "{outs:?}");
}
