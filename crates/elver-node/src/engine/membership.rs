use std::net::SocketAddr;

use elver_core::{Core, MetaServer, NodeRecord};
use elver_verbs::{Device, Gid, Time};
use rustc_hash::FxHashSet;

use crate::registry::News;
use crate::status::RefusalStatus;

/// Carries the registry's news into the core.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// Peers that a list which has begun has not named yet.
    unnamed: FxHashSet<Gid>,
    pub(super) servers: Vec<MetaServer>,
    /// The registries that the node is to register at.
    pub(super) registries: Vec<SocketAddr>,
    /// Meta servers that have this node in their table.
    pub(super) registered: usize,
    /// Times that a registry refused this node.
    pub(super) refusals: u64,
    /// Those that do, or do not answer, and why.
    pub(super) refused_by: Vec<RefusalStatus>,
}

impl Membership {
    pub(super) fn take<D: Device>(&mut self, news: News, core: &mut Core<D>, now: Time) {
        match news {
            News::MetaServers(servers) => {
                core.set_meta_servers(&servers, now);
                self.servers = servers;
            }
            News::Registered { servers } => self.registered = servers,
            News::Refused { refusals, servers } => {
                self.refusals = refusals;
                let refusal = |(registry, reason)| RefusalStatus { registry, reason };
                self.refused_by = servers.into_iter().map(refusal).collect();
            }
            News::Node { gid, record } => self.node(gid, record, core, now),
            News::ListBegin => self.unnamed = core.peers().map(|peer| peer.gid).collect(),
            News::ListEnd { complete } => {
                let gone = std::mem::take(&mut self.unnamed);
                let own = core.gid();
                for gid in gone.into_iter().filter(|gid| complete && *gid != own) {
                    core.node_changed(gid, None, now);
                }
            }
        }
    }

    fn node<D: Device>(
        &mut self,
        gid: Gid,
        record: Option<NodeRecord>,
        core: &mut Core<D>,
        now: Time,
    ) {
        self.unnamed.remove(&gid);
        if gid != core.gid() {
            core.node_changed(gid, record, now);
        }
    }
}
