//! How the model numbers what it knows.

/// A node, and the how-manieth of its boots.
pub(crate) type Place = (usize, u32);
pub(crate) type ClientIx = usize;
pub(crate) type VqpIx = usize;
pub(crate) type OpIx = usize;
pub(crate) type RecvIx = usize;
pub(crate) type ArenaIx = usize;
pub(crate) type RegionIx = usize;
