//! What happens by the clock, while the device's thread sleeps: the programs in `timers`, over the library.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

fn run(name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/timers/{name}.c"));
    let program = library().join(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-libverbs", "-lpthread"]);
    succeeded("cc", &compiler.output().unwrap());
    let said = succeeded(name, &command(&[program.to_str().unwrap()]).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

#[test]
fn a_timer_ends_the_sleep_that_it_is_set_in() {
    run("timers");
}

#[test]
fn an_event_waits_for_completions_or_for_a_while() {
    run("moderation");
}
