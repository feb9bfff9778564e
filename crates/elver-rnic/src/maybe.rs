//! Names of things that may be none, in no more room than the name takes: each packet loads some.

/// A place in a vector, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaybeSlot(u32);

impl MaybeSlot {
    /// None: no vector here has so many places.
    pub(crate) const NONE: MaybeSlot = MaybeSlot(u32::MAX);

    #[inline]
    pub(crate) fn get(self) -> Option<u32> {
        (self != MaybeSlot::NONE).then_some(self.0)
    }

    /// An index for a look-up, which misses if it is none.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<u32> for MaybeSlot {
    #[inline]
    fn from(slot: u32) -> MaybeSlot {
        debug_assert!(slot != u32::MAX, "no vector has so many places");
        MaybeSlot(slot)
    }
}
