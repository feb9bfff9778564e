//! One cell of the table: one operation, with everything that it does at both ends compared.

use std::time::{Duration, Instant};

use anyhow::Result;
use elver_verbs::{Mtu, WcStatus};

use crate::axes::{Cell, Fault, Op, Role, Transport, Way};
use crate::bench::{Bench, Who};
use crate::side::{About, Connect, Done, QpRef, Send, number};

/// Where the bytes of an operation come from and go to, in either end's memory.
pub(crate) const SOURCE: u64 = 0x1000;
pub(crate) const TARGET: u64 = 0x20_0000;
/// The word that atomics change.
pub(crate) const WORD: u64 = 0x3f_0000;
/// Bytes behind the target that must stay as they were.
const GUARD: u32 = 64;
/// Bytes that a UD receive has in front of the payload.
const GRH: u32 = 40;

const IMM: u32 = 0xdead_beef;
const COMPARE_SEED: u32 = 3;
const ADDEND_SEED: u32 = 5;
const SWAP: u64 = 0x0123_4567_89ab_cdef;
const ADD: u64 = 0x1_0000_0001;

const SEND_ID: u64 = 11;
const RECV_ID: u64 = 22;
/// How long completions are waited for that must come.
const MUST_COME_MS: u64 = 60_000;
/// How long a datagram is waited for that may have been lost.
const MAY_COME_MS: u64 = 100;
/// How often a message is sent without a fault before its loss counts.
const ATTEMPTS: u32 = 8;
/// And with one: the first time one of its packets is struck for certain.
const ATTEMPTS_WITH_FAULT: u32 = 2;
/// Both ends' first PSNs: they wrap in the course of every connection that carries 1 MB.
pub(crate) const OUR_PSN: u32 = 0xff_f800;
pub(crate) const THEIR_PSN: u32 = 0xff_ff00;

/// A connected pair of QPs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: QpRef,
    pub(crate) theirs: QpRef,
}

impl Pair {
    pub(crate) fn qp(&self, who: Who) -> QpRef {
        match who {
            Who::Ours => self.ours,
            Who::Theirs => self.theirs,
        }
    }
}

/// The exponent of an end's ACK timeout. Ours is 4.096 µs · 2^14 = 67 ms: an emulated guest is slow,
/// but not that slow. rxe waits for it whenever a READ response is lost (rxe_comp.c, check_psn), so
/// that its own is 17 ms.
fn timeout(who: Who) -> u8 {
    match who {
        Who::Ours => 14,
        Who::Theirs => 12,
    }
}

/// What both ends told of themselves.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) ours: About,
    pub(crate) theirs: About,
}

impl Ends {
    pub(crate) fn of(&self, who: Who) -> &About {
        match who {
            Who::Ours => &self.ours,
            Who::Theirs => &self.theirs,
        }
    }
}

/// Makes and connects a pair. `change` may alter how an end is connected.
pub(crate) fn connect(
    bench: &mut Bench,
    ends: &Ends,
    transport: Transport,
    mtu: Mtu,
    change: impl Fn(Who, &mut Connect),
) -> Result<Pair> {
    let ours = bench.at(Who::Ours, |side| side.qp(transport))?;
    let theirs = bench.at(Who::Theirs, |side| side.qp(transport))?;
    let pair = Pair { ours, theirs };
    for who in [Who::Ours, Who::Theirs] {
        let (sq_psn, rq_psn) = match who {
            Who::Ours => (OUR_PSN, THEIR_PSN),
            Who::Theirs => (THEIR_PSN, OUR_PSN),
        };
        let mut how = Connect {
            timeout: timeout(who),
            peer_qpn: pair.qp(who.other()).qpn,
            peer_gid: ends.of(who.other()).gid,
            sq_psn,
            rq_psn,
            mtu,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
        };
        change(who, &mut how);
        bench.at(who, |side| side.connect(pair.qp(who), &how))?;
    }
    Ok(pair)
}

pub(crate) fn disconnect(bench: &mut Bench, pair: Pair) -> Result<()> {
    for who in [Who::Ours, Who::Theirs] {
        bench.at(who, |side| side.destroy(pair.qp(who)))?;
    }
    Ok(())
}

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// The transport does not promise delivery, and a fault took the message.
    Lost,
    Fail(String),
}

/// Runs a cell, on a pair that was left by others or on one of its own. Where an earlier message may
/// still be under way, the pair is a new one.
pub(crate) fn run(
    bench: &mut Bench,
    ends: &Ends,
    spare: &mut Option<Pair>,
    cell: &Cell,
) -> Result<Outcome> {
    let attempts = if cell.fault == Fault::None { ATTEMPTS } else { ATTEMPTS_WITH_FAULT };
    for number in 1..=attempts {
        let first_with_fault = number == 1 && cell.fault != Fault::None;
        let before = bench.ours.relay.strikes();
        if first_with_fault {
            bench.ours.relay.make_strike(packets_to_strike(cell));
        }
        let pair = match spare.take() {
            Some(pair) => pair,
            None => connect(bench, ends, cell.transport, cell.mtu, |_, _| {})?,
        };
        let outcome = attempt(bench, ends, pair, cell)?;
        let struck = wait_for_strike(bench, cell, before)?;
        let clean = cell.transport == Transport::Rc || cell.fault == Fault::None;
        if outcome == Outcome::Pass && clean {
            *spare = Some(pair);
        } else {
            disconnect(bench, pair)?;
        }
        match outcome {
            Outcome::Pass if first_with_fault && !struck => {
                return Ok(Outcome::Fail("the fault struck no packet".into()));
            }
            Outcome::Lost if number < attempts => {}
            Outcome::Lost if !struck || !may_take(cell) => {}
            _ => return Ok(outcome),
        }
    }
    Ok(Outcome::Fail(format!("lost {attempts} times, and no fault took it")))
}

/// Whether a packet was struck since `before`. A WRITE over UC ends at the requester when it was
/// posted, and the packets may be still to come.
fn wait_for_strike(bench: &mut Bench, cell: &Cell, before: u64) -> Result<bool> {
    let end = Instant::now() + Duration::from_millis(MAY_COME_MS);
    while cell.fault != Fault::None && bench.ours.relay.strikes() == before && Instant::now() < end
    {
        bench.ours.progress()?;
    }
    Ok(bench.ours.relay.strikes() > before)
}

/// Among how many packets one is struck for certain: those of the message, where they go the
/// fault's way; else the first, for there may be but one.
fn packets_to_strike(cell: &Cell) -> u32 {
    let ours = (cell.role == Role::Requester) != (cell.op == Op::Read);
    let data = if ours { Way::Out } else { Way::In };
    match cell.fault {
        Fault::Loss(way) | Fault::Reorder(way) | Fault::Duplicate(way) if way == data => {
            packets(cell).min(8)
        }
        _ => 1,
    }
}

fn packets(cell: &Cell) -> u32 {
    cell.size.div_ceil(cell.mtu.bytes()).max(1)
}

/// Whether the fault can take a message of UC or UD: by loss, or by disorder among its packets.
fn may_take(cell: &Cell) -> bool {
    matches!(cell.fault, Fault::Loss(_)) || packets(cell) > 1
}

fn attempt(bench: &mut Bench, ends: &Ends, pair: Pair, cell: &Cell) -> Result<Outcome> {
    let asker = match cell.role {
        Role::Requester => Who::Ours,
        Role::Responder => Who::Theirs,
    };
    let mut trial = Trial { bench, ends, pair, cell, asker };
    match cell.op {
        Op::CmpSwp | Op::FetchAdd => trial.atomic(),
        Op::Read => trial.read(),
        _ => trial.deliver(),
    }
}

struct Trial<'a> {
    bench: &'a mut Bench,
    ends: &'a Ends,
    pair: Pair,
    cell: &'a Cell,
    asker: Who,
}

impl Trial<'_> {
    fn answerer(&self) -> Who {
        self.asker.other()
    }

    /// Whether the message may be lost and nobody told: without a fault too, because a link drops
    /// what its queue has no room for.
    fn may_be_lost(&self) -> bool {
        self.cell.transport != Transport::Rc
    }

    /// The seed of what is sent; what stands there before has the next one.
    fn seed(&self) -> u32 {
        self.cell.size % 97 + 1
    }

    /// Puts the old bytes and the guard where the operation's bytes will go.
    fn prepare(&mut self, who: Who) -> Result<()> {
        let (size, seed) = (self.cell.size, self.seed());
        self.bench.at(who, |side| {
            side.fill(TARGET, size, seed + 1)?;
            side.fill(TARGET + u64::from(size), GUARD, seed + 2)
        })
    }

    /// Compares what is there now.
    fn compare(&mut self, who: Who) -> Result<Outcome> {
        let (size, seed) = (self.cell.size, self.seed());
        let (wrong, beyond) = self.bench.at(who, |side| {
            let wrong = side.check(TARGET, size, seed)?;
            anyhow::Ok((wrong, side.check(TARGET + u64::from(size), GUARD, seed + 2)?))
        })?;
        Ok(match (wrong, beyond) {
            (_, Some(at)) => Outcome::Fail(format!("byte {at} beyond the message was written")),
            (Some(at), _) => Outcome::Fail(format!("byte {at} of the message differs")),
            (None, None) => Outcome::Pass,
        })
    }

    fn post(&mut self, offset: u64, target: u64, rkey: u32, argument: u64) -> Result<()> {
        let answerer = self.ends.of(self.answerer());
        let send = Send {
            wr_id: SEND_ID,
            op: self.cell.op,
            offset,
            length: self.cell.size,
            addr: answerer.addr + target,
            rkey,
            argument,
            swap: SWAP,
            peer_qpn: self.pair.qp(self.answerer()).qpn,
        };
        let qp = self.pair.qp(self.asker);
        self.bench.at(self.asker, |side| side.send(qp, &send))
    }

    /// The completion at one end, if it comes.
    fn take(&mut self, who: Who, milliseconds: u64) -> Result<Option<Done>> {
        let qp = self.pair.qp(who);
        Ok(self.bench.at(who, |side| side.poll(qp, 1, milliseconds))?.first().copied())
    }

    /// The asker's completion, as it must be.
    fn asked(&mut self, opcode: u32) -> Result<Result<(), Outcome>> {
        let Some(done) = self.take(self.asker, MUST_COME_MS)? else {
            return Ok(Err(Outcome::Fail("the requester got no completion".into())));
        };
        if done.status != WcStatus::Success {
            return Ok(Err(Outcome::Fail(format!("the requester's completion: {}", done.status))));
        }
        if (done.wr_id, done.opcode) != (SEND_ID, opcode) {
            return Ok(Err(Outcome::Fail(format!("the requester's completion is {done:?}"))));
        }
        Ok(Ok(()))
    }

    /// SEND and WRITE in all their forms.
    fn deliver(&mut self) -> Result<Outcome> {
        let (size, seed) = (self.cell.size, self.seed());
        let answerer = self.answerer();
        let qp = self.pair.qp(answerer);
        let grh = if self.cell.transport == Transport::Ud { GRH } else { 0 };
        self.bench.at(self.asker, |side| side.fill(SOURCE, size, seed))?;
        self.prepare(answerer)?;
        let mut argument = u64::from(IMM);
        if self.cell.op == Op::SendInv {
            let window = self.bench.at(answerer, |side| side.window(qp, SOURCE, 4096))?;
            argument = window.into();
        }
        let consumes = self.cell.op != Op::Write;
        if consumes {
            let at = TARGET - u64::from(grh);
            self.bench.at(answerer, |side| side.recv(qp, RECV_ID, at, size + grh))?;
        }
        let rkey = self.ends.of(answerer).rkey;
        self.post(SOURCE, TARGET, rkey, argument)?;

        let writes = matches!(self.cell.op, Op::Write | Op::WriteImm);
        let opcode = if writes { number::RDMA_WRITE } else { number::SEND };
        if let Err(outcome) = self.asked(opcode)? {
            return Ok(outcome);
        }
        if consumes {
            let wait = if self.may_be_lost() { MAY_COME_MS } else { MUST_COME_MS };
            match self.take(answerer, wait)? {
                None if self.may_be_lost() => return Ok(Outcome::Lost),
                None => return Ok(Outcome::Fail("the responder got no completion".into())),
                Some(done) => {
                    if let Some(wrong) = self.wrong_receive(&done, grh, argument) {
                        return Ok(Outcome::Fail(wrong));
                    }
                }
            }
        } else if self.may_be_lost() {
            self.settle(answerer)?;
        }
        if self.may_be_lost() && !consumes {
            return self.compare_part(answerer);
        }
        self.compare(answerer)
    }

    /// Compares a target that may have got a part of the message, or nothing.
    fn compare_part(&mut self, who: Who) -> Result<Outcome> {
        let (size, seed) = (self.cell.size, self.seed());
        let stray = self.bench.at(who, |side| side.mixed(TARGET, size, [seed, seed + 1]))?;
        if let Some(at) = stray {
            return Ok(Outcome::Fail(format!(
                "byte {at} is neither the message's nor the old one"
            )));
        }
        let whole = self.bench.at(who, |side| side.check(TARGET, size, seed))?.is_none();
        let beyond = TARGET + u64::from(size);
        if let Some(at) = self.bench.at(who, |side| side.check(beyond, GUARD, seed + 2))? {
            return Ok(Outcome::Fail(format!("byte {at} beyond the message was written")));
        }
        Ok(if whole { Outcome::Pass } else { Outcome::Lost })
    }

    /// Waits until a WRITE of UC, which completes at the requester when it has left, has arrived; not
    /// for ever, for nobody tells.
    fn settle(&mut self, who: Who) -> Result<()> {
        let (size, seed) = (self.cell.size, self.seed());
        for _ in 0..MAY_COME_MS / 5 {
            if self.bench.at(who, |side| side.check(TARGET, size, seed))?.is_none() {
                break;
            }
            self.take(self.asker, 5)?;
        }
        Ok(())
    }

    /// What is wrong with a receive's completion.
    fn wrong_receive(&self, done: &Done, grh: u32, argument: u64) -> Option<String> {
        if done.status != WcStatus::Success {
            return Some(format!("the responder's completion: {}", done.status));
        }
        let opcode = match self.cell.op {
            Op::WriteImm => number::RECV_RDMA_WITH_IMM,
            _ => number::RECV,
        };
        let length = self.cell.size + grh;
        if (done.wr_id, done.opcode, done.length) != (RECV_ID, opcode, length) {
            return Some(format!("the responder's completion is {done:?}"));
        }
        let (flag, value) = match self.cell.op {
            Op::SendImm | Op::WriteImm => (number::WITH_IMM, IMM),
            Op::SendInv => (number::WITH_INV, argument as u32),
            _ => return None,
        };
        if done.imm != value {
            return Some(format!("the responder is told of {:#x}, not {value:#x}", done.imm));
        }
        (done.flags & flag == 0)
            .then(|| format!("the responder's completion has flags {}", done.flags))
    }

    fn read(&mut self) -> Result<Outcome> {
        let (size, seed) = (self.cell.size, self.seed());
        let answerer = self.answerer();
        self.bench.at(answerer, |side| side.fill(SOURCE, size, seed))?;
        self.prepare(self.asker)?;
        let rkey = self.ends.of(answerer).rkey;
        self.post(TARGET, SOURCE, rkey, 0)?;
        if let Err(outcome) = self.asked(number::RDMA_READ)? {
            return Ok(outcome);
        }
        self.compare(self.asker)
    }

    fn atomic(&mut self) -> Result<Outcome> {
        let answerer = self.answerer();
        let seed = if self.cell.op == Op::CmpSwp { COMPARE_SEED } else { ADDEND_SEED };
        let before = self.bench.at(answerer, |side| {
            side.fill(WORD, 8, seed)?;
            side.word(WORD)
        })?;
        self.prepare(self.asker)?;
        let rkey = self.ends.of(answerer).rkey;
        let (argument, after, opcode) = match self.cell.op {
            Op::CmpSwp => (before, SWAP, number::COMP_SWAP),
            _ => (ADD, before.wrapping_add(ADD), number::FETCH_ADD),
        };
        self.post(TARGET, WORD, rkey, argument)?;
        if let Err(outcome) = self.asked(opcode)? {
            return Ok(outcome);
        }
        let found = self.bench.at(answerer, |side| side.word(WORD))?;
        let guard = self.seed() + 2;
        let (got, beyond) = self.bench.at(self.asker, |side| {
            let got = side.word(TARGET)?;
            anyhow::Ok((got, side.check(TARGET + 8, GUARD, guard)?))
        })?;
        if found != after {
            return Ok(Outcome::Fail(format!("the word is {found:#x}, not {after:#x}")));
        }
        if got != before {
            return Ok(Outcome::Fail(format!("the requester got {got:#x}, not {before:#x}")));
        }
        if let Some(at) = beyond {
            return Ok(Outcome::Fail(format!("byte {at} beyond the answer was written")));
        }
        Ok(Outcome::Pass)
    }
}
