//! What all of the orchestrator's tasks share, and what the schedule's actions do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_local;

use super::code_checks::CodeChecks;
use super::http;
use super::limits::Limits;
use super::node::Node;
use super::room::Room;
use super::stuck::Stuck;
use super::tables::{Counted, Door, Expected, Home, Rooms, ServeError, State};
use super::terms::{self, Places};
use crate::code;
use crate::config::{Config, Owner};
use crate::containers::{COMMAND_MAX, Runtime, RuntimeError};
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
    runtime: Runtime,
    node: Option<Node>,
    pub(super) limits: Limits,
    pub(super) begun: Instant,
    pub(super) state: RefCell<State>,
    services: Services,
    code_checks: CodeChecks,
    /// The schedule's next time may have changed.
    changed: Notify,
    /// Containers that are being ended, and told of when one has.
    deletions: Cell<usize>,
    deleted: Notify,
    /// No more containers are made.
    is_ending: Cell<bool>,
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

    /// Takes over what an earlier orchestrator left running, and removes the rest of what it left.
    pub(super) async fn find_containers(self: &Rc<Self>) -> Result<(), ServeError> {
        let listed = self.runtime.list().await?;
        let is_running = |name: &str| listed.iter().any(|l| l.id == name && l.status == "running");
        let what = "cannot read the containers' directories";
        let known = self
            .directory
            .containers()
            .map_err(|error| ServeError::File { what: what.into(), error })?;
        for (id, made) in known {
            self.state.borrow_mut().schedule.skip_number(id);
            let name = StateDirectory::name(id);
            let is_as_today =
                terms::container(&self.config, self.directory.replaced(), &made.owner)
                    .is_some_and(|today| made == today);
            let adopted = match self.config.owners.get(&made.owner) {
                Some(owner) if is_as_today && is_running(&name) => {
                    match self.runtime.first_process(&name).await {
                        Ok(pid) => self.expect(id, owner, Expected::Found(pid)),
                        Err(error) => Err(io::Error::other(error)),
                    }
                }
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            if adopted.is_ok() {
                // Before it has connected, and if it never does.
                self.with(|schedule, now| schedule.container_found(now, id, &made.owner));
                continue;
            }
            let is_others =
                !made.runtime.is_empty() && made.runtime != self.config.platform.runtime;
            let runtime = match is_others {
                // No list of this runtime's has it.
                true => Runtime::new(&made.runtime, self.directory.runtime_root(), false),
                false => self.runtime.clone(),
            };
            if let Err(error) = self.end_by(&runtime, id).await {
                self.with(|schedule, now| schedule.container_found(now, id, &made.owner));
                self.keep(id, runtime, "it is not as one made today", &error);
            }
        }
        Ok(())
    }

    /// Ends all containers; none is made from here on.
    pub(super) async fn end(&self) {
        self.is_ending.set(true);
        loop {
            let next = self.state.borrow_mut().homes.pop_first();
            let Some((id, home)) = next else { break };
            home.control.abort();
            let _at_work = home.commands.lock().await;
            if let Err(error) = self.end_by(&self.runtime, id).await {
                eprintln!("{error}");
            }
        }
        // Those that were being ended: who leaves now would kill the runtime half-way.
        while self.deletions.get() > 0 {
            self.deleted.notified().await;
        }
        // One that does not end now is found by the next orchestrator.
        let stuck = std::mem::take(&mut self.state.borrow_mut().stuck);
        for (id, stuck) in stuck {
            if let Err(error) = self.end_by(&stuck.runtime, id).await {
                eprintln!("{error}");
            }
        }
        // A file that is not there is as good.
        let _ = std::fs::remove_file(self.directory.own_front_socket());
        self.directory.clear();
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

    /// Makes a container, or tells the schedule why not.
    async fn create(self: Rc<Self>, id: ContainerId, owner_name: &str) {
        if self.is_ending.get() {
            return;
        }
        let owner = &self.config.owners[owner_name];
        let replaced = self.directory.replaced();
        let Some(terms) = terms::container(&self.config, replaced, owner_name) else { return };
        let made = self.directory.make(id, owner.uid, &terms);
        let made = made.and_then(|()| self.expect(id, owner, Expected::New));
        if let Err(error) = made {
            self.directory.remove(id);
            let why = format!("its directory cannot be made: {error}");
            self.with(|schedule, now| schedule.container_ended(now, id, &why));
            return;
        }
        let has_home = || self.state.borrow().homes.contains_key(&id);
        let commands = self.state.borrow().homes.get(&id).map(|home| home.commands.clone());
        let Some(commands) = commands else { return };
        let at_work = commands.lock().await;
        if !has_home() {
            return;
        }
        let checked = self.check_code(owner_name).await;
        // Who has ended it meanwhile waits for this to be over.
        if !has_home() {
            return;
        }
        if let Err(why) = checked {
            // The runtime has not heard of it.
            let home = self.state.borrow_mut().homes.remove(&id);
            home.inspect(|home| home.control.abort());
            self.directory.remove(id);
            self.with(|schedule, now| schedule.container_ended(now, id, &why));
            return;
        }
        let places = self.places(id);
        let node = self.node.as_ref().and_then(Node::mount);
        let bundle = terms::bundle(&self.config, &places, node, owner_name);
        let log = self.directory.log(id);
        let made = self.runtime.run(&bundle, &StateDirectory::name(id), &log).await;
        drop(at_work);
        if let Err(error) = made {
            self.delete(id, &error.to_string());
        }
    }

    /// Whether an owner's container gets the code that the configuration says, and nothing that somebody has put in its place.
    async fn check_code(&self, owner: &str) -> Result<(), String> {
        let of_owner = self.config.functions.iter().filter(|(_, function)| function.owner == owner);
        let codes: Vec<_> =
            of_owner.map(|(name, function)| (name.clone(), function.code.clone())).collect();
        // The start is to fail for this before it fails for its own time.
        let of_start = Duration::from_secs(self.config.platform.init_timeout_s) / 2;
        let check = move || {
            let trusted = code::Trusted::here();
            codes.iter().try_for_each(|(name, path)| {
                let code = path.display();
                code::check(path, &trusted).map_err(|error| {
                    format!("functions.{name}.code is {code}, which cannot be mounted: {error}")
                })
            })
        };
        self.code_checks.make(owner, COMMAND_MAX.min(of_start), check).await
    }

    fn places(&self, id: ContainerId) -> Places {
        Places {
            directory: self.directory.container(id),
            sockets: self.directory.sockets(id),
            programs: self.directory.programs(),
        }
    }

    /// Listens for a container that is, or will be, there.
    fn expect(
        self: &Rc<Self>,
        id: ContainerId,
        owner: &Owner,
        expected: Expected,
    ) -> io::Result<()> {
        self.directory.show_sockets(id, owner.uid)?;
        let socket = self.directory.control_socket(id);
        let listener = http::bind(&socket)?;
        self.directory.give(&socket, owner.uid)?;
        let control = spawn_local((self.services.control)(self.clone(), listener, id, expected));
        let rooms = Rooms {
            connections: Arc::new(Semaphore::new(self.limits.container)),
            bodies: Room::new(),
        };
        let control = control.abort_handle();
        let home = Home { orders: None, control, rooms, commands: Rc::default() };
        self.state.borrow_mut().homes.insert(id, home);
        Ok(())
    }

    /// Ends a container and tells the schedule, which gives it no requests from here on; those that it has fail for this reason.
    pub(super) fn delete(self: &Rc<Self>, id: ContainerId, why: &str) {
        let (this, why) = (self.clone(), why.to_string());
        spawn_local(async move {
            let home = this.state.borrow_mut().homes.remove(&id);
            let Some(home) = home else { return };
            home.control.abort();
            this.with(|schedule, now| schedule.container_ending(now, id, &why));
            this.close_doors();
            let ended = {
                let _counted = Counted::new(&this.deletions, &this.deleted);
                let _at_work = home.commands.lock().await;
                this.end_by(&this.runtime, id).await
            };
            match ended {
                Ok(()) => this.with(|schedule, now| schedule.container_ended(now, id, &why)),
                Err(error) => this.keep(id, this.runtime.clone(), &why, &error),
            }
        });
    }

    /// Has the runtime end a container, of which nothing is left then.
    async fn end_by(&self, runtime: &Runtime, id: ContainerId) -> Result<(), RuntimeError> {
        let _counted = Counted::new(&self.deletions, &self.deleted);
        runtime.delete(&StateDirectory::name(id)).await?;
        self.directory.remove(id);
        Ok(())
    }

    /// Counts a container that was to be ended and is not, and has the runtime end it later. Its directory stays, by which
    /// another orchestrator finds it.
    fn keep(self: &Rc<Self>, id: ContainerId, runtime: Runtime, why: &str, error: &RuntimeError) {
        eprintln!("{error}; it is tried again, and the container counts until then");
        self.with(|schedule, now| schedule.container_stays(now, id, why));
        let owner = self.state.borrow().schedule.owner_of(id).unwrap_or_default().to_string();
        let stuck = Stuck { owner, runtime, tries: 1, why: error.to_string() };
        self.state.borrow_mut().stuck.insert(id, stuck);
        spawn_local(self.clone().try_again(id));
    }

    async fn try_again(self: Rc<Self>, id: ContainerId) {
        loop {
            // When all of this ends, that asks a last time.
            let Some(pause) = self.state.borrow().stuck.get(&id).map(Stuck::pause) else { return };
            tokio::time::sleep(pause).await;
            let runtime = self.state.borrow().stuck.get(&id).map(|stuck| stuck.runtime.clone());
            let Some(runtime) = runtime else { return };
            let ended = self.end_by(&runtime, id).await;
            let mut state = self.state.borrow_mut();
            match (ended, state.stuck.get_mut(&id)) {
                (Err(error), Some(stuck)) => {
                    stuck.tries = stuck.tries.saturating_add(1);
                    stuck.why = error.to_string();
                }
                _ => break,
            }
        }
        let stuck = self.state.borrow_mut().stuck.remove(&id);
        if let Some(Stuck { tries, .. }) = stuck {
            eprintln!("{} has ended, at try {}", StateDirectory::name(id), u64::from(tries) + 1);
        }
        self.with(|schedule, now| schedule.container_ended(now, id, "it was stuck"));
    }

    /// Closes the doors of processes that are no more.
    fn close_doors(&self) {
        let State { schedule, doors, .. } = &mut *self.state.borrow_mut();
        doors.retain(|process, _| schedule.container_of(*process).is_some());
    }
}

#[cfg(test)]
mod tests;
