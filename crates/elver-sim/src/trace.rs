use std::collections::VecDeque;
use std::fmt;

use elver_verbs::{AsyncEvent, SendOpcode, Time, Wc, WcStatus};

use crate::rng::mix;

/// Events that a failure shows.
const TAIL: usize = 80;
/// Events that are kept when the whole trace was asked for.
const WHOLE: usize = 1 << 16;

/// Something that happened, kept without formatting it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Sent { from: usize, to: usize, len: usize, opcode: u8, qpn: u32, psn: u32 },
    Delivered { to: usize, len: usize, opcode: u8, qpn: u32, psn: u32 },
    Fault { what: &'static str, from: usize, to: usize },
    Posted { host: usize, qpn: u32, op: usize, opcode: SendOpcode, len: u32, planted: bool },
    Received { host: usize, count: usize },
    Completed { host: usize, wr_id: u64, status: WcStatus, qpn: u32, len: u32 },
    Async { host: usize, event: AsyncEvent },
    Act { what: &'static str, host: usize, qpn: u32 },
    Phase(&'static str),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Sent { from, to, len, opcode, qpn, psn } => write!(
                f,
                "host {from} -> {to}: packet {opcode:#04x} to QPN {qpn:#x}, PSN {psn:#x}, {len} bytes"
            ),
            Event::Delivered { to, len, opcode, qpn, psn } => write!(
                f,
                "host {to} takes packet {opcode:#04x} for QPN {qpn:#x}, PSN {psn:#x}, {len} bytes"
            ),
            Event::Fault { what, from, to } => write!(f, "fault: {what}, host {from} -> {to}"),
            Event::Posted { host, qpn, op, opcode, len, planted } => {
                let bad = if planted { ", bad on purpose" } else { "" };
                write!(f, "host {host} QPN {qpn:#x}: post WR {op} {opcode:?} of {len} bytes{bad}")
            }
            Event::Received { host, count } => write!(f, "host {host}: {count} receives posted"),
            Event::Completed { host, wr_id, status, qpn, len } => {
                let kind = if wr_id & 1 == 0 { "WR" } else { "receive" };
                write!(
                    f,
                    "host {host} QPN {qpn:#x}: {kind} {} completes: {status}, {len} bytes",
                    wr_id >> 1
                )
            }
            Event::Async { host, event } => write!(f, "host {host}: event {event:?}"),
            Event::Act { what, host, qpn } => write!(f, "host {host} QPN {qpn:#x}: {what}"),
            Event::Phase(name) => write!(f, "---- {name}"),
        }
    }
}

/// The last events of a run, and a hash of all of them: two runs with one hash did the same.
#[derive(Debug)]
pub(crate) struct Trace {
    events: VecDeque<(u64, Event)>,
    capacity: usize,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(whole: bool) -> Trace {
        Trace { events: VecDeque::new(), capacity: if whole { WHOLE } else { TAIL }, hash: 0 }
    }

    pub(crate) fn add(&mut self, now: u64, event: Event) {
        self.hash = mix(self.hash ^ now.rotate_left(20) ^ digest(&event));
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back((now, event));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The events that are still known, with their times.
    pub(crate) fn timed_lines(&self) -> Vec<(Time, String)> {
        self.events.iter().map(|(at, event)| (Time(*at), event.to_string())).collect()
    }

    /// The events that are still known, one line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.events
            .iter()
            .map(|(at, event)| format!("{:>12.3} us  {event}", *at as f64 / 1_000.0))
            .collect()
    }
}

/// A completion as an event.
pub(crate) fn completed(host: usize, wc: &Wc) -> Event {
    Event::Completed { host, wr_id: wc.wr_id, status: wc.status, qpn: wc.qp_num, len: wc.byte_len }
}

fn digest(event: &Event) -> u64 {
    let text = |what: &str| what.bytes().fold(0, |hash: u64, byte| mix(hash ^ u64::from(byte)));
    let pack = |parts: &[u64]| parts.iter().fold(0, |hash: u64, part| mix(hash ^ part));
    match *event {
        Event::Sent { from, to, len, opcode, qpn, psn } => pack(&[
            1,
            (from << 8 | to) as u64,
            len as u64,
            u64::from(opcode),
            u64::from(qpn) << 32 | u64::from(psn),
        ]),
        Event::Delivered { to, len, opcode, qpn, psn } => pack(&[
            2,
            to as u64,
            len as u64,
            u64::from(opcode),
            u64::from(qpn) << 32 | u64::from(psn),
        ]),
        Event::Fault { what, from, to } => pack(&[3, text(what), (from << 8 | to) as u64]),
        Event::Posted { host, qpn, op, len, .. } => {
            pack(&[4, host as u64, u64::from(qpn), op as u64, u64::from(len)])
        }
        Event::Received { host, count } => pack(&[5, host as u64, count as u64]),
        Event::Completed { host, wr_id, status, qpn, len } => {
            pack(&[6, host as u64, wr_id, status as u64, u64::from(qpn) << 32 | u64::from(len)])
        }
        Event::Async { host, .. } => pack(&[7, host as u64]),
        Event::Act { what, host, qpn } => pack(&[8, text(what), host as u64, u64::from(qpn)]),
        Event::Phase(name) => text(name),
    }
}
