//! The queue pairs that VQPs send on, and the lanes on them.

use alloc::vec::Vec;

use elver_verbs::{Class, Qp};

use crate::VqpId;
use crate::ids::{LaneIx, PeerId, QpIx};
use crate::pool::index_vec::IndexVec;
use crate::pool::lane::{Lane, LaneKind, LaneState, PhysQp};
use crate::rc::path::Path;

/// The lists of its lane on which a VQP stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stands {
    /// It waits for its turn.
    pub(crate) ready: bool,
    /// It was thrown back to the lane, which fails.
    pub(crate) rewound: bool,
}

/// The QPs that VQPs send on, and their lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// First the DCIs, then RC QPs. An RC QP's index may be used again.
    pub(crate) qps: IndexVec<QpIx, PhysQp>,
    /// First `streams` of each DCI, then one of each RC QP.
    pub(crate) lanes: IndexVec<LaneIx, Lane>,
    /// DCIs.
    pub(crate) dcis: u32,
    /// Of these, the last ones, for the high class alone.
    high: u32,
    /// Streams of each.
    pub(crate) streams: u32,
    /// QPs and lanes of RC QPs that are gone.
    free: Vec<(QpIx, LaneIx)>,
}

impl Lanes {
    /// Those of so many DCIs, the last `high` of them for the high class, each of so many streams. `depth` is that of
    /// their send queues, and `make` makes one.
    pub(super) fn of_dcis<E>(
        (dcis, high): (u32, u32),
        streams: u32,
        depth: u32,
        mut make: impl FnMut() -> Result<Qp, E>,
    ) -> Result<Lanes, E> {
        let (qps, all) = (IndexVec::new(), IndexVec::new());
        let mut lanes = Lanes { qps, lanes: all, dcis, high, streams, free: Vec::new() };
        for index in 0..dcis {
            let phys = PhysQp::new(make()?, depth, (LaneIx(index * streams), streams));
            let at = lanes.qps.push(phys);
            for stream in 0..streams {
                lanes.lanes.push(Lane::new(at, LaneKind::Dc { stream: stream as u16 }));
            }
        }
        Ok(lanes)
    }

    /// Takes in an RC QP that is connected to a peer; returns its lane.
    pub(crate) fn add_rc(&mut self, qp: Qp, depth: u32, peer: PeerId, path: Path) -> LaneIx {
        let (at, lane) = self.free.pop().unwrap_or((self.qps.end(), self.lanes.end()));
        let mut phys = PhysQp::new(qp, depth, (lane, 1));
        let entry = Lane { path: Some(path), ..Lane::new(at, LaneKind::Rc { peer }) };
        if at == self.qps.end() {
            self.qps.push(phys);
            self.lanes.push(entry);
        } else {
            // It may still stand in the list of QPs on which room was made.
            phys.dirty = self.qps[at].dirty;
            self.qps[at] = phys;
            self.lanes[lane] = entry;
        }
        lane
    }

    /// Lets go of an RC QP, with nothing and nobody on its lane.
    pub(crate) fn remove_rc(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes[lane];
        if !entry.is_left() {
            bug!("an RC QP goes while it is used");
        }
        entry.state = LaneState::Gone;
        let at = entry.qp;
        let phys = &mut self.qps[at];
        phys.depth = 0;
        phys.waiting.clear();
        self.free.push((at, lane));
    }

    /// The lane over DC for a peer. A peer always gets the same one, so that its traffic needs no
    /// change of target between WRs, and if it does not answer few others share its lane.
    pub(crate) fn dc_lane(&self, hash: u64, class: Class) -> Option<LaneIx> {
        let (first, count) = match class {
            Class::High if self.high > 0 => (self.dcis - self.high, self.high),
            _ => (0, self.dcis - self.high),
        };
        if count == 0 {
            return None;
        }
        let lanes = u64::from(count * self.streams);
        let at = ((u128::from(hash) * u128::from(lanes)) >> 64) as u32;
        let (dci, stream) = (at / self.streams, at % self.streams);
        if self.qps[QpIx(first + dci)].broken {
            return Some(self.lane_beside(first, count, dci, stream));
        }
        Some(LaneIx(first * self.streams + at))
    }

    /// The lane of a stream of the next DCI that is not broken, among `count` from `first` on; of
    /// this one if all are.
    #[cold]
    fn lane_beside(&self, first: u32, count: u32, dci: u32, stream: u32) -> LaneIx {
        let others = (0..count).map(|step| first + (dci + step) % count);
        let mut working = others.filter(|dci| !self.qps[QpIx(*dci)].broken);
        LaneIx(working.next().unwrap_or(first + dci) * self.streams + stream)
    }

    /// The class that a DCI is for.
    pub(crate) fn class_of(&self, dci: QpIx) -> Class {
        if dci.0 + self.high >= self.dcis { Class::High } else { Class::Low }
    }

    /// Tells that there may be room on a QP. The list of these is worked off once a poll.
    #[inline]
    pub(crate) fn freed(&mut self, qp: QpIx, dirty: &mut Vec<QpIx>) {
        let phys = &mut self.qps[qp];
        if !phys.dirty && !phys.waiting.is_empty() {
            phys.dirty = true;
            dirty.push(qp);
        }
    }

    /// So many physical WRs of a lane have completed.
    #[inline(always)] // At each completion.
    pub(crate) fn completed(&mut self, lane: LaneIx, count: u32, dirty: &mut Vec<QpIx>) {
        let entry = &mut self.lanes[lane];
        count_off!(entry.uncompleted, count);
        let qp = entry.qp;
        count_off!(self.qps[qp].posted, count);
        self.freed(qp, dirty);
    }

    /// A VQP waits for its turn on a lane, behind the others.
    pub(crate) fn enlist(&mut self, lane: LaneIx, vqp: VqpId) {
        self.lanes[lane].ready.push_back(vqp);
        self.wait(lane);
    }

    /// What a VQP had on a lane has come back, and is posted again when the lane is set going.
    pub(crate) fn throw_back(&mut self, lane: LaneIx, vqp: VqpId) {
        self.lanes[lane].rewound.push(vqp);
    }

    /// A VQP of which nothing is on a lane leaves it, and the lists on which it stands.
    pub(crate) fn leave(&mut self, lane: LaneIx, vqp: VqpId, stands: Stands) {
        let entry = &mut self.lanes[lane];
        count_off!(entry.vqps, 1);
        if stands.ready {
            entry.ready.retain(|other| *other != vqp);
        }
        if stands.rewound {
            entry.rewound.retain(|other| *other != vqp);
        }
    }

    /// A lane takes WRs again.
    pub(crate) fn run(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes[lane];
        (entry.state, entry.unsure) = (LaneState::Running, None);
    }

    /// Takes what waits on a lane that has failed off its lists: the peer that does not answer, and VQPs. Who was on the
    /// lane comes before who waited for it, in order; some did both, and `leaves`, which takes a VQP off the lists by
    /// its own account, says so but once.
    pub(crate) fn take_waiting(
        &mut self,
        lane: LaneIx,
        mut leaves: impl FnMut(VqpId) -> Stands,
    ) -> (Option<PeerId>, Vec<VqpId>) {
        let entry = &mut self.lanes[lane];
        let mut waiting = core::mem::take(&mut entry.rewound);
        for id in &waiting {
            leaves(*id);
        }
        waiting.extend(entry.ready.drain(..).filter(|id| leaves(*id).ready));
        (entry.dead.take(), waiting)
    }

    /// A lane has something that waits.
    pub(crate) fn wait(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes[lane];
        if !entry.waiting {
            entry.waiting = true;
            self.qps[entry.qp].waiting.push_back(lane);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let lists = |(_, lane): (LaneIx, &Lane)| (lane.ready.capacity() + lane.ops.capacity()) * 4;
        let queues: usize = self.lanes.iter().map(lists).sum();
        let waiting: usize = self.qps.iter().map(|(_, qp)| qp.waiting.capacity() * 4).sum();
        (queues + waiting + self.lanes.bytes() + self.qps.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_class_has_dcis_for_itself() {
        let free = Vec::new();
        let (mut qps, lanes) = (IndexVec::new(), IndexVec::new());
        for n in 0..8 {
            qps.push(PhysQp::new(Qp(n), 16, (LaneIx(4 * n), 4)));
        }
        let mut lanes = Lanes { qps, lanes, dcis: 8, high: 2, streams: 4, free };
        let mut reached = [[false; 8]; 2];
        for n in 0..1_000u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for class in [Class::High, Class::Low] {
                let lane = lanes.dc_lane(hash, class).unwrap();
                reached[class as usize][lane.0 as usize / 4] = true;
            }
        }
        assert_eq!(reached[Class::High as usize], [0, 0, 0, 0, 0, 0, 1, 1].map(|n| n == 1));
        assert_eq!(reached[Class::Low as usize], [1, 1, 1, 1, 1, 1, 0, 0].map(|n| n == 1));
        let (high, low) = (lanes.dc_lane(7, Class::High), lanes.dc_lane(7, Class::Low));
        (lanes.qps[QpIx(0)].broken, lanes.qps[QpIx(1)].broken, lanes.qps[QpIx(6)].broken) =
            (true, true, true);
        assert_eq!(
            lanes.dc_lane(7, Class::Low),
            low.map(|lane| LaneIx(lane.0 + 8)),
            "the next that works"
        );
        assert_eq!(lanes.dc_lane(7, Class::High), high.map(|lane| LaneIx(lane.0 + 4)));
        lanes.qps[QpIx(7)].broken = true;
        assert_eq!(lanes.dc_lane(7, Class::High), high, "none of the class works");
        (lanes.dcis, lanes.high, lanes.qps[QpIx(0)].broken) = (1, 0, false);
        assert_eq!(lanes.dc_lane(7, Class::High), lanes.dc_lane(7, Class::Low), "one for all");
        (lanes.dcis, lanes.high) = (0, 0);
        assert_eq!(lanes.dc_lane(7, Class::High), None, "no DC");
    }

    #[test]
    fn who_was_on_a_failed_lane_comes_first_and_once() {
        let (qps, all) = (IndexVec::new(), IndexVec::new());
        let mut lanes = Lanes { qps, lanes: all, dcis: 1, high: 0, streams: 1, free: Vec::new() };
        lanes.qps.push(PhysQp::new(Qp(0), 16, (LaneIx(0), 1)));
        lanes.lanes.push(Lane::new(QpIx(0), LaneKind::Dc { stream: 0 }));
        let lane = LaneIx(0);
        lanes.lanes[lane].vqps = 4;
        for id in [1, 2, 3, 4] {
            lanes.enlist(lane, VqpId(id));
        }
        for id in [3, 5] {
            lanes.throw_back(lane, VqpId(id));
        }
        lanes.leave(lane, VqpId(2), Stands { ready: true, rewound: false });
        let mut ready = alloc::vec![1, 3, 4];
        let (dead, waiting) = lanes.take_waiting(lane, |id| {
            let stood = ready.len();
            ready.retain(|other| *other != id.0);
            Stands { ready: ready.len() < stood, rewound: false }
        });
        assert_eq!((dead, waiting), (None, [3, 5, 1, 4].map(VqpId).into()));
        assert_eq!((lanes.lanes[lane].vqps, lanes.lanes[lane].ready.len()), (3, 0));
    }
}
