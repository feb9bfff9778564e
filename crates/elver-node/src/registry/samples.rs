//! Records for tests.

use elver_core::{MetaServer, NodeRecord, Terms};
use elver_verbs::Gid;

/// A node's record; another for another number.
pub(crate) fn record(number: u32) -> NodeRecord {
    let dc_key = u64::from(number);
    NodeRecord {
        dctn: 0x1234,
        dc_key,
        control_qpn: 17,
        mrs_rkey: number,
        log_mrs_max: 7,
        terms: Terms::default(),
    }
}

/// A meta server; another for another number.
pub(super) fn meta_server(number: u8) -> MetaServer {
    let record = record(u32::from(number));
    MetaServer { gid: gid(number), record, nodes: record.mrs().unwrap() }
}

/// A GID of 127.0.0.0/8.
pub(crate) fn gid(number: u8) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(127, 0, 0, number))
}
