//! Threads that are cancelled while they wait for events: `cancel/cancel.c`, over the library.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

#[test]
fn a_thread_that_waits_can_be_cancelled() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cancel/cancel.c");
    let program = library().join("cancel");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
    let compiled = compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]).output().unwrap();
    succeeded("cc", &compiled);
    let preload = format!("LD_PRELOAD={}", library().join("libibverbs.so.1").display());
    let words = ["env", &preload, program.to_str().unwrap()];
    let said = succeeded("cancel", &command(&words).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}
