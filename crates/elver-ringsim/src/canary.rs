//! Bugs to plant: a model that does not catch them is worth nothing.

use elver_sim::{Fault, Plantable, canaries};

canaries! {
    "ring";
    /// The tail is written before the slots that it tells of.
    TailFirst = "tail-first",
    /// A receiver believes a tail that has not come yet.
    TailBelievedEarly = "tail-believed-early",
    /// The slots of a transmission with a tail are left out.
    SlotsLeftOut = "slots-left-out",
    /// Slots are freed before their message is read.
    FreedBeforeRead = "freed-before-read",
    /// A WRITE of a tail is executed a second time, later.
    TailRepeated = "tail-repeated",
    /// A message is read twice.
    ReadTwice = "read-twice",
    /// A message is lost between the ring and its reader.
    MessageLost = "message-lost",
    /// Completions that nobody took for a while are gone.
    CompletionsLost = "completions-lost",
    /// Memory that a process has given back stays open to its peer.
    KeptOpen = "kept-open",
    /// Memory is said to be the process's alone again as soon as it is given back.
    ClosedEarly = "closed-early",
    /// A node takes packets for its peer's that come from elsewhere.
    UncheckedSource = "unchecked-source",
    /// A node lets anybody begin a DC session, whatever key he has for it.
    UncheckedDcKey = "unchecked-dc-key",
    /// A node lets who has a session write anywhere, whatever key he has for the memory.
    UncheckedRkey = "unchecked-rkey",
    /// A WR is refused for want of room for its completion where there is some.
    RoomForgotten = "room-forgotten",
    /// A pair ends since the clock of a node has jumped that is neither of its own nor the meta server's.
    EndedByFarClock = "ended-by-far-clock",
    /// A pair ends when all faults are long over.
    EndedLate = "ended-late",
}

impl Canary {
    /// The fault without which it does not show.
    pub(crate) fn needs(self) -> Option<Fault> {
        match self {
            Canary::CompletionsLost | Canary::RoomForgotten => Some(Fault::CqOverflow),
            Canary::KeptOpen => Some(Fault::Deregister),
            Canary::EndedByFarClock => Some(Fault::ClockJump),
            Canary::UncheckedSource | Canary::UncheckedDcKey | Canary::UncheckedRkey => {
                Some(Fault::Forge)
            }
            _ => None,
        }
    }
}

impl Plantable for Canary {
    fn percent(self) -> u32 {
        match self {
            // Each post is a chance.
            Canary::RoomForgotten => 1,
            _ if self.needs().is_some() => 100,
            _ => 30,
        }
    }
}
