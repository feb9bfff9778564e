//! Requests that their processes answer, to the end of the response or ahead of it.

use std::time::Duration;

use super::Schedule;
use super::places::Stage;
use super::words::{ProcessId, RequestId, Start};

impl Schedule {
    /// A process answers a request, with a result or an error of its own. `None` if the request is
    /// none that it has taken: of another process, of another owner, late, or never there.
    pub fn answered(&mut self, now: Duration, id: ProcessId, request: RequestId) -> Option<Start> {
        let process = self.processes.get_mut(&id)?;
        if !process.taken.remove(&request) {
            return None;
        }
        self.conclude(now, id, request)
    }

    /// The same, where the process still sends what is of no use. It gets no other request before it [has
    /// sent](Schedule::sent) that, and is ended if that takes longer than its request might have taken; a child that has
    /// the request is as one that has answered.
    pub fn answered_ahead(
        &mut self,
        now: Duration,
        id: ProcessId,
        request: RequestId,
    ) -> Option<Start> {
        let process = self.processes.get_mut(&id)?;
        if !process.taken.remove(&request) {
            return None;
        }
        if !process.children.has(request) {
            process.sending.insert(request, self.requests.get(&request)?.deadline);
        }
        self.conclude(now, id, request)
    }

    /// A process sends no more of a response that was answered ahead of its end.
    pub fn sent(&mut self, now: Duration, id: ProcessId, request: RequestId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.sending.remove(&request).is_none() {
            return;
        }
        process.idle_since = now;
        let container = process.container;
        self.look_for_idle(now, Some(container));
        self.place_waiting(now);
    }

    /// No more comes of a response that is not whole, which may be answered already. Its process may be dying, which is told
    /// of later: one that is not forked gets no other request before it asks for it.
    pub fn cut(&mut self, now: Duration, id: ProcessId, request: RequestId) -> Option<Start> {
        let process = self.processes.get_mut(&id)?;
        let is_its = process.taken.contains(&request) || process.sending.contains_key(&request);
        if is_its && !self.functions[&process.function].forks {
            process.has_asked = process.has_asked_since;
        }
        let start = self.answered(now, id, request);
        self.sent(now, id, request);
        start
    }

    fn conclude(&mut self, now: Duration, id: ProcessId, request: RequestId) -> Option<Start> {
        let process = self.processes.get_mut(&id)?;
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
}
