//! What users lease at an engine by hand, and when it counts.

use elver_core::{ConnectError, Event, Shortage};
use elver_portal::{
    Answer, ClientEnd, Command, ConnectOptions, RefusalCode, Reply, Scratch, Socket, VqpOptions,
};
use elver_verbs::{AccessFlags, Gid, Payload, Policy, SendFlags, SendOp, SendWr, Sge};

use super::*;
use crate::clock::now;
use crate::config::Config;
use crate::engine::account::Account;
use crate::engine::quota::LEASE_WRS;
use crate::engine::tests::{USER, ask, engine_of, reply, session, until};
use crate::engine::{Engine, Outlet};

const OTHER: Account = Account { uid: 1_002, ..USER };
/// A node that has no such peer.
fn nowhere() -> Gid {
    Gid::from(std::net::Ipv4Addr::new(127, 99, 200, 1))
}

/// An engine with room for so many leased queue pairs.
fn engine(address: [u8; 4], leases: u32) -> (Engine, Outlet) {
    engine_of(address, |config| config.transfer.leased_wrs_max = leases * LEASE_WRS)
}

type User = (Socket, ClientEnd);

fn create(engine: &mut Engine, (socket, end): &mut User, max_send_wr: u32) -> u32 {
    let options = VqpOptions { max_send_wr, ..VqpOptions::default() };
    assert!(end.command(1, &Command::CreateVqp(options)).unwrap());
    if end.must_wake() {
        socket.wake().unwrap();
    }
    until(engine, |_| match end.next_reply(&mut Scratch::default()).unwrap()? {
        Reply::Answer { answer: Answer::Vqp(vqp), .. } => Some(vqp),
        other => panic!("{other:?}"),
    })
}

fn connect(
    engine: &mut Engine,
    user: &mut User,
    vqp: u32,
    gid: Gid,
    policy: Policy,
) -> Option<RefusalCode> {
    let options = ConnectOptions { policy, ..ConnectOptions::default() };
    let connect = Command::Connect { vqp, gid, port: 0, options };
    match ask(engine, user, 2, &connect) {
        Some(answer) => answer,
        None => until(engine, |_| reply(&mut user.1, 2)),
    }
}

/// Another leased queue pair, of a VQP of its own, to the node itself.
fn lease(engine: &mut Engine, user: &mut User) -> Result<u32, RefusalCode> {
    let (vqp, gid) = (create(engine, user, 128), engine.core.gid());
    connect(engine, user, vqp, gid, Policy::Leased).map_or(Ok(vqp), Err)
}

/// A set of so many sessions that have a leased queue pair to the node itself each, which is to be sealed.
fn prepare(engine: &mut Engine, user: &mut User, set: u32, (heirs, max_send_wr): (u32, u32)) {
    let access = AccessFlags::LOCAL_WRITE;
    let prepare = Command::Prepare { heirs, vqps: 1, mr_len: 0, access };
    if ask(engine, user, 3, &prepare).is_none() {
        assert_eq!(until(engine, |_| reply(&mut user.1, 3)), None);
    }
    let options = VqpOptions { max_send_wr, ..VqpOptions::default() };
    let connect = ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() };
    let vqp = Command::PrepareVqp { set, gid: engine.core.gid(), port: 0, connect, options };
    assert_eq!(ask(engine, user, 4, &vqp), Some(None));
}

fn seal(engine: &mut Engine, user: &mut User, set: u32, must_connect: bool) -> Option<RefusalCode> {
    let seal = Command::Seal { set, addr: 0, must_connect };
    match ask(engine, user, 5, &seal) {
        Some(answer) => answer,
        None => until(engine, |_| reply(&mut user.1, 5)),
    }
}

fn leased(engine: &Engine, account: Account) -> u32 {
    engine.sessions.quotas.of(account).leased_wrs
}

fn counter(engine: &mut Engine, name: &str) -> u64 {
    engine.status().engine[name]
}

#[test]
fn a_user_that_leases_all_it_gets_leaves_some_to_others() {
    let (mut engine, _outlet) = engine([127, 99, 3, 80], 64);
    let (mut greedy, mut again) = (session(&mut engine, USER), session(&mut engine, USER));
    let had = (0..).take_while(|_| lease(&mut engine, &mut greedy).is_ok()).count();
    assert_eq!((had, leased(&engine, USER)), (32, 32 * LEASE_WRS));
    // Nor does it get more by another of its sessions.
    assert_eq!(lease(&mut engine, &mut again), Err(RefusalCode::Limit));
    assert_eq!(counter(&mut engine, "leases_refused_user"), 2);
    assert_eq!(counter(&mut engine, "leases_refused"), 0);
    let mut other = session(&mut engine, OTHER);
    lease(&mut engine, &mut other).unwrap();
    let status = engine.status();
    let shown = status.users.iter().map(|user| (user.uid, user.leased_wrs));
    assert_eq!(shown.collect::<Vec<_>>(), [(1_001, 32 * LEASE_WRS), (1_002, LEASE_WRS)]);
    // With its session all goes.
    drop(greedy);
    until(&mut engine, |engine| (leased(engine, USER) == 0).then_some(()));
    lease(&mut engine, &mut again).unwrap();
}

/// The core has a bound of their number too: by small ones a user could have had nearly all.
#[test]
fn a_user_that_leases_small_ones_leaves_some_to_others_too() {
    let (mut engine, _outlet) = engine([127, 99, 3, 87], 64);
    let gid = engine.core.gid();
    let mut greedy = session(&mut engine, USER);
    let small = |engine: &mut Engine, user: &mut User| {
        let vqp = create(engine, user, 1);
        connect(engine, user, vqp, gid, Policy::Leased)
    };
    let had = (0..).take_while(|_| small(&mut engine, &mut greedy).is_none()).count();
    assert_eq!(had as u32, 64 * LEASE_WRS / WRS_MIN / 2);
    let mut other = session(&mut engine, OTHER);
    for _ in 0..2 {
        assert_eq!(small(&mut engine, &mut other), None);
    }
    assert_eq!(counter(&mut engine, "leases_refused"), 0);
}

/// Also who would get no other, since others have some by now.
#[test]
fn who_has_a_lease_may_connect_it_anew() {
    let (mut engine, _outlet) = engine([127, 99, 3, 88], 64);
    let gid = engine.core.gid();
    let mut greedy = session(&mut engine, USER);
    let vqp = lease(&mut engine, &mut greedy).unwrap();
    while lease(&mut engine, &mut greedy).is_ok() {}
    let mut other = session(&mut engine, OTHER);
    for _ in 0..4 {
        lease(&mut engine, &mut other).unwrap();
    }
    let had = leased(&engine, USER);
    assert_eq!(connect(&mut engine, &mut greedy, vqp, gid, Policy::Leased), None);
    assert_eq!(leased(&engine, USER), had);
}

#[test]
fn what_a_vqp_leases_counts_once_and_no_longer_than_it_has_it() {
    let (mut engine, _outlet) = engine([127, 99, 3, 81], 64);
    let gid = engine.core.gid();
    let mut user = session(&mut engine, USER);
    let vqp = create(&mut engine, &mut user, 128);
    let mut connects = |engine: &mut Engine, gid, policy| {
        let refused = connect(engine, &mut user, vqp, gid, policy);
        (refused.is_none(), leased(engine, USER))
    };
    assert_eq!(connects(&mut engine, gid, Policy::Leased), (true, LEASE_WRS));
    // Connected anew it has one still, and over shared ones none.
    assert_eq!(connects(&mut engine, gid, Policy::Leased), (true, LEASE_WRS));
    assert_eq!(connects(&mut engine, gid, Policy::Shared), (true, 0));
    assert_eq!(connects(&mut engine, gid, Policy::Leased), (true, LEASE_WRS));
    // It is off what it was connected to, and nowhere else.
    assert_eq!(connects(&mut engine, nowhere(), Policy::Leased), (false, 0));
    assert_eq!(connects(&mut engine, gid, Policy::Leased), (true, LEASE_WRS));
    let destroy = Command::DestroyVqp { vqp };
    assert_eq!(ask(&mut engine, &mut user, 3, &destroy), Some(None));
    assert_eq!(leased(&engine, USER), 0);
    // None of a VQP that there is not.
    assert_eq!(
        connect(&mut engine, &mut user, vqp, gid, Policy::Leased),
        Some(RefusalCode::NoSuchVqp)
    );
    assert_eq!(leased(&engine, USER), 0);
}

const REGION: u64 = 0x10_0000;
const REGION_BYTES: u32 = 64 << 10;

fn region(engine: &mut Engine, (socket, end): &mut User) -> u32 {
    let (len, access) = (REGION_BYTES.into(), AccessFlags::LOCAL_WRITE);
    let alloc = Command::AllocMr { len, addr: REGION, access, huge: false };
    assert!(end.command(6, &alloc).unwrap());
    if end.must_wake() {
        socket.wake().unwrap();
    }
    until(engine, |_| match end.next_reply(&mut Scratch::default()).unwrap()? {
        Reply::Answer { answer: Answer::Mr { lkey, .. }, .. } => Some(lkey),
        other => panic!("{other:?}"),
    })
}

/// Who destroyed it while a WR was on its way had another in its place, though the core had that still.
#[test]
fn a_lease_counts_until_nothing_is_on_its_way_by_it() {
    let (mut engine, _outlet) = engine([127, 99, 3, 86], 64);
    let (mut user, gid) = (session(&mut engine, USER), engine.core.gid());
    let [bound, vqp] = [128; 2].map(|max_send_wr| create(&mut engine, &mut user, max_send_wr));
    let bind = Command::Bind { vqp: bound, port: 77 };
    assert_eq!(ask(&mut engine, &mut user, 3, &bind), Some(None));
    let options = ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() };
    let leased_to = Command::Connect { vqp, gid, port: 77, options };
    if ask(&mut engine, &mut user, 4, &leased_to).is_none() {
        assert_eq!(until(&mut engine, |_| reply(&mut user.1, 4)), None);
    }
    // A message that a receiver would read, and nobody does.
    let lkey = region(&mut engine, &mut user);
    let sges = [Sge { addr: REGION, length: REGION_BYTES, lkey }];
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
    let send = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    user.1.send(vqp, &send).unwrap();
    if user.1.must_wake() {
        user.0.wake().unwrap();
    }
    until(&mut engine, |engine| {
        let waits = engine.core.vqps().any(|info| info.vqp.0 == vqp && info.outstanding > 0);
        waits.then_some(())
    });
    let destroy = Command::DestroyVqp { vqp };
    assert_eq!(ask(&mut engine, &mut user, 5, &destroy), Some(None));
    assert_eq!((leased(&engine, USER), engine.core.vqps_going()), (LEASE_WRS, 1));
    until(&mut engine, |engine| (leased(engine, USER) == 0).then_some(()));
    assert_eq!(engine.core.vqps_going(), 0);
}

/// Who gave two connects of a VQP one number had the second counted no more when it heard of the first.
#[test]
fn a_connect_that_ends_late_takes_nothing_from_the_next_one_of_its_vqp() {
    let (mut engine, _outlet) = engine([127, 99, 3, 82], 64);
    let mut user = session(&mut engine, USER);
    let vqp = create(&mut engine, &mut user, 128);
    let options = ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() };
    for gid in [nowhere(), engine.core.gid()] {
        let connect = Command::Connect { vqp, gid, port: 0, options };
        assert!(user.1.command(2, &connect).unwrap());
    }
    if user.1.must_wake() {
        user.0.wake().unwrap();
    }
    assert!(until(&mut engine, |_| reply(&mut user.1, 2)).is_some());
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 2)), None);
    assert_eq!(leased(&engine, USER), LEASE_WRS);
}

#[test]
fn the_usual_depth_is_that_of_a_vqp_as_it_is_made() {
    let most = elver_core::Config::default().sq_depth;
    assert_eq!(wrs(VqpOptions::default().max_send_wr, most), LEASE_WRS);
}

/// The core says how much it has used to whom it refuses one.
#[test]
fn a_lease_counts_as_much_as_the_core_counts_it() {
    let most = wrs(u32::MAX, elver_core::Config::default().sq_depth);
    for max_send_wr in [1, 128, 4_096] {
        let set = |config: &mut Config| config.transfer.leased_wrs_max = most;
        let (mut engine, _outlet) = engine_of([127, 99, 3, 83], set);
        let gid = engine.core.gid();
        let mut user = session(&mut engine, USER);
        let vqp = create(&mut engine, &mut user, max_send_wr);
        assert_eq!(connect(&mut engine, &mut user, vqp, gid, Policy::Leased), None);
        // The node's own, for which there is no room beside.
        let client = engine.core.client_open(engine.sessions.client_limits(OTHER)).unwrap();
        let init = elver_core::VqpInit { max_send_wr: 4_096, ..Default::default() };
        let vqp = engine.core.vqp_create(client, init).unwrap();
        let options = ConnectOptions { policy: Policy::Leased, ..ConnectOptions::default() };
        assert_eq!(engine.core.qconnect(client, vqp, gid, 0, options, 7, now()).unwrap(), None);
        let result = until(&mut engine, |engine| match engine.poll_event()? {
            Event::Connected { result, .. } => Some(result),
            other => panic!("{other:?}"),
        });
        let Err(ConnectError::NoRcQp { of: Shortage::Leased, used, limit, .. }) = result else {
            panic!("{result:?}")
        };
        assert_eq!((used.max(WRS_MIN), limit), (leased(&engine, USER), most));
    }
}

/// They counted nowhere.
#[test]
fn what_a_peer_refuses_as_more_than_this_nodes_share_is_counted_as_that() {
    // It makes four ends of leased ones, three for one node, of which this one is.
    let set = |config: &mut Config| config.transfer.leased_wrs_max = 128;
    let (mut engine, _outlet) = engine_of([127, 99, 3, 85], set);
    let gid = engine.core.gid();
    let mut user = session(&mut engine, USER);
    for leased in 0..4 {
        let vqp = create(&mut engine, &mut user, 1);
        let refused = connect(&mut engine, &mut user, vqp, gid, Policy::Leased);
        assert_eq!(refused, (leased == 3).then_some(RefusalCode::Limit));
    }
    let counters = |engine: &mut Engine| {
        ["leases_refused_peer", "leases_refused", "leases_refused_user"]
            .map(|name| counter(engine, name))
    };
    assert_eq!(counters(&mut engine), [1, 0, 0]);
    // A session that is made ahead asks for one too.
    prepare(&mut engine, &mut user, 0, (1, 1));
    seal(&mut engine, &mut user, 0, false);
    assert_eq!((engine.sets.free(), counters(&mut engine)), (1, [2, 0, 0]));
}

/// They were made for every session of a set, whoever else had asked for some.
#[test]
fn sessions_made_ahead_lease_what_their_user_may_have_and_go_without_the_rest() {
    let (mut engine, _outlet) = engine([127, 99, 3, 84], 64);
    let mut user = session(&mut engine, USER);
    for _ in 0..30 {
        lease(&mut engine, &mut user).unwrap();
    }
    prepare(&mut engine, &mut user, 0, (4, 128));
    assert_eq!(seal(&mut engine, &mut user, 0, false), None);
    assert_eq!((engine.sets.free(), leased(&engine, USER)), (4, 32 * LEASE_WRS));
    assert_eq!(counter(&mut engine, "leases_refused_user"), 2);
    assert_eq!(ask(&mut engine, &mut user, 6, &Command::Disown { set: 0 }), Some(None));
    until(&mut engine, |engine| (leased(engine, USER) == 30 * LEASE_WRS).then_some(()));
    // One that must have all its connections fails, and leaves nothing.
    prepare(&mut engine, &mut user, 1, (4, 128));
    assert_eq!(seal(&mut engine, &mut user, 1, true), Some(RefusalCode::Limit));
    until(&mut engine, |engine| (leased(engine, USER) == 30 * LEASE_WRS).then_some(()));
}
