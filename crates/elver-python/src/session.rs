//! Sessions.

use std::path::PathBuf;

use elver::{ConnectOptions, SessionOptions, VqpOptions};
use pyo3::prelude::*;

use crate::connecting::Connecting;
use crate::errors::{gid, raised};
use crate::heirs::{Heirs, Preparing};
use crate::memory::{Memory, access};
use crate::vqp::Vqp;

/// A connection to this host's node: at a path, or where `ELVER_SOCKET` or the system has it. It belongs to the thread that
/// opened it, and ends with the last of what it made.
#[pyclass(unsendable, module = "elver")]
pub struct Session(elver::Session);

impl Session {
    pub(crate) fn of(session: elver::Session) -> Session {
        Session(session)
    }
}

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

    /// Zeroed memory of so many bytes, registered. Peers may do what the letters say: r (read), w (write), a (atomics).
    #[pyo3(signature = (length, access = "rwa"))]
    fn alloc(&self, length: u64, access: &str) -> PyResult<Memory> {
        let access = self::access(access)?;
        Ok(Memory(self.0.alloc(length, access).map_err(raised)?))
    }

    /// A virtual queue pair to a node, by its address, and to who is bound to the port there.
    #[pyo3(signature = (peer, port = 0))]
    fn connect(&self, peer: &str, port: u16) -> PyResult<Vqp> {
        let vqp = self.0.create_vqp(VqpOptions::default()).map_err(raised)?;
        vqp.qconnect(gid(peer)?, port).map_err(raised)?;
        Ok(Vqp::new(vqp))
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
    fn prepare(&self, count: u32, peers: Vec<String>, memory_bytes: u64) -> PyResult<Heirs> {
        Preparing::begin(&self.0, count, &peers, memory_bytes, true)?.wait()
    }

    /// As `prepare`, and does not wait. Unless they must connect, a node that is away leaves sessions without a Vqp to it.
    #[pyo3(signature = (count, peers, memory_bytes = 32 << 10, must_connect = true))]
    fn prepare_start(
        &self,
        count: u32,
        peers: Vec<String>,
        memory_bytes: u64,
        must_connect: bool,
    ) -> PyResult<Preparing> {
        Preparing::begin(&self.0, count, &peers, memory_bytes, must_connect)
    }

    fn __repr__(&self) -> String {
        format!("<elver.Session at {}>", self.0.gid())
    }
}
