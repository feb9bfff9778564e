//! A call as the client has it.

use crate::protocol::flow::{Inflow, Outflow};
use crate::status::{Executed, Status};

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) turn: u32,
    /// The server owes an answer.
    pub(super) owed: bool,
    /// Somebody here waits for it.
    pub(super) held: bool,
    /// It is not free.
    pub(super) taken: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) deadline: u64,
    /// Bytes of the response's message, once it has begun, and those that came.
    pub(super) total: Option<u32>,
    pub(super) came: u32,
    /// The response's message.
    pub(super) message: Vec<u8>,
    /// What `held_bytes` has of it.
    pub(super) reserved: u64,
    pub(super) upload: Option<Upload>,
    pub(super) download: Option<Download>,
}

/// A stream to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upload {
    pub(super) flow: Outflow,
    pub(super) ended: bool,
}

/// A stream from the server, which a method may have that was not called for one.
#[derive(Debug)]
pub(super) struct Download {
    pub(super) wanted: bool,
    bytes: Vec<u8>,
    read: usize,
    pub(super) flow: Inflow,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a message.
    Answered,
    /// With a status, the server's or one of this end.
    Failed(Status, Executed),
}

impl Download {
    pub(super) fn new(wanted: bool, window: u32) -> Download {
        Download { wanted, bytes: Vec::new(), read: 0, flow: Inflow::new(window) }
    }

    /// Whether all that came was read.
    pub(super) fn is_read(&self) -> bool {
        self.read == self.bytes.len()
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads bytes: how many.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let unread = &self.bytes[self.read..];
        let len = unread.len().min(into.len());
        into[..len].copy_from_slice(&unread[..len]);
        self.read += len;
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
        } else if self.read > self.bytes.len() / 2 {
            self.bytes.drain(..std::mem::take(&mut self.read));
        }
        len
    }

    /// Nobody reads what came.
    pub(super) fn forget(&mut self) {
        (self.bytes, self.read) = (Vec::new(), 0);
    }
}
