//! What tests of the schedule begin with.

mod faults;
mod random;
mod responses;
mod starts;

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
