//! The library, a node, and programs over them, each for at most [`LIMIT`].

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use elver::node::config::Config;
use elver_testkit::{Place, TestNode, wait_for};

const PLACE: Place =
    Place { name: "sockets", network: 23, udp_ports: 30_000, registry_ports: 30_500 };

/// The longest that a program may take, in seconds.
const LIMIT: &str = "300";

/// A folder with the library and the C program, made once.
fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        fs::create_dir_all(&dir).unwrap();
        // Where this test stands: `target/PROFILE/deps`. Cargo gives shared objects to builds alone.
        let own = std::env::current_exe().unwrap();
        let target: PathBuf = own.ancestors().nth(3).unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "elver-sockets", "--target-dir"]).arg(&target);
        succeeded("cargo build", &build.current_dir(crate_dir).output().unwrap());
        // Whatever has the one of an earlier run mapped keeps it.
        let _ = fs::remove_file(dir.join("sockets.so"));
        fs::copy(target.join("debug/libelver_sockets.so"), dir.join("sockets.so")).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(dir.join("program"));
        compile.arg(crate_dir.join("tests/all/program.c"));
        succeeded("cc", &compile.output().unwrap());
        dir
    })
    .as_path()
}

/// The C program.
pub fn program() -> String {
    made().join("program").to_str().unwrap().to_string()
}

/// A node, and what the programs beside it say.
pub struct Host {
    node: Option<TestNode>,
    is_hasty: bool,
    dir: tempfile::TempDir,
}

impl Host {
    pub fn new(group: u8) -> Host {
        Host::with(PLACE.config(group, 1))
    }

    /// One whose node has room for so many regions in a session.
    pub fn small(group: u8, regions: u32) -> Host {
        let mut config = PLACE.config(group, 1);
        config.quota.session_mrs = regions;
        Host::with(config)
    }

    fn with(config: Config) -> Host {
        let node = TestNode::start(config);
        Host { node: Some(node), is_hasty: false, dir: tempfile::tempdir().unwrap() }
    }

    /// A host that has none.
    pub fn without_node() -> Host {
        Host { node: None, is_hasty: false, dir: tempfile::tempdir().unwrap() }
    }

    /// One on which the ends of a connection wait for each other for a second alone, as they do unless they are told
    /// otherwise: for a test of what is when they have waited.
    pub fn hasty(group: u8) -> Host {
        Host { is_hasty: true, ..Host::new(group) }
    }

    /// The node is gone.
    pub fn kill_node(&mut self) {
        self.node = None;
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The node's socket.
    pub fn node_path(&self) -> PathBuf {
        self.node.as_ref().map_or(self.dir().join("none"), |node| node.path.clone())
    }

    /// The port at which a process takes streams, when it does.
    pub fn stream_port(&self, process: &str) -> u16 {
        let node = self.node.as_ref().unwrap();
        wait_for("the process to take streams", || {
            let status = node.thread.status().unwrap();
            let session = status.sessions.iter().find(|it| it.pid.to_string() == process)?.client;
            status.vqps.iter().filter(|vqp| vqp.client == session).find_map(|vqp| vqp.bound)
        })
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// What all processes have said of their connections.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Lines with a text.
    pub fn lines(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Bytes that went by streams, as both their ends say.
    pub fn bytes(&self) -> u64 {
        let number = |line: &str| {
            let rest = line.split_once("ended: read ")?.1;
            let written = rest.split_once("and written ")?.1;
            let first = |text: &str| text.split(' ').next()?.parse::<u64>().ok();
            Some(first(rest)? + first(written)?)
        };
        self.log().lines().filter_map(number).sum()
    }

    /// A program with the library.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.plain(words);
        let socket = self.node_path();
        // The C library's own `timeout` needs no streams, and hands them on.
        command.env("LD_PRELOAD", made().join("sockets.so")).env("ELVER_SOCKET", socket);
        command.env("ELVER_STREAMS_LOG", self.log_path());
        if !self.is_hasty {
            // Who had no core for a second stays with TCP.
            command.env("ELVER_STREAMS_PATIENCE_MS", "30000");
        }
        command
    }

    /// A program without it.
    pub fn plain(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT]).args(words).current_dir(self.dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, words: &[&str]) -> String {
        succeeded(&words.join(" "), &self.command(words).output().unwrap())
    }

    /// Starts a server, and waits until it listens.
    pub fn serve(&self, words: &[&str], port: u16) -> Server {
        Server::start(self.command(words), port)
    }
}

/// A server, which ends with this.
pub struct Server(Child);

impl Server {
    pub fn start(mut command: Command, port: u16) -> Server {
        let mut child = command.spawn().unwrap();
        wait_for("the server to listen", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            is_listened_at(port).then_some(())
        });
        Server(child)
    }

    /// The program's process: its parent is `timeout`.
    pub fn process(&self) -> String {
        let pid = self.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap().trim().to_string()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process()]).status().unwrap();
        assert!(sent.success());
    }

    /// Asks it to end, and waits until it has.
    pub fn end(self) {
        self.signal("-TERM");
        self.wait();
    }

    /// Kills it.
    pub fn kill(self) {
        self.signal("-KILL");
        self.wait();
    }

    /// Waits until it has ended by itself, well.
    pub fn ends(self) {
        self.said();
    }

    /// As [`Server::ends`]; what it said.
    pub fn said(mut self) -> String {
        let (mut said, mut complaint) = (String::new(), String::new());
        self.0.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        self.0.stderr.as_mut().unwrap().read_to_string(&mut complaint).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the server ended with {status}: {complaint}");
        said
    }

    /// Waits until it has ended, well or not.
    pub fn wait(mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `timeout` hands it on; it may have ended.
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).output();
        let _ = self.0.wait();
    }
}

fn is_listened_at(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(format!("/proc/self/net/{file}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace();
            let (local, state) = (words.nth(1), words.nth(1));
            state == Some("0A") && local.is_some_and(|local| local.ends_with(&wanted))
        })
    })
}

/// A port that nobody listens at: below those that the system gives to who connects, which might get it before it is
/// listened at.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..1_000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed)).find(free).expect("a free port")
}

pub fn succeeded(what: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{said}\n{complaint}", output.status);
    said
}

/// Whether programs are installed; says which is not. Where all have to be (`ELVER_TEST_SKIPS_NOTHING`), fails.
pub fn are_there(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs.iter().find(|program| {
        let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
        !places.any(|place| place.join(program).is_file())
    });
    if let Some(missing) = missing {
        let skips = std::env::var_os("ELVER_TEST_SKIPS_NOTHING").is_none();
        assert!(skips, "{missing} is not installed, and ELVER_TEST_SKIPS_NOTHING is set");
        // Past what the test harness keeps to itself.
        let _ = writeln!(std::io::stderr(), "skipped: {missing} is not installed");
    }
    missing.is_none()
}
