//! An INIT process: a runtime that has been started, and may fork.

use std::collections::BTreeSet;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use elver::Gid;
use rustix::fs::{Access, access};
use rustix::process::Pid;

use super::event::Event;
use super::log::say;
use super::reaper::Living;
use super::relay::{Relay, Relays};
use crate::config::RuntimeKind;
use crate::protocol::{
    CODE, MODULE, NODE_SOCKET, Order, PROGRAMS, REGION, RuntimeOrder, SOCKETS, Spawn, api_socket,
    receive, send,
};
use crate::schedule::RequestId;

/// How long an order to a runtime may take, which may have many forks to do before. One that does not read is at fault.
const ORDER_MAX: Duration = Duration::from_secs(1);

/// The program that Lambda starts in a function's directory.
const BOOTSTRAP: &str = "bootstrap";

/// A runtime.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) pid: Pid,
    pub(super) function: String,
    pub(super) connections: BTreeSet<Gid>,
    /// Whether it has said that it forks when it is told to.
    pub(super) takes_orders: bool,
    /// Whether it has said that it has threads, and runs requests itself.
    pub(super) has_threads: bool,
    /// Requests that it was told to fork for, whose children have not ended; or with which it is not done itself.
    pub(super) children: BTreeSet<RequestId>,
    /// Why it is being ended, if it is at fault.
    pub(super) fault: Option<String>,
    orders: Option<UnixStream>,
    /// It ends with this.
    _relay: Option<Relay>,
}

impl Runtime {
    /// Starts it, and hears its reports.
    pub(super) fn start(
        spawn: &Spawn,
        events: &SyncSender<Event>,
        relays: &Relays,
        living: &Living,
    ) -> io::Result<Runtime> {
        let mut command = command(spawn)?;
        let relay = match spawn.runtime {
            RuntimeKind::Awslambdaric | RuntimeKind::Program | RuntimeKind::Provided => {
                let relay = relays.open(socket(spawn))?;
                command.env("AWS_LAMBDA_RUNTIME_API", relay.address.to_string());
                Some(relay)
            }
            RuntimeKind::Python | RuntimeKind::Native => None,
        };
        let orders = if spawn.runtime.forks() {
            let (ours, its) = UnixStream::pair()?;
            command.stdin(OwnedFd::from(its));
            Some(ours)
        } else {
            command.stdin(Stdio::null());
            None
        };
        // Nothing may fail behind its start: it would be there, and in no table.
        if let Some(orders) = &orders {
            orders.set_write_timeout(Some(ORDER_MAX))?;
            let mut reports = BufReader::new(orders.try_clone()?);
            let (process, events) = (spawn.process, events.clone());
            let listen = move || {
                loop {
                    let event = match receive(&mut reports) {
                        Ok(Some(report)) => Event::Runtime(process, report),
                        Ok(None) => return,
                        Err(error) => {
                            say(format_args!("what a runtime reports cannot be read: {error}"));
                            Event::Order(Order::KillProcess { process })
                        }
                    };
                    let is_last = matches!(event, Event::Order(_));
                    if events.send(event).is_err() || is_last {
                        return;
                    }
                }
            };
            thread::Builder::new().name("reports".into()).spawn(listen)?;
        }
        let pid = Pid::from_child(&living.start(command.process_group(0))?);
        let function = spawn.function.clone();
        Ok(Runtime {
            pid,
            function,
            connections: BTreeSet::new(),
            takes_orders: false,
            has_threads: false,
            // Lambda's own client has a child for the first one too.
            children: (spawn.runtime == RuntimeKind::Awslambdaric)
                .then_some(spawn.first)
                .into_iter()
                .collect(),
            fault: None,
            orders,
            _relay: relay,
        })
    }

    /// Whether the runtime connects to its destinations itself.
    pub(super) fn connects(spawn: &Spawn) -> bool {
        match spawn.runtime {
            RuntimeKind::Python | RuntimeKind::Awslambdaric => {
                Path::new(PROGRAMS).join(MODULE).exists()
            }
            RuntimeKind::Native => true,
            RuntimeKind::Program | RuntimeKind::Provided => false,
        }
    }

    /// One that runs, and is ordered over this.
    #[cfg(test)]
    pub(super) fn with_orders(pid: Pid, orders: UnixStream) -> io::Result<Runtime> {
        orders.set_write_timeout(Some(ORDER_MAX))?;
        Ok(Runtime {
            pid,
            function: "f".into(),
            connections: BTreeSet::new(),
            takes_orders: true,
            has_threads: false,
            children: BTreeSet::new(),
            fault: None,
            orders: Some(orders),
            _relay: None,
        })
    }

    /// Orders it something.
    pub(super) fn order(&mut self, order: &RuntimeOrder) -> io::Result<()> {
        let Some(orders) = &mut self.orders else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is none that forks"));
        };
        let sent = send(orders, order);
        if let (Ok(()), RuntimeOrder::Fork(request, _)) = (&sent, order) {
            self.children.insert(*request);
        }
        if sent.is_err() {
            // Half a line may stand there.
            self.orders = None;
        }
        sent
    }
}

fn socket(spawn: &Spawn) -> PathBuf {
    Path::new(SOCKETS).join(api_socket(spawn.process))
}

fn command(spawn: &Spawn) -> io::Result<Command> {
    let code = Path::new(CODE).join(&spawn.function);
    let (program, keeps) = match spawn.runtime {
        RuntimeKind::Native => (code.join(&spawn.handler), false),
        RuntimeKind::Program => (code.join(&spawn.handler), true),
        RuntimeKind::Provided => (code.join(BOOTSTRAP), true),
        RuntimeKind::Python | RuntimeKind::Awslambdaric => (spawn.python.clone(), false),
    };
    // What cannot be run is told here, and not by another program.
    access(&program, Access::EXEC_OK)
        .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))?;
    // Limits are set before the program's first instruction.
    let mut command = Command::new(Path::new(PROGRAMS).join("elver-init"));
    command.args(["start", &spawn.memory_max.to_string(), if keeps { "keep" } else { "leave" }]);
    command.arg(program);
    if matches!(spawn.runtime, RuntimeKind::Python | RuntimeKind::Awslambdaric) {
        command.args(["-X", "utf8"]).arg(Path::new(PROGRAMS).join("bootstrap.py"));
    }
    if matches!(spawn.runtime, RuntimeKind::Program | RuntimeKind::Provided) {
        // Each thread has an arena else, which takes 64 MB of what the process may map: few threads would have room.
        command.env("MALLOC_ARENA_MAX", "2");
    }
    let (initialization, runtime) = match spawn.runtime {
        RuntimeKind::Awslambdaric => ("snap-start", "awslambdaric"),
        RuntimeKind::Python
        | RuntimeKind::Native
        | RuntimeKind::Program
        | RuntimeKind::Provided => ("on-demand", "python"),
    };
    let destinations: Vec<_> = spawn.destinations.iter().map(Gid::to_string).collect();
    command
        // As at Lambda, whose functions open what they bring by its name.
        .current_dir(&code)
        .env("LAMBDA_TASK_ROOT", &code)
        .env("_HANDLER", &spawn.handler)
        .env("AWS_LAMBDA_FUNCTION_NAME", &spawn.function)
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .env("AWS_LAMBDA_LOG_GROUP_NAME", format!("/elver/{}", spawn.function))
        .env("AWS_LAMBDA_LOG_STREAM_NAME", spawn.process.0.to_string())
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", (spawn.memory_max >> 20).to_string())
        .env("AWS_LAMBDA_INITIALIZATION_TYPE", initialization)
        .env("AWS_REGION", REGION)
        .env("AWS_DEFAULT_REGION", REGION)
        .env("TZ", ":UTC")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(&spawn.environment)
        // A function's own do not stand in for what its runtime speaks with us by.
        .env("ELVER_API_SOCKET", socket(spawn))
        .env("ELVER_SOCKET", NODE_SOCKET)
        .env("ELVER_DESTINATIONS", destinations.join(" "))
        .env("ELVER_SESSIONS", format!("{} {}", spawn.sessions, spawn.sessions_max))
        .env("ELVER_UNASSIGNED", spawn.unassigned_qps.to_string())
        .env("ELVER_CONNECTIONS", spawn.connections.name())
        .env("ELVER_RUNTIME", runtime)
        .env("ELVER_FIRST", spawn.first.0.to_string());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;

    use super::*;
    use crate::config::Connections;
    use crate::schedule::ProcessId;

    /// A destination of its own there ended its process, and "shared" had it lease nothing.
    #[test]
    fn a_function_sets_variables_but_those_that_its_runtime_goes_by() {
        let others = BTreeMap::from([("OWN", "x"), ("TZ", "CET"), ("ELVER_OWN", "y")]);
        let mut spawn = Spawn {
            process: ProcessId(7),
            first: RequestId(8),
            function: "f".into(),
            runtime: RuntimeKind::Python,
            handler: "module.function".into(),
            python: "/bin/sh".into(),
            destinations: vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()],
            sessions: 4,
            sessions_max: 16,
            unassigned_qps: 2,
            connections: Connections::Leased,
            environment: BTreeMap::new(),
            memory_max: 1 << 30,
        };
        let variables = |spawn: &Spawn| -> BTreeMap<String, String> {
            let command = command(spawn).unwrap();
            let text = |text: &OsStr| text.to_str().unwrap().to_string();
            command.get_envs().map(|(name, value)| (text(name), text(value.unwrap()))).collect()
        };
        let mut expected = variables(&spawn);
        assert_eq!(expected["ELVER_DESTINATIONS"], "10.0.0.1 fe80::1");
        let of_ours = expected.keys().filter(|name| name.starts_with("ELVER_"));
        spawn.environment = of_ours.map(|name| (name.clone(), "nowhere".into())).collect();
        assert_eq!(spawn.environment.len(), 8);
        let owned = others.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        spawn.environment.extend(owned.clone());
        expected.extend(owned);
        assert_eq!(variables(&spawn), expected);
    }
}
