//! One client of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use elver::Gid;
use elver_ring::{Pause, Wire};

use super::context::{Context, Place, Returns};
use super::deferred::Deferred;
use super::methods::{BytesSink, BytesSource, Handler, Later, Methods, unreadable};
use crate::link::Link;
use crate::protocol::{CallId, Callee, CalleeCounters, Event, Limits, Outlet, Reply};
use crate::status::{Code, Executed, Status};

/// Frames that are taken of one client before another has its turn.
const FRAMES_AT_ONCE: u32 = 256;
/// Pieces of each stream back, as well.
const PIECES_AT_ONCE: u32 = 4;

pub(super) struct Connection {
    pub(super) client: u64,
    /// Where the client is.
    node: Option<Gid>,
    link: Link,
    callee: Callee,
    work: Work,
    clock: Instant,
    /// Its calls have deadlines, so that the time is looked at behind each that was done.
    has_deadlines: bool,
    pub(super) pause: Option<Pause>,
}

/// What the calls of a client do that are not answered at once.
#[derive(Default)]
struct Work {
    running: Vec<Running>,
    /// Those that stream back.
    downloads: Vec<CallId>,
}

/// What does a call that was not answered at once.
#[derive(Default)]
enum Running {
    #[default]
    Nothing,
    Deferred(Arc<AtomicBool>),
    Upload(Box<dyn BytesSink>),
    /// And whether all was read.
    Download(Box<dyn BytesSource>, bool),
}

/// What all clients have in common.
pub(super) struct Common {
    pub(super) methods: Methods,
    pub(super) returns: Returns,
    pub(super) deferred: Deferred,
    /// A response, before it goes.
    pub(super) reply: Vec<u8>,
}

impl Connection {
    pub(super) fn new(client: u64, link: Link, callee: Callee) -> Connection {
        let clock = Instant::now();
        let node = link.wire().peer();
        Connection {
            client,
            node,
            link,
            callee,
            work: Work::default(),
            clock,
            has_deadlines: false,
            pause: None,
        }
    }

    /// A connection of which nothing is taken.
    pub(super) fn refuse(&mut self, status: &Status) {
        self.callee.refuse(status);
    }

    pub(super) fn counters(&self) -> &CalleeCounters {
        self.callee.counters()
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.callee.is_greeted()
    }

    pub(super) fn age(&self) -> Duration {
        self.clock.elapsed()
    }

    pub(super) fn wire(&self) -> &Wire {
        self.link.wire()
    }

    /// How long until a deadline, if there is one.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let next = Duration::from_micros(self.callee.next_deadline()?);
        Some(next.saturating_sub(self.clock.elapsed()))
    }

    /// Whether something waits for room below.
    pub(super) fn is_held_up(&self) -> bool {
        self.link.outgoing.is_held_up()
    }

    /// It is over: nobody waits for its calls any more, and its peer hears of the end, if it lets anything through.
    pub(super) fn begin_close(&mut self) {
        self.forget_all();
        self.link.begin_close();
    }

    /// Whether all that was said has arrived, as far as it will.
    pub(super) fn is_settled(&mut self) -> bool {
        self.link.is_settled()
    }

    fn forget_all(&mut self) {
        for slot in 0..self.work.running.len() as u32 {
            self.work.forget(CallId { slot, turn: 0 });
        }
    }

    /// Takes in what has come, and sends what there is: whether there was anything. An error is the end.
    pub(super) fn round(&mut self, common: &mut Common) -> Result<bool, Ended> {
        let mut now_us = self.elapsed_us();
        let mut came = false;
        for _ in 0..FRAMES_AT_ONCE {
            let Some(len) = self.link.incoming.try_next()? else { break };
            came = true;
            self.take(now_us, len, common)?;
            if self.has_deadlines || self.callee.next_deadline().is_some() {
                now_us = self.elapsed_us();
            }
        }
        let (work, callee) = (&mut self.work, &mut self.callee);
        callee.handle_time(now_us, |call| work.forget(call));
        for _ in 0..PIECES_AT_ONCE {
            if self.work.downloads.is_empty() {
                break;
            }
            came |= self.stream_back(now_us, common)?;
            self.callee.transmit(now_us, &mut self.link.outgoing)?;
        }
        self.callee.transmit(now_us, &mut self.link.outgoing)?;
        self.link.outgoing.begin_flush()?;
        if self.callee.is_over() || self.link.incoming.is_ended() {
            return Err(Ended);
        }
        Ok(came)
    }

    fn elapsed_us(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64
    }

    fn take(&mut self, now_us: u64, len: usize, common: &mut Common) -> Result<(), Ended> {
        let (frame, outgoing) = self.link.parts(len);
        match self.callee.handle(now_us, frame)? {
            None => {}
            Some(Event::Cancelled(call)) => self.work.forget(call),
            Some(Event::Piece { call, bytes, ends }) => {
                let len = bytes.len();
                let Some(Running::Upload(sink)) = self.work.running.get_mut(call.slot as usize)
                else {
                    return Ok(());
                };
                common.reply.clear();
                let mut written = sink.write(bytes);
                if ends && written.is_ok() {
                    written = sink.end(&mut common.reply);
                } else if written.is_ok() {
                    self.callee.consumed(call, len);
                    return Ok(());
                }
                self.work.forget(call);
                answer(&mut self.callee, now_us, call, written, &common.reply, outgoing)?;
            }
            Some(Event::Call { call, method, deadline_us, uploads, message }) => {
                self.has_deadlines |= deadline_us.is_some();
                let deadline = deadline_us.and_then(|deadline_us| {
                    self.clock.checked_add(Duration::from_micros(deadline_us))
                });
                let context = Context { client: self.client, deadline, cancelled: None };
                let place = Place { client: self.client, node: self.node, call };
                let begun = begin(&mut self.work, place, method, uploads, message, context, common);
                match begun {
                    Begun::Answered(reply) => {
                        answer(&mut self.callee, now_us, call, reply, &common.reply, outgoing)?;
                    }
                    Begun::Refused(status) => {
                        let reply = Reply::Failed(&status, Executed::No);
                        self.callee.answer(now_us, call, reply, |_| {}, outgoing)?;
                    }
                    Begun::Running => {}
                }
            }
        }
        Ok(())
    }

    /// Asks each stream back for a piece; whether one gave any.
    fn stream_back(&mut self, now_us: u64, common: &mut Common) -> Result<bool, Ended> {
        let (mut gave, mut at) = (false, 0);
        while let Some(call) = self.work.downloads.get(at).copied() {
            let room = self.callee.stream_room(call);
            let Some(Running::Download(source, all_read)) =
                self.work.running.get_mut(call.slot as usize)
            else {
                self.work.downloads.swap_remove(at);
                continue;
            };
            common.reply.clear();
            let mut ended = None;
            if !*all_read && room > 0 {
                gave = true;
                common.reply.resize(room, 0);
                match source.read(&mut common.reply) {
                    Ok(0) => *all_read = true,
                    Ok(len) => {
                        let piece = &common.reply[..len.min(room)];
                        self.callee.stream_back(call, |into| into.extend_from_slice(piece));
                    }
                    Err(status) => ended = Some(Err(status)),
                }
            }
            // The response goes behind the last piece.
            if *all_read && self.callee.is_sent(call) {
                common.reply.clear();
                ended = Some(source.end(&mut common.reply));
            }
            match ended {
                None => at += 1,
                Some(reply) => {
                    gave = true;
                    self.work.forget(call);
                    let outgoing = &mut self.link.outgoing;
                    answer(&mut self.callee, now_us, call, reply, &common.reply, outgoing)?;
                }
            }
        }
        Ok(gave)
    }

    /// An answer that came later.
    pub(super) fn answer_late(
        &mut self,
        call: CallId,
        reply: Result<Vec<u8>, Status>,
    ) -> Result<(), Ended> {
        let now_us = self.clock.elapsed().as_micros() as u64;
        let (reply, bytes) = match reply {
            Ok(bytes) => (Ok(()), bytes),
            Err(status) => (Err(status), Vec::new()),
        };
        if self.callee.is_running(call) {
            self.work.forget(call);
        }
        answer(&mut self.callee, now_us, call, reply, &bytes, &mut self.link.outgoing)?;
        Ok(())
    }
}

impl Drop for Connection {
    /// Nobody waits for its calls any more.
    fn drop(&mut self) {
        self.forget_all();
    }
}

impl Work {
    fn run(&mut self, call: CallId, running: Running) {
        let slot = call.slot as usize;
        if self.running.len() <= slot {
            self.running.resize_with(slot + 1, Running::default);
        }
        self.running[slot] = running;
    }

    /// Whatever a call did, it does no more: its slot's only one.
    fn forget(&mut self, call: CallId) {
        let Some(running) = self.running.get_mut(call.slot as usize) else { return };
        if let Running::Deferred(cancelled) = std::mem::take(running) {
            cancelled.store(true, Ordering::Relaxed);
        }
        self.downloads.retain(|download| download.slot != call.slot);
    }
}

/// What became of a call at once.
enum Begun {
    /// Its response is in `reply`, or it failed.
    Answered(Result<(), Status>),
    /// Nothing was done.
    Refused(Status),
    Running,
}

fn begin(
    work: &mut Work,
    place: Place,
    method: u32,
    uploads: bool,
    message: &[u8],
    mut context: Context,
    common: &mut Common,
) -> Begun {
    let Some(handler) = common.methods.get(method) else {
        let why = format!("there is no method {method} here");
        return Begun::Refused(Status::new(Code::Unimplemented, why));
    };
    if uploads != matches!(handler, Handler::Upload(_)) {
        let why = if uploads { "takes no stream" } else { "wants a stream" };
        let why = format!("method {method} {why}");
        return Begun::Refused(Status::new(Code::InvalidArgument, why));
    }
    common.reply.clear();
    let begun = match handler {
        Handler::Unary(handler) => {
            return Begun::Answered(handler(message, &context, &mut common.reply));
        }
        Handler::Deferred(handler) => {
            // Before the handler runs: what it drops when it panics is counted back all the same.
            if let Err(why) = common.deferred.take(place.node) {
                return Begun::Refused(Status::new(Code::ResourceExhausted, why));
            }
            let cancelled = Arc::new(AtomicBool::new(false));
            context.cancelled = Some(cancelled.clone());
            let later = Later { returns: common.returns.clone(), place, context };
            match handler(message, later) {
                Ok(()) => Ok(Running::Deferred(cancelled)),
                Err(malformed) => {
                    common.deferred.give_back(place.node);
                    Err(unreadable(malformed))
                }
            }
        }
        Handler::Upload(handler) => handler(message, &context).map(Running::Upload),
        Handler::Download(handler) => handler(message, &context).map(|source| {
            work.downloads.push(place.call);
            Running::Download(source, false)
        }),
    };
    match begun {
        Ok(running) => {
            work.run(place.call, running);
            Begun::Running
        }
        Err(status) => Begun::Answered(Err(status)),
    }
}

fn answer<O: Outlet>(
    callee: &mut Callee,
    now_us: u64,
    call: CallId,
    reply: Result<(), Status>,
    bytes: &[u8],
    outlet: &mut O,
) -> Result<(), O::Error> {
    let reply = match &reply {
        Ok(()) => Reply::Message(bytes.len()),
        Err(status) => Reply::Failed(status, Executed::Maybe),
    };
    callee.answer(now_us, call, reply, |room| room.copy_from_slice(bytes), outlet)?;
    Ok(())
}

/// Why a connection is over is in its counters, or the client is gone.
#[derive(Debug)]
pub(super) struct Ended;

impl From<elver_ring::Error> for Ended {
    fn from(_: elver_ring::Error) -> Ended {
        Ended
    }
}

impl From<crate::protocol::Fault> for Ended {
    fn from(_: crate::protocol::Fault) -> Ended {
        Ended
    }
}

/// A callee of these limits, for a link.
pub(super) fn callee(link: &Link, limits: Limits, group: (u16, u16)) -> Option<Callee> {
    Some(Callee::new(limits, link.body_max()?, group))
}
