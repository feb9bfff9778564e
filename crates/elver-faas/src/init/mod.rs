//! `elver-init`, the first process of a function's container: it starts runtimes as INIT processes, has
//! them fork, reaps all that ends, and tells the orchestrator.
//!
//! One thread has all state. Others wait, and tell it what they saw: for orders, for the ends of
//! processes, for a runtime's reports, for the node.

mod connect;
mod control;
mod event;
mod log;
mod reaper;
mod relay;
mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, Sender, SyncSender};

use crate::protocol::{
    CHILDREN_MAX, CONNECTIONS_MAX, Order, Report, RuntimeOrder, RuntimeReport, SOCKETS, Spawn, send,
};
use crate::schedule::{Found, ProcessId};
use elver::Gid;
use event::Event;
use log::say;
use reaper::Living;
use relay::Relays;
use runtime::Runtime;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, set_child_subreaper, set_dumpable_behavior, setrlimit,
};

/// What threads have told that is not done yet; a runtime that tells faster than that waits.
const EVENTS_MAX: usize = 256;

/// How much is told of why something ended, in bytes.
const REASON_MAX: usize = 2000;

/// Becomes a program, in place of this one: it may map so many bytes of memory, and if it `keeps`, what its processes
/// leave becomes its own.
///
/// # Errors
/// What the system says of it; else it does not return.
pub fn become_program(
    memory_max: u64,
    keeps: bool,
    program: &OsStr,
    arguments: &[OsString],
) -> std::io::Result<Infallible> {
    if keeps {
        set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    let memory = Rlimit { current: Some(memory_max), maximum: Some(memory_max) };
    setrlimit(Resource::As, memory)?;
    Err(Command::new(program).args(arguments).exec())
}

/// Serves as the first process of a container. It ends only with the container.
///
/// # Errors
/// What the system says of threads that cannot be made.
pub fn run() -> std::io::Result<()> {
    // Functions run as the same user, and could reach into this process's files and memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    log::start()?;
    let (events, seen) = mpsc::sync_channel(EVENTS_MAX);
    let sockets = Path::new(SOCKETS);
    control::start(sockets, events.clone())?;
    let living = Living::default();
    let reaper = reaper::start(events.clone(), living.clone())?;
    let relays = Relays::start()?;
    let processes = BTreeMap::new();
    let mut init = Init { orchestrator: None, processes, living, events, reaper, relays };
    for event in seen {
        init.handle(event);
    }
    Ok(())
}

struct Init {
    orchestrator: Option<UnixStream>,
    processes: BTreeMap<ProcessId, Runtime>,
    living: Living,
    events: SyncSender<Event>,
    reaper: Sender<()>,
    relays: Relays,
}

impl Init {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Orchestrator(stream) => {
                self.orchestrator = Some(stream);
                let row = |(id, runtime): (&ProcessId, &Runtime)| Found {
                    process: *id,
                    function: runtime.function.clone(),
                    connections: runtime.connections.clone(),
                    takes_orders: runtime.takes_orders,
                    has_threads: runtime.has_threads,
                    children: runtime.children.iter().take(CHILDREN_MAX).copied().collect(),
                };
                let processes = self.processes.iter().map(row).collect();
                self.tell(&Report::Hello { processes });
            }
            Event::Order(order) => self.obey(order),
            Event::Reaped(pid, why) => {
                let ended = self.processes.iter().find(|(_, runtime)| runtime.pid == pid);
                let ended = ended.map(|(id, _)| *id);
                let runtime = ended.and_then(|process| self.processes.remove(&process));
                if let Err(error) = self.living.end_others() {
                    say(format_args!("cannot look for what was left: {error}"));
                }
                if let Some(process) = ended {
                    let why = runtime.and_then(|runtime| runtime.fault).unwrap_or(why);
                    self.tell(&Report::ProcessEnded { process, why });
                }
            }
            Event::Runtime(process, RuntimeReport::Ended(request, why)) => {
                if let Some(runtime) = self.processes.get_mut(&process) {
                    runtime.children.remove(&request);
                }
                self.tell(&Report::ChildEnded { process, request, why: short(&why) });
            }
            Event::Runtime(process, RuntimeReport::Lost(request, why)) => {
                self.tell(&Report::RequestLost { process, request, why: short(&why) });
            }
            Event::Runtime(process, RuntimeReport::HasThreads) => {
                if let Some(runtime) = self.processes.get_mut(&process) {
                    runtime.has_threads = true;
                }
                self.tell(&Report::HasThreads { process });
            }
            Event::Runtime(process, RuntimeReport::Serving) => {
                if let Some(runtime) = self.processes.get_mut(&process) {
                    runtime.takes_orders = true;
                }
            }
            Event::Runtime(process, RuntimeReport::Connected(connections)) => {
                // The handler can write there too, of any length and as often as it likes.
                let gids = connections.iter().filter_map(|text| text.parse::<Gid>().ok());
                self.connected(process, gids.take(CONNECTIONS_MAX).collect());
            }
            Event::Connected(process, connections) => self.connected(process, connections),
        }
    }

    fn connected(&mut self, process: ProcessId, connections: BTreeSet<Gid>) {
        if let Some(runtime) = self.processes.get_mut(&process)
            && runtime.connections != connections
        {
            runtime.connections = connections.clone();
            self.tell(&Report::Connected { process, connections });
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Spawn(spawn) => self.spawn(&spawn),
            Order::Fork { process, request, destinations } => {
                if self.processes.contains_key(&process) {
                    self.order(process, &RuntimeOrder::Fork(request, destinations));
                } else {
                    let why = "its INIT process has ended".into();
                    self.tell(&Report::ChildEnded { process, request, why });
                }
            }
            Order::KillChild { process, request } => {
                self.order(process, &RuntimeOrder::Kill(request));
            }
            Order::KillProcess { process } => {
                if let Some(runtime) = self.processes.get(&process) {
                    self.living.kill(runtime.pid);
                }
            }
        }
    }

    /// Orders a runtime something. One that does not take it is ended, with the requests that it has: it would take none of
    /// the orders that come either.
    fn order(&mut self, process: ProcessId, order: &RuntimeOrder) {
        let Some(runtime) = self.processes.get_mut(&process) else { return };
        if let Err(error) = runtime.order(order) {
            let why = format!("its INIT process takes no orders: {error}");
            say(format_args!("{}: {why}", runtime.function));
            runtime.fault = Some(why);
            self.living.kill(runtime.pid);
        }
    }

    fn spawn(&mut self, spawn: &Spawn) {
        let process = spawn.process;
        match Runtime::start(spawn, &self.events, &self.relays, &self.living) {
            Ok(runtime) => {
                self.processes.insert(process, runtime);
                // It may be gone only if this thread is.
                let _ = self.reaper.send(());
                let told = (!Runtime::connects(spawn)).then(|| self.events.clone());
                connect::start(process, &spawn.destinations, told);
            }
            Err(error) => {
                let why = format!("cannot start {}: {error}", spawn.handler);
                self.tell(&Report::ProcessEnded { process, why });
            }
        }
    }

    /// Tells the orchestrator. While there is none, nobody is told: its follower asks for all there is.
    fn tell(&mut self, report: &Report) {
        if let Some(stream) = &mut self.orchestrator
            && send(stream, report).is_err()
        {
            self.orchestrator = None;
        }
    }
}

/// A reason that a runtime gave, which may be of any length.
fn short(why: &str) -> String {
    why[..why.floor_char_boundary(REASON_MAX)].into()
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;
    use crate::protocol::receive;
    use crate::schedule::RequestId;

    /// With one runtime, and where its reports come.
    fn init(process: ProcessId, runtime: Runtime) -> (Init, BufReader<UnixStream>) {
        let (orchestrator, reports) = UnixStream::pair().unwrap();
        let init = Init {
            orchestrator: Some(orchestrator),
            processes: [(process, runtime)].into(),
            living: Living::default(),
            events: mpsc::sync_channel(EVENTS_MAX).0,
            reaper: mpsc::channel().0,
            relays: Relays::start().unwrap(),
        };
        (init, BufReader::new(reports))
    }

    #[test]
    fn what_a_handler_says_for_its_runtime_has_a_bound() {
        let own = rustix::process::getpid();
        let (orders, _unread) = UnixStream::pair().unwrap();
        let process = ProcessId(7);
        let (mut init, mut reports) = init(process, Runtime::with_orders(own, orders).unwrap());
        let gids: BTreeSet<String> =
            ["10.0.0.2".into(), "::ffff:10.0.0.2".into(), "x".repeat(1 << 19)].into();
        for _ in 0..1000 {
            let connected = RuntimeReport::Connected(gids.clone());
            init.handle(Event::Runtime(process, connected));
        }
        let why = "\u{e9}".repeat(1 << 18);
        init.handle(Event::Runtime(process, RuntimeReport::Ended(RequestId(1), why)));
        drop(init);
        let connections = BTreeSet::from(["10.0.0.2".parse().unwrap()]);
        let expected = Report::Connected { process, connections };
        assert_eq!(receive(&mut reports).unwrap(), Some(expected));
        match receive(&mut reports).unwrap() {
            Some(Report::ChildEnded { why, .. }) => assert_eq!(why.len(), REASON_MAX),
            other => panic!("{other:?}"),
        }
        assert_eq!(receive::<Report>(&mut reports).unwrap(), None);
    }

    #[test]
    fn a_runtime_that_takes_no_orders_is_ended() {
        let living = Living::default();
        let mut sleeping = Command::new("sleep");
        let mut sleeping = living.start(sleeping.arg("1000").process_group(0)).unwrap();
        let (orders, _unread) = UnixStream::pair().unwrap();
        let pid = rustix::process::Pid::from_child(&sleeping);
        let process = ProcessId(7);
        let (mut init, mut reports) = init(process, Runtime::with_orders(pid, orders).unwrap());
        init.living = living;
        let destinations: BTreeSet<Gid> =
            (0..CONNECTIONS_MAX).map(|n| Gid([n as u8; 16])).collect();
        // More than any socket holds.
        let request = (0..100_000).map(RequestId).find(|request| {
            let (request, destinations) = (*request, destinations.clone());
            init.handle(Event::Order(Order::Fork { process, request, destinations }));
            init.processes[&process].fault.is_some()
        });
        assert!(request.is_some());
        let status = std::os::unix::process::ExitStatusExt::signal(&sleeping.wait().unwrap());
        assert_eq!(status, Some(rustix::process::Signal::KILL.as_raw()));
        init.handle(Event::Reaped(pid, "signal 9".into()));
        drop(init);
        // Its requests fail with it, and no other is placed on it meanwhile.
        match receive(&mut reports).unwrap() {
            Some(Report::ProcessEnded { process: of, why }) => {
                assert_eq!(of, process);
                assert!(why.contains("takes no orders"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
}
