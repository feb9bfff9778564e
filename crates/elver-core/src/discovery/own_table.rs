//! A meta server looks nodes up in its own table.
//!
//! A READ of it over this node's own lanes could stand behind what is sent to nodes that do not answer.

use elver_control::NodeRecord;
use elver_verbs::{Device, Gid};

use crate::Core;

impl<D: Device> Core<D> {
    /// What this node's own table says of another, if it is a meta server: who is none any longer, since it
    /// was given up while it slept, is not told what changes.
    pub(crate) fn served_record(&self, gid: Gid) -> Option<NodeRecord> {
        self.peers.find(&self.gid).filter(|own| self.discovery.is_meta_server(*own))?;
        let value = self.discovery.served.as_ref()?.table.get(&gid.0).ok()??;
        NodeRecord::decode(&value).ok()
    }

    /// Whether a meta server is this node.
    pub(crate) fn serves(&self, server: u32) -> bool {
        let via = self.discovery.lookups.servers.get(server).map(|(via, _)| via);
        let gid = via.and_then(|via| self.peers.get(via)).map(|peer| peer.gid);
        self.discovery.served.is_some() && gid == Some(self.gid)
    }
}
