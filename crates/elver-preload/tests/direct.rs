//! Processes of one user that move data themselves, and the same by packets: `direct/direct.c`, over the
//! library, and `direct/deaths.c`, most of whose processes are killed. Ways are told apart by whether an operation is complete
//! when it was posted.

mod common;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::{command, library, succeeded};

/// Of random sizes, and in which order they come.
const SEED: &str = "20261124";

/// Victims of a run.
const VICTIMS: &str = "50";

fn compiled(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/direct");
    let program = library().join(name);
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program);
    compiler.arg(folder.join(name).with_extension("c"));
    succeeded("cc", &compiler.arg("-libverbs").output().unwrap());
    program
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("direct"))
}

/// Runs a case; the words stand before the program's.
fn run_of(words: &[&str], case: &str, way: &str, rest: &[&str]) {
    let program = program().to_str().unwrap();
    let all = [words, &[program, case, way, SEED], rest].concat();
    let said = succeeded(&all.join(" "), &command(&all).output().unwrap());
    assert!(said.ends_with(": right\n"), "{said}");
}

/// Runs a case both ways.
fn run(case: &str) {
    run_of(&[], case, "direct", &[]);
    run_of(&["env", "ELVER_DIRECT=off"], case, "packets", &[]);
}

#[test]
fn data_is_what_was_written() {
    run("integrity");
}

/// A counter of all devices that told of themselves below a directory, as they last did.
fn counted(below: &Path, name: &str) -> u64 {
    let files: Vec<_> = std::fs::read_dir(below.join("elver")).unwrap().collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let of = |bytes: &[u8]| {
        let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap());
        let count = word(2) as usize;
        let text = std::str::from_utf8(&bytes[8 * (3 + count)..]).unwrap();
        // The device's name and address stand before the names.
        let at = text.lines().skip(2).position(|line| line == name).unwrap();
        word(3 + at)
    };
    files.into_iter().map(|file| of(&std::fs::read(file.unwrap().path()).unwrap())).sum()
}

#[test]
fn counters_tell_which_way_data_went() {
    for (word, way) in [("on", "direct"), ("off", "packets")] {
        let dir = tempfile::tempdir().unwrap();
        let told = format!("XDG_RUNTIME_DIR={}", dir.path().display());
        let direct = format!("ELVER_DIRECT={word}");
        run_of(&["env", &told, &direct], "integrity", way, &[]);
        let names = ["direct_reads", "direct_writes", "direct_bytes"];
        let all = names.map(|name| counted(dir.path(), name));
        assert!(all.iter().all(|count| (*count > 0) == (word == "on")), "{word}: {all:?}");
        assert!(word == "on" || counted(dir.path(), "rx_bytes") > 0);
    }
}

/// Threads may share a queue pair and a CQ: each WR is done once, and completes once.
#[test]
fn threads_share_a_queue_pair_and_a_cq() {
    run("threads");
}

#[test]
fn a_message_comes_behind_what_was_written_before() {
    run("order");
}

#[test]
fn messages_arrive_whether_one_polls_or_sleeps() {
    run("messages");
}

#[test]
fn a_target_that_stays_in_rtr_is_reached_behind_the_first_packet() {
    run("in-rtr");
}

/// They are counted, since one may also be found complete that went by packets.
#[test]
fn long_writes_wait_for_what_is_before_them() {
    let writes = |word, way| {
        let dir = tempfile::tempdir().unwrap();
        let told = format!("XDG_RUNTIME_DIR={}", dir.path().display());
        let direct = format!("ELVER_DIRECT={word}");
        run_of(&["env", &told, &direct], "behind", way, &[]);
        counted(dir.path(), "direct_writes")
    };
    assert_eq!(writes("off", "packets"), 0);
    assert!((0..20).any(|_| writes("on", "direct") > 0), "none has waited");
}

/// One call of the system's may not move all: the device would answer nobody meanwhile.
#[test]
fn who_moves_much_by_one_call_answers_others_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let told = format!("XDG_RUNTIME_DIR={}", dir.path().display());
    run_of(&["env", &told], "much", "direct", &[]);
    assert_eq!(counted(dir.path(), "direct_refused"), 0);
}

#[test]
fn memory_that_is_taken_back_while_much_is_moved_is_written_no_more() {
    run("much-back");
}

#[test]
fn refusals_are_told_as_by_packets() {
    run("errors");
}

#[test]
fn a_target_that_is_killed_is_told_of_by_retries() {
    run("killed");
}

#[test]
fn an_initiator_that_is_killed_holds_nobody_up() {
    run("kills");
}

/// The draws are replayed by a seed; where they meet the library's instructions is the scheduler's.
#[test]
fn who_is_killed_at_any_moment_leaves_nothing_behind() {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(time, |seed| seed.parse().unwrap());
    println!("replay with SEED={seed}");
    let (program, seed) = (compiled("deaths"), seed.to_string());
    for (word, way) in [("on", "direct"), ("off", "packets")] {
        let mut command = command(&[program.to_str().unwrap(), VICTIMS, way, &seed]);
        let said = succeeded(way, &command.env("ELVER_DIRECT", word).output().unwrap());
        assert!(said.ends_with(": right\n"), "{said}");
    }
}

#[test]
fn memory_is_not_written_once_it_is_deregistered() {
    run("dereg");
}

#[test]
fn a_queue_pair_is_not_entered_once_it_is_stopped() {
    run("stopped");
}

/// Both ends must want it, nothing may befall packets, and it must be the same user and PID namespace, whose
/// processes the system lets reach each other (this needs root).
#[test]
fn others_go_by_packets() {
    run("way");
    run_of(&["env", "ELVER_DELAY_US=1"], "way", "packets", &[]);
    for (target, way) in [
        ("other-user", "packets"),
        ("other-pids", "packets"),
        ("closed", "packets"),
        ("open", "direct"),
    ] {
        run_of(&[], "way", way, &[target]);
    }
}

/// Of files in memory too: who would have too long a one goes by packets, or is not watched over, and is not killed.
#[test]
fn a_program_that_may_have_no_long_files_goes_by_packets() {
    for limit in ["0", "4096", "1000000"] {
        run_of(&["prlimit", &format!("--fsize={limit}")], "integrity", "packets", &[]);
    }
}

#[test]
fn another_word_is_told() {
    let output = command(&["ibv_devinfo"]).env("ELVER_DIRECT", "perhaps").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("give on or off"), "{said}");
}
