use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use elver::SessionCell;

use crate::inner::Inner;
use crate::protocol::{Held, Lent, RequestId, Status};
use crate::{Error, Payload};

/// A send or a receive that goes on. Whoever drops it does not want to know how it ends.
pub struct Request {
    inner: Rc<SessionCell<Inner>>,
    pub(crate) id: RequestId,
    sends: bool,
    taken: bool,
}

/// A send or a receive that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The message.
    pub status: Status,
    /// What was received, unless it went into a region. Of a send nothing.
    pub bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn send(inner: &Rc<SessionCell<Inner>>, id: RequestId) -> Request {
        Request { inner: inner.clone(), id, sends: true, taken: false }
    }

    pub(crate) fn receive(inner: &Rc<SessionCell<Inner>>, id: RequestId) -> Request {
        Request { inner: inner.clone(), id, sends: false, taken: false }
    }

    /// Whether it is over: then [`Request::wait`] returns at once. Moves what can be moved.
    ///
    /// # Errors
    /// [`Error::Session`] if the node is gone.
    pub fn test(&self) -> Result<bool, Error> {
        let mut inner = self.inner.borrow_mut();
        if !inner.engine.is_over(self.id) {
            inner.progress(&mut Lent::none())?;
        }
        Ok(inner.engine.is_over(self.id))
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// As [`crate::Group::send`] and [`crate::Group::recv`]. [`Error::Itself`] if it waits for another request of this rank's,
    /// which nobody has begun: then it is as if it was dropped.
    pub fn wait(mut self) -> Result<Completed, Error> {
        let id = self.id;
        let waited =
            self.inner.borrow_mut().wait(None, &mut Lent::none(), |inner| match inner.take(id) {
                Some((how, memory)) => Some(how.map(|status| (status, memory))),
                None => inner.hopeless(id).or_else(|| inner.interruption_of(id)).map(Err),
            });
        let (status, memory) = waited?;
        self.taken = true;
        let bytes = match memory {
            Held::Own(Payload::Bytes(bytes)) if !self.sends => bytes,
            // Nobody wants back what he sent.
            _ => Vec::new(),
        };
        Ok(Completed { status, bytes })
    }

    /// Waits until it is over, at most so long; whether it is.
    ///
    /// # Errors
    /// [`Error::Session`] if the node is gone, or a signal came ([`elver::SessionOptions::end_on_signal`]).
    pub fn wait_for(&self, at_most: Duration) -> Result<bool, Error> {
        let waited = wait_any(&self.inner, &[self.id], Some(at_most));
        waited.map(|over| over.is_some())
    }
}

/// Waits until one of some requests is over, at most so long; which.
pub(crate) fn wait_any(
    inner: &SessionCell<Inner>,
    ids: &[RequestId],
    at_most: Option<Duration>,
) -> Result<Option<usize>, Error> {
    let waited = inner.borrow_mut().wait(at_most, &mut Lent::none(), |inner| {
        let over = ids.iter().position(|id| inner.engine.is_over(*id));
        match over {
            Some(at) => Some(Ok(Some(at))),
            None if ids.iter().all(|id| inner.is_stuck(*id)) => Some(Err(Error::Itself)),
            // Who looks again in time may receive meanwhile what stands before them.
            None if at_most.is_none() => {
                let mut hopeless = ids.iter().map(|id| inner.hopeless(*id));
                let first = hopeless.next().flatten().filter(|_| hopeless.all(|it| it.is_some()));
                first.or_else(|| inner.interruption()).map(Err)
            }
            None => inner.interruption().map(Err),
        }
    });
    match waited {
        Err(Error::Session(error)) if matches!(*error, elver::Error::TimedOut) => Ok(None),
        waited => waited,
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.taken {
            self.inner.borrow_mut().engine.abandon(self.id, None);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("id", &self.id).finish_non_exhaustive()
    }
}
