//! The listener: what it takes of others, and what it has seen.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver::{Numa, Policy, Session, Vqp};

use crate::Error;
use crate::answering::{Answer, Answering, Due};
use crate::connect::Options;
use crate::ends::{Ends, Memory, Where, ends, inline_fits};
use crate::error::Refusal;
use crate::greeting::{Greeting, Nonsense};
use crate::inbox::{Greeted, Inbox, greet};
use crate::shares::Shares;
use crate::side::Side;
use crate::wire::{Parts, Role};

/// What a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Most bytes of the slots of a pair's rings, both together.
    pub ring_bytes_max: u64,
    /// Most pairs with ends at one node, this one as well. Users of a node are not told apart: the node that asks says
    /// nothing of them.
    pub pairs_per_peer: usize,
    /// Most bytes of the slots of all these together.
    pub bytes_per_peer: u64,
    /// As [`Options::huge_pages`].
    pub huge_pages: bool,
    /// As [`Options::numa`]: of the thread that accepts.
    pub numa: Numa,
    /// As [`Options::spin`].
    pub spin: Duration,
    /// As [`Options::policy`], for what its ends write. With [`Policy::Shared`] that goes on the VQP back to who has
    /// connected, which costs nothing; with others each end has a VQP of its own, which is connected before who
    /// connects is answered.
    pub policy: Policy,
    /// As [`Options::application`]: others are refused.
    pub application: u64,
}

impl Default for ListenerOptions {
    /// 64 MiB a pair, and of each peer as many as the node's quotas allow.
    fn default() -> ListenerOptions {
        let Options { huge_pages, numa, spin, policy, application, .. } = Options::default();
        let (ring_bytes_max, pairs_per_peer, bytes_per_peer) = (64 << 20, usize::MAX, u64::MAX);
        ListenerOptions {
            ring_bytes_max,
            pairs_per_peer,
            bytes_per_peer,
            huge_pages,
            numa,
            spin,
            policy,
            application,
        }
    }
}

/// What a listener has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Pairs that were made.
    pub accepted: u64,
    /// Greetings that were refused, each with its reason told to who sent it.
    pub refused: u64,
    /// Of these, those of nodes that had their share ([`ListenerOptions::pairs_per_peer`]).
    pub beyond_share: u64,
    /// Of these, those that came while as many of their node waited as may: half of the 1,024 places that the other nodes leave.
    pub crowded: u64,
    /// Of these, those that had been lost when who sent them asked for them: it stood still when it was answered, or its
    /// pair is gone.
    pub lost: u64,
    /// Messages of who is connected already that are no wakings, and those of who was gone before its turn.
    pub dropped: u64,
    /// Times that its node was asked, and waited for, of which nodes it was that came: once for all that had come together, of
    /// which there are 64 at most.
    pub asked: u64,
}

/// Takes pairs of rings that others connect. Their wakings come by its port, which stays taken as long as
/// one of them lives; dropped, the listener refuses others.
pub struct Listener {
    session: Session,
    inbox: Rc<Inbox>,
    answering: Answering,
    shares: Shares,
    port: u16,
    options: ListenerOptions,
    counters: Cell<ListenerCounters>,
}

impl Listener {
    /// Listens at a port of the session's node; 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Carrier`] if another has the port.
    pub fn bind(session: &Session, port: u16, options: ListenerOptions) -> Result<Listener, Error> {
        inline_fits(session)?;
        let (inbox, port) = Inbox::bind(session, port)?;
        let (session, inbox) = (session.clone(), Rc::new(inbox));
        let (answering, shares) = (Answering::new(&session), Shares::default());
        Ok(Listener { session, inbox, answering, shares, port, options, counters: Cell::default() })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has seen.
    pub fn counters(&self) -> ListenerCounters {
        let (counters, dropped) = (self.counters.get(), self.inbox.dropped());
        let (crowded, lost) = (self.inbox.crowded(), self.inbox.lost());
        let (refused, asked) = (counters.refused + crowded + lost, self.inbox.asked());
        ListenerCounters { refused, crowded, lost, dropped, asked, ..counters }
    }

    /// The next pair, if somebody has connected one. Who says what does not fit is told, and counted.
    ///
    /// # Errors
    /// [`Error::Carrier`] if the node is gone.
    pub fn try_accept(&self) -> Result<Option<Ends>, Error> {
        self.inbox.drain()?;
        while let Some(Due { answer, vqp }) = self.answering.next()? {
            let source = answer.source.clone();
            let made = vqp.and_then(|vqp| self.finish(answer, Some(vqp)));
            if let Some(ends) = self.judged(&source, made.map(Some)) {
                return Ok(Some(ends));
            }
        }
        while let Some(greeted) = self.inbox.next(|peer| self.answering.has_room(peer)) {
            let made = self.take(&greeted).and_then(|answer| self.begin(answer));
            if let Some(ends) = self.judged(&greeted.source, made) {
                return Ok(Some(ends));
            }
        }
        self.inbox.leave_out_gone();
        // All of them were looked at.
        self.inbox.has_news();
        Ok(None)
    }

    /// When to accept next, if the session's descriptor ([`Session::arm`]) tells of nothing before: the node hung when it was
    /// asked whose a greeting is, and is asked again then. None while nothing waits for that.
    pub fn deadline(&self) -> Option<Instant> {
        self.inbox.deadline()
    }

    /// As [`Listener::try_accept`], but waits for one, at most so long.
    ///
    /// # Errors
    /// As [`Listener::try_accept`]; [`Error::TimedOut`].
    pub fn accept(&self, at_most: Option<Duration>) -> Result<Ends, Error> {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        loop {
            if let Some(ends) = self.try_accept()? {
                return Ok(ends);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // The session may always have something, of other VQPs.
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::TimedOut);
            }
            if self.answering.wait(left)? {
                continue;
            }
            let due = self.deadline();
            let due = due.map(|due| due.saturating_duration_since(Instant::now()));
            match self.session.wait_ready(left.into_iter().chain(due).min()) {
                // Whose time has passed is seen above.
                Ok(_) | Err(elver::Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether VQPs are being connected to who has greeted ([`ListenerOptions::policy`]). Their end ends no
    /// [`Session::wait_ready`], but is something for [`Session::arm`]: who waits by the former looks again soon.
    pub fn is_answering(&self) -> bool {
        !self.answering.is_empty()
    }

    /// Whether somebody has greeted who may be looked at, or can be answered now.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_due(&self) -> bool {
        self.inbox.is_greeted(|peer| self.answering.has_room(peer))
            || self.answering.is_due()
            || self.inbox.owes()
    }

    /// Counts what came of a greeting, and tells who sent it why it was refused.
    fn judged(&self, source: &Vqp, made: Result<Option<Ends>, Refusal>) -> Option<Ends> {
        let mut counters = self.counters.get();
        match &made {
            Ok(ends) => counters.accepted += u64::from(ends.is_some()),
            Err(reason) => {
                counters.refused += 1;
                counters.beyond_share += u64::from(*reason == Refusal::PeerShare);
                self.inbox.refuse(source, *reason);
            }
        }
        self.counters.set(counters);
        made.ok().flatten()
    }

    /// What a greeting asks for, if that may be.
    fn take(&self, greeted: &Greeted) -> Result<Answer, Refusal> {
        let Greeted { source, bytes, peer: node } = greeted;
        let greeting = Greeting::decode(bytes).map_err(|nonsense| match nonsense {
            Nonsense::Version(_) => Refusal::Version,
            Nonsense::Malformed(_) => Refusal::Malformed,
        })?;
        let Greeting::Hello { there, back, place: peer, token, application } = greeting else {
            return Err(Refusal::Malformed);
        };
        if application != self.options.application {
            return Err(Refusal::Application);
        }
        let shapes = [there, back].map(|config| config.check().map_err(|_| Refusal::Config));
        let [there_shape, back_shape] = shapes;
        let bytes = there_shape?.bytes() + back_shape?.bytes();
        if bytes > self.options.ring_bytes_max {
            return Err(Refusal::TooLarge);
        }
        let ListenerOptions { pairs_per_peer, bytes_per_peer, .. } = self.options;
        let share = self.shares.take(*node, bytes, (pairs_per_peer, bytes_per_peer));
        let share = share.ok_or(Refusal::PeerShare)?;
        let bell = self.inbox.attach(source.id(), (*node, peer));
        Ok(Answer { source: source.clone(), there, back, peer, token, share, bell })
    }

    /// Makes the pair on the VQP back to who has greeted, or begins to connect another one for it.
    fn begin(&self, answer: Answer) -> Result<Option<Ends>, Refusal> {
        if self.options.policy == Policy::Shared {
            return self.finish(answer, None).map(Some);
        }
        self.answering.begin(&self.session, answer, self.options.policy)?;
        Ok(None)
    }

    /// Makes the pair, on the VQP back to who has greeted or on one of its own.
    fn finish(&self, answer: Answer, own: Option<Vqp>) -> Result<Ends, Refusal> {
        let Answer { source, there, back, peer, token, share, bell } = answer;
        let ListenerOptions { huge_pages: huge, numa, spin, .. } = self.options;
        let here = share.gid() == self.session.gid();
        let memory = Memory::new(&self.session, back, there, Where { huge, here, numa });
        let memory = memory.map_err(|_| Refusal::Memory)?;
        let welcome = Greeting::Welcome(memory.place(), bell.number);
        greet(&source, &welcome).map_err(|_| Refusal::Memory)?;
        bell.takes_completions();
        let Memory { cells, outgoing, incoming } = memory;
        let (vqp, side) = match own {
            Some(own) => (own, Some(Side::new(source))),
            None => (source, None),
        };
        let role = Role::Accepted { bell, share, side };
        let packed = there.is_packed() && back.is_packed();
        let parts = Parts { vqp, role, cells, outgoing, incoming, peer, packed, spin };
        ends(parts, back, there, token).map_err(|_| Refusal::Config)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Before what came is looked at: nobody is to wait who comes meanwhile.
        self.inbox.close();
        for source in self.answering.give_up() {
            self.inbox.refuse(&source, Refusal::Closed);
        }
        // If the node is gone, so are they.
        let _ = self.inbox.drain();
    }
}
