//! The module `elver` of Python, built as its users build it.

use std::path::PathBuf;
use std::process::Command;

/// Builds the module; its file, which Python looks for as `elver.abi3.so`.
///
/// # Panics
/// If it cannot be built.
pub fn python_module() -> PathBuf {
    // The program that asks stands in `target/PROFILE/deps`.
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q", "-p", "elver-python", "--target-dir"]);
    cargo.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the module cannot be built");
    profile.join("libelver_python.so")
}
