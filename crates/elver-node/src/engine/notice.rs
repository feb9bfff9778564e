//! How other threads speak to the engine: a bounded channel, and a descriptor that wakes it.
#![allow(clippy::disallowed_types, reason = "how long the engine is waited for")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use elver_core::NodeRecord;
use elver_portal::Socket;
use elver_soft::record::{LinkType, Tap};
use elver_verbs::Gid;
use rustix::event::{EventfdFlags, eventfd};

use super::news::Waiting;
use super::orders::{Cleared, Filed, Looked, Made, Readied};
use crate::capture::VqpName;
use crate::registry::News;
use crate::status::Status;

/// Notices that may wait; then their senders do.
pub(super) const NOTICES_MAX: usize = 256;
/// Time between two tries of a sender that waits.
const RETRY: Duration = Duration::from_millis(1);
/// How long one waits for an answer of the engine's.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Time between two looks of one who waits for an answer whether the engine is ending.
const ANSWER_LOOK: Duration = Duration::from_millis(10);

/// What other threads tell the engine.
pub(crate) enum Notice {
    /// The registry has news.
    News(News),
    /// The registry beside this meta server has a node for the table.
    Put { gid: Gid, record: NodeRecord, answer: SyncSender<Result<(), String>> },
    /// A node left the table.
    Remove { gid: Gid },
    /// Somebody wants to know how the node is.
    Status { answer: SyncSender<Status> },
    /// A process connected in a way of its own: this one, to its embedded node.
    Adopt { socket: Socket },
    /// Somebody wants what goes over the link from now on, and to know what that is.
    Tap { tap: Tap, answer: SyncSender<(LinkType, String)> },
    /// Nobody does any more.
    Untap { answer: SyncSender<()> },
    /// Somebody wants to know which VQPs send on which queue pairs.
    Names { answer: SyncSender<Vec<VqpName>> },
    /// Memory that was asked for is there, or not.
    Made(Made),
    /// The file of sessions that are made ahead is there, or not.
    Filed(Filed),
    /// Memory that is to be registered was looked at.
    Looked(Looked),
    /// Memory that was a process's was given back to the system.
    Cleared(Cleared),
    /// The place of a session that is to be made ahead is there and empty, or not.
    Readied(Box<Readied>),
}

/// The engine's end.
pub(crate) struct Inlet {
    notices: Receiver<Notice>,
    /// News that were taken and not heard yet.
    news: VecDeque<News>,
    bell: Arc<Bell>,
}

/// The others' end; clones are as good.
#[derive(Clone)]
pub(crate) struct Outlet {
    notices: SyncSender<Notice>,
    bell: Arc<Bell>,
}

struct Bell {
    /// Looked at in every round, so that an engine that is awake makes no system call for it.
    rung: AtomicBool,
    /// The engine hears no more.
    closed: AtomicBool,
    wake: OwnedFd,
    /// What the registry told; nobody who tells it waits.
    news: Mutex<Waiting>,
}

/// The engine is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has ended")]
pub(crate) struct EngineGone;

/// Both ends of a channel.
pub(crate) fn channel() -> io::Result<(Outlet, Inlet)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let bell = Arc::new(Bell {
        rung: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        wake,
        news: Mutex::default(),
    });
    let (sender, receiver) = sync_channel(NOTICES_MAX);
    let outlet = Outlet { notices: sender, bell: bell.clone() };
    Ok((outlet, Inlet { notices: receiver, news: VecDeque::new(), bell }))
}

impl Outlet {
    /// Tells the engine; waits while it has too much to hear.
    pub(crate) fn send(&self, mut notice: Notice) -> Result<(), EngineGone> {
        loop {
            if self.bell.closed.load(Ordering::Relaxed) {
                return Err(EngineGone);
            }
            let sent = self.notices.try_send(notice);
            self.ring();
            notice = match sent {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(EngineGone),
                Err(TrySendError::Full(back)) => back,
            };
            std::thread::park_timeout(RETRY);
        }
    }

    /// Tells the engine; false if it has too much to hear, or is gone.
    pub(crate) fn try_send(&self, notice: Notice) -> bool {
        let sent = self.notices.try_send(notice).is_ok();
        self.ring();
        sent
    }

    /// Tells the engine what the registry told, and waits for nothing.
    pub(crate) fn tell(&self, news: News) -> Result<(), EngineGone> {
        if self.bell.closed.load(Ordering::Relaxed) {
            return Err(EngineGone);
        }
        // Who panicked while it told something has told it, or not.
        self.bell.news.lock().unwrap_or_else(PoisonError::into_inner).put(news);
        self.ring();
        Ok(())
    }

    /// Asks the engine something; none if it is ending, or is not driven.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Notice) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        self.send(question(answer)).ok()?;
        let limit = Instant::now() + ANSWER_WAIT;
        loop {
            match answered.recv_timeout(ANSWER_LOOK) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.bell.closed.load(Ordering::Relaxed) || Instant::now() > limit {
                return None;
            }
        }
    }

    /// The engine is ending: nobody waits for it from now on.
    pub(crate) fn close(&self) {
        self.bell.closed.store(true, Ordering::Relaxed);
    }

    /// Makes the engine look around.
    pub(crate) fn ring(&self) {
        self.bell.rung.store(true, Ordering::Release);
        // It fails only when the counter is full, and then the engine is being woken already.
        let _ = rustix::io::write(&self.bell.wake, &1u64.to_ne_bytes());
    }
}

impl Inlet {
    /// Takes a notice, if there is one.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Notice> {
        if !self.bell.rung.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    #[cold]
    fn take(&mut self) -> Option<Notice> {
        // First, so that one who rings while we look is not missed.
        self.bell.rung.store(false, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        match self.notices.try_recv() {
            Ok(notice) => {
                // There may be more.
                self.bell.rung.store(true, Ordering::Relaxed);
                Some(notice)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => self.next_news(),
        }
    }

    fn next_news(&mut self) -> Option<Notice> {
        if self.news.is_empty() {
            let mut waiting = self.bell.news.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = std::mem::take(&mut *waiting);
            drop(waiting);
            self.news.extend(taken.told());
        }
        let news = self.news.pop_front()?;
        self.bell.rung.store(true, Ordering::Relaxed);
        Some(Notice::News(news))
    }

    /// Makes the descriptor wait for the next ring.
    pub(crate) fn hush(&self) {
        let mut counter = [0; 8];
        // Nothing to read means that nobody rang.
        let _ = rustix::io::read(&self.bell.wake, &mut counter);
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.wake.as_fd()
    }
}
