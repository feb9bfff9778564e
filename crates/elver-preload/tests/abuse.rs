//! Misuse of each call that takes pointers, handles or counts from a program: the programs in `abuse`, over the
//! library. They say what had another errno than it must, and how many they tried.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, library, succeeded};

/// Runs one of the programs, which links so much besides libibverbs.
fn run(name: &str, libraries: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/abuse/{name}.c"));
    let program = library().join(name);
    let mut compiler = Command::new("cc");
    // Null pointers are what it is about.
    compiler.args(["-Wall", "-Werror", "-Wno-nonnull", "-o"]).arg(&program).arg(&source);
    succeeded("cc", &compiler.args(libraries).args(["-libverbs", "-lpthread"]).output().unwrap());
    let output = command(&[program.to_str().unwrap()]).output().unwrap();
    let said = succeeded(name, &output);
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

#[test]
fn each_misuse_has_its_errno() {
    run("abuse", &[]);
}

#[test]
fn dc_works_and_each_misuse_has_its_errno() {
    run("dc", &["-lmlx5"]);
}

#[test]
fn a_parent_domain_stays_for_what_was_made_with_it() {
    run("domains", &[]);
}

#[test]
fn a_qp_tells_its_service_level_and_whether_it_drains() {
    run("query", &[]);
}

#[test]
fn calls_of_newer_releases_work_and_each_misuse_has_its_errno() {
    run("newer", &["-ldl"]);
}

#[test]
fn wrs_are_read_at_any_address_and_no_further_than_their_operation_goes() {
    run("packed", &[]);
}

#[test]
fn a_datagrams_completion_says_that_a_grh_is_before_it() {
    run("grh", &[]);
}

#[test]
fn sysfs_is_read_for_programs() {
    run("sysfs", &[]);
}
