//! Misuse of each call that takes pointers, handles or counts from a program: `abuse/abuse.c`, over the
//! library. It says what had another errno than it must, and how many it tried.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn each_misuse_has_its_errno() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abuse/abuse.c");
    let program = library().join("abuse");
    let mut compiler = Command::new("cc");
    // Null pointers are what it is about.
    compiler.args(["-Wall", "-Werror", "-Wno-nonnull", "-o"]).arg(&program).arg(&source);
    succeeded("cc", &compiler.args(["-libverbs", "-lpthread"]).output().unwrap());
    let output = command(&[program.to_str().unwrap()]).output().unwrap();
    let said = succeeded("abuse", &output);
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}
