//! Nodes that are configured differently: what each promises in its record counts, and a send queue
//! that holds a WR up for longer than any promise harms nobody else.

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_sim::SimMemory;
use elver_verbs::*;

const MS: u64 = 1_000_000;
const ALL: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_CHANGES);

fn nodes(count: u8, config: &dyn Fn(usize) -> Config) -> Nodes {
    Nodes::with(count, config, &elver_sim::Config::default(), ClientLimits::default())
}

fn leased(lease_ns: u64) -> Config {
    // All retries within 33 ms, and no timers but those of the leases: what has happened shows at the next one.
    let (timeout, retry_cnt) = (11, 3);
    Config { mr_lease_ns: lease_ns, timeout, retry_cnt, keep_alive_ns: 0, ..Config::default() }
}

fn region(nodes: &mut Nodes, n: usize, bytes: u64) -> (MrInfo, SimMemory) {
    let node = &mut nodes.nodes[n];
    let memory = node.core.device().alloc_memory(bytes).unwrap();
    (node.core.reg_mr(node.client, memory.clone(), None, ALL).unwrap(), memory)
}

fn connected(nodes: &mut Nodes, n: usize, to: usize) -> VqpId {
    let vqp = nodes.vqp(n, VqpInit::default());
    nodes.connect(n, vqp, to, Policy::Shared).unwrap();
    vqp
}

fn post(nodes: &mut Nodes, n: usize, vqp: VqpId, op: SendOp, sges: &[Sge]) {
    let now = nodes.net.now();
    let node = &mut nodes.nodes[n];
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(sges));
    let wr = SendWr { wr_id: vqp.0.into(), op, flags, payload, dest: None };
    node.core.post_send(node.client, vqp, &[wr], now).unwrap();
}

/// The next completion of a node's.
fn completion(nodes: &mut Nodes, n: usize) -> Completion {
    let mut one = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }];
    nodes.until(|nodes| {
        let node = &mut nodes.nodes[n];
        node.core.poll_completions(node.client, &mut one) == 1
    });
    one[0]
}

fn write(nodes: &mut Nodes, n: usize, vqp: VqpId, from: &MrInfo, to: &MrInfo, length: u32) {
    let sges = [Sge { addr: from.addr, length, lkey: from.lkey }];
    let op = SendOp::Write(RemoteAddr { addr: to.addr, rkey: to.rkey });
    post(nodes, n, vqp, op, &sges);
}

/// Deregisters a region of a node's; returns how long it took.
fn deregister(nodes: &mut Nodes, n: usize, lkey: u32) -> u64 {
    let start = nodes.net.now();
    let node = &mut nodes.nodes[n];
    node.core.dereg_mr(node.client, lkey, 5, start).unwrap();
    nodes.until(|nodes| {
        matches!(nodes.nodes[n].core.poll_event(), Some(Event::Deregistered { token: 5, .. }))
    });
    nodes.net.now().ns_since(start)
}

/// A peer that is configured for a lease of a second took an owner's region for valid long after the
/// owner, whose own lease is 20 ms, had let it go, and its WRITE failed at the shared queue pair.
#[test]
fn the_owners_lease_counts_whatever_its_peers_are_configured_for() {
    for (owners, peers) in [(20 * MS, 1_000 * MS), (1_000 * MS, 20 * MS)] {
        let config = |host| leased(if host == 2 { owners } else { peers });
        let mut nodes = nodes(3, &config);
        let (near, _) = region(&mut nodes, 1, 64);
        let (far, memory) = region(&mut nodes, 2, 64);
        let vqp = connected(&mut nodes, 1, 2);
        write(&mut nodes, 1, vqp, &near, &far, 8);
        assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::Success);
        let asked = nodes.nodes[1].core.stats().mr_lookups;
        let took = deregister(&mut nodes, 2, far.lkey);
        let terms = nodes.nodes[2].core.record().terms;
        let wait = terms.lease_ns().max(terms.flight_ns()) + terms.flight_ns();
        assert!((wait..=wait + MS).contains(&took), "{took} ns for {wait}");
        memory.write(0, &[7; 8]).unwrap();
        write(&mut nodes, 1, vqp, &near, &far, 8);
        assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::RemAccessErr);
        let stats = nodes.nodes[1].core.stats();
        assert_eq!((stats.mr_refusals + stats.mr_lookups, stats.lanes_reset), (asked + 1, 0));
        assert_eq!(stats.mr_leases_outlived, 0, "it was asked for again");
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
    }
}

/// A WRITE passes the check under a lease, and then waits in the lane behind another one that takes
/// longer than lease and retries together. The deregistration does not wait for it, since nothing
/// bounds that: the key is dead, its VQP alone fails, and what both shared goes on.
#[test]
fn what_waits_in_a_slow_queue_for_longer_than_a_lease_is_refused_alone() {
    let mut nodes = nodes(3, &|_| leased(5 * MS));
    const BULK: u64 = 1 << 30;
    let (near, _) = region(&mut nodes, 1, 64);
    let (bulk_from, _) = region(&mut nodes, 1, BULK);
    let (bulk_to, _) = region(&mut nodes, 2, BULK);
    let (far, memory) = region(&mut nodes, 2, 64);
    let [bulk, late] = [1, 1].map(|n| connected(&mut nodes, n, 2));
    for (vqp, to) in [(bulk, &bulk_to), (late, &far)] {
        write(&mut nodes, 1, vqp, &near, to, 8);
        assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::Success);
    }
    write(&mut nodes, 1, bulk, &bulk_from, &bulk_to, BULK as u32);
    write(&mut nodes, 1, late, &near, &far, 8);
    let took = deregister(&mut nodes, 2, far.lkey);
    memory.write(0, &[7; 8]).unwrap();
    let stats = nodes.nodes[1].core.stats();
    assert_eq!(stats.mr_leases_outlived, 0, "it waits still, after {took} ns");
    let mut ended = [completion(&mut nodes, 1), completion(&mut nodes, 1)]
        .map(|completion| (completion.vqp, completion.wc.status));
    ended.sort_by_key(|(vqp, _)| *vqp != bulk);
    assert_eq!(ended, [(bulk, WcStatus::Success), (late, WcStatus::RemAccessErr)]);
    assert_eq!(nodes.nodes[1].core.stats().mr_leases_outlived, 1);
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8], "nobody touched it");
    write(&mut nodes, 1, bulk, &near, &bulk_to, 8);
    assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::Success);
}

/// A sender copied what its own buffers would hold, and lost the lane to the receiver's refusal.
#[test]
fn a_receiver_with_small_buffers_reads_what_they_do_not_hold() {
    let small = |host| match host {
        2 => Config { recv_buffer_bytes: 900, eager_bytes_max: 850, ..Config::default() },
        _ => Config { max_inline: 1_000, ..Config::default() },
    };
    let device = elver_sim::Config { max_inline_data: 1_024, ..elver_sim::Config::default() };
    let mut nodes = Nodes::with(3, &small, &device, ClientLimits::default());
    let room = nodes.nodes[2].core.record().terms.room_bytes();
    assert!((800..1_000).contains(&room), "{room}");
    let (near, from) = region(&mut nodes, 1, 16_384);
    let (inbox, to) = region(&mut nodes, 2, 16_384);
    let bound = nodes.vqp(2, VqpInit::default());
    let node = &mut nodes.nodes[2];
    node.core.qbind(node.client, bound, 7).unwrap();
    let vqp = connected(&mut nodes, 1, 2);
    for length in [room - 1, room, room + 1, 10_000, 16_384] {
        from.write(0, &vec![length as u8; length as usize]).unwrap();
        let now = nodes.net.now();
        let sges = [Sge { addr: inbox.addr, length: 16_384, lkey: inbox.lkey }];
        let node = &mut nodes.nodes[2];
        let recv = RecvWr { wr_id: 1, sges: &sges };
        node.core.post_recv(node.client, bound, &[recv], now).unwrap();
        let sges = [Sge { addr: near.addr, length, lkey: near.lkey }];
        post(&mut nodes, 1, vqp, SendOp::Send, &sges);
        let got = completion(&mut nodes, 2);
        assert_eq!((got.wc.status, got.wc.byte_len), (WcStatus::Success, length));
        assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::Success, "{length}");
        let mut bytes = vec![0; length as usize];
        to.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == length as u8));
    }
    // What stands in no region cannot be read: that is said before it leaves.
    let bytes = vec![1; room as usize + 1];
    let (now, node) = (nodes.net.now(), &mut nodes.nodes[1]);
    let payload = Payload::Inline(&bytes);
    let flags = SendFlags::SIGNALED;
    let inline = SendWr { wr_id: 9, op: SendOp::Send, flags, payload, dest: None };
    node.core.post_send(node.client, vqp, &[inline], now).unwrap();
    assert_eq!(completion(&mut nodes, 1).wc.status, WcStatus::LocLenErr);
    let stats = nodes.nodes[1].core.stats();
    assert_eq!((stats.lanes_reset, stats.wrs_reposted), (0, 0), "no queue pair has seen it");
}
