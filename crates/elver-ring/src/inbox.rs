//! Messages that come to a listener's port: greetings, and wakings from the ends that have connected.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use elver::{
    AccessFlags, Mr, Payload, RecvWr, SendFlags, SendOp, SendWr, Session, Vqp, VqpOptions,
};

use crate::Error;
use crate::error::Refusal;
use crate::greeting::{GREETING_BYTES, Greeting};

/// Bytes of a waking.
pub(crate) const WAKING: &[u8] = &[1];
/// Receives at a port.
const RECEIVES: u32 = 64;
/// Bytes of each: a greeting of another version may be longer.
const RECEIVE_BYTES: u32 = 256;
/// Greetings that wait to be accepted.
const WAITING_MAX: usize = 1024;

pub(crate) struct Inbox {
    bound: Vqp,
    memory: Mr,
    /// Who sent something that is no waking, and what.
    waiting: RefCell<VecDeque<(Vqp, Vec<u8>)>>,
    /// Greetings beyond what may wait, and those of VQPs that have an end.
    dropped: Cell<u64>,
    /// Wakings, by the VQP back to who sent them.
    wakings: RefCell<HashMap<u32, Rc<Cell<u64>>>>,
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
            waiting: RefCell::default(),
            dropped: Cell::default(),
            wakings: RefCell::default(),
            closed: Cell::default(),
        };
        for receive in 0..RECEIVES {
            inbox.post(receive.into())?;
        }
        Ok((inbox, port))
    }

    fn post(&self, receive: u64) -> Result<(), Error> {
        let sges = [self.memory.sge(receive * u64::from(RECEIVE_BYTES), RECEIVE_BYTES)];
        Ok(self.bound.post_recv(&[RecvWr { wr_id: receive, sges: &sges }])?)
    }

    /// Takes in what came; whether a greeting was among it.
    pub(crate) fn drain(&self) -> Result<bool, Error> {
        let mut greeted = false;
        for message in self.bound.qpop_msgs()? {
            let mut bytes = [0; RECEIVE_BYTES as usize];
            let bytes = &mut bytes[..message.wc.byte_len.min(RECEIVE_BYTES) as usize];
            self.memory.read(message.wc.wr_id * u64::from(RECEIVE_BYTES), bytes)?;
            self.post(message.wc.wr_id)?;
            if bytes == WAKING {
                // One that is gone needs none.
                if let Some(count) = self.wakings.borrow().get(&message.source.id()) {
                    count.set(count.get() + 1);
                }
                continue;
            }
            if self.closed.get() {
                refuse(&message.source, Refusal::Closed);
                continue;
            }
            greeted = true;
            let mut waiting = self.waiting.borrow_mut();
            if waiting.len() < WAITING_MAX {
                waiting.push_back((message.source, bytes.to_vec()));
            } else {
                self.dropped.set(self.dropped.get() + 1);
            }
        }
        Ok(greeted)
    }

    /// The next that is no waking. A VQP that has an end greets no second time: two ends would take each
    /// other's completions.
    pub(crate) fn next(&self) -> Option<(Vqp, Vec<u8>)> {
        loop {
            let (source, bytes) = self.waiting.borrow_mut().pop_front()?;
            if !self.wakings.borrow().contains_key(&source.id()) {
                return Some((source, bytes));
            }
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// Whether one waits.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_greeted(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Counts the wakings that come from a VQP's peer, from now on.
    pub(crate) fn count(&self, vqp: u32) -> Rc<Cell<u64>> {
        self.wakings.borrow_mut().entry(vqp).or_default().clone()
    }

    /// Counts them no more.
    pub(crate) fn forget(&self, vqp: u32) {
        self.wakings.borrow_mut().remove(&vqp);
    }

    /// Accepts no more: who waits is refused, and who comes.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        while let Some((source, _)) = self.next() {
            refuse(&source, Refusal::Closed);
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

/// Sends a greeting. Its completion is the first of its VQP.
pub(crate) fn greet(vqp: &Vqp, greeting: &Greeting) -> Result<(), Error> {
    send(vqp, greeting, SendFlags::SIGNALED)
}

/// Says why not; it may be gone. Nobody takes a completion of it, so that there is none: no more refusals go to one peer than
/// its VQP has room for.
pub(crate) fn refuse(vqp: &Vqp, reason: Refusal) {
    let _ = send(vqp, &Greeting::Refused(reason), SendFlags::empty());
}

fn send(vqp: &Vqp, greeting: &Greeting, flags: SendFlags) -> Result<(), Error> {
    let bytes = greeting.encode();
    let (op, payload) = (SendOp::Send, Payload::Inline(&bytes));
    Ok(vqp.post_send(&[SendWr { wr_id: 0, op, flags, payload, dest: None }])?)
}

const _: () = assert!(GREETING_BYTES < RECEIVE_BYTES as usize);
