//! Many processes at once, each with QPs to others: `crowd/crowd.c`, over the library. None is starved, nothing hangs, data is
//! what it is to be, and memory and descriptors are as `docs/preload.md` says.

mod common;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::{command, library, succeeded};

/// Of the graph, and of what QPs do.
const SEED: &str = "20261128";

fn program() -> &'static str {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crowd/crowd.c");
        let program = library().join("crowd");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        succeeded("cc", &compiler.arg("-libverbs").output().unwrap());
        program
    });
    program.to_str().unwrap()
}

/// Runs the program; the words stand before its own. Returns what it says of how many met directly, and how many have QPs with
/// each other, each pair twice.
fn run(words: &[&str], crowd: &[&str]) -> (u64, u64) {
    let all = [words, &[program()], crowd].concat();
    let said = succeeded(&all.join(" "), &command(&all).output().unwrap());
    println!("{said}");
    assert!(said.ends_with(": right\n"), "{said}");
    let met = said.lines().find_map(|line| line.strip_prefix("met: ")?.split_once(" of ")).unwrap();
    (met.0.parse().unwrap(), met.1.parse().unwrap())
}

/// With the patience that a process has unless it is told otherwise: who gets no core in time goes by packets.
#[test]
fn a_hundred_processes_with_ten_queue_pairs_each() {
    run(&["env", "-u", "ELVER_DIRECT_PATIENCE_MS"], &["100", "10", "50", SEED]);
}

/// Two thirds of the pairs go by packets through the kernel (this needs root).
#[test]
fn a_hundred_processes_of_three_users() {
    let (met, all) = run(&[], &["100", "10", "50", SEED, "users"]);
    assert!(met > 0 && met < all / 2, "{met} of {all}");
}

/// The program itself asks that none is met twice.
#[test]
fn who_ask_each_other_at_once_meet_once() {
    for crowd in [["2", "20", "20", SEED], ["4", "30", "20", SEED], ["40", "8", "20", SEED]] {
        let (met, all) = run(&[], &crowd);
        assert_eq!(met, all, "{crowd:?}");
    }
}

/// Who may have few descriptors keeps half of them, which the program asks for, and reaches the rest of its peers by packets.
#[test]
fn descriptors_are_left_to_the_program() {
    let limited = ["sh", "-c", "ulimit -n 48 && exec \"$@\"", "sh"];
    let (met, all) = run(&limited, &["16", "30", "20", SEED]);
    assert!(met > 0 && met < all, "{met} of {all}");
}
