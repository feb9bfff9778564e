//! Where requests run: containers, and INIT processes in them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use elver::Gid;

use super::children::Children;
use super::words::{ContainerId, ProcessId, RequestId};

#[derive(Debug)]
pub(super) struct Container {
    pub(super) owner: String,
    pub(super) stage: Stage,
    pub(super) processes: BTreeSet<ProcessId>,
    pub(super) idle_since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Starting,
    /// A container of an earlier orchestrator's that has not told of its processes yet: it counts, and takes nothing.
    Found,
    Running,
    Ending,
    /// A container that was to be ended, and is not: it has nothing, and counts.
    Stuck,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) container: ContainerId,
    pub(super) function: String,
    pub(super) stage: Stage,
    /// It runs requests itself, one after the other: a child would not have its threads.
    pub(super) has_threads: bool,
    /// It is known to wait for requests, or to take orders. One that was found may be at an earlier orchestrator's request,
    /// whose answer is refused; there are programs that end then. One whose response was cut may be dying.
    pub(super) has_asked: bool,
    /// It has asked since it took a request last.
    pub(super) has_asked_since: bool,
    /// The Orchestrator Table's row: what it has connections to.
    pub(super) connections: BTreeSet<Gid>,
    /// Requests for it that nobody has taken yet, oldest first.
    pub(super) handed: VecDeque<RequestId>,
    /// Requests that it, or a child of it, has taken.
    pub(super) taken: BTreeSet<RequestId>,
    /// Requests that are answered, and of whose response it still sends what is of no use: until when it may.
    pub(super) sending: BTreeMap<RequestId, Duration>,
    pub(super) children: Children,
    pub(super) idle_since: Duration,
}

impl Process {
    pub(super) fn new(now: Duration, container: ContainerId, function: &str) -> Process {
        Process {
            container,
            function: function.into(),
            stage: Stage::Starting,
            has_threads: false,
            has_asked: true,
            has_asked_since: false,
            connections: BTreeSet::new(),
            handed: VecDeque::new(),
            taken: BTreeSet::new(),
            sending: BTreeMap::new(),
            children: Children::default(),
            idle_since: now,
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.taken.len() + self.handed.len() + self.sending.len()
    }

    /// Whether it should have sent a response to its end.
    pub(super) fn sends_too_long(&self, now: Duration) -> bool {
        self.sending.values().any(|until| *until <= now)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Running && self.requests() == 0
    }
}
