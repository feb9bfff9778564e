//! What the registry does with what nodes register, and nodes with what it tells them.

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::Time;

use crate::model::{Place, Violation, broken};
use crate::registry::{Notice, Task};
use crate::world::World;

/// Nodes that a meta server's table has room for.
const META_CAPACITY: u32 = 64;

impl World {
    /// A node has booted and registers.
    pub(crate) fn register(&mut self, place: Place, record: NodeRecord) {
        let at = self.registry_time();
        self.plan_task(at, Task::Register(place, record));
    }

    fn registry_time(&mut self) -> Time {
        let delay = self.meddling.between(1, self.plan.registry_ns);
        self.now.max(self.registry.down_until).saturating_add_ns(delay)
    }

    /// Tells a node something, after what it was told before. Who has registered hears of it: a node
    /// that has started anew does not before it has registered again.
    fn tell(&mut self, node: usize, notice: Notice) {
        let Some(&(boot, _)) = self.registry.records.get(&node) else { return };
        let at = self.registry_time();
        let last = self.registry.told_until.entry(node).or_default();
        let at = at.max(last.saturating_add_ns(1));
        *last = at;
        self.plan_task(at, Task::Tell((node, boot), notice));
    }

    fn tell_all(&mut self, notice: &Notice) {
        let registered: Vec<usize> = self.registry.records.keys().copied().collect();
        for node in registered {
            self.tell(node, notice.clone());
        }
    }

    fn tell_metas(&mut self, notice: &Notice) {
        let same = |(node, boot): &Place| self.nodes[*node].boot == *boot;
        let metas = self.registry.metas.iter().map(|(place, _)| *place).filter(same);
        for (node, _) in metas.collect::<Vec<Place>>() {
            self.tell(node, notice.clone());
        }
    }

    /// The registry has heard of a node.
    pub(crate) fn registered(&mut self, place: Place, record: NodeRecord) {
        let (node, boot) = place;
        if self.nodes[node].boot != boot || !self.nodes[node].engine.is_up() {
            return;
        }
        let before = self.registry.records.insert(node, (boot, record));
        if before.is_some() {
            self.drop_meta(node);
        }
        self.note(format_args!("registry: node {node} is registered"));
        self.tell_metas(&Notice::Put(node, record));
        self.tell_all(&Notice::Changed(node, Some(record)));
        let known = self.known_metas();
        if !known.is_empty() {
            self.tell(node, Notice::Metas(known));
        }
        // What it has missed while it was not registered: who is there, and who is not.
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let record = self.registry.records.get(&other).map(|(_, record)| *record);
            self.tell(node, Notice::Changed(other, record));
        }
        self.choose_metas();
    }

    /// The registry has not heard of a node for too long.
    pub(crate) fn expired(&mut self, place: Place) {
        let (node, boot) = place;
        if self.registry.records.get(&node).is_none_or(|(known, _)| *known != boot) {
            return;
        }
        self.registry.records.remove(&node);
        self.note(format_args!("registry: node {node} is gone"));
        self.drop_meta(node);
        self.tell_metas(&Notice::Remove(node));
        self.tell_all(&Notice::Changed(node, None));
        self.choose_metas();
    }

    fn drop_meta(&mut self, node: usize) {
        let before = self.registry.metas.len();
        self.registry.metas.retain(|((meta, _), _)| *meta != node);
        if self.registry.metas.len() != before {
            self.count("meta server lost");
            let known = self.known_metas();
            self.tell_all(&Notice::Metas(known));
        }
    }

    /// Asks nodes to serve until there are as many meta servers as there shall be.
    fn choose_metas(&mut self) {
        while self.registry.metas.len() < self.plan.metas {
            let serves =
                |node: &usize| self.registry.metas.iter().any(|((meta, _), _)| meta == node);
            let free = self.registry.records.iter().find(|(node, _)| !serves(node));
            let Some((&node, &(boot, _))) = free else { return };
            self.registry.metas.push(((node, boot), None));
            self.tell(node, Notice::Serve);
        }
    }

    fn known_metas(&self) -> Vec<MetaServer> {
        self.registry.metas.iter().filter_map(|(_, meta)| *meta).collect()
    }

    /// A node hears from the registry.
    pub(crate) fn told(&mut self, place: Place, notice: Notice) -> Result<(), Violation> {
        let (node, boot) = place;
        let now = self.time_at(node);
        let gids = self.gids.clone();
        if self.nodes[node].boot != boot {
            return Ok(());
        }
        self.nodes[node].called = true;
        let Some(core) = self.nodes[node].engine.call() else { return Ok(()) };
        match notice {
            Notice::Metas(metas) => core.set_meta_servers(&metas, now),
            Notice::Changed(other, record) => core.node_changed(gids[other], record, now),
            Notice::Put(other, record) => {
                if let Err(error) = core.meta_put(gids[other], record) {
                    broken!("node {node}: meta_put was refused: {error}");
                }
            }
            Notice::Remove(other) => {
                core.meta_remove(gids[other]);
            }
            Notice::Serve => {
                let meta = match core.serve_meta(META_CAPACITY) {
                    Ok(meta) => meta,
                    Err(error) => broken!("node {node}: serve_meta was refused: {error}"),
                };
                for (other, gid) in gids.into_iter().enumerate() {
                    let Some((_, record)) = self.registry.records.get(&other) else {
                        // One that served before it slept has missed what left meanwhile.
                        core.meta_remove(gid);
                        continue;
                    };
                    if let Err(error) = core.meta_put(gid, *record) {
                        broken!("node {node}: meta_put was refused: {error}");
                    }
                }
                self.note(format_args!("registry: node {node} is a meta server"));
                self.count("meta server made");
                let mut metas = self.registry.metas.iter_mut();
                if let Some((_, known)) = metas.find(|(meta, _)| *meta == place) {
                    *known = Some(meta);
                    let known = self.known_metas();
                    self.tell_all(&Notice::Metas(known));
                }
            }
        }
        Ok(())
    }
}
