//! The network and the model.

use std::collections::VecDeque;

use elver_random::Rng;
use elver_ring::protocol::{Config, Frame, Receiver, Refused, Sender, Span, Transmission};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The tail lands before the slots that it tells of.
    TailFirst,
    /// The tail lands among their bytes, as if it were written by the same WRITE.
    TailInside,
    /// A message is read when its slots were released.
    FreedBeforeRead,
    /// The slots of a transmission with a tail are left out.
    TailOfUnsent,
}

/// A WRITE on its way.
enum Write {
    /// What has not landed of it, of the sender's memory.
    Slots(Vec<Span>),
    Tail(u64),
}

/// The message that is being read.
struct Reading {
    frame: Frame,
    id: u64,
}

pub struct Run {
    rng: Rng,
    bug: Bug,
    now_ns: u64,
    sender: Sender,
    receiver: Receiver,
    /// The sender's slots, and the receiver's.
    rb_s: Vec<u8>,
    rb_r: Vec<u8>,
    /// The words that peers write.
    tail_word: u64,
    head_word: u64,
    to_receiver: VecDeque<Write>,
    to_sender: VecDeque<u64>,
    /// Advancements that have landed, and of which the sender knows.
    landed: u64,
    completed: u64,
    /// Lengths of what was sent and not read, and how much was sent and read.
    expected: VecDeque<u32>,
    sent: u64,
    read: u64,
    reading: Option<Reading>,
}

impl Run {
    pub fn new(config: Config, rng: Rng, bug: Bug) -> Run {
        let sender = Sender::new(config).unwrap();
        let bytes = sender.shape().bytes() as usize;
        Run {
            rng,
            bug,
            now_ns: 0,
            sender,
            receiver: Receiver::new(config).unwrap(),
            rb_s: vec![0; bytes],
            rb_r: vec![0; bytes],
            tail_word: 0,
            head_word: 0,
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            landed: 0,
            completed: 0,
            expected: VecDeque::new(),
            sent: 0,
            read: 0,
            reading: None,
        }
    }

    /// Sends so many messages in any order of events, then ends, and lets everything arrive.
    pub fn go(mut self, messages: u64) -> Result<(), String> {
        let mut steps = 0;
        while !self.receiver.is_ended() {
            if self.sent == messages {
                self.sender.end();
            }
            self.step()?;
            steps += 1;
            if steps > 500_000 {
                return Err(format!("stuck: {} sent, {} read", self.sent, self.read));
            }
        }
        let all = (self.sent, self.expected.len(), self.sender.reserve(1));
        if all != (self.read, 0, Err(Refused::Ended)) || self.read != messages {
            return Err(format!("{} read of {all:?}", self.read));
        }
        Ok(())
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.next_u64() % end
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ns += self.below(3);
        match self.below(10) {
            0 | 1 => self.send(),
            2 => {
                if self.below(8) == 0 {
                    self.sender.flush();
                }
                self.sender.handle_time(self.now_ns);
                self.drive_sender();
                Ok(())
            }
            3..6 => {
                self.land();
                Ok(())
            }
            6 => {
                if let Some(word) = self.to_sender.pop_front() {
                    self.head_word = word;
                }
                Ok(())
            }
            7 => {
                if self.completed < self.landed {
                    self.completed += 1;
                    self.sender.advanced(self.completed);
                }
                self.sender.head_is(self.head_word).map_err(|fault| fault.to_string())?;
                Ok(())
            }
            8 => self.take(),
            _ => self.leave(),
        }
    }

    fn send(&mut self) -> Result<(), String> {
        let max = self.sender.shape().message_bytes_max();
        let len = match self.below(8) {
            0 => max,
            1..4 => (self.below(u64::from(max) + 1)) as u32,
            _ => (self.below(u64::from(max.min(150)) + 1)) as u32,
        };
        let frame = match self.sender.reserve(len as usize) {
            Ok(frame) => frame,
            Err(Refused::Full | Refused::Ended) => return Ok(()),
            Err(refused) => return Err(refused.to_string()),
        };
        put(&mut self.rb_s, frame.header_offset(), &frame.header().to_le_bytes());
        let bytes = content(self.sent, len);
        let [first, second] = frame.spans();
        put(&mut self.rb_s, first.offset, &bytes[..first.len as usize]);
        put(&mut self.rb_s, second.offset, &bytes[first.len as usize..]);
        self.sender.commit(&frame, self.now_ns);
        self.expected.push_back(len);
        self.sent += 1;
        self.drive_sender();
        Ok(())
    }

    fn drive_sender(&mut self) {
        while let Some(transmission) = self.sender.due() {
            // There may be no room to post it, and then it is asked for again.
            if self.below(4) == 0 {
                return;
            }
            self.post(&transmission);
            self.sender.posted(&transmission);
        }
    }

    /// Cuts the slots into pieces that land in any order.
    fn post(&mut self, transmission: &Transmission) {
        let mut writes: Vec<Write> = Vec::new();
        for span in transmission.slots.into_iter().filter(|span| span.len > 0) {
            let mut pieces = Vec::new();
            let mut rest = span;
            while rest.len > 0 {
                let len = (1 + self.below(200)).min(rest.len);
                pieces.push(Span { offset: rest.offset, len });
                rest = Span { offset: rest.offset + len, len: rest.len - len };
            }
            for at in (1..pieces.len()).rev() {
                let other = self.below(at as u64 + 1) as usize;
                pieces.swap(at, other);
            }
            writes.push(Write::Slots(pieces));
        }
        if let Some(word) = transmission.tail {
            match (self.bug, writes.last_mut()) {
                (Bug::TailFirst, _) => writes.insert(0, Write::Tail(word)),
                (Bug::TailInside, Some(Write::Slots(pieces))) if pieces.len() > 1 => {
                    let late = pieces.split_off(pieces.len() / 2);
                    writes.extend([Write::Tail(word), Write::Slots(late)]);
                }
                (Bug::TailOfUnsent, _) => writes = vec![Write::Tail(word)],
                _ => writes.push(Write::Tail(word)),
            }
        }
        self.to_receiver.extend(writes);
    }

    /// One piece lands.
    fn land(&mut self) {
        match self.to_receiver.front_mut() {
            None => return,
            Some(Write::Tail(word)) => {
                self.tail_word = *word;
                self.landed += 1;
            }
            Some(Write::Slots(pieces)) => {
                if let Some(Span { offset, len }) = pieces.pop() {
                    let range = offset as usize..(offset + len) as usize;
                    self.rb_r[range.clone()].copy_from_slice(&self.rb_s[range]);
                }
                if !pieces.is_empty() {
                    return;
                }
            }
        }
        self.to_receiver.pop_front();
    }

    /// Begins to read a message.
    fn take(&mut self) -> Result<(), String> {
        self.receiver.tail_is(self.tail_word).map_err(|fault| fault.to_string())?;
        let (None, Some(offset)) = (&self.reading, self.receiver.next_offset()) else {
            return Ok(());
        };
        let at = offset as usize;
        let header = u64::from_le_bytes(self.rb_r[at..at + 8].try_into().unwrap());
        let frame = self.receiver.frame(header).map_err(|fault| fault.to_string())?;
        let reading = Reading { frame, id: self.read };
        self.read += 1;
        if self.bug == Bug::FreedBeforeRead {
            self.release(frame);
        } else {
            self.check(&reading)?;
        }
        self.reading = Some(reading);
        Ok(())
    }

    /// Has read it; it has not changed meanwhile.
    fn leave(&mut self) -> Result<(), String> {
        let Some(reading) = self.reading.take() else { return Ok(()) };
        self.check(&reading)?;
        self.expected.pop_front();
        if self.bug != Bug::FreedBeforeRead {
            self.release(reading.frame);
        }
        Ok(())
    }

    fn release(&mut self, frame: Frame) {
        self.receiver.release(&frame);
        while let Some(word) = self.receiver.due() {
            self.to_sender.push_back(word);
            self.receiver.posted(word);
        }
    }

    fn check(&self, reading: &Reading) -> Result<(), String> {
        let Some(len) = self.expected.front() else { return Err("it was never sent".into()) };
        let [first, second] = reading.frame.spans();
        let mut bytes = Vec::new();
        for Span { offset, len } in [first, second] {
            bytes.extend_from_slice(&self.rb_r[offset as usize..(offset + len) as usize]);
        }
        if bytes != content(reading.id, *len) {
            return Err(format!("message {} is not what was sent", reading.id));
        }
        Ok(())
    }
}

fn put(memory: &mut [u8], offset: u64, bytes: &[u8]) {
    memory[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
}

/// What a message has in it.
fn content(id: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len)).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
