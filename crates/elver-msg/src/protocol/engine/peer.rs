use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::fault::Fault;
use super::super::frame::{FREED_OPERATIONS_MAX, Header};
use super::super::kind::Kind;
use super::super::limits::{Limits, OPERATIONS_MESSAGES};
use super::super::request_id::RequestId;
use super::super::tags;

/// Most bytes of a piece: what one call may take of the ring at a time.
const PIECE_MAX: usize = 16 << 10;

/// Messages of users and of collective operations, of which neither take the others' room, and the bytes of those that go
/// whole.
#[derive(Debug, Default)]
struct Counted {
    users: u32,
    operations: u32,
    bytes: u64,
}

impl Counted {
    /// The count that a message of this tag is of.
    fn of(&mut self, tag: u32) -> &mut u32 {
        if tags::operation(tag).is_some() { &mut self.operations } else { &mut self.users }
    }
}

/// A rank, as another sees it.
#[derive(Debug)]
pub(super) struct Peer {
    /// What it takes, and what is taken from it.
    pub(super) takes: Limits,
    gives: Limits,
    /// Longest message that goes whole, and longest piece.
    pub(super) eager_bytes: u64,
    pub(super) piece_bytes: usize,
    /// Messages of ours that it has not matched, as far as it told.
    sent: Counted,
    /// Messages of its own that are not matched.
    held: Counted,
    /// Those that were matched, and of which it was not told.
    freed: Counted,
    /// Sends, in order, that were not begun: those of users, and those of collective operations, which wait for none of
    /// the users'.
    pub(super) queue: VecDeque<RequestId>,
    pub(super) operations: VecDeque<RequestId>,
    /// Answers to offers.
    pub(super) answers: VecDeque<(Kind, u32)>,
    /// Sends that go out in pieces.
    pub(super) sending: VecDeque<RequestId>,
    /// Our offers that are open, by number.
    pub(super) offers: BTreeMap<u32, RequestId>,
    next_offer: u32,
    /// Its messages that come in pieces, by number, and numbers of those that are READ.
    pub(super) arriving: BTreeMap<u32, RequestId>,
    pub(super) reading: BTreeSet<u32>,
    /// Nothing more goes to it.
    pub(super) was_told_bye: bool,
    /// It said that nothing more comes.
    pub(super) has_finished: bool,
    pub(super) is_gone: bool,
    /// Whether its loss ends what waits for any rank.
    pub(super) fails_any: bool,
}

impl Peer {
    pub(super) fn new(takes: Limits, gives: Limits, body_max: usize) -> Peer {
        let eager = takes.eager_bytes.min(gives.eager_bytes) as usize;
        Peer {
            takes,
            gives,
            eager_bytes: eager.min(body_max) as u64,
            piece_bytes: body_max.min(PIECE_MAX),
            sent: Counted::default(),
            held: Counted::default(),
            freed: Counted::default(),
            queue: VecDeque::new(),
            operations: VecDeque::new(),
            answers: VecDeque::new(),
            sending: VecDeque::new(),
            offers: BTreeMap::new(),
            next_offer: 0,
            arriving: BTreeMap::new(),
            reading: BTreeSet::new(),
            was_told_bye: false,
            has_finished: false,
            is_gone: false,
            fails_any: false,
        }
    }

    /// Whether it would keep one more message, which is of a collective operation or a user's.
    #[inline]
    pub(super) fn has_credit(&self, is_operations: bool) -> bool {
        if is_operations {
            self.sent.operations < OPERATIONS_MESSAGES
        } else {
            self.sent.users < self.takes.unexpected_messages
        }
    }

    /// Whether it would keep so many bytes more.
    #[inline]
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.sent.bytes + bytes <= u64::from(self.takes.unexpected_bytes)
    }

    #[inline]
    pub(super) fn spend(&mut self, tag: u32, bytes: u64) {
        *self.sent.of(tag) += 1;
        self.sent.bytes += bytes;
    }

    /// Takes back what it says it has matched.
    #[inline]
    pub(super) fn credited(&mut self, header: &Header) -> Result<(), Fault> {
        let Header { freed_messages, freed_operations, freed_bytes: bytes, .. } = *header;
        let left = || {
            let users = self.sent.users.checked_sub(freed_messages.into())?;
            let operations = self.sent.operations.checked_sub(freed_operations.into())?;
            let bytes = self.sent.bytes.checked_sub(bytes.into())?;
            Some(Counted { users, operations, bytes })
        };
        let messages = u32::from(freed_messages) + u32::from(freed_operations);
        self.sent = left().ok_or(Fault::Credit { messages, bytes })?;
        Ok(())
    }

    /// A message of its own came, with so many bytes.
    #[inline]
    pub(super) fn came(&mut self, tag: u32, bytes: u64) -> Result<(), Fault> {
        *self.held.of(tag) += 1;
        self.held.bytes += bytes;
        let users = self.held.users + self.freed.users;
        let operations = self.held.operations + self.freed.operations;
        let bytes = self.held.bytes + self.freed.bytes;
        if users > self.gives.unexpected_messages
            || operations > OPERATIONS_MESSAGES
            || bytes > u64::from(self.gives.unexpected_bytes)
        {
            return Err(Fault::Overrun { messages: users + operations, bytes });
        }
        Ok(())
    }

    /// It was matched.
    #[inline]
    pub(super) fn matched(&mut self, tag: u32, bytes: u64) {
        *self.held.of(tag) -= 1;
        *self.freed.of(tag) += 1;
        self.held.bytes -= bytes;
        self.freed.bytes += bytes;
    }

    /// Messages of its users' that are not matched.
    pub(super) fn held(&self) -> u32 {
        self.held.users
    }

    /// Whether messages of collective operations that it sent are not matched.
    pub(super) fn holds_operations(&self) -> bool {
        self.held.operations > 0
    }

    /// As many messages of its users' as may be are not matched: none comes any more before one is.
    pub(super) fn is_crowded(&self) -> bool {
        !self.is_gone && self.held.users >= self.gives.unexpected_messages
    }

    /// Puts credit into a header; it is told when the frame is out.
    #[inline]
    pub(super) fn with_credit(&self, header: Header) -> Header {
        let freed_messages = u16::try_from(self.freed.users).unwrap_or(u16::MAX);
        let freed_operations = self.freed.operations.min(FREED_OPERATIONS_MAX.into()) as u8;
        let freed_bytes = u32::try_from(self.freed.bytes).unwrap_or(u32::MAX);
        Header { freed_messages, freed_operations, freed_bytes, ..header }
    }

    #[inline]
    pub(super) fn told(&mut self, header: &Header) {
        self.freed.users -= u32::from(header.freed_messages);
        self.freed.operations -= u32::from(header.freed_operations);
        self.freed.bytes -= u64::from(header.freed_bytes);
    }

    /// Whether it should be told though nothing else is to be said: half of what it may have is back, or without what is
    /// back it may have no room for the next, which may be what is waited for here.
    #[inline]
    pub(super) fn credit_is_due(&self) -> bool {
        let Limits { unexpected_messages, unexpected_bytes, .. } = self.gives;
        let Counted { users, operations, bytes } = self.freed;
        let is_due = |freed: u32, held: u32, most: u32| {
            freed > 0 && (freed >= most.div_ceil(2) || freed + held >= most)
        };
        let room = u64::from(unexpected_bytes);
        is_due(users, self.held.users, unexpected_messages)
            || is_due(operations, self.held.operations, OPERATIONS_MESSAGES)
            || users + operations > 0
                && (bytes >= room.div_ceil(2) || bytes + self.held.bytes + self.eager_bytes > room)
    }

    /// The sends that were not begun, of collective operations or of users.
    #[inline]
    pub(super) fn queue_of(&mut self, is_operations: bool) -> &mut VecDeque<RequestId> {
        if is_operations { &mut self.operations } else { &mut self.queue }
    }

    /// A number for an offer, which no open one has.
    pub(super) fn offer(&mut self, request: RequestId) -> u32 {
        while self.offers.contains_key(&self.next_offer) {
            self.next_offer = self.next_offer.wrapping_add(1);
        }
        let id = self.next_offer;
        self.next_offer = id.wrapping_add(1);
        self.offers.insert(id, request);
        id
    }

    /// A message that it has offered comes in pieces.
    pub(super) fn asks_for_pieces(&mut self, id: u32, receive: RequestId) {
        self.reading.remove(&id);
        self.arriving.insert(id, receive);
        self.answers.push_back((Kind::Clear, id));
    }

    pub(super) fn was_read(&mut self, id: u32) {
        self.reading.remove(&id);
        self.answers.push_back((Kind::Done, id));
    }

    pub(super) fn owes(&self) -> bool {
        let begins = !(self.queue.is_empty() && self.operations.is_empty());
        let goes_on = !(self.answers.is_empty() && self.sending.is_empty());
        !self.is_gone && (begins || goes_on || !self.offers.is_empty())
    }

    /// Nothing goes to it any more.
    pub(super) fn lose(&mut self, fails_any: bool) {
        self.is_gone = true;
        self.fails_any = fails_any;
        self.queue.clear();
        self.operations.clear();
        self.answers.clear();
        self.sending.clear();
        self.offers.clear();
        self.arriving.clear();
        self.reading.clear();
    }
}
