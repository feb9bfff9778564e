//! The image for OpenWhisk, built from its Containerfile and started as an invoker starts it: by podman, without a network.
//!
//! What stands for the image that it is built from is an empty tree, into which the host's `/usr` with its Python is mounted.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use elver_faas::action::{PORT, SENTINEL};
use elver_testkit::{Place, copy, python_module, wait_for};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::openwhisk::{post, response};
use crate::store::Store;

const PLACE: Place =
    Place { name: "whisk-image", network: 70, udp_ports: 27_800, registry_ports: 27_900 };

const CONTAINERFILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/openwhisk/Containerfile");

const NAME: &str = "elver-action";

/// Images and containers that no other podman sees.
struct Podman(TempDir);

impl Podman {
    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        for directory in ["root", "runroot", "tmpdir"] {
            command.arg(format!("--{directory}")).arg(self.0.path().join(directory));
        }
        command.args(["--storage-driver=vfs", "--runtime=runc"]).stdin(Stdio::null());
        command
    }

    /// Runs it to a good end; what it says.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "podman {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes the image that others are built from.
    fn import_base(&self, name: &str) {
        let base = self.0.path().join("base");
        for directory in ["usr", "proc", "dev", "etc", "run", "tmp"] {
            std::fs::create_dir_all(base.join(directory)).unwrap();
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            symlink(format!("usr/{link}"), base.join(link)).unwrap();
        }
        let archive = self.0.path().join("base.tar");
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&archive).arg("-C").arg(&base).arg(".");
        assert!(tar.status().unwrap().success());
        self.run(&["import", archive.to_str().unwrap(), name]);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // It has not been started if the test failed before.
        let _ = self.command().args(["rm", "--force", "--time", "0", NAME]).output();
    }
}

/// An answer of the container whose first process this is: only from its network namespace is there a way to its port.
fn ask(pid: &str, path: &str, body: &Value) -> (u16, Value) {
    let network = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let ask = || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", PORT)).ok();
        let mut stream = wait_for("the port", connect);
        post(&mut stream, path, &body.to_string());
        response(stream)
    };
    // Of a thread that ends with that.
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

#[test]
fn the_image_is_built_and_its_activations_inherit_connections() {
    let store = Store::new(&PLACE, 1);
    let podman = Podman(tempfile::tempdir().unwrap());
    let context = podman.0.path().join("context");
    std::fs::create_dir(&context).unwrap();
    copy(env!("CARGO_BIN_EXE_elver-action").as_ref(), &context.join("elver-action"));
    std::fs::copy(python_module(), context.join("elver.abi3.so")).unwrap();
    let text = std::fs::read_to_string(CONTAINERFILE).unwrap();
    let base = text.lines().find_map(|line| line.strip_prefix("FROM ")).unwrap();
    podman.import_base(base);
    let build = ["build", "--pull=never", "--network=none", "--tag", NAME, "--file", CONTAINERFILE];
    podman.run(&[&build[..], &[context.to_str().unwrap()]].concat());
    let exposed = podman.run(&["inspect", "--format", "{{json .Config.ExposedPorts}}", NAME]);
    assert_eq!(exposed.trim(), json!({format!("{PORT}/tcp"): {}}).to_string());
    let node = format!("{}:/run/elver/elverd.sock", store.node.path.display());
    let options = ["run", "--detach", "--name", NAME, "--network=none", "--log-driver=k8s-file"];
    // Those of its own are more than a CI that is a container may have.
    let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"];
    let mounts = ["--volume=/usr:/usr:ro", "--volume", &node, NAME];
    podman.run(&[&options[..], &limits, &mounts].concat());
    let pid = podman.run(&["inspect", "--format", "{{.State.Pid}}", NAME]);
    let pid = pid.trim();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program, Path::new("/opt/elver/elver-action"));
    const READ: &str = "import elver
def main(args):
    print('it reads')
    rdma = elver.context()
    rdma.qps[args['to']].read(rdma.mr, 0, 8, args['address'], args['rkey'], timeout=10)
    return {'read': rdma.mr.read(0, 8).decode(), 'inherited': rdma.inherited, 'of': elver.__file__}
";
    let value = json!({"name": "a", "code": READ, "env": {"ELVER_DESTINATIONS": store.gid()}});
    let begun = ask(pid, "/init", &json!({"value": value}));
    assert_eq!(begun, (200, json!({"ok": true})));
    for _ in 0..2 {
        wait_for("four sessions to be free", || (store.count("free") == 4).then_some(()));
        let answer = ask(pid, "/run", &json!({"value": store.event(json!({}))}));
        let of = "/opt/elver/elver.abi3.so";
        assert_eq!(answer, (200, json!({"read": "greeting", "inherited": true, "of": of})));
    }
    wait_for("the log of both", || {
        let log = podman.run(&["logs", NAME]);
        let ends: Vec<&str> = log.lines().collect();
        (ends == ["it reads", SENTINEL, "it reads", SENTINEL]).then_some(())
    });
    podman.run(&["rm", "--force", "--time", "10", NAME]);
    wait_for("its sessions to go", || (store.count("free") == 0).then_some(()));
}
