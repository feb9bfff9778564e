//! A responder's answers, in order: acknowledgements, what READs read, what atomics found.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{AccessFlags, Memory};
use elver_wire::{Aeth, Credits, Headers, Message, Msn, Psn, Reth, Syndrome};

use crate::aside::{Aside, Part};
use crate::execute::Fault;
use crate::hw::Hw;
use crate::place::{Place, Refused};
use crate::qp_core::QpCore;

/// The acknowledgement that grants no credits because it counts none (IBTA vol. 1, 9.7.7.2.1).
pub(super) const ACK: Syndrome = Syndrome::Ack(Credits::UNCOUNTED);

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Those to send.
    out: VecDeque<Answer>,
    /// READs and atomics among them that were not asked for before.
    fresh: u32,
    /// Those that answer a duplicate.
    replays: u32,
    /// The first one, a READ's, waits for memory, or has bytes that were read ahead.
    fetching: Option<Box<Aside>>,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ack { psn: Psn, syndrome: Syndrome, msn: Msn },
    Read { psn: Psn, va: u64, rkey: u32, length: u32, sent: u32, msn: Msn, asked: Asked },
    Atomic { psn: Psn, original: u64, msn: Msn, asked: Asked },
}

// What a stranger can make a responder hold is bounded by this and by the agreed READs.
const _: () = assert!(size_of::<Answer>() <= 56);

/// How often a READ or an atomic was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    First,
    /// A duplicate is answered.
    Again,
}

/// A READ whose memory cannot be read.
pub(super) struct Unread {
    /// Its first packet, and how many its response has.
    pub(super) first: Psn,
    pub(super) packets: u32,
    /// The packet that was to be sent.
    pub(super) at: Psn,
    pub(super) asked: Asked,
    pub(super) fault: Fault,
}

impl Answers {
    /// Whether one can be sent now.
    pub(super) fn are_ready(&self) -> bool {
        !self.out.is_empty() && self.fetching.as_ref().is_none_or(|aside| aside.ready)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether the first one waits for memory, or has bytes that were read ahead.
    pub(super) fn wait(&self) -> bool {
        self.fetching.is_some()
    }

    /// Where the first one waits for memory.
    pub(super) fn fetching(&mut self) -> &mut Option<Box<Aside>> {
        &mut self.fetching
    }

    /// READs and atomics that were not asked for before and are not answered yet.
    pub(super) fn fresh(&self) -> u32 {
        self.fresh
    }

    pub(super) fn have_room_to_replay(&self, core: &QpCore) -> bool {
        self.replays < u32::from(core.attr.max_dest_rd_atomic)
    }

    /// The first packet of the READ that is answered next, if the next answer is to one.
    pub(super) fn next_read(&self) -> Option<Psn> {
        match self.out.front()? {
            Answer::Read { psn, .. } => Some(*psn),
            _ => None,
        }
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        (self.fresh, self.replays) = (0, 0);
        self.fetching = None;
    }

    /// Queues an acknowledgement of either kind. It takes the place of one that still waits: each
    /// says all that those before it said, so the answers that wait stay bounded. But a refusal is said once, and
    /// acknowledges all before it: what a duplicate is told takes nothing from that.
    pub(super) fn say(&mut self, psn: Psn, syndrome: Syndrome, msn: Msn) {
        let answer = Answer::Ack { psn, syndrome, msn };
        match self.out.back_mut() {
            Some(Answer::Ack { psn: refused, syndrome: last, .. })
                if *last != ACK && syndrome == ACK && refused.distance(psn) > 0 => {}
            Some(last @ Answer::Ack { .. }) => *last = answer,
            _ => self.out.push_back(answer),
        }
    }

    /// Queues what a READ reads.
    pub(super) fn read(&mut self, psn: Psn, reth: &Reth, msn: Msn, asked: Asked) {
        let Reth { va, rkey, len: length } = *reth;
        self.count(asked);
        self.out.push_back(Answer::Read { psn, va, rkey, length, sent: 0, msn, asked });
    }

    /// Queues what an atomic found.
    pub(super) fn atomic(&mut self, psn: Psn, original: u64, msn: Msn, asked: Asked) {
        self.count(asked);
        self.out.push_back(Answer::Atomic { psn, original, msn, asked });
    }

    fn count(&mut self, asked: Asked) {
        match asked {
            Asked::First => self.fresh += 1,
            Asked::Again => self.replays += 1,
        }
    }

    /// The next one's headers, with the bytes of a READ response already in `buf` behind where the headers
    /// end.
    #[inline(always)] // As the responder's.
    pub(super) fn next<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        mtu: u32,
        place: u32,
        buf: &mut [u8],
        mut build: impl FnMut(Message, Psn) -> Option<Headers>,
    ) -> Result<Option<(Headers, usize)>, Unread> {
        let Some(&answer) = self.out.front() else { return Ok(None) };
        match answer {
            Answer::Ack { psn, syndrome, msn } => {
                self.out.pop_front();
                let Some(headers) = build(Message::Ack(Aeth { syndrome, msn }), psn) else {
                    return Ok(None);
                };
                headers.emit(buf, 0);
                Ok(Some((headers, 0)))
            }
            Answer::Atomic { psn, original, msn, asked } => {
                self.out.pop_front();
                self.answered(asked);
                let aeth = Aeth { syndrome: ACK, msn };
                let Some(headers) = build(Message::AtomicAck(aeth, original), psn) else {
                    return Ok(None);
                };
                headers.emit(buf, 0);
                Ok(Some((headers, 0)))
            }
            Answer::Read { psn, va, rkey, length, sent, msn, asked } => {
                let len = mtu.min(length - sent);
                let (first, last) = (sent == 0, sent + len == length);
                let at = va.wrapping_add(u64::from(sent));
                let granted = core.place(hw, at, rkey, len, AccessFlags::REMOTE_READ);
                let aeth = Aeth { syndrome: ACK, msn };
                let message = match (first, last) {
                    (true, true) => Message::ReadResponseOnly(aeth),
                    (true, false) => Message::ReadResponseFirst(aeth),
                    (false, false) => Message::ReadResponseMiddle,
                    (false, true) => Message::ReadResponseLast(aeth),
                };
                let packet = psn.wrapping_add(sent / mtu);
                let Some(headers) = build(message, packet) else { return Ok(None) };
                let header_len = headers.emit(buf, len as usize);
                let payload = &mut buf[header_len..header_len + len as usize];
                let filled = granted.and_then(|from| match from {
                    Some(from) => match hw.regions.read(from, payload) {
                        Err(Refused::Later) => {
                            self.fetch(core, hw, place, from, payload, length - sent - len)
                        }
                        read => Ok(read?),
                    },
                    None => Ok(()),
                });
                match filled {
                    Ok(()) => {}
                    Err(Fault::Later) => return Ok(None),
                    Err(fault) => {
                        let packets = length.div_ceil(mtu).max(1);
                        return Err(Unread { first: psn, packets, at: packet, asked, fault });
                    }
                }
                if last {
                    self.skip();
                } else if let Some(Answer::Read { sent, .. }) = self.out.front_mut() {
                    *sent += len;
                }
                Ok(Some((headers, len as usize)))
            }
        }
    }

    /// Takes a packet of a READ's response from what was read for it, or has that read, with what
    /// follows.
    #[cold]
    fn fetch<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &mut Hw<M>,
        place: u32,
        from: Place,
        into: &mut [u8],
        ahead: u32,
    ) -> Result<(), Fault> {
        let done = match &mut self.fetching {
            Some(aside) if aside.ready => aside.take_done(),
            Some(_) => return Err(Fault::Later),
            None => Vec::new(),
        };
        hw.regions.desk.lay_out(done);
        hw.regions.desk.expect(ahead);
        let read = hw.regions.read(from, into);
        if read == Err(Refused::Later) {
            self.fetching = Some(hw.put_aside(core.qpn.get(), Part::Answers(place)));
        } else if let (done, Some(aside)) = (hw.regions.desk.clear(), &mut self.fetching) {
            aside.keep(done);
        }
        Ok(read?)
    }

    /// The first one, to a READ, is at its end.
    pub(super) fn skip(&mut self) {
        self.fetching = None;
        if let Some(Answer::Read { asked, .. }) = self.out.pop_front() {
            self.answered(asked);
        }
    }

    /// A READ or an atomic was answered to its end.
    fn answered(&mut self, asked: Asked) {
        match asked {
            Asked::First => self.fresh -= 1,
            Asked::Again => self.replays -= 1,
        }
    }
}
