//! A port at a peer, and the VQPs that are connected to it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::num::NonZeroU16;

use crate::VqpId;

/// The VQPs that are connected to a port, and who has it as far as they know.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The number of its binding; none while nobody is bound to it.
    bound: Option<NonZeroU16>,
    /// VQPs that were connected while it had this one.
    settled: BTreeSet<VqpId>,
    /// Those of which that is not known yet, and the rounds of questions that had begun before they came.
    fresh: BTreeMap<VqpId, u32>,
}

impl Port {
    pub(super) fn enroll(&mut self, vqp: VqpId, rounds: u32) {
        self.fresh.insert(vqp, rounds);
    }

    /// A VQP is not connected to it any longer, or was told already that its owner has gone.
    pub(super) fn leave(&mut self, vqp: VqpId) {
        if self.fresh.remove(&vqp).is_none() {
            self.settled.remove(&vqp);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.fresh.is_empty()
    }

    /// The node tells who has it, in answer to a round of questions. VQPs that were connected while another
    /// had it go to `parted`. To a port that nobody has yet one may be connected, and wait.
    pub(super) fn hear(&mut self, bound: Option<NonZeroU16>, round: u32, parted: &mut Vec<VqpId>) {
        if self.bound != bound {
            parted.extend(core::mem::take(&mut self.settled));
            self.bound = bound;
        }
        if bound.is_some() {
            let asked_for = self.fresh.extract_if(.., |_, rounds| *rounds < round);
            self.settled.extend(asked_for.map(|(vqp, _)| vqp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(port: &mut Port, bound: u16, round: u32) -> Vec<u32> {
        let mut parted = Vec::new();
        port.hear(NonZeroU16::new(bound), round, &mut parted);
        parted.into_iter().map(|vqp| vqp.0).collect()
    }

    #[test]
    fn who_was_connected_while_another_had_it_is_told() {
        let mut port = Port::default();
        port.enroll(VqpId(1), 0);
        port.enroll(VqpId(2), 0);
        assert_eq!(hear(&mut port, 7, 1), []);
        port.leave(VqpId(2));
        port.enroll(VqpId(3), 1);
        assert_eq!(hear(&mut port, 8, 2), [1], "3 may have been connected to either");
        assert_eq!(hear(&mut port, 8, 3), []);
        assert_eq!(hear(&mut port, 0, 4), [3]);
        assert!(port.is_empty());
    }

    #[test]
    fn what_was_asked_before_a_vqp_came_says_nothing_of_it() {
        let mut port = Port::default();
        port.enroll(VqpId(1), 0);
        port.enroll(VqpId(2), 1);
        // The first round had begun when 2 was connected, to whom is not known.
        assert_eq!(hear(&mut port, 7, 1), []);
        assert_eq!(hear(&mut port, 8, 2), [1]);
        assert_eq!(hear(&mut port, 0, 3), [2]);
    }

    #[test]
    fn nobody_need_have_it_yet() {
        let mut port = Port::default();
        port.enroll(VqpId(1), 0);
        assert_eq!(hear(&mut port, 0, 1), []);
        assert_eq!(hear(&mut port, 0, 2), []);
        assert_eq!(hear(&mut port, 5, 3), []);
        assert_eq!(hear(&mut port, 0, 4), [1]);
    }
}
