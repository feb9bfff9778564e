//! The built daemon, as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use elver_node::Status;
use elver_verbs::{RemoteAddr, WcStatus};
use rustix::process::{Pid, Signal, kill_process};

use super::{Client, Region, free_address, gid, wait_for};

/// Tests that run now: many, or one that has the machine for itself.
static RUNNING: RwLock<()> = RwLock::new(());

/// A directory of a test's own; it goes with the value.
pub struct Directory {
    pub path: PathBuf,
    _beside: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
}

impl Directory {
    pub fn new() -> Directory {
        // A test that failed leaves nothing behind that others mind.
        let beside = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
        Directory { path: Directory::make(), _beside: Some(beside), _alone: None }
    }

    /// Of a test that changes or loads the machine: no other runs while it is there.
    pub fn alone() -> Directory {
        let alone = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
        Directory { path: Directory::make(), _beside: None, _alone: Some(alone) }
    }

    fn make() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("elverd-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Writes a file in it.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A command that runs the daemon, without anything of the environment's that concerns it.
pub fn elverd() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_elverd")))
}

pub fn clean(mut command: Command) -> Command {
    for name in [
        "ELVER_SOCKET",
        "LISTEN_PID",
        "LISTEN_FDS",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
    ] {
        command.env_remove(name);
    }
    command
}

/// The configuration of a test's daemon: ports that are free, leases that end soon.
pub fn toml(address: &str, socket: &Path, meta: &str) -> String {
    format!(
        "node.address = \"{address}\"\nsocket.path = \"{}\"\nengine.spin_us = 20\n\
         memory.lease_ms = 50\nmetrics.listen = \"127.0.0.1:0\"\npool.timeout = 13\n\
         pool.retry_cnt = 7\n[meta]\nlisten = \"0.0.0.0:0\"\n{meta}\n",
        socket.display()
    )
}

/// A running daemon, killed when it is dropped.
pub struct Daemon {
    child: Child,
    pub address: String,
    pub socket: PathBuf,
    pub registry: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
}

impl Daemon {
    /// Starts one of a configuration file's content.
    pub fn start(directory: &Directory, name: &str, meta: &str) -> Daemon {
        let (address, socket) = (free_address(), directory.path.join(format!("{name}.sock")));
        let config = directory.file(&format!("{name}.toml"), &toml(&address, &socket, meta));
        let mut command = elverd();
        command.arg("--config").arg(config);
        Daemon::run(command)
    }

    /// Runs a command that becomes a daemon, until that is ready.
    pub fn run(mut command: Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let field = |name: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{name} in {line:?}")).to_string()
        };
        assert!(line.starts_with("elverd ready "), "{line:?}");
        Daemon {
            child,
            address: field("address="),
            socket: PathBuf::from(field("socket=")),
            registry: field("registry=").parse().ok(),
            metrics: field("metrics=").parse().ok(),
        }
    }

    pub fn status(&self) -> Status {
        let mut path = self.socket.clone().into_os_string();
        path.push(".status");
        let mut text = String::new();
        UnixStream::connect(path).unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }

    /// What it answers to an HTTP request.
    pub fn http(&self, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(self.metrics.unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Files that its process has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Its process's number, and that of its engine's thread.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the daemon to end", || self.child.try_wait().unwrap())
    }

    /// What it writes to its standard error, if that was asked for.
    pub fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    pub fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        wait_for("the daemon to end", || self.child.try_wait().unwrap())
    }

    /// Waits until it stands in the tables of so many meta servers.
    pub fn registered(&self, servers: u32) {
        wait_for("registration", || (self.status().registered == servers).then_some(()));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of a daemon that works, to show that others do it no harm.
pub struct Witness {
    pub client: Client,
    pub region: Region,
    pub vqp: u32,
}

impl Witness {
    pub fn new(daemon: &Daemon) -> Witness {
        let mut client = Client::connect(&daemon.socket).unwrap();
        let (region, vqp) = (client.alloc(64).unwrap(), client.create());
        client.qconnect(vqp, gid(&daemon.address), 0).unwrap();
        Witness { client, region, vqp }
    }

    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.region.addr, rkey: self.region.rkey }
    }

    pub fn works(&mut self) {
        self.client.read(self.vqp, &self.region, 8, 8, self.remote());
        assert_eq!(self.client.completion().status, WcStatus::Success);
    }
}
