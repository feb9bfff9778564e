use elver_rnic::Rnic;
use elver_verbs::{AccessFlags, Memory, MrInfo, Pd, Sge, VerbsError};

use super::{ArenaId, OpId, RecvId, Violation};
use crate::memory::SimMemory;
use crate::pattern::Stream;
use crate::plan::LATE_NS;
use crate::rng::Rng;

/// Bytes of a chunk, unless a single range needs more.
const CHUNK_BYTES: u32 = 32 * 1024;
/// Most bytes between two ranges that nobody may touch.
const GAP_BYTES: u64 = 24;
/// Alignment of atomics.
const WORD: u32 = 8;

/// What peers may do with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Everything.
    Open,
    /// Nothing.
    Closed,
    /// Everything, but in another protection domain.
    Foreign,
    /// Everything, until it is deregistered.
    Mortal,
    /// It was deregistered: nothing.
    Dead,
    /// Everything, but its memory is gone.
    Vanished,
}

/// A part of a host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) arena: ArenaId,
    pub(crate) chunk: usize,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// Whose a range is, which says what it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The message of a WR from `skip` on: sent from here, and never changed.
    Message { op: OpId, skip: u32 },
    /// What a WR fetches, from `skip` on.
    Fetched { op: OpId, skip: u32 },
    /// What a WRITE writes.
    Written(OpId),
    /// A receive, from `skip` on.
    Received { recv: RecvId, skip: u32 },
    /// Shared by several WRs; checked as a cell.
    Cell,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) owner: Owner,
}

#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) memory: SimMemory,
    pub(crate) info: MrInfo,
    /// What it holds where nothing was written.
    pub(crate) fill: Stream,
    pub(crate) claims: Vec<Claim>,
    pub(crate) room: Room,
    /// It may not be at hand.
    late: bool,
    /// What it held when peers lost it, and holds ever after.
    pub(crate) frozen: Option<Vec<u8>>,
    used: u32,
}

/// The registered memory of a host, between two crashes. It grows as ranges are taken, and never
/// gives one twice.
#[derive(Debug)]
pub(crate) struct Arena {
    id: ArenaId,
    pub(crate) host: usize,
    pd: Pd,
    foreign: Pd,
    pub(crate) chunks: Vec<Chunk>,
    /// The host has crashed: this memory is gone.
    pub(crate) lost: bool,
    /// How many in a hundred copies to or from it its device cannot make by itself.
    late_percent: u32,
}

impl Arena {
    pub(crate) fn new(id: ArenaId, host: usize, pd: Pd, foreign: Pd, late_percent: u32) -> Arena {
        Arena { id, host, pd, foreign, chunks: Vec::new(), lost: false, late_percent }
    }

    /// Takes a range that is no one's, `steady` if it must be at hand.
    pub(crate) fn take(
        &mut self,
        rnic: &mut Rnic<SimMemory>,
        rng: &mut Rng,
        room: Room,
        len: u32,
        aligned: bool,
        steady: bool,
    ) -> Result<Range, Violation> {
        let gap = rng.below(GAP_BYTES) as u32;
        let place = |chunk: &Chunk| {
            let at = chunk.used + gap;
            if aligned { at.next_multiple_of(WORD) } else { at }
        };
        let fits = |chunk: &Chunk| {
            let fits = u64::from(place(chunk) + len) <= chunk.info.length;
            chunk.room == room && fits && !(steady && chunk.late)
        };
        let chunk = match self.chunks.iter().rposition(fits) {
            Some(chunk) => chunk,
            None => self.grow(rnic, rng, room, len, steady)?,
        };
        let offset = place(&self.chunks[chunk]);
        self.chunks[chunk].used = offset + len;
        Ok(Range { arena: self.id, chunk, offset, len })
    }

    fn grow(
        &mut self,
        rnic: &mut Rnic<SimMemory>,
        rng: &mut Rng,
        room: Room,
        len: u32,
        steady: bool,
    ) -> Result<usize, Violation> {
        let local = AccessFlags::LOCAL_WRITE;
        let remote = AccessFlags::REMOTE_CHANGES | AccessFlags::REMOTE_READ | AccessFlags::MW_BIND;
        let (pd, mut access) = match room {
            Room::Open | Room::Mortal | Room::Dead | Room::Vanished => (self.pd, local | remote),
            Room::Closed => (self.pd, local),
            Room::Foreign => (self.foreign, local | remote),
        };
        let index = self.chunks.len();
        let fill = Stream::Fill(((self.id as u64) << 16) | index as u64);
        let size = CHUNK_BYTES.max(len + GAP_BYTES as u32 + WORD).next_multiple_of(WORD);
        let mut bytes = vec![0; size as usize];
        fill.write(0, &mut bytes);
        // Far apart, so that an address that is off by a little hits nothing else.
        let base = ((self.id as u64 + 1) << 40) | (index as u64 + 1) << 28;
        let memory = SimMemory::new(bytes, base);
        let late = self.late_percent > 0 && !steady;
        if late {
            memory.recede(self.late_percent, LATE_NS, Rng::new(base));
        }
        let iova = match rng.below(4) {
            0 => {
                access |= AccessFlags::ZERO_BASED;
                None
            }
            1 => Some(base ^ 1 << 60),
            _ => None,
        };
        let info = rnic
            .reg_mr(pd, memory.clone(), iova, access)
            .map_err(|error| Violation::new(format!("reg_mr was refused: {error}")))?;
        let claims = Vec::new();
        self.chunks.push(Chunk { memory, info, fill, claims, room, late, frozen: None, used: 0 });
        Ok(index)
    }

    pub(crate) fn claim(&mut self, range: Range, owner: Owner) {
        let Range { offset, len, .. } = range;
        if len == 0 {
            return;
        }
        self.chunks[range.chunk].claims.push(Claim { offset, len, owner });
    }

    /// The chunk of a range, if peers may lose it, or have.
    pub(crate) fn mortal(&self, range: Range) -> Option<(ArenaId, usize)> {
        let room = self.chunk(range).room;
        let mortal = matches!(room, Room::Mortal | Room::Dead | Room::Vanished);
        mortal.then_some((self.id, range.chunk))
    }

    /// For how long all of it may keep others waiting, in nanoseconds.
    pub(crate) fn late_ns(&self) -> u64 {
        self.chunks.iter().filter(|chunk| chunk.late).count() as u64 * LATE_NS
    }

    /// Deregisters a chunk, if nothing of it is being copied; whether it did.
    pub(crate) fn deregister(
        &mut self,
        rnic: &mut Rnic<SimMemory>,
        chunk: usize,
    ) -> Result<bool, Violation> {
        let chunk = &mut self.chunks[chunk];
        match rnic.dereg_mr(chunk.info.mr) {
            Ok(()) => {}
            Err(VerbsError::InUse { .. }) if chunk.late => return Ok(false),
            Err(error) => return Err(Violation::new(format!("dereg_mr was refused: {error}"))),
        }
        chunk.room = Room::Dead;
        chunk.frozen = Some(chunk.memory.view().to_vec());
        Ok(true)
    }

    /// Takes the memory from under a chunk's region.
    pub(crate) fn vanish(&mut self, chunk: usize) {
        let chunk = &mut self.chunks[chunk];
        chunk.memory.set_gone(true);
        chunk.room = Room::Vanished;
        chunk.frozen = Some(chunk.memory.view().to_vec());
    }

    fn chunk(&self, range: Range) -> &Chunk {
        &self.chunks[range.chunk]
    }

    /// Address of a range in WRs.
    pub(crate) fn address(&self, range: Range) -> u64 {
        self.chunk(range).info.addr + u64::from(range.offset)
    }

    pub(crate) fn info(&self, range: Range) -> &MrInfo {
        &self.chunk(range).info
    }

    pub(crate) fn sge(&self, range: Range) -> Sge {
        Sge { addr: self.address(range), length: range.len, lkey: self.chunk(range).info.lkey }
    }

    /// Lets `look` see the bytes of a range.
    pub(crate) fn look<R>(&self, range: Range, look: impl FnOnce(&[u8]) -> R) -> R {
        let bytes = self.chunk(range).memory.view();
        let at = range.offset as usize;
        look(&bytes[at..at + range.len as usize])
    }

    pub(crate) fn read(&self, range: Range) -> Vec<u8> {
        self.look(range, <[u8]>::to_vec)
    }

    /// Puts a stream's bytes into a range, as a program does before it sends them.
    pub(crate) fn put(&self, range: Range, stream: Stream, skip: u32) -> Result<(), Violation> {
        let mut bytes = vec![0; range.len as usize];
        stream.write(u64::from(skip), &mut bytes);
        let memory = &self.chunk(range).memory;
        memory
            .write_waiting(u64::from(range.offset), &bytes)
            .map_err(|error| Violation::new(format!("the harness's own memory: {error}")))
    }

    /// The 8-byte word of a range, in the host's byte order.
    pub(crate) fn word(&self, range: Range) -> u64 {
        let mut word = [0; WORD as usize];
        self.look(range, |bytes| word.copy_from_slice(bytes));
        u64::from_ne_bytes(word)
    }

    /// What a range holds where nothing was written to it.
    pub(crate) fn fill(&self, range: Range) -> Stream {
        self.chunk(range).fill
    }
}

impl Range {
    /// A part of the range.
    pub(crate) fn part(self, skip: u32, len: u32) -> Range {
        Range { offset: self.offset + skip, len, ..self }
    }
}
