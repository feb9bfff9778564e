//! The protocol without IO, beside a model of MPI's rule: engines that do what a generator says, over wires that
//! are as slow as it likes. Each request ends as the model has it, and nothing is left. A run prints its seed, and
//! `SEED=…` replays it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::rc::Rc;

use elver_msg::protocol::{
    Engine, Failure, Fault, HEADER_BYTES, Header, Held, Kind, Lent, Limits, Memory, Offer, Outlet,
    ReadOrder, Refused, Remote, RequestId, Status, Wanted,
};
use elver_random::Rng;

const RANKS: u32 = 3;
const LIMITS: Limits =
    Limits { unexpected_messages: 5, unexpected_bytes: 150, eager_bytes: 64, message_bytes: 1_000 };
/// Of a frame: the longest message that goes whole.
const BODY: usize = 50;

/// The bit of collective operations' tags, and how many messages of theirs are held beside the others.
const COLLECTIVE: u32 = 1 << 31;
const OPERATIONS: u32 = 16;

/// Which queue a message stands in.
fn operations(tag: u32) -> usize {
    usize::from(tag & COLLECTIVE != 0)
}

type Bytes = Rc<RefCell<Vec<u8>>>;

/// Memory that READs reach, or not.
#[derive(Clone, Debug)]
struct Store {
    bytes: Bytes,
    remote: Option<Remote>,
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
    }

    fn remote(&self) -> Option<Remote> {
        self.remote
    }
}

/// A wire that takes so many frames more.
struct Wire<'a> {
    frames: &'a mut VecDeque<Vec<u8>>,
    room: u32,
}

impl Outlet for Wire<'_> {
    type Error = Infallible;

    fn put(
        &mut self,
        header: &Header,
        body: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Infallible> {
        assert!(body <= BODY);
        if self.room == 0 {
            return Ok(false);
        }
        self.room -= 1;
        let mut frame = header.encode().to_vec();
        frame.resize(HEADER_BYTES + body, 0);
        fill(&mut frame[HEADER_BYTES..]);
        assert!(Header::decode(&frame).is_ok(), "what an engine sends can be read");
        self.frames.push_back(frame);
        Ok(true)
    }
}

/// What becomes of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// It has the message of this number.
    Message(usize),
    Truncated(usize),
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    from: u32,
    tag: u32,
    len: usize,
}

/// A rank as the rule has it: what has come, in order, and what is posted, in order.
#[derive(Default)]
struct Model {
    came: Vec<usize>,
    posted: Vec<(RequestId, Wanted, usize)>,
    becomes: BTreeMap<RequestId, Becomes>,
}

fn fits(wanted: &Wanted, message: Sent) -> bool {
    wanted.source.is_none_or(|source| source == message.from)
        && (wanted.tag ^ message.tag) & wanted.mask == 0
}

impl Model {
    fn arrive(&mut self, number: usize, message: Sent) {
        while let Some(at) = self.posted.iter().position(|(_, wanted, _)| fits(wanted, message)) {
            let (id, _, room) = self.posted.remove(at);
            if message.len <= room {
                self.becomes.insert(id, Becomes::Message(number));
                return;
            }
            self.becomes.insert(id, Becomes::Truncated(number));
        }
        self.came.push(number);
    }

    fn post(&mut self, id: RequestId, wanted: Wanted, room: usize, sent: &[Sent]) {
        match self.came.iter().position(|number| fits(&wanted, sent[*number])) {
            Some(at) if sent[self.came[at]].len <= room => {
                self.becomes.insert(id, Becomes::Message(self.came.remove(at)));
            }
            Some(at) => drop(self.becomes.insert(id, Becomes::Truncated(self.came[at]))),
            None => self.posted.push((id, wanted, room)),
        }
    }
}

struct Net {
    engines: Vec<Engine<Store>>,
    models: Vec<Model>,
    /// By sender and receiver: frames under way, and messages whose first frame has not come.
    wires: Vec<VecDeque<Vec<u8>>>,
    /// Those of users, and those of collective operations, which pass them.
    ahead: Vec<[VecDeque<usize>; 2]>,
    sent: Vec<Sent>,
    registered: BTreeMap<u64, Bytes>,
    sends: Vec<(u32, RequestId)>,
    receives: Vec<(u32, RequestId, Bytes)>,
    reads: VecDeque<(u32, ReadOrder)>,
    read: u64,
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7) as u8).collect()
}

impl Net {
    fn new() -> Net {
        let engine = |rank| Engine::new(rank, LIMITS, 100, (0..RANKS).map(|_| (LIMITS, BODY)));
        let pairs = (RANKS * RANKS) as usize;
        Net {
            engines: (0..RANKS).map(engine).collect(),
            models: (0..RANKS).map(|_| Model::default()).collect(),
            wires: vec![VecDeque::new(); pairs],
            ahead: vec![Default::default(); pairs],
            sent: Vec::new(),
            registered: BTreeMap::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            reads: VecDeque::new(),
            read: 0,
        }
    }

    fn store(&mut self, bytes: Vec<u8>, is_registered: bool) -> Store {
        let bytes = Rc::new(RefCell::new(bytes));
        let addr = self.registered.len() as u64;
        let remote = is_registered.then_some(Remote { addr, rkey: 9 });
        if is_registered {
            self.registered.insert(addr, bytes.clone());
        }
        Store { bytes, remote }
    }

    fn send(&mut self, from: u32, to: u32, tag: u32, len: usize, is_registered: bool) {
        let number = self.sent.len();
        let store = self.store(content(number, len), is_registered);
        let engine = &mut self.engines[from as usize];
        match engine.send(to, tag, len as u64, Held::Own(store)) {
            Ok(id) => {
                self.sent.push(Sent { from, tag, len });
                self.ahead[(from * RANKS + to) as usize][operations(tag)].push_back(number);
                self.sends.push((from, id));
            }
            Err(refused) => assert_eq!(refused, Refused::Full { max: 100 }),
        }
    }

    fn receive(&mut self, rank: u32, wanted: Wanted, room: usize, is_registered: bool) {
        let store = self.store(Vec::new(), is_registered);
        let bytes = store.bytes.clone();
        let Ok(id) = self.engines[rank as usize].receive(wanted, room as u64, store) else {
            return;
        };
        self.models[rank as usize].post(id, wanted, room, &self.sent);
        self.receives.push((rank, id, bytes));
    }

    fn transmit(&mut self, from: u32, to: u32, room: u32) {
        let frames = &mut self.wires[(from * RANKS + to) as usize];
        let mut wire = Wire { frames, room };
        let Ok(_) = self.engines[from as usize].transmit(to, &mut wire, &Lent::none());
    }

    fn deliver(&mut self, from: u32, to: u32) {
        let pair = (from * RANKS + to) as usize;
        let Some(frame) = self.wires[pair].pop_front() else { return };
        let Header { kind, word: tag, .. } = Header::decode(&frame).unwrap().0;
        if matches!(kind, Kind::Eager | Kind::Offer) {
            let ahead = &mut self.ahead[pair][operations(tag)];
            let number = ahead.pop_front().expect("what comes was sent");
            self.models[to as usize].arrive(number, self.sent[number]);
        }
        self.engines[to as usize].handle(from, &frame, &mut Lent::none()).unwrap();
        let (messages, bytes) = self.engines[to as usize].waiting();
        assert!(messages <= (RANKS * (LIMITS.unexpected_messages + OPERATIONS)) as usize);
        assert!(bytes <= u64::from(RANKS * LIMITS.unexpected_bytes));
    }

    /// Begins READs, and does the oldest one, or has it come in pieces.
    fn do_reads(&mut self) {
        for rank in 0..RANKS {
            while let Some(order) = self.engines[rank as usize].next_read() {
                self.reads.push_back((rank, order));
            }
        }
        let Some((rank, order)) = self.reads.pop_front() else { return };
        let from = self.registered[&order.remote.addr].borrow().clone();
        assert_eq!(from.len() as u64, order.len);
        let engine = &mut self.engines[rank as usize];
        if order.remote.addr % 4 == 3 {
            engine.read_cannot_begin(&order);
            return;
        }
        if let Some(memory) = engine.memory(order.request) {
            memory.bytes.borrow_mut().clone_from(&from);
        }
        engine.read_done(&order);
        self.read += 1;
    }

    /// Takes back what is over, which is as the model has it.
    fn take(&mut self) {
        let Net { engines, models, sent, .. } = self;
        self.sends.retain(|(rank, id)| match engines[*rank as usize].take(*id) {
            Some((how, _)) => {
                assert!(how.is_ok());
                false
            }
            None => true,
        });
        self.receives.retain(|(rank, id, bytes)| {
            let Some((how, _)) = engines[*rank as usize].take(*id) else { return true };
            let becomes = models[*rank as usize].becomes.remove(id).expect("the model has it too");
            let status = |number: usize| {
                let Sent { from, tag, len } = sent[number];
                Status { source: from, tag, len: len as u64 }
            };
            match (how, becomes) {
                (Ok(told), Becomes::Message(number)) => {
                    assert_eq!(told, status(number));
                    assert_eq!(*bytes.borrow(), content(number, sent[number].len));
                }
                (Err(Failure::Truncated { status: told, .. }), Becomes::Truncated(number)) => {
                    assert_eq!(told, status(number));
                    assert!(bytes.borrow().is_empty());
                }
                other => panic!("{other:?}"),
            }
            false
        });
    }

    fn step(&mut self, rng: &mut Rng) {
        let mut below = |max: u32| rng.next_u32() % max;
        let (one, other) = (below(RANKS), below(RANKS));
        let is_registered = below(2) == 0;
        const LENGTHS: [usize; 8] = [0, 1, 40, BODY, BODY + 1, 100, 149, 400];
        match below(12) {
            0..3 => {
                let tag = below(3) | if below(4) == 0 { COLLECTIVE } else { 0 };
                self.send(one, other, tag, LENGTHS[below(8) as usize], is_registered);
            }
            3..5 => {
                let source = (below(2) == 0).then_some(other);
                let mask = [u32::MAX, COLLECTIVE, COLLECTIVE | 1][below(3) as usize];
                let tag = below(3) | if below(4) == 0 { COLLECTIVE } else { 0 };
                let room = [400, 400, 400, 60][below(4) as usize];
                self.receive(one, Wanted { source, tag, mask }, room, is_registered);
            }
            5..7 => self.transmit(one, other, below(6)),
            7..10 => self.deliver(one, other),
            10 => self.do_reads(),
            _ => {
                let wanted = Wanted { source: None, tag: below(3), mask: u32::MAX };
                let model = &self.models[one as usize];
                let first = model.came.iter().find(|number| fits(&wanted, self.sent[**number]));
                let told = self.engines[one as usize].probe(&wanted).map(|told| told.source);
                assert_eq!(told, first.map(|number| self.sent[*number].from));
                self.take_one_back(one);
            }
        }
        self.take();
    }

    /// A receive that is posted is not wanted any more.
    fn take_one_back(&mut self, rank: u32) {
        let model = &mut self.models[rank as usize];
        if model.posted.is_empty() {
            return;
        }
        let (id, ..) = model.posted.remove(0);
        self.engines[rank as usize].abandon(id, None);
        self.receives.retain(|(owner, other, _)| (*owner, *other) != (rank, id));
    }

    fn take_all_back(&mut self) {
        for rank in 0..RANKS {
            while !self.models[rank as usize].posted.is_empty() {
                self.take_one_back(rank);
            }
        }
    }

    /// Lets all that was sent be received.
    fn finish(&mut self) {
        self.take_all_back();
        while !(self.sends.is_empty() && self.ahead.iter().flatten().all(VecDeque::is_empty))
            || self.is_left()
        {
            for one in 0..RANKS {
                if self.models[one as usize].posted.is_empty() {
                    self.receive(one, Wanted { source: None, tag: 0, mask: 0 }, 1_000, false);
                }
                for other in 0..RANKS {
                    self.transmit(one, other, 4);
                    self.deliver(one, other);
                }
            }
            self.do_reads();
            self.take();
        }
        self.take_all_back();
        for rank in 0..RANKS {
            let engine = &self.engines[rank as usize];
            assert_eq!((engine.requests(), engine.waiting()), (0, (0, 0)));
            assert_eq!(engine.counters().faults, 0);
        }
        let read: u64 = self.engines.iter().map(|engine| engine.counters().read).sum();
        let received: u64 = self.engines.iter().map(|engine| engine.counters().received).sum();
        assert_eq!((read, received), (self.read, self.sent.len() as u64));
    }

    /// Whether a message waits, or goes on.
    fn is_left(&self) -> bool {
        let waits = |model: &Model| !(model.came.is_empty() && model.becomes.is_empty());
        self.models.iter().any(waits) || self.engines.iter().any(|engine| engine.owes_any())
    }
}

/// Whether an engine has anything to say.
trait Owes {
    fn owes_any(&self) -> bool;
}

impl Owes for Engine<Store> {
    fn owes_any(&self) -> bool {
        (0..RANKS).any(|rank| self.owes(rank))
    }
}

#[test]
fn whatever_is_done_messages_go_where_the_rule_says() {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(time, |seed| seed.parse().unwrap());
    println!("replay with SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut read = 0;
    for _ in 0..1_000 {
        let mut net = Net::new();
        for _ in 0..400 {
            net.step(&mut rng);
        }
        net.finish();
        read += net.read;
    }
    assert!(read > 1_000, "{read} messages were READ");
}

/// What rank 0 has sent to rank 1 goes as far as it may; then rank 1 receives one of a tag, and says whether it has it.
fn has(net: &mut Net, tag: u32) -> bool {
    let id = receives(net, tag);
    for _ in 0..9 {
        net.transmit(0, 1, 99);
        (0..99).for_each(|_| net.deliver(0, 1));
        net.transmit(1, 0, 99);
        (0..99).for_each(|_| net.deliver(1, 0));
    }
    net.engines[1].take(id).is_some_and(|(how, _)| how.is_ok())
}

fn receives(net: &mut Net, tag: u32) -> RequestId {
    net.receive(1, Wanted { source: Some(0), tag, mask: u32::MAX }, 100, false);
    net.receives.pop().unwrap().1
}

/// A barrier is called by ranks of which one means to receive behind it.
#[test]
fn operations_pass_messages_that_wait_for_credit() {
    let mut net = Net::new();
    for number in 0..2 * LIMITS.unexpected_messages {
        net.send(0, 1, 1, number as usize % 2, false);
    }
    for number in 0..2 * OPERATIONS {
        net.send(0, 1, COLLECTIVE | number, 40, false);
    }
    assert!((0..2 * OPERATIONS).all(|number| has(&mut net, COLLECTIVE | number)));
    // What they had is not for users.
    let (waiting, _) = net.engines[1].waiting();
    assert_eq!(waiting, LIMITS.unexpected_messages as usize);
    assert!((0..2 * LIMITS.unexpected_messages).all(|_| has(&mut net, 1)));
}

/// A rank is behind with its operations, and means to receive before them.
#[test]
fn messages_pass_operations_that_wait_for_credit() {
    let mut net = Net::new();
    for number in 0..2 * OPERATIONS {
        net.send(0, 1, COLLECTIVE | number, 0, false);
    }
    for number in 0..2 * LIMITS.unexpected_messages {
        net.send(0, 1, number, 40, false);
    }
    assert!((0..2 * LIMITS.unexpected_messages).all(|number| has(&mut net, number)));
    let (waiting, _) = net.engines[1].waiting();
    assert_eq!(waiting, OPERATIONS as usize);
    let wanted = Wanted { source: Some(0), tag: 9, mask: u32::MAX };
    assert_eq!(net.engines[1].is_behind(&wanted), None, "a message may come");
    assert!((0..2 * OPERATIONS).all(|number| has(&mut net, COLLECTIVE | number)));
}

/// Whoever receives in another order than was sent has what he asks for, as long as the number of messages allows it.
#[test]
fn a_message_whose_bytes_have_no_room_is_offered() {
    let mut net = Net::new();
    for _ in 1..LIMITS.unexpected_messages {
        net.send(0, 1, 1, BODY, false);
    }
    net.send(0, 1, 2, 40, false);
    assert!(has(&mut net, 2));
    assert!((1..LIMITS.unexpected_messages).all(|_| has(&mut net, 1)));
    assert!(net.engines[0].counters().offered > 0);
}

/// A receive of what cannot come before others are received is told of, and only such a one.
#[test]
fn who_waits_behind_messages_that_he_does_not_receive_is_told() {
    let mut net = Net::new();
    for _ in 1..LIMITS.unexpected_messages {
        net.send(0, 1, 1, 0, false);
    }
    let id = receives(&mut net, 2);
    assert!(!has(&mut net, 3));
    assert_eq!(net.engines[1].waits_behind(id), None, "one more may come");
    net.send(0, 1, 1, 0, false);
    net.send(0, 1, 2, 0, false);
    assert!(!has(&mut net, 3));
    assert_eq!(net.engines[1].waits_behind(id), Some(0));
    // Another rank could send what is wanted of any, and a collective operation waits for nothing of this.
    let any = Wanted { source: None, tag: 2, mask: u32::MAX };
    assert_eq!(net.engines[1].is_behind(&any), None);
    let operation = Wanted { source: Some(0), tag: COLLECTIVE, mask: u32::MAX };
    assert_eq!(net.engines[1].is_behind(&operation), None);
    net.engines[1].lose(2, false);
    assert_eq!(net.engines[1].is_behind(&any), Some(0));
    assert!(has(&mut net, 1));
    assert!(net.engines[1].take(id).is_some(), "there was room for it");
}

/// An engine of rank 0, which has offered rank 1 a message that can be READ.
fn engine() -> Engine<Store> {
    let mut engine = Engine::new(0, LIMITS, 10, (0..2).map(|_| (LIMITS, BODY)));
    let bytes = Rc::new(RefCell::new(vec![7; 100]));
    let store = Store { bytes, remote: Some(Remote { addr: 1, rkey: 1 }) };
    engine.send(1, 3, 100, Held::Own(store)).unwrap();
    let Ok(_) =
        engine.transmit(1, &mut Wire { frames: &mut VecDeque::new(), room: 9 }, &Lent::none());
    engine
}

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.encode(), body].concat()
}

fn offer(id: u32, len: u64) -> Vec<u8> {
    let header = Header { more: id, ..Header::new(Kind::Offer, 1) };
    frame(header, &Offer { len, remote: None }.encode())
}

/// What an engine makes of frames, of which the last one cannot be.
fn fault(frames: &[Vec<u8>]) -> Fault {
    let mut engine = engine();
    let (last, before) = frames.split_last().unwrap();
    for frame in before {
        engine.handle(1, frame, &mut Lent::none()).unwrap();
    }
    let fault = engine.handle(1, last, &mut Lent::none()).unwrap_err();
    assert_eq!(engine.counters().faults, 1);
    fault
}

#[test]
fn what_cannot_be_is_told_as_what_it_is() {
    let plain = |kind, word| frame(Header::new(kind, word), &[]);
    let no_offer = |kind, id| Fault::NoOffer { kind, id };
    let unexpected = |kind| Fault::Unexpected { kind };
    let eager = |len: usize| frame(Header::new(Kind::Eager, 1), &vec![0; len]);
    assert_eq!(fault(&[plain(Kind::Done, 0), plain(Kind::Done, 0)]), no_offer(Kind::Done, 0));
    assert_eq!(fault(&[plain(Kind::Clear, 0), plain(Kind::Done, 0)]), no_offer(Kind::Done, 0));
    assert_eq!(fault(&[plain(Kind::Clear, 1)]), no_offer(Kind::Clear, 1));
    assert_eq!(fault(&[frame(Header::new(Kind::Piece, 1), &[1])]), no_offer(Kind::Piece, 1));
    assert_eq!(fault(&[offer(4, 100), offer(4, 200)]), Fault::Twice { id: 4 });
    assert_eq!(fault(&[offer(4, 1_001)]), Fault::TooLong { len: 1_001, max: 1_000 });
    assert_eq!(fault(&[eager(65)]), Fault::TooLong { len: 65, max: 64 });
    let tag = u32::MAX;
    let unknown = frame(Header::new(Kind::Eager, tag), &[]);
    assert_eq!(fault(&[unknown]), Fault::Tag { tag });
    assert_eq!(fault(&vec![eager(0); 6]), Fault::Overrun { messages: 6, bytes: 0 });
    assert_eq!(fault(&vec![eager(60); 3]), Fault::Overrun { messages: 3, bytes: 180 });
    assert_eq!(fault(&[plain(Kind::Bye, 0), eager(1)]), unexpected(Kind::Eager));
    // It was sent one message, which has no bytes yet.
    let credit = |messages, bytes| {
        let header = Header::new(Kind::Credit, 0);
        frame(Header { freed_messages: messages, freed_bytes: bytes, ..header }, &[])
    };
    assert_eq!(fault(&[credit(1, 0), credit(1, 0)]), Fault::Credit { messages: 1, bytes: 0 });
    assert_eq!(fault(&[credit(1, 1)]), Fault::Credit { messages: 1, bytes: 1 });
    // Of users and of operations for themselves.
    let freed = Header { freed_operations: 1, ..Header::new(Kind::Credit, 0) };
    assert_eq!(fault(&[frame(freed, &[])]), Fault::Credit { messages: 1, bytes: 0 });
    let operation = |number| frame(Header::new(Kind::Eager, COLLECTIVE | number), &[]);
    let operations: Vec<_> = (0..=OPERATIONS).map(operation).collect();
    assert_eq!(fault(&operations), Fault::Overrun { messages: OPERATIONS + 1, bytes: 0 });
}

/// Who is lost takes with it what needs it, and what it had offered; what came whole stays.
#[test]
fn a_loss_ends_what_needs_it_and_nothing_else() {
    let mut net = Net::new();
    net.send(1, 0, 1, 10, false);
    net.send(1, 0, 2, 100, false);
    net.transmit(1, 0, 9);
    net.deliver(1, 0);
    net.deliver(1, 0);
    let engine = &mut net.engines[0];
    let store = || Store { bytes: Rc::default(), remote: None };
    let wanted = |source, tag| Wanted { source, tag, mask: u32::MAX };
    let of_it = engine.receive(wanted(Some(1), 7), 10, store()).unwrap();
    let of_any = engine.receive(wanted(None, 7), 10, store()).unwrap();
    let of_other = engine.receive(wanted(Some(2), 7), 10, store()).unwrap();
    let to_it = engine.send(1, 1, 10, Held::Own(store())).unwrap();
    let to_other = engine.send(2, 1, 10, Held::Own(store())).unwrap();
    engine.lose(1, true);
    let gone = Some(Err(Failure::Peer { rank: 1 }));
    let how = |engine: &mut Engine<Store>, id| engine.take(id).map(|(how, _)| how);
    for id in [of_it, of_any, to_it] {
        assert_eq!(how(engine, id), gone);
    }
    assert_eq!((how(engine, of_other), how(engine, to_other)), (None, None));
    // Later ones fail at once; what is there is received.
    let late = engine.receive(wanted(None, 9), 10, store()).unwrap();
    assert_eq!(how(engine, late), gone);
    let late = engine.send(1, 1, 10, Held::Own(store())).unwrap();
    assert_eq!(how(engine, late), gone);
    assert_eq!(engine.waiting(), (1, 10));
    let whole = engine.receive(wanted(None, 1), 10, store()).unwrap();
    assert_eq!(how(engine, whole), Some(Ok(Status { source: 1, tag: 1, len: 10 })));
    // One who has said good-bye fails nobody who waits for any.
    let of_any = engine.receive(wanted(Some(0), 7), 10, store()).unwrap();
    engine.lose(2, false);
    assert_eq!(how(engine, of_any), None);
    assert_eq!(how(engine, of_other), Some(Err(Failure::Peer { rank: 2 })));
}

/// A READ that goes on when its rank is lost still writes into the receiver's memory: the receive is over when that is.
#[test]
fn a_loss_ends_what_is_read_when_the_read_is_over() {
    for is_done in [false, true] {
        let mut engine = engine();
        let remote = Some(Remote { addr: 8, rkey: 9 });
        let store = || Store { bytes: Rc::default(), remote };
        let any = Wanted { source: Some(1), tag: 0, mask: 0 };
        let [begun, not_begun] = [4, 5].map(|id| {
            let header = Header { more: id, ..Header::new(Kind::Offer, 1) };
            let offered = frame(header, &Offer { len: 100, remote }.encode());
            let receive = engine.receive(any, 100, store()).unwrap();
            engine.handle(1, &offered, &mut Lent::none()).unwrap();
            receive
        });
        let order = engine.next_read().unwrap();
        assert_eq!(order.request, begun);
        engine.lose(1, true);
        let gone = Some(Err(Failure::Peer { rank: 1 }));
        let how = |engine: &mut Engine<Store>, id| engine.take(id).map(|(how, _)| how);
        assert_eq!(how(&mut engine, not_begun), gone);
        assert_eq!(how(&mut engine, begun), None, "it is READ");
        // However it ends.
        if is_done {
            engine.read_done(&order)
        } else {
            engine.read_cannot_begin(&order)
        }
        assert_eq!(how(&mut engine, begun), gone);
        assert!(!engine.owes(1) && engine.next_read().is_none());
    }
}

/// Behind a good-bye nothing is said, or it would be taken for a fault.
#[test]
fn nothing_goes_behind_a_good_bye() {
    let mut net = Net::new();
    for number in 0..LIMITS.unexpected_messages {
        net.send(1, 0, number, 0, false);
    }
    net.transmit(1, 0, 99);
    (0..LIMITS.unexpected_messages).for_each(|_| net.deliver(1, 0));
    let engine = &mut net.engines[0];
    engine.say_bye(1);
    engine.say_bye(1);
    let store = || Store { bytes: Rc::default(), remote: None };
    for _ in 0..LIMITS.unexpected_messages {
        let any = Wanted { source: Some(1), tag: 0, mask: 0 };
        let id = engine.receive(any, 0, store()).unwrap();
        assert!(engine.take(id).unwrap().0.is_ok());
    }
    let late = engine.send(1, 0, 0, Held::Own(store())).unwrap();
    assert_eq!(engine.take(late).unwrap().0, Err(Failure::Peer { rank: 1 }));
    net.transmit(0, 1, 99);
    net.transmit(0, 1, 99);
    assert_eq!(net.wires[1].len(), 1, "the good-bye");
    net.deliver(0, 1);
    assert!(net.engines[1].has_finished(0));
}
