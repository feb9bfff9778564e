use core::fmt;

const MASK: u32 = 0xff_ffff;

/// A packet sequence number: 24 bits that wrap (IBTA 9.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number, if it fits 24 bits.
    pub const fn new(psn: u32) -> Option<Psn> {
        if psn <= MASK { Some(Psn(psn)) } else { None }
    }

    /// The low 24 bits.
    #[inline]
    pub const fn from_wrapping(psn: u32) -> Psn {
        Psn(psn & MASK)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one after it.
    #[inline]
    pub const fn next(self) -> Psn {
        self.wrapping_add(1)
    }

    /// The one `count` after it.
    #[inline]
    pub const fn wrapping_add(self, count: u32) -> Psn {
        Psn(self.0.wrapping_add(count) & MASK)
    }

    /// The one `count` before it.
    #[inline]
    pub const fn wrapping_sub(self, count: u32) -> Psn {
        Psn(self.0.wrapping_sub(count) & MASK)
    }

    /// How far it lies after `other`, the shorter way round: -2^23 to 2^23 - 1. Negative if it
    /// lies before (IBTA 9.7.2: half the space is ahead, half behind).
    #[inline]
    pub const fn distance(self, other: Psn) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Whether it lies before `other`.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A message sequence number: how many messages a responder completed, 24 bits that wrap
/// (IBTA 9.7.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// The number, if it fits 24 bits.
    pub const fn new(msn: u32) -> Option<Msn> {
        if msn <= MASK { Some(Msn(msn)) } else { None }
    }

    /// The low 24 bits.
    #[inline]
    pub const fn from_wrapping(msn: u32) -> Msn {
        Msn(msn & MASK)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one after it.
    #[inline]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1) & MASK)
    }
}

/// A queue pair number: 24 bits (IBTA 3.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The number, if it fits 24 bits.
    pub const fn new(qpn: u32) -> Option<Qpn> {
        if qpn <= MASK { Some(Qpn(qpn)) } else { None }
    }

    /// The low 24 bits.
    #[inline]
    pub const fn from_wrapping(qpn: u32) -> Qpn {
        Qpn(qpn & MASK)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        let last = Psn::new(MASK).unwrap();
        assert_eq!(last.next(), Psn(0));
        assert_eq!(Psn(0).wrapping_sub(1), last);
        assert_eq!(Psn(2).distance(last), 3);
        assert!(last.is_before(Psn(2)));
        assert_eq!(Psn::new(MASK + 1), None);
        assert_eq!(Msn::new(MASK).map(Msn::next), Some(Msn::default()));
        assert_eq!(Msn::new(MASK + 1), None);
    }

    proptest! {
        #[test]
        fn distance_undoes_add(start in 0..=MASK, step in 0u32..1 << 23) {
            let psn = Psn(start);
            prop_assert_eq!(psn.wrapping_add(step).distance(psn), step as i32);
            prop_assert_eq!(psn.wrapping_add(step).wrapping_sub(step), psn);
        }
    }
}
