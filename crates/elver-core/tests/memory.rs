//! What connections take: KRCORE's 6.3 MB at 5,000 peers, and a constant for each VQP.

mod common;

use std::net::IpAddr;
use std::time::Instant;

use common::{WAIT, device};
use elver_core::*;
use elver_soft::SoftDevice;
use elver_verbs::*;

const PEERS: u32 = 5_000;
/// KRCORE, figure 15a.
const BYTES_MAX: u64 = 6_300_000;
const VQPS: u32 = 10_000;
/// What the documentation of [`Core::vqp_bytes`] promises.
const VQP_BYTES_MAX: u64 = 512;
const USED_VQP_BYTES_MAX: u64 = 1_200;

struct End {
    core: Core<SoftDevice>,
    client: ClientId,
    region: MrInfo,
}

fn end(host: u8) -> End {
    let mut core =
        Core::new(device(150, host, &|_| {}), Config::default(), u64::from(host), Time(1)).unwrap();
    let limits = ClientLimits { vqps: VQPS, completions: VQPS, ..ClientLimits::default() };
    let client = core.client_open(limits).unwrap();
    let memory = core.device().alloc_memory(4_096).unwrap();
    let region = core.reg_mr(client, memory, None, common::ALL).unwrap();
    End { core, client, region }
}

#[test]
fn connections_take_what_is_promised() {
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64 + 1);
    let [mut meta, mut own] = [1, 2].map(end);
    let server = meta.core.serve_meta(PEERS + 1).unwrap();
    let gid = |peer: u32| Gid::from(IpAddr::from((0x0a00_0000 + peer).to_be_bytes()));
    for peer in 0..PEERS {
        meta.core.meta_put(gid(peer), meta.core.record()).unwrap();
    }
    own.core.set_meta_servers(&[server], now());
    let empty = own.core.connection_bytes();

    // Each is connected to, so that it has all that a peer has, and stays remembered.
    for peer in 0..PEERS {
        let vqp = own.core.vqp_create(own.client, VqpInit::default()).unwrap();
        let options = ConnectOptions::default();
        own.core.qconnect(own.client, vqp, gid(peer), 1, options, 0, now()).unwrap();
        let mut connected = false;
        while !connected {
            assert!(start.elapsed() < WAIT, "peer {peer} was not connected");
            own.core.poll(now());
            meta.core.poll(now());
            while let Some(event) = own.core.poll_event() {
                assert!(matches!(event, Event::Connected { result: Ok(_), .. }), "{event:?}");
                connected = true;
            }
        }
        own.core.vqp_destroy(own.client, vqp, now()).unwrap();
    }
    let full = own.core.connection_bytes();
    assert_eq!(own.core.stats().peers, u64::from(PEERS) + 2);
    assert!((empty..=BYTES_MAX).contains(&full), "{empty} and then {full} bytes");

    // VQPs take their own memory, and nothing of the pool's.
    let vqps_before = own.core.vqp_bytes();
    let to = meta.core.gid();
    let mut vqps = Vec::new();
    for _ in 0..VQPS {
        let vqp = own.core.vqp_create(own.client, VqpInit::default()).unwrap();
        let options = ConnectOptions::default();
        let via = own.core.qconnect(own.client, vqp, to, 1, options, 0, now()).unwrap();
        assert!(via.is_some(), "the meta server's record is at hand");
        vqps.push(vqp);
    }
    let each = |core: &Core<SoftDevice>| (core.vqp_bytes() - vqps_before) / u64::from(VQPS);
    assert!(each(&own.core) <= VQP_BYTES_MAX, "{} bytes", each(&own.core));
    let sges = [Sge { addr: own.region.addr, length: 8, lkey: own.region.lkey }];
    let remote = RemoteAddr { addr: meta.region.addr, rkey: meta.region.rkey };
    let read = common::wr(0, SendOp::Read(remote), &sges);
    for vqp in &vqps {
        own.core.post_send(own.client, *vqp, &[read], now()).unwrap();
        let mut done = [Completion { vqp: *vqp, source: None, wc: Wc::default() }];
        while own.core.poll_completions(own.client, &mut done) == 0 {
            assert!(start.elapsed() < WAIT, "a READ did not complete");
            own.core.poll(now());
            meta.core.poll(now());
        }
        assert_eq!(done[0].wc.status, WcStatus::Success);
    }
    assert!(each(&own.core) <= USED_VQP_BYTES_MAX, "{} bytes", each(&own.core));
    let grown = own.core.connection_bytes() - full;
    assert!(grown < 1 << 16, "the pool grew by {grown} bytes with VQPs");
}
