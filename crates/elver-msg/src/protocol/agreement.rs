//! Whether ranks agree on the collective operation that goes on.

use std::collections::VecDeque;

use super::requests::Status;
use super::tags;

/// Operations to come that a rank may have given up; of one that is so far ahead what it gives up later is not kept.
const GIVEN_UP_MAX: usize = 16;

/// Why a collective operation has no end, though all ranks are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discord {
    /// A rank sent this message in it, which is of another operation.
    Differs(Status),
    /// A rank gave it up.
    GivenUp {
        /// Its rank.
        rank: u32,
    },
}

#[derive(Debug)]
pub(super) struct Agreement {
    /// The tag of the operation that goes on, or was the last one.
    current: Option<u32>,
    discord: Option<Discord>,
    /// By rank: tags of operations to come that it gave up.
    given_up: Vec<VecDeque<u32>>,
}

impl Agreement {
    pub(super) fn new(ranks: usize) -> Agreement {
        let given_up = (0..ranks).map(|_| VecDeque::new()).collect();
        Agreement { current: None, discord: None, given_up }
    }

    pub(super) fn begin(&mut self, tag: u32, differs: Option<Status>) {
        (self.current, self.discord) = (Some(tag), differs.map(Discord::Differs));
        for (rank, given_up) in (0..).zip(&mut self.given_up) {
            given_up.retain(|gone| !tags::is_before(*gone, tag));
            if given_up.front().is_some_and(|gone| tags::is_same_turn(*gone, tag)) {
                given_up.pop_front();
                self.discord.get_or_insert(Discord::GivenUp { rank });
            }
        }
    }

    /// A message came.
    #[inline]
    pub(super) fn came(&mut self, status: Status) {
        if let Some(current) = self.current
            && tags::is_other(status.tag, current)
        {
            self.discord.get_or_insert(Discord::Differs(status));
        }
    }

    /// A rank says that it has given up the operation of this tag.
    pub(super) fn given_up(&mut self, rank: u32, tag: u32) {
        if self.current.is_some_and(|current| tags::is_same_turn(tag, current)) {
            self.discord.get_or_insert(Discord::GivenUp { rank });
            return;
        }
        let given_up = &mut self.given_up[rank as usize];
        let is_over = self.current.is_some_and(|current| tags::is_before(tag, current));
        if !is_over && given_up.len() < GIVEN_UP_MAX {
            given_up.push_back(tag);
        }
    }

    #[inline]
    pub(super) fn discord(&self) -> Option<Discord> {
        self.discord
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(what: u32, number: u32) -> u32 {
        tags::of_operation(what, number)
    }

    #[test]
    fn what_is_given_up_ahead_is_known_when_its_turn_comes() {
        let mut agreement = Agreement::new(2);
        agreement.given_up(1, tag(3, 1));
        agreement.begin(tag(0, 0), None);
        assert_eq!(agreement.discord(), None);
        agreement.begin(tag(5, 1), None);
        assert_eq!(agreement.discord(), Some(Discord::GivenUp { rank: 1 }));
        agreement.begin(tag(0, 2), None);
        // Late, of one that ended well here.
        agreement.given_up(1, tag(5, 1));
        assert_eq!(agreement.discord(), None);
        agreement.given_up(0, tag(0, 2));
        assert_eq!(agreement.discord(), Some(Discord::GivenUp { rank: 0 }));
    }

    #[test]
    fn a_message_of_another_operation_counts_in_the_same_turn_alone() {
        let mut agreement = Agreement::new(2);
        let status = |tag| Status { source: 1, tag, len: 0 };
        agreement.begin(tag(0, 4), None);
        for other in [7, tag(0, 4), tag(1, 3), tag(1, 5)] {
            agreement.came(status(other));
            assert_eq!(agreement.discord(), None);
        }
        agreement.came(status(tag(1, 4)));
        assert_eq!(agreement.discord(), Some(Discord::Differs(status(tag(1, 4)))));
    }

    /// Who says so without end has nothing kept.
    #[test]
    fn what_is_kept_is_bounded() {
        let mut agreement = Agreement::new(1);
        agreement.begin(tag(0, 0), None);
        (1..100_000).for_each(|number| agreement.given_up(0, tag(0, number)));
        assert_eq!(agreement.given_up[0].len(), GIVEN_UP_MAX);
    }
}
