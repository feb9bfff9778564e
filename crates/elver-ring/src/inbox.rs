//! Messages that come to a listener's port: greetings, and wakings from the ends that have connected.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use elver::{AccessFlags, Mr, RecvWr, Session, Vqp, VqpOptions};

use crate::Error;
use crate::greeting::GREETING_BYTES;

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
    /// Greetings beyond what may wait.
    dropped: Cell<u64>,
    wakings: Cell<u64>,
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
            wakings: Cell::default(),
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

    /// Takes in what came.
    pub(crate) fn drain(&self) -> Result<(), Error> {
        for message in self.bound.qpop_msgs()? {
            let mut bytes = [0; RECEIVE_BYTES as usize];
            let bytes = &mut bytes[..message.wc.byte_len.min(RECEIVE_BYTES) as usize];
            self.memory.read(message.wc.wr_id * u64::from(RECEIVE_BYTES), bytes)?;
            self.post(message.wc.wr_id)?;
            if bytes == WAKING {
                self.wakings.set(self.wakings.get() + 1);
                continue;
            }
            let mut waiting = self.waiting.borrow_mut();
            if waiting.len() < WAITING_MAX {
                waiting.push_back((message.source, bytes.to_vec()));
            } else {
                self.dropped.set(self.dropped.get() + 1);
            }
        }
        Ok(())
    }

    /// The next that is no waking.
    pub(crate) fn next(&self) -> Option<(Vqp, Vec<u8>)> {
        self.waiting.borrow_mut().pop_front()
    }

    pub(crate) fn wakings(&self) -> u64 {
        self.wakings.get()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

const _: () = assert!(GREETING_BYTES < RECEIVE_BYTES as usize);
