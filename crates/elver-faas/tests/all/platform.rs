//! An orchestrator in a process of its own, with functions of owners that no other test has.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use elver_faas::client::{self, ClientError, Invoked, Listing};
use elver_faas::schedule::Start;
use elver_testkit::{Examples, wait_for};
use serde_json::Value;
use tempfile::TempDir;

pub static EXAMPLES: Examples = Examples::new("elver-faas", env!("CARGO_MANIFEST_DIR"), "");

/// The handlers of most tests.
const HANDLERS: &str = r#"
import os, signal, socket, sys, time
CALLS = 0

def echo(event, context):
    global CALLS
    CALLS += 1
    return {"event": event, "pid": os.getpid(), "calls": CALLS, "start": context.start}

def fails(event, context):
    raise ValueError(f"no {event}")

def hangs(event, context):
    if event == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    return "here"

def crashes(event, context):
    if event == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    return "here"

def large(event, context):
    return "x" * event

def cuts(event, context):
    """Loses its connection to the platform while it works."""
    if event == "cut":
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as s:
                        s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
    return "here"

def answers(event, context):
    """Answers by itself, and goes on."""
    if event is None:
        return "here"
    import http.client
    api = http.client.HTTPConnection("x")
    api.sock = socket.socket(socket.AF_UNIX)
    api.sock.connect(os.environ["ELVER_API_SOCKET"])
    path = f"/2018-06-01/runtime/invocation/{context.aws_request_id}/response"
    api.request("POST", path, '"by itself"')
    api.getresponse().read()
    while True:
        time.sleep(1)

def deaf(event, context):
    """Has other use for the signals of children's ends."""
    if event == "deafen":
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if event == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return "here"

POOL = None
def pools(event, context):
    """Has threads that stay."""
    global POOL
    if POOL is None:
        from concurrent.futures import ThreadPoolExecutor
        POOL = ThreadPoolExecutor(2)
    return [POOL.submit(lambda: event).result(), os.getpid()]

def takes(event, context):
    """Asks for whatever request there is, as Lambda's clients do."""
    import http.client
    api = http.client.HTTPConnection("x")
    api.sock = socket.socket(socket.AF_UNIX)
    api.sock.connect(os.environ["ELVER_API_SOCKET"])
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    return api.getresponse().status

def floods(event, context):
    """Has its platform take what is no answer of its."""
    import http.client
    path = "/2018-06-01/runtime/" + event
    api = http.client.HTTPConnection("x")
    api.sock = socket.socket(socket.AF_UNIX)
    api.sock.connect(os.environ["ELVER_API_SOCKET"])
    api.putrequest("POST", path)
    api.putheader("Content-Length", str(6 << 20))
    api.endheaders()
    # The answer comes without the body.
    answer = api.getresponse()
    return [answer.status, answer.headers["Connection"]]

def stops(event, context):
    """Stops its INIT process, which takes no orders then."""
    if event == "stop":
        os.kill(os.getppid(), signal.SIGSTOP)
    return "here"

def poses(event, context):
    """Wants to be taken for its container's first process."""
    if event == "pose":
        print("it poses", flush=True)
    while event == "pose":
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect("/run/elver/faas/control.sock")
                s.sendall(b'{"hello":{"processes":[]}}\n')
                s.recv(1)
        except OSError:
            pass
    return "here"

def moves(event, context):
    """Goes to another group of processes, and hangs."""
    if event == "hang":
        other = os.fork()
        if other == 0:
            os.setpgid(0, 0)
            time.sleep(1000)
        while os.getpgid(other) != other:
            time.sleep(0.01)
        os.setpgid(0, other)
        time.sleep(1000)
    return "here"

def prints(event, context):
    for _ in range(event or 0):
        print("x" * (1 << 20), flush=True)
    print("the last line")
    return "here"

def buffers(event, context):
    """Leaves output in buffers, in the process that is forked afterwards too."""
    import ctypes
    sys.stdout.reconfigure(line_buffering=False, write_through=False)
    sys.stdout.write(f"<python {event}>")
    ctypes.CDLL(None).printf(f"<c {event}>".encode())
    return "here"

def remembers(event, context):
    files = [os.memfd_create("large") for _ in range(event // 16)]
    for file in files:
        for _ in range(16):
            os.write(file, b"x" * (1 << 20))
    return sum(os.fstat(file).st_size for file in files)

def limits(event, context):
    import resource
    return resource.getrlimit(resource.RLIMIT_AS)

def bomb(event, context):
    forked = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(1000)
            forked += 1
    except OSError as error:
        if event == "hold":
            time.sleep(1000)
        return {"forked": forked, "said": str(error)}

def leaves(event, context):
    # As a daemon does: another session, and no parent that is left.
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.waitpid(between, 0)
    if event == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return processes()

def processes():
    return sum(name.isdigit() for name in os.listdir("/proc"))

def pretends(event, context):
    """Wants to be another process, or its container's first."""
    import http.client
    def connects(path):
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
            return True
        except OSError:
            return False
    sockets = "/run/elver/faas/"
    api = http.client.HTTPConnection("x")
    api.sock = socket.socket(socket.AF_UNIX)
    api.sock.connect(os.environ["ELVER_API_SOCKET"])
    def ask(method, path, headers={}, body=None):
        api.request(method, "/2018-06-01/runtime/invocation/" + path, body, headers)
        answer = api.getresponse()
        answer.read()
        return answer.status
    own = context.aws_request_id
    other = own[:-12] + format(int(own[-12:], 16) + event, "012x")
    return {
        "control": connects(sockets + "control.sock"),
        "sockets": sorted(os.listdir(sockets)),
        "next": ask("GET", "next", {"Elver-Request": str(int(own[-12:], 16) + event)}),
        "response": ask("POST", other + "/response", {}, "1"),
    }

def reaches(event, context):
    """Which calls of the system it is refused, and with what; by number, as x86-64 has them."""
    import ctypes, errno, threading
    threading.Thread(target=lambda: None).start()
    system = ctypes.CDLL(None, use_errno=True).syscall
    calls = {
        "unshare": (272, 0x10000000), "clone": (56, 0x10000000 | 17), "clone3": (435, 0, 0), "keyctl": (250, 0, -3, 0),
        "io_uring_setup": (425, 1, 0), "bpf": (321, 0, 0, 0), "userfaultfd": (323, 1), "setns": (308, -1, 0),
    }
    refused = {}
    for name, numbers in calls.items():
        result = system(*map(ctypes.c_long, numbers))
        if result == 0 and name == "clone":
            os._exit(0)
        refused[name] = errno.errorcode[ctypes.get_errno()] if result < 0 else result
    return refused

def look(event, context):
    def attempt(path):
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            return str(error)
    def write(path):
        try:
            open(path, "w").close()
            return True
        except OSError:
            return False
    status = dict(line.split() for line in open("/proc/self/status") if line.startswith("Cap"))
    return {
        "scratch": write("/tmp/x"),
        "users": " ".join(open("/proc/self/uid_map").read().split()),
        "uid": os.getuid(), "code": attempt("/var/task"), "sockets": attempt("/run/elver/faas"),
        "run": attempt("/run/elver"), "capabilities": status["CapBnd:"] + status["CapEff:"],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "written": [path for path in ("/x", "/usr/x", "/var/task/x", "/run/elver/faas/x") if write(path)],
    }
"#;

/// A running orchestrator. All that it made is ended when this is dropped.
pub struct Platform {
    pub directory: TempDir,
    process: Child,
}

impl Platform {
    /// With functions in TOML, whose code `@CODE@` is; lines for `[platform]` come before.
    pub fn start(platform: &str, owners_and_functions: &str) -> Platform {
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_root, "containers are made as root here: use `cargo xtask test`");
        let directory = tempfile::tempdir().unwrap();
        let code = directory.path().join("code");
        std::fs::create_dir(&code).unwrap();
        std::fs::set_permissions(&code, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(code.join("handlers.py"), HANDLERS).unwrap();
        let state = directory.path().join("state");
        // Some leave requests that hang; and a machine that runs all tests may take its time to start one.
        let else_has = |key: &str, line| if platform.contains(key) { "" } else { line };
        let (drain, patience) = (
            else_has("drain_s", "drain_s = 0\n"),
            else_has("init_timeout_s", "init_timeout_s = 60\n"),
        );
        let text = format!(
            "[platform]\nstate = {state:?}\n{drain}{patience}{platform}\n{owners_and_functions}"
        );
        let text = text.replace("@CODE@", code.to_str().unwrap());
        std::fs::write(directory.path().join("config.toml"), text).unwrap();
        let process = launch(directory.path());
        Platform { directory, process }
    }

    pub fn code(&self) -> PathBuf {
        self.directory.path().join("code")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("state/front.sock")
    }

    pub fn invoke(&self, function: &str, event: Value) -> Result<Invoked, ClientError> {
        client::invoke(&self.socket(), function, event.to_string().into_bytes())
    }

    /// Invokes one, for a request that wants connections beside the function's destinations.
    pub fn invoke_towards(
        &self,
        function: &str,
        destinations: &[String],
        event: Value,
    ) -> Result<Invoked, ClientError> {
        let event = event.to_string().into_bytes();
        client::invoke_towards(&self.socket(), function, destinations, event)
    }

    /// The start of a request that its function answers without an error, and the answer.
    pub fn answer(&self, function: &str, event: Value) -> (Start, Value) {
        let invoked =
            self.invoke(function, event).unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        let answer = serde_json::from_slice(&invoked.body).unwrap();
        assert!(!invoked.is_error, "{answer}");
        (invoked.start, answer)
    }

    /// Why a request has no answer: the kind, and what is said.
    pub fn refusal(&self, function: &str, event: Value) -> (String, String) {
        match self.invoke(function, event).unwrap_err() {
            ClientError::Refused { kind, what } => (kind, what),
            other => panic!("{other}"),
        }
    }

    /// Asks from a thread, which gives the answer.
    pub fn invoke_beside(
        &self,
        function: &str,
        event: Value,
    ) -> JoinHandle<Result<Invoked, ClientError>> {
        let (socket, function) = (self.socket(), function.to_string());
        std::thread::spawn(move || {
            client::invoke(&socket, &function, event.to_string().into_bytes())
        })
    }

    /// The orchestrator's process.
    pub fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    pub fn list(&self) -> Listing {
        client::list(&self.socket()).unwrap()
    }

    /// Kills the orchestrator, so that it can end nothing.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Replaces something of its configuration, for when it is started again.
    pub fn configure(&self, from: &str, to: &str) {
        let path = self.directory.path().join("config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Starts it again after [`Platform::kill`].
    pub fn start_again(&mut self) {
        self.process = launch(self.directory.path());
    }

    /// Starts another one in the same directory, which fails; what it says.
    pub fn second(&self) -> String {
        let mut command = command(self.directory.path());
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Ends it as its user would, which leaves nothing.
    pub fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
        let left: Vec<_> = std::fs::read_dir(self.directory.path().join("state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// How many containers have a directory: their bundles, sockets and logs.
    pub fn containers(&self) -> usize {
        std::fs::read_dir(self.directory.path().join("state/containers")).unwrap().count()
    }

    /// What the containers wrote.
    pub fn logs(&self) -> String {
        let containers = std::fs::read_dir(self.directory.path().join("state/containers")).unwrap();
        containers
            .filter_map(|entry| {
                std::fs::read_to_string(entry.unwrap().path().join("private/log")).ok()
            })
            .collect()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
            if !std::thread::panicking() {
                return;
            }
            // Containers of an orchestrator that failed are found and ended by another one.
            self.process = launch(self.directory.path());
        }
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

fn launch(directory: &Path) -> Child {
    let mut process = command(directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("front.sock"), "the orchestrator did not start");
    process
}

fn command(directory: &Path) -> Command {
    let mut command = Command::new(EXAMPLES.program("orchestrator"));
    command.arg(directory.join("config.toml")).arg(env!("CARGO_BIN_EXE_elver-init"));
    command
}

/// An owner and functions of his, of the Python runtime.
pub fn python(owner: &str, uid: u32, functions: &[&str]) -> String {
    let mut text = format!("[owners.{owner}]\nuid = {uid}\n");
    for function in functions {
        text += &format!(
            "[functions.{owner}-{function}]\nowner = \"{owner}\"\ncode = \"@CODE@\"\nhandler = \"handlers.{function}\"\ntimeout_s = 20\n"
        );
    }
    text
}

/// Waits until a function's log has said, once, that children begin without a leased queue pair: by whose bounds that may be,
/// and which counters tell.
pub fn wait_until_told_of_no_room(platform: &Platform) {
    const SAID: &str = "children begin without a connection to";
    let is_it = |line: &&str| line.contains(SAID) && line.ends_with('\n');
    let said = || platform.logs().split_inclusive('\n').find(is_it).map(String::from);
    let said = wait_for("what the INIT process says", said);
    for part in [
        "at this node (transfer.leased_wrs_max; `elver status` counts leases_refused)",
        "for this account (its share of that, or quota.leased_wrs; leases_refused_user)",
        "for this node (the peer's transfer.leased_wrs_max; leases_refused_peer)",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(platform.logs().matches(SAID).count(), 1, "{}", platform.logs());
}

/// The host's processes of a user. One that has ended, and whose parent is another user's, is the host's to reap, whenever
/// that does: it is none of his any more.
pub fn processes_of(uid: u32) -> usize {
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let line = format!("\nUid:\t{uid}\t");
    let is_his = |pid: &str| {
        let Some(told) = status(pid).filter(|told| told.contains(&line)) else { return false };
        let parent = told.lines().find_map(|line| line.strip_prefix("PPid:\t"));
        let parent = parent.and_then(status);
        !told.contains("\nState:\tZ") || parent.is_none_or(|parent| parent.contains(&line))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().is_some_and(is_his))
        .count()
}

#[test]
fn what_its_parent_has_yet_to_reap_is_its_parents() {
    const UID: u32 = 62_243;
    let mut left = Command::new("true").uid(UID).spawn().unwrap();
    wait_for("it to end", || {
        let told = std::fs::read_to_string(format!("/proc/{}/status", left.id())).unwrap();
        told.contains("State:\tZ").then_some(())
    });
    assert_eq!(processes_of(UID), 0);
    left.wait().unwrap();
    // It has a child that has ended, and says so.
    const REAPS_NOTHING: &str = "import os, sys
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(flush=True)
sys.stdin.read()";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", REAPS_NOTHING]).uid(UID).current_dir("/");
    let mut parent = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert_eq!(processes_of(UID), 2);
    drop(parent.stdin.take());
    assert!(parent.wait().unwrap().success());
    assert_eq!(processes_of(UID), 0);
}

/// Sends a signal to the first process of a user's container.
pub fn signal_first(uid: u32, signal: rustix::process::Signal) {
    let line = format!("\nUid:\t{uid}\t");
    let is_it = |pid: &i32| {
        let told = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        told.starts_with("Name:\telver-init\n") && told.contains(&line)
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let first: Vec<i32> = pids.filter(is_it).collect();
    let [first] = first[..] else { panic!("user {uid} has as first processes {first:?}") };
    rustix::process::kill_process(rustix::process::Pid::from_raw(first).unwrap(), signal).unwrap();
}

/// Waits until a user has so many processes.
pub fn wait_for_processes(uid: u32, wanted: usize) {
    wait_for("processes to end", || (processes_of(uid) == wanted).then_some(()));
}
