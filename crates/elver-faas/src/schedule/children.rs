//! Children of an INIT process, each there for one request: when one that does not end by itself is killed, and when its
//! process is at fault for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::words::RequestId;

/// How long a child may go on once its request is answered: it has its output to write, and its end to come to.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// How long an INIT process may take to tell of the end of a child that it was told to kill.
pub(super) const KILL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Child {
    /// It has its request, or is about to.
    AtWork,
    /// Its request is answered, or nobody's any more. It is killed then.
    Answered(Duration),
    /// It was to be killed. Its process takes no orders if it has not told of the end by then.
    Killed(Duration),
    /// The same, of one that did not even take its request: its process may be one that takes no orders.
    Doubted(Duration),
}

/// Those that have not ended, as far as was told.
#[derive(Debug, Default)]
pub(super) struct Children(BTreeMap<RequestId, Child>);

impl Children {
    /// One is forked for a request.
    pub(super) fn forked(&mut self, request: RequestId) {
        self.0.insert(request, Child::AtWork);
    }

    /// Whether one has a request, or is about to.
    pub(super) fn has(&self, request: RequestId) -> bool {
        self.0.contains_key(&request)
    }

    /// Its request is answered.
    pub(super) fn answered(&mut self, now: Duration, request: RequestId) {
        if let Some(child) = self.0.get_mut(&request) {
            *child = Child::Answered(now + LINGER);
        }
    }

    /// One was forked for a request of an earlier orchestrator, which nobody waits for. It has until then.
    pub(super) fn found(&mut self, request: RequestId, until: Duration) {
        self.0.insert(request, Child::Answered(until));
    }

    /// It is to be killed. Whether it is there, as far as is known.
    pub(super) fn kill(&mut self, now: Duration, request: RequestId, has_taken: bool) -> bool {
        let until = now + KILL;
        match self.0.get_mut(&request) {
            Some(child) if has_taken => *child = Child::Killed(until),
            Some(child) => *child = Child::Doubted(until),
            None => return false,
        }
        true
    }

    /// Whether one did not take its request, and has not been told of as killed.
    pub(super) fn is_one_doubted(&self) -> bool {
        self.0.values().any(|child| matches!(child, Child::Doubted(_)))
    }

    /// It has ended.
    pub(super) fn ended(&mut self, request: RequestId) {
        self.0.remove(&request);
    }

    /// Those that have answered and are to be killed now.
    pub(super) fn lingering(&mut self, now: Duration) -> Vec<RequestId> {
        let late = |(id, child): (&RequestId, &Child)| match child {
            Child::Answered(until) if *until <= now => Some(*id),
            _ => None,
        };
        let late: Vec<RequestId> = self.0.iter().filter_map(late).collect();
        for request in &late {
            self.kill(now, *request, true);
        }
        late
    }

    /// Whether one should have been told of as killed.
    pub(super) fn is_one_overdue(&self, now: Duration) -> bool {
        let until = |child: &Child| match child {
            Child::AtWork | Child::Answered(_) => None,
            Child::Killed(until) | Child::Doubted(until) => Some(*until),
        };
        self.0.values().filter_map(until).any(|until| until <= now)
    }

    /// When there is something to do about one.
    pub(super) fn next(&self) -> Option<Duration> {
        let until = |child: &Child| match child {
            Child::AtWork => None,
            Child::Answered(until) | Child::Killed(until) | Child::Doubted(until) => Some(*until),
        };
        self.0.values().filter_map(until).min()
    }
}
