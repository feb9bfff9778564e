//! Waiting in tasks (feature `tokio`).

use std::future::poll_fn;
use std::task::Poll;

use elver::tokio::AsyncSession;

use crate::carrier::Pause;
use crate::{Error, Message, Receiver, Room, Sender, Wire};

impl Receiver<Wire> {
    /// As [`Receiver::recv`], in a task: `session` is the ring's. Dropped before it is done, it has taken
    /// nothing.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub async fn recv_async(
        &mut self,
        session: &AsyncSession,
    ) -> Result<Option<Message<'_, Wire>>, Error> {
        let mut pause = Pause::new(None);
        loop {
            match self.next()? {
                None if !self.is_ended() => rest(self.carrier(), session, &mut pause).await?,
                frame => return Ok(frame.map(|frame| self.message(frame))),
            }
        }
    }
}

impl Sender<Wire> {
    /// As [`Sender::reserve`], in a task: `session` is the ring's.
    ///
    /// # Errors
    /// As [`Sender::reserve`].
    pub async fn reserve_async(
        &mut self,
        len: usize,
        session: &AsyncSession,
    ) -> Result<Room<'_, Wire>, Error> {
        let mut pause = Pause::new(None);
        loop {
            match self.frame(len) {
                Err(Error::Full) => rest(self.carrier(), session, &mut pause).await?,
                frame => return Ok(self.room(frame?)),
            }
        }
    }
}

/// One rest of a wait: others run meanwhile.
async fn rest(wire: &Wire, session: &AsyncSession, pause: &mut Pause) -> Result<(), Error> {
    let Some(slice) = wire.0.before_sleep(pause)? else {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        return Ok(());
    };
    let slept = match tokio::time::timeout(slice, session.wait_ready()).await {
        Ok(ready) => ready.map(drop),
        Err(_) => Err(elver::Error::TimedOut),
    };
    wire.0.after_sleep(pause, slept)
}
