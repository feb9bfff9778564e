//! What a WR does at its target: where it writes, reads and counts, and what is wrong with it.

use elver_verbs::{RemoteAddr, SendOpcode};

use super::{Aim, KEY_FLIP, NOWHERE, WORD};
use crate::model::{
    Cell, CellId, CellKind, Effect, EndpointId, LaneId, Owner, Phase, Planted, Range, Room,
    Violation, Window, WindowState,
};
use crate::world::World;

/// Bytes that several WRITEs of a lane write: one packet at any MTU, so that it is written whole.
const OVERWRITTEN_BYTES: u64 = 200;
/// Most that one addition adds: sums stay far below the wrap.
const ADD_MAX: u64 = 1 << 32;
/// Counters of a host that many lanes add to.
const COUNTERS: usize = 2;

impl World {
    /// Chooses what a WR does at its target.
    pub(super) fn aim(
        &mut self,
        lane: LaneId,
        dest: EndpointId,
        opcode: SendOpcode,
        len: u32,
        planted: Option<Planted>,
    ) -> Result<Aim, Violation> {
        let one_sided =
            !matches!(opcode, SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv);
        if !one_sided || self.model.endpoints[dest].phase == Phase::Gone {
            return Ok(NOWHERE);
        }
        if let Some(planted) = planted
            && planted != Planted::LocalKey
        {
            return self.aim_badly(dest, opcode, len, planted);
        }
        match opcode {
            SendOpcode::CompareSwap => self.aim_swap(lane, dest),
            SendOpcode::FetchAdd => self.aim_add(dest),
            SendOpcode::Read => self.aim_read(lane, dest, len),
            _ => {
                let plain = opcode == SendOpcode::Write && planted.is_none();
                if plain && self.posting.percent(20) {
                    return self.aim_overwrite(lane, dest);
                }
                let reliable = self.model.endpoints[dest].qp_type.is_reliable();
                if (plain || reliable)
                    && planted.is_none()
                    && let Some(aim) = self.aim_through_window(dest, len, Effect::Write)
                {
                    return Ok(aim);
                }
                let room = if plain { self.room() } else { Room::Open };
                self.aim_write(dest, len, room)
            }
        }
    }

    /// Aims a WRITE at a range of its own.
    pub(super) fn aim_fresh(&mut self, dest: EndpointId, len: u32) -> Result<Aim, Violation> {
        if self.model.endpoints[dest].phase == Phase::Gone {
            return Ok(NOWHERE);
        }
        self.aim_write(dest, len, Room::Open)
    }

    /// Where a peer's range lies: where runs meddle, sometimes in what may be deregistered.
    fn room(&mut self) -> Room {
        if self.plan.meddles && self.posting.percent(30) { Room::Mortal } else { Room::Open }
    }

    fn aim_write(&mut self, dest: EndpointId, len: u32, room: Room) -> Result<Aim, Violation> {
        let host = self.model.endpoints[dest].host;
        let range = self.take(host, room, len, false)?;
        let id = self.model.ops.len();
        self.model.arenas[range.arena].claim(range, Owner::Written(id));
        let mortal = self.model.arena(range).mortal(range);
        Ok(Aim { effect: Effect::Write(range), remote: self.remote(range), window: None, mortal })
    }

    /// Aims at something that must be refused. The range is a WRITE's that must write nothing.
    fn aim_badly(
        &mut self,
        dest: EndpointId,
        opcode: SendOpcode,
        len: u32,
        planted: Planted,
    ) -> Result<Aim, Violation> {
        let room = match planted {
            Planted::RemoteRights => Room::Closed,
            Planted::RemoteDomain => Room::Foreign,
            _ => Room::Open,
        };
        let host = self.model.endpoints[dest].host;
        let atomic = matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd);
        let range = self.take(host, room, len, atomic)?;
        let mut remote = self.remote(range);
        match planted {
            Planted::RemoteKey => remote.rkey ^= KEY_FLIP,
            Planted::RemoteRange => {
                let info = self.model.arenas[range.arena].info(range);
                remote.addr = info.addr + info.length - u64::from(if atomic { 0 } else { len - 1 });
            }
            Planted::Misaligned => remote.addr += 1,
            Planted::RemoteDeregistered => {
                let chunks = &self.model.arenas[self.model.endpoints[dest].arena].chunks;
                match chunks.iter().find(|chunk| chunk.room == Room::Dead) {
                    Some(chunk) => {
                        let info = &chunk.info;
                        remote = RemoteAddr { addr: info.addr, rkey: info.rkey };
                    }
                    None => remote.rkey ^= KEY_FLIP,
                }
            }
            Planted::RemoteVanished => {
                if let Some(chunk) = self.vanished(dest) {
                    let info =
                        &self.model.arenas[self.model.endpoints[dest].arena].chunks[chunk].info;
                    remote = RemoteAddr { addr: info.addr, rkey: info.rkey };
                }
            }
            Planted::StaleWindow => {
                let endpoints = &self.model.endpoints;
                let arena = endpoints[dest].arena;
                // Invalidated, or open to the peer of another QP only.
                let stale = |window: &Window| match window.state {
                    WindowState::Closed => window.owner == dest,
                    WindowState::Open => {
                        window.owner != dest && endpoints[window.owner].arena == arena
                    }
                    _ => false,
                };
                match self.model.windows.iter().find(|window| stale(window)) {
                    Some(window) => {
                        remote.rkey = window.rkey;
                        remote.addr = self.remote(window.range).addr;
                    }
                    None => remote.rkey ^= KEY_FLIP,
                }
            }
            _ => {}
        }
        let effect = if atomic || opcode == SendOpcode::Read {
            Effect::None
        } else {
            let id = self.model.ops.len();
            self.model.arenas[range.arena].claim(range, Owner::Written(id));
            Effect::Write(range)
        };
        Ok(Aim { effect, remote, window: None, mortal: None })
    }

    /// A region of an endpoint's host whose memory has gone.
    pub(super) fn vanished(&self, dest: EndpointId) -> Option<usize> {
        let chunks = &self.model.arenas[self.model.endpoints[dest].arena].chunks;
        chunks.iter().position(|chunk| chunk.room == Room::Vanished)
    }

    fn aim_overwrite(&mut self, lane: LaneId, dest: EndpointId) -> Result<Aim, Violation> {
        let known = self.model.lanes[lane].overwrites.get(&dest).copied();
        let cell = match known {
            Some(cell) => cell,
            None => {
                let len = self.posting.between(1, OVERWRITTEN_BYTES) as u32;
                let host = self.model.endpoints[dest].host;
                let range = self.take(host, Room::Open, len, false)?;
                let cell = self.add_cell(range, CellKind::Overwritten(Vec::new()));
                self.model.lanes[lane].overwrites.insert(dest, cell);
                cell
            }
        };
        let range = self.model.cells[cell].range;
        let remote = self.remote(range);
        Ok(Aim { effect: Effect::Overwrite(cell), remote, window: None, mortal: None })
    }

    fn add_cell(&mut self, range: Range, kind: CellKind) -> CellId {
        self.model.arenas[range.arena].claim(range, Owner::Cell);
        self.model.cells.push(Cell { range, kind });
        self.model.cells.len() - 1
    }

    fn aim_swap(&mut self, lane: LaneId, dest: EndpointId) -> Result<Aim, Violation> {
        let known = self.model.lanes[lane].swaps.get(&dest).copied();
        let cell = match known {
            Some(cell) => cell,
            None => {
                let host = self.model.endpoints[dest].host;
                let range = self.take(host, Room::Open, WORD, true)?;
                let values = vec![self.model.arenas[range.arena].word(range)];
                let cell = self.add_cell(range, CellKind::Swapped { ops: Vec::new(), values });
                self.model.lanes[lane].swaps.insert(dest, cell);
                cell
            }
        };
        let Cell { range, kind } = &self.model.cells[cell];
        let expected = match kind {
            CellKind::Swapped { values, .. } => values.last().copied().unwrap_or(0),
            CellKind::Overwritten(_) | CellKind::Counter { .. } => 0,
        };
        let remote = self.remote(*range);
        Ok(Aim { effect: Effect::Swap { cell, expected }, remote, window: None, mortal: None })
    }

    fn aim_add(&mut self, dest: EndpointId) -> Result<Aim, Violation> {
        let endpoint = &self.model.endpoints[dest];
        let (host, arena) = (endpoint.host, endpoint.arena);
        let counters: Vec<CellId> = (0..self.model.cells.len())
            .filter(|cell| {
                let cell = &self.model.cells[*cell];
                matches!(cell.kind, CellKind::Counter { .. }) && cell.range.arena == arena
            })
            .collect();
        let cell = if counters.len() < COUNTERS {
            let range = self.take(host, Room::Open, WORD, true)?;
            let initial = self.model.arenas[range.arena].word(range);
            self.add_cell(range, CellKind::Counter { initial, ops: Vec::new() })
        } else {
            self.posting.pick(&counters)
        };
        let add = self.posting.between(1, ADD_MAX);
        let remote = self.remote(self.model.cells[cell].range);
        Ok(Aim { effect: Effect::Add { cell, add }, remote, window: None, mortal: None })
    }

    /// Reads what nobody writes, or what an earlier WRITE of the same lane wrote.
    fn aim_read(&mut self, lane: LaneId, dest: EndpointId, len: u32) -> Result<Aim, Violation> {
        if let Some(aim) = self.aim_through_window(dest, len, |_| Effect::None) {
            return Ok(aim);
        }
        let written: Vec<_> = self.model.lanes[lane]
            .posted
            .iter()
            .filter_map(|id| match self.model.ops[*id].effect {
                Effect::Write(range)
                    if self.model.ops[*id].dest == dest
                        && self.model.ops[*id].planted.is_none()
                        && !self.model.was_bereft(&self.model.ops[*id])
                        && range.len >= len =>
                {
                    Some((self.model.ops[*id].content, range))
                }
                _ => None,
            })
            .collect();
        if !written.is_empty() && self.posting.percent(50) {
            let ((stream, offset), range) = self.posting.pick(&written);
            let skip = self.posting.between(0, u64::from(range.len - len)) as u32;
            let remote = self.remote(range.part(skip, len));
            let effect = Effect::Read(stream, offset + u64::from(skip));
            let mortal = self.model.arena(range).mortal(range);
            return Ok(Aim { effect, remote, window: None, mortal });
        }
        let host = self.model.endpoints[dest].host;
        let room = self.room();
        let range = self.take(host, room, len, false)?;
        let mortal = self.model.arena(range).mortal(range);
        Ok(Aim { effect: self.reads(range), remote: self.remote(range), window: None, mortal })
    }
}
