//! Starts one by one, then random runs in which containers and processes do as they please.

use elver_random::Rng;

use super::*;

const NOW: Duration = Duration::from_secs(1);
/// What requests want to be connected to beside their function's destinations.
const NONE: BTreeSet<Gid> = BTreeSet::new();

/// Nodes, by what tells them apart.
fn gids(names: &[&str]) -> BTreeSet<Gid> {
    names.iter().map(|name| Gid([name.len() as u8; 16])).collect()
}

fn schedule() -> Schedule {
    let terms = Terms {
        containers_max: 2,
        owner_containers_max: 2,
        processes_max: 2,
        container_requests_max: 6,
        requests_max: 12,
        keep_alive: Duration::from_secs(60),
        init_timeout: Duration::from_secs(10),
    };
    let function = |owner: &str, forks| FunctionTerms {
        owner: owner.into(),
        forks,
        first_is_child: false,
        destinations: gids(&["gid"]),
        timeout: Duration::from_secs(3),
        concurrency_max: 6,
    };
    let functions = [
        ("f", function("alice", true)),
        ("g", function("alice", false)),
        ("h", function("bob", true)),
        ("i", function("carol", true)),
    ];
    Schedule::new(terms, functions.map(|(name, f)| (name.to_string(), f)).into(), 1)
}

fn actions(schedule: &mut Schedule) -> Vec<Action> {
    std::iter::from_fn(|| schedule.poll()).collect()
}

/// An INIT process of an earlier orchestrator's.
fn there(
    process: ProcessId,
    function: &str,
    connections: BTreeSet<Gid>,
    takes_orders: bool,
) -> Found {
    let function = function.into();
    let (has_threads, children) = (false, BTreeSet::new());
    Found { process, function, connections, takes_orders, has_threads, children }
}

/// Starts a function cold, and answers.
fn cold(schedule: &mut Schedule, function: &str) -> (ContainerId, ProcessId) {
    let request = schedule.request(NOW, function, NONE).unwrap();
    let [Action::Create(container, _)] = actions(schedule)[..] else { panic!("not cold") };
    schedule.container_runs(NOW, container);
    let [Action::Spawn(_, process, _, _)] = actions(schedule)[..] else { panic!("no process") };
    let taken = schedule.take(NOW, process, None).unwrap();
    assert_eq!((taken.request, taken.start), (request, Start::Cold));
    assert_eq!(schedule.answered(NOW, process, request), Some(Start::Cold));
    (container, process)
}

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

#[test]
fn random_runs_answer_each_request_once_and_leave_nothing() {
    let seeds = match std::env::var("ELVER_SEED") {
        Ok(seed) => vec![seed.parse().expect("ELVER_SEED is a number")],
        Err(_) => (0..300).collect(),
    };
    for seed in seeds {
        // Shown when the test fails.
        println!("ELVER_SEED={seed}");
        World::new(seed).run();
    }
}

/// Containers and processes that start, answer, hang and die by chance.
struct World {
    random: Rng,
    now: Duration,
    schedule: Schedule,
    open: BTreeSet<RequestId>,
    starting: BTreeSet<ContainerId>,
    stuck: BTreeSet<ContainerId>,
    containers: BTreeMap<ContainerId, String>,
    processes: BTreeMap<ProcessId, (ContainerId, String)>,
    children: BTreeSet<(ProcessId, RequestId)>,
    taken: BTreeSet<(ProcessId, RequestId)>,
    sending: BTreeSet<(ProcessId, RequestId)>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Rng::new(seed),
            now: NOW,
            schedule: schedule(),
            open: BTreeSet::new(),
            starting: BTreeSet::new(),
            stuck: BTreeSet::new(),
            containers: BTreeMap::new(),
            processes: BTreeMap::new(),
            children: BTreeSet::new(),
            taken: BTreeSet::new(),
            sending: BTreeSet::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..500 {
            self.step();
            self.act();
            self.check();
        }
        // All that is left times out, and all containers go.
        for id in std::mem::take(&mut self.stuck) {
            self.end(id);
            self.act();
        }
        for _ in 0..20 {
            self.now += Duration::from_secs(61);
            self.schedule.tick(self.now);
            self.act();
            for container in std::mem::take(&mut self.starting) {
                self.schedule.container_runs(self.now, container);
                self.act();
            }
        }
        assert_eq!(self.open, BTreeSet::new(), "requests without an answer");
        assert_eq!(self.schedule.containers(), []);
        assert_eq!(self.schedule.table(), []);
        assert!(self.containers.is_empty());
        assert_eq!(self.schedule.next_tick(), None);
    }

    fn step(&mut self) {
        let now = self.now;
        match below(&mut self.random, 15) {
            0..=2 => {
                let function = ["f", "g", "h", "i"][below(&mut self.random, 4)];
                if let Ok(request) = self.schedule.request(now, function, NONE) {
                    self.open.insert(request);
                }
            }
            3 => {
                if let Some(container) = self.starting.pop_first() {
                    self.schedule.container_runs(now, container);
                }
            }
            4..=6 => {
                let Some(process) = self.any_process() else { return };
                self.schedule.asks(now, process);
                if let Some(taken) = self.schedule.take(now, process, None) {
                    assert!(self.open.contains(&taken.request));
                    assert!(self.taken.insert((process, taken.request)), "taken twice");
                }
            }
            7..=8 => {
                let Some((process, request)) = pick(&mut self.random, &self.taken) else { return };
                self.taken.remove(&(process, request));
                if self.schedule.answered(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                }
            }
            12 => {
                let Some((process, request)) = pick(&mut self.random, &self.taken) else { return };
                self.taken.remove(&(process, request));
                if self.schedule.answered_ahead(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                    self.sending.insert((process, request));
                }
            }
            13 => {
                if let Some(sends) = pick(&mut self.random, &self.sending) {
                    self.sending.remove(&sends);
                    self.schedule.sent(now, sends.0, sends.1);
                }
            }
            14 => {
                let coming: BTreeSet<_> = self.taken.union(&self.sending).copied().collect();
                let Some((process, request)) = pick(&mut self.random, &coming) else { return };
                self.taken.remove(&(process, request));
                self.sending.remove(&(process, request));
                if self.schedule.cut(now, process, request).is_some() {
                    assert!(self.open.remove(&request), "answered twice");
                }
            }
            9 => {
                let Some((process, request)) = pick(&mut self.random, &self.children) else {
                    return;
                };
                self.children.remove(&(process, request));
                self.schedule.child_ended(now, process, request, "by chance");
            }
            10 if below(&mut self.random, 3) == 0 => {
                let Some(process) = self.any_process() else { return };
                self.processes.remove(&process);
                self.schedule.process_ended(now, process, "by chance");
            }
            10 if below(&mut self.random, 3) == 0 => {
                let ids: BTreeSet<_> = self.containers.keys().copied().collect();
                if let Some(id) = pick(&mut self.random, &ids) {
                    self.end(id);
                }
            }
            11 if below(&mut self.random, 8) == 0 => {
                let ids: BTreeSet<_> = self.containers.keys().copied().collect();
                let Some(id) = pick(&mut self.random, &ids) else { return };
                self.starting.remove(&id);
                self.processes.retain(|_, (container, _)| *container != id);
                self.stuck.insert(id);
                self.schedule.container_stays(now, id, "by chance");
            }
            _ => {
                self.now += Duration::from_millis(below(&mut self.random, 4000) as u64);
                self.schedule.tick(self.now);
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.schedule.poll() {
            match action {
                Action::Create(id, owner) => {
                    self.starting.insert(id);
                    assert!(self.containers.insert(id, owner).is_none());
                }
                Action::Spawn(container, process, _, function) => {
                    assert_eq!(
                        self.schedule.functions[&function].owner,
                        self.containers[&container]
                    );
                    assert!(!self.stuck.contains(&container));
                    self.processes.insert(process, (container, function));
                }
                Action::Fork(container, process, request, _) => {
                    assert_eq!(self.processes[&process].0, container);
                    self.children.insert((process, request));
                }
                Action::KillChild(_, process, request) => {
                    if self.children.remove(&(process, request)) {
                        self.schedule.child_ended(self.now, process, request, "killed");
                    }
                }
                Action::KillProcess(_, process) => {
                    self.processes.remove(&process);
                    self.schedule.process_ended(self.now, process, "killed");
                }
                Action::Delete(id) => self.end(id),
                Action::Fail(request, _) => assert!(self.open.remove(&request), "failed twice"),
            }
        }
    }

    fn check(&self) {
        assert!(self.schedule.containers.len() <= self.schedule.terms.containers_max);
        assert_eq!(self.schedule.requests.keys().copied().collect::<BTreeSet<_>>(), self.open);
        for (id, container) in &self.schedule.containers {
            assert!(container.processes.len() <= self.schedule.terms.processes_max);
            assert_eq!(self.containers[id], container.owner);
            for process in &container.processes {
                let function = &self.schedule.processes[process].function;
                assert_eq!(self.schedule.functions[function].owner, container.owner);
            }
        }
    }

    fn end(&mut self, id: ContainerId) {
        self.containers.remove(&id);
        self.starting.remove(&id);
        self.stuck.remove(&id);
        self.processes.retain(|_, (container, _)| *container != id);
        self.schedule.container_ended(self.now, id, "by chance");
    }

    fn any_process(&mut self) -> Option<ProcessId> {
        let ids = self.processes.keys().copied().collect();
        pick(&mut self.random, &ids)
    }
}

fn pick<T: Copy>(random: &mut Rng, of: &BTreeSet<T>) -> Option<T> {
    (!of.is_empty()).then(|| of.iter().copied().nth(below(random, of.len()))).flatten()
}

fn below(random: &mut Rng, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}
