//! The end that messages go in by.

use anyhow::{Result, ensure};
use elver::{Completed, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Wc};

use super::choices::{Choices, Head, Tail};
use super::lane::{Lane, QUEUE};
use super::layout::{HEAD, TAIL};

/// Of so many WRs one is signalled at least.
const UNSIGNALLED_MAX: u64 = 32;
/// WRs of one call: messages, and a word.
const WRS: u64 = 2;
/// A sender that found its send queue full goes on when so much of it is done: WRs that are posted together
/// leave together, and each look in vain costs a turn of the node's engine.
const GOES_ON_AT: u64 = QUEUE as u64 / 2;
/// Messages made between two looks at the CQ while as many WRITEs are under way as may be: they are done no more often,
/// and each look in vain costs a turn of the node's engine, where a NIC's CQ is a word in the cache.
pub(super) const MADE_PER_LOOK: u64 = 16;

pub(crate) struct Sender {
    lane: Lane,
    choices: Choices,
    /// Messages that were made, that were written, and that are known to be read.
    made: u64,
    written: u64,
    read: u64,
    /// WRs that were posted, the last one that is signalled, and those known to be done.
    posted: u64,
    signalled: u64,
    done: u64,
    /// WRITEs of messages under way, where they are counted.
    in_flight: u64,
    is_reading: bool,
    /// The send queue was full, and not enough of it is done yet.
    is_full: bool,
    /// Bytes of a message that goes inline; none where none does.
    inline: Vec<u8>,
}

/// What a WR was for: the lowest bits of its `wr_id`.
const OTHER: u64 = 0;
const COUNTED: u64 = 1;
const READ: u64 = 2;

impl Sender {
    pub(crate) fn new(lane: Lane, choices: Choices) -> Sender {
        let fits = choices.one_buffer && lane.layout.size <= lane.session.limits().max_inline;
        let inline = vec![0; if fits { lane.layout.size as usize } else { 0 }];
        let (made, written, read, posted, signalled, done) = (0, 0, 0, 0, 0, 0);
        let (in_flight, is_reading, is_full) = (0, false, false);
        Sender {
            lane,
            choices,
            made,
            written,
            read,
            posted,
            signalled,
            done,
            in_flight,
            is_reading,
            is_full,
            inline,
        }
    }

    /// Makes a message that begins with `pieces`, one behind another; what follows is what its place held.
    /// False if it cannot be made now.
    pub(super) fn try_send(&mut self, pieces: &[&[u8]]) -> Result<bool> {
        if !self.has_room() {
            self.poll()?;
            if !self.has_room() {
                return Ok(false);
            }
        }
        let layout = &self.lane.layout;
        let offset = layout.offset(self.made);
        if layout.header > 0 {
            self.lane.memory.write_u64(offset, layout.size.into())?;
        }
        let mut at = offset + layout.header;
        for piece in pieces {
            self.lane.memory.write(at, piece)?;
            at += piece.len() as u64;
        }
        self.made += 1;
        self.write(self.choices.batch)?;
        Ok(true)
    }

    /// Whether there is a place, in the ring and, where the sender has but one, of its own. Where messages
    /// do not wait for what is under way, also in the send queue.
    fn has_room(&mut self) -> bool {
        let waits = self.choices.one_buffer && (self.in_flight > 0 || self.written < self.made);
        let posts_at_once = self.choices.in_flight == u64::MAX;
        self.made - self.read < self.lane.layout.slots
            && !waits
            && !(posts_at_once && self.waits_for_queue())
    }

    /// Whether the send queue is full, or was, and is not half empty yet.
    fn waits_for_queue(&mut self) -> bool {
        let under_way = self.posted - self.done;
        self.is_full = !self.fits() || self.is_full && under_way > GOES_ON_AT;
        self.is_full
    }

    /// Writes all messages; false if some must wait.
    pub(crate) fn flush(&mut self) -> Result<bool> {
        self.poll()?;
        self.write(1)?;
        Ok(self.written == self.made)
    }

    /// Waits until all that was written has arrived.
    #[cfg(test)]
    pub(super) fn settle(&mut self) -> Result<()> {
        let sges = [self.lane.memory.sge(TAIL, 8)];
        self.posted += 1;
        let (op, payload) = (SendOp::Read(self.lane.at(TAIL)), Payload::Sges(&sges));
        let (wr_id, flags) = (self.posted << 2 | OTHER, SendFlags::SIGNALED);
        self.lane.vqp.post_send(&[SendWr { wr_id, op, flags, payload, dest: None }])?;
        let session = self.lane.session.clone();
        super::super::stage::wait(&session, || {
            self.poll()?;
            Ok((self.done == self.posted).then_some(()))
        })
    }

    /// Takes in what has completed, and what is read; writes what waited for it.
    pub(super) fn poll(&mut self) -> Result<()> {
        self.take()?;
        self.write(self.choices.batch)
    }

    fn take(&mut self) -> Result<()> {
        let mut wcs = [Wc::default(); 16];
        let taken = self.lane.vqp.poll_cq(&mut wcs)?;
        for wc in &wcs[..taken] {
            wc.succeeded()?;
            self.done = self.done.max(wc.wr_id >> 2);
            match wc.wr_id & 3 {
                COUNTED => self.in_flight -= 1,
                READ => {
                    self.is_reading = false;
                    self.learn()?;
                }
                _ => {}
            }
        }
        match self.choices.head {
            Head::Active | Head::Lazy => self.learn(),
            Head::Pull => self.pull(),
        }
    }

    fn learn(&mut self) -> Result<()> {
        let read = self.lane.memory.read_u64(HEAD)?;
        ensure!((self.read..=self.written).contains(&read), "{read} messages cannot be read");
        self.read = read;
        Ok(())
    }

    /// Reads the head if half of the ring is filled.
    fn pull(&mut self) -> Result<()> {
        let is_due = 2 * (self.made - self.read) >= self.lane.layout.slots;
        if self.is_reading || !is_due || !self.fits() {
            return Ok(());
        }
        let sges = [self.lane.memory.sge(HEAD, 8)];
        self.posted += 1;
        (self.signalled, self.is_reading) = (self.posted, true);
        let (op, payload) = (SendOp::Read(self.lane.at(HEAD)), Payload::Sges(&sges));
        let (wr_id, flags) = (self.posted << 2 | READ, SendFlags::SIGNALED);
        Ok(self.lane.vqp.post_send(&[SendWr { wr_id, op, flags, payload, dest: None }])?)
    }

    fn fits(&self) -> bool {
        self.posted - self.done + WRS < u64::from(QUEUE)
    }

    /// Writes what waits, if it is so much.
    fn write(&mut self, least: u64) -> Result<()> {
        while self.written < self.made && self.made - self.written >= least {
            if self.in_flight >= self.choices.in_flight {
                if !self.made.is_multiple_of(MADE_PER_LOOK) {
                    return Ok(());
                }
                // What waits goes as soon as one of those under way is done, not when the ring is full.
                self.take()?;
                if self.in_flight >= self.choices.in_flight {
                    return Ok(());
                }
            }
            if !self.fits() {
                self.take()?;
                if !self.fits() {
                    return Ok(());
                }
            }
            self.post()?;
        }
        Ok(())
    }

    /// Does what follows the making of a message; whether all messages are written.
    #[cfg(test)]
    pub(super) fn goes_on(&mut self) -> Result<bool> {
        self.write(self.choices.batch)?;
        Ok(self.written == self.made)
    }

    /// Writes the messages up to the ring's end, or one, and tells of them.
    fn post(&mut self) -> Result<()> {
        let layout = self.lane.layout;
        let left = layout.slots - self.written % layout.slots;
        let is_one = self.choices.tail == Tail::Length || self.choices.in_flight == u64::MAX;
        let most = if is_one { self.choices.batch.max(1) } else { left };
        let count = (self.made - self.written).min(left).min(most);
        let offset = layout.offset(self.written);
        // The header of a message whose length comes behind it does not go with it.
        let skip = if self.choices.tail == Tail::Length { layout.header } else { 0 };
        let bytes = count * layout.stride - skip;
        let bytes = if skip > 0 { u64::from(layout.size) } else { bytes };
        let sges = [self.lane.memory.sge(offset + skip, bytes as u32)];
        let to = self.lane.at(offset + skip);
        let payload = if self.inline.is_empty() {
            Payload::Sges(&sges)
        } else {
            self.lane.memory.read(offset + skip, &mut self.inline)?;
            Payload::Inline(&self.inline)
        };
        let total = self.written + count;
        let (word, second) = match self.choices.tail {
            Tail::Completion => ([0; 8], None),
            Tail::Twice => (total.to_le_bytes(), Some(self.lane.at(TAIL))),
            Tail::Length => (u64::from(layout.size).to_le_bytes(), Some(self.lane.at(offset))),
        };
        let first = match self.choices.tail {
            Tail::Completion => SendOp::WriteWithImm(to, count as u32),
            Tail::Twice | Tail::Length => SendOp::Write(to),
        };
        let second = second.map(|to: RemoteAddr| (SendOp::Write(to), Payload::Inline(&word[..])));
        self.posted += 1 + u64::from(second.is_some());
        let waits_for_buffer = self.choices.one_buffer && self.inline.is_empty();
        let is_counted = self.choices.in_flight < u64::MAX || waits_for_buffer;
        let (mut kind, mut flags) = (OTHER, SendFlags::empty());
        if is_counted || self.posted - self.signalled >= UNSIGNALLED_MAX {
            self.signalled = self.posted;
            flags = SendFlags::SIGNALED;
        }
        if is_counted {
            kind = COUNTED;
            self.in_flight += 1;
        }
        let wr_id = self.posted << 2 | kind;
        let wr = |(op, payload), flags| SendWr { wr_id, op, flags, payload, dest: None };
        match second {
            Some(second) => {
                let first = wr((first, payload), SendFlags::empty());
                self.lane.vqp.post_send(&[first, wr(second, flags)])?;
            }
            None => self.lane.vqp.post_send(&[wr((first, payload), flags)])?,
        }
        self.written = total;
        Ok(())
    }
}
