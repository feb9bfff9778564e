//! The descriptors that programs wait by: `bells/bells.c`, over the library and the genuine librdmacm.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{command, library, succeeded};

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bells/bells.c");
        let program = library().join("bells");
        let mut compiler = Command::new("cc");
        // Null pointers are among it.
        compiler.args(["-Wall", "-Werror", "-Wno-nonnull", "-o"]).arg(&program).arg(&source);
        let compiled = compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]).output().unwrap();
        succeeded("cc", &compiled);
        program
    })
}

fn run(case: &str) {
    let preload = format!("LD_PRELOAD={}", library().join("libibverbs.so.1").display());
    let words = ["env", &preload, program().to_str().unwrap(), case];
    let said = succeeded(case, &command(&words).output().unwrap());
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

#[test]
fn a_completion_channel_is_readable_by_its_events_and_never_writable() {
    run("completions");
}

#[test]
fn a_device_is_readable_by_its_asynchronous_events_and_never_writable() {
    run("asynchronous");
}

#[test]
fn a_channel_of_rdma_cm_is_readable_by_its_events_and_never_writable() {
    run("connections");
}

#[test]
fn an_event_without_room_for_it_stays() {
    run("room");
}

#[test]
fn who_reads_a_completion_channel_himself_has_taken_the_event() {
    run("reads");
}
