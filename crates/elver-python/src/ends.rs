//! A virtual queue pair with what was posted to it, and what came back: completions and messages go to whom they belong,
//! whichever call takes them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use elver::{
    AccessFlags, Completed, ConnectOptions, Error, Gid, Mr, Payload, RecvWr, SendFlags, SendOp,
    SendWr, Wc, WcStatus,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raised;
use crate::memory::Piece;
use crate::taking::{TAKEN, take_completions};
use crate::waits::{Source, Waits};

/// What each receive has room for at least, in bytes: one that a short wait left serves a longer one.
const RECEIVE_MIN: u32 = 4 << 10;

pub(crate) struct Ends {
    pub(crate) vqp: elver::Vqp,
    pub(crate) waits: Rc<Waits>,
    /// It leads back to a sender: the bound one keeps it too, and what was posted to it goes on when this goes.
    is_back: bool,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// What the send queue has no room for yet.
    unposted: VecDeque<Send>,
    /// What has not come back.
    sends: VecDeque<Sent>,
    /// How those ended that somebody waits for.
    ended: HashMap<u64, Result<Wc, Error>>,
    /// With which operation it has failed, if one of its own was refused: the node tells no more of it.
    failed: Option<Wc>,
    /// Who waits for messages.
    takers: VecDeque<(u64, Piece)>,
    /// Receives that no message has filled. Their memory is nobody else's: one cannot be taken back, and serves whoever waits
    /// next when he has gone for whom it was posted.
    receives: VecDeque<(u64, Mr)>,
    arrived: VecDeque<Arrived>,
    /// Memory for more receives.
    spare: Vec<Mr>,
    /// The most that was asked for at once, and [`RECEIVE_MIN`], which is what receives have room for.
    longest: u32,
}

struct Send {
    id: u64,
    op: SendOp,
    piece: Piece,
}

struct Sent {
    id: u64,
    piece: Piece,
    is_waited_for: bool,
}

/// A receive that has come back.
struct Arrived {
    wc: Wc,
    memory: Mr,
    /// A VQP back to the sender, of a message to a bound one.
    source: Option<elver::Vqp>,
}

/// A message in memory.
pub(crate) struct Came {
    pub(crate) length: u32,
    /// None if it came from whom the VQP is connected to.
    pub(crate) source: Option<elver::Vqp>,
}

/// Who waits for what was posted, or for a message. Dropped, he hears of it no more.
pub(crate) struct Ticket {
    ends: Rc<Ends>,
    pub(crate) id: u64,
}

impl Ends {
    pub(crate) fn new(vqp: elver::Vqp, waits: &Rc<Waits>) -> Rc<Ends> {
        Ends::with(vqp, waits, false, State::default())
    }

    fn with(vqp: elver::Vqp, waits: &Rc<Waits>, is_back: bool, state: State) -> Rc<Ends> {
        let (waits, state) = (waits.clone(), RefCell::new(state));
        let ends = Rc::new(Ends { vqp, waits, is_back, state });
        let source: Weak<dyn Source> = Rc::downgrade(&ends) as Weak<dyn Source>;
        ends.waits.add(ends.vqp.id(), source);
        ends
    }

    /// Those of a VQP back to a sender, which is the same one for all of his messages.
    pub(crate) fn back(vqp: elver::Vqp, waits: &Rc<Waits>) -> Rc<Ends> {
        let known = waits.source(vqp.id()).map(|source| source as Rc<dyn Any>);
        let known = known.and_then(|source| source.downcast().ok());
        known.unwrap_or_else(|| {
            let left = waits.take_left(vqp.id()).into_iter();
            let sends = left.map(|(id, piece)| Sent { id, piece, is_waited_for: false }).collect();
            Ends::with(vqp, waits, true, State { sends, ..State::default() })
        })
    }

    /// A number for what will be posted.
    pub(crate) fn ticket(self: &Rc<Self>) -> Ticket {
        Ticket { ends: self.clone(), id: self.waits.number() }
    }

    /// Posts an operation, in its turn: there may be no room yet. How it ended, [`Ends::ended`] says.
    pub(crate) fn send(&self, ticket: &Ticket, op: SendOp, piece: Piece) {
        let send = Send { id: ticket.id, op, piece };
        self.state.borrow_mut().unposted.push_back(send);
        self.post_sends();
    }

    fn post_sends(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            let Some(send) = state.unposted.pop_front() else { return };
            let is_alone = state.sends.is_empty();
            drop(state);
            let (sges, flags) = ([send.piece.sge], SendFlags::SIGNALED);
            let payload = Payload::Sges(&sges);
            let wr = SendWr { wr_id: send.id, op: send.op, flags, payload, dest: None };
            let posted = self.vqp.post_send(&[wr]);
            let mut state = self.state.borrow_mut();
            match posted.map_err(|failed| failed.error) {
                Ok(()) => {
                    let Send { id, piece, .. } = send;
                    state.sends.push_back(Sent { id, piece, is_waited_for: true });
                }
                Err(Error::QueueFull { .. }) if !is_alone => {
                    state.unposted.push_front(send);
                    return;
                }
                Err(error) => drop(state.ended.insert(send.id, Err(error))),
            }
        }
    }

    /// How an operation ended, if it has; once.
    pub(crate) fn ended(&self, ticket: &Ticket) -> Option<Result<Wc, Error>> {
        self.state.borrow_mut().ended.remove(&ticket.id)
    }

    /// As [`Ends::ended`], after a look at what was told.
    pub(crate) fn look_for_end(&self, ticket: &Ticket) -> Result<Option<Wc>, Error> {
        if let Some(ended) = self.ended(ticket) {
            return ended.map(Some);
        }
        self.take_and_wake()?;
        match self.ended(ticket) {
            Some(ended) => ended.map(Some),
            None => self.failure().map_or(Ok(None), Err),
        }
    }

    /// As [`Ends::ended`], after a wait of at most so long until something was told of the VQP.
    pub(crate) fn wait_for_end(
        &self,
        ticket: &Ticket,
        at_most: Option<Duration>,
    ) -> Result<Option<Wc>, Error> {
        let mut wcs = [Wc::default(); TAKEN];
        let waited = self.vqp.wait_cq(&mut wcs, at_most);
        self.completed(&wcs[..*waited.as_ref().unwrap_or(&0)]);
        // However it ended: the wait was told of a failure, and the session tells nobody again.
        let taken = self.take_and_wake();
        match self.ended(ticket) {
            Some(ended) => ended.map(Some),
            None => waited.and(taken).map(|()| None),
        }
    }

    /// Why it has failed, if it has, as far as was told. The session lists no failure that was asked for, so that who sleeps
    /// for it is woken here.
    pub(crate) fn failure(&self) -> Option<Error> {
        let failure = self.cause();
        if failure.is_some() {
            self.waits.wake(self.vqp.id());
        }
        failure
    }

    fn cause(&self) -> Option<Error> {
        // What came back late, of the connection that there was, says nothing of one that was made since.
        let own = || self.state.borrow().failed.filter(|_| !self.vqp.is_connected());
        self.vqp.failure().or_else(|| own()?.succeeded().err())
    }

    /// Begins to connect it, anew if it was connected.
    pub(crate) fn connect_start(
        &self,
        peer: Gid,
        port: u16,
        how: ConnectOptions,
    ) -> Result<elver::Connecting, Error> {
        self.take_and_wake()?;
        let going = self.vqp.qconnect_start(peer, port, how)?;
        let state = &mut *self.state.borrow_mut();
        state.failed = None;
        // What has come back without a message did so over the connection that there was.
        let arrived = std::mem::take(&mut state.arrived).into_iter();
        let (flushed, came): (VecDeque<_>, _) =
            arrived.partition(|it| it.wc.status == WcStatus::WrFlushErr);
        state.arrived = came;
        state.spare.extend(flushed.into_iter().map(|it| it.memory));
        Ok(going)
    }

    /// Waits for a message into a piece of memory.
    pub(crate) fn expect(&self, ticket: &Ticket, piece: Piece) {
        let mut state = self.state.borrow_mut();
        state.longest = state.longest.max(piece.sge.length).max(RECEIVE_MIN);
        state.takers.push_back((ticket.id, piece));
        drop(state);
        self.post_receives();
    }

    /// Posts as many receives as there are who wait, as far as there is room. Whose receive is refused hears so.
    fn post_receives(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            let turn = state.receives.len() + state.arrived.len();
            if turn >= state.takers.len() {
                return;
            }
            let (longest, spare) = (state.longest, state.spare.pop());
            drop(state);
            let posted = self.post_receive(longest, spare);
            let mut state = self.state.borrow_mut();
            match posted {
                Ok(receive) => state.receives.push_back(receive),
                Err(Error::QueueFull { .. }) if turn > 0 => return,
                Err(error) => {
                    let Some((taker, _)) = state.takers.remove(turn) else { return };
                    state.ended.insert(taker, Err(error));
                }
            }
        }
    }

    fn post_receive(&self, length: u32, spare: Option<Mr>) -> Result<(u64, Mr), Error> {
        let memory = match spare.filter(|memory| memory.len() >= u64::from(length)) {
            Some(memory) => memory,
            None => self.waits.session.alloc(u64::from(length), AccessFlags::LOCAL_WRITE)?,
        };
        let (id, sges) = (self.waits.number(), [memory.sge(0, length)]);
        match self.vqp.post_recv(&[RecvWr { wr_id: id, sges: &sges }]) {
            Ok(()) => Ok((id, memory)),
            Err(failed) => {
                // To be tried again with, at each look while the queue is full.
                self.state.borrow_mut().spare.push(memory);
                Err(failed.error)
            }
        }
    }

    /// Whether there is a message for whoever holds a ticket, or none will be.
    pub(crate) fn has_message(&self, id: u64) -> bool {
        let state = self.state.borrow();
        state.turn(id).is_none_or(|turn| turn < state.arrived.len())
    }

    pub(crate) fn has_ended(&self, id: u64) -> bool {
        self.state.borrow().ended.contains_key(&id)
    }

    /// The message for whoever holds the ticket, in his memory: they are given to takers in turn, whoever of them looks first.
    /// One that does not fit there stays for another call.
    pub(crate) fn message(&self, py: Python<'_>, ticket: &Ticket) -> PyResult<Option<Came>> {
        if !self.has_message(ticket.id) {
            self.take_and_wake().map_err(raised)?;
        }
        if let Some(Err(refused)) = self.ended(ticket) {
            return Err(raised(refused));
        }
        let mut state = self.state.borrow_mut();
        let turn = state.turn(ticket.id);
        let found = turn.and_then(|turn| Some((turn, state.arrived.get(turn)?)));
        let Some((turn, arrived)) = found else {
            drop(state);
            return self.failure().map_or(Ok(None), |failure| Err(raised(failure)));
        };
        let (length, room) = (arrived.wc.byte_len, state.takers[turn].1.sge.length);
        if arrived.wc.succeeded().is_ok() && length > room {
            let text = format!("a message of {length} bytes came, and {room} are asked for");
            return Err(PyValueError::new_err(text));
        }
        let (arrived, taker) = (state.arrived.remove(turn), state.takers.remove(turn));
        drop(state);
        let (Some(Arrived { wc, memory, source }), Some((_, to))) = (arrived, taker) else {
            return Ok(None);
        };
        let mut bytes = vec![0; if wc.status == WcStatus::Success { length as usize } else { 0 }];
        let copied = memory.read(0, &mut bytes);
        self.state.borrow_mut().spare.push(memory);
        wc.succeeded().and(copied).map_err(raised)?;
        to.memory.borrow(py).mr().write(to.offset, &bytes).map_err(raised)?;
        Ok(Some(Came { length, source }))
    }

    /// Takes what was told, and wakes whom it concerns.
    pub(crate) fn take_and_wake(&self) -> Result<(), Error> {
        let taken = self.take();
        self.waits.wake(self.vqp.id());
        taken
    }

    fn completed(&self, wcs: &[Wc]) {
        let mut gone = Vec::new();
        let mut state = self.state.borrow_mut();
        for wc in wcs {
            if let Some(at) = state.sends.iter().position(|send| send.id == wc.wr_id) {
                if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr) {
                    state.failed = Some(*wc);
                }
                let send = state.sends.remove(at);
                if send.as_ref().is_some_and(|send| send.is_waited_for) {
                    let ended = wc.succeeded();
                    state.ended.insert(wc.wr_id, ended);
                }
                gone.extend(send);
            } else {
                state.arrive(*wc, None);
            }
        }
        drop(state);
        // Memory may be nobody else's by now, and goes with it.
        drop(gone);
    }
}

impl State {
    /// How many messages are others' before a taker's.
    fn turn(&self, taker: u64) -> Option<usize> {
        self.takers.iter().position(|(id, _)| *id == taker)
    }

    fn arrive(&mut self, wc: Wc, source: Option<elver::Vqp>) {
        let at = self.receives.iter().position(|(id, _)| *id == wc.wr_id);
        let Some((_, memory)) = at.and_then(|at| self.receives.remove(at)) else { return };
        if wc.status == WcStatus::WrFlushErr && self.arrived.len() >= self.takers.len() {
            // It was posted for one who has gone, and is no message for whoever comes next.
            self.spare.push(memory);
        } else {
            self.arrived.push_back(Arrived { wc, memory, source });
        }
    }
}

impl Source for Ends {
    fn take(&self) -> Result<(), Error> {
        take_completions(&self.vqp, |wcs| self.completed(wcs))?;
        let messages = self.vqp.qpop_msgs()?;
        let mut state = self.state.borrow_mut();
        for message in messages {
            state.arrive(message.wc, Some(message.source));
        }
        drop(state);
        self.post_sends();
        self.post_receives();
        // It is told, and the session lists the VQP no more.
        let _ = self.vqp.failure();
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.cause().is_some()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.waits.remove(self.vqp.id());
        let sends = std::mem::take(&mut self.state.get_mut().sends);
        if self.is_back && !sends.is_empty() {
            let pieces = sends.into_iter().map(|sent| (sent.id, sent.piece)).collect();
            self.waits.leave(self.vqp.clone(), pieces);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.ends.state.borrow_mut();
        let ended = state.ended.remove(&self.id);
        let at = state.unposted.iter().position(|send| send.id == self.id);
        let unposted = at.and_then(|at| state.unposted.remove(at));
        if let Some(send) = state.sends.iter_mut().find(|send| send.id == self.id) {
            send.is_waited_for = false;
        }
        let turn = state.turn(self.id);
        let taker = turn.and_then(|turn| state.takers.remove(turn));
        let has_left = taker.is_some() && !state.arrived.is_empty();
        drop(state);
        drop((ended, unposted, taker));
        if has_left {
            // What would have been his is the next one's.
            self.ends.waits.wake(self.ends.vqp.id());
        }
    }
}
