//! Who waits in tasks of asyncio for what a session is told, and the event loop that watches the session for them.
//!
//! The loop watches the session's descriptor. A look takes all that the node told, wakes whom that concerns, and arms the
//! descriptor if others sleep on; what comes between the two is not missed, since a session with something to take cannot be
//! armed, and with what a look has taken itself in passing it begins anew. A call that waits without the loop may take what a task
//! sleeps for, and its waking with it: the session says so (`Session::wake_on_news`), and a second descriptor, which the loop
//! watches too, leads to a look.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task;
use std::time::Duration;

use elver::Ready;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use rustix::event::{EventfdFlags, eventfd};

use crate::errors::Error;
use crate::memory::Piece;
use crate::own;
use crate::taking::Left;

/// Nobody sleeps.
const IDLE: u8 = 0;
/// The session is armed: its descriptor, or `News`, leads to a look.
const ARMED: u8 = 1;
/// A look goes on, or will come.
const DUE: u8 = 2;
/// The same, and something was taken meanwhile.
const AGAIN: u8 = 3;
/// Looks in a row that find something, before other tasks run.
const LOOKS: u32 = 8;

/// Who waits for a session. All handles of a session share it.
pub(crate) struct Waits {
    pub(crate) session: elver::Session,
    news: Arc<News>,
    waker: task::Waker,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    watched: Option<Watched>,
    last: u64,
    /// How many sleep, on whatever.
    asleep: usize,
    /// For answers of the node's.
    answers: Vec<Sleeper>,
    /// For something of a VQP's, by its number.
    vqps: HashMap<u32, OfVqp>,
    /// By the numbers of VQPs that are not among those.
    left: HashMap<u32, Left>,
}

/// The event loop that watches the session, and what it calls.
struct Watched {
    /// Not kept: it may lead back to the session, by what its tasks and handlers hold.
    event_loop: Py<PyWeakrefReference>,
    look: Py<Look>,
}

struct OfVqp {
    source: Weak<dyn Source>,
    sleepers: Vec<Sleeper>,
}

/// A VQP, which keeps what it is told for whom it concerns.
pub(crate) trait Source: Any {
    /// Takes what was told of it.
    fn take(&self) -> Result<(), elver::Error>;
    /// Whether it has failed, so that whoever sleeps on it must look.
    fn has_failed(&self) -> bool;
}

/// What a task sleeps on.
#[derive(Clone, Copy)]
pub(crate) enum On {
    Answers,
    Vqp(u32),
}

/// A task that sleeps.
struct Sleeper {
    id: u64,
    future: Py<PyAny>,
    is_up: IsUp,
}

/// Whether there is what a task sleeps for.
pub(crate) type IsUp = Rc<dyn Fn() -> bool>;

/// Hears that something was taken of what the node told.
struct News {
    state: AtomicU8,
    /// Made when an event loop is first to watch it: most sessions are never waited for so.
    fd: OnceLock<OwnedFd>,
}

impl task::Wake for News {
    fn wake(self: Arc<Self>) {
        match (self.state.load(Ordering::Relaxed), self.fd.get()) {
            (ARMED, Some(fd)) => {
                self.state.store(DUE, Ordering::Relaxed);
                // It can only be full, which is as good.
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
            (DUE, _) => self.state.store(AGAIN, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl News {
    fn fd(&self) -> PyResult<&OwnedFd> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| PyErr::from(std::io::Error::from(error)))?;
        Ok(self.fd.get_or_init(|| fd))
    }
}

impl Waits {
    pub(crate) fn new(session: elver::Session) -> Rc<Waits> {
        let news = Arc::new(News { state: AtomicU8::new(IDLE), fd: OnceLock::new() });
        let waker = task::Waker::from(news.clone());
        Rc::new(Waits { session, news, waker, state: RefCell::default() })
    }

    /// A number that nothing else of the session has.
    pub(crate) fn number(&self) -> u64 {
        let last = &mut self.state.borrow_mut().last;
        *last += 1;
        *last
    }

    /// Tells of a VQP that the session has.
    pub(crate) fn add(&self, vqp: u32, source: Weak<dyn Source>) {
        let vqps = &mut self.state.borrow_mut().vqps;
        vqps.insert(vqp, OfVqp { source, sleepers: Vec::new() });
    }

    /// One that was told of, and is there.
    pub(crate) fn source(&self, vqp: u32) -> Option<Rc<dyn Source>> {
        self.state.borrow().vqps.get(&vqp)?.source.upgrade()
    }

    /// Keeps what is under way by a VQP that was removed, until it has come back or the session is closed.
    pub(crate) fn leave(&self, vqp: elver::Vqp, pieces: Vec<(u64, Piece)>) {
        let mut state = self.state.borrow_mut();
        if !state.is_closed {
            state.left.insert(vqp.id(), Left::new(vqp, pieces));
        }
    }

    /// What a VQP left that is held again.
    pub(crate) fn take_left(&self, vqp: u32) -> Vec<(u64, Piece)> {
        let left = self.state.borrow_mut().left.remove(&vqp);
        left.map_or_else(Vec::new, Left::into_pieces)
    }

    pub(crate) fn remove(&self, vqp: u32) {
        let mut state = self.state.borrow_mut();
        let removed = state.vqps.remove(&vqp);
        state.asleep -= removed.as_ref().map_or(0, |of| of.sleepers.len());
        drop(state);
        drop(removed);
    }

    /// An error once the session was closed. Each call begins with it, when nothing is borrowed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        own::take_back();
        if self.state.borrow().is_closed {
            return Err(Error::new_err("this session was closed; open another one"));
        }
        Ok(())
    }

    /// The session is closed: whoever waits for it looks, and hears so. Who waits for the end of the closing has it watched
    /// again, until [`Waits::end`].
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.is_closed = true;
        let left = std::mem::take(&mut state.left);
        drop(state);
        drop(left);
        self.end();
    }

    /// Nobody waits for the session any more.
    pub(crate) fn end(&self) {
        Python::attach(|py| self.unwatch(py));
        self.wake_all();
    }

    /// Takes what was told of VQPs that are ready, and wakes whom it concerns.
    pub(crate) fn dispatch(&self, ready: Vec<Ready>) -> Result<(), elver::Error> {
        for one in ready {
            let Ready::Vqp(vqp) = one else { continue };
            match self.source(vqp.id()) {
                Some(source) => {
                    source.take()?;
                    self.wake(vqp.id());
                }
                // One back to a sender, or one that is being connected, which concerns nobody now: it is listed no more.
                None => self.dispatch_left(vqp)?,
            }
        }
        Ok(())
    }

    fn dispatch_left(&self, vqp: elver::Vqp) -> Result<(), elver::Error> {
        let id = vqp.id();
        let left = self.state.borrow_mut().left.remove(&id);
        let mut left = left.unwrap_or_else(|| Left::new(vqp, Vec::new()));
        // Where memory goes, code of the program may run.
        if !left.take()? {
            self.state.borrow_mut().left.insert(id, left);
        }
        Ok(())
    }

    /// Waits at most so long until something was told, and takes it for whom it concerns.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> Result<(), elver::Error> {
        self.dispatch(self.session.wait_ready(at_most)?)
    }

    /// Wakes whoever has something at a VQP.
    pub(crate) fn wake(&self, vqp: u32) {
        let mut state = self.state.borrow_mut();
        let Some(of) = state.vqps.get_mut(&vqp).filter(|of| !of.sleepers.is_empty()) else {
            return;
        };
        let has_failed = of.source.upgrade().is_none_or(|source| source.has_failed());
        let awake: Vec<_> =
            of.sleepers.extract_if(.., |sleeper| has_failed || (sleeper.is_up)()).collect();
        state.asleep -= awake.len();
        drop(state);
        wake(awake);
    }

    fn wake_answered(&self) {
        let mut state = self.state.borrow_mut();
        let awake: Vec<_> = state.answers.extract_if(.., |sleeper| (sleeper.is_up)()).collect();
        state.asleep -= awake.len();
        drop(state);
        wake(awake);
    }

    fn wake_all(&self) {
        wake(self.sleepers());
    }

    /// A future that is done when there is something for a task that has looked and found nothing, and the number by which it
    /// is forgotten.
    pub(crate) fn sleep<'py>(
        self: &Rc<Self>,
        py: Python<'py>,
        on: On,
        is_up: IsUp,
    ) -> PyResult<(u64, Bound<'py, PyAny>)> {
        let event_loop = running_loop(py)?;
        self.watch(&event_loop)?;
        let future = event_loop.call_method0("create_future")?;
        let id = self.number();
        let mut state = self.state.borrow_mut();
        let sleeper = Sleeper { id, future: future.clone().unbind(), is_up: is_up.clone() };
        state.asleep += 1;
        match on {
            On::Answers => state.answers.push(sleeper),
            On::Vqp(vqp) => match state.vqps.get_mut(&vqp) {
                Some(of) => of.sleepers.push(sleeper),
                // It is made with its place there, and the task keeps it.
                None => unreachable!("a VQP without a place among those of its session"),
            },
        }
        let look = state.watched.as_ref().map(|watched| watched.look.clone_ref(py));
        drop(state);
        if is_up() {
            // By what other code of the program has done since the task looked.
            future.call_method1("set_result", (py.None(),))?;
        }
        if self.news.state.load(Ordering::Relaxed) == IDLE {
            self.news.state.store(DUE, Ordering::Relaxed);
            event_loop.call_method1("call_soon", (look, false))?;
        }
        Ok((id, future))
    }

    /// A task sleeps no more.
    pub(crate) fn forget(&self, on: On, id: u64) {
        let mut state = self.state.borrow_mut();
        let sleepers = match on {
            On::Answers => Some(&mut state.answers),
            On::Vqp(vqp) => state.vqps.get_mut(&vqp).map(|of| &mut of.sleepers),
        };
        let at = sleepers.and_then(|all| Some((all.iter().position(|one| one.id == id)?, all)));
        let forgotten = at.map(|(at, all)| all.remove(at));
        state.asleep -= usize::from(forgotten.is_some());
        drop(state);
        drop(forgotten);
    }

    /// Has an event loop watch the session, if it does not.
    fn watch(self: &Rc<Self>, event_loop: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = event_loop.py();
        let before = self.state.borrow().watched.as_ref().map(|it| it.event_loop.clone_ref(py));
        if let Some(before) = before {
            let before = before.bind(py).upgrade();
            if before.as_ref().is_some_and(|before| before.is(event_loop)) {
                return Ok(());
            }
            let is_closed = |it: Bound<'_, PyAny>| it.call_method0("is_closed")?.is_truthy();
            if before.map_or(Ok(true), is_closed)? {
                // Its tasks are, too.
                drop(self.sleepers());
            } else if self.has_sleepers() {
                let text =
                    "tasks of another event loop wait for this session; open one for this loop";
                return Err(PyRuntimeError::new_err(text));
            }
            self.unwatch(py);
        }
        let look = Py::new(py, Look(Rc::downgrade(self)))?;
        let (session, news) = (self.session.as_fd().as_raw_fd(), self.news.fd()?.as_raw_fd());
        event_loop.call_method1("add_reader", (session, &look, false))?;
        event_loop.call_method1("add_reader", (news, &look, true))?;
        let event_loop = PyWeakrefReference::new(event_loop)?.unbind();
        self.state.borrow_mut().watched = Some(Watched { event_loop, look });
        Ok(())
    }

    /// Has no event loop watch the session.
    fn unwatch(&self, py: Python<'_>) {
        self.news.state.store(IDLE, Ordering::Relaxed);
        let watched = self.state.borrow_mut().watched.take();
        let watched = watched.as_ref().and_then(|it| it.event_loop.bind(py).upgrade());
        let Some(event_loop) = watched else { return };
        if !self.session.origin().is_here() {
            // In a child, whose loop and its parent's have one epoll.
            return;
        }
        let news = self.news.fd.get().map(AsRawFd::as_raw_fd);
        for fd in news.into_iter().chain([self.session.as_fd().as_raw_fd()]) {
            // One that is closed watches nothing.
            let _ = event_loop.call_method1("remove_reader", (fd,));
        }
    }

    fn sleepers(&self) -> Vec<Sleeper> {
        let mut state = self.state.borrow_mut();
        let mut all = std::mem::take(&mut state.answers);
        for of in state.vqps.values_mut() {
            all.append(&mut of.sleepers);
        }
        state.asleep = 0;
        all
    }

    fn has_sleepers(&self) -> bool {
        self.state.borrow().asleep > 0
    }

    /// Takes all that was told, wakes whom it concerns, and arms the session if others sleep on.
    fn look(&self, py: Python<'_>) -> PyResult<()> {
        own::take_back();
        for _ in 0..LOOKS {
            let ready = self.session.poll_ready();
            // Each call from here on may take what is for a VQP, or an answer, that was looked at before.
            self.news.state.store(DUE, Ordering::Relaxed);
            self.session.wake_on_news(&self.waker);
            let taken = ready.and_then(|ready| self.dispatch(ready));
            self.wake_answered();
            let is_armed = taken.and_then(|()| {
                if self.news.state.load(Ordering::Relaxed) == AGAIN {
                    return Ok(None);
                }
                if self.has_sleepers() {
                    return Ok(self.session.arm_for_news(&self.waker)?.then_some(ARMED));
                }
                self.session.disarm()?;
                Ok(Some(IDLE))
            });
            match is_armed {
                Ok(Some(state)) => {
                    self.news.state.store(state, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(None) => {}
                Err(_) => {
                    // The node is gone. Each hears so when it looks itself, and the descriptor stays readable.
                    self.unwatch(py);
                    self.wake_all();
                    return Ok(());
                }
            }
        }
        let state = self.state.borrow();
        let watched = state.watched.as_ref();
        let again = watched.map(|it| (it.event_loop.bind(py).upgrade(), it.look.clone_ref(py)));
        drop(state);
        if let Some((Some(event_loop), look)) = again {
            event_loop.call_method1("call_soon", (look, false))?;
        }
        Ok(())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.state.borrow().watched.is_some() {
            // While the interpreter ends, loops watch nothing.
            Python::try_attach(|py| self.unwatch(py));
        }
    }
}

/// What an event loop calls when there may be something to take.
#[pyclass(unsendable, module = "elver")]
struct Look(Weak<Waits>);

#[pymethods]
impl Look {
    fn __call__(&self, py: Python<'_>, is_rung: bool) -> PyResult<()> {
        let Some(waits) = self.0.upgrade() else { return Ok(()) };
        if let Some(fd) = waits.news.fd.get().filter(|_| is_rung) {
            // It may have been read already.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        waits.look(py)
    }
}

/// Lets tasks look that have slept.
fn wake(sleepers: Vec<Sleeper>) {
    if sleepers.is_empty() {
        return;
    }
    Python::attach(|py| {
        for Sleeper { future, .. } in sleepers {
            let future = future.bind(py);
            let woken = future.call_method0("done").and_then(|is_done| {
                if is_done.is_truthy()? {
                    return Ok(());
                }
                future.call_method1("set_result", (py.None(),)).map(drop)
            });
            if let Err(error) = woken {
                error.write_unraisable(py, Some(future));
            }
        }
    });
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get = GET.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("asyncio")?.getattr("get_running_loop")?.unbind())
    })?;
    get.bind(py).call0()
}
