//! Connections that are being made.

use std::cell::OnceCell;
use std::rc::Rc;

use elver::Error;
use pyo3::prelude::*;

use crate::awaiting::Awaiting;
use crate::errors::raised;
use crate::vqp::Vqp;
use crate::waiting::waiting;
use crate::waits::{On, Waits};

/// A Vqp that is being connected. It is waited for by `wait`, or awaited. Dropped, it goes.
#[pyclass(unsendable, module = "elver")]
pub struct Connecting {
    vqp: Option<elver::Vqp>,
    going: Rc<elver::Connecting>,
    waits: Rc<Waits>,
}

impl Connecting {
    pub(crate) fn new(vqp: elver::Vqp, going: elver::Connecting, waits: &Rc<Waits>) -> Connecting {
        Connecting { vqp: Some(vqp), going: Rc::new(going), waits: waits.clone() }
    }

    /// What awaits one that is begun by the first look.
    pub(crate) fn awaiting(
        name: &'static str,
        waits: Rc<Waits>,
        mut begin: impl FnMut(Python<'_>) -> PyResult<Py<Connecting>> + 'static,
    ) -> Awaiting {
        let going: Rc<OnceCell<Rc<elver::Connecting>>> = Rc::default();
        let watched = going.clone();
        let is_up = move || watched.get().is_none_or(|going| !matches!(going.poll(), Ok(None)));
        let mut begun = None;
        let look = move |py: Python<'_>| {
            let begun = match &begun {
                Some(begun) => begun,
                None => begun.insert(begin(py)?),
            };
            let mut own = begun.borrow_mut(py);
            going.get_or_init(|| own.going.clone());
            if own.going.poll().map_err(raised)?.is_none() {
                return Ok(None);
            }
            Ok(Some(Py::new(py, own.connected()?)?.into_any()))
        };
        Awaiting::new(name, waits, On::Answers, Rc::new(is_up), Box::new(look))
    }

    fn connected(&mut self) -> PyResult<Vqp> {
        let vqp = self.vqp.take().ok_or(Error::Invalid { what: "wait() had its Vqp already" });
        Ok(Vqp::new(vqp.map_err(raised)?, &self.waits))
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
        self.waits.check_open()?;
        waiting(timeout, |at_most| self.going.wait(at_most).map(Some))?;
        self.connected()
    }

    fn __await__(slf: Bound<'_, Self>) -> Awaiting {
        let waits = slf.borrow().waits.clone();
        let it = slf.unbind();
        Connecting::awaiting("Connecting", waits, move |py| Ok(it.clone_ref(py)))
    }
}
