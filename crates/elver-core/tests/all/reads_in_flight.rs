//! READs in flight towards a peer that serves fewer at once than this node may have outstanding.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// READs and atomics that the second node serves at once.
const FEW: u8 = 16;
const READS: u64 = 100;

/// Three nodes; the last takes few READs at once, the others as many as a device may.
fn cluster() -> Cluster {
    Cluster::on(network(0, 1), 3, &config(), |host, device| {
        if host == 3 {
            device.max_rd_atomic = FEW;
        }
    })
}

fn connect(cluster: &mut Cluster, n: usize, to: usize, policy: Policy) -> VqpId {
    let (vqp, gid, now) = (cluster.vqp(n), cluster.nodes[to].core.gid(), cluster.now());
    let node = &mut cluster.nodes[n];
    let options = ConnectOptions { policy, uncached: false };
    let token = u64::from(vqp.0);
    let via = node.core.qconnect(node.client, vqp, gid, 7, options, token, now).unwrap();
    if via.is_none() {
        cluster.connected(n, vqp).unwrap();
    }
    vqp
}

/// Posts READs in one call, so that the device could have all of them outstanding at once, and
/// atomics behind them.
fn read_much(cluster: &mut Cluster, n: usize, vqp: VqpId, to: usize) {
    let near = cluster.region(n, READS * 8, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(to, READS * 8, ALL);
    let pieces: Vec<[Sge; 1]> = (0..READS).map(|at| [near.sge(at * 8, 8)]).collect();
    let op = |at: u64| match at % 10 {
        9 => SendOp::FetchAdd { remote: far.remote(at * 8), add: 1 },
        _ => SendOp::Read(far.remote(at * 8)),
    };
    let wrs: Vec<SendWr<'_>> =
        pieces.iter().zip(0..).map(|(sges, at)| wr(at, op(at), sges)).collect();
    cluster.post(n, vqp, &wrs);
    for completion in cluster.take(n, READS as usize) {
        assert_eq!(completion.wc.status, WcStatus::Success, "WR {}", completion.wc.wr_id);
    }
}

fn refusals(cluster: &mut Cluster) -> u64 {
    cluster.nodes.iter_mut().map(|node| node.core.device().counters().nak_fatal_sent).sum()
}

/// A node that asked for more than its peer serves would be refused, and the link be lost.
#[test]
fn the_end_that_asks_for_a_link_keeps_to_what_the_other_serves() {
    let mut cluster = cluster();
    let vqp = connect(&mut cluster, 1, 2, Policy::Lite);
    read_much(&mut cluster, 1, vqp, 2);
    assert_eq!(refusals(&mut cluster), 0);
    cluster.check();
}

/// The end that was asked goes to RTS later than the other, when what it was told lies behind.
#[test]
fn the_end_that_is_asked_keeps_to_it_too() {
    let mut cluster = cluster();
    connect(&mut cluster, 2, 1, Policy::Lite);
    let gid = cluster.nodes[2].core.gid();
    cluster.until("the asked end is ready", |cluster| {
        cluster.nodes[1].core.peers().any(|peer| peer.gid == gid && peer.rc_qps == 1)
    });
    let back = connect(&mut cluster, 1, 2, Policy::default());
    let info = cluster.nodes[1].core.vqp_info(cluster.nodes[1].client, back).unwrap();
    assert_eq!(info.via, Some(Via::Rc));
    read_much(&mut cluster, 1, back, 2);
    assert_eq!(refusals(&mut cluster), 0);
    cluster.check();
}

/// Nobody tells of a DCT's limit: it is the same at every node, whatever its device is allowed.
#[test]
fn over_dc_every_node_serves_as_many_as_any_sends() {
    let mut cluster = cluster();
    let vqp = connect(&mut cluster, 1, 2, Policy::Shared);
    read_much(&mut cluster, 1, vqp, 2);
    let back = connect(&mut cluster, 2, 1, Policy::Shared);
    read_much(&mut cluster, 2, back, 1);
    assert_eq!(refusals(&mut cluster), 0);
    cluster.check();
}
