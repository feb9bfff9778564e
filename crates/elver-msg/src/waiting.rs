//! Waiting for several requests.

use crate::request::wait_any;
use crate::{Completed, Error, Group, Request};

impl Group {
    /// Waits until one of some requests is over; which: [`Request::wait`] returns at once for it.
    ///
    /// # Errors
    /// [`Error::Session`] if the node is gone, or a signal came ([`elver::SessionOptions::end_on_signal`]);
    /// [`Error::Itself`] if all of them wait for further requests of this rank's.
    ///
    /// # Panics
    /// If there are none.
    pub fn wait_any(&self, requests: &[Request]) -> Result<usize, Error> {
        assert!(!requests.is_empty(), "one of no requests is never over");
        let ids: Vec<_> = requests.iter().map(|request| request.id).collect();
        let over = wait_any(&self.inner, &ids, None)?;
        Ok(over.expect("a wait without an end ends when something is over"))
    }

    /// Waits until all are over; what became of them, in order.
    ///
    /// # Errors
    /// The first that failed; the others are waited for no more.
    pub fn wait_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Vec<Completed>, Error> {
        requests.into_iter().map(Request::wait).collect()
    }
}
