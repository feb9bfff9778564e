//! The module as Python imports it, beside a node.

use std::path::Path;
use std::process::Command;

use elver_testkit::{Launch, Place, Role, TestNode, python_module, role, stay};

const PLACE: Place =
    Place { name: "python", network: 29, udp_ports: 24_600, registry_ports: 24_900 };

/// A folder with the module, built as users have it.
fn module() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(python_module(), folder.path().join("elver.abi3.so")).unwrap();
    folder
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
    let folder = module();
    let socket = folder.path().join("node.sock");
    let mut node = Launch::new("process_that_is_a_node", &socket).start();
    assert_eq!(node.says(), "ready");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/module.py");
    let output = Command::new("timeout")
        .args(["-k", "5", "60", "python3"])
        .arg(script)
        .env("PYTHONPATH", folder.path())
        .env("ELVER_SOCKET", &socket)
        .output()
        .unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complaint}", output.status);
    assert_eq!(said, "all is well\n");
    node.ends();
}
