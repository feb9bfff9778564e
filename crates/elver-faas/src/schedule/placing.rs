//! Where a request goes: what exists chooses the start (Swift, Figure 4).

use std::collections::BTreeSet;
use std::time::Duration;

use elver::Gid;

use super::Schedule;
use super::places::{Container, Process, Stage};
use super::words::{Action, ContainerId, ProcessId, RequestId, Start};

impl Schedule {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Gives each request that waits a place, oldest first; those that find none wait on.
    pub(super) fn place_waiting(&mut self, now: Duration) {
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
        destinations: BTreeSet<Gid>,
    ) -> Option<(ProcessId, Start)> {
        if let Some((process, start)) = self.started(function, &destinations) {
            let init = self.processes.get_mut(&process)?;
            init.handed.push_back(request);
            if start == Start::Fork {
                init.children.forked(request);
            }
            if start == Start::Fork || init.has_threads {
                let fork = Action::Fork(init.container, process, request, destinations);
                self.actions.push_back(fork);
            }
            return Some((process, start));
        }
        let terms = self.functions.get(function)?;
        let (owner, first_is_child) = (terms.owner.clone(), terms.first_is_child);
        let takes = |c: &Container| matches!(c.stage, Stage::Starting | Stage::Running);
        let mut of_owner = self.containers.iter().filter(|(_, c)| c.owner == owner && takes(c));
        let room = |c: &Container| {
            c.processes.len() < self.terms.processes_max && !self.has_all_requests(c)
        };
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

    /// Whether a container has as many requests as it can take: one more would be kept from its own by the others.
    fn has_all_requests(&self, container: &Container) -> bool {
        let requests = container.processes.iter().map(|process| self.processes[process].requests());
        requests.sum::<usize>() >= self.terms.container_requests_max
    }

    /// A started process of the function: the Orchestrator Table is asked first for one that lacks the fewest of the
    /// connections, and of those that have as many, for one with the fewest requests.
    fn started(&self, function: &str, destinations: &BTreeSet<Gid>) -> Option<(ProcessId, Start)> {
        let terms = self.functions.get(function)?;
        let lacks = |p: &Process| {
            let wanted = terms.destinations.union(destinations);
            wanted.filter(|to| !p.connections.contains(*to)).count()
        };
        let forks = |p: &Process| terms.forks && !p.has_threads;
        self.processes
            .iter()
            .filter(|(_, p)| p.function == function && p.stage == Stage::Running && p.has_asked)
            .filter(|(_, p)| !p.children.is_one_doubted() && p.sending.is_empty())
            .filter(|(_, p)| {
                let home = &self.containers[&p.container];
                home.stage == Stage::Running && !self.has_all_requests(home)
            })
            .filter(|(_, p)| forks(p) || p.requests() == 0)
            .min_by_key(|(_, p)| (lacks(p), p.requests()))
            .map(|(id, p)| (*id, if forks(p) { Start::Fork } else { Start::Reuse }))
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
}
