//! What the schedule is told, and what it says.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use elver::Gid;
use serde::{Deserialize, Serialize};

use crate::gids;

/// A container's number, which no other one has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerId(pub u64);

/// An INIT process's number, unique over all containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// How a request was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// In a new container.
    Cold,
    /// In a new INIT process of a container that there was.
    Warm,
    /// In a child of an INIT process.
    Fork,
    /// In a process that waited for its next request, as Lambda's programs do, and INIT processes that have threads.
    Reuse,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Start::Cold => "cold",
            Start::Warm => "warm",
            Start::Fork => "fork",
            Start::Reuse => "reuse",
        })
    }
}

/// What there may be at most, and how long things take.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Containers at once.
    pub containers_max: usize,
    /// Containers of one owner at once.
    pub owner_containers_max: usize,
    /// INIT processes in one container.
    pub processes_max: usize,
    /// Requests that one container's processes have at once.
    pub container_requests_max: usize,
    /// Requests that wait or run.
    pub requests_max: usize,
    /// How long a container, and an INIT process, without requests is kept.
    pub keep_alive: Duration,
    /// How long a request may wait until it is taken.
    pub init_timeout: Duration,
}

/// What the schedule has to know of a function.
#[derive(Clone, Debug)]
pub struct FunctionTerms {
    /// Whose it is.
    pub owner: String,
    /// Whether its INIT process can be forked.
    pub forks: bool,
    /// Whether a child has its first request too, and not the INIT process itself.
    pub first_is_child: bool,
    /// What its INIT process is to be connected with.
    pub destinations: BTreeSet<Gid>,
    /// How long a request may run.
    pub timeout: Duration,
    /// Requests at once.
    pub concurrency_max: usize,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a container of the owner, and start it.
    Create(ContainerId, String),
    /// Start an INIT process of the function in the container, for the request.
    Spawn(ContainerId, ProcessId, RequestId, String),
    /// Fork the INIT process for the request, which wants connections to these beside the function's destinations. One that
    /// has threads runs it itself.
    Fork(ContainerId, ProcessId, RequestId, BTreeSet<Gid>),
    /// Kill the child that has the request.
    KillChild(ContainerId, ProcessId, RequestId),
    /// Kill the INIT process and all of its children.
    KillProcess(ContainerId, ProcessId),
    /// End the container, whatever runs in it.
    Delete(ContainerId),
    /// Tell the caller that his request failed.
    Fail(RequestId, Failure),
}

/// Why a request has no answer of its function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such function.
    #[error("there is no function {0:?}; `elver faas list` shows them")]
    Unknown(String),
    /// As many as may be at once.
    #[error("{what} may have {most} requests at once, and has them; try again later")]
    TooMany {
        /// Function or orchestrator.
        what: String,
        /// The limit.
        most: usize,
    },
    /// Neither container nor runtime was there in time.
    #[error("nothing took the request within {} ms: no container or its runtime did not start", .0.as_millis())]
    NotStarted(Duration),
    /// The handler did not return in time, and was killed.
    #[error("the function did not answer within {} ms, and was killed", .0.as_millis())]
    TimedOut(Duration),
    /// Its process ended before it answered.
    #[error("the function's process ended without an answer: {0}")]
    Ended(String),
    /// Its container ended, or could not be made.
    #[error("the function's container ended: {0}")]
    Container(String),
}

/// An INIT process that a container has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its number.
    pub process: ProcessId,
    /// The function's name.
    pub function: String,
    /// What it has connections to.
    #[serde(with = "gids")]
    pub connections: BTreeSet<Gid>,
    /// Whether it has done with its first request, and forks when it is told to.
    pub takes_orders: bool,
    /// Whether it has threads, and runs requests itself.
    pub has_threads: bool,
    /// Requests that it has children for, or runs itself where it has threads.
    #[serde(default)]
    pub children: BTreeSet<RequestId>,
}

/// A request that a process took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The request.
    pub request: RequestId,
    /// When it is killed.
    pub deadline: Duration,
    /// How it was started.
    pub start: Start,
}

/// A row of the Orchestrator Table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The container.
    pub container: ContainerId,
    /// The INIT process.
    pub process: ProcessId,
    /// Whose it is.
    pub owner: String,
    /// The function that it has imported.
    pub function: String,
    /// Whether it has answered its first request, and can be forked.
    pub is_started: bool,
    /// What it has connections to.
    pub connections: BTreeSet<String>,
    /// Requests that it, or its children, have now.
    pub requests: usize,
}
