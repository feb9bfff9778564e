//! What WRs do to memory: after each success, and to every byte at the end of a run.

use std::collections::{BTreeMap, BTreeSet};

use elver_verbs::QpType;

use super::arena::{Chunk, Claim};
use super::{
    Arena, Cell, CellKind, Effect, LaneId, Model, Op, OpId, Owner, QueueId, State, Violation,
    message_id,
};
use crate::network::Network;
use crate::pattern::Stream;

/// So many additions of unknown fate are tried in all combinations; of more, only their sum counts.
const COMBINED_MAX: usize = 12;

fn message(op: OpId) -> Stream {
    Stream::Payload(u64::from(message_id(op)))
}

impl Model {
    /// Checks what a WR that has just succeeded must have done.
    pub(super) fn check_effect(&self, id: OpId) -> Result<(), Violation> {
        let op = &self.ops[id];
        if !self.source(id).qp_type.is_reliable() {
            return Ok(());
        }
        match op.effect {
            Effect::None | Effect::Add { .. } => Ok(()),
            Effect::Write(_) => self.check_written(id),
            Effect::Overwrite(cell) => self.check_overwritten(cell, id),
            Effect::Read(stream, offset) => self.check_fetched(id, stream, offset),
            Effect::Swap { expected, .. } => {
                let found = self.fetched_word(id);
                if found == expected {
                    return Ok(());
                }
                Err(Violation::new(format!(
                    "WR {id} swapped a word that held {found:#x}, but it must have held {expected:#x}"
                )))
            }
        }
    }

    /// Checks that all of a WRITE is there.
    pub(super) fn check_written(&self, id: OpId) -> Result<(), Violation> {
        let Effect::Write(range) = self.ops[id].effect else { return Ok(()) };
        let (stream, from) = self.ops[id].content;
        let arena = self.arena(range);
        if arena.lost || arena.look(range, |bytes| stream.matches(from, bytes)) {
            return Ok(());
        }
        Err(Violation::new(format!("WR {id} is done, but its {} bytes are not written", range.len)))
    }

    fn check_overwritten(&self, cell: usize, id: OpId) -> Result<(), Violation> {
        let Cell { range, kind: CellKind::Overwritten(ops) } = &self.cells[cell] else {
            return Ok(());
        };
        let arena = self.arena(*range);
        let since = &ops[ops.partition_point(|op| *op < id)..];
        let all = |bytes: &[u8]| self.written_over(since, bytes) == bytes.len();
        if arena.lost || arena.look(*range, all) {
            return Ok(());
        }
        Err(Violation::new(format!(
            "the range that WR {id} wrote holds neither its bytes nor a later WRITE's"
        )))
    }

    fn check_fetched(&self, id: OpId, stream: Stream, offset: u64) -> Result<(), Violation> {
        let mut skip = 0;
        for range in &self.ops[id].local {
            let at = offset + skip;
            if !self.arena(*range).look(*range, |bytes| stream.matches(at, bytes)) {
                return Err(Violation::new(format!(
                    "WR {id} has read other bytes than its target holds, {skip} bytes into it or later"
                )));
            }
            skip += u64::from(range.len);
        }
        Ok(())
    }

    /// What an atomic brought back.
    fn fetched_word(&self, id: OpId) -> u64 {
        let mut word = Vec::with_capacity(8);
        for range in &self.ops[id].local {
            word.extend(self.arena(*range).read(*range));
        }
        word.try_into().map_or(0, u64::from_ne_bytes)
    }

    /// Checks all of memory and every message, when nothing is on its way any more.
    pub(crate) fn check_end(&self, network: &Network) -> Result<(), Violation> {
        let stained = self.stained_queues();
        for arena in self.arenas.iter().filter(|arena| !arena.lost) {
            for chunk in &arena.chunks {
                self.check_chunk(arena, chunk, &stained)?;
            }
        }
        for cell in &self.cells {
            self.check_cell(cell)?;
        }
        self.check_order()?;
        for (id, op) in self.ops.iter().enumerate() {
            self.check_received(id, op, network)?;
        }
        Ok(())
    }

    /// Queues whose receives may hold parts of messages that never ended.
    fn stained_queues(&self) -> BTreeSet<QueueId> {
        let uncertain = |(id, op): (OpId, &Op)| {
            let uncertain =
                op.planted.is_some() || !op.succeeded() || self.source(id).qp_type == QpType::Uc;
            if uncertain { self.target(id).queue } else { None }
        };
        let overflown = (0..self.queues.len()).filter(|queue| self.queues[*queue].overflown);
        self.ops.iter().enumerate().filter_map(uncertain).chain(overflown).collect()
    }

    fn check_chunk(
        &self,
        arena: &Arena,
        chunk: &Chunk,
        stained: &BTreeSet<QueueId>,
    ) -> Result<(), Violation> {
        let bytes = chunk.memory.view();
        if chunk.frozen.as_ref().is_some_and(|frozen| frozen[..] != bytes[..]) {
            return Err(Violation::new(format!(
                "host {}: the region at {:#x} was changed after peers had lost it",
                arena.host, chunk.info.addr
            )));
        }
        let mut claims: Vec<&Claim> = chunk.claims.iter().collect();
        claims.sort_by_key(|claim| claim.offset);
        let untouched = |from: usize, to: usize| {
            if chunk.fill.matches(from as u64, &bytes[from..to]) {
                return Ok(());
            }
            let good = chunk.fill.common(from as u64, &bytes[from..to]);
            Err(Violation::new(format!(
                "host {}: a byte changed that no WR names, at address {:#x}",
                arena.host,
                chunk.info.addr + (from + good) as u64
            )))
        };
        let mut at = 0;
        for claim in claims {
            let (from, to) = (claim.offset as usize, (claim.offset + claim.len) as usize);
            untouched(at, from)?;
            self.check_claim(claim, chunk, &bytes[from..to], stained)?;
            at = to;
        }
        untouched(at, bytes.len())
    }

    fn check_claim(
        &self,
        claim: &Claim,
        chunk: &Chunk,
        bytes: &[u8],
        stained: &BTreeSet<QueueId>,
    ) -> Result<(), Violation> {
        let fill_at = u64::from(claim.offset);
        match claim.owner {
            Owner::Message { op, skip } => {
                if message(op).matches(u64::from(skip), bytes) {
                    return Ok(());
                }
                Err(Violation::new(format!("WR {op} changed the memory that it only sent from")))
            }
            Owner::Written(op) => self.check_write_end(op, chunk, fill_at, bytes),
            Owner::Fetched { op, skip } => self.check_fetch_end(op, skip, chunk, fill_at, bytes),
            Owner::Received { recv, skip } => {
                let received = &self.recvs[recv];
                let stained = stained.contains(&received.queue);
                let (start, len) = match received.got {
                    Some((op, head)) if matches!(self.ops[op].effect, Effect::None) => {
                        (head, head + self.ops[op].len)
                    }
                    Some((_, head)) => (head, head),
                    None => (0, 0),
                };
                let end = skip + bytes.len() as u32;
                let part =
                    |from: u32, to: u32| &bytes[(from - skip) as usize..(to - skip) as usize];
                let (from, to) = (skip.max(start), end.min(len));
                let intact = from >= to
                    || received.got.is_some_and(|(op, _)| {
                        message(op).matches(u64::from(from - start), part(from, to))
                    });
                let beyond = skip.max(len).min(end);
                let fill_at = fill_at + u64::from(beyond - skip);
                // A SEND within a device that has to wait may have begun to fill another receive.
                let stained = stained || self.late_memory;
                if !intact || !(stained || chunk.fill.matches(fill_at, part(beyond, end))) {
                    return Err(Violation::new(format!(
                        "receive {recv} was changed, after or beyond its message"
                    )));
                }
                Ok(())
            }
            Owner::Cell => Ok(()),
        }
    }

    /// A WRITE has written all or, if it failed, a beginning in whole packets.
    fn check_write_end(
        &self,
        id: OpId,
        chunk: &Chunk,
        fill_at: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let op = &self.ops[id];
        let source = self.source(id);
        let (stream, from) = op.content;
        let good = stream.common(from, bytes);
        if good == bytes.len() && op.planted.is_none() {
            return Ok(());
        }
        if op.succeeded() && source.qp_type.is_reliable() {
            return Err(Violation::new(format!(
                "the bytes that WR {id} wrote were changed later, at byte {good}"
            )));
        }
        let mtu = op.mtu as usize;
        let whole = if op.planted.is_some_and(|planted| planted != super::Planted::LocalKey) {
            0
        } else if self.late_memory && source.host == self.target(id).host {
            // A copy within a device may have waited in the middle of a packet.
            good
        } else {
            good / mtu * mtu
        };
        if chunk.fill.matches(fill_at + whole as u64, &bytes[whole..]) {
            return Ok(());
        }
        Err(Violation::new(format!(
            "WR {id} did not succeed and left other bytes than a beginning of its own"
        )))
    }

    fn check_fetch_end(
        &self,
        id: OpId,
        skip: u32,
        chunk: &Chunk,
        fill_at: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let op = &self.ops[id];
        let Effect::Read(stream, offset) = op.effect else { return Ok(()) };
        let good = stream.common(offset + u64::from(skip), bytes);
        let rest_untouched = chunk.fill.matches(fill_at + good as u64, &bytes[good..]);
        if good == bytes.len() || (!op.succeeded() && rest_untouched) {
            return Ok(());
        }
        Err(Violation::new(format!(
            "what WR {id} has read is wrong, or was changed later, {} bytes into it",
            skip as usize + good
        )))
    }

    fn check_cell(&self, cell: &Cell) -> Result<(), Violation> {
        let arena = self.arena(cell.range);
        if arena.lost {
            return Ok(());
        }
        match &cell.kind {
            CellKind::Overwritten(ops) => {
                let reliable = |op: &OpId| self.source(*op).qp_type.is_reliable();
                let last = ops.iter().rposition(|op| self.ops[*op].succeeded() && reliable(op));
                let since = &ops[last.unwrap_or(0)..];
                let fill = arena.fill(cell.range);
                let right = arena.look(cell.range, |bytes| {
                    let at = self.written_over(since, bytes);
                    let rest = &bytes[at..];
                    at == bytes.len()
                        || (last.is_none()
                            && fill.matches(u64::from(cell.range.offset) + at as u64, rest))
                });
                if right {
                    return Ok(());
                }
                Err(Violation::new(format!(
                    "a range that WRs {ops:?} wrote in this order does not hold what the last wrote"
                )))
            }
            CellKind::Swapped { ops, values } => {
                let last = ops.iter().rposition(|op| self.ops[*op].succeeded());
                let found = arena.word(cell.range);
                if values[last.map_or(0, |last| last + 1)..].contains(&found) {
                    return Ok(());
                }
                Err(Violation::new(format!(
                    "a word that WRs {ops:?} swapped holds {found:#x}, which none of them left"
                )))
            }
            CellKind::Counter { initial, ops } => {
                self.check_counter(*initial, ops, arena.word(cell.range))
            }
        }
    }

    /// How many of the bytes of a range are what one of the `ops` wrote over all of it, the last over
    /// those before. One that waited within a device may have written a beginning alone.
    fn written_over(&self, ops: &[OpId], bytes: &[u8]) -> usize {
        let mut at = 0;
        for id in ops.iter().rev() {
            let good = message(*id).common(at as u64, &bytes[at..]);
            let source = self.source(*id);
            let whole = self.ops[*id].succeeded() && source.qp_type.is_reliable();
            let partly = self.late_memory && !whole && source.host == self.target(*id).host;
            if partly || at + good == bytes.len() {
                at += good;
            }
        }
        at
    }

    /// Additions that succeeded took disjoint steps, in the order of each lane; what lies between
    /// them was added by WRs of unknown fate.
    fn check_counter(&self, initial: u64, ops: &[OpId], found: u64) -> Result<(), Violation> {
        let mut steps = Vec::new();
        let mut unknown = Vec::new();
        let mut latest: BTreeMap<LaneId, u64> = BTreeMap::new();
        for id in ops {
            let op = &self.ops[*id];
            let Effect::Add { add, .. } = op.effect else { continue };
            if op.planted.is_some() {
                continue;
            }
            if !op.succeeded() {
                unknown.push(add);
                continue;
            }
            let from = self.fetched_word(*id).wrapping_sub(initial);
            if latest.insert(op.lane, from).is_some_and(|before| before >= from) {
                return Err(Violation::new(format!(
                    "WR {id} added before a WR that was posted earlier to its queue"
                )));
            }
            steps.push((from, add, *id));
        }
        steps.sort_unstable();
        let mut end = 0;
        let mut missing = 0;
        for (from, add, id) in steps {
            if from < end {
                return Err(Violation::new(format!(
                    "WR {id} fetched {from} more than the first value, but {end} had been added"
                )));
            }
            missing += from - end;
            end = from + add;
        }
        let total = found.wrapping_sub(initial);
        if total >= end && sums_to(&unknown, missing + total - end) {
            return Ok(());
        }
        Err(Violation::new(format!(
            "a counter grew by {total}, which the WRs that added to it do not explain"
        )))
    }

    /// Of one lane, between two restarts, what took effect is a beginning of what was posted.
    fn check_order(&self) -> Result<(), Violation> {
        let mut missing: BTreeMap<(LaneId, u32), OpId> = BTreeMap::new();
        for (id, op) in self.ops.iter().enumerate() {
            if !self.source(id).qp_type.is_reliable() {
                continue;
            }
            let Some(applied) = self.was_applied(id, op) else { continue };
            let key = (op.lane, op.epoch);
            match (applied, missing.get(&key)) {
                (true, Some(before)) => {
                    return Err(Violation::new(format!(
                        "WR {id} took effect, but WR {before} before it on its queue did not"
                    )));
                }
                (false, None) => {
                    missing.insert(key, id);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a WR took effect, where that can be told.
    fn was_applied(&self, id: OpId, op: &Op) -> Option<bool> {
        if op.planted.is_some() {
            return None;
        }
        match op.effect {
            Effect::Write(range) if range.len > 0 && !self.arena(range).lost => {
                let arena = self.arena(range);
                let fill = arena.fill(range);
                let offset = u64::from(range.offset);
                let changed = arena.look(range, |bytes| !fill.matches(offset, bytes));
                // A few bytes may happen to be the same before and after.
                let (stream, from) = op.content;
                let same = arena.look(range, |bytes| stream.matches(from, bytes));
                if changed || !same { Some(changed) } else { None }
            }
            Effect::None
                if op.takes_receive()
                    && !self.arenas[self.target(id).arena].lost
                    && !self.loses_completions(id) =>
            {
                Some(op.delivered > 0)
            }
            _ => None,
        }
    }

    /// Whether a WR's target lost completions of receives, so that nobody knows what it received.
    fn loses_completions(&self, id: OpId) -> bool {
        self.target(id).queue.is_some_and(|queue| self.queues[queue].overflown)
    }

    /// A message that was sent with success was received, unless its transport may lose it.
    fn check_received(&self, id: OpId, op: &Op, network: &Network) -> Result<(), Violation> {
        if op.state == State::Outstanding {
            return Err(Violation::new(format!("WR {id} never completed")));
        }
        if !op.takes_receive() || !op.succeeded() || op.delivered > 0 || op.planted.is_some() {
            return Ok(());
        }
        let (source, target) = (self.source(id), self.target(id));
        if self.loses_completions(id) {
            return Ok(());
        }
        let late = target.queue.is_some_and(|queue| self.queues[queue].late);
        let may_be_lost = !source.qp_type.is_reliable()
            && (network.disturbed(source.host, target.host)
                || network.copies(target.qpn) > 0
                || late
                || self.late_memory
                || target.ever_interrupted);
        if may_be_lost {
            return Ok(());
        }
        Err(Violation::new(format!(
            "WR {id}, {:?} on {}, succeeded, but its message was never received",
            op.opcode, source.qp_type
        )))
    }
}

/// Whether some of `parts` make up `sum`.
fn sums_to(parts: &[u64], sum: u64) -> bool {
    if parts.len() > COMBINED_MAX {
        return sum <= parts.iter().sum();
    }
    let mut sums = BTreeSet::from([0]);
    for part in parts {
        let with: Vec<u64> = sums.iter().map(|sum| sum + part).collect();
        sums.extend(with);
    }
    sums.contains(&sum)
}
