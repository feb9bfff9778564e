//! Processes of one user that move data themselves, and the same by packets: `direct/direct.c`, over the
//! library. It tells the ways apart by whether an operation is complete when it was posted.

mod common;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::{command, library, succeeded};

/// Of random sizes, and in which order they come.
const SEED: &str = "20261124";

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/direct/direct.c");
        let program = library().join("direct");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        succeeded("cc", &compiler.arg("-libverbs").output().unwrap());
        program
    })
}

/// Runs a case; the words stand before the program's.
fn run_of(words: &[&str], case: &str, way: &str, rest: &[&str]) {
    let program = program().to_str().unwrap();
    let all = [words, &[program, case, way, SEED], rest].concat();
    let said = succeeded(&all.join(" "), &command(&all).output().unwrap());
    assert!(said.ends_with(": right\n"), "{said}");
}

/// Runs a case both ways.
fn run(case: &str) {
    run_of(&[], case, "direct", &[]);
    run_of(&["env", "ELVER_DIRECT=off"], case, "packets", &[]);
}

#[test]
fn data_is_what_was_written() {
    run("integrity");
}

#[test]
fn a_message_comes_behind_what_was_written_before() {
    run("order");
}

#[test]
fn messages_arrive_whether_one_polls_or_sleeps() {
    run("messages");
}

#[test]
fn refusals_are_told_as_by_packets() {
    run("errors");
}

#[test]
fn a_target_that_is_killed_is_told_of_by_retries() {
    run("killed");
}

#[test]
fn an_initiator_that_is_killed_holds_nobody_up() {
    run("kills");
}

#[test]
fn memory_is_not_written_once_it_is_deregistered() {
    run("dereg");
}

#[test]
fn a_queue_pair_is_not_entered_once_it_is_stopped() {
    run("stopped");
}

/// Both ends must want it, nothing may befall packets, and it must be the same user (this needs root).
#[test]
fn others_go_by_packets() {
    run("way");
    run_of(&["env", "ELVER_DELAY_US=1"], "way", "packets", &[]);
    run_of(&[], "way", "packets", &["65534"]);
}

#[test]
fn another_word_is_told() {
    let output = command(&["ibv_devinfo"]).env("ELVER_DIRECT", "perhaps").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("give on or off"), "{said}");
}
