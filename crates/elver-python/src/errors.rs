//! What went wrong, as Python has it.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    elver,
    Error,
    PyException,
    "What a node, a peer or the library refuses, and what to do."
);

/// The exception that an error of the library is.
pub(crate) fn raised(error: elver::Error) -> PyErr {
    match error {
        elver::Error::TimedOut => PyTimeoutError::new_err(error.to_string()),
        error => Error::new_err(error.to_string()),
    }
}

/// A node's address, or its GID.
pub(crate) fn gid(text: &str) -> PyResult<elver::Gid> {
    let refused = |error| PyValueError::new_err(format!("`{text}` is no node: {error}"));
    text.parse().map_err(refused)
}
