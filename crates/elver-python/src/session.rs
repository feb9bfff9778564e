//! Sessions, and those that children inherit.

use std::path::PathBuf;

use elver::{ConnectOptions, Destination, HeirState, PrepareOptions, SessionOptions, VqpOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connecting::Connecting;
use crate::errors::{Error, gid, raised};
use crate::memory::{Memory, access};
use crate::vqp::Vqp;
use crate::waiting::waiting;

/// A connection to this host's node: at a path, or where `ELVER_SOCKET` or the system has it. It belongs to the thread that
/// opened it, and ends with the last of what it made.
#[pyclass(unsendable, module = "elver")]
pub struct Session(elver::Session);

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path = None))]
    fn new(path: Option<PathBuf>) -> PyResult<Session> {
        let opened = elver::Session::connect_with(path.as_deref(), SessionOptions::default());
        Ok(Session(opened.map_err(raised)?))
    }

    /// The node, as peers name it.
    #[getter]
    fn gid(&self) -> String {
        self.0.gid().to_string()
    }

    /// Whether its node is there, as far as that has told. A node that has started again is another one.
    #[getter]
    fn is_open(&self) -> bool {
        !matches!(self.0.poll(), Err(elver::Error::NodeGone))
    }

    /// Zeroed memory of so many bytes, registered. Peers may do what the letters say: r (read), w (write), a (atomics).
    #[pyo3(signature = (length, access = "rwa"))]
    fn alloc(&self, length: u64, access: &str) -> PyResult<Memory> {
        let access = self::access(access)?;
        Ok(Memory(self.0.alloc(length, access).map_err(raised)?))
    }

    /// A virtual queue pair to a node, by its address, and to who is bound to the port there.
    #[pyo3(signature = (peer, port = 0))]
    fn connect(&self, peer: &str, port: u16) -> PyResult<Vqp> {
        self.connect_start(peer, port)?.wait(None)
    }

    /// As `connect`, and does not wait: `wait()` of what this gives has the Vqp.
    #[pyo3(signature = (peer, port = 0))]
    fn connect_start(&self, peer: &str, port: u16) -> PyResult<Connecting> {
        let vqp = self.0.create_vqp(VqpOptions::default()).map_err(raised)?;
        let options = ConnectOptions::default();
        let going = vqp.qconnect_start(gid(peer)?, port, options).map_err(raised)?;
        Ok(Connecting::new(vqp, going))
    }

    /// One that messages to a port come to, and that port; 0 takes a free one.
    #[pyo3(signature = (port = 0))]
    fn bind(&self, port: u16) -> PyResult<(Vqp, u16)> {
        let vqp = self.0.create_vqp(VqpOptions::default()).map_err(raised)?;
        let port = vqp.qbind(port).map_err(raised)?;
        Ok((Vqp::new(vqp), port))
    }

    /// Sessions for children of this process, each with a Vqp to each of these nodes and 32 KB of memory.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10))]
    fn prepare(
        &self,
        py: Python<'_>,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
    ) -> PyResult<Heirs> {
        let options = PrepareOptions { mr_len: memory_bytes, ..PrepareOptions::default() };
        Preparing::begin(&self.0, count, &peers, options)?.wait(py)
    }

    /// As `prepare`, and does not wait. Unless they must connect, a node that is away leaves sessions without a Vqp to it.
    /// `unassigned` is how many each has beside those, which go nowhere yet.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10, must_connect = true, unassigned = 0))]
    fn prepare_start(
        &self,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
        must_connect: bool,
        unassigned: u32,
    ) -> PyResult<Preparing> {
        let options = PrepareOptions {
            mr_len: memory_bytes,
            must_connect,
            unassigned,
            ..PrepareOptions::default()
        };
        Preparing::begin(&self.0, count, &peers, options)
    }

    /// In a child of the process that opened it: has no part in its memory and socket any more. `Heirs.take` does it.
    fn leave_to_parent(&self) -> PyResult<()> {
        self.0.leave_to_parent().map_err(raised)
    }

    fn __repr__(&self) -> String {
        format!("<elver.Session at {}>", self.0.gid())
    }
}

/// Sessions that wait for this process's children; a child takes one after `os.fork`.
#[pyclass(unsendable, module = "elver")]
pub struct Heirs(elver::Heirs);

/// Sessions that are being made for children.
#[pyclass(unsendable, module = "elver")]
pub struct Preparing(Option<elver::Preparing>);

/// What a child has taken over.
#[pyclass(unsendable, module = "elver")]
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
    fn begin(
        session: &elver::Session,
        count: u32,
        peers: &[String],
        options: PrepareOptions,
    ) -> PyResult<Preparing> {
        let peers: Vec<_> = peers.iter().map(|peer| gid(peer)).collect::<PyResult<_>>()?;
        let destinations: Vec<_> = peers.into_iter().map(Destination::new).collect();
        let preparing = session.prepare_start(count, &destinations, options);
        Ok(Preparing(Some(preparing.map_err(raised)?)))
    }
}

#[pymethods]
impl Preparing {
    /// Whether they are there, or cannot be: `wait` does not wait any more.
    #[getter]
    fn is_done(&self) -> bool {
        let still = |preparing: &elver::Preparing| matches!(preparing.poll(), Ok(false));
        !self.0.as_ref().is_some_and(still)
    }

    /// The sessions, when they are there; once.
    fn wait(&mut self, py: Python<'_>) -> PyResult<Heirs> {
        let had = || PyValueError::new_err("wait() had them already");
        let preparing = self.0.as_ref().ok_or_else(had)?;
        match waiting(None, |at_most| preparing.wait(at_most)) {
            // A signal, which ends the wait and leaves them to the next one.
            Err(ended) if !ended.is_instance_of::<Error>(py) => return Err(ended),
            _ => {}
        }
        let preparing = self.0.take().ok_or_else(had)?;
        Ok(Heirs(preparing.finish().map_err(raised)?))
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
        let handles = |vqps: Vec<elver::Vqp>| {
            vqps.into_iter().map(|vqp| Py::new(py, Vqp::new(vqp))).collect::<PyResult<_>>()
        };
        Ok(Heir {
            number,
            session: Py::new(py, Session(session))?,
            vqps: handles(vqps)?,
            unassigned: handles(unassigned)?,
            memory: mr.map(|mr| Py::new(py, Memory(mr))).transpose()?,
        })
    }

    fn __repr__(&self) -> String {
        format!("<elver.Heirs, {} sessions>", self.0.len())
    }
}
