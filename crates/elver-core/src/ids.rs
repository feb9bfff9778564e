//! Names of what a core holds. Those of one table are no names in another, and the compiler knows it.

use core::fmt;
use core::num::NonZeroU32;

use crate::pool::index_vec::Ix;

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

macro_rules! told_ids {
    ($($name:ident),*) => {
        $(
            impl Id for $name {
                #[inline]
                fn of(bits: NonZeroU32) -> $name {
                    $name(bits.get())
                }

                #[inline]
                fn bits(self) -> u32 {
                    self.0
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

// Whoever gets one may hand in any bits.
told_ids!(ClientId, VqpId);

/// A VQP or none, in no more room than its id takes: there is one of these for each that is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MaybeVqp(Option<NonZeroU32>);

impl MaybeVqp {
    #[inline]
    pub(crate) fn get(self) -> Option<VqpId> {
        self.0.map(VqpId::of)
    }
}

impl From<VqpId> for MaybeVqp {
    #[inline]
    fn from(id: VqpId) -> MaybeVqp {
        MaybeVqp(NonZeroU32::new(id.0))
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
    /// An RC queue pair, from its creation to its end ([`crate::rc::pool::RcPool`]).
    LinkId,
    /// An operation of the core's own ([`crate::datapath::ops::Op`]).
    OpId,
    /// A message that is written to a receive which is not at hand ([`crate::messaging::landing::Landing`]).
    LandingId,
    /// A request to a peer ([`crate::rc::links::Links`]).
    CallId,
}

/// Places in the vectors of the pool.
macro_rules! places {
    ($($(#[$what:meta])* $name:ident,)*) => {
        $(
            $(#[$what])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub(crate) struct $name(pub(crate) u32);

            impl Ix for $name {
                #[inline]
                fn new(at: usize) -> $name {
                    $name(at as u32)
                }

                #[inline]
                fn at(self) -> usize {
                    self.0 as usize
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        )*
    };
}

places! {
    /// A lane ([`crate::pool::lanes::Lanes`]): a stream of a DCI, or an RC QP.
    LaneIx,
    /// A physical queue pair that VQPs send on ([`crate::pool::lanes::Lanes`]).
    QpIx,
}

impl LinkId {
    /// The ids between which all are.
    pub(crate) const ENDS: (LinkId, LinkId) = (LinkId(NonZeroU32::MIN), LinkId(NonZeroU32::MAX));
}

#[cfg(test)]
impl PeerId {
    /// One for a test.
    pub(crate) const fn numbered(bits: u32) -> PeerId {
        match NonZeroU32::new(bits) {
            Some(bits) => PeerId(bits),
            None => panic!("0 is no id"),
        }
    }
}
