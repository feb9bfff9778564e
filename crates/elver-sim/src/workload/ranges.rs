//! The memory that WRs use.

use elver_verbs::{RemoteAddr, Sge};

use crate::model::{Effect, Range, Room, Violation};
use crate::world::World;

impl World {
    /// Takes `len` bytes of a host's memory in up to `most` pieces.
    pub(super) fn scatter(
        &mut self,
        host: usize,
        len: u32,
        most: u32,
        steady: bool,
    ) -> Result<Vec<Range>, Violation> {
        let mut ranges = Vec::new();
        let mut left = len;
        for piece in (1..=self.posting.between(1, u64::from(most))).rev() {
            let taken =
                if piece == 1 { left } else { self.posting.between(0, u64::from(left)) as u32 };
            let at = &mut self.hosts[host];
            let arena = &mut self.model.arenas[at.arena];
            let rng = &mut self.posting;
            ranges.push(arena.take(&mut at.rnic, rng, Room::Open, taken, false, steady)?);
            left -= taken;
        }
        Ok(ranges)
    }

    pub(super) fn take(
        &mut self,
        host: usize,
        room: Room,
        len: u32,
        aligned: bool,
    ) -> Result<Range, Violation> {
        let host = &mut self.hosts[host];
        let arena = &mut self.model.arenas[host.arena];
        arena.take(&mut host.rnic, &mut self.posting, room, len, aligned, false)
    }

    pub(super) fn sge(&self, range: Range) -> Sge {
        self.model.arenas[range.arena].sge(range)
    }

    pub(super) fn remote(&self, range: Range) -> RemoteAddr {
        let arena = &self.model.arenas[range.arena];
        RemoteAddr { addr: arena.address(range), rkey: arena.info(range).rkey }
    }

    pub(super) fn reads(&self, range: Range) -> Effect {
        Effect::Read(self.model.arenas[range.arena].fill(range), u64::from(range.offset))
    }
}
