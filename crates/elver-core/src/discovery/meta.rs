//! The role of a meta server, and what members of the cluster are told (section 4.2).

use alloc::vec::Vec;

use elver_control::{MetaServer, NODE_RECORD_BYTES, NodeRecord};
use elver_kv::{Layout, TableId};
use elver_verbs::{Device, Gid, Time};

use crate::core::{create_table, layout, no_table};
use crate::discovery::served::ServedTable;
use crate::{Core, CoreError};

impl<D: Device> Core<D> {
    /// The meta servers; the nearest is asked first, by the round trips of look-ups. Without DC, RC QPs
    /// to them are made at once.
    #[inline(never)]
    pub fn set_meta_servers(&mut self, servers: &[MetaServer], now: Time) {
        let mut list = Vec::new();
        for server in servers {
            let Some(peer) = self.peer_of(server.gid) else { continue };
            if let Some(entry) = self.peers.get_mut(peer) {
                entry.pins += 1;
                // Nobody knows better: it comes from the server itself, in order.
                entry.before = entry.before.filter(|before| *before != server.record);
            }
            self.learn(peer, server.record, now);
            self.overtake_lookup(peer, Some(server.record), now);
            list.push((peer, server.gid, server.nodes));
        }
        for peer in self.discovery.lookups.servers.replace(self.gid, list) {
            // What was told of a server while it was on the list was not heard.
            if !self.discovery.is_meta_server(peer)
                && let Some(entry) = self.peers.get_mut(peer)
                && entry.gid != self.gid
            {
                entry.set_record(None);
                entry.doubted = true;
            }
            self.peers.unpin(peer);
        }
        self.link_meta_servers(now);
        self.start_lookups(now);
        self.apply(now);
    }

    /// The meta server that is asked first.
    pub fn meta_server(&self) -> Option<Gid> {
        let (peer, _) =
            self.discovery.lookups.servers.get(self.discovery.lookups.servers.preferred()?)?;
        self.peers.get(peer).map(|entry| entry.gid)
    }

    /// A node went away (`None`) or came with this record: the DCCache forgets another one.
    #[inline(never)]
    pub fn node_changed(&mut self, gid: Gid, record: Option<NodeRecord>, now: Time) {
        if let Some(record) = record {
            self.peer_heard((gid, record.control_qpn), now);
        }
        self.discovery.lookups.news.told(gid, record, now);
        let Some(peer) = self.peers.find(&gid) else { return };
        if gid == self.gid || self.discovery.is_meta_server(peer) {
            return;
        }
        let Some(entry) = self.peers.get_mut(peer) else { return bug!("a peer of a GID is gone") };
        if record.is_some_and(|record| entry.news(record) != record) {
            self.ask_past(peer, now);
            self.apply(now);
            return;
        }
        let first = entry.last.is_none();
        let anew = record.is_some_and(|record| entry.hear(record));
        if entry.record.is_some() && entry.record != record {
            entry.set_record(record);
        }
        entry.doubted = entry.record.is_none();
        if anew {
            self.forget_regions(peer);
        }
        if record.is_some() {
            self.refuse_past(peer, record, now);
        }
        // Also where the record was forgotten there may be links to what the peer was.
        if record.is_none() || anew || first {
            self.leave_links_to(peer, record, now);
        }
        self.overtake_lookup(peer, record, now);
        self.apply(now);
    }

    /// Takes the meta server's role: makes the table of nodes, for `capacity` of them.
    ///
    /// # Errors
    ///
    /// [`CoreError::OutOfRange`] if no table is made for so many; [`CoreError::Device`] if the device does not give its
    /// memory.
    #[inline(never)]
    pub fn serve_meta(&mut self, capacity: u32) -> Result<MetaServer, CoreError> {
        if self.discovery.served.is_none() {
            let layout = layout(Layout::for_capacity(capacity, 16, NODE_RECORD_BYTES))?;
            let id = TableId { seed: self.rng.next_u64(), incarnation: self.rng.next_u32() };
            let (table, mr) = create_table(&mut self.device, self.pool.pd, layout, id, None)?;
            self.discovery.served = Some(ServedTable { table, mr });
            let (gid, record) = (self.gid, self.record);
            self.meta_put(gid, record)?;
        }
        let served = self.discovery.served.as_ref().ok_or(CoreError::Device(no_table()))?;
        let nodes = served.table.descriptor(served.mr.addr, served.mr.rkey);
        let nodes = nodes.map_err(|_| CoreError::Device(no_table()))?;
        Ok(MetaServer { gid: self.gid, record: self.record, nodes })
    }

    /// Writes a node's record into the table; a meta server's call.
    ///
    /// # Errors
    ///
    /// [`CoreError::State`] if this is no meta server; [`CoreError::Limit`] if the table is full.
    #[inline(never)]
    pub fn meta_put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), CoreError> {
        let state = CoreError::State { state: "no meta server", call: "meta_put" };
        let served = self.discovery.served.as_mut().ok_or(state)?;
        let limit = served.table.layout().capacity();
        let put = served.table.put(&gid.0, &record.encode());
        let full = CoreError::Limit { what: "nodes", limit, setting: "capacity of serve_meta" };
        put.map(|_| ()).map_err(|_| full)
    }

    /// Takes a node out of the table; whether it was there.
    #[inline(never)]
    pub fn meta_remove(&mut self, gid: Gid) -> bool {
        self.discovery.served.as_mut().is_some_and(|served| served.table.remove(&gid.0).is_ok())
    }
}
