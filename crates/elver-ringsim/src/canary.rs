//! Bugs to plant: a model that does not catch them is worth nothing.

use elver_sim::{Plantable, canaries};

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
}

impl Plantable for Canary {
    fn percent(self) -> u32 {
        30
    }
}
