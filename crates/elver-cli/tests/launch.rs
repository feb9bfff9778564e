//! `elver launch`: ranks find each other, end together, and hear what they are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use elver_msg::{Group, Source, Tag, ops};
use elver_testkit::Place;
use rustix::process::{Pid, Signal, kill_process};

const PLACE: Place =
    Place { name: "launch", network: 23, udp_ports: 31_200, registry_ports: 31_400 };
/// Says to a test of this program that it is a rank.
const IS_RANK: &str = "ELVER_TEST_IS_RANK";

fn elver() -> Command {
    let mut command = Command::new("timeout");
    command.args(["100", env!("CARGO_BIN_EXE_elver"), "launch"]);
    command.env_remove("ELVER_SOCKET");
    command
}

fn launch(arguments: &[&str]) -> Output {
    elver().args(arguments).output().unwrap()
}

/// A shell script at each rank, at a node of the ranks' own.
fn script(ranks: &str, options: &[&str], words: &str) -> Output {
    let all = [&["-n", ranks, "--own-node"], options, &["--", "sh", "-c", words]].concat();
    launch(&all)
}

/// What was said on standard output, in order of lines: ranks speak when they like.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<_> = text.lines().map(str::to_string).collect();
    lines.sort();
    lines
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// At once: ranks speak at the same time.
fn says(line: &str) {
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Not a test of its own: a rank.
#[test]
fn process_that_is_a_rank() {
    let Ok(does) = std::env::var(IS_RANK) else { return };
    let group = Group::from_env().unwrap();
    match &does[..] {
        "sums" => {
            let mut sum = [group.rank() + 1];
            group.allreduce(&mut sum, ops::sum).unwrap();
            let (rank, size, gid) = (group.rank(), group.size(), group.session().gid());
            says(&format!("rank {rank} of {size} at {gid}: {}\n", sum[0]));
            group.finish().unwrap();
        }
        "dies" => {
            group.barrier().unwrap();
            if group.rank() == 1 {
                kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            }
            let told = group.recv_vec(Source::Any, Tag::Any).unwrap_err();
            says(&format!("rank {} heard: {told}\n", group.rank()));
            // The group is ended before this one has.
            let _ = std::io::stdin().read_line(&mut String::new());
            loop {
                std::thread::park();
            }
        }
        other => panic!("{other}"),
    }
}

/// Ranks that are this program, and do something.
fn group(does: &str, options: &[&str]) -> Output {
    let own = std::env::current_exe().unwrap();
    elver()
        .args(options)
        .arg("--")
        .arg(own)
        .args(["--exact", "process_that_is_a_rank", "--nocapture"])
        .env(IS_RANK, does)
        .output()
        .unwrap()
}

#[test]
fn ranks_are_a_group() {
    let output = group("sums", &["-n", "5", "--own-node"]);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    for rank in 0..5 {
        assert!(said.contains(&format!("rank {rank} of 5 at ")), "{said}");
    }
    assert_eq!(said.matches(": 15").count(), 5, "{said}");
}

#[test]
fn ranks_are_at_named_nodes_in_turn() {
    let (meta, other) = PLACE.cluster(1, |_| ());
    let paths = [&meta.path, &other.path].map(|path| path.to_str().unwrap());
    let output = group("sums", &["-n", "3", "--socket", paths[0], "--socket", paths[1]]);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    for rank in 0..3 {
        let gid = [&meta.gid, &other.gid][rank % 2];
        assert!(said.contains(&format!("rank {rank} of 3 at {gid}: 6")), "{said}");
    }
    // The one that the environment names, as without this command.
    let own = std::env::current_exe().unwrap();
    let mut command = elver();
    command.args(["-n", "2", "--"]).arg(own).args(["--exact", "process_that_is_a_rank"]);
    command.arg("--nocapture").env(IS_RANK, "sums").env("ELVER_SOCKET", paths[1]);
    let said = errors(&command.output().unwrap());
    assert_eq!(said.matches(&format!("at {}: 3", other.gid)).count(), 2, "{said}");
}

#[test]
fn a_rank_that_dies_ends_the_group() {
    let output = group("dies", &["-n", "3", "--own-node"]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(
        said.contains("elver: rank 1 was killed by SIGKILL, so that the 2 others were ended"),
        "{said}"
    );
}

#[test]
fn the_environment_says_who_a_rank_is() {
    let output = script(
        "3",
        &[],
        "echo $ELVER_RANK of $ELVER_SIZE; test -S $ELVER_SOCKET; env | grep ELVER_ >&2",
    );
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(lines(&output), ["0 of 3", "1 of 3", "2 of 3"]);
    let said = errors(&output);
    let value = |name: &str| -> Vec<String> {
        let mut all: Vec<_> =
            said.lines().filter_map(|line| line.strip_prefix(name)).map(str::to_string).collect();
        all.sort();
        all.dedup();
        all
    };
    // One group, at one place.
    let (token, place) = (value("ELVER_TOKEN="), value("ELVER_RENDEZVOUS="));
    assert!(token.len() == 1 && token[0].len() == 32, "{said}");
    assert!(place.len() == 1 && place[0].starts_with("[127.0.0.1]:"), "{said}");
    let other = script("1", &[], "echo $ELVER_TOKEN; echo $ELVER_SOCKET");
    assert!(!lines(&other).contains(&token[0]), "the next group is another one");
    let socket = value("ELVER_SOCKET=");
    assert!(!std::path::Path::new(&socket[0]).exists(), "a node of their own goes with them");
}

#[test]
fn lines_are_labelled() {
    let output = script("2", &["--label"], "echo one; echo two >&2; printf three");
    assert_eq!(lines(&output), ["0: one", "0: three", "1: one", "1: three"]);
    let said = errors(&output);
    assert!(said.contains("0: two\n") && said.contains("1: two\n"), "{said}");
}

/// What has been started in the background holds the pipe, and nobody waits for it.
#[test]
fn who_ends_is_not_waited_for_longer() {
    let output = script("2", &["--label"], "sleep 1000 & echo $!");
    assert!(output.status.success(), "{}", errors(&output));
    let said = lines(&output);
    assert_eq!(said.len(), 2);
    for line in said {
        let pid: i32 = line.split(' ').next_back().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}

/// Also where the rank that has started it is the one that fails.
#[test]
fn what_a_rank_has_started_ends_with_a_group_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Rank 1 fails when the other one has said what it started.
    let words = "sleep 1000 & echo $!; \
                 if test $ELVER_RANK = 1; then read line < $0; kill -KILL $$; fi; echo > $0; wait";
    let mut command = elver();
    command.args(["-n", "2", "--own-node", "--", "sh", "-c", words]).arg(&pipe);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let said = lines(&output);
    assert_eq!(said.len(), 2, "{said:?}");
    for line in said {
        elver_testkit::wait_for("what was started to end", || {
            let state = std::fs::read_to_string(format!("/proc/{line}/stat")).unwrap_or_default();
            // Whoever inherits it may not have heard of it yet.
            (state.is_empty() || state.contains(") Z ")).then_some(())
        });
    }
}

#[test]
fn exit_codes_are_those_of_ranks() {
    let output = script("4", &[], "test $ELVER_RANK = 2 && exit 7; sleep 1000");
    assert_eq!(output.status.code(), Some(7));
    let said = errors(&output);
    assert!(
        said.contains("rank 2 ended with exit code 7, so that the 3 others were ended"),
        "{said}"
    );
    let output = script("2", &[], "test $ELVER_RANK = 1 && kill -SEGV $$; sleep 1000");
    assert_eq!(output.status.code(), Some(128 + 11));
    let said = errors(&output);
    assert!(
        said.contains("rank 1 was killed by SIGSEGV, so that the other one was ended"),
        "{said}"
    );
}

/// It has a while for what it has to do, and no longer.
#[test]
fn a_rank_that_does_not_end_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Rank 0 fails when rank 1 minds no SIGTERM any more. A shell that is told between starting a command and waiting
    // for it acts on it when that has ended: it has many short ones.
    let words = "if test $ELVER_RANK = 0; then read line < $0; exit 3; fi; \
                 trap 'echo told' TERM; echo > $0; while :; do sleep 0.01; done";
    let mut command = elver();
    command.args(["-n", "2", "--own-node", "--grace", "2s", "--", "sh", "-c", words]);
    let output = command.arg(&pipe).output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("1 did not end within 2s, and were killed"), "{said}");
    assert_eq!(lines(&output), ["told"]);
}

#[test]
fn who_never_joins_is_told() {
    let own = std::env::current_exe().unwrap();
    // Rank 1 does something else.
    let words = "test $ELVER_RANK = 1 && exit 0; exec \"$0\" --exact process_that_is_a_rank";
    let mut command = elver();
    command.args(["-n", "3", "--own-node", "--", "sh", "-c", words]).arg(own).env(IS_RANK, "sums");
    let output = command.output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rank 1 ended without joining the group"), "{said}");
}

/// The command itself, so that it can be sent signals.
fn started(words: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_elver"));
    command.args(["launch", "-n", "2", "--own-node", "--", "sh", "-c", words]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (child, said)
}

fn hears(said: &mut impl BufRead) -> String {
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    line.trim().into()
}

#[test]
fn signals_are_passed_on() {
    let (child, mut said) =
        started("trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.1; done");
    assert_eq!([hears(&mut said), hears(&mut said)], ["ready", "ready"]);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!([hears(&mut said), hears(&mut said)], ["heard", "heard"]);
    // Both have ended well.
    assert!(child.wait_with_output().unwrap().status.success());
    let (child, mut said) = started("echo ready; exec sleep 1000");
    assert_eq!([hears(&mut said), hears(&mut said)], ["ready", "ready"]);
    // Not SIGINT, which whoever is started in the background may have to ignore.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 15));
    assert_eq!(errors(&output), "elver: ended by SIGTERM\n");
}

#[test]
fn rank_0_has_the_input() {
    let (mut child, mut said) = started("read line; echo $ELVER_RANK:$line");
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let mut both = [hears(&mut said), hears(&mut said)];
    both.sort();
    assert_eq!(both, ["0:hello", "1:"]);
    assert!(child.wait().unwrap().success());
}

/// As `elver run` and shells have it.
#[test]
fn a_program_that_is_not_there_has_127() {
    let output = launch(&["-n", "1", "--own-node", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(errors(&output).contains("cannot run /no/such/program"), "{}", errors(&output));
}

#[test]
fn what_cannot_be_is_refused_with_2() {
    for (arguments, why) in [
        (&["-n", "0", "--", "true"][..], "1..=1024"),
        (&["-n", "1025", "--", "true"], "1..=1024"),
        (&["--", "true"], "--ranks"),
        (&["-n", "1"], "PROGRAM"),
        (&["-n", "1", "--socket", "/nowhere", "--", "true"], "no node listens at /nowhere"),
        (&["-n", "1", "--own-node", "--socket", "/nowhere", "--", "true"], "cannot be used with"),
    ] {
        let output = launch(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(errors(&output).contains(why), "{}", errors(&output));
    }
    let output = elver()
        .args(["-n", "1", "--", "true"])
        .env("ELVER_SOCKET", "/nowhere/named")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("/nowhere/named"), "a node that was named is meant");
}
