//! What a session's user has not taken yet: by VQP, and by CQs that VQPs share.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use elver_verbs::Wc;

use crate::inner::{CqHandle, Entry, Inner, Of, Queue};
use crate::wait::Wait;
use crate::{Error, Session, Vqp};

/// Something of a session that there is something to take from: see [`Session::wait_ready`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ready {
    /// A VQP with completions, messages, or a failure ([`Vqp::failure`]).
    Vqp(Vqp),
    /// A CQ with completions.
    Cq(Cq),
}

/// A completion queue that VQPs share ([`Session::create_vqp_on`]): their completions come in the
/// order in which the node told them, and [`Wc::qp_num`] names the VQP. Messages at bound VQPs come by
/// [`Vqp::qpop_msgs`] all the same. Clones are the same CQ.
///
/// It holds what the VQPs' queues and the session's quota of completions allow
/// ([`crate::Limits::completions`]); beyond it the node takes no more WRs, so that it cannot overrun.
#[derive(Clone)]
pub struct Cq(pub(crate) Rc<CqHandle>);

impl Session {
    /// Makes a completion queue that VQPs can share.
    pub fn create_cq(&self) -> Cq {
        let mut inner = self.inner.borrow_mut();
        let id = inner.next_cq();
        let cq = Cq(Rc::new(CqHandle { session: self.clone(), id }));
        let handle = Rc::downgrade(&cq.0);
        inner.cqs.insert(id, Queue::new(handle));
        cq
    }

    /// Waits until a VQP or a CQ of the session has something, at most so long, and tells which. One
    /// that is not emptied is told again by the next call, behind the others.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Woken`], [`Error::Interrupted`] and [`Error::NodeGone`].
    pub fn wait_ready(&self, at_most: Option<Duration>) -> Result<Vec<Ready>, Error> {
        self.inner.borrow_mut().wait(Wait::endable(at_most), Inner::some_ready)
    }

    /// As [`Session::wait_ready`], without waiting: nothing if there is nothing.
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub fn poll_ready(&self) -> Result<Vec<Ready>, Error> {
        let ready = self.inner.borrow_mut().poll_for(Inner::some_ready)?;
        Ok(ready.unwrap_or_default())
    }
}

impl Cq {
    /// Takes completions, oldest first; returns how many.
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        let mut inner = self.0.session.inner.borrow_mut();
        inner.check_own()?;
        match inner.take_from(self.0.id, wcs) {
            0 => {
                inner.poll()?;
                Ok(inner.take_from(self.0.id, wcs))
            }
            taken => Ok(taken),
        }
    }

    /// As [`Cq::poll`], but waits until there is one, at most so long.
    ///
    /// # Errors
    /// As [`Session::wait_ready`].
    pub fn wait(&self, wcs: &mut [Wc], at_most: Option<Duration>) -> Result<usize, Error> {
        let id = self.0.id;
        let wait = Wait::endable(at_most);
        self.0.session.inner.borrow_mut().wait(wait, |inner| match inner.take_from(id, wcs) {
            0 => None,
            taken => Some(taken),
        })
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl Inner {
    fn some_ready(&mut self) -> Option<Vec<Ready>> {
        let ready = self.ready();
        (!ready.is_empty()).then_some(ready)
    }

    /// What has something, oldest first. What was emptied since is listed no more.
    fn ready(&mut self) -> Vec<Ready> {
        self.tidy();
        let ready = self.ready.iter().filter_map(|of| match of {
            Of::Vqp(id) => self.vqps.get(id)?.handle.upgrade().map(|it| Ready::Vqp(Vqp::of(it))),
            Of::Cq(id) => self.cqs.get(id)?.handle.upgrade().map(|it| Ready::Cq(Cq(it))),
        });
        let ready: Vec<_> = ready.collect();
        // Those that stay come behind what is new by then, so that none is always the first.
        if !self.ready.is_empty() {
            self.ready.rotate_left(1);
        }
        ready
    }

    /// Whether a user has something to take, without a look at the ring.
    pub(crate) fn has_ready(&mut self) -> bool {
        self.tidy();
        !self.ready.is_empty() || self.has_outcome()
    }

    fn tidy(&mut self) {
        let (vqps, cqs) = (&mut self.vqps, &mut self.cqs);
        self.ready.retain(|of| match of {
            Of::Vqp(id) => vqps.get_mut(id).is_some_and(Entry::stays_listed),
            Of::Cq(id) => cqs.get_mut(id).is_some_and(Queue::stays_listed),
        });
    }

    fn take_from(&mut self, cq: u32, wcs: &mut [Wc]) -> usize {
        self.cqs.get_mut(&cq).map_or(0, |queue| queue.take(wcs))
    }
}
