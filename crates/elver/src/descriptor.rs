//! Waiting by a descriptor, beside others.

use std::os::fd::{AsFd, BorrowedFd};
use std::task;
use std::thread;
use std::time::{Duration, Instant};

use elver_portal::Turns;

use crate::link::WAKE_PAUSE;
use crate::{Error, Session, Waker};

/// The session's descriptor, for poll, epoll and what is built on them. It becomes readable when the node
/// has told something *and the session was armed before*: see [`Session::arm`]. Only the session
/// reads from it.
impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Session {
    /// Asks for the descriptor to become readable when the node tells something next: as
    /// `ucp_worker_arm` of UCX and `ibv_req_notify_cq` of the verbs. False if there is something to
    /// take already: completions, messages, a failure of a VQP or the end of a connect; and, after
    /// a pause of a millisecond, while the system cannot wake the node for what it was given. It is not
    /// armed then. The way to wait, which loses nothing:
    ///
    /// 1. take all there is ([`Session::poll_ready`], [`Vqp::poll_cq`](crate::Vqp::poll_cq) …);
    /// 2. arm; if that says false, go to 1;
    /// 3. wait for the descriptor, with whatever else;
    /// 4. [`Session::disarm`], and go to 1.
    ///
    /// Armed it stays for one waking. A call that waits for the node (`alloc`, `create_vqp`, a wait)
    /// may take it back as well: arm last. And who posts while it is armed arms again before he waits on, since the
    /// system may be unable to wake the node for that.
    ///
    /// # Errors
    /// [`Error::NodeGone`]; [`Error::Invalid`] for a session at a node that this thread drives, which
    /// tells nothing by itself.
    pub fn arm(&self) -> Result<bool, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.check_own()?;
        // What this process has done itself, the node does not tell.
        inner.tell_done();
        if inner.has_ready() || inner.has_end() {
            return Ok(false);
        }
        let is_armed = inner.link.arm()?;
        inner.is_armed = is_armed;
        let is_vain = !is_armed && inner.link.owes_waking();
        drop(inner);
        if is_vain {
            // Who comes back at once would ask the system for nothing else.
            thread::sleep(WAKE_PAUSE);
        }
        Ok(is_armed)
    }

    /// As [`Session::arm`], for who sleeps on the descriptor and hears by `waker` as well when something was taken of what the
    /// node told, or was done without it ([`Session::wake_on_news`]): an event loop, for its tasks. What was told before and
    /// is not taken does not keep the session from being armed: he has looked, and leaves it to others.
    ///
    /// # Errors
    /// As [`Session::arm`].
    pub fn arm_for_news(&self, waker: &task::Waker) -> Result<bool, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.check_own()?;
        if inner.tell_done() || inner.has_end() || !inner.link.arm()? {
            return Ok(false);
        }
        drop(inner);
        self.wake_on_news(waker);
        Ok(true)
    }

    /// The session is looked at again: the node need not wake it, and the descriptor is readable no
    /// more. To be called after a wait for the descriptor, however that ended.
    ///
    /// # Errors
    /// [`Error::NodeGone`] once all is taken that it told.
    pub fn disarm(&self) -> Result<(), Error> {
        let mut inner = self.inner.borrow_mut();
        inner.check_own()?;
        inner.is_armed = false;
        let disarmed = inner.link.disarm();
        inner.rouse();
        disarmed
    }

    /// Wakes `waker` once, as soon as something was taken of what the node told, by whichever call: for those who
    /// share a session under a lock and sleep on its descriptor, of whom one takes what another was to be woken for.
    pub fn wake_on_news(&self, waker: &task::Waker) {
        let sleepers = &mut self.inner.borrow_mut().sleepers;
        if !sleepers.iter().any(|sleeper| sleeper.will_wake(waker)) {
            sleepers.push(waker.clone());
        }
    }

    /// Lets other threads run once, for who looks for something again and again, for as long as `spin` in all.
    /// False, without doing so, if it is better to sleep: others have long turns on this core, and who yields
    /// to them gets it back after milliseconds. Who is to look for a second or longer always looks on.
    pub fn look_on(&self, now: Instant, spin: Duration) -> bool {
        let turns = &mut self.inner.borrow_mut().link.turns;
        let looks_on = Turns::are_ignored(spin) || !turns.is_held(now);
        if looks_on {
            turns.pass();
        }
        looks_on
    }

    /// Whether this thread drives the session's node: then there is no descriptor for who waits, and the node's
    /// own sleep is not ended by a [`Waker`].
    pub fn is_driven(&self) -> bool {
        self.inner.borrow().link.is_driven()
    }

    /// What ends this session's waits from another thread or a signal's handler. All of a session's
    /// wakers are one.
    ///
    /// # Errors
    /// [`Error::System`] if there is no descriptor left.
    pub fn waker(&self) -> Result<Waker, Error> {
        self.inner.borrow_mut().link.waker()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use elver_portal::{Message, Received};
    use elver_testkit::wait_for;

    use super::*;
    use crate::silent::{self, Gives};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A node may send the waking when what it is for was taken, and the session armed anew: it takes that for said. A look
    /// at the socket in passing left the session armed and its descriptor unreadable, and who slept on it slept on.
    #[test]
    fn who_has_armed_hears_of_a_waking_that_a_look_takes_in_passing() {
        let (session, node, _) = silent::session();
        let heard = Arc::new(Count::default());
        assert!(session.arm_for_news(&task::Waker::from(heard.clone())).unwrap());
        session.poll().unwrap();
        assert_eq!(heard.0.load(Ordering::Relaxed), 0, "nothing came");
        node.wake().unwrap();
        wait_for("the waking", || {
            session.poll().unwrap();
            (heard.0.load(Ordering::Relaxed) > 0).then_some(())
        });
        assert_eq!(heard.0.load(Ordering::Relaxed), 1);
    }

    /// One posts while another sleeps, and the system cannot wake the node: the sleeper alone will try again before he sleeps
    /// on, and heard nothing of it.
    #[test]
    fn who_sleeps_hears_that_the_node_could_not_be_woken() {
        let gives: [Gives; 3] = [silent::commands, silent::sends, silent::receives];
        for give in gives {
            let (session, node, end) = silent::session();
            let vqp = silent::vqp(&session);
            let heard = Arc::new(Count::default());
            let waker = task::Waker::from(heard.clone());
            assert!(session.arm_for_news(&waker).unwrap());
            assert!(end.sleep());
            let connected = silent::cut(&session);
            give(&session, &vqp);
            assert_eq!(heard.0.load(Ordering::Relaxed), 1);
            assert!(!session.arm_for_news(&waker).unwrap(), "it may be woken by nobody");
            session.socket.leave(&connected).unwrap();
            wait_for("a retry", || session.arm_for_news(&waker).unwrap().then_some(()));
            assert!(matches!(node.receive(true), Ok(Received::Message(Message::Wake, None))));
        }
    }
}
