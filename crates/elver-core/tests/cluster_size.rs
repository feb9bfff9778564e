//! As many nodes as a cluster may have by default: all are found, in a READ or two each, and the table
//! takes memory for those that there are.

mod common;

use std::net::IpAddr;
use std::time::Instant;

use common::{WAIT, device};
use elver_core::*;
use elver_verbs::*;

/// The default of `meta.nodes_max`.
const NODES: u32 = 65_536;

fn gid(node: u32) -> Gid {
    Gid::from(IpAddr::from((0x0a00_0000 + node).to_be_bytes()))
}

/// Bytes of this process that take memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1_024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn a_table_of_65536_nodes_takes_memory_for_those_that_there_are() {
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64 + 1);
    let core = |host: u8| {
        Core::new(device(152, host, &|_| {}), Config::default(), u64::from(host), now()).unwrap()
    };
    let [mut meta, mut own] = [1, 2].map(core);
    let before = resident_bytes();
    let server = meta.serve_meta(NODES).unwrap();
    let record = |node: u32| NodeRecord { mrs_rkey: node, ..meta.record() };
    let records: Vec<NodeRecord> = (0..NODES).map(record).collect();
    for node in 0..10 {
        meta.meta_put(gid(node), records[node as usize]).unwrap();
    }
    let list = (NODES as usize * size_of::<NodeRecord>()) as u64;
    let few = resident_bytes().saturating_sub(before + list);
    for node in 10..NODES {
        meta.meta_put(gid(node), records[node as usize]).unwrap();
    }
    let all = resident_bytes().saturating_sub(before + list);
    println!("the table takes {few} bytes with 10 nodes, {all} with {NODES}");
    assert!(few < 512 << 10, "{few} bytes for 10 nodes");
    assert!((4 << 20..8 << 20).contains(&all), "{all} bytes for {NODES}");

    own.set_meta_servers(&[server], now());
    let client = own.client_open(ClientLimits::default()).unwrap();
    let samples = (0..NODES).step_by(331);
    for node in samples.clone() {
        let vqp = own.vqp_create(client, VqpInit::default()).unwrap();
        own.qconnect(client, vqp, gid(node), 1, ConnectOptions::default(), 0, now()).unwrap();
        let via = loop {
            assert!(start.elapsed() < WAIT, "node {node} was not found");
            own.poll(now());
            meta.poll(now());
            if let Some(Event::Connected { result, .. }) = own.poll_event() {
                break result;
            }
        };
        assert_eq!(via, Ok(Via::DcLookup), "node {node}");
        own.vqp_destroy(client, vqp, now()).unwrap();
    }
    let (lookups, reads) = (own.stats().lookups, own.stats().lookup_reads);
    assert_eq!((lookups, own.stats().lookups_failed_over), (samples.count() as u64, 0));
    assert!(reads <= lookups + lookups / 20, "{reads} READs for {lookups} nodes");
}
