//! What ends: requests whose time is over, children, and processes and containers that are idle.

use std::time::Duration;

use super::Schedule;
use super::places::Stage;
use super::words::{Action, ContainerId, Failure, ProcessId, RequestId, Start};

impl Schedule {
    pub(super) fn look_after_processes(&mut self, now: Duration) {
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
            // One that sends on is as one that does not return from its request.
            let is_late = process.children.is_one_overdue(now) || process.sends_too_long(now);
            if is_old || is_late {
                to_end.push(*id);
            }
        }
        for id in to_end {
            self.end_process(id);
        }
    }

    pub(super) fn is_running(&self, id: ContainerId) -> bool {
        self.containers.get(&id).is_some_and(|c| c.stage == Stage::Running)
    }

    pub(super) fn is_idle(&self, id: ContainerId) -> bool {
        let Some(container) = self.containers.get(&id) else { return false };
        container.stage == Stage::Running
            && container.processes.iter().all(|process| self.processes[process].requests() == 0)
    }

    pub(super) fn look_for_idle(&mut self, now: Duration, id: Option<ContainerId>) {
        let Some(id) = id.filter(|id| self.is_idle(*id)) else { return };
        if let Some(container) = self.containers.get_mut(&id) {
            container.idle_since = now;
        }
    }

    pub(super) fn end_container(&mut self, id: ContainerId) {
        let Some(container) = self.containers.get_mut(&id) else { return };
        if container.stage != Stage::Ending {
            container.stage = Stage::Ending;
            self.actions.push_back(Action::Delete(id));
        }
    }

    pub(super) fn end_process(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.stage != Stage::Ending {
            process.stage = Stage::Ending;
            self.actions.push_back(Action::KillProcess(process.container, id));
        }
    }

    pub(super) fn time_out(&mut self, now: Duration, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let failure = match request.taken {
            true => Failure::TimedOut(self.functions[&request.function].timeout),
            false => Failure::NotStarted(self.terms.init_timeout),
        };
        self.give_up(now, id, failure);
    }

    /// A request fails, and what has it is ended.
    pub(super) fn give_up(&mut self, now: Duration, id: RequestId, failure: Failure) {
        let Some(request) = self.requests.get(&id) else { return };
        let (is_taken, place) = (request.taken, request.place);
        self.fail(id, failure);
        let Some((process, start)) = place else { return };
        let Some(init) = self.processes.get_mut(&process) else { return };
        init.handed.retain(|handed| *handed != id);
        init.taken.remove(&id);
        init.idle_since = now;
        let container = init.container;
        if start == Start::Fork {
            // Its process is at fault only if it does not tell of the child's end: it has others, and what kept this one
            // from its request may be that they are many.
            if init.children.kill(now, id, is_taken) {
                self.actions.push_back(Action::KillChild(container, process, id));
            }
        } else if self.containers[&container].stage == Stage::Starting {
            self.end_container(container);
        } else {
            // It did not return from a request of its own: it would not do so from the next ones.
            self.end_process(process);
        }
        self.look_for_idle(now, Some(container));
    }

    /// Takes from a container all that it has, whose requests fail.
    pub(super) fn empty(&mut self, id: ContainerId, stage: Stage, why: &str) {
        let Some(container) = self.containers.get_mut(&id) else { return };
        container.stage = stage;
        for process in std::mem::take(&mut container.processes) {
            self.drop_process(process, &Failure::Container(why.into()));
        }
    }

    pub(super) fn drop_process(&mut self, id: ProcessId, failure: &Failure) {
        let Some(process) = self.processes.remove(&id) else { return };
        if let Some(container) = self.containers.get_mut(&process.container) {
            container.processes.remove(&id);
        }
        for request in process.handed.into_iter().chain(process.taken) {
            self.fail(request, failure.clone());
        }
    }

    pub(super) fn fail(&mut self, id: RequestId, failure: Failure) {
        if self.requests.remove(&id).is_some() {
            self.actions.push_back(Action::Fail(id, failure));
        }
    }
}
