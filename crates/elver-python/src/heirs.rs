//! Sessions that children inherit.

use elver::{Destination, PrepareOptions};
use pyo3::prelude::*;

use crate::errors::{gid, raised};
use crate::memory::Memory;
use crate::session::Session;
use crate::vqp::Vqp;

/// Sessions that wait for this process's children; a child takes one after `os.fork`.
#[pyclass(unsendable, module = "elver")]
pub struct Heirs(elver::Heirs);

/// What a child has taken over.
#[pyclass(unsendable, module = "elver")]
pub struct Heir {
    /// Which one of the set.
    #[pyo3(get)]
    number: u32,
    /// Its session.
    #[pyo3(get)]
    session: Py<Session>,
    /// A Vqp to each of the nodes.
    #[pyo3(get)]
    vqps: Vec<Py<Vqp>>,
    /// Its memory, zeroed.
    #[pyo3(get)]
    memory: Option<Py<Memory>>,
}

impl Heirs {
    pub(crate) fn prepare(
        session: &elver::Session,
        count: u32,
        peers: &[String],
        mr_len: u64,
    ) -> PyResult<Heirs> {
        let peers: Vec<_> = peers.iter().map(|peer| gid(peer)).collect::<PyResult<_>>()?;
        let destinations: Vec<_> = peers.into_iter().map(Destination::new).collect();
        let options = PrepareOptions { mr_len, ..PrepareOptions::default() };
        Ok(Heirs(session.prepare(count, &destinations, options).map_err(raised)?))
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
