//! Connected virtual queue pairs.

use std::time::Duration;

use elver::{Completed, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Wc};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raised;
use crate::memory::Memory;

/// A virtual queue pair, connected. Each call posts one operation and waits for its end.
#[pyclass(unsendable, module = "elver")]
pub struct Vqp {
    vqp: elver::Vqp,
    posted: u64,
}

impl Vqp {
    pub(crate) fn new(vqp: elver::Vqp) -> Vqp {
        Vqp { vqp, posted: 0 }
    }

    /// Runs an operation on a piece of memory. Completions come in order, and nothing else is under way that has one.
    fn run(
        &mut self,
        op: SendOp,
        memory: &Memory,
        (offset, length): (u64, u32),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = seconds(timeout)?;
        self.posted += 1;
        let sges = [memory.0.sge(offset, length)];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        let wr = SendWr { wr_id: self.posted, op, flags, payload, dest: None };
        self.vqp.post_send(&[wr]).map_err(|failed| raised(failed.error))?;
        self.completion(self.posted, timeout)
    }

    /// Waits for the end of an operation; those before it were given up.
    fn completion(&self, wr_id: u64, timeout: Option<Duration>) -> PyResult<()> {
        let mut wcs = [Wc::default()];
        loop {
            self.vqp.wait_cq(&mut wcs, timeout).map_err(raised)?;
            let [wc] = wcs;
            let done = wc.succeeded().map_err(raised)?;
            if done.wr_id == wr_id {
                return Ok(());
            }
        }
    }
}

#[pymethods]
impl Vqp {
    /// READs from a peer's memory into this one's.
    #[pyo3(signature = (memory, offset, length, address, rkey, timeout = None))]
    fn read(
        &mut self,
        memory: &Memory,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let op = SendOp::Read(RemoteAddr { addr: address, rkey });
        self.run(op, memory, memory.piece(offset, length)?, timeout)
    }

    /// WRITEs from memory to a peer's.
    #[pyo3(signature = (memory, offset, length, address, rkey, timeout = None))]
    fn write(
        &mut self,
        memory: &Memory,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let op = SendOp::Write(RemoteAddr { addr: address, rkey });
        self.run(op, memory, memory.piece(offset, length)?, timeout)
    }

    /// Adds to a word of a peer's, and has what it was before in the 8 bytes at the offset.
    #[pyo3(signature = (memory, offset, add, address, rkey, timeout = None))]
    fn fetch_add(
        &mut self,
        memory: &Memory,
        offset: u64,
        add: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let op = SendOp::FetchAdd { remote: RemoteAddr { addr: address, rkey }, add };
        self.run(op, memory, memory.piece(offset, 8)?, timeout)?;
        memory.0.read_u64(offset).map_err(raised)
    }

    /// SENDs bytes of memory to whoever is bound to the port that this is connected to.
    #[pyo3(signature = (memory, offset, length, timeout = None))]
    fn send(
        &mut self,
        memory: &Memory,
        offset: u64,
        length: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.run(SendOp::Send, memory, memory.piece(offset, length)?, timeout)
    }

    /// Of one that is bound (`Session.bind`): takes the next message into memory; how many bytes it has, and a Vqp to its
    /// sender.
    #[pyo3(signature = (memory, offset = 0, length = None, timeout = None))]
    fn recv(
        &mut self,
        memory: &Memory,
        offset: u64,
        length: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<(u32, Vqp)> {
        let timeout = seconds(timeout)?;
        let length = length.unwrap_or_else(|| memory.0.len().saturating_sub(offset));
        let (offset, length) = memory.piece(offset, length)?;
        self.posted += 1;
        let sges = [memory.0.sge(offset, length)];
        let wr = RecvWr { wr_id: self.posted, sges: &sges };
        self.vqp.post_recv(&[wr]).map_err(|failed| raised(failed.error))?;
        let message = self.vqp.wait_msgs(timeout).map_err(raised)?.into_iter().next();
        let message = message.ok_or_else(|| raised(elver::Error::TimedOut))?;
        let wc = message.wc.succeeded().map_err(raised)?;
        Ok((wc.byte_len, Vqp::new(message.source)))
    }

    /// Why it has failed, if it has, as far as the node has told.
    #[getter]
    fn failure(&self) -> PyResult<Option<String>> {
        self.vqp.session().poll().map_err(raised)?;
        Ok(self.vqp.failure().map(|failure| failure.to_string()))
    }

    fn __repr__(&self) -> String {
        format!("<elver.Vqp {:#x}>", self.vqp.id())
    }
}

/// Seconds as Python has them; none for as long as it takes.
pub(crate) fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let seconds = timeout.map(Duration::try_from_secs_f64).transpose();
    seconds.map_err(|error| PyValueError::new_err(format!("a timeout of seconds: {error}")))
}
