//! An orchestrator that is killed, between any two steps, and its successor.

use std::time::{Duration, Instant};

use elver_faas::schedule::Start;
use elver_random::Rng;
use elver_testkit::wait_for;
use serde_json::json;

use crate::platform::{Platform, python, wait_for_processes};

#[test]
fn a_successor_finds_what_runs_and_forks_it() {
    let mut platform = Platform::start("", &python("alice", 61_031, &["echo", "hangs"]));
    let (_, first) = platform.answer("alice-echo", json!(1));
    platform.answer("alice-hangs", json!(null));
    let before = platform.list().processes;
    // A child is at work when its orchestrator goes.
    let lost = platform.invoke_beside("alice-hangs", json!("hang"));
    wait_for("the child", || {
        let is_there = platform.list().processes.iter().any(|row| row.requests == 1);
        is_there.then_some(())
    });
    platform.kill();
    assert!(lost.join().unwrap().is_err());
    platform.start_again();
    let after = wait_for("the container to be found", || {
        let found = platform.list().processes;
        (found.len() == before.len()).then_some(found)
    });
    assert_eq!(after, before);
    let (start, answer) = platform.answer("alice-echo", json!(2));
    assert_eq!((start, &answer["calls"]), (Start::Fork, &json!(2)));
    assert_ne!(answer["pid"], first["pid"]);
    platform.end();
    wait_for_processes(61_031, 0);
}

#[test]
fn a_function_is_not_taken_for_its_containers_first_process() {
    let mut platform = Platform::start("", &python("zoe", 61_052, &["poses"]));
    platform.answer("zoe-poses", json!(null));
    let lost = platform.invoke_beside("zoe-poses", json!("pose"));
    wait_for("the child", || platform.logs().contains("it poses").then_some(()));
    platform.kill();
    assert!(lost.join().unwrap().is_err());
    platform.start_again();
    wait_for("the container to be found", || (platform.list().processes.len() == 1).then_some(()));
    assert_eq!(platform.answer("zoe-poses", json!(null)).0, Start::Fork);
    platform.end();
    wait_for_processes(61_052, 0);
}

#[test]
fn a_directory_has_one_orchestrator() {
    let platform = Platform::start("", &python("carol", 61_033, &["echo"]));
    let second = platform.second();
    assert!(second.contains("another orchestrator works in"), "{second}");
    assert_eq!(platform.answer("carol-echo", json!(1)).0, Start::Cold);
}

#[test]
fn wherever_it_is_killed_the_successor_serves_and_leaves_nothing() {
    let seed: u64 = match std::env::var("ELVER_SEED") {
        Ok(seed) => seed.parse().expect("ELVER_SEED is a number"),
        Err(_) => std::process::id().into(),
    };
    // Shown when the test fails.
    println!("ELVER_SEED={seed}");
    let mut random = Rng::new(seed);
    let mut platform = Platform::start("", &python("bob", 61_032, &["echo"]));
    for _ in 0..8 {
        let asked = platform.invoke_beside("bob-echo", json!(1));
        // Anywhere from before the bundle is made until a fork has answered.
        let until = Instant::now() + Duration::from_micros(random.next_u64() % 120_000);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        platform.kill();
        // It may have been answered before.
        let _ = asked.join().unwrap();
        platform.start_again();
        let (_, answer) = platform.answer("bob-echo", json!(2));
        assert_eq!(answer["event"], 2);
        if random.next_u64().is_multiple_of(2) {
            // So that the next round begins cold.
            platform.end();
            wait_for_processes(61_032, 0);
            platform.start_again();
        }
    }
    platform.end();
    wait_for_processes(61_032, 0);
}
