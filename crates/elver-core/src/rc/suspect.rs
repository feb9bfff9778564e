//! For which WR RC QPs fail, one after the other: see [`crate::rc::fate`].

use crate::vqp::seq::SendSeq;

/// So many RC QPs in a row may fail at the same WR before it is taken for the reason.
const SUSPECTED_MAX: u8 = 8;

/// The WR or operation at which RC QPs failed, by the low bits of its number, and how many did in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspect {
    seq: u8,
    times: u8,
}

impl Suspect {
    /// Another one has failed at it. Whether it goes on; if not, what comes next is not suspected.
    pub(super) fn is_cleared(&mut self, seq: SendSeq) -> bool {
        let seq = seq.bits() as u8;
        if self.seq != seq {
            *self = Suspect { seq, times: 0 };
        }
        self.times += 1;
        let cleared = self.times < SUSPECTED_MAX;
        if !cleared {
            *self = Suspect::default();
        }
        cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VQP that was connected anew, and whose next WR had the same low bits, was failed for the first
    /// RC QP that broke; and two hundred such were more than the count holds.
    #[test]
    fn what_was_taken_for_the_reason_is_not_held_against_what_comes_next() {
        let mut suspect = Suspect::default();
        let cleared = (0..400)
            .map(|_| suspect.is_cleared(SendSeq::FIRST.after(1 << 8)))
            .collect::<alloc::vec::Vec<_>>();
        for (at, cleared) in cleared.into_iter().enumerate() {
            assert_eq!(cleared, at % usize::from(SUSPECTED_MAX) != 7, "{at}");
        }
        // Another WR begins anew too.
        let seqs = [3, 3, 3, 4, 3, 3, 3, 3, 3, 3, 3, 3];
        let cleared = seqs.map(|seq| suspect.is_cleared(SendSeq::FIRST.after(seq)));
        assert_eq!(cleared.iter().position(|cleared| !cleared), Some(11));
    }
}
