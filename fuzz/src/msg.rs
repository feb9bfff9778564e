//! Messages: what a rank makes of any frames of a peer's, beside requests of its own and messages to itself, and what
//! any bytes are as a greeting, an offer, or words at a rendezvous. It may refuse, and must do nothing else: no request
//! ends twice, none is lost, and no peer has it hold more than it said.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;

use elver_msg::protocol::{
    Engine, Failure, HEADER_BYTES, Header, Held, Kind, Lent, Limits, Memory, Offer, Outlet,
    ReadOrder, Remote, RequestId, Wanted,
};

const LIMITS: Limits =
    Limits { unexpected_messages: 3, unexpected_bytes: 60, eager_bytes: 24, message_bytes: 300 };
const BODY: usize = 40;
const REQUESTS: usize = 8;
/// The bit of collective operations' tags.
const COLLECTIVE: u32 = 1 << 31;
/// The engine's rank, and that of the peer whose frames may be anything.
const OWN: u32 = 0;
const PEER: u32 = 1;

/// Memory that is registered, or not.
#[derive(Debug)]
struct Store {
    bytes: Rc<RefCell<Vec<u8>>>,
    room: usize,
    is_registered: bool,
}

impl Memory for Store {
    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = offset as usize;
        into.copy_from_slice(&self.bytes.borrow()[from..from + into.len()]);
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut all = self.bytes.borrow_mut();
        assert_eq!(all.len() as u64, offset, "bytes come in order, each once");
        all.extend_from_slice(bytes);
        assert!(all.len() <= self.room, "no more than there is room for");
    }

    fn remote(&self) -> Option<Remote> {
        self.is_registered.then_some(Remote { addr: 64, rkey: 3 })
    }
}

/// Keeps frames, as many as there is room for.
#[derive(Default)]
struct Pipe {
    frames: VecDeque<Vec<u8>>,
    room: u32,
}

impl Outlet for Pipe {
    type Error = Infallible;

    fn put(
        &mut self,
        header: &Header,
        body: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Infallible> {
        if self.room == 0 {
            return Ok(false);
        }
        self.room -= 1;
        let mut frame = header.encode().to_vec();
        frame.resize(HEADER_BYTES + body, 0);
        fill(&mut frame[HEADER_BYTES..]);
        // What an end sends can be read.
        assert!(matches!(Header::decode(&frame), Ok((told, _)) if told == *header));
        self.frames.push_back(frame);
        Ok(true)
    }
}

struct Rank {
    engine: Engine<Store>,
    own: Pipe,
    there: Pipe,
    requests: Vec<RequestId>,
    reads: VecDeque<ReadOrder>,
    is_lost: bool,
}

/// Runs an input.
pub fn run(data: &[u8]) {
    decoded(data);
    let mut rank = Rank {
        engine: Engine::new(OWN, LIMITS, REQUESTS, (0..2).map(|_| (LIMITS, BODY))),
        own: Pipe::default(),
        there: Pipe::default(),
        requests: Vec::new(),
        reads: VecDeque::new(),
        is_lost: false,
    };
    let mut rest = data;
    // An input is steps: what to do, with what, and bytes for it.
    while let Some((&[what, value], more)) = rest.split_first_chunk::<2>() {
        let (bytes, behind) = more.split_at(more.len().min(usize::from(value % 64)));
        let takes_bytes = matches!(what % 8, 0 | 1);
        match what % 8 {
            // As it is, and with a header that can be.
            0 => rank.hear(bytes),
            1 => rank.hear(&frame(what, bytes)),
            2 if rank.may_ask() => rank.send(what / 8, value),
            3 if rank.may_ask() => rank.receive(what / 8, value),
            4 => rank.transmit(value),
            5 => rank.hear_itself(),
            6 if what & 8 != 0 => rank.begin(value),
            6 => rank.read(),
            7 => rank.take(value),
            _ => {}
        }
        rank.check();
        rest = if takes_bytes { behind } else { more };
    }
    rank.finish();
}

fn decoded(data: &[u8]) {
    use elver_msg::protocol::Greeting;
    elver_msg::fuzzed::rendezvous(data);
    if let Ok((header, body)) = Header::decode(data)
        && header.kind != Kind::Hello
    {
        assert_eq!([&header.encode(), body].concat(), data);
    }
    if let Ok(offer) = Offer::decode(data) {
        assert_eq!(offer.encode()[..], *data);
    }
    if let Ok(greeting) = Greeting::decode(data) {
        assert!(greeting.rank < greeting.size && greeting.limits.can_be());
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    }
}

/// A user's tag, or that of one of few collective operations.
fn tag(value: u8) -> u32 {
    let operation = COLLECTIVE | u32::from(value >> 4) << 24;
    u32::from(value % 4) | if value & 8 != 0 { operation } else { 0 }
}

/// A frame of which most is the input's, in small numbers, so that some meet what is there.
fn frame(what: u8, bytes: &[u8]) -> Vec<u8> {
    const KINDS: [Kind; 9] = [
        Kind::Eager,
        Kind::Offer,
        Kind::Clear,
        Kind::Piece,
        Kind::Done,
        Kind::Credit,
        Kind::Bye,
        Kind::Refused,
        Kind::GaveUp,
    ];
    let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
    let kind = KINDS[usize::from(what / 8) % KINDS.len()];
    let mut header = Header::new(kind, tag(at(0)));
    (header.freed_messages, header.freed_bytes) = (u16::from(at(1) % 3), u32::from(at(2) % 32));
    header.freed_operations = at(1) / 3 % 3;
    match kind {
        Kind::Offer => {
            header.more = u32::from(at(3) % 4);
            let remote = Remote { addr: at(5).into(), rkey: at(6).into() };
            let remote = (at(4) & 1 != 0).then_some(remote);
            let len = u64::from(at(7)) << (at(8) % 3);
            [&header.encode()[..], &Offer { len, remote }.encode()].concat()
        }
        Kind::Eager | Kind::Piece => {
            [&header.encode(), bytes.get(3..).unwrap_or_default()].concat()
        }
        _ => header.encode().to_vec(),
    }
}

impl Rank {
    fn hear(&mut self, frame: &[u8]) {
        if self.is_lost {
            return;
        }
        let faults = self.engine.counters().faults;
        if self.engine.handle(PEER, frame, &mut Lent::none()).is_err() {
            assert_eq!(self.engine.counters().faults, faults + 1);
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.is_lost = true;
        self.engine.lose(PEER, true);
        assert!(self.engine.is_lost(PEER) && !self.engine.owes(PEER));
    }

    fn store(len: usize, room: usize, is_registered: bool) -> Store {
        Store { bytes: Rc::new(RefCell::new(vec![7; len])), room, is_registered }
    }

    /// Whether one more request may be begun: a last one stays, to take what this rank has sent itself.
    fn may_ask(&self) -> bool {
        self.engine.requests() + 1 < REQUESTS
    }

    fn send(&mut self, to: u8, value: u8) {
        let len = usize::from(value) * 2;
        let memory = Rank::store(len, len, value & 1 != 0);
        let sent = self.engine.send(u32::from(to % 2), value.into(), len as u64, Held::Own(memory));
        match sent {
            Ok(id) => self.requests.push(id),
            Err(_) => assert!(len as u64 > LIMITS.message_bytes),
        }
    }

    fn receive(&mut self, from: u8, value: u8) {
        let source = [None, Some(OWN), Some(PEER), None][usize::from(from % 4)];
        let mask = if value & 64 != 0 { u32::MAX } else { 0 };
        let wanted = Wanted { source, tag: u32::from(value % 4), mask };
        let room = usize::from(value) * 2;
        let found = self.engine.probe(&wanted);
        let memory = Rank::store(0, room, value & 1 != 0);
        if let Ok(id) = self.engine.receive(wanted, room as u64, memory) {
            // What a probe shows is what is received.
            if let Some(status) = found.filter(|status| status.len > room as u64) {
                let failure = Failure::Truncated { status, room: room as u64 };
                let how = self.engine.take(id).map(|(how, _)| how);
                assert_eq!(how, Some(Err(failure)));
            } else {
                self.requests.push(id);
            }
        }
    }

    fn transmit(&mut self, value: u8) {
        (self.own.room, self.there.room) = (u32::from(value % 8), u32::from(value / 8));
        let Ok(_) = self.engine.transmit(OWN, &mut self.own, &Lent::none());
        let Ok(_) = self.engine.transmit(PEER, &mut self.there, &Lent::none());
        self.there.frames.clear();
    }

    fn hear_itself(&mut self) {
        if let Some(frame) = self.own.frames.pop_front() {
            let handled = self.engine.handle(OWN, &frame, &mut Lent::none());
            assert_eq!(handled, Ok(()), "a rank keeps the rules towards itself");
        }
    }

    fn read(&mut self) {
        while let Some(order) = self.engine.next_read() {
            assert!(order.peer == PEER && order.len <= LIMITS.message_bytes);
            self.reads.push_back(order);
        }
        if let Some(order) = self.reads.pop_front() {
            if let Some(memory) = self.engine.memory(order.request) {
                assert!(order.len <= memory.room as u64);
            }
            self.engine.read_done(&order);
        }
    }

    /// A collective operation begins, and may end at once.
    fn begin(&mut self, value: u8) {
        let tag = tag(value | 8);
        self.engine.begin_operation(tag);
        if value & 4 != 0 {
            self.engine.give_up(tag);
        }
        if value & 64 != 0 {
            self.engine.end_operation();
        }
    }

    /// Takes a request that is over, or does not want one any more.
    fn take(&mut self, value: u8) {
        let Some(at) = usize::from(value & 15).checked_rem(self.requests.len()) else { return };
        let id = self.requests[at];
        if self.engine.is_over(id) {
            let (_, memory) = self.engine.take(id).expect("it ends once");
            assert!(matches!(memory, Held::Own(_)) && self.engine.take(id).is_none());
            self.requests.remove(at);
        } else if value & 16 != 0 {
            self.engine.abandon(id, None);
            self.requests.remove(at);
        }
    }

    fn check(&self) {
        // Of the peer's, and of its own.
        let (messages, bytes) = self.engine.waiting();
        // Of collective operations 16 more are held.
        assert!(messages <= 2 * (LIMITS.unexpected_messages + 16) as usize);
        assert!(bytes <= 2 * u64::from(LIMITS.unexpected_bytes));
        assert!(self.engine.requests() >= self.requests.len());
        // Messages of operations that went by come as well, for nobody.
        assert!(self.engine.requests() <= REQUESTS + 2 * 16);
    }

    /// However it went, all that needs the peer ends with it.
    fn finish(mut self) {
        if !self.is_lost {
            self.lose();
        }
        // What is READ from it is over then.
        self.reads.drain(..).for_each(|order| self.engine.read_ended(&order));
        // Messages to itself come when they are received.
        for _ in 0..200 {
            if let Ok(id) = self.engine.receive(
                Wanted { source: Some(OWN), tag: 0, mask: 0 },
                LIMITS.message_bytes,
                Rank::store(0, LIMITS.message_bytes as usize, false),
            ) {
                self.requests.push(id);
            }
            self.transmit(7);
            self.hear_itself();
            let engine = &mut self.engine;
            self.requests.retain(|id| !engine.is_over(*id) || engine.take(*id).is_none());
        }
        assert!(!self.engine.owes(OWN) && !self.engine.owes(PEER));
        for id in std::mem::take(&mut self.requests) {
            self.engine.abandon(id, None);
        }
        assert_eq!((self.engine.requests(), self.own.frames.len()), (0, 0));
    }
}
