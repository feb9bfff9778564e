//! `elver-init`, the first process of a function's container: it starts runtimes as INIT processes, has
//! them fork, reaps all that ends, and tells the orchestrator.
//!
//! One thread has all state. Others wait, and tell it what they saw: for orders, for the ends of
//! processes, for a runtime's reports, for the node.

mod connect;
mod control;
mod event;
mod reaper;
mod relay;
mod runtime;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use crate::protocol::{Order, Report, RuntimeOrder, RuntimeReport, SOCKETS, Spawn, send};
use crate::schedule::ProcessId;
use event::Event;
use runtime::Runtime;

/// Serves as the first process of a container. It ends only with the container.
///
/// # Errors
/// What the system says of threads that cannot be made.
pub fn run() -> std::io::Result<()> {
    let (events, seen) = mpsc::channel();
    let sockets = Path::new(SOCKETS);
    control::start(sockets, events.clone())?;
    let reaper = reaper::start(events.clone())?;
    let mut init = Init { orchestrator: None, processes: BTreeMap::new(), events, reaper };
    for event in seen {
        init.handle(event);
    }
    Ok(())
}

struct Init {
    orchestrator: Option<UnixStream>,
    processes: BTreeMap<ProcessId, Runtime>,
    events: Sender<Event>,
    reaper: Sender<()>,
}

impl Init {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Orchestrator(stream) => {
                self.orchestrator = Some(stream);
                let row = |(id, runtime): (&ProcessId, &Runtime)| {
                    (*id, runtime.function.clone(), runtime.connections.clone())
                };
                let processes = self.processes.iter().map(row).collect();
                self.tell(&Report::Hello { processes });
            }
            Event::Order(order) => self.obey(order),
            Event::Reaped(pid, why) => {
                let ended = self.processes.iter().find(|(_, runtime)| runtime.pid == pid);
                let Some(process) = ended.map(|(id, _)| *id) else { return };
                self.processes.remove(&process);
                // Its children have lost who would tell of them.
                runtime::kill_group(pid);
                self.tell(&Report::ProcessEnded { process, why });
            }
            Event::Runtime(process, RuntimeReport::Ended(request, why)) => {
                self.tell(&Report::ChildEnded { process, request, why });
            }
            Event::Runtime(process, RuntimeReport::Connected(connections))
            | Event::Connected(process, connections) => {
                if let Some(runtime) = self.processes.get_mut(&process) {
                    runtime.connections = connections.clone();
                    self.tell(&Report::Connected { process, connections });
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Spawn(spawn) => self.spawn(&spawn),
            Order::Fork { process, request } => {
                let told = match self.processes.get_mut(&process) {
                    Some(runtime) => runtime.order(&RuntimeOrder::Fork(request)),
                    None => Err(std::io::ErrorKind::NotFound.into()),
                };
                if let Err(error) = told {
                    let why = format!("its INIT process cannot be told to fork: {error}");
                    self.tell(&Report::ChildEnded { process, request, why });
                }
            }
            Order::KillChild { process, request } => {
                if let Some(runtime) = self.processes.get_mut(&process) {
                    // One that cannot be told has ended, and its children with it.
                    let _ = runtime.order(&RuntimeOrder::Kill(request));
                }
            }
            Order::KillProcess { process } => {
                if let Some(runtime) = self.processes.get(&process) {
                    runtime::kill_group(runtime.pid);
                }
            }
        }
    }

    fn spawn(&mut self, spawn: &Spawn) {
        let process = spawn.process;
        match Runtime::start(spawn, &self.events) {
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
