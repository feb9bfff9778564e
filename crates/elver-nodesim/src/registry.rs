//! The registry that nodes register at: it keeps the meta servers' tables and tells every node of
//! what changes, each in order, all of it late.

use std::collections::BTreeMap;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::Time;

use crate::model::Place;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// What nodes registered, by node.
    pub(crate) records: BTreeMap<usize, (u32, NodeRecord)>,
    /// Those that serve as meta servers, or were asked to.
    pub(crate) metas: Vec<(Place, Option<MetaServer>)>,
    /// When the last thing told to each node arrives there.
    pub(crate) told_until: BTreeMap<usize, Time>,
    /// When anything that it knows, or has told, changed last.
    pub(crate) changed_at: Time,
    /// It does nothing before this.
    pub(crate) down_until: Time,
}

impl Registry {
    /// Where meta servers are.
    pub(crate) fn served_at(&self) -> Vec<Place> {
        let made = self.metas.iter().filter(|(_, made)| made.is_some());
        made.map(|(place, _)| *place).collect()
    }
}

/// What the registry tells a node.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    Metas(Vec<MetaServer>),
    Changed(usize, Option<NodeRecord>),
    Serve,
    Put(usize, NodeRecord),
    Remove(usize),
}

/// What happens at some time.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Boot(usize),
    Register(Place, NodeRecord),
    Expire(Place),
    Tell(Place, Notice),
}
