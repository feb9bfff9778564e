//! Connections that are being made.

use elver::Error;
use pyo3::prelude::*;

use crate::errors::raised;
use crate::vqp::Vqp;
use crate::waiting::waiting;

/// A Vqp that is being connected. Dropped, it goes.
#[pyclass(unsendable, module = "elver")]
pub struct Connecting {
    vqp: Option<elver::Vqp>,
    going: elver::Connecting,
}

impl Connecting {
    pub(crate) fn new(vqp: elver::Vqp, going: elver::Connecting) -> Connecting {
        Connecting { vqp: Some(vqp), going }
    }
}

#[pymethods]
impl Connecting {
    /// Whether it is connected, or cannot be: `wait` does not wait any more.
    #[getter]
    fn is_done(&self) -> bool {
        !matches!(self.going.poll(), Ok(None))
    }

    /// Whether it is connected.
    #[getter]
    fn is_connected(&self) -> bool {
        matches!(self.going.poll(), Ok(Some(_)))
    }

    /// The Vqp, when it is connected; once. A wait that is over does not end the connecting.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&mut self, timeout: Option<f64>) -> PyResult<Vqp> {
        waiting(timeout, |at_most| self.going.wait(at_most))?;
        let vqp = self.vqp.take().ok_or(Error::Invalid { what: "wait() had its Vqp already" });
        Ok(Vqp::new(vqp.map_err(raised)?))
    }
}
