//! What comes from the server.

use super::Caller;
use super::slot::{Outcome, Slot};
use crate::protocol::fault::Fault;
use crate::protocol::frame::{FLAG_END, FLAG_NOT_EXECUTED, HEADER_BYTES, Header, MAJOR};
use crate::protocol::greeting::{Greeting, versions_differ};
use crate::protocol::kind::{CallId, Kind};
use crate::status::{Code, Executed, Status};

impl Caller {
    /// Takes a frame in.
    ///
    /// # Errors
    /// [`Fault`]: the connection is over.
    pub fn handle(&mut self, frame: &[u8]) -> Result<(), Fault> {
        match self.take(frame) {
            Ok(()) => Ok(()),
            Err(fault) => {
                self.counters.faults += 1;
                let why = format!("the server broke the protocol: {fault}");
                self.disconnect(&Status::new(Code::Unavailable, why));
                Err(fault)
            }
        }
    }

    fn take(&mut self, frame: &[u8]) -> Result<(), Fault> {
        if self.server.is_none() && frame.len() >= HEADER_BYTES && frame[0] != MAJOR {
            return self.refused_by_version(frame);
        }
        let Some(header) = Header::decode(frame)? else {
            self.counters.passed_over += 1;
            return Ok(());
        };
        let body = &frame[HEADER_BYTES..];
        let unexpected = Fault::Unexpected { kind: header.kind };
        if self.over.is_some() {
            return Err(unexpected);
        }
        match header.kind {
            Kind::Welcome if self.server.is_none() => {
                let greeting = Greeting::decode(body)?;
                // What the server may have of us is bounded as well.
                let calls = greeting.calls.min(self.limits.calls);
                self.slots.resize_with(calls as usize, Slot::default);
                self.free = (0..calls).rev().collect();
                self.outbox.set_slots(calls);
                self.server = Some(greeting);
                Ok(())
            }
            Kind::Refused if self.server.is_none() => {
                self.disconnect(&told(header.code, body));
                Ok(())
            }
            _ if self.server.is_none() => Err(unexpected),
            Kind::Response => self.response(&header, body),
            Kind::Piece => self.piece(&header, body),
            Kind::Stream => self.stream(&header, body),
            Kind::Credit => self.credit(&header),
            _ => Err(unexpected),
        }
    }

    /// An answer of another version: a refusal says which, in the words that all versions have.
    fn refused_by_version(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let version = frame[0];
        if frame[1] != Kind::Refused as u8 {
            return Err(Fault::Version { version });
        }
        let ours = Greeting::new(0, 0, 0).version;
        let why = versions_differ(ours, (version.into(), 0));
        self.disconnect(&Status::new(Code::FailedPrecondition, why));
        Ok(())
    }

    /// The slot of a call that the server owes an answer.
    fn owed(&mut self, header: &Header) -> Result<&mut Slot, Fault> {
        let CallId { slot, turn } = header.call;
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        let at = self.slots.get_mut(slot as usize).ok_or(no_call)?;
        if !at.owed || at.turn != turn || self.outbox.is_unasked(slot) {
            return Err(no_call);
        }
        Ok(at)
    }

    fn response(&mut self, header: &Header, body: &[u8]) -> Result<(), Fault> {
        let (max, held_max) = (self.limits.message_bytes, self.limits.held_bytes);
        let held = self.held_bytes;
        let is_sent = self.outbox.is_sent(header.call.slot);
        let slot = self.owed(header)?;
        if slot.total.is_some() {
            return Err(Fault::Unexpected { kind: Kind::Response });
        }
        if header.code != 0 {
            let executed = match header.flags & FLAG_NOT_EXECUTED {
                0 => Executed::Maybe,
                _ => Executed::No,
            };
            self.ended(header.call, Outcome::Failed(told(header.code, body), executed));
            return Ok(());
        }
        // What has not gone whole cannot have succeeded.
        let is_sent = is_sent && slot.upload.is_none_or(|upload| upload.ended);
        if slot.outcome.is_none() && !is_sent {
            return Err(Fault::Unexpected { kind: Kind::Response });
        }
        (slot.total, slot.came) = (Some(header.total), header.len);
        let (total, is_whole) = (header.total, header.len == header.total);
        let is_held = slot.held && slot.outcome.is_none();
        let fits = total <= max && (is_whole || held + u64::from(total) <= held_max);
        if is_held && fits {
            slot.message.clear();
            slot.message.extend_from_slice(body);
            slot.reserved = if is_whole { 0 } else { total.into() };
            self.held_bytes += slot.reserved;
        } else if is_held {
            self.counters.too_long += 1;
            let why = format!("an answer of {total} bytes is longer than this end takes");
            self.give_up(header.call, Status::new(Code::ResourceExhausted, why));
        }
        if is_whole {
            self.ended(header.call, Outcome::Answered);
        }
        Ok(())
    }

    fn piece(&mut self, header: &Header, body: &[u8]) -> Result<(), Fault> {
        let slot = self.owed(header)?;
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        let total = slot.total.ok_or(no_call)?;
        let bytes = u64::from(slot.came) + u64::from(header.len);
        if bytes > u64::from(total) {
            return Err(Fault::TooMuch { total, bytes });
        }
        slot.came = bytes as u32;
        if slot.outcome.is_none() && slot.held {
            slot.message.extend_from_slice(body);
        }
        if slot.came == total {
            self.ended(header.call, Outcome::Answered);
        }
        Ok(())
    }

    fn stream(&mut self, header: &Header, body: &[u8]) -> Result<(), Fault> {
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        let slot = self.owed(header)?;
        if slot.total.is_some() {
            return Err(no_call);
        }
        let is_held = slot.held && slot.outcome.is_none();
        let download = slot.download.as_mut().ok_or(no_call)?;
        download.flow.take(header.len, header.flags & FLAG_END != 0)?;
        if !download.wanted {
            // The server does what it was asked, and knows no better: more of this comes until it has heard.
            let why = "the method gives a stream back: call it as a download";
            self.give_up(header.call, Status::new(Code::InvalidArgument, why));
        } else if is_held {
            download.extend(body);
        }
        Ok(())
    }

    fn credit(&mut self, header: &Header) -> Result<(), Fault> {
        let slot = self.owed(header)?;
        let no_call = Fault::NoCall { kind: header.kind, call: header.call };
        slot.upload.as_mut().ok_or(no_call)?.flow.grant(header.value)
    }
}

/// A status that came.
fn told(code: u8, message: &[u8]) -> Status {
    let code = Code::from_number(code).unwrap_or(Code::Unknown);
    Status::new(code, String::from_utf8_lossy(&message[..message.len().min(Status::MESSAGE_MAX)]))
}
