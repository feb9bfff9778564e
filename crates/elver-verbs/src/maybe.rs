/// A place in a table whose places count from 0, or none, in no more room than the place takes: each WR and each packet
/// looks at some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaybeSlot(u32);

impl MaybeSlot {
    /// None: no table has so many places.
    pub const NONE: MaybeSlot = MaybeSlot(u32::MAX);

    /// The place, if it is one.
    #[inline]
    pub fn get(self) -> Option<u32> {
        (self != MaybeSlot::NONE).then_some(self.0)
    }

    /// An index for a look-up, which misses if it is none.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<u32> for MaybeSlot {
    #[inline]
    fn from(slot: u32) -> MaybeSlot {
        debug_assert!(slot != u32::MAX, "no table has so many places");
        MaybeSlot(slot)
    }
}
