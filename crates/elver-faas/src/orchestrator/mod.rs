//! The orchestrator: what the [schedule](crate::schedule) decides, done with real containers.
//!
//! All of it runs on one thread, so that nothing is locked. `RefCell`s are never held over an `await`.

mod api;
mod control;
mod front;
mod http;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, LocalSet, spawn_local};

use crate::bundle::Bundle;
use crate::config::{Config, Owner};
use crate::containers::{Runtime, RuntimeError};
use crate::protocol::{Order, Spawn};
use crate::schedule::{
    Action, ContainerId, Failure, FunctionTerms, ProcessId, RequestId, Schedule, Start, Terms,
};
use crate::state::StateDirectory;

/// Most bytes of a file that a function writes, its log among them.
const FILE_MAX: u64 = 64 << 20;

/// Orders that a container has not taken yet. One that takes none is ended.
const ORDERS_MAX: usize = 4096;

/// Why an orchestrator cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something of its directory.
    #[error("{what}: {error}")]
    File {
        /// What it was about.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// The container runtime.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
}

/// How a request was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    body: Bytes,
    content_type: String,
    is_error: bool,
    start: Start,
    launch: Duration,
    total: Duration,
}

/// A request whose caller waits.
#[derive(Debug)]
struct Pending {
    body: Bytes,
    reply: oneshot::Sender<Result<Answer, Failure>>,
    arrived: Instant,
    taken: Option<Instant>,
}

/// What a container has on this side.
#[derive(Debug)]
struct Home {
    orders: Option<mpsc::Sender<Order>>,
    control: AbortHandle,
}

/// What an INIT process has on this side.
#[derive(Debug)]
struct Door {
    function: String,
    serving: AbortHandle,
    handed: Rc<Notify>,
    start_failed: Option<String>,
}

struct State {
    schedule: Schedule,
    homes: BTreeMap<ContainerId, Home>,
    doors: BTreeMap<ProcessId, Door>,
    pending: BTreeMap<RequestId, Pending>,
}

/// All that tasks share.
struct Orchestrator {
    config: Config,
    directory: StateDirectory,
    runtime: Runtime,
    begun: Instant,
    state: RefCell<State>,
    /// The schedule's next time may have changed.
    changed: Notify,
}

/// Serves until SIGINT or SIGTERM, and ends all containers then. `ready` is called when callers may ask.
///
/// # Errors
/// [`ServeError`] if it cannot begin.
pub fn serve(config: Config, init: &Path, ready: impl FnOnce(&Path)) -> Result<(), ServeError> {
    let file = |what: &str| {
        let what = what.to_string();
        move |error| ServeError::File { what, error }
    };
    let path = config.platform.state.clone().unwrap_or_else(StateDirectory::default_path);
    let directory = StateDirectory::open(&path, init).map_err(file(&format!(
        "cannot use {} with {}",
        path.display(),
        init.display()
    )))?;
    let runtime = Runtime::new(&config.platform.runtime, directory.runtime_root());
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(file("cannot make an event loop"))?;
    let state = State {
        schedule: Schedule::new(terms(&config), functions(&config), 1),
        homes: BTreeMap::new(),
        doors: BTreeMap::new(),
        pending: BTreeMap::new(),
    };
    let orchestrator = Rc::new(Orchestrator {
        config,
        directory,
        runtime,
        begun: Instant::now(),
        state: RefCell::new(state),
        changed: Notify::new(),
    });
    let tasks = LocalSet::new();
    executor.block_on(tasks.run_until(orchestrator.serve(ready)))
}

impl Orchestrator {
    async fn serve(self: Rc<Self>, ready: impl FnOnce(&Path)) -> Result<(), ServeError> {
        let signals = |error| ServeError::File { what: "cannot hear signals".into(), error };
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupted = signal(SignalKind::interrupt()).map_err(signals)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(signals)?;
        self.find_containers().await?;
        let socket = self.directory.own_front_socket();
        let file = |error| ServeError::File {
            what: format!("cannot listen at {}", socket.display()),
            error,
        };
        let front = front::listen(self.clone(), &socket).map_err(file)?;
        ready(&socket);
        let clock = spawn_local(self.clone().keep_time());
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        front.abort();
        clock.abort();
        self.end().await;
        Ok(())
    }

    /// Takes over what an earlier orchestrator left running, and removes the rest of what it left.
    async fn find_containers(self: &Rc<Self>) -> Result<(), ServeError> {
        let running: BTreeSet<String> = self
            .runtime
            .list()
            .await?
            .into_iter()
            .filter(|listed| listed.status == "running")
            .map(|listed| listed.id)
            .collect();
        let what = "cannot read the containers' directories";
        let known = self
            .directory
            .containers()
            .map_err(|error| ServeError::File { what: what.into(), error })?;
        for (id, owner) in known {
            self.state.borrow_mut().schedule.skip_number(id);
            let name = StateDirectory::name(id);
            let adopted = match self.config.owners.get(&owner) {
                Some(owner) if running.contains(&name) => {
                    self.expect(id, owner, control::Expected::Found)
                }
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            if adopted.is_err() {
                // One that cannot be deleted now is found again by the next orchestrator.
                if let Err(error) = self.runtime.delete(&name).await
                    && running.contains(&name)
                {
                    eprintln!("{error}");
                    continue;
                }
                self.directory.remove(id);
            }
        }
        Ok(())
    }

    /// Ends all containers.
    async fn end(&self) {
        let homes = std::mem::take(&mut self.state.borrow_mut().homes);
        for (id, home) in homes {
            home.control.abort();
            match self.runtime.delete(&StateDirectory::name(id)).await {
                Ok(()) => self.directory.remove(id),
                Err(error) => eprintln!("{error}"),
            }
        }
        // A file that is not there is as good.
        let _ = std::fs::remove_file(self.directory.own_front_socket());
    }

    async fn keep_time(self: Rc<Self>) {
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

    /// Tells the schedule something, and does what it wants then.
    fn with<T>(self: &Rc<Self>, tell: impl FnOnce(&mut Schedule, Duration) -> T) -> T {
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
                        let spawn = self.spawn_order(process, first, &function);
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
            Action::Fork(container, process, request) => {
                self.order(state, container, Order::Fork { process, request });
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

    fn order(self: &Rc<Self>, state: &State, container: ContainerId, order: Order) {
        let orders = state.homes.get(&container).and_then(|home| home.orders.as_ref());
        if orders.is_none_or(|orders| orders.try_send(order).is_err()) {
            self.delete(container, "it takes no orders");
        }
    }

    fn spawn_order(&self, process: ProcessId, first: RequestId, name: &str) -> Order {
        let function = &self.config.functions[name];
        Order::Spawn(Spawn {
            process,
            first,
            function: name.into(),
            runtime: function.runtime,
            handler: function.handler.clone(),
            python: self.config.platform.python.clone(),
            destinations: function.destinations.clone(),
            environment: function.environment.clone(),
            memory_max: function.memory_mb << 20,
            timeout_s: function.timeout_s,
        })
    }

    fn open_door(
        self: &Rc<Self>,
        container: ContainerId,
        process: ProcessId,
        name: &str,
    ) -> io::Result<Door> {
        let owner = self.config.owner_of(&self.config.functions[name]);
        let socket = self.directory.sockets(container).join(crate::protocol::api_socket(process));
        let listener = http::bind(&socket)?;
        self.directory.give(&socket, owner.uid)?;
        let this = self.clone();
        let serving = spawn_local(async move { api::serve(this, listener, process).await });
        Ok(Door {
            function: name.into(),
            serving: serving.abort_handle(),
            handed: Rc::new(Notify::new()),
            start_failed: None,
        })
    }

    /// Makes a container, or tells the schedule why not.
    async fn create(self: Rc<Self>, id: ContainerId, owner_name: &str) {
        let owner = &self.config.owners[owner_name];
        let made = self.directory.make(id, owner.uid, owner_name).and_then(|()| {
            self.bundle(id, owner_name, owner).write()?;
            self.expect(id, owner, control::Expected::New)
        });
        if let Err(error) = made {
            self.delete(id, &format!("its bundle cannot be made: {error}"));
            return;
        }
        let directory = self.directory.container(id);
        let name = StateDirectory::name(id);
        if let Err(error) = self.runtime.run(&directory, &name, &directory.join("log")).await {
            self.delete(id, &error.to_string());
        }
    }

    fn bundle<'a>(&'a self, id: ContainerId, owner_name: &str, owner: &Owner) -> OwnedBundle<'a> {
        let functions = self.config.functions.iter().filter(|(_, f)| f.owner == owner_name);
        OwnedBundle {
            orchestrator: self,
            id,
            uid: owner.uid,
            code: functions.clone().map(|(name, f)| (name.as_str(), f.code.as_path())).collect(),
            processes_max: functions.map(|(_, f)| f.processes_max).max().unwrap_or(1),
        }
    }

    /// Listens for a container that is, or will be, there.
    fn expect(
        self: &Rc<Self>,
        id: ContainerId,
        owner: &Owner,
        expected: control::Expected,
    ) -> io::Result<()> {
        let socket = self.directory.control_socket(id);
        let listener = http::bind(&socket)?;
        self.directory.give(&socket, owner.uid)?;
        let control = spawn_local(control::serve(self.clone(), listener, id, expected));
        let home = Home { orders: None, control: control.abort_handle() };
        self.state.borrow_mut().homes.insert(id, home);
        Ok(())
    }

    /// Ends a container and tells the schedule. The requests that it has fail for this reason.
    fn delete(self: &Rc<Self>, id: ContainerId, why: &str) {
        let (this, why) = (self.clone(), why.to_string());
        spawn_local(async move {
            let home = this.state.borrow_mut().homes.remove(&id);
            let Some(home) = home else { return };
            home.control.abort();
            if let Err(error) = this.runtime.delete(&StateDirectory::name(id)).await {
                eprintln!("{error}");
            }
            this.directory.remove(id);
            this.with(|schedule, now| schedule.container_ended(now, id, &why));
            this.close_doors();
        });
    }

    /// Closes the doors of processes that are no more.
    fn close_doors(&self) {
        let State { schedule, doors, .. } = &mut *self.state.borrow_mut();
        doors.retain(|process, door| {
            let is_there = schedule.container_of(*process).is_some();
            if !is_there {
                door.serving.abort();
            }
            is_there
        });
    }
}

/// What [`Bundle`] borrows.
struct OwnedBundle<'a> {
    orchestrator: &'a Orchestrator,
    id: ContainerId,
    uid: u32,
    code: Vec<(&'a str, &'a Path)>,
    processes_max: u64,
}

impl OwnedBundle<'_> {
    fn write(&self) -> io::Result<()> {
        let (config, directory) = (&self.orchestrator.config, &self.orchestrator.directory);
        let programs: PathBuf = directory.programs();
        let bundle = Bundle {
            directory: &directory.container(self.id),
            rootfs: config.platform.rootfs.as_deref(),
            uid: self.uid,
            sockets: &directory.sockets(self.id),
            programs: &programs,
            node_socket: config.platform.node_socket.as_deref(),
            code: self.code.clone(),
            processes_max: self.processes_max,
            file_max: FILE_MAX,
        };
        bundle.write()
    }
}

fn terms(config: &Config) -> Terms {
    let platform = &config.platform;
    Terms {
        containers_max: platform.containers_max,
        processes_max: platform.processes_max,
        requests_max: platform.requests_max,
        keep_alive: Duration::from_secs(platform.keep_alive_s),
        init_timeout: Duration::from_secs(platform.init_timeout_s),
    }
}

fn functions(config: &Config) -> BTreeMap<String, FunctionTerms> {
    let terms = |function: &crate::config::Function| FunctionTerms {
        owner: function.owner.clone(),
        forks: function.runtime.forks(),
        destinations: function.destinations.iter().cloned().collect(),
        timeout: Duration::from_secs(function.timeout_s),
        concurrency_max: function.concurrency_max,
    };
    config.functions.iter().map(|(name, function)| (name.clone(), terms(function))).collect()
}
