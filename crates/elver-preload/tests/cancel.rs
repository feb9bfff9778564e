//! Threads that are cancelled while they wait for events: `cancel/cancel.c`, over the library.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{command, library, succeeded};

/// Runs the program with these libraries under it.
fn cancelled(libraries: &[PathBuf]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cancel/cancel.c");
    let program = library().join(format!("cancel-{}", libraries.len()));
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
    let compiled = compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]).output().unwrap();
    succeeded("cc", &compiled);
    let libraries: Vec<_> = libraries.iter().map(|library| library.to_str().unwrap()).collect();
    let preload = format!("LD_PRELOAD={}", libraries.join(":"));
    let words = ["env", &preload, program.to_str().unwrap()];
    let said = succeeded("cancel", &command(&words).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

#[test]
fn a_thread_that_waits_can_be_cancelled() {
    cancelled(&[library().join("libibverbs.so.1")]);
}

/// A `write` of librdmacm's comes here by that of `elver run --streams`, whose frames are given up as well.
#[test]
fn a_thread_that_waits_can_be_cancelled_where_connections_are_streams() {
    // Where this test stands: `target/PROFILE/deps`.
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(3).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-q", "-p", "elver-sockets", "--target-dir"]).arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    succeeded("cargo", &build.output().unwrap());
    let streams = target.join("debug/libelver_sockets.so");
    cancelled(&[streams, library().join("libibverbs.so.1")]);
}
