use core::fmt;
use core::ops::Deref;

use crate::{KEY_LEN_MAX, VALUE_LEN_MAX};

/// A key, in place.
pub type Key = ShortBytes<KEY_LEN_MAX>;

/// A value, in place.
pub type Value = ShortBytes<VALUE_LEN_MAX>;

/// Up to `N` bytes without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortBytes<const N: usize> {
    // Zero from `len` on, so that derived equality is equality of what it holds.
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> ShortBytes<N> {
    /// A copy of `bytes`; none if they are more than `N`.
    pub fn copy_from(bytes: &[u8]) -> Option<ShortBytes<N>> {
        let mut copy = ShortBytes { bytes: [0; N], len: u8::try_from(bytes.len()).ok()? };
        copy.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(copy)
    }
}

impl<const N: usize> Deref for ShortBytes<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> AsRef<[u8]> for ShortBytes<N> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> fmt::Debug for ShortBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_fits() {
        let four: ShortBytes<4> = ShortBytes::copy_from(&[1, 2, 3, 4]).unwrap();
        assert_eq!(&four[..], [1, 2, 3, 4]);
        assert!(ShortBytes::<4>::copy_from(&[]).unwrap().is_empty());
        assert!(ShortBytes::<4>::copy_from(&[0; 5]).is_none());
        assert!(ShortBytes::<4>::copy_from(&[0; 256]).is_none());
    }
}
