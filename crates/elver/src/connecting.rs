use std::cell::Cell;
use std::time::Duration;

use elver_portal::{Command, ConnectOptions, Via};
use elver_verbs::Gid;

use crate::inner::{Outcome, UNEXPECTED};
use crate::wait::{Silence, Wait};
use crate::{Error, Session};

/// A connect that is going on, or has ended. Dropped, it goes on, and connects its VQP unasked.
#[derive(Debug)]
pub struct Connecting {
    session: Session,
    request: u32,
    /// Of all waits for it together.
    silence: Cell<Silence>,
}

impl Connecting {
    /// A connect that is under way already.
    pub(crate) fn begun(session: &Session, request: u32) -> Connecting {
        Connecting { session: session.clone(), request, silence: Cell::default() }
    }

    pub(crate) fn begin(
        session: &Session,
        vqp: u32,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
    ) -> Result<Connecting, Error> {
        let mut inner = session.inner.borrow_mut();
        let command = Command::Connect { vqp, gid, port, options };
        // What was done over the connection that there was.
        inner.tell_done();
        inner.direct.forget(vqp);
        let is_own_node = gid == inner.link.welcome.gid;
        let request = inner.ask_connect(vqp, is_own_node, &command)?;
        drop(inner);
        Ok(Connecting::begun(session, request))
    }

    /// How the connect ended, if it has; the same each time.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason if it failed.
    pub fn poll(&self) -> Result<Option<Via>, Error> {
        let mut inner = self.session.inner.borrow_mut();
        let ended = inner.poll_for(|inner| inner.ended(self.request))?;
        ended.transpose()?.map(via).transpose()
    }

    /// Waits for the end, at most so long. What ends the wait before that does not end the connect:
    /// wait again, or drop it.
    ///
    /// # Errors
    /// As [`Connecting::poll`] and [`Session::wait_ready`].
    pub fn wait(&self, at_most: Option<Duration>) -> Result<Via, Error> {
        let mut inner = self.session.inner.borrow_mut();
        let mut wait = Wait::endable(at_most).of_an_answer(self.silence.get());
        let ended = inner.wait_on(&mut wait, |inner| inner.ended(self.request));
        self.silence.set(wait.silence_after(&ended));
        via(ended??)
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.session.inner.borrow_mut().abandon(self.request);
    }
}

fn via(outcome: Outcome) -> Result<Via, Error> {
    match outcome {
        Outcome::Connected(via) => Ok(via),
        _ => Err(UNEXPECTED),
    }
}
