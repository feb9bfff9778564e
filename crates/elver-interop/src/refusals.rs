//! What must fail, and what each end reports of it.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use elver_verbs::{Mtu, WcStatus};
use serde::Serialize;

use crate::axes::{Op, Role, Transport};
use crate::bench::{Bench, Who};
use crate::cells::{self, Ends, Pair, SOURCE, TARGET, WORD};
use crate::side::{Connect, Done, MEMORY, QpRef, Send};

const SEND_ID: u64 = 31;
const RECV_ID: u64 = 32;
const SIZE: u32 = 100;
/// Seeds of what is sent and of what stood there before.
const NEW: u32 = 7;
const OLD: u32 = 8;
/// How long a completion is waited for that must not come.
const NOTHING_MS: u64 = 20;
const MTU: Mtu = Mtu::Mtu1024;
/// How long completions are waited for.
const WAIT_MS: u64 = 20_000;
/// How long a receive is late, in milliseconds, for an RNR that heals.
const LATE_MS: u64 = 20;
/// The timeout where one must run out: 4.096 µs · 2^10 = 4.2 ms, three times.
const SHORT_TIMEOUT: u8 = 10;
const SHORT_RETRY: u8 = 2;
/// How far first PSNs are off, where they are.
const PSN_ERROR: u32 = 5_000;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wrong {
    LateReceive,
    NoReceive,
    ShortReceive,
    WriteWrongKey,
    ReadWrongKey,
    AtomicWrongKey,
    WriteBeyondRegion,
    ReadBeyondRegion,
    AtomicMisaligned,
    InvalidatedWindow,
    PsnAhead,
    PsnBehind,
    NoSuchQp,
}

impl Wrong {
    pub(crate) const ALL: &[Wrong] = &[
        Wrong::LateReceive,
        Wrong::NoReceive,
        Wrong::ShortReceive,
        Wrong::WriteWrongKey,
        Wrong::ReadWrongKey,
        Wrong::AtomicWrongKey,
        Wrong::WriteBeyondRegion,
        Wrong::ReadBeyondRegion,
        Wrong::AtomicMisaligned,
        Wrong::InvalidatedWindow,
        Wrong::PsnAhead,
        Wrong::PsnBehind,
        Wrong::NoSuchQp,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Wrong::LateReceive => "SEND, receive posted 20 ms late (RNR)",
            Wrong::NoReceive => "SEND, no receive, RNR retries run out",
            Wrong::ShortReceive => "SEND longer than the receive",
            Wrong::WriteWrongKey => "WRITE, wrong rkey",
            Wrong::ReadWrongKey => "READ, wrong rkey",
            Wrong::AtomicWrongKey => "FETCH_ADD, wrong rkey",
            Wrong::WriteBeyondRegion => "WRITE beyond the region",
            Wrong::ReadBeyondRegion => "READ beyond the region",
            Wrong::AtomicMisaligned => "FETCH_ADD, address not a multiple of 8",
            Wrong::InvalidatedWindow => "WRITE through a window that SEND_WITH_INV closed",
            Wrong::PsnAhead => "SEND, first PSN ahead of what is expected",
            Wrong::PsnBehind => "SEND, first PSN behind what is expected",
            Wrong::NoSuchQp => "SEND to a QP that is gone",
        }
    }

    /// What the requester must be told (IBTA vol. 1, 9.9.2 and 11.6.2).
    fn requester(self) -> WcStatus {
        match self {
            Wrong::LateReceive => WcStatus::Success,
            Wrong::NoReceive => WcStatus::RnrRetryExcErr,
            Wrong::ShortReceive | Wrong::AtomicMisaligned => WcStatus::RemInvReqErr,
            Wrong::WriteWrongKey
            | Wrong::ReadWrongKey
            | Wrong::AtomicWrongKey
            | Wrong::WriteBeyondRegion
            | Wrong::ReadBeyondRegion
            | Wrong::InvalidatedWindow => WcStatus::RemAccessErr,
            Wrong::PsnAhead | Wrong::PsnBehind | Wrong::NoSuchQp => WcStatus::RetryExcErr,
        }
    }

    /// What the responder's receive must be told, where there is one that completes.
    fn responder(self) -> Option<WcStatus> {
        match self {
            Wrong::LateReceive => Some(WcStatus::Success),
            Wrong::ShortReceive => Some(WcStatus::LocLenErr),
            _ => None,
        }
    }
}

impl Wrong {
    /// Whether the responder's QP must end in the error state (IBTA vol. 1, 9.9.3): where it refused
    /// the request, and not where it waited for another. None where there is no QP left to ask.
    fn responder_ends(self) -> Option<bool> {
        match self {
            Wrong::LateReceive | Wrong::NoReceive | Wrong::PsnAhead | Wrong::PsnBehind => {
                Some(false)
            }
            Wrong::NoSuchQp => None,
            _ => Some(true),
        }
    }
}

/// What each end reported.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) requester: Option<WcStatus>,
    pub(crate) responder: Option<WcStatus>,
    pub(crate) requester_in_error: bool,
    pub(crate) responder_in_error: bool,
    /// What is not as it must be.
    pub(crate) wrong: Vec<String>,
}

/// Does the wrong thing on a pair of its own.
pub(crate) fn run(bench: &mut Bench, ends: &Ends, role: Role, wrong: Wrong) -> Result<Report> {
    let asker = match role {
        Role::Requester => Who::Ours,
        Role::Responder => Who::Theirs,
    };
    let pair = cells::connect(bench, ends, Transport::Rc, MTU, |who, how| {
        change(wrong, who == asker, how);
    })?;
    let report = act(bench, ends, pair, asker, wrong);
    if wrong == Wrong::NoSuchQp {
        bench.at(asker, |side| side.destroy(pair.qp(asker)))?;
    } else {
        cells::disconnect(bench, pair)?;
    }
    report
}

fn change(wrong: Wrong, asks: bool, how: &mut Connect) {
    match wrong {
        Wrong::NoReceive => how.rnr_retry = 2,
        Wrong::PsnAhead | Wrong::PsnBehind | Wrong::NoSuchQp => {
            how.timeout = SHORT_TIMEOUT;
            how.retry_cnt = SHORT_RETRY;
        }
        _ => {}
    }
    if !asks {
        let expected = match wrong {
            Wrong::PsnAhead => how.rq_psn.wrapping_sub(PSN_ERROR),
            Wrong::PsnBehind => how.rq_psn.wrapping_add(PSN_ERROR),
            _ => how.rq_psn,
        };
        how.rq_psn = expected & 0xff_ffff;
    }
}

fn act(bench: &mut Bench, ends: &Ends, pair: Pair, asker: Who, wrong: Wrong) -> Result<Report> {
    let answerer = asker.other();
    let (ask, answer) = (pair.qp(asker), pair.qp(answerer));
    let far = ends.of(answerer);
    let mut send = Send {
        wr_id: SEND_ID,
        op: Op::Send,
        offset: SOURCE,
        length: SIZE,
        addr: far.addr + TARGET,
        rkey: far.rkey,
        argument: 0,
        swap: 0,
        peer_qpn: 0,
    };
    let recv = |bench: &mut Bench, length| {
        bench.at(answerer, |side| side.recv(answer, RECV_ID, TARGET, length))
    };
    let recv_at =
        |bench: &mut Bench, at| bench.at(answerer, |side| side.recv(answer, RECV_ID, at, SIZE));
    bench.at(asker, |side| side.fill(SOURCE, SIZE, NEW))?;
    bench.at(answerer, |side| {
        side.fill(TARGET, SIZE, OLD)?;
        side.fill(WORD, 2 * SIZE, OLD)?;
        side.fill(MEMORY - u64::from(SIZE), SIZE, OLD)
    })?;
    let atomic = Send { op: Op::FetchAdd, length: 8, addr: far.addr + WORD, ..send };
    match wrong {
        Wrong::LateReceive | Wrong::NoReceive => {}
        Wrong::ShortReceive => recv(bench, SIZE / 2)?,
        Wrong::PsnAhead | Wrong::PsnBehind => recv(bench, SIZE)?,
        Wrong::WriteWrongKey => {
            send = Send { op: Op::Write, rkey: far.rkey ^ 0x5a00, ..send };
        }
        Wrong::ReadWrongKey => send = Send { op: Op::Read, rkey: far.rkey ^ 0x5a00, ..send },
        Wrong::AtomicWrongKey => send = Send { rkey: far.rkey ^ 0x5a00, ..atomic },
        Wrong::WriteBeyondRegion | Wrong::ReadBeyondRegion => {
            let op = if wrong == Wrong::ReadBeyondRegion { Op::Read } else { Op::Write };
            send = Send { op, addr: far.addr + MEMORY - u64::from(SIZE / 2), ..send };
        }
        Wrong::AtomicMisaligned => send = Send { addr: far.addr + WORD + 4, ..atomic },
        Wrong::InvalidatedWindow => {
            // It works before it is closed, on bytes that are not looked at later.
            let opened = TARGET + 2 * u64::from(SIZE);
            let rkey = bench.at(answerer, |side| side.window(answer, TARGET, 4096))?;
            let through = Send { op: Op::Write, addr: far.addr + opened, rkey, ..send };
            succeed(bench, asker, ask, &through)?;
            recv_at(bench, opened)?;
            let closing = Send { op: Op::SendInv, argument: rkey.into(), ..send };
            succeed(bench, asker, ask, &closing)?;
            let closed = bench.at(answerer, |side| side.poll(answer, 1, WAIT_MS))?;
            ensure!(
                closed.first().is_some_and(|done| done.status == WcStatus::Success),
                "the message that closes the window ended with {closed:?}"
            );
            send = Send { op: Op::Write, rkey, ..send };
        }
        Wrong::NoSuchQp => bench.at(answerer, |side| side.destroy(answer))?,
    }
    if let Err(error) = bench.at(asker, |side| side.send(ask, &send)) {
        return Ok(Report {
            requester: None,
            responder: None,
            requester_in_error: false,
            responder_in_error: false,
            wrong: vec![format!("it cannot be posted: {error:#}")],
        });
    }
    if wrong == Wrong::LateReceive {
        bench.at(asker, |side| side.poll(ask, 1, LATE_MS))?;
        recv(bench, SIZE)?;
    }
    let first = |done: Vec<Done>| done.first().map(|done| done.status);
    let requester = first(bench.at(asker, |side| side.poll(ask, 1, WAIT_MS))?);
    let responder = match (wrong.responder(), wrong) {
        (None, Wrong::NoSuchQp) => None,
        (expected, _) => {
            let wait = if expected.is_some() { WAIT_MS } else { NOTHING_MS };
            first(bench.at(answerer, |side| side.poll(answer, 1, wait))?)
        }
    };
    let requester_in_error = bench.at(asker, |side| side.is_in_error(ask))?;
    let responder_in_error = match wrong {
        Wrong::NoSuchQp => false,
        _ => bench.at(answerer, |side| side.is_in_error(answer))?,
    };

    let mut report =
        Report { requester, responder, requester_in_error, responder_in_error, wrong: Vec::new() };
    let name = |status: Option<WcStatus>| {
        status.map_or_else(|| "no completion".to_string(), |status| status.to_string())
    };
    if requester != Some(wrong.requester()) {
        let (got, wanted) = (name(requester), wrong.requester());
        report.wrong.push(format!("the requester reports {got}, not {wanted}"));
    }
    if responder != wrong.responder() {
        let (got, wanted) = (name(responder), name(wrong.responder()));
        report.wrong.push(format!("the responder reports {got}, not {wanted}"));
    }
    if wrong.responder_ends().is_some_and(|ends| ends != responder_in_error) {
        report.wrong.push(format!("the responder's QP in error: {responder_in_error}"));
    }
    report.wrong.extend(touched(bench, answerer, wrong)?);
    if requester_in_error != (wrong != Wrong::LateReceive) {
        report.wrong.push(format!("the requester's QP in error: {requester_in_error}"));
    }
    Ok(report)
}

/// Does what must work.
fn succeed(bench: &mut Bench, who: Who, qp: QpRef, send: &Send) -> Result<()> {
    bench.at(who, |side| side.send(qp, send))?;
    let done = bench.at(who, |side| side.poll(qp, 1, WAIT_MS))?;
    ensure!(
        done.first().is_some_and(|done| done.status == WcStatus::Success),
        "{} ended with {done:?}",
        send.op
    );
    Ok(())
}

/// What is not in the responder's memory as it must be.
fn touched(bench: &mut Bench, answerer: Who, wrong: Wrong) -> Result<Option<String>> {
    let short = u64::from(SIZE / 2);
    bench.at(answerer, |side| {
        let wrong_byte = match wrong {
            Wrong::LateReceive => side.check(TARGET, SIZE, NEW)?,
            // The receive's own part may hold a part of the message.
            Wrong::ShortReceive => side.mixed(TARGET, SIZE / 2, [NEW, OLD])?.or(
                if side.check(TARGET, SIZE, OLD)?.is_some_and(|at| u64::from(at) >= short) {
                    Some(SIZE / 2)
                } else {
                    None
                },
            ),
            _ => side.check(TARGET, SIZE, OLD)?,
        };
        let others =
            side.check(WORD, 2 * SIZE, OLD)?.or(side.check(MEMORY - u64::from(SIZE), SIZE, OLD)?);
        Ok(match (wrong_byte, others) {
            (Some(at), _) => Some(format!("byte {at} of the responder's target is wrong")),
            (None, Some(_)) => Some("memory that was not to be touched was".into()),
            (None, None) => None,
        })
    })
}
