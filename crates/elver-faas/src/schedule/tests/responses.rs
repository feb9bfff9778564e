//! Responses that are cut, or sent on when they are answered.

use super::*;

/// Its next request would wait, and fail, while a program still sends a response that is too large.
#[test]
fn a_process_that_sends_on_gets_no_request_and_is_ended_with_its_time() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "g");
    let again = |schedule: &mut Schedule| {
        let request = schedule.request(NOW, "g", NONE).unwrap();
        assert_eq!(schedule.take(NOW, process, None).unwrap().request, request);
        assert_eq!(schedule.answered_ahead(NOW, process, request), Some(Start::Reuse));
        assert_eq!(schedule.answered_ahead(NOW, process, request), None);
        request
    };
    let sends = again(&mut schedule);
    let other = schedule.request(NOW, "g", NONE).unwrap();
    let [Action::Spawn(home, warm, first, _)] = actions(&mut schedule)[..] else { panic!() };
    assert_eq!((home, first), (container, other));
    schedule.sent(NOW, process, sends);
    again(&mut schedule);
    let late = NOW + Duration::from_secs(3);
    assert_eq!(schedule.next_tick(), Some(late));
    schedule.tick(late - Duration::from_millis(1));
    assert_eq!(actions(&mut schedule), []);
    schedule.tick(late);
    assert_eq!(actions(&mut schedule), [Action::KillProcess(container, process)]);
    assert!(schedule.next_tick() > Some(late));
    assert_ne!(warm, process);
}

/// It takes no orders before that.
#[test]
fn a_process_that_sends_on_in_its_first_request_is_not_forked() {
    let mut schedule = schedule();
    let first = schedule.request(NOW, "f", NONE).unwrap();
    let [Action::Create(container, _)] = actions(&mut schedule)[..] else { panic!() };
    schedule.container_runs(NOW, container);
    let [Action::Spawn(_, process, _, _)] = actions(&mut schedule)[..] else { panic!() };
    schedule.take(NOW, process, None).unwrap();
    assert_eq!(schedule.answered_ahead(NOW, process, first), Some(Start::Cold));
    schedule.request(NOW, "f", NONE).unwrap();
    assert!(matches!(actions(&mut schedule)[..], [Action::Spawn(..)]));
    schedule.sent(NOW, process, first);
    let forked = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, process, forked, NONE)]);
}

/// It was handed the next one at once, which failed with it where it was dying.
#[test]
fn a_process_whose_response_is_cut_gets_no_request_before_it_asks() {
    let mut schedule = schedule();
    schedule.terms.container_requests_max = 1;
    schedule.terms.owner_containers_max = 1;
    let (_, process) = cold(&mut schedule, "g");
    // It has one, and the next one waits.
    let at_work = |schedule: &mut Schedule| {
        let request = schedule.request(NOW, "g", NONE).unwrap();
        assert_eq!(schedule.take(NOW, process, None).unwrap().request, request);
        (request, schedule.request(NOW, "g", NONE).unwrap())
    };
    let (cut, next) = at_work(&mut schedule);
    assert_eq!(schedule.cut(NOW, process, cut), Some(Start::Reuse));
    let [Action::Spawn(_, other, of, _)] = actions(&mut schedule)[..] else { panic!("not warm") };
    assert_eq!(of, next);
    schedule.take(NOW, other, None).unwrap();
    schedule.answered(NOW, other, next).unwrap();
    schedule.asks(NOW, process);
    // Each of its connections is heard by itself: it may ask by one before it is seen that another one has ended.
    let (cut, next) = at_work(&mut schedule);
    schedule.asks(NOW, process);
    assert_eq!(schedule.cut(NOW, process, cut), Some(Start::Reuse));
    assert_eq!(schedule.take(NOW, process, None).unwrap().request, next);
    schedule.answered(NOW, process, next).unwrap();
    // The same of a response that was answered ahead of its end.
    let (cut, next) = at_work(&mut schedule);
    assert_eq!(schedule.answered_ahead(NOW, process, cut), Some(Start::Reuse));
    assert_eq!(schedule.cut(NOW, process, cut), None);
    assert!(!schedule.has_for(process, None));
    schedule.asks(NOW, process);
    assert!(schedule.has_for(process, Some(next)));
}

/// It does not ask: it is told to fork.
#[test]
fn a_child_whose_response_is_cut_costs_its_brothers_nothing() {
    let mut schedule = schedule();
    let (container, process) = cold(&mut schedule, "f");
    let cut = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, process, Some(cut)).unwrap();
    actions(&mut schedule);
    assert_eq!(schedule.cut(NOW, process, cut), Some(Start::Fork));
    let next = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, process, next, NONE)]);
}

/// The process that is forked was ended with it, and forked for nobody until then.
#[test]
fn a_first_child_that_sends_on_is_as_another_one() {
    let mut schedule = schedule();
    schedule.functions.get_mut("f").unwrap().first_is_child = true;
    let first = schedule.request(NOW, "f", NONE).unwrap();
    let [Action::Create(container, _)] = actions(&mut schedule)[..] else { panic!() };
    schedule.container_runs(NOW, container);
    let [Action::Spawn(_, process, _, _)] = actions(&mut schedule)[..] else { panic!() };
    schedule.take(NOW, process, None).unwrap();
    assert_eq!(schedule.answered_ahead(NOW, process, first), Some(Start::Cold));
    let next = schedule.request(NOW, "f", NONE).unwrap();
    assert_eq!(actions(&mut schedule), [Action::Fork(container, process, next, NONE)]);
    schedule.take(NOW, process, Some(next)).unwrap();
    let late = NOW + children::LINGER;
    schedule.tick(late);
    assert_eq!(actions(&mut schedule), [Action::KillChild(container, process, first)]);
}

/// It was forked before its process was known to have threads, and a connection of its may be open in another process.
#[test]
fn a_child_that_has_ended_sends_no_more() {
    let mut schedule = schedule();
    let (_, process) = cold(&mut schedule, "f");
    let request = schedule.request(NOW, "f", NONE).unwrap();
    schedule.take(NOW, process, Some(request)).unwrap();
    schedule.has_threads(NOW, process);
    assert_eq!(schedule.answered_ahead(NOW, process, request), Some(Start::Reuse));
    schedule.child_ended(NOW, process, request, "exit code 0");
    actions(&mut schedule);
    schedule.tick(NOW + Duration::from_secs(3));
    assert_eq!(actions(&mut schedule), []);
}
