//! What the orchestrator has of each container, INIT process and request.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::http::Whole;
use super::room::{Part, Room};
use super::stuck::Stuck;
use crate::containers::RuntimeError;
use crate::protocol::Order;
use crate::schedule::{ContainerId, Failure, ProcessId, RequestId, Schedule, Start};

/// Orders that a container has not taken yet. One that takes none is ended.
pub(super) const ORDERS_MAX: usize = 4096;

/// Why an orchestrator cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something of its directory.
    #[error("{what}: {error}")]
    File {
        /// What it was about.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// The container runtime.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
}

/// How a request was answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    pub(super) content_type: String,
    pub(super) is_error: bool,
    pub(super) start: Start,
    pub(super) launch: Duration,
    pub(super) total: Duration,
    /// The body's among those of the container; what the orchestrator itself says has none.
    pub(super) room: Option<Part>,
}

/// A request whose caller waits.
#[derive(Debug)]
pub(super) struct Pending {
    /// Until it is taken.
    pub(super) body: Option<Whole>,
    pub(super) reply: oneshot::Sender<Result<Answer, Failure>>,
    pub(super) arrived: Instant,
    pub(super) taken: Option<Instant>,
    /// Its answer has begun to come.
    pub(super) is_being_answered: bool,
}

/// What a container's processes may have at once.
#[derive(Clone, Debug)]
pub(super) struct Rooms {
    pub(super) connections: Arc<Semaphore>,
    pub(super) bodies: Arc<Room>,
}

/// What a container has on this side.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) orders: Option<mpsc::Sender<Order>>,
    pub(super) control: AbortHandle,
    pub(super) rooms: Rooms,
    /// Held while the runtime is about this container: one is not ended while it is being made.
    pub(super) commands: Rc<Mutex<()>>,
}

/// What an INIT process has on this side.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) function: String,
    pub(super) serving: AbortHandle,
    pub(super) handed: Rc<Notify>,
    pub(super) start_failed: Option<String>,
    pub(super) socket: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
        // It may have gone with its container.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What changes, as one.
pub(super) struct State {
    pub(super) schedule: Schedule,
    pub(super) homes: BTreeMap<ContainerId, Home>,
    pub(super) doors: BTreeMap<ProcessId, Door>,
    pub(super) pending: BTreeMap<RequestId, Pending>,
    pub(super) stuck: BTreeMap<ContainerId, Stuck>,
}

/// What is known of a container ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It is being made.
    New,
    /// It was found running, with this first process.
    Found(i32),
}

/// A deletion that is waited for, however it ends.
pub(super) struct Counted<'a>(&'a Cell<usize>, &'a Notify);

impl Counted<'_> {
    pub(super) fn new<'a>(count: &'a Cell<usize>, done: &'a Notify) -> Counted<'a> {
        count.set(count.get() + 1);
        Counted(count, done)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
        self.1.notify_one();
    }
}
