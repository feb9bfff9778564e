//! The end that messages come out of.

use anyhow::{Result, ensure};
use elver::{Completed, Payload, RecvWr, SendFlags, SendOp, SendWr, Wc, WcOpcode};

use super::choices::{Choices, Head, Tail};
use super::lane::{Lane, QUEUE};
use super::layout::{HEAD, TAIL};

/// One in so many heads that are written is signalled.
const SIGNALLED: u64 = 16;

pub(crate) struct Receiver {
    lane: Lane,
    choices: Choices,
    /// Messages that were read, that are there, and that the sender knows to be read.
    read: u64,
    there: u64,
    told: u64,
    /// Heads that were posted, and those known to be done.
    posted: u64,
    done: u64,
    zeros: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new(lane: Lane, choices: Choices) -> Receiver {
        let is_zeroed = choices.tail == Tail::Length;
        let zeros = vec![0; if is_zeroed { lane.layout.size as usize } else { 0 }];
        Receiver { lane, choices, read: 0, there: 0, told: 0, posted: 0, done: 0, zeros }
    }

    /// Reads the beginning of the next message, as much as `into` takes; false if none is there.
    pub(crate) fn try_recv(&mut self, into: &mut [u8]) -> Result<bool> {
        if self.read == self.there {
            self.look()?;
            if self.read == self.there {
                return Ok(false);
            }
        }
        let layout = self.lane.layout;
        let offset = layout.offset(self.read);
        self.lane.memory.read(offset + layout.header, into)?;
        if self.choices.tail == Tail::Length {
            self.lane.memory.write(offset + layout.header, &self.zeros)?;
            self.lane.memory.write_u64(offset, 0)?;
        }
        self.read += 1;
        self.tell()?;
        Ok(true)
    }

    fn look(&mut self) -> Result<()> {
        let mut wcs = [Wc::default(); 16];
        let taken = self.lane.vqp.poll_cq(&mut wcs)?;
        for wc in &wcs[..taken] {
            wc.succeeded()?;
            if wc.opcode != WcOpcode::RecvRdmaWithImm {
                self.done = self.done.max(wc.wr_id);
                continue;
            }
            self.there += u64::from(wc.imm_data);
            self.lane.vqp.post_recv(&[RecvWr { wr_id: wc.wr_id, sges: &[] }])?;
        }
        match self.choices.tail {
            Tail::Completion => {}
            Tail::Twice => self.there = self.lane.memory.read_u64(TAIL)?,
            Tail::Length => {
                let offset = self.lane.layout.offset(self.read);
                let len = self.lane.memory.read_u64(offset)?;
                ensure!(len == 0 || len == u64::from(self.lane.layout.size), "{len} bytes");
                self.there = self.read + u64::from(len > 0);
            }
        }
        let most = self.read + self.lane.layout.slots;
        ensure!((self.read..=most).contains(&self.there), "the tail is beyond the ring");
        self.tell()
    }

    /// Lets the sender know what is read.
    fn tell(&mut self) -> Result<()> {
        let after = match self.choices.head {
            Head::Pull => return Ok(self.lane.memory.write_u64(HEAD, self.read)?),
            Head::Active => 1,
            Head::Lazy => (self.lane.layout.slots / 4).max(1),
        };
        let is_full = self.posted - self.done + 1 >= u64::from(QUEUE);
        if self.read - self.told < after || is_full {
            // With the next one, or when somebody looks.
            return Ok(());
        }
        self.posted += 1;
        let flags = if self.posted.is_multiple_of(SIGNALLED) {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let word = self.read.to_le_bytes();
        let (op, payload) = (SendOp::Write(self.lane.at(HEAD)), Payload::Inline(&word));
        self.lane.vqp.post_send(&[SendWr {
            wr_id: self.posted,
            op,
            flags,
            payload,
            dest: None,
        }])?;
        self.told = self.read;
        Ok(())
    }
}
