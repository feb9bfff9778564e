//! Lanes whose first WR does not end. A peer that says again and again that it is not ready is there, so that
//! no retry of the device's runs out: what the core has to tell it would keep send slots for ever, and the lane
//! those of others. Where something of the core's own waits so for long, the WR ends as if the peer were silent.

use alloc::vec::Vec;

use elver_verbs::{SendHead, Time};

use crate::due::Alarm;
use crate::ids::LaneIx;

/// First WRs are looked at so often, in nanoseconds.
pub(super) const LOOK_NS: u64 = 1_000_000_000;
/// One of which nothing was acknowledged between so many looks ends: longer than twice what a full DC target has
/// those wait that it has no context for.
const LOOKS_MAX: u32 = 9;

/// What stood first on lanes when these were looked at last.
#[derive(Debug)]
pub(crate) struct Stalls {
    heads: Vec<Head>,
    pub(super) due: Alarm,
}

/// The first WR of a lane.
#[derive(Clone, Copy, Debug)]
struct Head {
    lane: LaneIx,
    head: SendHead,
    /// Looks that have found it as it is.
    looks: u32,
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls { heads: Vec::new(), due: Alarm::NEVER }
    }
}

impl Stalls {
    /// Something of the core's own is posted, or waits for that.
    #[inline]
    pub(crate) fn watch(&mut self, now: Time) {
        if self.due == Alarm::NEVER {
            self.due = now.saturating_add_ns(LOOK_NS).into();
        }
    }

    /// When first WRs are looked at.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.due.get()
    }

    /// The lanes that something waits on have these first WRs. Returns the ones that have stood there for too
    /// long. A core that looks `late` slept, and what they wait for may lie before it.
    pub(super) fn look(
        &mut self,
        found: impl Iterator<Item = (LaneIx, SendHead)>,
        late: bool,
    ) -> Vec<(LaneIx, SendHead)> {
        let before = core::mem::take(&mut self.heads);
        let looks = |lane, head| {
            let stood = before.iter().find(|one| one.lane == lane && one.head == head);
            stood.map_or(1, |one| one.looks + u32::from(!late))
        };
        self.heads.extend(found.map(|(lane, head)| Head { lane, head, looks: looks(lane, head) }));
        let stalled = self.heads.extract_if(.., |one| one.looks >= LOOKS_MAX);
        stalled.map(|one| (one.lane, one.head)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_for_so_many_looks_is_told_and_late_looks_do_not_count() {
        let mut stalls = Stalls::default();
        let still = (LaneIx(1), SendHead { wr_id: 7, progress: 3 });
        let mut look = |n: u32, late| {
            let moving = (LaneIx(2), SendHead { wr_id: 8, progress: n });
            stalls.look([still, moving].into_iter(), late)
        };
        for n in 1..LOOKS_MAX {
            assert_eq!((look(n, false), look(n + 100, true)), (Vec::new(), Vec::new()));
        }
        assert_eq!(look(LOOKS_MAX, false), [still]);
        assert_eq!(look(LOOKS_MAX + 1, false), [], "it is told once");
    }
}
