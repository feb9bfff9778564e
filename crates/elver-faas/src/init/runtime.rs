//! An INIT process: a runtime that has been started, and may fork.

use std::collections::BTreeSet;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};

use super::event::Event;
use super::relay;
use crate::config::RuntimeKind;
use crate::protocol::{
    CODE, MODULE, NODE_SOCKET, PROGRAMS, RuntimeOrder, SOCKETS, Spawn, api_socket, receive, send,
};

/// How long an order to a runtime may take. One that does not read is at fault, and is told no more.
const ORDER_MAX: Duration = Duration::from_millis(100);

/// A runtime.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) pid: Pid,
    pub(super) function: String,
    pub(super) connections: BTreeSet<String>,
    orders: Option<UnixStream>,
}

impl Runtime {
    /// Starts it, and hears its reports.
    pub(super) fn start(spawn: &Spawn, events: &Sender<Event>) -> io::Result<Runtime> {
        let mut command = command(spawn)?;
        let orders = if spawn.runtime.forks() {
            let (ours, its) = UnixStream::pair()?;
            command.stdin(OwnedFd::from(its));
            Some(ours)
        } else {
            command.stdin(Stdio::null());
            None
        };
        let child = command.process_group(0).spawn()?;
        let pid = Pid::from_child(&child);
        let memory = Rlimit { current: Some(spawn.memory_max), maximum: Some(spawn.memory_max) };
        // One that has ended already needs no limit.
        let _ = prlimit(Some(pid), Resource::As, memory);
        if let Some(orders) = &orders {
            orders.set_write_timeout(Some(ORDER_MAX))?;
            let mut reports = BufReader::new(orders.try_clone()?);
            let (process, events) = (spawn.process, events.clone());
            let listen = move || {
                while let Ok(Some(report)) = receive(&mut reports) {
                    if events.send(Event::Runtime(process, report)).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("reports".into()).spawn(listen)?;
        }
        let function = spawn.function.clone();
        Ok(Runtime { pid, function, connections: BTreeSet::new(), orders })
    }

    /// Whether the runtime connects to its destinations itself.
    pub(super) fn connects(spawn: &Spawn) -> bool {
        match spawn.runtime {
            RuntimeKind::Python | RuntimeKind::Awslambdaric => {
                Path::new(PROGRAMS).join(MODULE).exists()
            }
            RuntimeKind::Native => true,
            RuntimeKind::Program => false,
        }
    }

    /// Orders it something.
    pub(super) fn order(&mut self, order: &RuntimeOrder) -> io::Result<()> {
        let Some(orders) = &mut self.orders else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is none that forks"));
        };
        let sent = send(orders, order);
        if sent.is_err() {
            // Half a line may stand there.
            self.orders = None;
        }
        sent
    }
}

/// Kills a runtime and all of its processes that did not leave its group.
pub(super) fn kill_group(pid: Pid) {
    // There may be none left.
    let _ = kill_process_group(pid, Signal::KILL);
}

fn command(spawn: &Spawn) -> io::Result<Command> {
    let code = Path::new(CODE).join(&spawn.function);
    let socket: PathBuf = Path::new(SOCKETS).join(api_socket(spawn.process));
    let mut command = match spawn.runtime {
        RuntimeKind::Native => Command::new(code.join(&spawn.handler)),
        RuntimeKind::Program => {
            let program = code.join(&spawn.handler);
            // What is not there is told here, and not by another program.
            std::fs::metadata(&program)?;
            let mut command = Command::new(Path::new(PROGRAMS).join("elver-init"));
            command.arg("keep").arg(program);
            command
        }
        RuntimeKind::Python | RuntimeKind::Awslambdaric => {
            let mut command = Command::new(&spawn.python);
            command.args(["-X", "utf8"]).arg(Path::new(PROGRAMS).join("bootstrap.py"));
            command
        }
    };
    if matches!(spawn.runtime, RuntimeKind::Awslambdaric | RuntimeKind::Program) {
        command.env("AWS_LAMBDA_RUNTIME_API", relay::start(socket.clone())?.to_string());
    }
    let initialization = match spawn.runtime {
        RuntimeKind::Awslambdaric => "snap-start",
        RuntimeKind::Python | RuntimeKind::Native | RuntimeKind::Program => "on-demand",
    };
    let runtime = match spawn.runtime {
        RuntimeKind::Awslambdaric => "awslambdaric",
        RuntimeKind::Python | RuntimeKind::Native | RuntimeKind::Program => "python",
    };
    command
        .current_dir("/tmp")
        .env("LAMBDA_TASK_ROOT", &code)
        .env("_HANDLER", &spawn.handler)
        .env("AWS_LAMBDA_FUNCTION_NAME", &spawn.function)
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", (spawn.memory_max >> 20).to_string())
        .env("AWS_LAMBDA_INITIALIZATION_TYPE", initialization)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ELVER_API_SOCKET", &socket)
        .env("ELVER_SOCKET", NODE_SOCKET)
        .env("ELVER_DESTINATIONS", spawn.destinations.join(" "))
        .env("ELVER_SESSIONS", format!("{} {}", spawn.sessions, spawn.sessions_max))
        .env("ELVER_RUNTIME", runtime)
        .env("ELVER_FIRST", spawn.first.0.to_string())
        .envs(&spawn.environment);
    Ok(command)
}
