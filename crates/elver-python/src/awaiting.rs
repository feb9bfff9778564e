//! What a program awaits.

use std::rc::Rc;

use pyo3::exceptions::{PyBaseException, PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::waits::{IsUp, On, Waits};

/// Looks for what is awaited: something once it is there. The first look begins it.
pub(crate) type LookFor = Box<dyn FnMut(Python<'_>) -> PyResult<Option<Py<PyAny>>>>;

/// Something that a task of asyncio awaits: a coroutine, which does nothing until it is awaited, or made a task.
#[pyclass(unsendable, module = "elver")]
pub struct Awaiting {
    name: &'static str,
    waits: Rc<Waits>,
    on: On,
    is_up: IsUp,
    /// It fails once the session was closed.
    ends_with_session: bool,
    /// None once it has ended, by whatever: what it holds is given up then.
    look: Option<LookFor>,
    /// The future that the task sleeps on, as an iterator, and by which it is forgotten.
    asleep: Option<(u64, Py<PyAny>)>,
}

impl Awaiting {
    pub(crate) fn new(
        name: &'static str,
        waits: Rc<Waits>,
        on: On,
        is_up: IsUp,
        look: LookFor,
    ) -> Awaiting {
        let (look, asleep, ends_with_session) = (Some(look), None, true);
        Awaiting { name, waits, on, is_up, ends_with_session, look, asleep }
    }

    /// Goes on after the session was closed.
    pub(crate) fn outlasts_session(mut self) -> Awaiting {
        self.ends_with_session = false;
        self
    }

    fn end(&mut self) {
        if let Some((id, future)) = self.asleep.take() {
            self.waits.forget(self.on, id);
            drop(future);
        }
        drop(self.look.take());
    }

    /// Goes on until it has to sleep: then what the task's loop waits for. Its end is `StopIteration`, as of any coroutine.
    fn step(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        loop {
            if let Some((id, future)) = &self.asleep {
                match future.call_method0(py, "__next__") {
                    Err(done) if done.is_instance_of::<PyStopIteration>(py) => {}
                    other => return other,
                }
                self.waits.forget(self.on, *id);
                self.asleep = None;
            }
            let look = self.look.as_mut().ok_or_else(|| {
                PyRuntimeError::new_err("this was awaited already; call the method again")
            })?;
            if let Some(found) = look(py)? {
                return Err(PyStopIteration::new_err((found,)));
            }
            let (id, future) = self.waits.sleep(py, self.on, self.is_up.clone())?;
            self.asleep = Some((id, future.call_method0("__await__")?.unbind()));
        }
    }

    fn stepped(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let is_on = if self.ends_with_session { self.waits.check_open() } else { Ok(()) };
        let step = is_on.and_then(|()| self.step(py));
        if step.is_err() {
            self.end();
        }
        step
    }
}

#[pymethods]
impl Awaiting {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.stepped(py)
    }

    /// Goes on.
    fn send(&mut self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.stepped(py)
    }

    /// Ends it, with an exception: what was posted goes on, and nobody hears of its end.
    #[pyo3(signature = (kind, value = None, traceback = None))]
    fn throw(
        &mut self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.end();
        let exception = match value.filter(|value| value.is_instance_of::<PyBaseException>()) {
            Some(value) => value,
            None if kind.is_instance_of::<PyType>() => kind.call0()?,
            None => kind,
        };
        if let Some(traceback) = traceback.filter(|traceback| !traceback.is_none()) {
            exception.call_method1("with_traceback", (traceback,))?;
        }
        Err(PyErr::from_value(exception))
    }

    /// Ends it.
    fn close(&mut self) {
        self.end();
    }

    #[getter(__name__)]
    fn name(&self) -> &'static str {
        self.name
    }

    #[getter(__qualname__)]
    fn qualified_name(&self) -> &'static str {
        self.name
    }

    fn __repr__(&self) -> String {
        format!("<elver.Awaiting of {}>", self.name)
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.end();
    }
}
