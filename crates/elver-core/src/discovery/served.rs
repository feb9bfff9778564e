use elver_kv::Table;
use elver_verbs::MrInfo;

/// The table of all nodes, on a meta server.
#[derive(Debug)]
pub(crate) struct ServedTable<M> {
    pub(crate) table: Table<M>,
    pub(super) mr: MrInfo,
}
