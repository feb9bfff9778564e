//! What all of the orchestrator's tasks share, and what the schedule's actions do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::code_checks::CodeChecks;
use super::http;
use super::limits::Limits;
use super::node::Node;
use super::tables::{Door, Expected, State};
use super::terms;
use crate::config::Config;
use crate::containers::Runtime;
use crate::protocol::Order;
use crate::schedule::{Action, ContainerId, ProcessId, Schedule};
use crate::state::StateDirectory;

/// How long until a node that has started again is seen.
const NODE_LOOK: Duration = Duration::from_millis(200);

/// What serves a listener until it is aborted.
pub(super) type Serving = Pin<Box<dyn Future<Output = ()>>>;

/// What is behind the sockets that containers have.
pub(super) struct Services {
    /// Behind an INIT process's.
    pub(super) door: fn(Rc<Orchestrator>, UnixListener, ContainerId, ProcessId) -> Serving,
    /// Behind a container's `elver-init`'s.
    pub(super) control: fn(Rc<Orchestrator>, UnixListener, ContainerId, Expected) -> Serving,
}

/// All that tasks share.
pub(super) struct Orchestrator {
    pub(super) config: Config,
    pub(super) directory: StateDirectory,
    pub(super) runtime: Runtime,
    pub(super) node: Option<Node>,
    pub(super) limits: Limits,
    pub(super) begun: Instant,
    pub(super) state: RefCell<State>,
    pub(super) services: Services,
    pub(super) code_checks: CodeChecks,
    /// The schedule's next time may have changed.
    changed: Notify,
    /// Containers that are being ended, and told of when one has.
    pub(super) deletions: Cell<usize>,
    pub(super) deleted: Notify,
    /// No more containers are made.
    pub(super) is_ending: Cell<bool>,
}

impl Orchestrator {
    pub(super) fn new(config: Config, directory: StateDirectory, services: Services) -> Rc<Self> {
        let cgroups = config.platform.container_memory_mb.is_some();
        let runtime = Runtime::new(&config.platform.runtime, directory.runtime_root(), cgroups);
        let limits = Limits::raise(config.platform.containers_max);
        let first_number = terms::first_number(SystemTime::now());
        let state = State {
            schedule: Schedule::new(
                terms::schedule(&config, limits),
                terms::functions(&config),
                first_number,
            ),
            homes: BTreeMap::new(),
            doors: BTreeMap::new(),
            pending: BTreeMap::new(),
            stuck: BTreeMap::new(),
        };
        let socket = config.platform.node_socket.as_deref();
        let node = socket.map(|socket| Node::new(socket, directory.node()));
        Rc::new(Orchestrator {
            config,
            directory,
            runtime,
            node,
            limits,
            begun: Instant::now(),
            state: RefCell::new(state),
            services,
            code_checks: CodeChecks::default(),
            changed: Notify::new(),
            deletions: Cell::new(0),
            deleted: Notify::new(),
            is_ending: Cell::new(false),
        })
    }

    pub(super) async fn keep_time(self: Rc<Self>) {
        loop {
            let changed = self.changed.notified();
            let next = self.state.borrow().schedule.next_tick();
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until((self.begun + next).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => continue,
                () = due => {}
            }
            self.with(|schedule, now| schedule.tick(now));
        }
    }

    /// Has containers find the node, whenever that starts again.
    pub(super) async fn keep_node(self: Rc<Self>) {
        let Some(node) = &self.node else { return };
        loop {
            node.look();
            tokio::time::sleep(NODE_LOOK).await;
        }
    }

    /// Tells the schedule something, and does what it wants then.
    pub(super) fn with<T>(self: &Rc<Self>, tell: impl FnOnce(&mut Schedule, Duration) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let told = tell(&mut state.schedule, self.begun.elapsed());
        while let Some(action) = state.schedule.poll() {
            self.act(&mut state, action);
        }
        for (process, door) in &state.doors {
            if state.schedule.has_for(*process, None) {
                door.handed.notify_waiters();
            }
        }
        drop(state);
        self.changed.notify_one();
        told
    }

    fn act(self: &Rc<Self>, state: &mut State, action: Action) {
        match action {
            Action::Create(id, owner) => {
                let this = self.clone();
                spawn_local(async move { this.create(id, &owner).await });
            }
            Action::Spawn(container, process, first, function) => {
                match self.open_door(container, process, &function) {
                    Ok(door) => {
                        state.doors.insert(process, door);
                        let spawn = terms::spawn(&self.config, process, first, &function);
                        self.order(state, container, spawn);
                    }
                    Err(error) => {
                        let why = format!("cannot listen for its process: {error}");
                        let this = self.clone();
                        spawn_local(async move {
                            this.with(|schedule, now| schedule.process_ended(now, process, &why));
                        });
                    }
                }
            }
            Action::Fork(container, process, request, destinations) => {
                self.order(state, container, Order::Fork { process, request, destinations });
            }
            Action::KillChild(container, process, request) => {
                self.order(state, container, Order::KillChild { process, request });
            }
            Action::KillProcess(container, process) => {
                self.order(state, container, Order::KillProcess { process });
            }
            Action::Delete(id) => self.delete(id, "it was idle, or did not start in time"),
            Action::Fail(id, failure) => {
                if let Some(pending) = state.pending.remove(&id) {
                    // A caller that has gone needs no answer.
                    let _ = pending.reply.send(Err(failure));
                }
            }
        }
    }

    pub(super) fn order(self: &Rc<Self>, state: &State, container: ContainerId, order: Order) {
        let orders = state.homes.get(&container).and_then(|home| home.orders.as_ref());
        if orders.is_none_or(|orders| orders.try_send(order).is_err()) {
            self.delete(container, "it takes no orders");
        }
    }

    pub(super) fn open_door(
        self: &Rc<Self>,
        container: ContainerId,
        process: ProcessId,
        name: &str,
    ) -> io::Result<Door> {
        let owner = self.config.owner_of(&self.config.functions[name]);
        let socket = self.directory.sockets(container).join(crate::protocol::api_socket(process));
        let listener = http::bind(&socket)?;
        self.directory.give(&socket, owner.uid)?;
        let serving = spawn_local((self.services.door)(self.clone(), listener, container, process));
        Ok(Door {
            function: name.into(),
            serving: serving.abort_handle(),
            handed: Rc::new(Notify::new()),
            start_failed: None,
            socket,
        })
    }
}

#[cfg(test)]
mod tests;
