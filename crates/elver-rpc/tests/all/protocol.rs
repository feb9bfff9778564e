//! The protocol under a model: calls of every kind, in random order, through pipes that are often full,
//! with cancellations and deadlines on a clock of the test's. Nothing is answered twice, nothing is
//! invented, and when all is done nothing is left.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;

use elver_random::Rng;
use elver_rpc::protocol::{
    Begun, CallId, Callee, Caller, Event, Fault, HEADER_BYTES, Header, Kind, Limits, Outcome,
    Outlet, Reply,
};
use elver_rpc::{Code, Executed, Status};

const CHUNK: usize = 64;
const LIMITS: Limits = Limits { calls: 6, message_bytes: 1000, held_bytes: 2500, window: 150 };

/// Frames under way in one direction.
#[derive(Default)]
struct Pipe {
    frames: VecDeque<Vec<u8>>,
    room: usize,
}

impl Outlet for Pipe {
    type Error = Infallible;

    fn put(
        &mut self,
        header: &Header,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Infallible> {
        if self.frames.len() >= self.room {
            return Ok(false);
        }
        assert!(header.len as usize <= CHUNK || header.kind == Kind::Refused);
        let mut frame = header.encode().to_vec();
        frame.resize(HEADER_BYTES + header.len as usize, 0);
        fill(&mut frame[HEADER_BYTES..]);
        self.frames.push_back(frame);
        Ok(true)
    }

    fn is_in_doubt(&self) -> bool {
        false
    }
}

/// What a message of so many bytes has in it.
fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}

/// A call, as the client knows it.
struct Mine {
    id: u64,
    call: CallId,
    upload: Option<(usize, usize)>,
    downloaded: Option<Vec<u8>>,
    gave_up: bool,
    deadline: Option<u64>,
}

/// A call, as the server knows it.
struct Theirs {
    id: u64,
    call: CallId,
    uploads: bool,
    uploaded: Vec<u8>,
    ended: bool,
    /// Bytes to stream back, and those that went.
    back: Option<(usize, usize)>,
}

struct World {
    rng: Rng,
    now: u64,
    caller: Caller,
    callee: Callee,
    there: Pipe,
    back: Pipe,
    mine: Vec<Mine>,
    theirs: Vec<Theirs>,
    next: u64,
    /// What was sent, by id: bytes of its message, of its stream, of the stream that comes back.
    sent: HashMap<u64, (usize, usize, usize)>,
    /// Times that the server was handed it.
    handed: HashMap<u64, u32>,
    answered: u64,
    succeeded: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            now: 1_000,
            caller: Caller::new(LIMITS, CHUNK),
            callee: Callee::new(LIMITS, CHUNK, (7, 1)),
            there: Pipe::default(),
            back: Pipe::default(),
            mine: Vec::new(),
            theirs: Vec::new(),
            next: 0,
            sent: HashMap::new(),
            handed: HashMap::new(),
            answered: 0,
            succeeded: 0,
        }
    }

    fn below(&mut self, most: u64) -> usize {
        (self.rng.next_u64() % most) as usize
    }

    fn begin(&mut self) {
        if self.caller.server().is_none() {
            return;
        }
        self.next += 1;
        let id = self.next;
        let len = 8 + match self.below(4) {
            0 => self.below(1_200),
            1 => CHUNK - 8,
            _ => self.below(40),
        };
        let [uploads, downloads] = [self.below(4) == 0, self.below(4) == 0];
        let stream = |world: &mut World, is: bool| if is { world.below(900) } else { 0 };
        let (up, down) = (stream(self, uploads), stream(self, downloads));
        let deadline = (self.below(3) == 0).then(|| self.now + self.below(400) as u64);
        let method = u32::from(uploads) | u32::from(downloads) << 1;
        let begun = Begun { method, deadline_us: deadline, len, uploads, downloads };
        let mut bytes = content(id, len);
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        self.sent.insert(id, (len, up, down));
        let free = self.caller.under_way() < LIMITS.calls as usize;
        let copy = |room: &mut [u8]| room.copy_from_slice(&bytes);
        match self.caller.begin(self.now, begun, copy, &mut self.there).unwrap() {
            Ok(call) => {
                assert!(free && len <= 1_000 && deadline.is_none_or(|at| at > self.now));
                let upload = uploads.then_some((up, 0));
                let downloaded = downloads.then(Vec::new);
                self.mine.push(Mine { id, call, upload, downloaded, gave_up: false, deadline });
            }
            Err(status) if deadline.is_some_and(|at| at <= self.now) && len <= 1_000 => {
                assert_eq!(status.code, Code::DeadlineExceeded);
            }
            Err(status) => {
                assert!(!free || len > 1_000);
                assert_eq!(status.code, Code::ResourceExhausted);
            }
        }
    }

    /// The client's side of one of its calls.
    fn use_call(&mut self) {
        if self.mine.is_empty() {
            return;
        }
        let at = self.below(self.mine.len() as u64);
        let pick = self.below(30);
        let mine = &mut self.mine[at];
        match pick {
            0 => {
                mine.gave_up = true;
                self.caller.cancel(mine.call);
            }
            1 => {
                let mine = self.mine.swap_remove(at);
                self.caller.drop_call(mine.call);
                return;
            }
            _ => {}
        }
        if let Some((len, sent)) = &mut mine.upload
            && let Some(room) = self.caller.upload_room(mine.call)
            && self.caller.is_sent(mine.call)
        {
            let take = room.min(*len - *sent);
            let bytes = content(mine.id + 1, *len);
            let ends = *sent + take == *len;
            self.caller.upload(mine.call, &bytes[*sent..*sent + take], ends);
            *sent += take;
        }
        let mut some = [0; 100];
        if let Some(read) = &mut mine.downloaded {
            while let Some(len @ 1..) = self.caller.download(mine.call, &mut some) {
                read.extend_from_slice(&some[..len]);
            }
        }
        let Some(outcome) = self.caller.outcome(mine.call).cloned() else { return };
        let mine = self.mine.swap_remove(at);
        let (_, _, down) = self.sent[&mine.id];
        let handed = self.handed.get(&mine.id).copied().unwrap_or(0);
        self.answered += 1;
        match outcome {
            Outcome::Answered => {
                self.succeeded += 1;
                assert_eq!(handed, 1);
                let message = self.caller.message(mine.call);
                assert_eq!(message[..8], mine.id.to_le_bytes());
                assert_eq!(message, answer(mine.id));
                if let Some(read) = mine.downloaded {
                    assert_eq!(read, content(mine.id + 2, down));
                }
                assert!(mine.upload.is_none_or(|(len, sent)| len == sent));
            }
            Outcome::Failed(status, executed) => {
                match status.code {
                    Code::Cancelled => assert!(mine.gave_up),
                    Code::DeadlineExceeded => {
                        assert!(mine.deadline.is_some_and(|deadline| deadline <= self.now));
                    }
                    // What the server does in a part of the cases, and the bounds of what is held.
                    Code::NotFound => assert!(mine.id.is_multiple_of(5) && handed == 1),
                    Code::ResourceExhausted => {}
                    code => panic!("{code}"),
                }
                assert!(executed == Executed::Maybe || handed == 0, "{status}");
            }
        }
        self.caller.drop_call(mine.call);
    }

    fn deliver(&mut self) {
        let Some(frame) = self.there.frames.pop_front() else { return };
        let event = self.callee.handle(self.now, &frame).unwrap();
        match event {
            None => {}
            Some(Event::Call { call, method, uploads, message, deadline_us }) => {
                let id = u64::from_le_bytes(message[..8].try_into().unwrap());
                let (len, _, down) = self.sent[&id];
                assert_eq!(message[8..], content(id, len)[8..]);
                assert_eq!(uploads, method & 1 != 0);
                assert!(deadline_us.is_none_or(|deadline| deadline > self.now));
                *self.handed.entry(id).or_default() += 1;
                let back = (method & 2 != 0).then_some((down, 0));
                let (uploaded, ended) = (Vec::new(), !uploads);
                self.theirs.push(Theirs { id, call, uploads, uploaded, ended, back });
            }
            Some(Event::Piece { call, bytes, ends }) => {
                let theirs = self.theirs.iter_mut().find(|theirs| theirs.call == call).unwrap();
                assert!(theirs.uploads && !theirs.ended);
                theirs.uploaded.extend_from_slice(bytes);
                theirs.ended = ends;
                let len = bytes.len();
                self.callee.consumed(call, len);
            }
            Some(Event::Cancelled(call)) => {
                let before = self.theirs.len();
                self.theirs.retain(|theirs| theirs.call != call);
                assert_eq!(self.theirs.len() + 1, before, "what was running was cancelled");
            }
        }
    }

    /// The server works at one of its calls.
    fn serve(&mut self) {
        if self.theirs.is_empty() {
            return;
        }
        let at = self.below(self.theirs.len() as u64);
        let theirs = &mut self.theirs[at];
        if let Some((len, sent)) = &mut theirs.back
            && *sent < *len
        {
            let take = self.callee.stream_room(theirs.call).min(*len - *sent);
            if take > 0 {
                let bytes = content(theirs.id + 2, *len);
                let piece = &bytes[*sent..*sent + take];
                self.callee.stream_back(theirs.call, |into| into.extend_from_slice(piece));
                *sent += take;
            }
            return;
        }
        // An answer takes the place of what has not gone.
        if !theirs.ended || theirs.back.is_some() && !self.callee.is_sent(theirs.call) {
            return;
        }
        let theirs = self.theirs.swap_remove(at);
        let (_, up, _) = self.sent[&theirs.id];
        assert_eq!(theirs.uploaded, content(theirs.id + 1, up));
        let not_found = Status::new(Code::NotFound, "every fifth");
        let bytes = answer(theirs.id);
        let reply = match theirs.id % 5 {
            0 => Reply::Failed(&not_found, Executed::Maybe),
            _ => Reply::Message(bytes.len()),
        };
        let copy = |room: &mut [u8]| room.copy_from_slice(&bytes);
        let told = self.callee.answer(self.now, theirs.call, reply, copy, &mut self.back).unwrap();
        assert!(told, "nobody else has answered it");
    }

    fn time_passes(&mut self) {
        self.now += self.below(20) as u64;
        self.caller.handle_time(self.now);
        let theirs = &mut self.theirs;
        self.callee.handle_time(self.now, |call| theirs.retain(|theirs| theirs.call != call));
    }

    fn pump(&mut self) {
        self.there.room = self.below(6);
        self.back.room = self.below(6);
        let _ = self.caller.transmit(self.now, &mut self.there).unwrap();
        let _ = self.callee.transmit(self.now, &mut self.back).unwrap();
    }

    fn step(&mut self, begins: bool) {
        match self.below(12) {
            0 if begins => self.begin(),
            0..=2 => self.use_call(),
            3 | 4 => self.deliver(),
            5 | 6 => {
                if let Some(frame) = self.back.frames.pop_front() {
                    self.caller.handle(&frame).unwrap();
                }
            }
            7 | 8 => self.serve(),
            9 => self.time_passes(),
            _ => self.pump(),
        }
    }
}

fn answer(id: u64) -> Vec<u8> {
    let mut bytes = content(id + 3, 8 + (id as usize * 37) % 700);
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// Runs a seed; how many calls succeeded.
fn run(seed: u64) -> u64 {
    println!("seed {seed}");
    let mut world = World::new(seed);
    for _ in 0..2_000 {
        world.step(true);
    }
    // From here on nothing new begins, and everything ends.
    let mut steps = 0;
    while !world.mine.is_empty() || world.caller.under_way() > 0 || world.callee.under_way() > 0 {
        world.step(false);
        steps += 1;
        assert!(steps < 1_000_000, "seed {seed}: something never ends");
    }
    assert!(world.theirs.is_empty());
    let (mine, theirs) = (*world.caller.counters(), *world.callee.counters());
    assert_eq!((mine.faults, theirs.faults), (0, 0));
    assert_eq!(mine.begun, mine.succeeded + mine.failed);
    assert_eq!(theirs.requests, theirs.succeeded + theirs.failed);
    assert_eq!(theirs.answers_dropped, 0);
    assert!(world.handed.values().all(|times| *times == 1));
    assert!(world.answered <= mine.begun);
    world.succeeded
}

#[test]
fn every_call_ends_once_and_nothing_is_invented() {
    let succeeded: u64 = (0..600).map(run).sum();
    assert!(succeeded > 5_000, "{succeeded} calls came to something");
}

/// Both ends, greeted, with endless room.
fn pair(server: Limits) -> (Caller, Callee, Pipe, Pipe) {
    let (mut caller, mut callee) = (Caller::new(LIMITS, CHUNK), Callee::new(server, CHUNK, (0, 0)));
    let [mut there, mut back] = [0; 2].map(|_| Pipe { room: 1_000, ..Pipe::default() });
    assert!(caller.transmit(0, &mut there).unwrap());
    assert_eq!(callee.handle(0, &there.frames.pop_front().unwrap()), Ok(None));
    assert!(callee.transmit(0, &mut back).unwrap());
    caller.handle(&back.frames.pop_front().unwrap()).unwrap();
    (caller, callee, there, back)
}

fn call(len: usize) -> Begun {
    Begun { method: 1, deadline_us: None, len, uploads: false, downloads: false }
}

#[test]
fn a_short_call_passes_a_long_one_after_a_frame() {
    let (mut caller, _, mut there, _) = pair(LIMITS);
    there.room = 0;
    let long = caller.begin(0, call(900), |_| {}, &mut there).unwrap().unwrap();
    let short = caller.begin(0, call(8), |_| {}, &mut there).unwrap().unwrap();
    there.room = 1_000;
    assert!(caller.transmit(0, &mut there).unwrap());
    let calls: Vec<_> =
        there.frames.iter().map(|frame| Header::decode(frame).unwrap().unwrap().call).collect();
    assert_eq!(calls[..3], [long, short, long]);
    assert_eq!(calls.len(), 1 + 900_usize.div_ceil(CHUNK));
}

#[test]
fn a_call_that_comes_too_late_is_not_run() {
    let (mut caller, mut callee, mut there, mut back) = pair(LIMITS);
    there.room = 0;
    let begun = Begun { deadline_us: Some(50), ..call(8) };
    let late = caller.begin(0, begun, |_| {}, &mut there).unwrap().unwrap();
    there.room = 1;
    // It waits for room until nothing is left of its time, and the client does not look at its clock.
    assert!(caller.transmit(60, &mut there).unwrap());
    assert_eq!(callee.handle(60, &there.frames.pop_front().unwrap()), Ok(None));
    assert!(callee.transmit(60, &mut back).unwrap());
    caller.handle(&back.frames.pop_front().unwrap()).unwrap();
    let Some(Outcome::Failed(status, executed)) = caller.outcome(late) else { panic!() };
    assert_eq!((status.code, *executed), (Code::DeadlineExceeded, Executed::No));
    assert_eq!((callee.counters().handed_on, callee.counters().expired), (0, 1));
}

#[test]
fn a_request_beyond_what_is_held_is_refused_before_it_comes() {
    let server = Limits { held_bytes: 500, ..LIMITS };
    let (mut caller, mut callee, mut there, mut back) = pair(server);
    let calls = [400, 400]
        .map(|len| caller.begin(0, call(len), |room| room.fill(1), &mut there).unwrap().unwrap());
    assert!(caller.transmit(0, &mut there).unwrap());
    let mut handed = Vec::new();
    for frame in there.frames.drain(..) {
        if let Some(Event::Call { call, message, .. }) = callee.handle(0, &frame).unwrap() {
            assert_eq!(message, [1; 400]);
            handed.push(call);
        }
        assert!(callee.transmit(0, &mut back).unwrap());
    }
    assert_eq!(handed, [calls[0]]);
    caller.handle(&back.frames.pop_front().unwrap()).unwrap();
    let Some(Outcome::Failed(status, executed)) = caller.outcome(calls[1]) else { panic!() };
    assert_eq!((status.code, *executed), (Code::ResourceExhausted, Executed::No));
    assert_eq!((callee.counters().exhausted, callee.counters().late), (1, 6));
}

#[test]
fn what_was_not_sent_was_not_executed() {
    let (mut caller, _, mut there, _) = pair(LIMITS);
    there.room = 1;
    let sent = caller.begin(0, call(8), |_| {}, &mut there).unwrap().unwrap();
    let kept = caller.begin(0, call(8), |_| {}, &mut there).unwrap().unwrap();
    caller.disconnect(&Status::new(Code::Unavailable, "it is gone"));
    for (call, expected) in [(sent, Executed::Maybe), (kept, Executed::No)] {
        let Some(Outcome::Failed(status, executed)) = caller.outcome(call) else { panic!() };
        assert_eq!((status.code, *executed), (Code::Unavailable, expected));
        caller.drop_call(call);
    }
    let status = caller.begin(0, call(8), |_| {}, &mut there).unwrap().unwrap_err();
    assert_eq!(status.message, "it is gone");
}

/// What a peer may not do, to either end: each is named, and counted, and nothing is believed after it.
#[test]
fn what_cannot_be_is_named() {
    let id = |slot, turn| CallId { slot, turn };
    let frame = |kind, call, change: fn(&mut Header), len: usize| {
        let mut header = Header::new(kind, call);
        header.len = len as u32;
        change(&mut header);
        let mut bytes = header.encode().to_vec();
        bytes.resize(HEADER_BYTES + len, 0);
        bytes
    };
    let request =
        |call, len| frame(Kind::Request, call, |header| (header.value, header.total) = (9, 9), len);
    let whole = id(0, 1);
    type Case = (Vec<Vec<u8>>, Fault);
    let to_server: Vec<Case> = vec![
        (vec![vec![0; 5]], Fault::Short { bytes: 5 }),
        (vec![request(id(6, 1), 9)], Fault::Slot { slot: 6, slots: 6 }),
        (vec![request(id(0, 0), 9)], Fault::Turn { call: id(0, 0), turn: 0 }),
        (vec![request(id(0, 1 << 31), 9)], Fault::Turn { call: id(0, 1 << 31), turn: 0 }),
        (vec![request(whole, 9), request(id(0, 2), 9)], Fault::Turn { call: id(0, 2), turn: 1 }),
        (
            vec![frame(Kind::Piece, whole, |_| {}, 1)],
            Fault::NoCall { kind: Kind::Piece, call: whole },
        ),
        (
            vec![frame(Kind::Cancel, id(0, 0), |_| {}, 0)],
            Fault::NoCall { kind: Kind::Cancel, call: id(0, 0) },
        ),
        (
            vec![request(whole, 4), frame(Kind::Piece, whole, |_| {}, 6)],
            Fault::TooMuch { total: 9, bytes: 10 },
        ),
        (
            vec![request(whole, 9), frame(Kind::Stream, whole, |_| {}, 6)],
            Fault::NoCall { kind: Kind::Stream, call: whole },
        ),
        (
            vec![
                frame(Kind::Request, whole, |header| (header.value, header.flags) = (9, 1), 0),
                frame(Kind::Stream, whole, |_| {}, 100),
                frame(Kind::Stream, whole, |_| {}, 100),
            ],
            Fault::Credit { bytes: 200, allowed: 150 },
        ),
        (
            vec![
                request(whole, 9),
                frame(Kind::Credit, whole, |header| header.value = u64::MAX, 0),
            ],
            Fault::Field { kind: Kind::Credit },
        ),
        (vec![frame(Kind::Response, whole, |_| {}, 0)], Fault::Unexpected { kind: Kind::Response }),
        (vec![frame(Kind::Hello, id(0, 0), |_| {}, 0)], Fault::Unexpected { kind: Kind::Hello }),
    ];
    for (frames, fault) in to_server {
        let (_, mut callee, ..) = pair(LIMITS);
        let (last, before) = frames.split_last().unwrap();
        for frame in before {
            callee.handle(0, frame).unwrap();
        }
        assert_eq!(callee.handle(0, last), Err(fault));
        assert_eq!(callee.counters().faults, 1);
        assert_eq!(callee.handle(0, &request(whole, 9)), Ok(None), "it is over");
    }

    let response = |call, len| frame(Kind::Response, call, |header| header.total = 9, len);
    let to_client: Vec<Case> = vec![
        (vec![response(id(1, 1), 9)], Fault::NoCall { kind: Kind::Response, call: id(1, 1) }),
        (
            vec![response(whole, 9), response(whole, 9)],
            Fault::NoCall { kind: Kind::Response, call: whole },
        ),
        (vec![response(whole, 3), response(whole, 9)], Fault::Unexpected { kind: Kind::Response }),
        // That nothing was executed, say, behind half of what was.
        (
            vec![
                response(whole, 3),
                frame(Kind::Response, whole, |header| (header.code, header.flags) = (13, 4), 0),
            ],
            Fault::Unexpected { kind: Kind::Response },
        ),
        (
            vec![response(whole, 3), frame(Kind::Piece, whole, |_| {}, 7)],
            Fault::TooMuch { total: 9, bytes: 10 },
        ),
        (
            vec![frame(Kind::Piece, whole, |_| {}, 1)],
            Fault::NoCall { kind: Kind::Piece, call: whole },
        ),
        // A stream that was not called for is passed over, as far as one may come.
        (
            vec![frame(Kind::Stream, whole, |_| {}, 100), frame(Kind::Stream, whole, |_| {}, 51)],
            Fault::Credit { bytes: 151, allowed: 150 },
        ),
        (
            vec![frame(Kind::Credit, whole, |header| header.value = 1, 0)],
            Fault::NoCall { kind: Kind::Credit, call: whole },
        ),
        (vec![request(whole, 9)], Fault::Unexpected { kind: Kind::Request }),
    ];
    for (frames, fault) in to_client {
        let (mut caller, _, mut there, _) = pair(LIMITS);
        let mine = caller.begin(0, call(8), |_| {}, &mut there).unwrap().unwrap();
        let (last, before) = frames.split_last().unwrap();
        for frame in before {
            caller.handle(frame).unwrap();
        }
        assert_eq!(caller.handle(last), Err(fault));
        assert_eq!(caller.counters().faults, 1);
        assert!(caller.over().is_some_and(|status| status.code == Code::Unavailable));
        assert!(caller.outcome(mine).is_some(), "who waits is told");
    }
}

#[test]
fn versions_that_differ_are_told_by_either_end() {
    let (mut caller, mut callee) = (Caller::new(LIMITS, 512), Callee::new(LIMITS, 512, (0, 0)));
    let [mut there, mut back] = [0; 2].map(|_| Pipe { room: 10, ..Pipe::default() });
    assert!(caller.transmit(0, &mut there).unwrap());
    let mut hello = there.frames.pop_front().unwrap();
    hello[0] = 2;
    hello[HEADER_BYTES + 4] = 2;
    // What another version's header has behind its kind is not looked at.
    hello[2] = 0xff;
    assert_eq!(callee.handle(0, &hello), Ok(None));
    assert!(callee.transmit(0, &mut back).unwrap() && callee.is_over());
    let mut refused = back.frames.pop_front().unwrap();
    caller.handle(&refused).unwrap();
    let told = caller.over().unwrap();
    assert_eq!(told.code, Code::FailedPrecondition);
    assert!(told.message.contains("version 2.0") && told.message.contains("1.0"), "{told}");

    let mut caller = Caller::new(LIMITS, CHUNK);
    refused[0] = 3;
    caller.handle(&refused).unwrap();
    assert!(caller.over().unwrap().message.contains("3.0"));
}

/// An outlet that fails, with a frame that may go all the same, or that cannot.
struct Failing {
    in_doubt: bool,
}

impl Outlet for Failing {
    type Error = ();

    fn put(&mut self, _: &Header, _: impl FnMut(&mut [u8])) -> Result<bool, ()> {
        Err(())
    }

    fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }
}

#[test]
fn a_request_that_may_go_though_its_outlet_failed_may_have_been_done() {
    for (in_doubt, expected) in [(true, Executed::Maybe), (false, Executed::No)] {
        let (mut caller, _, mut there, _) = pair(LIMITS);
        there.room = 0;
        let [first, behind] =
            [8, 8].map(|len| caller.begin(0, call(len), |_| {}, &mut there).unwrap().unwrap());
        assert_eq!(caller.transmit(0, &mut Failing { in_doubt }), Err(()));
        caller.disconnect(&Status::new(Code::Unavailable, "it is gone"));
        let outcomes = [(first, expected), (behind, Executed::No)];
        for (call, expected) in outcomes {
            let Some(Outcome::Failed(_, executed)) = caller.outcome(call) else { panic!() };
            assert_eq!(*executed, expected, "in doubt: {in_doubt}");
        }
    }
}
