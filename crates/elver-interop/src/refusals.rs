//! What must fail, and what each end reports of it.

use anyhow::Result;
use clap::ValueEnum;
use elver_verbs::{Mtu, WcStatus};
use serde::Serialize;

use crate::axes::{Op, Role, Transport};
use crate::bench::{Bench, Who};
use crate::cells::{self, Ends, Pair, SOURCE, TARGET, WORD};
use crate::side::{Connect, Done, MEMORY, Send};

const SEND_ID: u64 = 31;
const RECV_ID: u64 = 32;
const SIZE: u32 = 100;
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
            let rkey = bench.at(answerer, |side| side.window(answer, TARGET, 4096))?;
            recv(bench, SIZE)?;
            let closing = Send { op: Op::SendInv, argument: rkey.into(), ..send };
            bench.at(asker, |side| side.send(ask, &closing))?;
            bench.at(asker, |side| side.poll(ask, 1, WAIT_MS))?;
            bench.at(answerer, |side| side.poll(answer, 1, WAIT_MS))?;
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
    let responder = match wrong.responder() {
        Some(_) => first(bench.at(answerer, |side| side.poll(answer, 1, WAIT_MS))?),
        None => None,
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
    if requester_in_error != (wrong != Wrong::LateReceive) {
        report.wrong.push(format!("the requester's QP in error: {requester_in_error}"));
    }
    Ok(report)
}
