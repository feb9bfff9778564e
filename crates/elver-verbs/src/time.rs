/// A moment: nanoseconds since an epoch of the caller's choice. It must not go backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The epoch.
    pub const ZERO: Time = Time(0);

    /// The moment `ns` nanoseconds later; the last representable one at most.
    #[inline]
    pub const fn saturating_add_ns(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 if that lies ahead.
    #[inline]
    pub const fn ns_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
