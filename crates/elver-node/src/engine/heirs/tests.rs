//! Sets by hand: what they count for, and when.

use elver_core::VqpId;
use elver_portal::{
    ClientEnd, Command, ConnectOptions, Message, Received, RefusalCode, Socket, VQPS_PER_HEIR_MAX,
    VqpOptions,
};
use elver_verbs::Gid;

use super::making::{RETRY_NS, RETRY_NS_MAX};
use super::plan::Target;
use super::preparing::{HEIRS_MAX, SETS_MAX};
use super::*;
use crate::clock::now;
use crate::engine::Engine;
use crate::engine::tests::{USER, ask, engine, reply, session, until};
use crate::engine::translate::Refused;

fn prepare(heirs: u32, vqps: u32, mr_len: u64) -> Command<'static> {
    Command::Prepare { heirs, vqps, mr_len, access: AccessFlags::LOCAL_WRITE }
}

fn usage(engine: &Engine) -> Usage {
    engine.sessions.quotas.of(USER)
}

fn bytes(heirs: u32, vqps: u32) -> u64 {
    HeirsLayout { heirs, vqps }.bytes()
}

/// Has the one heir of a user's first set made, with a VQP to the node itself.
fn connect_one(engine: &mut Engine, user: &mut (Socket, ClientEnd)) {
    let (connect, options) = (ConnectOptions::default(), VqpOptions::default());
    let vqp = Command::PrepareVqp { set: 0, gid: engine.core.gid(), port: 0, connect, options };
    assert_eq!(ask(engine, user, 2, &vqp), Some(None));
    let seal = Command::Seal { set: 0, addr: 0, must_connect: true };
    ask(engine, user, 3, &seal);
    until(engine, |engine| (engine.sets.free() == 1).then_some(()));
}

/// The file that came over a socket.
fn file(socket: &Socket) -> Option<std::os::fd::OwnedFd> {
    loop {
        match socket.receive(true).unwrap() {
            Received::Message(Message::Wake, _) => {}
            Received::Message(_, file) => return file,
            _ => return None,
        }
    }
}

/// Whoever prepared and did not seal had gigabytes that counted for nobody, and the engine's thread made
/// them.
#[test]
fn a_set_counts_from_when_it_is_asked_for_until_it_has_ended() {
    let (mut engine, _outlet) = engine([127, 99, 3, 3]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    let refused = ask(&mut engine, &mut user, 1, &prepare(HEIRS_MAX, 0, 0));
    assert_eq!((refused, usage(&engine)), (Some(Some(RefusalCode::Limit)), before));

    // It counts before there is anything, which takes another thread its time.
    assert_eq!(ask(&mut engine, &mut user, 2, &prepare(100, 2, 64)), None);
    let set = Usage::heir(2, true).times(100).plus(Usage::file(bytes(100, 2)));
    assert_eq!((set.sessions, set.vqps, set.mrs), (100, 200, 100));
    assert_eq!(usage(&engine), before.plus(set));
    // Who guesses its number seals nothing.
    let seal = Command::Seal { set: 0, addr: 0, must_connect: false };
    assert_eq!(ask(&mut engine, &mut user, 3, &seal), Some(Some(RefusalCode::State)));
    let made = until(&mut engine, |_| reply(&mut user.1, 2));
    assert_eq!((made, usage(&engine)), (None, before.plus(set)));
    let file = file(&user.0).unwrap();
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
    assert!(blocks() >= bytes(100, 2));

    // The process may keep it: it has no memory any more.
    assert_eq!(ask(&mut engine, &mut user, 4, &Command::Disown { set: 0 }), Some(None));
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
    until(&mut engine, |_| (blocks() == 0).then_some(()));
}

#[test]
fn a_session_has_so_many_sets() {
    let (mut engine, _outlet) = engine([127, 99, 3, 4]);
    let mut user = session(&mut engine, USER);
    for request in 0..SETS_MAX as u32 {
        if ask(&mut engine, &mut user, request, &prepare(1, 0, 0)).is_none() {
            assert_eq!(until(&mut engine, |_| reply(&mut user.1, request)), None);
        }
        file(&user.0).unwrap();
    }
    let refused = ask(&mut engine, &mut user, 1_000, &prepare(1, 0, 0));
    assert_eq!(refused, Some(Some(RefusalCode::Limit)));
}

#[test]
fn a_session_made_ahead_has_so_many_vqps() {
    let (mut engine, _outlet) = engine([127, 99, 3, 19]);
    let mut user = session(&mut engine, USER);
    let refused = ask(&mut engine, &mut user, 1, &prepare(1, VQPS_PER_HEIR_MAX + 1, 0));
    assert_eq!(refused, Some(Some(RefusalCode::OutOfRange)));
    assert_eq!(ask(&mut engine, &mut user, 2, &prepare(1, VQPS_PER_HEIR_MAX, 0)), None);
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 2)), None);
}

/// It stayed, with its descriptor, for as long as the session.
#[test]
fn a_set_whose_file_cannot_be_handed_over_ends() {
    let (mut engine, _outlet) = engine([127, 99, 3, 5]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(10, 1, 0)), None);
    let (socket, mut end) = user;
    drop(socket);
    let begun = now();
    let refused = loop {
        // Nobody looks at the socket meanwhile, which would end the session.
        match engine.inlet.next() {
            Some(notice) => engine.heed(notice, now()),
            None => std::thread::yield_now(),
        }
        if let Some(reply) = reply(&mut end, 1) {
            break reply;
        }
        assert!(now().ns_since(begun) < 20_000_000_000);
    };
    assert!(refused.is_some());
    assert_eq!(engine.sets.all.len(), 0);
    while usage(&engine) != before {
        match engine.inlet.next() {
            Some(notice) => engine.heed(notice, now()),
            None => std::thread::yield_now(),
        }
        assert!(now().ns_since(begun) < 20_000_000_000);
    }
}

/// Its file waited to be given back and counted for nobody, as many as one asked for.
#[test]
fn a_set_that_ends_before_its_file_is_there_counts_until_that_has_gone() {
    let (mut engine, _outlet) = engine([127, 99, 3, 61]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(0);
    engine.maker.asides.run(USER, move |_| assert!(wait.recv().is_err()));
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(100, 2, 64)), None);
    assert_eq!(ask(&mut engine, &mut user, 2, &Command::Disown { set: 0 }), Some(None));
    let refused = until(&mut engine, |_| reply(&mut user.1, 1));
    assert_eq!(refused, Some(RefusalCode::State));
    assert_eq!(usage(&engine), before.plus(Usage::file(bytes(100, 2))));
    drop(go);
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
}

/// What was being mapped when its set ended counted for nobody until it had gone, as many as one had sessions.
#[test]
fn places_that_are_being_made_when_their_set_ends_count_until_they_have_gone() {
    const HEIRS: u32 = 10;
    let (mut engine, _outlet) = engine([127, 99, 3, 63]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(HEIRS, 0, 64)), None);
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 1)), None);
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(0);
    engine.maker.asides.run(USER, move |_| assert!(wait.recv().is_err()));
    let seal = Command::Seal { set: 0, addr: 0, must_connect: false };
    assert_eq!(ask(&mut engine, &mut user, 2, &seal), None);
    until(&mut engine, |engine| engine.sets.vacant.is_empty().then_some(()));
    assert_eq!(ask(&mut engine, &mut user, 3, &Command::Disown { set: 0 }), Some(None));
    let places = Usage::PLACE.times(HEIRS);
    let file = Usage::file(bytes(HEIRS, 0));
    assert_eq!(usage(&engine), before.plus(file).plus(places));
    // The thread gets on once, and stands again: now they are mapped.
    let (here, comes) = std::sync::mpsc::sync_channel::<()>(1);
    let (go_on, waits) = std::sync::mpsc::sync_channel::<()>(0);
    engine.maker.asides.run(USER, move |_| {
        here.send(()).unwrap();
        assert!(waits.recv().is_err());
    });
    drop(go);
    until(&mut engine, |_| comes.try_recv().ok());
    engine.tidy(now());
    while let Some(notice) = engine.inlet.next() {
        engine.heed(notice, now());
    }
    assert_eq!(usage(&engine).mappings, before.plus(file).plus(places).mappings);
    drop(go_on);
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
}

/// It was tried every fifth of a millisecond, and its memory was cleared each time.
#[test]
fn an_heir_that_cannot_be_made_again_is_tried_less_and_less() {
    let (mut engine, _outlet) = engine([127, 99, 3, 6]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(1, 1, 0)), None);
    until(&mut engine, |_| reply(&mut user.1, 1));
    connect_one(&mut engine, &mut user);
    let heir = Usage::heir(1, false).plus(Usage::file(bytes(1, 1)));
    assert_eq!(usage(&engine), before.plus(heir));

    // A child has had it, and meanwhile the user has made as many VQPs as it may.
    let own = rustix::process::getpid();
    let customer = engine.sets.all[&0].parent.customer;
    let child = Child { pid: own, parent: own, uid: engine.sets.all[&0].parent.uid, customer };
    let (_, open) = engine.sets.inherit(0, None, Some(child)).unwrap();
    let client = open.client;
    let most = Usage { vqps: 1 << 20, ..Usage::default() };
    engine.sessions.quotas.count(USER, most);
    engine.sessions.retire(USER, open);
    engine.core.client_close(client, now());
    let Engine { sets, sessions, core, .. } = &mut engine;
    sets.ended(u64::MAX, Some(((0, 0), client, None)), sessions, core, now());
    let due = until(&mut engine, |engine| engine.sets.due());
    assert!(engine.sets.vacant.is_empty() && !engine.sets.is_busy());
    // Its place is none's, and is mapped no more.
    assert!(engine.sets.all[&0].heirs[0].place.is_none());
    let mut tend = |at: Time| {
        let Engine { sets, sessions, core, maker, .. } = &mut engine;
        sets.tend(sessions, (core, maker), at);
        (sets.all[&0].heirs[0].failures, sets.due())
    };
    let first = tend(Time(due.0 - 1));
    assert_eq!(first.1, Some(due));
    let (failures, next) = tend(due);
    assert_eq!(failures, first.0 + 1);
    assert!(next.unwrap().ns_since(due) > RETRY_NS, "{next:?}");
    for _ in 0..20 {
        let at = tend(Time(0)).1.unwrap();
        let (_, next) = tend(at);
        assert!(next.unwrap().ns_since(at) <= RETRY_NS_MAX);
    }
    engine.sessions.quotas.give_back(USER, most);
    let at = engine.sets.due().unwrap();
    let Engine { sets, sessions, core, maker, .. } = &mut engine;
    sets.tend(sessions, (core, maker), at);
    assert_eq!(engine.sets.due(), None);
    until(&mut engine, |engine| (engine.sets.free() == 1).then_some(()));
    assert_eq!(engine.sets.all[&0].heirs[0].failures, 0);
    assert_eq!(usage(&engine), before.plus(heir));
}

/// It stayed connected in its record, and was chosen before others that were.
#[test]
fn a_vqp_that_fails_while_nobody_has_it_is_not_connected() {
    let (mut engine, _outlet) = engine([127, 99, 3, 70]);
    let mut user = session(&mut engine, USER);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(1, 1, 0)), None);
    until(&mut engine, |_| reply(&mut user.1, 1));
    let file = file(&user.0).unwrap();
    connect_one(&mut engine, &mut user);
    let heirs = elver_portal::Heirs::map(&file, HeirsLayout { heirs: 1, vqps: 1 }).unwrap();
    let (vqp, via) = heirs.vqp(0, 0);
    assert!(via.is_some());
    let client = *engine.sets.clients.keys().next().unwrap();
    let cause = || Refused::new(RefusalCode::PeerGone, "it has gone");
    // Another's number changes nothing.
    assert!(engine.sets.failed(client, VqpId(vqp + 1), cause()));
    assert_eq!(heirs.vqp(0, 0), (vqp, via));
    assert!(engine.sets.failed(client, VqpId(vqp), cause()));
    assert_eq!((heirs.vqp(0, 0), engine.sets.free()), ((vqp, None), 1));
}

/// The node has a descriptor of who gave a session back and lives on: it counts, and goes with the set.
#[test]
fn who_gives_back_and_lives_on_is_waited_for_as_long_as_the_set_lives() {
    let (mut engine, _outlet) = engine([127, 99, 3, 60]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(1, 0, 0)), None);
    until(&mut engine, |_| reply(&mut user.1, 1));
    let seal = Command::Seal { set: 0, addr: 0, must_connect: false };
    if ask(&mut engine, &mut user, 2, &seal).is_none() {
        until(&mut engine, |_| reply(&mut user.1, 2));
    }
    until(&mut engine, |engine| (engine.sets.free() == 1).then_some(()));
    let own = rustix::process::getpid();
    let Parent { uid, customer, .. } = engine.sets.all[&0].parent;
    let child = Child { pid: own, parent: own, uid, customer };
    let (_, open) = engine.sets.inherit(0, None, Some(child)).unwrap();
    let client = open.client;
    engine.sessions.retire(USER, open);
    engine.core.client_close(client, now());
    let flags = rustix::process::PidfdFlags::empty();
    let process = rustix::process::pidfd_open(own, flags).unwrap();
    let Engine { sets, sessions, core, .. } = &mut engine;
    sets.ended(u64::MAX, Some(((0, 0), client, Some(process))), sessions, core, now());
    // Until nothing else of it is there.
    until(&mut engine, |engine| {
        let gone =
            engine.core.client_is_gone(client) && engine.sessions.ghosts.has_forgotten(client);
        gone.then_some(())
    });
    for _ in 0..10 {
        let due = engine.sets.due().unwrap();
        let Engine { sets, sessions, core, maker, .. } = &mut engine;
        sets.tend(sessions, (core, maker), due);
        assert!(!sets.is_busy() && sets.free() == 0, "the node may sleep");
    }
    assert_eq!(usage(&engine).sessions, before.sessions + 1);
    assert_eq!(ask(&mut engine, &mut user, 3, &Command::Disown { set: 0 }), Some(None));
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
    assert!(engine.sets.leaving.is_empty() && engine.sets.due().is_none());
}

/// The only heir of a set, which a child has had and given back: its client.
fn given_back(
    engine: &mut Engine,
    user: &mut (Socket, elver_portal::ClientEnd),
    process: Option<OwnedFd>,
) -> ClientId {
    assert_eq!(ask(engine, user, 1, &prepare(1, 0, 0)), None);
    until(engine, |_| reply(&mut user.1, 1));
    let seal = Command::Seal { set: 0, addr: 0, must_connect: false };
    if ask(engine, user, 2, &seal).is_none() {
        until(engine, |_| reply(&mut user.1, 2));
    }
    until(engine, |engine| (engine.sets.free() == 1).then_some(()));
    let own = rustix::process::getpid();
    let Parent { uid, customer, .. } = engine.sets.all[&0].parent;
    let child = Child { pid: own, parent: own, uid, customer };
    let (_, open) = engine.sets.inherit(0, None, Some(child)).unwrap();
    let client = open.client;
    engine.sessions.retire(USER, open);
    engine.core.client_close(client, now());
    let Engine { sets, sessions, core, .. } = engine;
    sets.ended(u64::MAX, Some(((0, 0), client, process)), sessions, core, now());
    client
}

/// Between two sessions it counted for nobody, and so what many had mapped at a time.
#[test]
fn a_place_counts_until_the_next_session_is_made_there() {
    let (mut engine, _outlet) = engine([127, 99, 3, 65]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    let client = given_back(&mut engine, &mut user, None);
    let begun = now();
    while !engine.sessions.ghosts.has_forgotten(client) {
        assert!(now().ns_since(begun) < 20_000_000_000);
        engine.core.poll(now());
        engine.tidy(now());
        // As the last thing, so that nobody has looked after the heirs since its memory was given back.
        while let Some(notice) = engine.inlet.next() {
            engine.heed(notice, now());
        }
    }
    let place = Usage::file(bytes(1, 0)).plus(Usage::PLACE);
    assert_eq!(usage(&engine), before.plus(place));
    until(&mut engine, |engine| (engine.sets.free() == 1).then_some(()));
    assert_eq!(usage(&engine), before.plus(Usage::file(bytes(1, 0))).plus(Usage::SESSION));
    assert_eq!(ask(&mut engine, &mut user, 3, &Command::Disown { set: 0 }), Some(None));
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
}

/// Its set ended while it was waited for who had it, and it counted for nobody until it had gone.
#[test]
fn a_place_that_somebody_gave_back_counts_until_it_has_gone() {
    let (mut engine, _outlet) = engine([127, 99, 3, 66]);
    let mut user = session(&mut engine, USER);
    let before = usage(&engine);
    let flags = rustix::process::PidfdFlags::empty();
    let process = rustix::process::pidfd_open(rustix::process::getpid(), flags).unwrap();
    let client = given_back(&mut engine, &mut user, Some(process));
    until(&mut engine, |engine| engine.sessions.ghosts.has_forgotten(client).then_some(()));
    assert_eq!(usage(&engine).sessions, before.sessions + 1);
    let place = Usage::file(bytes(1, 0)).plus(Usage::PLACE);
    assert_eq!(usage(&engine).mappings, before.plus(place).mappings);
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(0);
    engine.maker.asides.run(USER, move |_| assert!(wait.recv().is_err()));
    assert_eq!(ask(&mut engine, &mut user, 3, &Command::Disown { set: 0 }), Some(None));
    engine.tidy(now());
    assert_eq!(usage(&engine), before.plus(place));
    drop(go);
    until(&mut engine, |engine| (usage(engine) == before).then_some(()));
}

/// A VQP with the destination of all is not one session's to have elsewhere, nor is what there is not.
#[test]
fn only_what_was_prepared_without_a_destination_is_assigned_one() {
    let (mut engine, _outlet) = engine([127, 99, 3, 64]);
    let mut user = session(&mut engine, USER);
    let mut other = session(&mut engine, USER);
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare(2, 2, 0)), None);
    until(&mut engine, |_| reply(&mut user.1, 1));
    let (connect, options, gid) =
        (ConnectOptions::default(), VqpOptions::default(), engine.core.gid());
    let named = Command::PrepareVqp { set: 0, gid, port: 0, connect, options };
    let unassigned = Command::PrepareUnassigned { set: 0, options };
    assert_eq!(ask(&mut engine, &mut user, 2, &named), Some(None));
    assert_eq!(ask(&mut engine, &mut user, 3, &unassigned), Some(None));
    let assign = |heir, at| Command::Assign { set: 0, heir, at, gid, port: 0, connect };
    let state = Some(Some(RefusalCode::State));
    assert_eq!(ask(&mut engine, &mut user, 4, &assign(0, 1)), state, "before there are any");
    let seal = Command::Seal { set: 0, addr: 0, must_connect: true };
    if ask(&mut engine, &mut user, 5, &seal).is_none() {
        assert_eq!(until(&mut engine, |_| reply(&mut user.1, 5)), None);
    }
    for (request, heir, at) in [(6, 0, 0), (7, 0, 2), (8, 2, 1), (9, u32::MAX, u32::MAX)] {
        assert_eq!(ask(&mut engine, &mut user, request, &assign(heir, at)), state, "{heir} {at}");
    }
    assert_eq!(ask(&mut engine, &mut other, 1, &assign(0, 1)), state, "another's");
    assert_eq!(ask(&mut engine, &mut user, 10, &assign(1, 1)), Some(None));
    let assigned = |engine: &Engine, heir: usize| engine.sets.all[&0].heirs[heir].assigned.get(1);
    assert_eq!(assigned(&engine, 0), None);
    assert_eq!(assigned(&engine, 1), Some(Target { gid, port: 0, connect }));
    let none = Command::Assign { set: 0, heir: 1, at: 1, gid: Gid::default(), port: 0, connect };
    assert_eq!(ask(&mut engine, &mut user, 11, &none), Some(None));
    assert_eq!(assigned(&engine, 1), None);
}
