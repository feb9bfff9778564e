//! Whose fault it is that a request has no answer: a child's, or its INIT process's.

use super::*;

/// It went on without end, and nobody knew of it.
#[test]
fn a_child_of_an_earlier_orchestrators_has_its_functions_time() {
    let mut schedule = schedule();
    let (container, _) = cold(&mut schedule, "f");
    let (found, child) = (ProcessId(900), RequestId(7));
    let there = there(found, "f", BTreeSet::new(), true);
    schedule.adopt_process(NOW, container, Found { children: BTreeSet::from([child]), ..there });
    let until = NOW + Duration::from_secs(3);
    assert_eq!(schedule.next_tick(), Some(until));
    schedule.tick(until - Duration::from_millis(1));
    assert_eq!(actions(&mut schedule), []);
    schedule.tick(until);
    assert_eq!(actions(&mut schedule), [Action::KillChild(container, found, child)]);
    schedule.child_ended(until, found, child, "signal 9");
    schedule.tick(until + children::KILL);
    assert_eq!(actions(&mut schedule), []);
}

/// A child of before could have answered the request that was given its number again.
#[test]
fn a_number_that_a_found_child_has_is_not_given_again() {
    let mut schedule = schedule();
    let (container, _) = cold(&mut schedule, "f");
    let there = there(ProcessId(900), "f", BTreeSet::new(), true);
    // What is no number of ours ends none.
    let children = BTreeSet::from([RequestId(990), RequestId(u64::MAX)]);
    schedule.adopt_process(NOW, container, Found { children, ..there });
    assert_eq!(schedule.request(NOW, "f", NONE).unwrap(), RequestId(991));
}

#[test]
fn an_answer_counts_from_whom_the_request_was_given_alone() {
    let mut schedule = schedule();
    let (_, alices) = cold(&mut schedule, "f");
    let (_, bobs) = cold(&mut schedule, "h");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(schedule.answered(NOW, alices, request), None, "it has not taken it");
    schedule.take(NOW, alices, None).unwrap();
    assert_eq!(schedule.answered(NOW, bobs, request), None);
    schedule.child_ended(NOW, bobs, request, "a lie");
    assert!(!actions(&mut schedule).iter().any(|action| matches!(action, Action::Fail(..))));
    assert_eq!(schedule.answered(NOW, alices, request), Some(Start::Fork));
    assert_eq!(schedule.answered(NOW, alices, request), None, "answered twice");
}

#[test]
fn a_hang_kills_the_child_and_a_hanging_first_one_its_process() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, process, None).unwrap();
    actions(&mut schedule);
    let late = NOW + Duration::from_secs(3);
    assert_eq!(schedule.next_tick(), Some(late));
    schedule.tick(late);
    let failure = Failure::TimedOut(Duration::from_secs(3));
    let expected = [Action::Fail(request, failure), Action::KillChild(container, process, request)];
    assert_eq!(actions(&mut schedule), expected);
    schedule.request(late, "g", NONE).unwrap();
    let [Action::Spawn(_, first, _, _)] = actions(&mut schedule)[..] else { panic!("not warm") };
    schedule.tick(late + Duration::from_secs(10));
    assert!(actions(&mut schedule).contains(&Action::KillProcess(container, first)));
}

/// Its body was its caller's for all of the function's time, and his other requests had no room.
#[test]
fn what_finds_no_room_for_its_body_fails_and_ends_what_took_it() {
    let mut schedule = schedule();
    let (container, forks) = cold(&mut schedule, "f");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, forks, None).unwrap();
    actions(&mut schedule);
    let failed = |request| Action::Fail(request, Failure::Ended("no room".into()));
    schedule.has_no_room(NOW, request, "no room");
    let expected = [failed(request), Action::KillChild(container, forks, request)];
    assert_eq!(actions(&mut schedule), expected);
    let request = schedule.request(NOW, "g", NONE).unwrap();
    let [Action::Spawn(_, program, _, _)] = actions(&mut schedule)[..] else { panic!("not warm") };
    schedule.take(NOW, program, None).unwrap();
    schedule.has_no_room(NOW, request, "no room");
    let expected = [failed(request), Action::KillProcess(container, program)];
    assert_eq!(actions(&mut schedule), expected);
    // Its time was over before.
    schedule.has_no_room(NOW, request, "no room");
    assert_eq!(actions(&mut schedule), []);
}

#[test]
fn a_process_that_takes_no_orders_is_ended() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    actions(&mut schedule);
    // Nobody was forked for it, as far as can be seen.
    let late = NOW + Duration::from_secs(10);
    schedule.tick(late);
    let failure = Failure::NotStarted(Duration::from_secs(10));
    let expected = [Action::Fail(request, failure), Action::KillChild(container, process, request)];
    assert_eq!(actions(&mut schedule), expected);
    // Others are not handed to it until it tells, and it is not ordered to end twice.
    schedule.request(late, "f", NONE).unwrap();
    assert!(matches!(actions(&mut schedule)[..], [Action::Spawn(..)]));
    schedule.tick(late + children::KILL);
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, process)]);
    schedule.tick(late + children::KILL + Duration::from_secs(1));
    assert_eq!(actions(&mut schedule), []);
}

#[test]
fn a_child_that_takes_nothing_costs_its_brothers_nothing() {
    let mut schedule = schedule();
    schedule.terms.init_timeout = Duration::from_secs(2);
    let (container, process) = cold(&mut schedule, "f");
    let [slow, busy] = [(); 2].map(|()| schedule.request(NOW, "f", NONE).unwrap());
    schedule.take(NOW, process, Some(busy)).unwrap();
    actions(&mut schedule);
    let late = NOW + Duration::from_secs(2);
    schedule.tick(late);
    let failure = Failure::NotStarted(Duration::from_secs(2));
    let expected = [Action::Fail(slow, failure), Action::KillChild(container, process, slow)];
    assert_eq!(actions(&mut schedule), expected);
    schedule.child_ended(late, process, slow, "signal 9");
    let next = schedule.request(late, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, process, next, NONE)]);
    assert_eq!(schedule.answered(late, process, busy), Some(Start::Fork));
    schedule.child_ended(late, process, busy, "exit code 0");
    schedule.child_ended(late, process, next, "exit code 0");
    schedule.tick(late + children::KILL);
    assert!(!actions(&mut schedule).contains(&Action::KillProcess(container, process)));
}

#[test]
fn a_child_that_is_not_told_of_as_killed_is_its_processes_fault() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    for is_told in [true, false] {
        let request = schedule.request(NOW, "f", NONE).unwrap();
        schedule.take(NOW, process, Some(request)).unwrap();
        actions(&mut schedule);
        let late = NOW + Duration::from_secs(3);
        schedule.tick(late);
        assert!(actions(&mut schedule).contains(&Action::KillChild(container, process, request)));
        if is_told {
            schedule.child_ended(late, process, request, "signal 9");
        }
        schedule.tick(late + children::KILL);
        let expected = [Action::KillProcess(container, process)];
        assert_eq!(actions(&mut schedule), if is_told { &[][..] } else { &expected });
    }
}

#[test]
fn a_child_that_has_answered_and_goes_on_is_killed() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    for ends in [true, false] {
        let request = schedule.request(NOW, "f", NONE).unwrap();
        schedule.take(NOW, process, Some(request)).unwrap();
        schedule.answered(NOW, process, request);
        actions(&mut schedule);
        if ends {
            schedule.child_ended(NOW, process, request, "exit code 0");
            continue;
        }
        let late = NOW + children::LINGER;
        assert_eq!(schedule.next_tick(), Some(late));
        schedule.tick(late);
        assert_eq!(actions(&mut schedule), [Action::KillChild(container, process, request)]);
    }
}

/// It was taken for idle: the next request was handed to it, and not taken before its time was over.
#[test]
fn one_with_threads_that_is_found_at_work_gets_nothing_before_it_is_done() {
    let mut schedule = schedule();
    let (container, _) = cold(&mut schedule, "g");
    let (found, before) = (ProcessId(900), RequestId(7));
    let there = there(found, "f", gids(&["gid"]), true);
    let children = BTreeSet::from([before]);
    schedule.adopt_process(NOW, container, Found { has_threads: true, children, ..there });
    // There is no room for another process.
    schedule.terms.containers_max = 1;
    let request = schedule.request(NOW, "f", NONE).unwrap();
    actions(&mut schedule);
    schedule.child_ended(NOW, found, before, "it is done with it");
    assert_eq!(actions(&mut schedule), [Action::Fork(container, found, request, NONE)]);
    // What it tells of the request once more fails nothing.
    schedule.child_ended(NOW, found, request, "it is done with it");
    assert_eq!(schedule.take(NOW, found, Some(request)).unwrap().start, Start::Reuse);
    assert_eq!(schedule.answered(NOW, found, request), Some(Start::Reuse));
}

/// Its caller waited for all of the time that there was, and the process was killed for it.
#[test]
fn a_request_that_one_with_threads_loses_fails_at_once() {
    let mut schedule = schedule();
    let (_, process) = cold(&mut schedule, "f");
    schedule.has_threads(NOW, process);
    let lost = |request| Action::Fail(request, Failure::Ended("no descriptors".into()));
    for is_taken in [false, true] {
        let request = schedule.request(NOW, "f", NONE).unwrap();
        if is_taken {
            schedule.take(NOW, process, Some(request)).unwrap();
        }
        actions(&mut schedule);
        schedule.lost(NOW, process, request, "no descriptors");
        assert_eq!(actions(&mut schedule), [lost(request)], "taken: {is_taken}");
        schedule.child_ended(NOW, process, request, "it is done with it");
        schedule.lost(NOW, process, request, "no descriptors");
        assert_eq!(actions(&mut schedule), []);
    }
    let request = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(schedule.take(NOW, process, Some(request)).unwrap().start, Start::Reuse);
    assert_eq!(schedule.answered(NOW, process, request), Some(Start::Reuse));
}

#[test]
fn a_request_is_lost_by_whom_it_was_given_alone() {
    let mut schedule = schedule();
    let (_, alices) = cold(&mut schedule, "f");
    let (_, bobs) = cold(&mut schedule, "h");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, alices, Some(request)).unwrap();
    actions(&mut schedule);
    schedule.has_threads(NOW, bobs);
    for process in [bobs, alices] {
        // Of one without threads a child has it, whose end is told.
        schedule.lost(NOW, process, request, "a lie");
    }
    assert_eq!(actions(&mut schedule), []);
    assert_eq!(schedule.answered(NOW, alices, request), Some(Start::Fork));
}

#[test]
fn one_with_threads_that_is_found_at_work_has_its_functions_time() {
    let mut schedule = schedule();
    let (container, _) = cold(&mut schedule, "g");
    let there = there(ProcessId(900), "f", BTreeSet::new(), true);
    let children = BTreeSet::from([RequestId(7)]);
    schedule.adopt_process(NOW, container, Found { has_threads: true, children, ..there });
    let late = NOW + Duration::from_secs(3);
    schedule.tick(late);
    schedule.tick(late + children::KILL);
    let killed = Action::KillProcess(container, ProcessId(900));
    assert!(actions(&mut schedule).contains(&killed));
}

/// Requests were handed to what was in it for as long as its deletion took, and failed then.
#[test]
fn a_container_that_is_being_ended_gets_no_requests() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let lost = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, process, Some(lost)).unwrap();
    actions(&mut schedule);
    schedule.container_ending(NOW, container, "it died");
    assert_eq!(actions(&mut schedule), [Action::Fail(lost, Failure::Container("it died".into()))]);
    schedule.request(NOW, "f", NONE).unwrap();
    let [Action::Create(other, _)] = actions(&mut schedule)[..] else { panic!("not cold") };
    // It counts until it has ended.
    schedule.request(NOW, "h", NONE).unwrap();
    assert_eq!(actions(&mut schedule), []);
    schedule.container_ended(NOW, container, "it died");
    assert!(matches!(actions(&mut schedule)[..], [Action::Create(_, _)]));
    assert_ne!(other, container);
}
