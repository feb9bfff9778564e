//! What stands in the tags that are kept for collective operations: above all of a user's, what the operation is (7
//! bits), and the how manieth of the group (24 bits).

/// The operations, by their number in a tag.
pub(crate) const OPERATIONS: [&str; 8] = [
    "barrier",
    "broadcast",
    "gather",
    "allgather",
    "reduce",
    "allreduce",
    "allreduce of 64 KiB and more",
    "allgather of 80 KiB and more",
];
/// The bit that users' tags do not have.
pub(crate) const COLLECTIVE: u32 = 1 << 31;
const WHAT_SHIFT: u32 = 24;
pub(crate) const NUMBER_MASK: u32 = (1 << WHAT_SHIFT) - 1;

/// The tag of an operation's messages.
pub(crate) fn of_operation(what: u32, number: u32) -> u32 {
    COLLECTIVE | what << WHAT_SHIFT | number
}

/// What operation a tag is of; none if it is a user's.
pub(crate) fn operation(tag: u32) -> Option<u32> {
    (tag & COLLECTIVE != 0).then_some((tag & !COLLECTIVE) >> WHAT_SHIFT)
}

/// Whether two tags are of the same how manieth operation.
pub(crate) fn is_same_turn(tag: u32, other: u32) -> bool {
    (tag ^ other) & NUMBER_MASK == 0
}

/// Whether the operation of a tag came before that of another: numbers begin again.
pub(crate) fn is_before(tag: u32, other: u32) -> bool {
    let ahead = other.wrapping_sub(tag) & NUMBER_MASK;
    (1..=NUMBER_MASK / 2).contains(&ahead)
}

/// Whether a tag is of another operation than one whose turn is the same.
pub(crate) fn is_other(tag: u32, current: u32) -> bool {
    operation(tag).is_some() && is_same_turn(tag, current) && tag != current
}

/// Whether messages have such a tag.
pub(crate) fn is_known(tag: u32) -> bool {
    operation(tag).is_none_or(|what| (what as usize) < OPERATIONS.len())
}
