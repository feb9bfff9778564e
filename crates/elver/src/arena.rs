//! Which pieces of a session's arena are in use.

use elver_portal::ARENA_BYTES;

/// What pieces begin at and end before: a cache line, so that no two share one; a page for those
/// that fill one.
const LINE: u64 = 64;
const PAGE: u64 = 4096;

/// Free pieces, in order, no two of them adjacent.
pub(crate) struct Arena {
    free: Vec<Free>,
    /// Nothing was ever in use from here on.
    fresh: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    start: u64,
    end: u64,
}

/// A piece that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    end: u64,
    /// Bytes that may not be zero, from `offset` on.
    pub(crate) used: u64,
}

impl Arena {
    pub(crate) fn new() -> Arena {
        Arena { free: vec![Free { start: 0, end: ARENA_BYTES }], fresh: 0 }
    }

    /// A piece for `len` bytes: the first that is large enough.
    pub(crate) fn take(&mut self, len: u64) -> Option<Piece> {
        if !(1..=ARENA_BYTES).contains(&len) {
            return None;
        }
        let align = if len >= PAGE { PAGE } else { LINE };
        let fits = |free: &Free| {
            let offset = free.start.next_multiple_of(align);
            let end = (offset + len).next_multiple_of(LINE);
            (end <= free.end).then_some((offset, end))
        };
        let (at, (offset, end)) =
            self.free.iter().enumerate().find_map(|(at, free)| Some((at, fits(free)?)))?;
        let Free { start, end: last } = self.free.remove(at);
        let rest = [Free { start, end: offset }, Free { start: end, end: last }];
        let rest = rest.into_iter().filter(|free| free.start < free.end);
        self.free.splice(at..at, rest);
        let used = self.fresh.clamp(offset, end) - offset;
        self.fresh = self.fresh.max(end);
        Some(Piece { offset, end, used })
    }

    /// Takes a piece back, which nobody touches any more.
    pub(crate) fn give_back(&mut self, piece: Piece) {
        let mut free = Free { start: piece.offset, end: piece.end };
        let at = self.free.partition_point(|other| other.start < free.start);
        let mut replaced = at..at;
        if let Some(before) = at.checked_sub(1).filter(|&at| self.free[at].end == free.start) {
            free.start = self.free[before].start;
            replaced.start = before;
        }
        if self.free.get(at).is_some_and(|behind| behind.start == free.end) {
            free.end = self.free[at].end;
            replaced.end = at + 1;
        }
        self.free.splice(replaced, [free]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_lie_apart_and_all_come_back(
            acts in prop::collection::vec((any::<bool>(), 1..20_000u64, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut arena = Arena::new();
            let mut pieces: Vec<(Piece, u64)> = Vec::new();
            let mut touched = vec![false; (ARENA_BYTES / LINE) as usize];
            for (takes, len, which) in acts {
                if takes {
                    let Some(piece) = arena.take(len) else { continue };
                    prop_assert!(piece.offset + len <= piece.end && piece.end <= ARENA_BYTES);
                    let align = if len >= PAGE { PAGE } else { LINE };
                    prop_assert!(piece.offset % align == 0);
                    for (other, _) in &pieces {
                        prop_assert!(piece.end <= other.offset || other.end <= piece.offset);
                    }
                    for line in piece.offset / LINE..piece.end / LINE {
                        if std::mem::replace(&mut touched[line as usize], true) {
                            prop_assert!(line * LINE < piece.offset + piece.used);
                        }
                    }
                    pieces.push((piece, len));
                } else if !pieces.is_empty() {
                    let (piece, _) = pieces.swap_remove(which.index(pieces.len()));
                    arena.give_back(piece);
                }
            }
            for (piece, _) in pieces {
                arena.give_back(piece);
            }
            prop_assert_eq!(arena.free, vec![Free { start: 0, end: ARENA_BYTES }]);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut arena = Arena::new();
        assert_eq!(arena.take(0), None);
        assert_eq!(arena.take(ARENA_BYTES + 1), None);
        assert!(arena.take(1).is_some());
        assert_eq!(arena.take(ARENA_BYTES), None);
        assert_eq!(arena.take(PAGE).map(|piece| piece.offset), Some(PAGE));
    }
}
