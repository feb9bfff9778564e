//! Sessions that children inherit.

use elver::{Destination, HeirState, PrepareOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{gid, raised};
use crate::memory::Memory;
use crate::session::Session;
use crate::vqp::Vqp;

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
    /// Its memory, zeroed.
    #[pyo3(get)]
    memory: Option<Py<Memory>>,
}

impl Preparing {
    pub(crate) fn begin(
        session: &elver::Session,
        count: u32,
        peers: &[String],
        mr_len: u64,
        must_connect: bool,
    ) -> PyResult<Preparing> {
        let peers: Vec<_> = peers.iter().map(|peer| gid(peer)).collect::<PyResult<_>>()?;
        let destinations: Vec<_> = peers.into_iter().map(Destination::new).collect();
        let options = PrepareOptions { mr_len, must_connect, ..PrepareOptions::default() };
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
    pub(crate) fn wait(&mut self) -> PyResult<Heirs> {
        let preparing = self.0.take();
        let preparing =
            preparing.ok_or_else(|| PyValueError::new_err("wait() had them already"))?;
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

    /// In a child: takes one over.
    fn take(&self, py: Python<'_>, number: u32) -> PyResult<Heir> {
        let elver::Heir { number, session, vqps, mr } = self.0.take(number).map_err(raised)?;
        let vqps = vqps.into_iter().map(|vqp| Py::new(py, Vqp::new(vqp)));
        Ok(Heir {
            number,
            session: Py::new(py, Session::of(session))?,
            vqps: vqps.collect::<PyResult<_>>()?,
            memory: mr.map(|mr| Py::new(py, Memory(mr))).transpose()?,
        })
    }

    fn __repr__(&self) -> String {
        format!("<elver.Heirs, {} sessions>", self.0.len())
    }
}
