//! Who runs which request: the orchestrator as a state machine (Swift, §4.1).
//!
//! Requests, what containers and processes tell, and the time go in; [`Action`]s come out of
//! [`Schedule::poll`]. A request is answered exactly once: by [`Schedule::answered`], or by
//! [`Action::Fail`].
//!
//! A start is chosen by what exists (Figure 4): a started INIT process of the function is forked,
//! first one that the Orchestrator Table says has all of the function's connections; else a new INIT
//! process is made in a container of the same owner; else a new container.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

mod children;
mod places;
mod words;

use places::{Container, Process, Stage};
pub use words::{
    Action, ContainerId, Failure, Found, FunctionTerms, ProcessId, RequestId, Row, Start, Taken,
    Terms,
};

/// Numbers that a container may give its processes are below this.
const NUMBER_MAX: u64 = 1 << 48;

#[derive(Debug)]
struct Request {
    function: String,
    /// What it wants to be connected to beside the function's destinations.
    destinations: BTreeSet<String>,
    place: Option<(ProcessId, Start)>,
    taken: bool,
    deadline: Duration,
}

/// The state machine.
#[derive(Debug)]
pub struct Schedule {
    terms: Terms,
    functions: BTreeMap<String, FunctionTerms>,
    containers: BTreeMap<ContainerId, Container>,
    processes: BTreeMap<ProcessId, Process>,
    requests: BTreeMap<RequestId, Request>,
    waiting: VecDeque<RequestId>,
    actions: VecDeque<Action>,
    next: u64,
}

impl Schedule {
    /// Nothing runs. Numbers begin at `first`, above those of what ran before.
    pub fn new(terms: Terms, functions: BTreeMap<String, FunctionTerms>, first: u64) -> Schedule {
        Schedule {
            terms,
            functions,
            containers: BTreeMap::new(),
            processes: BTreeMap::new(),
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            actions: VecDeque::new(),
            next: first,
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Schedule::tick`] has something to do.
    pub fn next_tick(&self) -> Option<Duration> {
        let requests = self.requests.values().map(|request| request.deadline);
        let idle = self
            .containers
            .iter()
            .filter(|(id, c)| c.stage == Stage::Running && self.is_idle(**id));
        let idle = idle.map(|(_, c)| c.idle_since + self.terms.keep_alive);
        let idle_processes =
            self.processes.values().filter(|p| p.is_idle() && self.is_running(p.container));
        let idle_processes = idle_processes.map(|p| p.idle_since + self.terms.keep_alive);
        let children = self.processes.values().filter(|p| p.stage != Stage::Ending);
        let children = children.filter_map(|p| p.children.next());
        requests.chain(idle).chain(idle_processes).chain(children).min()
    }

    /// A request arrives, which wants connections to some destinations beside its function's: an INIT process that has them
    /// is taken first.
    ///
    /// # Errors
    /// [`Failure::Unknown`] and [`Failure::TooMany`]; nothing is kept of it then.
    pub fn request(
        &mut self,
        now: Duration,
        function: &str,
        destinations: BTreeSet<String>,
    ) -> Result<RequestId, Failure> {
        let Some(terms) = self.functions.get(function) else {
            return Err(Failure::Unknown(function.into()));
        };
        let of_function = self.requests.values().filter(|r| r.function == function).count();
        for (what, most, has) in [
            (function, terms.concurrency_max, of_function),
            ("the orchestrator", self.terms.requests_max, self.requests.len()),
        ] {
            if has >= most {
                return Err(Failure::TooMany { what: what.into(), most });
            }
        }
        let id = RequestId(self.number());
        let deadline = now + self.terms.init_timeout;
        let function = function.into();
        let request = Request { function, destinations, place: None, taken: false, deadline };
        self.requests.insert(id, request);
        self.waiting.push_back(id);
        self.place_waiting(now);
        Ok(id)
    }

    /// A container's number is taken, by one that an earlier orchestrator made.
    pub fn skip_number(&mut self, id: ContainerId) {
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// A container was found that an earlier orchestrator made, and runs.
    pub fn adopt_container(&mut self, now: Duration, id: ContainerId, owner: &str) {
        self.skip_number(id);
        let container = Container {
            owner: owner.into(),
            stage: Stage::Running,
            processes: BTreeSet::new(),
            idle_since: now,
        };
        self.containers.insert(id, container);
    }

    /// A container tells of an INIT process that an earlier orchestrator started. It is killed if its
    /// function is not its container's owner's, which happens when the configuration changed, or if it is to be forked and
    /// still at its first request, whose caller has gone. Children that it has are killed when their function's time is over,
    /// from now on.
    pub fn adopt_process(&mut self, now: Duration, container: ContainerId, found: Found) {
        let Found { process: id, function, connections, takes_orders, children } = found;
        let function = &function;
        let Some(home) = self.containers.get_mut(&container) else { return };
        let is_known = self
            .functions
            .get(function)
            .is_some_and(|f| f.owner == home.owner && (takes_orders || !f.forks));
        // A container tells of its processes, and may lie.
        let is_new = !self.processes.contains_key(&id) && id.0 < NUMBER_MAX;
        let has_room = home.processes.len() < self.terms.processes_max;
        if !(is_known && is_new && has_room) {
            self.actions.push_back(Action::KillProcess(container, id));
            return;
        }
        self.next = self.next.max(id.0 + 1);
        home.processes.insert(id);
        let process = Process::new(now, container, function);
        let mut process = Process { stage: Stage::Running, connections, ..process };
        let until = now + self.functions[function].timeout;
        children.into_iter().for_each(|child| process.children.found(child, until));
        self.processes.insert(id, process);
        self.place_waiting(now);
    }

    /// A container runs, and takes processes.
    pub fn container_runs(&mut self, now: Duration, id: ContainerId) {
        let Some(container) = self.containers.get_mut(&id) else { return };
        if container.stage == Stage::Starting {
            container.stage = Stage::Running;
            container.idle_since = now;
            let processes: Vec<ProcessId> = container.processes.iter().copied().collect();
            for process in processes {
                let init = &self.processes[&process];
                // One whose request has timed out is being ended with the container.
                let Some(first) = init.handed.front() else { continue };
                let spawn = Action::Spawn(id, process, *first, init.function.clone());
                self.actions.push_back(spawn);
            }
        }
        self.place_waiting(now);
    }

    /// A container has ended, or could not be made. It leaves all tables.
    pub fn container_ended(&mut self, now: Duration, id: ContainerId, why: &str) {
        let Some(container) = self.containers.remove(&id) else { return };
        for process in container.processes {
            self.drop_process(process, &Failure::Container(why.into()));
        }
        self.place_waiting(now);
    }

    /// An INIT process has connections: its row of the Orchestrator Table.
    pub fn connected(&mut self, id: ProcessId, connections: BTreeSet<String>) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.connections = connections;
        }
    }

    /// An INIT process has ended.
    pub fn process_ended(&mut self, now: Duration, id: ProcessId, why: &str) {
        let container = self.processes.get(&id).map(|process| process.container);
        self.drop_process(id, &Failure::Ended(why.into()));
        self.look_for_idle(now, container);
        self.place_waiting(now);
    }

    /// The container of an INIT process.
    pub fn container_of(&self, id: ProcessId) -> Option<ContainerId> {
        self.processes.get(&id).map(|process| process.container)
    }

    /// Whether an INIT process, or a child of it, has taken a request that is not answered.
    pub fn has_taken(&self, id: ProcessId, request: RequestId) -> bool {
        self.processes.get(&id).is_some_and(|process| process.taken.contains(&request))
    }

    /// Whether a request is there for an INIT process that nobody has taken yet: this one, or any.
    pub fn has_for(&self, id: ProcessId, wanted: Option<RequestId>) -> bool {
        let Some(process) = self.processes.get(&id) else { return false };
        match wanted {
            Some(request) => process.handed.contains(&request),
            None => !process.handed.is_empty(),
        }
    }

    /// An INIT process, or a child of it, asks for its next request, or for the one that it is for.
    pub fn take(
        &mut self,
        now: Duration,
        id: ProcessId,
        wanted: Option<RequestId>,
    ) -> Option<Taken> {
        let process = self.processes.get_mut(&id)?;
        let at = match wanted {
            Some(request) => process.handed.iter().position(|handed| *handed == request)?,
            None => 0,
        };
        let id = process.handed.remove(at)?;
        process.taken.insert(id);
        let request = self.requests.get_mut(&id)?;
        request.taken = true;
        request.deadline = now + self.functions[&request.function].timeout;
        let (_, start) = request.place?;
        Some(Taken { request: id, deadline: request.deadline, start })
    }

    /// A process answers a request, with a result or an error of its own. `None` if the request is
    /// none that it has taken: of another process, of another owner, late, or never there.
    pub fn answered(&mut self, now: Duration, id: ProcessId, request: RequestId) -> Option<Start> {
        let process = self.processes.get_mut(&id)?;
        if !process.taken.remove(&request) {
            return None;
        }
        if process.stage == Stage::Starting {
            process.stage = Stage::Running;
        }
        process.children.answered(now, request);
        process.idle_since = now;
        let container = process.container;
        let (_, start) = self.requests.remove(&request)?.place?;
        self.look_for_idle(now, Some(container));
        self.place_waiting(now);
        Some(start)
    }

    /// The child that was forked for a request has ended. Its request fails if it was not answered.
    pub fn child_ended(&mut self, now: Duration, id: ProcessId, request: RequestId, why: &str) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let waiting = process.handed.len();
        process.handed.retain(|handed| *handed != request);
        let was_its = process.handed.len() < waiting || process.taken.remove(&request);
        process.children.ended(request);
        process.idle_since = now;
        if process.stage == Stage::Starting {
            // One that tells of a child takes orders, also if its first request was that child's.
            process.stage = Stage::Running;
        }
        let container = process.container;
        // A child of an earlier orchestrator's request is none of ours, and containers may lie.
        if was_its {
            self.fail(request, Failure::Ended(why.into()));
        }
        self.look_for_idle(now, Some(container));
        self.place_waiting(now);
    }

    /// Time has passed: requests that took too long are killed, and children that have answered; what is idle is ended.
    pub fn tick(&mut self, now: Duration) {
        let late = |(id, r): (&RequestId, &Request)| (r.deadline <= now).then_some(*id);
        let late: Vec<RequestId> = self.requests.iter().filter_map(late).collect();
        for id in late {
            self.time_out(now, id);
        }
        let kept = self.terms.keep_alive;
        let idle: Vec<ContainerId> = self
            .containers
            .iter()
            .filter(|(id, c)| {
                c.stage == Stage::Running && self.is_idle(**id) && c.idle_since + kept <= now
            })
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            self.end_container(id);
        }
        self.look_after_processes(now);
        self.place_waiting(now);
    }

    fn look_after_processes(&mut self, now: Duration) {
        let mut to_end = Vec::new();
        for (id, process) in &mut self.processes {
            if process.stage == Stage::Ending {
                continue;
            }
            let lingering = process.children.lingering(now);
            let kill = |request| Action::KillChild(process.container, *id, request);
            self.actions.extend(lingering.into_iter().map(kill));
            let is_container_running = self
                .containers
                .get(&process.container)
                .is_some_and(|home| home.stage == Stage::Running);
            let is_old = process.is_idle()
                && is_container_running
                && process.idle_since + self.terms.keep_alive <= now;
            if is_old || process.children.is_one_overdue(now) {
                to_end.push(*id);
            }
        }
        for id in to_end {
            self.end_process(id);
        }
    }

    /// The Orchestrator Table: each INIT process with its container, owner, function, and what it has
    /// connections to.
    pub fn table(&self) -> Vec<Row> {
        let row = |(id, process): (&ProcessId, &Process)| Row {
            container: process.container,
            process: *id,
            owner: self.functions[&process.function].owner.clone(),
            function: process.function.clone(),
            is_started: process.stage == Stage::Running,
            connections: process.connections.clone(),
            requests: process.requests(),
        };
        self.processes.iter().map(row).collect()
    }

    /// The containers there are, with their owners.
    pub fn containers(&self) -> Vec<(ContainerId, String)> {
        self.containers.iter().map(|(id, c)| (*id, c.owner.clone())).collect()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Gives each request that waits a place, oldest first; those that find none wait on.
    fn place_waiting(&mut self, now: Duration) {
        for id in std::mem::take(&mut self.waiting) {
            let Some(request) = self.requests.get(&id) else { continue };
            let (function, destinations) = (request.function.clone(), request.destinations.clone());
            match self.place(now, id, &function, destinations) {
                Some(place) => {
                    if let Some(request) = self.requests.get_mut(&id) {
                        request.place = Some(place);
                    }
                }
                None => self.waiting.push_back(id),
            }
        }
    }

    fn place(
        &mut self,
        now: Duration,
        request: RequestId,
        function: &str,
        destinations: BTreeSet<String>,
    ) -> Option<(ProcessId, Start)> {
        if let Some((process, start)) = self.started(function, &destinations) {
            let init = self.processes.get_mut(&process)?;
            init.handed.push_back(request);
            if start == Start::Fork {
                init.children.forked(request);
                let fork = Action::Fork(init.container, process, request, destinations);
                self.actions.push_back(fork);
            }
            return Some((process, start));
        }
        let terms = self.functions.get(function)?;
        let (owner, first_is_child) = (terms.owner.clone(), terms.first_is_child);
        let mut of_owner =
            self.containers.iter().filter(|(_, c)| c.owner == owner && c.stage != Stage::Ending);
        let room = |c: &Container| c.processes.len() < self.terms.processes_max;
        let (container, start) = match of_owner.find(|(_, c)| room(c)) {
            // One that is on its way is waited for, which takes less than another one.
            Some((_, c)) if c.stage == Stage::Starting => return None,
            Some((id, _)) => (*id, Start::Warm),
            None => (self.make_container(now, &owner)?, Start::Cold),
        };
        let process = ProcessId(self.number());
        self.containers.get_mut(&container)?.processes.insert(process);
        let mut init = Process::new(now, container, function);
        init.handed.push_back(request);
        if first_is_child {
            init.children.forked(request);
        }
        self.processes.insert(process, init);
        if start == Start::Warm {
            self.actions.push_back(Action::Spawn(container, process, request, function.into()));
        }
        Some((process, start))
    }

    /// A started process of the function: the Orchestrator Table is asked first for one that lacks the fewest of the
    /// connections, and of those that have as many, for one with the fewest requests.
    fn started(
        &self,
        function: &str,
        destinations: &BTreeSet<String>,
    ) -> Option<(ProcessId, Start)> {
        let terms = self.functions.get(function)?;
        let lacks = |p: &Process| {
            let wanted = terms.destinations.union(destinations);
            wanted.filter(|to| !p.connections.contains(*to)).count()
        };
        let start = if terms.forks { Start::Fork } else { Start::Reuse };
        self.processes
            .iter()
            .filter(|(_, p)| p.function == function && p.stage == Stage::Running)
            .filter(|(_, p)| self.containers[&p.container].stage == Stage::Running)
            .filter(|(_, p)| terms.forks || p.requests() == 0)
            .min_by_key(|(_, p)| (lacks(p), p.requests()))
            .map(|(id, _)| (*id, start))
    }

    /// A new container, or `None` while there are as many as may be; then what is idle makes room.
    fn make_container(&mut self, now: Duration, owner: &str) -> Option<ContainerId> {
        let of_owner = self.containers.values().filter(|c| c.owner == owner).count();
        let is_owner_full = of_owner >= self.terms.owner_containers_max;
        if is_owner_full || self.containers.len() >= self.terms.containers_max {
            if !self.end_idle_process(owner) && !is_owner_full {
                self.end_idle_container();
            }
            return None;
        }
        let id = ContainerId(self.number());
        let container = Container {
            owner: owner.into(),
            stage: Stage::Starting,
            processes: BTreeSet::new(),
            idle_since: now,
        };
        self.containers.insert(id, container);
        self.actions.push_back(Action::Create(id, owner.into()));
        Some(id)
    }

    /// Ends an owner's INIT process that has been idle longest. Whether a place of his comes free.
    fn end_idle_process(&mut self, owner: &str) -> bool {
        let of_owner = || {
            self.processes.iter().filter(|(_, p)| {
                let home = &self.containers[&p.container];
                home.owner == owner && home.stage == Stage::Running
            })
        };
        if of_owner().any(|(_, p)| p.stage == Stage::Ending) {
            return true;
        }
        let idle = of_owner().filter(|(_, p)| p.is_idle());
        let longest = idle.min_by_key(|(_, p)| p.idle_since).map(|(id, _)| *id);
        if let Some(longest) = longest {
            self.end_process(longest);
        }
        longest.is_some()
    }

    /// Ends the container that has been idle longest, if none is being ended.
    fn end_idle_container(&mut self) {
        let is_ending = self.containers.values().any(|c| c.stage == Stage::Ending);
        let idle = self.containers.iter().filter(|(id, _)| self.is_idle(**id));
        let longest = idle.min_by_key(|(_, c)| c.idle_since).map(|(id, _)| *id);
        if let (false, Some(longest)) = (is_ending, longest) {
            self.end_container(longest);
        }
    }

    fn is_running(&self, id: ContainerId) -> bool {
        self.containers.get(&id).is_some_and(|c| c.stage == Stage::Running)
    }

    fn is_idle(&self, id: ContainerId) -> bool {
        let Some(container) = self.containers.get(&id) else { return false };
        container.stage == Stage::Running
            && container.processes.iter().all(|process| self.processes[process].requests() == 0)
    }

    fn look_for_idle(&mut self, now: Duration, id: Option<ContainerId>) {
        let Some(id) = id.filter(|id| self.is_idle(*id)) else { return };
        if let Some(container) = self.containers.get_mut(&id) {
            container.idle_since = now;
        }
    }

    fn end_container(&mut self, id: ContainerId) {
        let Some(container) = self.containers.get_mut(&id) else { return };
        if container.stage != Stage::Ending {
            container.stage = Stage::Ending;
            self.actions.push_back(Action::Delete(id));
        }
    }

    fn end_process(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.stage != Stage::Ending {
            process.stage = Stage::Ending;
            self.actions.push_back(Action::KillProcess(process.container, id));
        }
    }

    fn time_out(&mut self, now: Duration, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let is_taken = request.taken;
        let failure = match is_taken {
            true => Failure::TimedOut(self.functions[&request.function].timeout),
            false => Failure::NotStarted(self.terms.init_timeout),
        };
        let place = request.place;
        self.fail(id, failure);
        let Some((process, start)) = place else { return };
        let Some(init) = self.processes.get_mut(&process) else { return };
        init.handed.retain(|handed| *handed != id);
        init.taken.remove(&id);
        init.idle_since = now;
        let container = init.container;
        if start == Start::Fork && is_taken {
            if init.children.kill(now, id) {
                self.actions.push_back(Action::KillChild(container, process, id));
            }
        } else if self.containers[&container].stage == Stage::Starting {
            self.end_container(container);
        } else {
            // It did not return from its first request, or takes no orders: it would do so with the next ones.
            self.end_process(process);
        }
        self.look_for_idle(now, Some(container));
    }

    fn drop_process(&mut self, id: ProcessId, failure: &Failure) {
        let Some(process) = self.processes.remove(&id) else { return };
        if let Some(container) = self.containers.get_mut(&process.container) {
            container.processes.remove(&id);
        }
        for request in process.handed.into_iter().chain(process.taken) {
            self.fail(request, failure.clone());
        }
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        if self.requests.remove(&id).is_some() {
            self.actions.push_back(Action::Fail(id, failure));
        }
    }
}

#[cfg(test)]
mod tests;
