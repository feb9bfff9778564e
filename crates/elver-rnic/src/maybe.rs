//! Names of things that may be none, in no more room than the name takes: each packet loads some.

use elver_verbs::Pd;

/// A protection domain, or none, to which nothing is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaybePd(u32);

impl MaybePd {
    /// Whether it is this one.
    #[inline]
    pub(crate) fn is(self, pd: u32) -> bool {
        self.0 == pd
    }
}

impl Default for MaybePd {
    /// None: the handles of domains have 24 bits.
    fn default() -> MaybePd {
        MaybePd(u32::MAX)
    }
}

impl From<Pd> for MaybePd {
    #[inline]
    fn from(pd: Pd) -> MaybePd {
        debug_assert!(pd.0 != u32::MAX, "no domain has such a handle");
        MaybePd(pd.0)
    }
}

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
