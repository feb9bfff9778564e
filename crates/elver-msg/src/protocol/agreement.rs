//! Whether ranks agree on the collective operation that goes on.

use std::collections::VecDeque;

use super::limits::OPERATIONS_MESSAGES;
use super::requests::Status;
use super::tags::{self, NUMBER_MASK};

/// Most runs of operations that a rank gave up ahead of another: between two there is one that ended well there, and its
/// message waits here.
const RUNS_MAX: usize = OPERATIONS_MESSAGES as usize + 2;

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
    /// It goes on no more.
    is_over: bool,
    discord: Option<Discord>,
    /// By rank: operations to come that it gave up.
    given_up: Vec<VecDeque<Run>>,
}

/// Operations one behind the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The tag of the first.
    first: u32,
    count: u32,
}

impl Run {
    fn last(&self) -> u32 {
        self.first.wrapping_add(self.count - 1)
    }

    fn has(&self, tag: u32) -> bool {
        (tag.wrapping_sub(self.first) & NUMBER_MASK) < self.count
    }
}

impl Agreement {
    pub(super) fn new(ranks: usize) -> Agreement {
        let given_up = (0..ranks).map(|_| VecDeque::new()).collect();
        Agreement { current: None, is_over: true, discord: None, given_up }
    }

    pub(super) fn begin(&mut self, tag: u32, differs: Option<Status>) {
        (self.current, self.is_over) = (Some(tag), false);
        self.discord = differs.map(Discord::Differs);
        for (rank, given_up) in (0..).zip(&mut self.given_up) {
            given_up.retain(|run| !tags::is_before(run.last(), tag));
            if given_up.front().is_some_and(|run| run.has(tag)) {
                self.discord.get_or_insert(Discord::GivenUp { rank });
            }
        }
    }

    /// The operation that went on is over here, however it ended.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether nobody will receive a message of this tag: its operation is over here.
    #[inline]
    pub(super) fn is_left_over(&self, tag: u32) -> bool {
        tags::operation(tag).is_some()
            && self.current.is_some_and(|current| {
                tags::is_before(tag, current) || self.is_over && tags::is_same_turn(tag, current)
            })
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
        if self.current.is_some_and(|current| tags::is_before(tag, current)) {
            return;
        }
        let given_up = &mut self.given_up[rank as usize];
        let has_room = given_up.len() < RUNS_MAX;
        match given_up.back_mut() {
            Some(run) if tags::is_same_turn(tag, run.last().wrapping_add(1)) => {
                run.count = (run.count + 1).min(NUMBER_MASK / 2);
            }
            _ if has_room => given_up.push_back(Run { first: tag, count: 1 }),
            _ => {}
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
        (1..100_000).for_each(|number| agreement.given_up(0, tag(0, 2 * number)));
        assert_eq!(agreement.given_up[0].len(), RUNS_MAX);
    }

    /// Of one that was far ahead what it gave up was forgotten: who came there waited for it.
    #[test]
    fn all_that_is_given_up_in_a_row_is_known() {
        let mut agreement = Agreement::new(2);
        let number = |turn: u32| (NUMBER_MASK - 50 + turn) & NUMBER_MASK;
        agreement.begin(tag(0, number(0)), None);
        (1..1_000).for_each(|turn| agreement.given_up(1, tag(turn % 3, number(turn))));
        for turn in 1..1_000 {
            agreement.begin(tag(0, number(turn)), None);
            assert_eq!(agreement.discord(), Some(Discord::GivenUp { rank: 1 }), "turn {turn}");
        }
        agreement.begin(tag(0, number(1_000)), None);
        assert_eq!((agreement.discord(), agreement.given_up[1].len()), (None, 0));
    }

    #[test]
    fn what_is_left_of_an_operation_that_is_over_is_for_nobody() {
        let mut agreement = Agreement::new(2);
        agreement.begin(tag(0, 5), None);
        assert!(agreement.is_left_over(tag(3, 4)) && !agreement.is_left_over(tag(3, 5)));
        agreement.end();
        assert!(agreement.is_left_over(tag(3, 5)) && !agreement.is_left_over(tag(3, 6)));
        assert!(!agreement.is_left_over(4));
    }
}
