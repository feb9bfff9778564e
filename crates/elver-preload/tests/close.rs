//! A context that is closed before its objects are destroyed: `close/close.c`, over the library.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn what_is_left_of_a_closed_context_does_nothing() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/close/close.c");
    let program = library().join("close");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    succeeded("cc", &compiler.output().unwrap());
    let said = succeeded("close", &command(&[program.to_str().unwrap()]).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}
