use elver_verbs::Pd;

/// A protection domain, or none, to which nothing is open, in no more room than the domain takes: each packet loads one.
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
