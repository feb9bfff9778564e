//! Each example runs, as a process beside a daemon's socket, and ends well.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use common::{TestNode, config};

const EXAMPLES: [&str; 3] = ["blobs", "kv_client", "kv_service"];

/// A built example: beside this program, in the folder that cargo has for them.
fn example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    let folder = profile.join("examples");
    BUILT.call_once(|| {
        // `cargo test` has built them; `cargo test --test examples` alone does not.
        if is_built(&folder) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples", "--package", "elver-rpc"]);
        if program.to_string_lossy().contains("/release/") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the examples cannot be built");
    });
    folder.join(name)
}

/// Whether each example's program is there, and no older than its source and the library's.
fn is_built(folder: &Path) -> bool {
    fn files(folder: PathBuf) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(path) } else { vec![path] }).collect()
    }
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let sources = ["src", "examples"].into_iter().flat_map(|name| files(crate_root.join(name)));
    let newest = sources.filter_map(|path| changed(&path)).max();
    EXAMPLES
        .iter()
        .all(|name| changed(&folder.join(name)).is_some_and(|built| Some(built) >= newest))
}

/// Runs a program to its end. One that waits for what never comes is ended: 124 is its exit code then.
fn runs(node: &TestNode, name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.arg("300").arg(example(name)).args(arguments);
    let output = command.env(elver::SOCKET_VARIABLE, &node.path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {:?}\n{said}{errors}", output.status);
    said
}

#[test]
fn blobs_go_there_and_back() {
    let node = TestNode::start(config(50, 1));
    let said = runs(&node, "blobs", &["2000"]);
    assert!(said.contains("2048000 bytes there and back"), "{said}");
}

#[test]
fn the_service_has_clients() {
    let node = TestNode::start(config(51, 1));
    let mut service = Command::new("timeout")
        .arg("300")
        .arg(example("kv_service"))
        .env(elver::SOCKET_VARIABLE, &node.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(service.stdout.take().unwrap());
    let mut port = String::new();
    says.read_line(&mut port).unwrap();
    for _ in 0..2 {
        let said = runs(&node, "kv_client", &[port.trim(), "2000"]);
        assert!(said.contains("2000 values put") && said.contains("2000 keys"), "{said}");
        assert!(said.contains("there is no key \"nothing\""), "{said}");
    }
    drop(service.stdin.take());
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(service.wait().unwrap().success());
    assert_eq!(rest.trim(), format!("{} calls", 2 * 2_002));
}

/// An example that nobody runs rots.
#[test]
fn all_of_them_are_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut there: Vec<_> = files
        .filter(|path| path.is_file())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    there.sort();
    assert_eq!(there, EXAMPLES);
}
