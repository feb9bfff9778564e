//! Regions: this node's own, with ValidMR, in which peers find them, and those of peers, with their
//! leases (section 4.2).

pub(crate) mod mr;
pub(crate) mod mr_store;
pub(crate) mod openings;
pub(crate) mod regions;
pub(crate) mod share;
pub(crate) mod valid_mrs;

use elver_verbs::Memory;

use crate::Config;
use crate::memory::mr::LocalMrs;
use crate::memory::mr_store::MrStore;
use crate::memory::valid_mrs::ValidMrs;

/// What this node has of memory that is registered, here and elsewhere.
pub(crate) struct Regions<M> {
    /// Its own.
    pub(crate) local: LocalMrs<M>,
    /// What peers may read of these.
    pub(crate) valid: ValidMrs<M>,
    /// What it has read of those of peers.
    pub(crate) of_peers: MrStore,
}

impl<M: Memory> Regions<M> {
    pub(crate) fn new(config: &Config, valid: ValidMrs<M>) -> Regions<M> {
        Regions {
            local: LocalMrs::new(config.max_mrs),
            valid,
            of_peers: MrStore::new(config.max_cached_mrs),
        }
    }
}
