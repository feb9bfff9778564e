//! Sequence numbers of a VQP's WRs. Those of its sends are none of its receives, and the compiler knows it.
//!
//! They wrap, and so have no order: what is asked is how far one is behind another.

macro_rules! sequences {
    ($($(#[$what:meta])* $name:ident,)*) => {
        $(
            $(#[$what])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub(crate) struct $name(u32);

            impl $name {
                /// That of the first WR.
                pub(crate) const FIRST: $name = $name(0);

                /// That of the WR which comes so many later.
                #[inline]
                pub(crate) fn after(self, count: u32) -> $name {
                    $name(self.0.wrapping_add(count))
                }

                /// How many WRs it is behind an earlier one.
                #[inline]
                pub(crate) fn since(self, earlier: $name) -> u32 {
                    self.0.wrapping_sub(earlier.0)
                }

                /// The place of its entry in a ring, of which there are a power of two.
                #[inline]
                pub(crate) fn place(self, entries: usize) -> usize {
                    self.0 as usize & (entries - 1)
                }

                /// The number itself: so many WRs were posted before it, modulo 2^32.
                #[inline]
                pub(crate) fn bits(self) -> u32 {
                    self.0
                }
            }
        )*
    };
}

sequences! {
    /// The number of a WR in its VQP's send queue.
    SendSeq,
    /// The number of a WR in its VQP's receive queue.
    RecvSeq,
}

impl SendSeq {
    /// That of the message which its sender named so ([`crate::vqp::Vqp::cookie`]).
    #[inline]
    pub(crate) fn of_cookie(cookie: u64) -> SendSeq {
        SendSeq(cookie as u32)
    }

    /// That of the WR before.
    #[inline]
    pub(crate) fn before(self) -> SendSeq {
        SendSeq(self.0.wrapping_sub(1))
    }

    /// What a physical WR's `wr_id` has room for.
    #[inline]
    pub(crate) fn low(self) -> LowSeq {
        LowSeq(self.0 & LowSeq::MASK)
    }
}

/// The low bits of a [`SendSeq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LowSeq(u32);

impl LowSeq {
    pub(crate) const BITS: u32 = 29;
    const MASK: u32 = (1 << LowSeq::BITS) - 1;

    /// Those of these bits that are its own.
    #[inline]
    pub(crate) fn of(bits: u64) -> LowSeq {
        LowSeq(bits as u32 & LowSeq::MASK)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// How many WRs it is behind an earlier one: a ring holds fewer than wrap.
    #[inline]
    pub(crate) fn since(self, earlier: SendSeq) -> u32 {
        self.0.wrapping_sub(earlier.0) & LowSeq::MASK
    }
}
