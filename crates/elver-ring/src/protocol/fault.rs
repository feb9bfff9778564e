use thiserror::Error;

/// What a peer wrote that cannot be: the ring is over. Nothing of it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The receiver claims to have read what was not told, or takes back what it said.
    #[error("the receiver says that its head is {claimed}, which is not within {least} to {most}")]
    Head {
        /// What it wrote.
        claimed: u64,
        /// What it had said before.
        least: u64,
        /// What it was told.
        most: u64,
    },
    /// The sender claims more than the ring has room for, or takes back what it said.
    #[error("the sender says that its tail is {claimed}, which is not within {least} to {most}")]
    Tail {
        /// What it wrote.
        claimed: u64,
        /// What it had said before.
        least: u64,
        /// What it has room for.
        most: u64,
    },
    /// A message that is longer than what is there.
    #[error("the message at slot {at} claims {bytes} bytes, and {slots} slots are there")]
    Length {
        /// Its first slot, counted from the ring's beginning.
        at: u64,
        /// The length that it claims, without its header.
        bytes: u32,
        /// Slots from there to the tail.
        slots: u64,
    },
    /// A header that is not of this place: the tail was told before the message was there.
    #[error("slot {at} has the header of slot {found} (modulo 2^32): the tail came too early")]
    Stale {
        /// The slot, counted from the ring's beginning.
        at: u64,
        /// Whose header it has.
        found: u32,
    },
    /// Something was told behind the end.
    #[error("the peer wrote on after it had ended")]
    AfterEnd,
}
