//! What is built of other crates as their users build it: the module `elver` of Python, the library for functions in C, and
//! what libibverbs is linked of.

use std::path::PathBuf;
use std::process::Command;

/// Builds the module; its file, which Python looks for as `elver.abi3.so`.
///
/// # Panics
/// If it cannot be built.
pub fn python_module() -> PathBuf {
    built("elver-python", "libelver_python.so")
}

/// Builds the library that functions in C are linked with; its file.
///
/// # Panics
/// If it cannot be built.
pub fn handler_library() -> PathBuf {
    built("elver-handler-c", "libelver_handler_c.a")
}

/// What libibverbs for unmodified programs is linked of, by `elver-preload`'s `link.sh`, of the profile of the program that
/// asks.
///
/// # Panics
/// If it cannot be built.
pub fn verbs_archive() -> PathBuf {
    built("elver-preload", "libelver_preload.a")
}

fn built(package: &str, file: &str) -> PathBuf {
    // The program that asks stands in `target/PROFILE/deps`.
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q", "-p", package, "--lib", "--target-dir"]);
    cargo.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{package} cannot be built");
    profile.join(file)
}
