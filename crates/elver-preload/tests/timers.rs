//! Timers that are set while the device's thread sleeps: `timers/timers.c`, over the library.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn a_timer_ends_the_sleep_that_it_is_set_in() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timers/timers.c");
    let program = library().join("timers");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-libverbs", "-lpthread"]);
    succeeded("cc", &compiler.output().unwrap());
    let said = succeeded("timers", &command(&[program.to_str().unwrap()]).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}
