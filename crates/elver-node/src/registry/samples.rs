//! Records for tests.

use elver_core::{MetaServer, NodeRecord};
use elver_kv::{Descriptor, Layout, TableId};
use elver_verbs::Gid;

/// A node's record; another for another number.
pub(super) fn record(number: u32) -> NodeRecord {
    let layout = Layout::for_capacity(100, 4, 20).unwrap();
    let id = TableId { seed: 77, incarnation: number };
    let mrs = Descriptor::new(0x7000_0000, number, layout, id).unwrap();
    NodeRecord { dctn: 0x1234, dc_key: u64::from(number), control_qpn: 17, mrs }
}

/// A meta server; another for another number.
pub(super) fn meta_server(number: u8) -> MetaServer {
    let record = record(u32::from(number));
    MetaServer { gid: gid(number), record, nodes: record.mrs }
}

/// A GID of 127.0.0.0/8.
pub(super) fn gid(number: u8) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(127, 0, 0, number))
}
