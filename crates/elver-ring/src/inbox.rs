//! Messages that come to a listener's port: greetings, and wakings from the ends that have connected.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use elver::{
    AccessFlags, Gid, Message, Mr, Payload, PostFailed, RecvWr, SendFlags, SendOp, SendWr, Session,
    SessionCell, Vqp, VqpOptions,
};

use crate::Error;
use crate::error::Refusal;
use crate::greeting::{GREETING_BYTES, Greeting, Place, woken};

/// Receives at a port.
const RECEIVES: u32 = 64;
/// Bytes of each: a greeting of another version may be longer.
const RECEIVE_BYTES: u32 = 256;
/// Greetings that wait to be accepted, and such that wait until the node is asked: of one node, or of one VQP, no more than
/// half of what the others leave.
const WAITING_MAX: usize = 1024;

/// The `wr_id` of a refusal, which is no greeting's, no waking's and none of a ring's WRs.
pub(crate) const REFUSAL: u64 = u64::MAX;
const GREETING: u64 = 0;

/// An offer: the node that it is of, and where the end of who offers is.
type Offer = (Gid, Place);

/// Something that came and is no waking.
pub(crate) struct Greeted {
    pub(crate) source: Vqp,
    pub(crate) bytes: Vec<u8>,
    /// The node that it is of; none is known of who is gone.
    pub(crate) peer: Gid,
}

pub(crate) struct Inbox {
    bound: Vqp,
    memory: Mr,
    /// Receives that are to be posted again, each of which has brought a message.
    owed: RefCell<Vec<u64>>,
    /// Greetings whose node is to be asked for, and until when it is not, since it did not tell of some in time.
    said: RefCell<Vec<(Vqp, Vec<u8>)>>,
    silent: Cell<Option<Instant>>,
    /// Borrowed while what came is taken in.
    taking: SessionCell<()>,
    waiting: RefCell<VecDeque<Greeted>>,
    /// One came that waits, and was not looked for since.
    news: Cell<bool>,
    /// Greetings of VQPs that have an end, and of peers that are gone.
    dropped: Cell<u64>,
    /// Greetings beyond what may wait.
    crowded: Cell<u64>,
    /// Offers that were asked for, and of which there is nothing.
    lost: Cell<u64>,
    /// Times that the node was asked who greets.
    asked: Cell<u64>,
    /// Wakings that came for each end, by its number.
    wakings: RefCell<HashMap<u64, Rc<Cell<u64>>>>,
    last_bell: Cell<u64>,
    /// VQPs that have an end, and whether it takes completions by now; and the offers that it was made for.
    taken: RefCell<HashMap<u32, bool>>,
    offers: RefCell<HashSet<Offer>>,
    /// Nobody accepts any more.
    closed: Cell<bool>,
}

impl Inbox {
    pub(crate) fn bind(session: &Session, port: u16) -> Result<(Inbox, u16), Error> {
        let options = VqpOptions { max_recv_wr: RECEIVES, ..VqpOptions::default() };
        let bound = session.create_vqp(options)?;
        let port = bound.qbind(port)?;
        let bytes = u64::from(RECEIVES * RECEIVE_BYTES);
        let memory = session.alloc(bytes, AccessFlags::LOCAL_WRITE)?;
        let inbox = Inbox {
            bound,
            memory,
            owed: RefCell::default(),
            said: RefCell::default(),
            silent: Cell::default(),
            taking: SessionCell::new(session, ()),
            waiting: RefCell::default(),
            news: Cell::default(),
            dropped: Cell::default(),
            crowded: Cell::default(),
            lost: Cell::default(),
            asked: Cell::default(),
            wakings: RefCell::default(),
            last_bell: Cell::default(),
            taken: RefCell::default(),
            offers: RefCell::default(),
            closed: Cell::default(),
        };
        for receive in 0..RECEIVES {
            inbox.post(receive.into())?;
        }
        Ok((inbox, port))
    }

    fn post(&self, receive: u64) -> Result<(), PostFailed> {
        let sges = [self.memory.sge(receive * u64::from(RECEIVE_BYTES), RECEIVE_BYTES)];
        self.bound.post_recv(&[RecvWr { wr_id: receive, sges: &sges }])
    }

    /// Posts the receives again that messages have filled; one that finds no room stays to be.
    fn repost(&self) -> Result<(), Error> {
        loop {
            let Some(receive) = self.owed.borrow_mut().pop() else { return Ok(()) };
            if let Err(failed) = self.post(receive) {
                if failed.posted == 0 {
                    self.owed.borrow_mut().push(receive);
                }
                return Err(failed.into());
            }
        }
    }

    /// Takes in what came. The node is waited for once at most, whatever came: who looks after rings does this, and whoever
    /// likes to sends here.
    ///
    /// # Errors
    /// What the session says. What has come is taken in then by the next call.
    pub(crate) fn drain(&self) -> Result<(), Error> {
        // A task that is woken may run at once, and come back here: by then all of it waits that came.
        let _taking = self.taking.borrow();
        let mut read = Ok(());
        for Message { wc, source } in self.bound.qpop_msgs()? {
            let mut bytes = [0; RECEIVE_BYTES as usize];
            let bytes = &mut bytes[..wc.byte_len.min(RECEIVE_BYTES) as usize];
            let taken = self.memory.read(wc.wr_id * u64::from(RECEIVE_BYTES), bytes);
            self.owed.borrow_mut().push(wc.wr_id);
            match taken {
                Ok(()) => self.take(source, bytes),
                Err(error) => read = Err(error.into()),
            }
        }
        // A node that has no room for a receive stands still, and is not asked.
        self.repost()?;
        self.ask();
        read
    }

    /// Asks the node whose the greetings are that came. Those of which it has not told in time stay to be asked for.
    fn ask(&self) {
        if self.said.borrow().is_empty() || self.is_silent() {
            return;
        }
        let said = self.said.take();
        self.asked.set(self.asked.get() + 1);
        // The session is called, so that nothing is borrowed.
        let infos = self.bound.session().infos(said.iter().map(|(source, _)| source));
        for ((source, bytes), info) in said.into_iter().zip(infos) {
            let peer = match info {
                Ok(info) => info.peer,
                // Of whose offer is not known: it asks again.
                Err(elver::Error::Refused { .. }) if is_question(&bytes) => continue,
                Err(elver::Error::TimedOut) => {
                    self.keep((source, bytes));
                    continue;
                }
                Err(_) => None,
            };
            let peer = peer.map(|(gid, _)| gid).unwrap_or_default();
            self.hear(Greeted { source, bytes, peer });
        }
    }

    /// The node has not told in time whose a greeting is: it is asked once more, when that is looked for after as long a time,
    /// since who asks waits for it.
    fn keep(&self, greeting: (Vqp, Vec<u8>)) {
        self.silent.set(Instant::now().checked_add(self.bound.session().patience()));
        self.put_aside(greeting);
    }

    /// A greeting waits until the node is asked, if there is room: of one VQP for no more than half of what the others leave,
    /// since whose it is is not known. Nobody is told of one beyond that, which would wait for the node as well.
    fn put_aside(&self, greeting: (Vqp, Vec<u8>)) {
        let mut said = self.said.borrow_mut();
        let own = said.iter().filter(|(source, _)| source.id() == greeting.0.id()).count();
        if has_room(said.len(), own) {
            said.push(greeting);
        } else {
            self.crowded.set(self.crowded.get() + 1);
        }
    }

    /// When the node is to be asked again, if greetings wait for that.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.silent.get().filter(|_| !self.said.borrow().is_empty())
    }

    /// Whether it is too early to ask the node again.
    fn is_silent(&self) -> bool {
        self.silent.get().is_some_and(|until| Instant::now() < until)
    }

    /// Whether something that came has not been taken in yet.
    #[cfg(feature = "tokio")]
    pub(crate) fn owes(&self) -> bool {
        let asks = !self.said.borrow().is_empty() && !self.is_silent();
        asks || !self.owed.borrow().is_empty()
    }

    /// Takes in a message: of a greeting it is to be known whose it is, unless nobody accepts any more.
    fn take(&self, source: Vqp, bytes: &[u8]) {
        if let Some(bell) = woken(bytes) {
            // One that is gone needs none.
            if let Some(count) = self.wakings.borrow().get(&bell) {
                count.set(count.get() + 1);
            }
        } else if self.closed.get() && !is_question(bytes) {
            self.refuse(&source, Refusal::Closed);
        } else {
            self.put_aside((source, bytes.to_vec()));
        }
    }

    /// Somebody says something: it waits, if it is a greeting.
    fn hear(&self, greeted: Greeted) {
        let Greeted { source, bytes, peer } = &greeted;
        if let Ok(Greeting::Waiting(place)) = Greeting::decode(bytes) {
            if self.has_offer((*peer, place)) {
                return;
            }
            if !self.closed.get() {
                self.lost.set(self.lost.get() + 1);
                return self.refuse(source, Refusal::Lost);
            }
        }
        if self.closed.get() {
            return self.refuse(source, Refusal::Closed);
        }
        if !self.has_room(*peer) {
            self.crowded.set(self.crowded.get() + 1);
            return self.refuse(source, Refusal::Crowded);
        }
        self.waiting.borrow_mut().push_back(greeted);
        self.news.set(true);
    }

    /// Whether a greeting came that nobody has looked for, which is told once.
    pub(crate) fn has_news(&self) -> bool {
        self.news.take()
    }

    /// Whether an offer waits, or has an end.
    fn has_offer(&self, offer: Offer) -> bool {
        let waits = |greeted: &Greeted| {
            greeted.peer == offer.0
                && matches!(Greeting::decode(&greeted.bytes), Ok(Greeting::Hello { place, .. }) if place == offer.1)
        };
        self.offers.borrow().contains(&offer) || self.waiting.borrow().iter().any(waits)
    }

    /// Whether one more of a node may wait.
    fn has_room(&self, of: Gid) -> bool {
        let waiting = self.waiting.borrow();
        has_room(waiting.len(), waiting.iter().filter(|greeted| greeted.peer == of).count())
    }

    /// The next that is no waking, of those whose node it may be of. A VQP that has an end greets no second time: two ends
    /// would take each other's completions.
    pub(crate) fn next(&self, may: impl Fn(Gid) -> bool) -> Option<Greeted> {
        loop {
            let at = self.position(&may)?;
            // What is dropped calls the session, so that nothing is borrowed then.
            let greeted = self.waiting.borrow_mut().remove(at)?;
            if !self.taken.borrow().contains_key(&greeted.source.id()) {
                return Some(greeted);
            }
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// Where the next one stands that may be looked at.
    fn position(&self, may: impl Fn(Gid) -> bool) -> Option<usize> {
        self.waiting.borrow().iter().position(|greeted| may(greeted.peer))
    }

    /// Leaves out those whose sender is gone: that would be told as long as they wait.
    pub(crate) fn leave_out_gone(&self) {
        let is_gone = |greeted: &Greeted| greeted.source.failure().is_some();
        loop {
            let at = self.waiting.borrow().iter().position(is_gone);
            let gone = at.and_then(|at| self.waiting.borrow_mut().remove(at));
            if gone.is_none() {
                return;
            }
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// Whether one waits that may be looked at.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_greeted(&self, may: impl Fn(Gid) -> bool) -> bool {
        self.position(may).is_some()
    }

    /// Counts the wakings of an end on a VQP from now on.
    pub(crate) fn attach(self: &Rc<Inbox>, vqp: u32, offer: Offer) -> Bell {
        let number = self.last_bell.get() + 1;
        self.last_bell.set(number);
        let rung: Rc<Cell<u64>> = Rc::default();
        self.wakings.borrow_mut().insert(number, rung.clone());
        self.taken.borrow_mut().insert(vqp, false);
        self.offers.borrow_mut().insert(offer);
        Bell { inbox: self.clone(), vqp, offer, number, rung }
    }

    /// Says why not; who asked may be gone. An end on the VQP takes the completion, which gives the place in the send queue
    /// back to it. Nobody else takes one, so that there is none: no more refusals go to one peer than its VQP has room for.
    pub(crate) fn refuse(&self, source: &Vqp, reason: Refusal) {
        let is_taken = self.taken.borrow().get(&source.id()).is_some_and(|takes| *takes);
        let flags = if is_taken { SendFlags::SIGNALED } else { SendFlags::empty() };
        let _ = send(source, REFUSAL, &Greeting::Refused(reason), flags);
    }

    /// Accepts no more: who waits is refused, and who comes.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        while let Some(greeted) = self.next(|_| true) {
            self.refuse(&greeted.source, Refusal::Closed);
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    pub(crate) fn crowded(&self) -> u64 {
        self.crowded.get()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.get()
    }
}

/// What wakes an end at a listener, as long as it lives.
pub(crate) struct Bell {
    pub(crate) inbox: Rc<Inbox>,
    vqp: u32,
    offer: Offer,
    /// By which the peer names the end.
    pub(crate) number: u64,
    /// Wakings that came.
    pub(crate) rung: Rc<Cell<u64>>,
}

impl Bell {
    /// The end takes completions from now on.
    pub(crate) fn takes_completions(&self) {
        self.inbox.taken.borrow_mut().insert(self.vqp, true);
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.inbox.wakings.borrow_mut().remove(&self.number);
        self.inbox.taken.borrow_mut().remove(&self.vqp);
        self.inbox.offers.borrow_mut().remove(&self.offer);
    }
}

/// Whether so many wait, of which so many are one's own, that one more of these may.
fn has_room(waiting: usize, own: usize) -> bool {
    own < (WAITING_MAX - (waiting - own)) / 2
}

/// Whether it is asked after an offer.
fn is_question(bytes: &[u8]) -> bool {
    matches!(Greeting::decode(bytes), Ok(Greeting::Waiting(_)))
}

/// Sends a greeting. Its completion is the first of its VQP.
pub(crate) fn greet(vqp: &Vqp, greeting: &Greeting) -> Result<(), Error> {
    send(vqp, GREETING, greeting, SendFlags::SIGNALED)
}

/// Says something whose completion nobody takes.
pub(crate) fn tell(vqp: &Vqp, greeting: &Greeting) -> Result<(), Error> {
    send(vqp, GREETING, greeting, SendFlags::empty())
}

fn send(vqp: &Vqp, wr_id: u64, greeting: &Greeting, flags: SendFlags) -> Result<(), Error> {
    let bytes = greeting.encode();
    let (op, payload) = (SendOp::Send, Payload::Inline(&bytes));
    Ok(vqp.post_send(&[SendWr { wr_id, op, flags, payload, dest: None }])?)
}

const _: () = assert!(GREETING_BYTES < RECEIVE_BYTES as usize);
