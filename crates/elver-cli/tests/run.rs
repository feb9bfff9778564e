//! `elver run`: what a program is given, and which programs are refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Any shared object that can be loaded stands for the library here; what that does is tested where it is
/// made (crates/elver-preload/tests/programs.rs).
fn library() -> &'static str {
    let places = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"];
    places.into_iter().find(|path| Path::new(path).exists()).expect("a C library")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_elver"))
        .arg("run")
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

fn refused(arguments: &[&str], why: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(why), "{}: {said}", output.status);
}

/// As shells and env(1) have it.
#[test]
fn a_program_that_cannot_be_run_has_126_or_127() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_string()
    };
    let orphan = file("orphan", "#!/no/such/shell\n", 0o755);
    let data = file("data", "#!/bin/sh\n", 0o644);
    let told =
        format!("cannot run {orphan}: its first line names /no/such/shell, which is not there");
    for (program, code, why) in [
        ("no-such-program", 127, "there is no program no-such-program in PATH"),
        ("/no/such/program", 127, "cannot read /no/such/program: No such file"),
        (&orphan, 127, &*told),
        (&data, 126, "Permission denied"),
        ("/etc", 126, "Is a directory"),
    ] {
        let output = run(&["--library", library(), "--", program]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(code) && said.contains(why),
            "{}: {said}",
            output.status
        );
    }
}

#[test]
fn a_library_that_is_none_is_refused() {
    refused(&["--library", "/etc/passwd", "--", "true"], "/etc/passwd is no library");
    let program = env!("CARGO_BIN_EXE_elver");
    let of_32_bits = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(of_32_bits.path(), b"\x7fELF\x01\x01\x01").unwrap();
    let path = of_32_bits.path().to_str().unwrap();
    refused(&["--library", path, "--", program], "is a library for 32 bits");
}

#[test]
fn a_program_gets_the_library_and_its_exit_code_is_handed_on() {
    let words = "echo $LD_PRELOAD $ELVER_DEVICE $ELVER_ADDRESS $0; exit 7";
    let named = ["--device", "rdma7", "--address", "127.9.9.9,::1", "--library", library()];
    let output = run(&[&named[..], &["--", "sh", "-c", words]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("{} rdma7 127.9.9.9,::1 sh\n", library()));
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_program_for_streams_gets_the_other_library_and_its_node() {
    let words = "echo $LD_PRELOAD $ELVER_SOCKET $ELVER_STREAMS_LOG";
    let named = ["--streams", "--socket", "/node", "--streams-log", "-", "--library", library()];
    let output = run(&[&named[..], &["--", "sh", "-c", words]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("{} /node -\n", library()));
    refused(&["--streams", "--loss", "1%", "--", "true"], "cannot be used with");
    refused(&["--streams", "--port-up-after", "1s", "--", "true"], "cannot be used with");
    refused(&["--device", "a b/c", "--", "true"], "without a slash");
    refused(&["--streams-log", "-", "--", "true"], "--streams");
    let nowhere = ["--streams", "--library", library(), "--streams-log", "/dev/null/x"];
    refused(&[&nowhere[..], &["--", "true"]].concat(), "cannot write to /dev/null/x");
    // Beside this test's program there is none.
    refused(&["--streams", "--", "true"], "lib/elver/libelver-sockets.so");
}

#[test]
fn the_library_stands_behind_others_that_are_loaded_ahead() {
    let output = Command::new(env!("CARGO_BIN_EXE_elver"))
        .args(["run", "--library", library(), "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "/lib/other.so")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("/lib/other.so:{}\n", library()));
}

#[test]
fn the_library_is_told_when_the_port_goes_down() {
    let words = "echo $ELVER_PORT_DOWN_AFTER_MS $ELVER_PORT_UP_AFTER_MS";
    let asked = ["--port-down-after", "3s", "--port-up-after", "500ms", "--library", library()];
    let output = run(&[&asked[..], &["--", "sh", "-c", words]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3000 500\n");
    refused(&["--port-up-after", "1s", "--", "true"], "--port-down-after");
    refused(&["--streams", "--port-down-after", "1s", "--", "true"], "cannot be used with");
}

/// What a program is told in variables of this project's, beside what each is told.
fn told(options: &[&str]) -> Vec<String> {
    let words = ["--library", library(), "--", "sh", "-c", "env | grep '^ELVER_' | sort"];
    let output = run(&[options, &words].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    // The keeper's is another one each time.
    let is_asked = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default();
        !["ELVER_KEEPER", "ELVER_RUN_VERSION"].contains(&name) && std::env::var_os(name).is_none()
    };
    said.lines().filter(is_asked).map(str::to_string).collect()
}

#[test]
fn the_library_is_told_each_fault_and_no_other() {
    assert_eq!(told(&[]), [""; 0]);
    let version = run(&["--library", library(), "--", "printenv", "ELVER_RUN_VERSION"]);
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), env!("CARGO_PKG_VERSION"));
    for (option, variable, draws) in [
        ("--loss=1%", "ELVER_LOSS_PER_MILLION=10000", true),
        ("--wrong-keys=0.02%", "ELVER_WRONG_KEYS_PER_MILLION=200", true),
        ("--qp-failures=3%", "ELVER_QP_FAILURES_PER_MILLION=30000", true),
        ("--delay=50us", "ELVER_DELAY_US=50", false),
        ("--kill-peer-after=3s", "ELVER_PEERS_DIE_AFTER_MS=3000", false),
        ("--port-down-after=2s", "ELVER_PORT_DOWN_AFTER_MS=2000", false),
        ("--capture=/tmp/of-it", "ELVER_CAPTURE=/tmp/of-it", false),
        ("--no-direct", "ELVER_DIRECT=off", false),
        ("--gid-index=3", "ELVER_GID_INDEX=3", false),
        ("--infiniband", "ELVER_LINK_LAYER=infiniband", false),
    ] {
        let seed = draws.then_some("ELVER_SEED=77");
        let mut all: Vec<&str> = seed.into_iter().chain([variable]).collect();
        all.sort_unstable();
        assert_eq!(told(&[option, "--seed", "77"]), all, "{option}");
    }
}

#[test]
fn programs_that_no_library_reaches_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    std::fs::copy("/bin/true", &own).unwrap();
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o4755)).unwrap();
    let own = own.to_str().unwrap();
    refused(&["--library", library(), "--", own], "changes its user or group");
    let source = dir.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = dir.path().join("static");
    let built = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status();
    assert!(built.unwrap().success(), "cc -static");
    let program = program.to_str().unwrap();
    refused(&["--library", library(), "--", program], "is linked statically");
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#! {program} -x\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    refused(&["--library", library(), "--", script], "static, which is linked statically");
    let of_32_bits = dir.path().join("old");
    std::fs::write(&of_32_bits, b"\x7fELF\x01\x01\x01").unwrap();
    std::fs::set_permissions(&of_32_bits, PermissionsExt::from_mode(0o755)).unwrap();
    refused(&["--library", library(), "--", of_32_bits.to_str().unwrap()], "for 32 bits");
    refused(
        &["--library", library(), "--", "no-such-program"],
        "no program no-such-program in PATH",
    );
}

/// Names of the abstract namespace that have this in them.
fn names(part: &str) -> usize {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    all.lines().filter(|line| line.contains(part)).count()
}

/// Who speaks for a program that is killed is there as long as it is, and is no child of its.
#[test]
fn a_program_has_a_keeper() {
    use std::io::{BufRead, BufReader};

    let words = "echo $ELVER_KEEPER; cat /proc/$$/task/$$/children; echo; exec cat";
    let mut program = Command::new(env!("CARGO_BIN_EXE_elver"))
        .args(["run", "--library", library(), "--", "sh", "-c", words])
        .env_remove("ELVER_KEEPER")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let name = said.next().unwrap().unwrap();
    assert!(name.starts_with("elver-keeper/"), "{name}");
    // Only `cat` itself, which the shell has started to say so.
    let children = said.next().unwrap().unwrap();
    assert_eq!(children.split_whitespace().count(), 1, "{children}");
    assert_eq!(names(&name), 1);
    program.kill().unwrap();
    program.wait().unwrap();
    elver_testkit::wait_for("the keeper to end", || (names(&name) == 0).then_some(()));
    // One keeper is enough for programs that start each other.
    let output = Command::new(env!("CARGO_BIN_EXE_elver"))
        .args(["run", "--library", library(), "--", "sh", "-c", "echo $ELVER_KEEPER"])
        .env("ELVER_KEEPER", "somebody's")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "somebody's\n");
}

#[test]
fn where_there_is_no_library_the_way_to_one_is_named() {
    refused(&["--library", "/nowhere/libibverbs.so.1", "--", "true"], "no library /nowhere");
    // Beside the program that tests build there is none, unless somebody made one.
    let beside = Path::new(env!("CARGO_BIN_EXE_elver")).ancestors().skip(1).take(2);
    if !beside.map(|place| place.join("lib/elver/libibverbs.so.1")).any(|path| path.exists()) {
        refused(&["--", "true"], "cargo xtask preload");
    }
}
