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

use elver::Gid;

mod answering;
mod children;
mod ending;
mod places;
mod placing;
mod words;

use children::Children;
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
    destinations: BTreeSet<Gid>,
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
        let live = || self.processes.values().filter(|p| p.stage != Stage::Ending);
        let children = live().filter_map(|p| p.children.next());
        let sending = live().flat_map(|p| p.sending.values().copied());
        requests.chain(idle).chain(idle_processes).chain(children).chain(sending).min()
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
        destinations: BTreeSet<Gid>,
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

    /// A request's caller has gone. One that has no place yet is dropped, and nothing is said of it; what a process is about to
    /// take, or has taken, goes on. Whether it was dropped.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        let has_none = self.requests.get(&id).is_some_and(|request| request.place.is_none());
        if has_none {
            self.requests.remove(&id);
            self.waiting.retain(|waiting| *waiting != id);
        }
        has_none
    }

    /// A container's number is taken, by one that an earlier orchestrator made.
    pub fn skip_number(&mut self, id: ContainerId) {
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// A container was found that an earlier orchestrator made. It counts from here on, and takes nothing before it
    /// [runs](Schedule::container_runs), as it does when it has told of its processes.
    pub fn container_found(&mut self, now: Duration, id: ContainerId, owner: &str) {
        self.skip_number(id);
        let container = Container {
            owner: owner.into(),
            stage: Stage::Found,
            processes: BTreeSet::new(),
            idle_since: now,
        };
        self.containers.insert(id, container);
    }

    /// A container tells of an INIT process that an earlier orchestrator started. It is killed if its
    /// function is not its container's owner's, which happens when the configuration changed, or if it is to be forked and
    /// still at its first request, whose caller has gone. Children that it has are killed when their function's time is over,
    /// from now on; one that has threads is itself, since it tells of no child's end then.
    pub fn adopt_process(&mut self, now: Duration, container: ContainerId, found: Found) {
        let Found { process: id, function, connections, takes_orders, has_threads, children } =
            found;
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
        // Numbers begin with the time, and its clock may have been set back.
        let given = children.iter().map(|child| child.0).filter(|child| *child < NUMBER_MAX);
        let last = given.max().map_or(id.0, |child| child.max(id.0));
        self.next = self.next.max(last + 1);
        home.processes.insert(id);
        let process = Process::new(now, container, function);
        let mut process = Process { stage: Stage::Running, has_threads, connections, ..process };
        let FunctionTerms { timeout, forks, .. } = self.functions[function];
        // One that has threads tells of the requests that it runs itself as of children.
        process.has_asked = forks && (!has_threads || children.is_empty());
        let until = now + timeout;
        children.into_iter().for_each(|child| process.children.found(child, until));
        self.processes.insert(id, process);
        self.place_waiting(now);
    }

    /// A container runs, and takes processes.
    pub fn container_runs(&mut self, now: Duration, id: ContainerId) {
        let Some(container) = self.containers.get_mut(&id) else { return };
        if container.stage == Stage::Found {
            container.stage = Stage::Running;
            container.idle_since = now;
        }
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

    /// A container is being ended, which may have died. Its requests fail; it goes on to count among those that there may be,
    /// and takes none, until it has ended.
    pub fn container_ending(&mut self, now: Duration, id: ContainerId, why: &str) {
        self.empty(id, Stage::Ending, why);
        self.place_waiting(now);
    }

    /// The same of one that was to be ended, and the runtime did not do it.
    pub fn container_stays(&mut self, now: Duration, id: ContainerId, why: &str) {
        self.empty(id, Stage::Stuck, why);
        self.place_waiting(now);
    }

    /// An INIT process has connections: its row of the Orchestrator Table.
    pub fn connected(&mut self, id: ProcessId, connections: BTreeSet<Gid>) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.connections = connections;
        }
    }

    /// An INIT process has threads. It has one request at a time from here on, and runs that itself: those that it was to be
    /// forked for meanwhile, and has not taken, get other places.
    pub fn has_threads(&mut self, now: Duration, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.has_threads = true;
        process.children = Children::default();
        for taken in &process.taken {
            if let Some((_, start @ Start::Fork)) =
                self.requests.get_mut(taken).and_then(|request| request.place.as_mut())
            {
                *start = Start::Reuse;
            }
        }
        for handed in std::mem::take(&mut process.handed).into_iter().rev() {
            match self.requests.get_mut(&handed) {
                Some(request) if request.place.is_some_and(|(_, start)| start == Start::Fork) => {
                    request.place = None;
                    self.waiting.push_front(handed);
                }
                _ => process.handed.push_front(handed),
            }
        }
        self.place_waiting(now);
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

    /// Whose a container is.
    pub fn owner_of(&self, id: ContainerId) -> Option<&str> {
        self.containers.get(&id).map(|container| container.owner.as_str())
    }

    /// Whether an INIT process has not answered its first request yet, nor told that it takes orders.
    pub fn is_starting(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|process| process.stage == Stage::Starting)
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

    /// An INIT process that is not forked waits for its next request.
    pub fn asks(&mut self, now: Duration, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.has_asked_since = true;
        if !std::mem::replace(&mut process.has_asked, true) {
            self.place_waiting(now);
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
        process.has_asked_since = false;
        process.taken.insert(id);
        let request = self.requests.get_mut(&id)?;
        request.taken = true;
        request.deadline = now + self.functions[&request.function].timeout;
        let (_, start) = request.place?;
        Some(Taken { request: id, deadline: request.deadline, start })
    }

    /// The child that was forked for a request has ended. Its request fails if it was not answered. One that has threads tells
    /// so of a request that it is done with itself, which may have been given it anew meanwhile.
    pub fn child_ended(&mut self, now: Duration, id: ProcessId, request: RequestId, why: &str) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let is_childs = !process.has_threads;
        process.has_asked |= process.has_threads;
        let waiting = process.handed.len();
        process.handed.retain(|handed| *handed != request || !is_childs);
        let was_its =
            is_childs && (process.handed.len() < waiting || process.taken.remove(&request));
        process.children.ended(request);
        // What another process has of its connection holds up nobody.
        process.sending.remove(&request);
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

    /// An INIT process that has threads could not take a request, or not answer it, and goes on. The request fails if it is
    /// that process's: nobody else would answer it. That the process is done with it is told apart.
    pub fn lost(&mut self, now: Duration, id: ProcessId, request: RequestId, why: &str) {
        let Some(process) = self.processes.get_mut(&id).filter(|process| process.has_threads)
        else {
            return;
        };
        let waiting = process.handed.len();
        process.handed.retain(|handed| *handed != request);
        if process.handed.len() == waiting && !process.taken.remove(&request) {
            return;
        }
        process.idle_since = now;
        let container = process.container;
        self.fail(request, Failure::Ended(why.into()));
        self.look_for_idle(now, Some(container));
        self.place_waiting(now);
    }

    /// What has taken a request has no room for its body, and makes none. The request fails, and what has taken it is ended.
    pub fn has_no_room(&mut self, now: Duration, id: RequestId, why: &str) {
        self.give_up(now, id, Failure::Ended(why.into()));
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

    /// The Orchestrator Table: each INIT process with its container, owner, function, and what it has
    /// connections to.
    pub fn table(&self) -> Vec<Row> {
        let row = |(id, process): (&ProcessId, &Process)| Row {
            container: process.container,
            process: *id,
            owner: self.functions[&process.function].owner.clone(),
            function: process.function.clone(),
            is_started: process.stage == Stage::Running,
            connections: process.connections.iter().map(Gid::to_string).collect(),
            requests: process.requests(),
        };
        self.processes.iter().map(row).collect()
    }

    /// The containers there are, with their owners.
    pub fn containers(&self) -> Vec<(ContainerId, String)> {
        self.containers.iter().map(|(id, c)| (*id, c.owner.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
