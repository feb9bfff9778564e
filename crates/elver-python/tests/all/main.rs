//! The module as Python imports it, beside a node.

use std::path::Path;
use std::process::Command;

use elver_node::config::Config;
use elver_testkit::{Launch, Place, Process, Role, TestNode, python_module, role, stay};

const PLACE: Place =
    Place { name: "python", network: 29, udp_ports: 24_600, registry_ports: 24_900 };

/// Names a Python in which a wheel was installed, which is tried then.
const INSTALLED: &str = "ELVER_TEST_PYTHON";

/// A Python that finds the module: in a folder, where it is put as it was built, or installed.
fn python(folder: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "300"]);
    if let Some(python) = std::env::var_os(INSTALLED) {
        command.arg(python);
    } else {
        std::fs::copy(python_module(), folder.join("elver.abi3.so")).unwrap();
        command.arg("python3").env("PYTHONPATH", folder);
    }
    command
}

/// Not a test of its own: a node in a process of its own, since children of Python have copies of no node. It knows its
/// group and host.
#[test]
fn process_that_is_a_node() {
    let Some(Role { socket, knows }) = role() else { return };
    let node = match knows.as_str() {
        "alone" => TestNode::start(PLACE.config(1, 1)),
        "example" => TestNode::start(PLACE.config(3, 1)),
        "meta server" => {
            let mut config = PLACE.config(2, 1);
            config.meta.serve = true;
            config.meta.listen = PLACE.registry(2);
            patient(&mut config);
            TestNode::start(config)
        }
        "member" => PLACE.member(2, 2, patient),
        other => panic!("`{other}` is no node of these tests"),
    };
    std::os::unix::fs::symlink(&node.path, &socket).unwrap();
    eprintln!("ready {}", std::process::id());
    stay();
}

/// A node that does not take one for gone that is stopped for a moment, however long that is here.
fn patient(config: &mut Config) {
    config.pool.timeout = 15;
    config.pool.keep_alive_ms = 10_000;
}

/// A node in a process of its own, and the number of that.
fn node(knows: &str, socket: &Path) -> (Process, String) {
    let mut node = Launch::new("process_that_is_a_node", socket).knows(knows).start();
    let said = node.says();
    let pid = said.strip_prefix("ready ").expect("the node is ready").to_string();
    (node, pid)
}

/// Runs a program to its good end; what it says, and what it complains of.
fn run(python: &mut Command) -> (String, String) {
    let output = python.output().unwrap();
    let [said, complaint] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}\n{said}\n{complaint}", output.status);
    (said, complaint)
}

#[test]
fn python_programs_move_data() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("node.sock");
    let (node, _) = node("alone", &socket);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/module.py");
    let (said, _) = run(python(folder.path()).arg(script).env("ELVER_SOCKET", &socket));
    assert_eq!(said, "all is well\n");
    node.ends();
}

#[test]
fn python_programs_await_in_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, peer] = ["meta.sock", "peer.sock"].map(|name| folder.path().join(name));
    let (node_beside, _) = node("meta server", &socket);
    let (_dies, pid) = node("member", &peer);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/tasks.py");
    let mut python = python(folder.path());
    python.arg(script).env("ELVER_SOCKET", &socket);
    python.env("ELVER_TEST_PEER_SOCKET", &peer).env("ELVER_TEST_PEER_PID", pid);
    let (said, complaint) = run(&mut python);
    // What a loop cannot tell anybody it complains of.
    assert_eq!((said.as_str(), complaint.as_str()), ("all is well\n", ""));
    node_beside.ends();
}

/// The programs of the README that need nobody else.
#[test]
fn python_programs_of_the_readme_run() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("node.sock");
    let (node, _) = node("example", &socket);
    let readme = include_str!("../../README.md");
    let programs = readme.split("```python\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let mut tried = 0;
    for (program, _) in programs.filter(|(program, _)| program.contains("asyncio.run")) {
        let (said, _) =
            run(python(folder.path()).args(["-c", program]).env("ELVER_SOCKET", &socket));
        assert_eq!(said, "a question\n");
        tried += 1;
    }
    assert_eq!(tried, 1);
    node.ends();
}
