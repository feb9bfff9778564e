//! The device's GID at another index than 0, for programs that have the index in their source.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{command, library, succeeded};

const INDEX: &str = "ELVER_GID_INDEX";

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gids/gids.c");
        let program = library().join("gids");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        succeeded("cc", &compiler.arg("-libverbs").output().unwrap());
        program
    })
}

#[test]
fn entries_before_the_devices_own_are_empty_and_no_source() {
    let program = program().to_str().unwrap();
    for index in ["0", "1", "3", "15"] {
        let said =
            succeeded(index, &command(&[program, index]).env(INDEX, index).output().unwrap());
        assert!(said.ends_with(" checks, 0 failures\n"), "{index}: {said}");
    }
}

#[test]
fn an_index_that_no_table_has_is_told() {
    let said = command(&["ibv_devinfo"]).env(INDEX, "16").output().unwrap();
    let complaint = String::from_utf8_lossy(&said.stderr);
    assert!(
        complaint.contains("ELVER_GID_INDEX is \"16\"; give a number, 15 at most"),
        "{complaint}"
    );
}
