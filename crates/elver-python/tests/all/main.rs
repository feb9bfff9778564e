//! The module as Python imports it, beside a node.

use std::path::Path;
use std::process::Command;

use elver_testkit::{Launch, Place, Role, TestNode, python_module, role, stay};

const PLACE: Place =
    Place { name: "python", network: 29, udp_ports: 24_600, registry_ports: 24_900 };

/// Names a Python in which a wheel was installed, which is tried then.
const INSTALLED: &str = "ELVER_TEST_PYTHON";

/// A Python that finds the module: in a folder, where it is put as it was built, or installed.
fn python(folder: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]);
    if let Some(python) = std::env::var_os(INSTALLED) {
        command.arg(python);
    } else {
        std::fs::copy(python_module(), folder.join("elver.abi3.so")).unwrap();
        command.arg("python3").env("PYTHONPATH", folder);
    }
    command
}

/// Not a test of its own: a node in a process of its own, since children of Python have copies of no node.
#[test]
fn process_that_is_a_node() {
    let Some(Role { socket, .. }) = role() else { return };
    let node = TestNode::start(PLACE.config(1, 1));
    std::os::unix::fs::symlink(&node.path, &socket).unwrap();
    eprintln!("ready");
    stay();
}

#[test]
fn python_programs_move_data() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("node.sock");
    let mut node = Launch::new("process_that_is_a_node", &socket).start();
    assert_eq!(node.says(), "ready");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/module.py");
    let output = python(folder.path()).arg(script).env("ELVER_SOCKET", &socket).output().unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complaint}", output.status);
    assert_eq!(said, "all is well\n");
    node.ends();
}
