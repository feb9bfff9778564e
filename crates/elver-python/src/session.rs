//! Sessions, and those that children inherit.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use elver::{Destination, HeirState, PrepareOptions, SessionOptions, VqpOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::awaiting::Awaiting;
use crate::connecting::Connecting;
use crate::errors::{Error, gid, raised};
use crate::memory::{Memory, access};
use crate::own::Own;
use crate::policy::connect_options;
use crate::vqp::Vqp;
use crate::waiting::waiting;
use crate::waits::{On, Waits};

/// A connection to this host's node: at a path, or where `ELVER_SOCKET` or the system has it. It belongs to the thread that
/// opened it, and ends with the last of what it made, or when it is closed: by `close`, or at the end of a `with` or an
/// `async with`. Tasks of one event loop may wait for it, as many as like.
#[pyclass(module = "elver")]
pub struct Session(Own<Waits>);

impl Session {
    fn of(session: elver::Session) -> Session {
        Session(Own::new(Waits::new(session)))
    }

    fn waits(&self) -> Rc<Waits> {
        self.0.get()
    }

    fn open(&self) -> PyResult<Rc<Waits>> {
        let waits = self.waits();
        waits.check_open()?;
        Ok(waits)
    }

    /// Begins to end it, unless that is done.
    fn close_start(&self) -> PyResult<Option<elver::Closing>> {
        if self.waits().check_open().is_err() {
            return Ok(None);
        }
        let closing = self.waits().session.close_start();
        self.waits().close();
        match closing {
            Ok(closing) => Ok(Some(closing)),
            // With its node.
            Err(elver::Error::NodeGone) => Ok(None),
            Err(error) => Err(raised(error)),
        }
    }

    fn closing(name: &'static str, session: Bound<'_, Self>) -> Awaiting {
        let waits = session.borrow().waits();
        let ended = waits.clone();
        let session = session.unbind();
        let going: Rc<OnceCell<Option<elver::Closing>>> = Rc::default();
        let watched = going.clone();
        let is_over = |going: Option<&Option<elver::Closing>>| match going {
            Some(Some(closing)) => closing.poll(),
            _ => Ok(true),
        };
        let is_up = move || !matches!(is_over(watched.get()), Ok(false));
        let look = move |py: Python<'_>| {
            if going.get().is_none() {
                let begun = session.borrow(py).close_start()?;
                going.get_or_init(|| begun);
            }
            let is_over = is_over(going.get()).map_err(raised)?;
            Ok(is_over.then(|| {
                ended.end();
                py.None()
            }))
        };
        let (on, is_up) = (On::Answers, Rc::new(is_up));
        Awaiting::new(name, waits, on, is_up, Box::new(look)).outlasts_session()
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path = None))]
    fn new(path: Option<PathBuf>) -> PyResult<Session> {
        let opened = elver::Session::connect_with(path.as_deref(), SessionOptions::default());
        opened.map(Session::of).map_err(raised)
    }

    /// The node, as peers name it.
    #[getter]
    fn gid(&self) -> String {
        self.waits().session.gid().to_string()
    }

    /// Whether it was not closed, and its node is there, as far as that has told. A node that has started again is another
    /// one.
    #[getter]
    fn is_open(&self) -> bool {
        self.open().is_ok_and(|waits| !matches!(waits.session.poll(), Err(elver::Error::NodeGone)))
    }

    /// Zeroed memory of so many bytes, registered. Peers may do what the letters say: r (read), w (write), a (atomics).
    #[pyo3(signature = (length, access = "rwa"))]
    fn alloc(&self, length: u64, access: &str) -> PyResult<Memory> {
        let access = self::access(access)?;
        Ok(Memory::new(self.open()?.session.alloc(length, access).map_err(raised)?))
    }

    /// A virtual queue pair to a node, by its address, and to who is bound to the port there. A leased one has an RC queue
    /// pair of its own.
    #[pyo3(signature = (peer, port = 0, leased = false))]
    fn connect(&self, peer: &str, port: u16, leased: bool) -> PyResult<Vqp> {
        self.connect_start(peer, port, leased)?.wait(None)
    }

    /// As `connect`, awaited.
    #[pyo3(signature = (peer, port = 0, leased = false))]
    fn connect_async(slf: Bound<'_, Self>, peer: String, port: u16, leased: bool) -> Awaiting {
        let waits = slf.borrow().waits();
        let session = slf.unbind();
        let begin = move |py: Python<'_>| {
            Py::new(py, session.borrow(py).connect_start(&peer, port, leased)?)
        };
        Connecting::awaiting("Session.connect_async", waits, begin)
    }

    /// As `connect`, and does not wait: `wait()` of what this gives has the Vqp, and so has who awaits it.
    #[pyo3(signature = (peer, port = 0, leased = false))]
    fn connect_start(&self, peer: &str, port: u16, leased: bool) -> PyResult<Connecting> {
        let vqp = self.open()?.session.create_vqp(VqpOptions::default()).map_err(raised)?;
        let going =
            vqp.qconnect_start(gid(peer)?, port, connect_options(leased)).map_err(raised)?;
        Ok(Connecting::new(vqp, going, &self.waits()))
    }

    /// One that messages to a port come to, and that port; 0 takes a free one.
    #[pyo3(signature = (port = 0))]
    fn bind(&self, port: u16) -> PyResult<(Vqp, u16)> {
        let vqp = self.open()?.session.create_vqp(VqpOptions::default()).map_err(raised)?;
        let port = vqp.qbind(port).map_err(raised)?;
        Ok((Vqp::new(vqp, &self.waits()), port))
    }

    /// Sessions for children of this process, each with a Vqp to each of these nodes and 32 KB of memory.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10, leased = false))]
    fn prepare(
        &self,
        py: Python<'_>,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
        leased: bool,
    ) -> PyResult<Heirs> {
        self.prepare_start(count, peers, memory_bytes, true, 0, leased)?.wait(py)
    }

    /// As `prepare_start`, awaited.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10, must_connect = true, unassigned = 0, leased = false))]
    fn prepare_async(
        slf: Bound<'_, Self>,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
        must_connect: bool,
        unassigned: u32,
        leased: bool,
    ) -> Awaiting {
        let waits = slf.borrow().waits();
        let session = slf.unbind();
        let begin = move |py: Python<'_>| {
            let session = session.borrow(py);
            let peers = peers.clone();
            let begun = session.prepare_start(
                count,
                peers,
                memory_bytes,
                must_connect,
                unassigned,
                leased,
            )?;
            Ok(begun.going)
        };
        Preparing::awaiting("Session.prepare_async", waits, begin)
    }

    /// As `prepare`, and does not wait: `wait()` of what this gives has them, and so has who awaits it. Unless they must
    /// connect, a node that is away leaves sessions without a Vqp to it. `unassigned` is how many each has beside those,
    /// which go nowhere yet. Leased, each Vqp has an RC queue pair of its own.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10, must_connect = true, unassigned = 0, leased = false))]
    fn prepare_start(
        &self,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
        must_connect: bool,
        unassigned: u32,
        leased: bool,
    ) -> PyResult<Preparing> {
        let connect = connect_options(leased);
        let options = PrepareOptions {
            mr_len: memory_bytes,
            must_connect,
            unassigned,
            connect_assigned: connect,
            ..PrepareOptions::default()
        };
        let peers: Vec<_> = peers.iter().map(|peer| gid(peer)).collect::<PyResult<_>>()?;
        let to = |gid| Destination { connect, ..Destination::new(gid) };
        let destinations: Vec<_> = peers.into_iter().map(to).collect();
        let begun = self.open()?.session.prepare_start(count, &destinations, options);
        let going = Rc::new(RefCell::new(Some(begun.map_err(raised)?)));
        Ok(Preparing { going, waits: self.waits() })
    }

    /// Ends it, and returns when the node has nothing left of it; again changes nothing. What it made fails from here on, and
    /// so does what waits for it; its memory stays to be read and written here as long as it is there.
    fn close(&self) -> PyResult<()> {
        let Some(closing) = self.close_start()? else { return Ok(()) };
        waiting(None, |at_most| closing.wait(at_most).map(Some))
    }

    /// As `close`, awaited.
    fn close_async(slf: Bound<'_, Self>) -> Awaiting {
        Session::closing("Session.close_async", slf)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.close()?;
        Ok(false)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> Awaiting {
        let waits = slf.borrow().waits();
        let mut session = Some(slf.into_any().unbind());
        let look = move |_: Python<'_>| Ok(session.take());
        Awaiting::new("Session", waits, On::Answers, Rc::new(|| true), Box::new(look))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(slf: Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> Awaiting {
        Session::closing("Session.close_async", slf)
    }

    /// In a child of the process that opened it: has no part in its memory and socket any more. `Heirs.take` does it.
    fn leave_to_parent(&self) -> PyResult<()> {
        self.waits().session.leave_to_parent().map_err(raised)
    }

    fn __repr__(&self) -> String {
        format!("<elver.Session at {}>", self.waits().session.gid())
    }
}

/// Sessions that wait for this process's children; a child takes one after `os.fork`.
#[pyclass(unsendable, module = "elver")]
pub struct Heirs(elver::Heirs);

/// Sessions that are being made for children. They are waited for by `wait`, or awaited.
#[pyclass(unsendable, module = "elver")]
pub struct Preparing {
    /// None once they were had.
    going: Rc<RefCell<Option<elver::Preparing>>>,
    waits: Rc<Waits>,
}

/// What a child has taken over.
#[pyclass(module = "elver")]
pub struct Heir {
    /// Which one of the set.
    #[pyo3(get)]
    number: u32,
    /// Its session.
    #[pyo3(get)]
    session: Py<Session>,
    /// A Vqp to each of the nodes. One whose node was away is there too, and fails (`Vqp.failure`).
    #[pyo3(get)]
    vqps: Vec<Py<Vqp>>,
    /// Those that were prepared without a node. One that was assigned to one is connected there, unless its node was away.
    #[pyo3(get)]
    unassigned: Vec<Py<Vqp>>,
    /// Its memory, zeroed.
    #[pyo3(get)]
    memory: Option<Py<Memory>>,
}

impl Preparing {
    /// What awaits those that are begun by the first look.
    fn awaiting(
        name: &'static str,
        waits: Rc<Waits>,
        mut begin: impl FnMut(Python<'_>) -> PyResult<Rc<RefCell<Option<elver::Preparing>>>> + 'static,
    ) -> Awaiting {
        let going: Rc<OnceCell<Rc<RefCell<Option<elver::Preparing>>>>> = Rc::default();
        let watched = going.clone();
        let is_up = move || watched.get().is_none_or(|going| is_prepared(&going.borrow()));
        let look = move |py: Python<'_>| {
            let going = match going.get() {
                Some(going) => going,
                None => {
                    let begun = begin(py)?;
                    going.get_or_init(|| begun)
                }
            };
            if !is_prepared(&going.borrow()) {
                return Ok(None);
            }
            let preparing = going.borrow_mut().take().ok_or_else(had)?;
            Ok(Some(Py::new(py, Heirs(preparing.finish().map_err(raised)?))?.into_any()))
        };
        Awaiting::new(name, waits, On::Answers, Rc::new(is_up), Box::new(look))
    }
}

/// Whether there is nothing to wait for.
fn is_prepared(preparing: &Option<elver::Preparing>) -> bool {
    let still = |preparing: &elver::Preparing| matches!(preparing.poll(), Ok(false));
    !preparing.as_ref().is_some_and(still)
}

fn had() -> PyErr {
    PyValueError::new_err("wait() had them already")
}

#[pymethods]
impl Preparing {
    /// Whether they are there, or cannot be: `wait` does not wait any more.
    #[getter]
    fn is_done(&self) -> bool {
        is_prepared(&self.going.borrow())
    }

    /// The sessions, when they are there; once.
    fn wait(&self, py: Python<'_>) -> PyResult<Heirs> {
        self.waits.check_open()?;
        let waited = waiting(None, |at_most| match &*self.going.borrow() {
            Some(preparing) => preparing.wait(at_most).map(Some),
            None => Ok(Some(())),
        });
        match waited {
            // A signal, which ends the wait and leaves them to the next one.
            Err(ended) if !ended.is_instance_of::<Error>(py) => return Err(ended),
            _ => {}
        }
        let preparing = self.going.borrow_mut().take().ok_or_else(had)?;
        Ok(Heirs(preparing.finish().map_err(raised)?))
    }

    fn __await__(&self) -> Awaiting {
        let going = self.going.clone();
        Preparing::awaiting("Preparing", self.waits.clone(), move |_| Ok(going.clone()))
    }
}

#[pymethods]
impl Heirs {
    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    /// The first that a child may take now, if there is one.
    fn first_free(&self) -> Option<u32> {
        self.0.first_free()
    }

    /// Whether a child may take this one now.
    fn is_free(&self, number: u32) -> bool {
        self.0.state(number) == Some(HeirState::Free)
    }

    /// Whether a session that a child may take now has a Vqp connected, by its place among `vqps` and then `unassigned`.
    fn is_connected(&self, number: u32, place: u32) -> bool {
        self.0.is_connected(number, place)
    }

    /// Where a session has one of its `unassigned`, by its place among them, whenever that is made anew; None for nowhere.
    #[pyo3(signature = (number, place, peer))]
    fn assign(&self, number: u32, place: u32, peer: Option<&str>) -> PyResult<()> {
        let peer = peer.map(gid).transpose()?;
        self.0.assign(number, place, peer).map_err(raised)
    }

    /// In a child: takes one over.
    fn take(&self, py: Python<'_>, number: u32) -> PyResult<Heir> {
        let elver::Heir { number, session, vqps, unassigned, mr } =
            self.0.take(number).map_err(raised)?;
        let session = Session::of(session);
        let waits = session.waits();
        let handles = |vqps: Vec<elver::Vqp>| {
            let handle = |vqp| Py::new(py, Vqp::new(vqp, &waits));
            vqps.into_iter().map(handle).collect::<PyResult<Vec<_>>>()
        };
        let (vqps, unassigned) = (handles(vqps)?, handles(unassigned)?);
        Ok(Heir {
            number,
            session: Py::new(py, session)?,
            vqps,
            unassigned,
            memory: mr.map(|mr| Py::new(py, Memory::new(mr))).transpose()?,
        })
    }

    fn __repr__(&self) -> String {
        format!("<elver.Heirs, {} sessions>", self.0.len())
    }
}
