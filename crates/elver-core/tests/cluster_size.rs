//! As many nodes as a cluster may have by default: all are found, in a READ or two each, and the table
//! takes memory for those that there are. A program of its own, since it looks at all of its memory.

use std::net::IpAddr;

use elver_core::*;
use elver_sim::{FaultPlan, SimNet};
use elver_verbs::*;

/// The default of `meta.nodes_max`.
const NODES: u32 = 65_536;
/// Rounds that a connect may take.
const ROUNDS_MAX: u32 = 1_000;

fn address(node: u32) -> IpAddr {
    IpAddr::from((0x0b00_0000 + node).to_be_bytes())
}

fn gid(node: u32) -> Gid {
    Gid::from(address(node))
}

/// Bytes of this process that take memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1_024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn a_table_of_65536_nodes_takes_memory_for_those_that_there_are() {
    let net = SimNet::new([1, 2].map(address).to_vec(), &FaultPlan::default(), 1);
    let now = || net.now();
    let core = |host: usize| {
        let device = net.device(host, elver_sim::Config::default()).unwrap();
        Core::new(device, Config::default(), host as u64, now()).unwrap()
    };
    let [mut meta, mut own] = [0, 1].map(core);
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
        let via = (0..ROUNDS_MAX).find_map(|_| {
            own.poll(now());
            meta.poll(now());
            let later = now().saturating_add_ns(1_000);
            net.advance(net.next_arrival().map_or(later, |next| next.min(later)));
            match own.poll_event() {
                Some(Event::Connected { result, .. }) => Some(result),
                _ => None,
            }
        });
        assert_eq!(via, Some(Ok(Via::DcLookup)), "node {node}");
        own.vqp_destroy(client, vqp, now()).unwrap();
    }
    let (lookups, reads) = (own.stats().lookups, own.stats().lookup_reads);
    assert_eq!((lookups, own.stats().lookups_failed_over), (samples.count() as u64, 0));
    assert!(reads <= lookups + lookups / 20, "{reads} READs for {lookups} nodes");
}
