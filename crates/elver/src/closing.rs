//! Closing a session without waiting: it is begun, and over once the node has said goodbye or is gone.

use std::cell::Cell;
use std::time::Duration;

use crate::wait::{Silence, Wait};
use crate::{Error, Session};

/// A session that is being closed ([`Session::close_start`]).
#[derive(Debug)]
pub struct Closing {
    session: Session,
    request: u32,
    /// Of all waits for it together.
    silence: Cell<Silence>,
}

impl Closing {
    pub(crate) fn begun(session: &Session, request: u32) -> Closing {
        Closing { session: session.clone(), request, silence: Cell::default() }
    }

    /// Whether the node has nothing left of the session.
    ///
    /// # Errors
    /// As [`Session::close`].
    pub fn poll(&self) -> Result<bool, Error> {
        let mut inner = self.session.inner.borrow_mut();
        let ended = inner.poll_for(|inner| inner.ended(self.request));
        is_over(ended.and_then(Option::transpose).map(|ended| ended.is_some()))
    }

    /// Waits until the node has nothing left of the session, at most so long. What ends the wait before that does not keep
    /// the session from ending: wait again, or drop it.
    ///
    /// # Errors
    /// As [`Session::close`] and [`Session::wait_ready`].
    pub fn wait(&self, at_most: Option<Duration>) -> Result<(), Error> {
        self.wait_by(Wait::endable(at_most))
    }

    /// The same without an end but the node's answer or silence.
    pub(crate) fn wait_through(&self) -> Result<(), Error> {
        self.wait_by(Wait::for_an_answer())
    }

    fn wait_by(&self, wait: Wait) -> Result<(), Error> {
        let mut wait = wait.of_an_answer(self.silence.get());
        let mut inner = self.session.inner.borrow_mut();
        let ended = inner.wait_on(&mut wait, |inner| inner.ended(self.request));
        self.silence.set(wait.silence_after(&ended));
        is_over(ended.and_then(|ended| ended.map(|_| true))).map(drop)
    }
}

/// The node may close the socket right behind its answer.
fn is_over(ended: Result<bool, Error>) -> Result<bool, Error> {
    match ended {
        Err(Error::NodeGone) => Ok(true),
        ended => ended,
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.session.inner.borrow_mut().abandon(self.request);
    }
}
