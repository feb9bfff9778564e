/// A send or a receive that goes on, or whose end was not taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    pub(super) slot: u32,
    /// How often the slot was used before.
    pub(super) turn: u32,
}
