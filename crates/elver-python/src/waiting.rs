//! Waiting as Python does: signals are heeded, and other threads run meanwhile.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raised;

/// How long a wait goes on before it looks for signals, and lets others run.
const TURN: Duration = Duration::from_millis(10);

/// Waits for so many seconds, or for as long as it takes, by what waits at most so long as it is told, and may find nothing.
pub(crate) fn waiting<T>(
    timeout: Option<f64>,
    mut wait: impl FnMut(Option<Duration>) -> Result<Option<T>, elver::Error>,
) -> PyResult<T> {
    let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
    let timeout =
        timeout.map_err(|error| PyValueError::new_err(format!("a timeout of seconds: {error}")))?;
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left =
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        match wait(Some(left.min(TURN))) {
            Ok(Some(done)) => return Ok(done),
            Err(elver::Error::TimedOut) if left > TURN => {}
            Err(error) => return Err(raised(error)),
            // What came was another's, and there may always be more of it.
            Ok(None) if left.is_zero() => return Err(raised(elver::Error::TimedOut)),
            Ok(None) => {}
        }
        Python::attach(|py| {
            py.check_signals()?;
            py.detach(std::thread::yield_now);
            Ok::<(), PyErr>(())
        })?;
    }
}
