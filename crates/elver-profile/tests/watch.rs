//! Watching Debian's own libibverbs and libmlx5, on a host whose sysfs tells of an mlx5 device.

use std::path::Path;
use std::process::{Command, Stdio};

use elver_profile::trace::{Seen, Watch};

/// What is seen of a program of ibverbs-utils there.
fn seen(program: &str, environment: &[(&str, &str)]) -> Seen {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a device in a mount namespace: run it as root, or by `cargo xtask test`"
    );
    let place = tempfile::tempdir().unwrap();
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../elver-fastverbs/tests/host.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash"]).arg(host).arg(place.path());
    command.arg(program).env("DEVICES", "0").env_remove("MLX5_STALL_CQ_POLL").stdout(Stdio::null());
    command.envs(environment.iter().copied());
    let (seen, code) = Watch::default().run(command).unwrap();
    assert_eq!(code, 0);
    seen
}

fn found<'a>(seen: &'a Seen, call: &str, what: &str) -> Option<&'a str> {
    let mut all = seen.results.keys().filter(|(its, _)| its == call);
    all.find(|(_, its)| its.contains(what)).map(|(_, its)| its.as_str())
}

#[test]
fn calls_and_what_they_are_made_of_are_seen_through_exec() {
    let seen = seen("/usr/bin/ibv_devinfo", &[]);
    let (list, open) = (seen.calls["ibv_get_device_list"], seen.calls["ibv_open_device"]);
    assert_eq!((list.count, open.count), (1, 1));
    for spent in seen.calls.values() {
        assert!(spent.kernel_ns <= spent.total_ns, "{spent:?}");
    }
    let inside =
        |name: &str| seen.functions[&("ibv_get_device_list".to_string(), name.to_string())];
    // A provider for each file of /etc/libibverbs.d.
    let providers = std::fs::read_dir("/etc/libibverbs.d").unwrap().count() as u64;
    assert_eq!(inside("dlopen").count, providers);
    assert!(inside("dlopen").total_ns <= list.total_ns && inside("fopen").count == providers);
    assert!(list.system_calls > 5 * providers && list.kernel_ns > 0);
    assert!(found(&seen, "ibv_get_device_list", "device/modalias").is_some());
    assert!(
        found(&seen, "ibv_open_device", "/proc/cpuinfo").is_some(),
        "{:?}",
        seen.results.keys()
    );
}

#[test]
fn what_mlx5_is_told_by_the_environment_shows() {
    let seen = seen("/usr/bin/ibv_devinfo", &[("MLX5_STALL_CQ_POLL", "0")]);
    assert_eq!(seen.calls["ibv_open_device"].count, 1);
    assert_eq!(found(&seen, "ibv_open_device", "/proc/cpuinfo"), None);
}

/// What is seen of `forks.c`, and its exit code.
fn forks(arguments: &[&str]) -> (Seen, u8) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("forks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forks.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-pthread", "-o"]).args([&program, &source]);
    assert!(compiler.status().unwrap().success());
    let mut command = Command::new(program);
    command.args(arguments);
    Watch::default().run(command).unwrap()
}

/// A child had breakpoints in its copy of the memory, and died of the first that it met.
#[test]
fn processes_that_a_program_makes_go_their_way() {
    let (seen, code) = forks(&[]);
    assert_eq!(code, 0);
    assert_eq!(seen.calls["ibv_get_device_list"].count, 2);
}

/// Where a thread's call returns to, another thread met the breakpoint, and ended the program.
#[test]
fn threads_may_return_to_where_another_ones_call_does() {
    let (_, code) = forks(&["threads"]);
    assert_eq!(code, 0);
}

/// Signals from 32 on ended the watch, and with it the program; one that came at a breakpoint had the next one's instruction
/// begun behind its first byte.
#[test]
fn signals_of_real_time_are_the_programs_own() {
    let (seen, code) = forks(&["signals"]);
    assert_eq!(code, 0);
    assert_eq!(seen.calls["ibv_node_type_str"].count, 600);
}

/// It was let go on without its step, and the breakpoint was gone for all threads.
#[test]
fn whom_a_signal_stops_that_steps_over_a_breakpoint_takes_it_from_nobody() {
    let (seen, code) = forks(&["stops"]);
    assert_eq!(code, 0);
    assert_eq!(seen.calls["ibv_get_device_list"].count, 1);
    let opened = &seen.functions[&("ibv_get_device_list".to_string(), "opendir".to_string())];
    assert_eq!(opened.count, 1);
}

/// Whom the end found at a breakpoint could not be looked at, which ended the watch.
#[test]
fn a_program_may_end_while_its_threads_stand_at_breakpoints() {
    for _ in 0..5 {
        assert_eq!(forks(&["exits"]).1, 6);
    }
}

#[test]
fn an_exit_code_and_a_signal_come_through() {
    let run = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Watch::default().run(command).unwrap().1
    };
    assert_eq!(run("exit 7"), 7);
    assert_eq!(run("kill -TERM $$"), 128 + 15);
    assert_eq!(run("kill -64 $$"), 128 + 64);
    assert!(Watch::default().run(Command::new("/no/such/program")).is_err());
}
