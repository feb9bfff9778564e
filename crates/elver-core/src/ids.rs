//! Names of what a core holds. Those of one table are no names in another, and the compiler knows it.

use core::fmt;
use core::num::NonZeroU32;

/// A client of the node: a process's session, or the process that hosts an embedded node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A virtual queue pair. The id also names it on the wire; it is random in part, so that the id of
/// a destroyed VQP misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VqpId(pub u32);

/// What names the entries of a table ([`crate::slots::Slots`]).
pub(crate) trait Id: Copy + Eq {
    /// The id of these bits; 0 is none.
    fn of(bits: NonZeroU32) -> Self;

    /// Its bits.
    fn bits(self) -> u32;
}

impl Id for u32 {
    #[inline]
    fn of(bits: NonZeroU32) -> u32 {
        bits.get()
    }

    #[inline]
    fn bits(self) -> u32 {
        self
    }
}

/// Ids that are never told to anybody: none is 0, so that "none of them" takes no more room.
macro_rules! ids {
    ($($(#[$what:meta])* $name:ident,)*) => {
        $(
            $(#[$what])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub(crate) struct $name(NonZeroU32);

            impl Id for $name {
                #[inline]
                fn of(bits: NonZeroU32) -> $name {
                    $name(bits)
                }

                #[inline]
                fn bits(self) -> u32 {
                    self.0.get()
                }
            }

            #[cfg(test)]
            impl $name {
                /// One for a test.
                pub(crate) const fn numbered(bits: u32) -> $name {
                    match NonZeroU32::new(bits) {
                        Some(bits) => $name(bits),
                        None => panic!("0 is no id"),
                    }
                }
            }

            impl fmt::LowerHex for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        )*
    };
}

ids! {
    /// A node that this one knows ([`crate::discovery::peer::Peers`]).
    PeerId,
}
