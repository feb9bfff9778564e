//! Waiting in tasks (feature `tokio`).
//!
//! An [`AsyncSession`] is a session whose waits are futures. They look for the answer for as long as a
//! blocking wait does ([`crate::SessionOptions::spin`]), letting other tasks run between looks, and
//! then sleep on the session's descriptor. As a session belongs to one thread, so do its futures: they
//! run on a current-thread runtime or in a `LocalSet`.
//!
//! Several tasks may wait on one session at a time. Whichever of them is woken takes what the node told,
//! for all, and wakes the others.

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use elver_portal::Socket;

use crate::inner::InUse;
use crate::{Connecting, Cq, Error, Message, Ready, Session, Via, Vqp, Wc};

/// Looks without letting other tasks run: as a blocking wait's.
const EAGER_LOOKS: u32 = 64;
/// Looks between two times that other tasks run.
const LOOKS: u32 = 16;

/// A session that tasks wait on.
#[derive(Debug)]
pub struct AsyncSession {
    session: Session,
    fd: AsyncFd<Descriptor>,
}

struct Descriptor(Rc<Socket>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.as_raw_fd())
    }
}

impl AsyncSession {
    /// Takes a session, which a daemon or a node on a thread of its own serves.
    ///
    /// # Errors
    /// [`Error::System`] if the runtime cannot watch its descriptor.
    ///
    /// # Panics
    /// Outside of a runtime, or in one without IO (`enable_io`).
    pub fn new(session: Session) -> Result<AsyncSession, Error> {
        let socket = Descriptor(session.socket.clone());
        // SAFETY: the descriptor is a socket's that the value shares, so that it stays open, and the same,
        // while the value lives.
        let fd = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(
            |error| Error::System { call: "watching the session", reason: error.into() },
        )?;
        Ok(AsyncSession { session, fd })
    }

    /// The session, for all that does not wait.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// As [`Vqp::wait_cq`].
    ///
    /// # Errors
    /// [`Error::NodeGone`]; why the VQP failed, when all that it held has come back.
    pub async fn wait_cq(&self, vqp: &Vqp, wcs: &mut [Wc]) -> Result<usize, Error> {
        self.until(|| match vqp.poll_cq(wcs)? {
            0 => vqp.failure().map_or(Ok(None), Err),
            taken => Ok(Some(taken)),
        })
        .await
    }

    /// As [`Cq::wait`].
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub async fn wait(&self, cq: &Cq, wcs: &mut [Wc]) -> Result<usize, Error> {
        self.until(|| some(cq.poll(wcs)?)).await
    }

    /// As [`Vqp::wait_msgs`].
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub async fn wait_msgs(&self, vqp: &Vqp) -> Result<Vec<Message>, Error> {
        let mut is_first = true;
        self.until(|| {
            let messages = vqp.poll_msgs(std::mem::take(&mut is_first))?;
            Ok(Some(messages).filter(|messages| !messages.is_empty()))
        })
        .await
    }

    /// As [`Session::wait_ready`].
    ///
    /// # Errors
    /// [`Error::NodeGone`].
    pub async fn wait_ready(&self) -> Result<Vec<Ready>, Error> {
        self.until(|| Ok(Some(self.session.poll_ready()?).filter(|ready| !ready.is_empty()))).await
    }

    /// As [`Connecting::wait`].
    ///
    /// # Errors
    /// As [`Connecting::poll`].
    pub async fn wait_connected(&self, connecting: &Connecting) -> Result<Via, Error> {
        self.until(|| connecting.poll()).await
    }

    /// Looks until `look` finds something; sleeps in between once it has looked for long enough.
    async fn until<R>(
        &self,
        mut look: impl FnMut() -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let spin = self.inner().link.spin;
        let mut began = None;
        let mut looks = EAGER_LOOKS;
        loop {
            for _ in 0..looks {
                if let Some(found) = look()? {
                    return Ok(found);
                }
                std::hint::spin_loop();
            }
            looks = LOOKS;
            let now = Instant::now();
            // Others may need this core for the answer: another process, and another task.
            if now - *began.get_or_insert(now) < spin && self.session().look_on(now, spin) {
                yield_now().await;
            } else {
                looks = 1;
                self.sleep().await?;
            }
        }
    }

    /// Sleeps until the node has told something, or another task has taken what it told.
    async fn sleep(&self) -> Result<(), Error> {
        let news = {
            let mut inner = self.inner();
            inner.check_own()?;
            (!inner.has_end() && inner.link.arm()?).then_some(inner.news)
        };
        let Some(news) = news else {
            // It may be so for long that the node cannot be woken.
            yield_now().await;
            return Ok(());
        };
        let mut readable = pin!(self.fd.readable());
        let woken = poll_fn(|cx| {
            let mut inner = self.inner();
            if inner.news != news {
                return Poll::Ready(None);
            }
            if !inner.sleepers.iter().any(|sleeper| sleeper.will_wake(cx.waker())) {
                inner.sleepers.push(cx.waker().clone());
            }
            drop(inner);
            readable.as_mut().poll(cx).map(Some)
        });
        if let Some(guard) = woken.await {
            let mut guard =
                guard.map_err(|reason| Error::System { call: "watching the session", reason })?;
            let disarmed = self.session.disarm();
            // All that came was read.
            guard.clear_ready();
            disarmed?;
        }
        Ok(())
    }

    fn inner(&self) -> InUse<'_> {
        self.session.inner.borrow_mut()
    }
}

fn some(taken: usize) -> Result<Option<usize>, Error> {
    Ok(Some(taken).filter(|taken| *taken > 0))
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
