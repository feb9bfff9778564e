//! Where a request goes: starts one by one, and what makes room.

use super::*;

#[test]
fn what_exists_chooses_the_start() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let second = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, process, second, NONE)]);
    schedule.request(NOW, "g", NONE).unwrap();
    let [Action::Spawn(home, warm, _, _)] = actions(&mut schedule)[..] else { panic!("not warm") };
    assert_eq!(home, container);
    let taken = schedule.take(NOW, warm, None).unwrap();
    assert_eq!(taken.start, Start::Warm);
    schedule.answered(NOW, warm, taken.request);
    let again = schedule.request(NOW, "g", NONE).unwrap();
    assert_eq!(actions(&mut schedule), []);
    let taken = schedule.take(NOW, warm, None).unwrap();
    assert_eq!((taken.request, taken.start), (again, Start::Reuse));
    // Bob's is never in Alice's container.
    schedule.request(NOW, "h", NONE).unwrap();
    assert!(matches!(&actions(&mut schedule)[..], [Action::Create(_, owner)] if owner == "bob"));
}

/// There could be any number of them beside those that were made.
#[test]
fn a_container_that_was_found_counts_before_it_tells_of_itself() {
    let mut schedule = schedule();
    let found = [ContainerId(700), ContainerId(800)];
    for id in found {
        schedule.container_found(NOW, id, "alice");
    }
    let request = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), []);
    assert_eq!(schedule.next_tick(), Some(NOW + Duration::from_secs(10)), "it is not idle");
    // Neither does one that cannot be ended make room for another.
    schedule.container_stays(NOW, found[0], "it did not connect");
    assert_eq!(actions(&mut schedule), []);
    // Who waits gets what it has, once it has told all.
    let process = ProcessId(900);
    schedule.adopt_process(NOW, found[1], there(process, "f", BTreeSet::new(), true));
    assert_eq!(actions(&mut schedule), []);
    schedule.container_runs(NOW, found[1]);
    assert_eq!(actions(&mut schedule), [Action::Fork(found[1], process, request, NONE)]);
    schedule.request(NOW, "h", NONE).unwrap();
    assert_eq!(actions(&mut schedule), []);
    schedule.container_ended(NOW, found[0], "it has ended");
    assert!(matches!(actions(&mut schedule)[..], [Action::Create(..)]));
}

#[test]
fn a_request_without_a_place_goes_with_its_caller() {
    let mut schedule = schedule();
    let [first, second, third] = [(); 3].map(|()| schedule.request(NOW, "g", NONE).unwrap());
    let [Action::Create(container, _)] = actions(&mut schedule)[..] else { panic!("not cold") };
    assert_eq!([first, second, second].map(|id| schedule.withdraw(id)), [false, true, false]);
    schedule.container_runs(NOW, container);
    let spawned = actions(&mut schedule).into_iter().map(|action| match action {
        Action::Spawn(_, _, request, _) => request,
        other => panic!("{other:?}"),
    });
    assert_eq!(spawned.collect::<Vec<_>>(), [first, third]);
}

#[test]
fn a_process_that_has_threads_has_one_request_at_a_time() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let [first, second] = [(); 2].map(|()| schedule.request(NOW, "f", NONE).unwrap());
    let fork = |request| Action::Fork(container, process, request, NONE);
    assert_eq!(actions(&mut schedule), [fork(first), fork(second)]);
    // It is at work on one of them before it is known that it has threads; the other one needs another place.
    schedule.take(NOW, process, Some(first)).unwrap();
    schedule.has_threads(NOW, process);
    assert!(matches!(&actions(&mut schedule)[..], [Action::Spawn(_, _, of, _)] if *of == second));
    assert!(schedule.take(NOW, process, Some(second)).is_none());
    assert_eq!(schedule.answered(NOW, process, first), Some(Start::Reuse));
    // No child is waited for.
    schedule.tick(NOW + Duration::from_secs(9));
    assert_eq!(actions(&mut schedule), []);
    let next = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [fork(next)]);
    assert_eq!(schedule.take(NOW, process, Some(next)).unwrap().start, Start::Reuse);
    // One that does not return is ended with the process.
    schedule.tick(NOW + Duration::from_secs(4));
    assert!(actions(&mut schedule).contains(&Action::KillProcess(container, process)));
}

#[test]
fn the_process_with_the_connections_is_forked() {
    let mut schedule = schedule();
    let (container, bare) = cold(&mut schedule, "f");
    schedule.request(NOW, "f", NONE).unwrap();
    let connected = ProcessId(900);
    schedule.adopt_process(NOW, container, there(connected, "f", gids(&["gid"]), true));
    actions(&mut schedule);
    let request = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, connected, request, NONE)]);
    // A container that lies of its processes gets none of another, and no number that ends ours.
    for lie in [bare, ProcessId(u64::MAX)] {
        schedule.adopt_process(NOW, container, there(lie, "f", BTreeSet::new(), true));
        assert_eq!(actions(&mut schedule), [Action::KillProcess(container, lie)]);
    }
    assert_eq!(schedule.table().iter().filter(|row| row.process == bare).count(), 1);
}

#[test]
fn the_process_that_lacks_the_fewest_connections_is_forked() {
    let mut schedule = schedule();
    let (container, first) = cold(&mut schedule, "f");
    schedule.connected(first, gids(&["gid"]));
    let second = ProcessId(900);
    schedule.adopt_process(NOW, container, there(second, "f", gids(&["gid", "other"]), true));
    let mut forked = |wanted: &[&str]| {
        let request = schedule.request(NOW, "f", gids(wanted)).unwrap();
        let [Action::Fork(_, process, of, destinations)] = &actions(&mut schedule)[..] else {
            panic!("not forked")
        };
        assert_eq!((*of, destinations), (request, &gids(wanted)));
        schedule.take(NOW, *process, Some(request)).unwrap();
        assert_eq!(schedule.answered(NOW, *process, request), Some(Start::Fork));
        *process
    };
    assert_eq!(forked(&["other"]), second);
    assert_eq!(forked(&["other", "nobody's"]), second);
    // The row says what there is now: a connection that has gone counts no more.
    schedule.connected(second, gids(&["gid"]));
    schedule.connected(first, gids(&["gid", "other"]));
    let request = schedule.request(NOW, "f", gids(&["other"])).unwrap();
    let expected = [Action::Fork(container, first, request, gids(&["other"]))];
    assert_eq!(actions(&mut schedule), expected);
}

#[test]
fn limits_refuse_and_idle_containers_make_room() {
    let mut schedule = schedule();
    let (alices, _) = cold(&mut schedule, "f");
    cold(&mut schedule, "h");
    schedule.request(NOW, "i", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Delete(alices)]);
    schedule.container_ended(NOW, alices, "deleted");
    assert!(matches!(&actions(&mut schedule)[..], [Action::Create(_, owner)] if owner == "carol"));
    for _ in 1..6 {
        schedule.request(NOW, "i", NONE).unwrap();
    }
    let refused = schedule.request(NOW, "i", NONE).unwrap_err();
    assert_eq!(refused, Failure::TooMany { what: "i".into(), most: 6 });
    assert_eq!(schedule.request(NOW, "x", NONE).unwrap_err(), Failure::Unknown("x".into()));
}

#[test]
fn a_container_has_so_many_requests() {
    let mut schedule = schedule();
    schedule.terms.container_requests_max = 2;
    schedule.terms.owner_containers_max = 1;
    let (_, process) = cold(&mut schedule, "f");
    let [first, _, third] = [(); 3].map(|()| schedule.request(NOW, "f", NONE).unwrap());
    assert_eq!(actions(&mut schedule).len(), 2);
    assert!(schedule.take(NOW, process, Some(third)).is_none());
    schedule.take(NOW, process, Some(first)).unwrap();
    schedule.answered(NOW, process, first).unwrap();
    assert!(matches!(&actions(&mut schedule)[..], [Action::Fork(_, _, of, _)] if *of == third));
}

#[test]
fn an_idle_process_makes_room_in_its_owners_container() {
    let mut schedule = schedule();
    schedule.terms.owner_containers_max = 1;
    schedule.terms.processes_max = 1;
    let (container, process) = cold(&mut schedule, "f");
    schedule.request(NOW, "g", NONE).unwrap();
    schedule.request(NOW, "g", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, process)]);
    schedule.process_ended(NOW, process, "signal 9");
    assert!(matches!(&actions(&mut schedule)[..], [Action::Spawn(_, _, _, g)] if g == "g"));
}

#[test]
fn a_container_that_cannot_be_ended_counts_and_takes_nothing() {
    let mut schedule = schedule();
    schedule.terms.owner_containers_max = 1;
    let (container, _) = cold(&mut schedule, "f");
    let failed = schedule.request(NOW, "f", NONE).unwrap();
    actions(&mut schedule);
    schedule.container_stays(NOW, container, "the runtime is away");
    let why = Failure::Container("the runtime is away".into());
    assert_eq!(actions(&mut schedule), [Action::Fail(failed, why)]);
    assert_eq!((schedule.table(), schedule.containers().len()), (vec![], 1));
    // Alice has as many containers as she may, and Bob's is the last one; it makes room for Carol's.
    schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), []);
    let (bobs, _) = cold(&mut schedule, "h");
    schedule.request(NOW, "i", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Delete(bobs)]);
    schedule.container_ended(NOW, bobs, "it was idle");
    assert!(matches!(&actions(&mut schedule)[..], [Action::Create(_, owner)] if owner == "carol"));
    schedule.container_ended(NOW, container, "");
    assert!(matches!(&actions(&mut schedule)[..], [Action::Create(_, owner)] if owner == "alice"));
}

#[test]
fn an_idle_process_beside_a_busy_one_is_ended() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    schedule.request(NOW, "g", NONE).unwrap();
    let [Action::Spawn(_, busy, _, _)] = actions(&mut schedule)[..] else { panic!("not warm") };
    let mut now = NOW;
    for _ in 0..60 {
        let taken = schedule.take(now, busy, None).unwrap();
        schedule.answered(now, busy, taken.request);
        schedule.request(now, "g", NONE).unwrap();
        now += Duration::from_secs(1);
        schedule.tick(now);
    }
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, process)]);
}

#[test]
fn a_process_amid_its_first_request_is_not_taken_over() {
    let mut schedule = schedule();
    schedule.terms.containers_max = 1;
    let (container, idle) = cold(&mut schedule, "f");
    let found = ProcessId(900);
    schedule.adopt_process(NOW, container, there(found, "f", BTreeSet::new(), false));
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, found)]);
    // What is not forked asks for its next request when it is done, and is handed none before.
    schedule.adopt_process(NOW, container, there(found, "g", BTreeSet::new(), false));
    let waits = schedule.request(NOW, "g", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, idle)]);
    assert!(!schedule.has_for(found, None));
    schedule.asks(NOW, found);
    assert_eq!(schedule.take(NOW, found, None).unwrap().request, waits);
}
