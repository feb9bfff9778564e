//! Calls: what a client and a server make of any frames, beside calls of their own, and what any bytes
//! are as messages. Either end may refuse, and must do nothing else: no call ends twice, and none is
//! lost.

use std::convert::Infallible;

use elver_rpc::protocol::{
    Begun, CallId, Callee, Caller, Event, FLAG_STREAM, HEADER_BYTES, Header, Kind, Limits, Outlet,
    Reply,
};
use elver_rpc::{Code, Executed, Status, decode};

const LIMITS: Limits = Limits { calls: 3, message_bytes: 300, held_bytes: 500, window: 100 };
const CHUNK: usize = 64;

elver_rpc::message! {
    #[derive(Debug)]
    struct Record { key: u64, name: String, tags: Vec<(u16, bool)>, more: Option<Vec<u32>> = None }
}

/// Keeps frames, or has no room.
#[derive(Default)]
struct Pipe {
    frames: Vec<Vec<u8>>,
    is_full: bool,
}

impl Outlet for Pipe {
    type Error = Infallible;

    fn put(
        &mut self,
        header: &Header,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Infallible> {
        if self.is_full {
            return Ok(false);
        }
        let mut frame = header.encode().to_vec();
        frame.resize(HEADER_BYTES + header.len as usize, 0);
        fill(&mut frame[HEADER_BYTES..]);
        // What an end sends can be read.
        assert!(matches!(Header::decode(&frame), Ok(Some(told)) if told == *header));
        self.frames.push(frame);
        Ok(true)
    }

    fn is_in_doubt(&self) -> bool {
        false
    }
}

struct Ends {
    caller: Caller,
    callee: Callee,
    there: Pipe,
    back: Pipe,
    now: u64,
    mine: Vec<CallId>,
    theirs: Vec<(CallId, bool)>,
}

/// Runs an input.
pub fn run(data: &[u8]) {
    let _ = decode::<Record>(data);
    let _ = decode::<Vec<Vec<(u8, String)>>>(data);
    let mut ends = Ends {
        caller: Caller::new(LIMITS, CHUNK),
        callee: Callee::new(LIMITS, CHUNK, (1, 2)),
        there: Pipe::default(),
        back: Pipe::default(),
        now: 0,
        mine: Vec::new(),
        theirs: Vec::new(),
    };
    let mut rest = data;
    // An input is steps: what to do, with what, and bytes for it.
    while let Some((&[what, value], more)) = rest.split_first_chunk::<2>() {
        let (bytes, behind) = more.split_at(more.len().min(usize::from(value % 48)));
        match what % 16 {
            // As it is.
            0 => ends.reach_callee(bytes),
            1 => ends.reach_caller(bytes),
            // With a header that can be.
            2 | 3 => ends.reach_callee(&frame(what, bytes)),
            4 | 5 => ends.reach_caller(&frame(what, bytes)),
            // Honest ends.
            6 => ends.begin(value, bytes),
            7 => ends.transmit(value),
            8 => {
                let frames = std::mem::take(&mut ends.there.frames);
                frames.iter().for_each(|frame| ends.reach_callee(frame));
            }
            9 => {
                let frames = std::mem::take(&mut ends.back.frames);
                frames.iter().for_each(|frame| ends.reach_caller(frame));
            }
            10 => ends.answer(value, bytes),
            11 => ends.use_call(value, bytes),
            12 => ends.time(value),
            _ => {}
        }
        ends.check();
        rest = if matches!(what % 16, 7..=9 | 12..) { more } else { behind };
    }
    ends.finish();
}

/// A frame whose length is right, and of which most else is the input's.
fn frame(what: u8, bytes: &[u8]) -> Vec<u8> {
    const KINDS: [Kind; 8] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Request,
        Kind::Response,
        Kind::Piece,
        Kind::Stream,
        Kind::Credit,
        Kind::Cancel,
    ];
    let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
    let kind = KINDS[usize::from(what / 16) % KINDS.len()];
    let call = CallId { slot: u32::from(at(0) % 4), turn: u32::from(at(1) % 8) };
    let mut header = Header::new(kind, call);
    let body = bytes.get(6..).unwrap_or_default();
    header.flags = at(2) % 8;
    header.len = body.len() as u32;
    match kind {
        Kind::Request => (header.value, header.method) = (at(3).into(), at(4).into()),
        Kind::Response => header.code = at(3) % 20,
        Kind::Credit => header.value = u64::from(at(3)) << (at(4) % 64),
        _ => {}
    }
    if matches!(kind, Kind::Request | Kind::Response) {
        header.total = header.len + 8 * u32::from(at(5));
    }
    [&header.encode(), body].concat()
}

impl Ends {
    fn reach_callee(&mut self, frame: &[u8]) {
        match self.callee.handle(self.now, frame) {
            Ok(Some(Event::Call { call, uploads, message, .. })) => {
                assert!(message.len() <= LIMITS.message_bytes as usize);
                assert!(self.theirs.iter().all(|(other, _)| other.slot != call.slot));
                self.theirs.push((call, uploads));
            }
            Ok(Some(Event::Piece { call, bytes, .. })) => {
                assert!(self.theirs.contains(&(call, true)));
                let len = bytes.len();
                self.callee.consumed(call, len);
            }
            Ok(Some(Event::Cancelled(call))) => self.forget(call),
            Ok(None) | Err(_) => {}
        }
    }

    fn reach_caller(&mut self, frame: &[u8]) {
        let faults = self.caller.counters().faults;
        if self.caller.handle(frame).is_err() {
            assert_eq!(self.caller.counters().faults, faults + 1);
            assert!(self.caller.over().is_some());
        }
    }

    fn forget(&mut self, call: CallId) {
        let before = self.theirs.len();
        self.theirs.retain(|(other, _)| *other != call);
        assert_eq!(self.theirs.len() + 1, before, "what ends was handed on");
    }

    fn begin(&mut self, value: u8, bytes: &[u8]) {
        let begun = Begun {
            method: value.into(),
            deadline_us: (value.is_multiple_of(3)).then(|| self.now + u64::from(value)),
            len: bytes.len() * usize::from(value % 9),
            uploads: value & FLAG_STREAM != 0,
            downloads: value & 2 != 0,
        };
        let fill = |room: &mut [u8]| room.fill(value);
        if let Ok(Ok(call)) = self.caller.begin(self.now, begun, fill, &mut self.there) {
            self.mine.push(call);
        }
    }

    fn transmit(&mut self, value: u8) {
        (self.there.is_full, self.back.is_full) = (value & 1 != 0, value & 2 != 0);
        let _ = self.caller.transmit(self.now, &mut self.there);
        let _ = self.callee.transmit(self.now, &mut self.back);
    }

    fn answer(&mut self, value: u8, bytes: &[u8]) {
        let Some((call, _)) = self.theirs.get(usize::from(value) % 4).copied() else { return };
        let room = self.callee.stream_room(call);
        if value & 16 != 0 && room > 0 {
            let piece = &bytes[..bytes.len().min(room)];
            self.callee.stream_back(call, |into| into.extend_from_slice(piece));
            return;
        }
        let status = Status::new(Code::Aborted, "x".repeat(bytes.len() * 9));
        let reply = match value & 32 {
            0 => Reply::Message(bytes.len() * usize::from(value % 9)),
            _ => Reply::Failed(&status, Executed::Maybe),
        };
        let fill = |room: &mut [u8]| room.fill(value);
        let told = self.callee.answer(self.now, call, reply, fill, &mut self.back);
        assert_eq!(told, Ok(true));
        self.forget(call);
    }

    fn use_call(&mut self, value: u8, bytes: &[u8]) {
        let at = usize::from(value) % 4;
        let Some(call) = self.mine.get(at).copied() else { return };
        if let Some(room) = self.caller.upload_room(call)
            && self.caller.is_sent(call)
        {
            self.caller.upload(call, &bytes[..bytes.len().min(room)], value & 16 != 0);
        }
        let mut some = [0; 40];
        let _ = self.caller.download(call, &mut some);
        if value & 32 != 0 {
            self.caller.cancel(call);
        }
        if value & 64 != 0 {
            self.mine.swap_remove(at);
            self.caller.drop_call(call);
        }
    }

    fn time(&mut self, value: u8) {
        self.now += u64::from(value);
        self.caller.handle_time(self.now);
        let mut expired = Vec::new();
        self.callee.handle_time(self.now, |call| expired.push(call));
        expired.into_iter().for_each(|call| self.forget(call));
    }

    fn check(&self) {
        assert!(self.callee.under_way() <= LIMITS.calls as usize);
        assert!(self.caller.under_way() <= LIMITS.calls as usize);
        assert!(self.theirs.iter().all(|(call, _)| self.callee.is_running(*call)));
    }

    /// However it went, each call ends when the connection does, and nothing is left.
    fn finish(mut self) {
        self.caller.disconnect(&Status::new(Code::Unavailable, "the end"));
        for call in std::mem::take(&mut self.mine) {
            assert!(self.caller.outcome(call).is_some());
            self.caller.drop_call(call);
        }
        assert_eq!(self.caller.under_way(), 0);
        let counters = self.caller.counters();
        assert_eq!(counters.begun, counters.succeeded + counters.failed);
        self.back.is_full = false;
        for (call, _) in std::mem::take(&mut self.theirs) {
            let reply = Reply::Message(0);
            assert_eq!(self.callee.answer(self.now, call, reply, |_| {}, &mut self.back), Ok(true));
        }
        self.time(255);
        let _ = self.callee.transmit(self.now, &mut self.back);
        let counters = self.callee.counters();
        assert!(counters.requests >= counters.succeeded + counters.failed);
    }
}
