//! Connected virtual queue pairs.

use elver::{
    Completed, ConnectOptions, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Wc,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{gid, raised};
use crate::memory::Memory;
use crate::waiting::waiting;

/// A virtual queue pair, connected. Each call posts one operation and waits for its end.
#[pyclass(unsendable, module = "elver")]
pub struct Vqp {
    vqp: elver::Vqp,
    posted: u64,
    /// The receive that no message has filled yet, if a call was given up.
    receive: Option<Receive>,
}

/// A receive that was posted.
struct Receive {
    memory: Py<Memory>,
    offset: u64,
    length: u32,
}

impl Vqp {
    pub(crate) fn new(vqp: elver::Vqp) -> Vqp {
        Vqp { vqp, posted: 0, receive: None }
    }

    /// Runs an operation on a piece of memory. Completions come in order, and nothing else is under way that has one.
    fn run(
        &mut self,
        op: SendOp,
        memory: &Memory,
        (offset, length): (u64, u32),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.posted += 1;
        let sges = [memory.0.sge(offset, length)];
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        let wr = SendWr { wr_id: self.posted, op, flags, payload, dest: None };
        self.vqp.post_send(&[wr]).map_err(|failed| raised(failed.error))?;
        // Those before it were given up: how they ended is told to nobody.
        loop {
            let mut wcs = [Wc::default()];
            waiting(timeout, |at_most| self.vqp.wait_cq(&mut wcs, at_most))?;
            let [wc] = wcs;
            if wc.wr_id == self.posted {
                return wc.succeeded().map(drop).map_err(raised);
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
    /// sender. A call whose time was over leaves its receive there, and the next call has what came into that one copied into
    /// its own memory: give it as many bytes as those before.
    #[pyo3(signature = (memory, offset = 0, length = None, timeout = None))]
    fn recv(
        &mut self,
        memory: Bound<'_, Memory>,
        offset: u64,
        length: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<(u32, Vqp)> {
        let (offset, length) = {
            let memory = memory.borrow();
            let length = length.unwrap_or_else(|| memory.0.len().saturating_sub(offset));
            memory.piece(offset, length)?
        };
        if self.receive.is_none() {
            self.posted += 1;
            let sges = [memory.borrow().0.sge(offset, length)];
            let wr = RecvWr { wr_id: self.posted, sges: &sges };
            self.vqp.post_recv(&[wr]).map_err(|failed| raised(failed.error))?;
            self.receive = Some(Receive { memory: memory.clone().unbind(), offset, length });
        }
        let messages = waiting(timeout, |at_most| self.vqp.wait_msgs(at_most))?;
        let filled = self.receive.take();
        // One receive is posted at a time, and so one message comes.
        let ([message], Some(filled)) = (&messages[..], filled) else {
            return Err(raised(elver::Error::Invalid {
                what: "a message that nothing was posted for",
            }));
        };
        let wc = message.wc.succeeded().map_err(raised)?;
        let is_there = filled.memory.is(&memory) && filled.offset == offset;
        if wc.byte_len > length {
            let what =
                format!("a message of {} bytes came, and {length} are asked for", wc.byte_len);
            return Err(PyValueError::new_err(what));
        }
        if !is_there {
            let mut bytes = vec![0; wc.byte_len.min(filled.length) as usize];
            filled
                .memory
                .bind(memory.py())
                .borrow()
                .0
                .read(filled.offset, &mut bytes)
                .map_err(raised)?;
            memory.borrow().0.write(offset, &bytes).map_err(raised)?;
        }
        Ok((wc.byte_len, Vqp::new(message.source.clone())))
    }

    /// Connects it, or connects it elsewhere, to a node and to who is bound to the port there.
    #[pyo3(signature = (peer, port = 0))]
    fn connect(&mut self, peer: &str, port: u16) -> PyResult<()> {
        let options = ConnectOptions::default();
        let going = self.vqp.qconnect_start(gid(peer)?, port, options).map_err(raised)?;
        waiting(None, |at_most| going.wait(at_most))?;
        Ok(())
    }

    /// Whether it is connected, as far as the node has told.
    #[getter]
    fn is_connected(&self) -> bool {
        self.vqp.is_connected()
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
