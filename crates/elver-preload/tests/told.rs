//! Asynchronous events: `told/told.c`, over the library.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{command, library, succeeded};

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/told/told.c");
        let program = library().join("told");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        succeeded("cc", &compiler.args(["-libverbs", "-lpthread"]).output().unwrap());
        program
    })
}

fn run(case: &str, faults: &[(&str, &str)]) {
    for way in ["on", "off"] {
        let mut told = command(&[program().to_str().unwrap(), case]);
        told.env("ELVER_DIRECT", way).envs(faults.iter().copied());
        let said = succeeded(case, &told.output().unwrap());
        assert!(said.ends_with(" checks, 0 failures\n"), "{case}: {said}");
    }
}

#[test]
fn a_shared_receive_queue_tells_of_its_limit_and_its_queue_pair_of_the_last_receive() {
    run("srq", &[]);
}

#[test]
fn a_send_queue_tells_that_it_is_drained() {
    run("sq", &[]);
}

#[test]
fn a_cq_without_room_is_told_with_the_queue_pair_that_fails() {
    run("cq", &[]);
}

#[test]
fn a_queue_pair_that_fails_on_demand_is_told() {
    run("post", &[("ELVER_QP_FAILURES_PER_MILLION", "1000000")]);
}
