//! What a handler knows of its call, and how it answers later.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use elver::{Gid, Waker};

use crate::message::{Message, encode};
use crate::protocol::CallId;
use crate::status::{Code, Status};

/// A call, as its handler has it.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) client: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) cancelled: Option<Arc<AtomicBool>>,
}

impl Context {
    /// Which of the server's clients calls: a number that no other of them has had.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// When nobody waits for the answer any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How long somebody still waits; zero if nobody does.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether nobody waits for the answer any more: the call was cancelled, its client is gone, or its
    /// deadline has passed. A handler that answers before it returns only learns of the deadline, since
    /// nothing is read meanwhile.
    pub fn is_cancelled(&self) -> bool {
        let cancelled = self.cancelled.as_ref();
        cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
            || self.remaining().is_some_and(|remaining| remaining.is_zero())
    }
}

/// Where an answer belongs that comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) client: u64,
    /// Where the client is.
    pub(super) node: Option<Gid>,
    pub(super) call: CallId,
}

/// An answer that comes later.
pub(super) struct Late {
    pub(super) place: Place,
    pub(super) reply: Result<Vec<u8>, Status>,
}

/// The way back to the server's thread, from any other.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    late: mpsc::Sender<Late>,
    waker: Waker,
    /// The server sleeps, or is about to.
    asleep: Arc<AtomicBool>,
}

impl Returns {
    pub(super) fn new(late: mpsc::Sender<Late>, waker: Waker) -> Returns {
        Returns { late, waker, asleep: Arc::default() }
    }

    /// The server is about to sleep: what is brought from here on wakes it, and it looks once more for what
    /// came before.
    pub(super) fn lie_down(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub(super) fn rise(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn bring(&self, late: Late) {
        // A server that is gone needs no answer.
        let _ = self.late.send(late);
        fence(Ordering::SeqCst);
        // Looked at first: most answers find it awake.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// Answers a call, later and from any thread. Dropped without an answer, the call fails with
/// [`Code::Internal`].
#[derive(Debug)]
#[must_use = "a call that is not answered fails"]
pub struct Responder<Response> {
    returns: Returns,
    place: Place,
    context: Context,
    answered: bool,
    response: PhantomData<fn(Response)>,
}

impl<Response: Message> Responder<Response> {
    pub(super) fn new(returns: Returns, place: Place, context: Context) -> Responder<Response> {
        Responder { returns, place, context, answered: false, response: PhantomData }
    }

    /// The call.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Answers.
    pub fn respond(mut self, reply: Result<Response, Status>) {
        self.answered = true;
        let reply = reply.map(|response| encode(&response));
        self.returns.bring(Late { place: self.place, reply });
    }
}

impl<Response> Drop for Responder<Response> {
    fn drop(&mut self) {
        if !self.answered {
            let reply = Err(Status::new(Code::Internal, "the handler gave no answer"));
            self.returns.bring(Late { place: self.place, reply });
        }
    }
}
