//! Connected virtual queue pairs.

use std::cell::OnceCell;
use std::rc::Rc;

use elver::{RemoteAddr, SendOp};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::awaiting::Awaiting;
use crate::ends::{Came, Ends};
use crate::errors::{gid, raised};
use crate::memory::{Memory, Piece};
use crate::own::Own;
use crate::policy::connect_options;
use crate::waiting::waiting;
use crate::waits::{On, Waits};

/// A virtual queue pair, connected. Each call posts one operation and waits for its end; those whose names end in `_async`
/// give what a task awaits for it. Who gives an operation up, by a timeout or a cancelled task, does not end it: its memory
/// may be read and written until something that was posted behind it has come back, and stays as long.
#[pyclass(module = "elver")]
pub struct Vqp(Own<Ends>);

impl Vqp {
    pub(crate) fn new(vqp: elver::Vqp, waits: &Rc<Waits>) -> Vqp {
        Vqp(Own::new(Ends::new(vqp, waits)))
    }

    fn ends(&self) -> Rc<Ends> {
        self.0.get()
    }

    /// Runs an operation on a piece of memory.
    fn run(&self, op: SendOp, piece: Piece, timeout: Option<f64>) -> PyResult<()> {
        let ends = self.ends();
        ends.waits.check_open()?;
        let ticket = ends.ticket();
        ends.send(&ticket, op, piece);
        waiting(timeout, |at_most| match ends.look_for_end(&ticket)? {
            Some(wc) => Ok(Some(wc)),
            None => ends.wait_for_end(&ticket, at_most),
        })?;
        Ok(())
    }

    /// What awaits the end of an operation, and what that gives.
    fn awaiting(
        &self,
        name: &'static str,
        op: SendOp,
        piece: Piece,
        found: impl Fn(Python<'_>) -> PyResult<Py<PyAny>> + 'static,
    ) -> Awaiting {
        let (ends, ticket) = (self.ends(), self.ends().ticket());
        let (waiting, id) = (Rc::downgrade(&self.ends()), ticket.id);
        let is_up = move || waiting.upgrade().is_none_or(|ends| ends.has_ended(id));
        let mut unposted = Some((op, piece));
        let look = move |py: Python<'_>| {
            if let Some((op, piece)) = unposted.take() {
                ends.send(&ticket, op, piece);
            }
            ends.look_for_end(&ticket).map_err(raised)?.map(|_| found(py)).transpose()
        };
        let waits = self.ends().waits.clone();
        Awaiting::new(name, waits, On::Vqp(self.ends().vqp.id()), Rc::new(is_up), Box::new(look))
    }

    /// As `awaiting`, of an atomic operation, which gives the word that it found.
    fn awaiting_word(
        &self,
        name: &'static str,
        op: SendOp,
        memory: &Bound<'_, Memory>,
        offset: u64,
    ) -> PyResult<Awaiting> {
        let piece = Memory::piece(memory, offset, 8)?;
        let memory = memory.clone().unbind();
        let found = move |py: Python<'_>| word(memory.bind(py), offset)?.into_py_any(py);
        Ok(self.awaiting(name, op, piece, found))
    }

    /// What a call gives of a message.
    fn came(ends: &Rc<Ends>, came: Came) -> (u32, Vqp) {
        let Came { length, source } = came;
        let back = source.map_or_else(|| ends.clone(), |vqp| Ends::back(vqp, &ends.waits));
        (length, Vqp(Own::new(back)))
    }
}

#[pymethods]
impl Vqp {
    /// READs from a peer's memory into this one's.
    #[pyo3(signature = (memory, offset, length, address, rkey, timeout = None))]
    fn read(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let op = SendOp::Read(RemoteAddr { addr: address, rkey });
        self.run(op, Memory::piece(memory, offset, length)?, timeout)
    }

    /// As `read`, awaited.
    fn read_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
    ) -> PyResult<Awaiting> {
        let op = SendOp::Read(RemoteAddr { addr: address, rkey });
        let piece = Memory::piece(memory, offset, length)?;
        Ok(self.awaiting("Vqp.read_async", op, piece, nothing))
    }

    /// WRITEs from memory to a peer's.
    #[pyo3(signature = (memory, offset, length, address, rkey, timeout = None))]
    fn write(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let op = SendOp::Write(RemoteAddr { addr: address, rkey });
        self.run(op, Memory::piece(memory, offset, length)?, timeout)
    }

    /// As `write`, awaited.
    fn write_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
        address: u64,
        rkey: u32,
    ) -> PyResult<Awaiting> {
        let op = SendOp::Write(RemoteAddr { addr: address, rkey });
        let piece = Memory::piece(memory, offset, length)?;
        Ok(self.awaiting("Vqp.write_async", op, piece, nothing))
    }

    /// Adds to a word of a peer's, and has what it was before in the 8 bytes at the offset.
    #[pyo3(signature = (memory, offset, add, address, rkey, timeout = None))]
    fn fetch_add(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        add: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let op = SendOp::FetchAdd { remote: RemoteAddr { addr: address, rkey }, add };
        self.run(op, Memory::piece(memory, offset, 8)?, timeout)?;
        word(memory, offset)
    }

    /// As `fetch_add`, awaited.
    fn fetch_add_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        add: u64,
        address: u64,
        rkey: u32,
    ) -> PyResult<Awaiting> {
        let op = SendOp::FetchAdd { remote: RemoteAddr { addr: address, rkey }, add };
        self.awaiting_word("Vqp.fetch_add_async", op, memory, offset)
    }

    /// Replaces a word of a peer's if it is as expected, and has what it was before in the 8 bytes at the offset.
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    #[pyo3(signature = (memory, offset, compare, swap, address, rkey, timeout = None))]
    fn compare_swap(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        compare: u64,
        swap: u64,
        address: u64,
        rkey: u32,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let op = SendOp::CompareSwap { remote: RemoteAddr { addr: address, rkey }, compare, swap };
        self.run(op, Memory::piece(memory, offset, 8)?, timeout)?;
        word(memory, offset)
    }

    /// As `compare_swap`, awaited.
    fn compare_swap_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        compare: u64,
        swap: u64,
        address: u64,
        rkey: u32,
    ) -> PyResult<Awaiting> {
        let op = SendOp::CompareSwap { remote: RemoteAddr { addr: address, rkey }, compare, swap };
        self.awaiting_word("Vqp.compare_swap_async", op, memory, offset)
    }

    /// SENDs bytes of memory to whoever is bound to the port that this is connected to.
    #[pyo3(signature = (memory, offset, length, timeout = None))]
    fn send(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let op = SendOp::Send;
        self.run(op, Memory::piece(memory, offset, length)?, timeout)
    }

    /// As `send`, awaited.
    fn send_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: u64,
    ) -> PyResult<Awaiting> {
        let op = SendOp::Send;
        let piece = Memory::piece(memory, offset, length)?;
        Ok(self.awaiting("Vqp.send_async", op, piece, nothing))
    }

    /// Takes the next message into memory; how many bytes it has, and a Vqp to its sender. Of one that is bound
    /// (`Session.bind`), or one whose peer answers. It comes into memory of the Vqp's own, with room for the most that was
    /// asked for by then, 4 KiB at least, and is copied; what a call leaves there that was given up, the next one takes.
    #[pyo3(signature = (memory, offset = 0, length = None, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<(u32, Vqp)> {
        let ends = self.ends();
        ends.waits.check_open()?;
        let piece = Memory::rest(memory, offset, length)?;
        let ticket = ends.ticket();
        ends.expect(&ticket, piece);
        let mut came = ends.message(py, &ticket)?;
        if came.is_none() {
            waiting(timeout, |at_most| {
                if ends.has_message(ticket.id) || ends.failure().is_some() {
                    return Ok(Some(()));
                }
                ends.waits.wait(at_most).map(|()| None)
            })?;
            came = ends.message(py, &ticket)?;
        }
        let unexpected = elver::Error::Invalid { what: "a message that has gone" };
        came.map(|came| Vqp::came(&ends, came)).ok_or_else(|| raised(unexpected))
    }

    /// As `recv`, awaited. Several tasks may take messages of one Vqp, each the next one.
    #[pyo3(signature = (memory, offset = 0, length = None))]
    fn recv_async(
        &self,
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Awaiting> {
        let mut unposted = Some(Memory::rest(memory, offset, length)?);
        let (ends, ticket) = (self.ends(), self.ends().ticket());
        let (waiting, id) = (Rc::downgrade(&self.ends()), ticket.id);
        let is_up = move || waiting.upgrade().is_none_or(|ends| ends.has_message(id));
        let look = move |py: Python<'_>| {
            if let Some(piece) = unposted.take() {
                ends.expect(&ticket, piece);
            }
            let came = ends.message(py, &ticket)?.map(|came| Vqp::came(&ends, came));
            came.map(|came| came.into_py_any(py)).transpose()
        };
        let (waits, on) = (self.ends().waits.clone(), On::Vqp(self.ends().vqp.id()));
        Ok(Awaiting::new("Vqp.recv_async", waits, on, Rc::new(is_up), Box::new(look)))
    }

    /// Connects it, or connects it elsewhere, to a node and to who is bound to the port there; leased, over an RC queue pair
    /// of its own.
    #[pyo3(signature = (peer, port = 0, leased = false))]
    fn connect(&self, peer: &str, port: u16, leased: bool) -> PyResult<()> {
        self.ends().waits.check_open()?;
        let going =
            self.ends().connect_start(gid(peer)?, port, connect_options(leased)).map_err(raised)?;
        waiting(None, |at_most| going.wait(at_most).map(Some))?;
        Ok(())
    }

    /// As `connect`, awaited.
    #[pyo3(signature = (peer, port = 0, leased = false))]
    fn connect_async(&self, peer: &str, port: u16, leased: bool) -> PyResult<Awaiting> {
        let (ends, peer) = (self.ends(), gid(peer)?);
        let going: Rc<OnceCell<elver::Connecting>> = Rc::default();
        let watched = going.clone();
        let is_up = move || watched.get().is_none_or(|going| !matches!(going.poll(), Ok(None)));
        let look = move |py: Python<'_>| {
            if going.get().is_none() {
                let begun =
                    ends.connect_start(peer, port, connect_options(leased)).map_err(raised)?;
                going.get_or_init(|| begun);
            }
            let is_done = going.get().map_or(Ok(None), elver::Connecting::poll).map_err(raised)?;
            Ok(is_done.map(|_| py.None()))
        };
        let (name, waits) = ("Vqp.connect_async", self.ends().waits.clone());
        Ok(Awaiting::new(name, waits, On::Answers, Rc::new(is_up), Box::new(look)))
    }

    /// Awaits that it fails, because its peer has gone or refused what it was sent; gives why.
    fn failure_async(&self) -> Awaiting {
        let ends = self.ends();
        let look = move |py: Python<'_>| {
            ends.take_and_wake().map_err(raised)?;
            let failure = ends.failure().map(|failure| failure.to_string());
            failure.map(|failure| failure.into_py_any(py)).transpose()
        };
        let (waits, on) = (self.ends().waits.clone(), On::Vqp(self.ends().vqp.id()));
        Awaiting::new("Vqp.failure_async", waits, on, Rc::new(|| false), Box::new(look))
    }

    /// Whether it is connected, as far as the node has told.
    #[getter]
    fn is_connected(&self) -> bool {
        self.ends().vqp.is_connected()
    }

    /// Why it has failed, if it has, as far as the node has told.
    #[getter]
    fn failure(&self) -> PyResult<Option<String>> {
        self.ends().vqp.session().poll().map_err(raised)?;
        Ok(self.ends().failure().map(|failure| failure.to_string()))
    }

    fn __repr__(&self) -> String {
        format!("<elver.Vqp {:#x}>", self.ends().vqp.id())
    }
}

fn word(memory: &Bound<'_, Memory>, offset: u64) -> PyResult<u64> {
    memory.borrow().mr().read_u64(offset).map_err(raised)
}

fn nothing(py: Python<'_>) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}
