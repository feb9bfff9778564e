//! Waiting in tasks (feature `tokio`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Instant;

use elver::tokio::AsyncSession;

use crate::carrier::Pause;
use crate::{Connecting, Ends, Error, Listener, Message, Receiver, Room, Sender, Wire};

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
                None if !self.is_ended() => self.carrier().rest_async(session, &mut pause).await?,
                piece => return Ok(piece.map(|piece| self.message(piece))),
            }
        }
    }
}

impl Ends {
    /// As [`Ends::recv`], in a task: `session` is the rings'. Dropped before it is done, it has taken nothing.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub async fn recv_async(
        &mut self,
        session: &AsyncSession,
    ) -> Result<Option<Message<'_, Wire>>, Error> {
        let mut pause = Pause::new(None);
        loop {
            match self.next(&mut pause)? {
                None if !self.receiver.is_ended() => {
                    self.receiver.carrier().rest_async(session, &mut pause).await?;
                }
                piece => return Ok(piece.map(|piece| self.receiver.message(piece))),
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
                Err(Error::Full) => self.carrier().rest_async(session, &mut pause).await?,
                frame => return Ok(self.room(frame?)),
            }
        }
    }
}

impl Wire {
    /// As [`Carrier::rest`](crate::Carrier::rest), in a task: others run meanwhile. `session` is the ring's.
    ///
    /// # Errors
    /// As [`Carrier::rest`](crate::Carrier::rest).
    ///
    /// # Panics
    /// In a runtime without time (`enable_time`), as does all that waits here.
    pub async fn rest_async(&self, session: &AsyncSession, pause: &mut Pause) -> Result<(), Error> {
        let Some(slice) = self.0.before_sleep(pause)? else {
            yield_now().await;
            return Ok(());
        };
        let mut asleep = pin!(tokio::time::timeout(slice, session.wait_ready()));
        let slept = poll_fn(|cx| {
            // Another task has taken the waking: a listener's come by one port.
            if self.0.is_roused(pause) {
                return Poll::Ready(Ok(()));
            }
            let slept = ready!(asleep.as_mut().poll(cx));
            Poll::Ready(slept.unwrap_or(Err(elver::Error::TimedOut)).map(drop))
        })
        .await;
        self.0.after_sleep(pause, slept)?;
        // What the session has may be for another task, which then takes it.
        yield_now().await;
        Ok(())
    }
}

impl Listener {
    /// As [`Listener::accept`], in a task: `session` is the listener's.
    ///
    /// # Errors
    /// As [`Listener::try_accept`].
    ///
    /// # Panics
    /// In a runtime without time (`enable_time`), if the node hangs ([`Listener::deadline`]).
    pub async fn accept_async(&self, session: &AsyncSession) -> Result<Ends, Error> {
        loop {
            if let Some(ends) = self.try_accept()? {
                return Ok(ends);
            }
            let mut ready = pin!(session.wait_ready());
            let mut due = None;
            poll_fn(|cx| {
                if due.is_none() {
                    let left = |due: Instant| due.saturating_duration_since(Instant::now());
                    due = self.deadline().map(|due| Box::pin(tokio::time::sleep(left(due))));
                }
                if due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready()) {
                    return Poll::Ready(Ok(()));
                }
                let slept = ready.as_mut().poll(cx).map_ok(drop);
                // Another task has taken the greeting; or a VQP back is connected, which the wait itself may have taken
                // in and tells nobody. Who is looked for behind the wait wakes this task, which is noted by then.
                if slept.is_pending() && self.is_due() {
                    return Poll::Ready(Ok(()));
                }
                slept
            })
            .await?;
            // What the session has may be for another task, which then takes it.
            yield_now().await;
        }
    }
}

impl Connecting {
    /// As [`Connecting::wait`], in a task: `session` is the one that it was started with.
    ///
    /// # Errors
    /// As [`Connecting::wait`].
    ///
    /// # Panics
    /// In a runtime without time (`enable_time`).
    pub async fn wait_async(mut self, session: &AsyncSession) -> Result<Ends, Error> {
        loop {
            if let Some(asked) = self.asked() {
                // Why it was not connected, `poll` says.
                let _ = session.wait_connected(asked).await;
            }
            if let Some(ends) = self.poll()? {
                return Ok(ends);
            }
            // Also when it is time to ask, by the system's clock: a runtime's may be another (`tokio::time::pause`).
            let due = self.due().saturating_duration_since(Instant::now());
            if let Ok(slept) = tokio::time::timeout(due, session.wait_ready()).await {
                slept?;
            }
            yield_now().await;
        }
    }
}

/// Lets other tasks run once.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
