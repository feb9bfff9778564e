//! Regions: this node's own, with ValidMR, in which peers find them, and those of peers, with their
//! leases (section 4.2).

pub(crate) mod mr;
pub(crate) mod mr_store;
pub(crate) mod openings;
pub(crate) mod regions;
pub(crate) mod share;
pub(crate) mod valid_mrs;
