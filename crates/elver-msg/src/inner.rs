//! A rank's end of the group: what moves messages, in every call that waits or finds nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elver::Session;
use elver_ring::Pause;

use crate::error::Loss;
use crate::join::Joined;
use crate::link::{Link, Loopback, OWN_BODY_MAX};
use crate::protocol::{Engine, Failure, Held, Lent, RequestId, Status};
use crate::reads::{Came, Reads};
use crate::{Address, Error, Options, Payload};

/// Frames that are taken from a rank in turn: it may never stop to send.
const FRAMES_AT_ONCE: u32 = 256;
/// Looks at what a rank has sent that cannot be sent to: more than its ring holds.
const LAST_LOOKS: u32 = 4_096;
/// Who offered memory that cannot be READ is not blamed for that before: the memory of one who dies goes first.
const DOUBT: Duration = Duration::from_secs(1);
/// After so many looks the clock is asked, whatever moves.
const LOOKS_PER_CLOCK: u32 = 64;
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(250);
/// The longest wait for a connection, by which nothing else is noticed.
const CONNECT_LOOK: Duration = Duration::from_millis(1);

/// A rank whose memory could not be READ: it may just have died, and its end not be told yet.
struct Doubt {
    rank: u32,
    since: Instant,
    error: Arc<elver::Error>,
}

pub(crate) struct Inner {
    pub(crate) session: Session,
    pub(crate) rank: u32,
    pub(crate) engine: Engine<Payload>,
    /// By rank. None of its own, and of those that are lost.
    links: Vec<Option<Link>>,
    own: Loopback,
    reads: Reads,
    addresses: Vec<Address>,
    lost: Vec<Option<Loss>>,
    /// Ranks whose memory could not be READ, and that are not lost yet.
    doubted: Vec<Doubt>,
    pub(crate) unreadable: u64,
    /// Since when nothing came.
    idle: Option<Instant>,
    /// Nothing moved by the last look of the wait that goes on.
    still: bool,
    /// A signal came in it.
    interrupted: bool,
    spin: Duration,
    /// Collective operations by now.
    pub(crate) collectives: u32,
}

impl Inner {
    pub(crate) fn new(session: &Session, joined: Joined, options: &Options) -> Inner {
        let Joined { rank, peers, addresses } = joined;
        let takes = peers.iter().map(|peer| match peer {
            Some((link, greeting)) => (greeting.limits, link.body_max()),
            None => (options.limits, OWN_BODY_MAX),
        });
        let engine = Engine::new(rank, options.limits, options.requests, takes);
        let links: Vec<_> = peers.into_iter().map(|peer| peer.map(|(link, _)| link)).collect();
        let lost = links.iter().map(|_| None).collect();
        Inner {
            session: session.clone(),
            rank,
            engine,
            links,
            own: Loopback::default(),
            reads: Reads::new(session),
            addresses,
            lost,
            doubted: Vec::new(),
            unreadable: 0,
            idle: None,
            still: false,
            interrupted: false,
            spin: options.spin,
            collectives: 0,
        }
    }

    pub(crate) fn size(&self) -> u32 {
        self.links.len() as u32
    }

    /// A rank that died, left too early, or broke the rules.
    pub(crate) fn dead(&self) -> Option<u32> {
        let is_dead = |lost: &Option<Loss>| !matches!(lost, None | Some(Loss::Finished));
        self.lost.iter().position(is_dead).map(|rank| rank as u32)
    }

    /// Why a rank is not there.
    pub(crate) fn lost(&self, rank: u32) -> Error {
        let loss = self.lost[rank as usize].clone().unwrap_or(Loss::Finished);
        // Its ring tells of this rank's own node, too, and may be the first to.
        if let Loss::Gone(error) = &loss
            && matches!(**error, elver_ring::Error::Carrier(elver::Error::NodeGone))
        {
            return elver::Error::NodeGone.into();
        }
        Error::Lost { rank, loss }
    }

    pub(crate) fn loss(&self, rank: u32) -> Option<&Loss> {
        self.lost[rank as usize].as_ref()
    }

    /// Takes the end of a request.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<(Result<Status, Error>, Held<Payload>)> {
        let (how, memory) = self.engine.take(id)?;
        Some((how.map_err(|failure| self.error(failure)), memory))
    }

    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Peer { rank } => self.lost(rank),
            Failure::Truncated { status, room } => Error::Truncated { status, room },
        }
    }

    /// Moves what can be moved, until `done`, waiting meanwhile. Then nothing is left that others wait for: this
    /// rank may not come back for long.
    pub(crate) fn wait<T>(
        &mut self,
        at_most: Option<Duration>,
        lent: &mut Lent<'_>,
        done: impl FnMut(&mut Inner) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let waited = self.wait_batching(at_most, lent, done);
        self.flush(lent);
        waited
    }

    /// The same, but leaves a batch that is not full, for who sends one message behind the other.
    #[inline]
    pub(crate) fn wait_batching<T>(
        &mut self,
        at_most: Option<Duration>,
        lent: &mut Lent<'_>,
        mut done: impl FnMut(&mut Inner) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        (self.still, self.interrupted) = (false, false);
        let mut looks = 0u32;
        loop {
            if let Some(done) = done(self) {
                return done;
            }
            let moved = self.progress(lent)?;
            if moved {
                self.idle = None;
            }
            let is_busy = !std::mem::replace(&mut self.still, !moved) || moved;
            looks = looks.wrapping_add(1);
            // The time passes also while there is always something.
            if is_busy && !looks.is_multiple_of(LOOKS_PER_CLOCK) {
                continue;
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(elver::Error::TimedOut.into());
            }
            if is_busy {
                continue;
            }
            self.rest(now, left, lent)?;
        }
    }

    /// What a signal ends the wait with, where such a wait ends: one by whose end nothing is lost, and nothing sent that
    /// seems not to be.
    pub(crate) fn interruption(&self) -> Option<Error> {
        self.interrupted.then(|| elver::Error::Interrupted.into())
    }

    /// The same of a wait for a request: a message that has begun to come is taken, and one that was sent goes.
    pub(crate) fn interruption_of(&self, id: RequestId) -> Option<Error> {
        self.interruption().filter(|_| self.engine.is_posted(id))
    }

    /// Whether this end has nothing to do before something comes.
    pub(crate) fn is_still(&self) -> bool {
        self.still
    }

    /// Takes in what has come, and sends what there is; whether anything moved.
    pub(crate) fn progress(&mut self, lent: &mut Lent<'_>) -> Result<bool, Error> {
        let mut moved = false;
        for rank in 0..self.size() {
            moved |= self.take_from(rank, lent);
        }
        moved |= self.read()?;
        for rank in 0..self.size() {
            moved |= self.send_to(rank, lent);
        }
        Ok(moved | self.take_own(lent))
    }

    /// Takes frames of a rank's; whether there were any.
    #[inline]
    fn take_from(&mut self, rank: u32, lent: &mut Lent<'_>) -> bool {
        let Some(link) = &mut self.links[rank as usize] else { return false };
        let mut taken = 0;
        let loss = loop {
            match link.incoming.try_next() {
                Ok(Some(len)) => {
                    if let Err(fault) = self.engine.handle(rank, link.incoming.frame(len), lent) {
                        break Loss::Fault(fault);
                    }
                    taken += 1;
                    if taken == FRAMES_AT_ONCE {
                        return true;
                    }
                }
                Ok(None) if link.incoming.is_ended() => break Loss::Left,
                Ok(None) => {
                    if taken > 0 {
                        link.pause = None;
                    }
                    return taken > 0;
                }
                Err(error) => break Loss::Gone(Arc::new(error)),
            }
        };
        self.lose(rank, loss);
        true
    }

    /// Sends a rank what there is for it; whether anything went.
    #[inline]
    pub(crate) fn send_to(&mut self, rank: u32, lent: &mut Lent<'_>) -> bool {
        if rank == self.rank {
            let Ok(went) = self.engine.transmit(rank, &mut self.own, lent);
            return went;
        }
        let Some(link) = &mut self.links[rank as usize] else { return false };
        let sent = self.engine.transmit(rank, &mut link.out, lent);
        let sent = sent.and_then(|went| link.out.flush_if_idle().map(|()| went));
        match sent {
            Ok(went) => went,
            Err(error) => {
                self.lose_behind(rank, error, lent);
                true
            }
        }
    }

    /// Sends all ranks what there is for them, as far as there is room.
    pub(crate) fn send_all(&mut self) {
        for rank in 0..self.size() {
            self.send_to(rank, &mut Lent::none());
        }
        self.flush(&mut Lent::none());
    }

    /// A rank cannot be sent to: what it sent before counts.
    #[cold]
    fn lose_behind(&mut self, rank: u32, error: elver_ring::Error, lent: &mut Lent<'_>) {
        for _ in 0..LAST_LOOKS {
            if !self.take_from(rank, lent) {
                break;
            }
        }
        let loss = match error {
            elver_ring::Error::Deaf | elver_ring::Error::Ended => Loss::Left,
            error => Loss::Gone(Arc::new(error)),
        };
        self.lose(rank, loss);
    }

    #[cold]
    fn lose(&mut self, rank: u32, loss: Loss) {
        if self.lost[rank as usize].is_some() {
            return;
        }
        // Who has said good-bye may be gone in any way.
        let has_finished = self.engine.has_finished(rank) && !matches!(loss, Loss::Fault(_));
        let loss = if has_finished { Loss::Finished } else { loss };
        self.engine.lose(rank, !has_finished);
        self.lost[rank as usize] = Some(loss);
        self.links[rank as usize] = None;
        self.reads.forget(rank);
        self.doubted.retain(|doubt| doubt.rank != rank);
    }

    /// A rank's memory could not be READ.
    #[cold]
    fn doubt(&mut self, rank: u32, error: elver::Error) {
        self.unreadable += 1;
        self.reads.forget(rank);
        if self.doubted.iter().all(|doubt| doubt.rank != rank) {
            self.doubted.push(Doubt { rank, since: Instant::now(), error: Arc::new(error) });
        }
    }

    /// Loses ranks that are there in spite of that; whether there were some.
    #[cold]
    fn blame(&mut self) -> bool {
        let is_over = |doubt: &Doubt| doubt.since.elapsed() >= DOUBT;
        let over: Vec<Doubt> = self.doubted.extract_if(.., |doubt| is_over(doubt)).collect();
        let any = !over.is_empty();
        for Doubt { rank, error, .. } in over {
            self.lose(rank, Loss::Unreadable(error));
        }
        any
    }

    /// Takes the frames of this rank's to itself.
    fn take_own(&mut self, lent: &mut Lent<'_>) -> bool {
        let mut taken = false;
        while let Some(frame) = self.own.next() {
            taken = true;
            let handled = self.engine.handle(self.rank, &frame, lent);
            handled.expect("a rank keeps the rules towards itself");
            self.own.give_back(frame);
        }
        taken
    }

    /// Begins READs, and takes in those that are done and those that failed.
    fn read(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(order) = self.engine.next_read() {
            moved = true;
            let Some(Payload::Region(into)) = self.engine.memory(order.request) else { continue };
            let (into, gid) = (into.clone(), self.addresses[order.peer as usize].gid);
            if let Err(error) = self.reads.start(order, gid, into) {
                self.doubt(order.peer, error);
            }
        }
        if !self.doubted.is_empty() {
            moved |= self.blame();
        }
        if self.reads.is_idle() {
            return Ok(moved);
        }
        while let Some(came) = self.reads.poll()? {
            moved = true;
            match came {
                Came::Done(order) => self.engine.read_done(&order),
                Came::Unable(order) => self.engine.read_cannot_begin(&order),
                Came::Failed(rank, error) => self.doubt(rank, error),
                Came::Ended(order) => self.engine.read_ended(&order),
            }
        }
        Ok(moved)
    }

    /// Lets all go that waits for its batch to be full.
    #[inline]
    pub(crate) fn flush(&mut self, lent: &mut Lent<'_>) {
        for rank in 0..self.size() {
            let Some(link) = &mut self.links[rank as usize] else { continue };
            if let Err(error) = link.out.flush() {
                self.lose_behind(rank, error, lent);
            }
        }
    }

    /// Nothing moved: lets others run, or sleeps until something comes, at most so long.
    fn rest(
        &mut self,
        now: Instant,
        at_most: Option<Duration>,
        lent: &mut Lent<'_>,
    ) -> Result<(), Error> {
        let looked_for = now - *self.idle.get_or_insert(now);
        if looked_for < self.spin && self.session.look_on(now, self.spin) {
            return Ok(());
        }
        self.flush(lent);
        let mut slice = at_most.unwrap_or(LONGEST).min(LONGEST);
        if let Some(connecting) = self.reads.connecting() {
            let waited = connecting.wait(Some(slice.min(CONNECT_LOOK)));
            // How it ended is looked for where it is gone on with.
            return self.slept(waited.map(drop).or_else(|error| match error {
                // A node that stands still may go on.
                elver::Error::Refused { .. } | elver::Error::Silent => Ok(()),
                error => Err(error),
            }));
        }
        let mut told = false;
        for link in self.links.iter_mut().flatten() {
            let naps = link.wire().naps();
            let mut pause = link.pause.take().unwrap_or_else(|| Pause::new(None));
            let nap = link.wire().lie_down(&mut pause);
            link.pause = Some(pause);
            slice = match nap {
                Ok(Some(nap)) => slice.min(nap),
                // Somebody greets who comes late; one that is gone is seen by the next look.
                Ok(None) | Err(_) => return Ok(()),
            };
            told |= link.wire().naps() != naps;
        }
        if told {
            // What came before the others knew of it is looked for once more.
            return Ok(());
        }
        let slept = self.session.wait_ready(Some(slice));
        self.slept(slept.map(drop))
    }

    fn slept(&mut self, slept: Result<(), elver::Error>) -> Result<(), Error> {
        match slept {
            Ok(()) | Err(elver::Error::TimedOut | elver::Error::Woken) => {}
            Err(elver::Error::Interrupted) => self.interrupted = true,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
