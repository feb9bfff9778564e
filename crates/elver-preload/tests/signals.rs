//! Signals of a program whose device has threads: `signals/signals.c`, over the library.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn signals_are_left_to_the_programs_own_threads() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signals/signals.c");
    let program = library().join("signals");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    succeeded("cc", &compiler.output().unwrap());
    let said = succeeded("signals", &command(&[program.to_str().unwrap()]).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}
