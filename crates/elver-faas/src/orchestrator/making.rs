//! Containers that are made, or that an earlier orchestrator has left.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::core::Orchestrator;
use super::http;
use super::node::Node;
use super::room::Room;
use super::tables::{Expected, Home, Rooms, ServeError};
use super::terms::{self, Places};
use crate::code;
use crate::config::Owner;
use crate::containers::{COMMAND_MAX, Runtime};
use crate::schedule::ContainerId;
use crate::state::StateDirectory;

impl Orchestrator {
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

    /// Makes a container, or tells the schedule why not.
    pub(super) async fn create(self: Rc<Self>, id: ContainerId, owner_name: &str) {
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
}
