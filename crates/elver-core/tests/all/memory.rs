//! What connections take: KRCORE's 6.3 MB at 5,000 peers, and a constant for each VQP.

use std::net::IpAddr;

use crate::common::network;
use elver_core::*;
use elver_sim::{SimDevice, SimNet};
use elver_verbs::*;

const PEERS: u32 = 5_000;
/// KRCORE, figure 15a.
const BYTES_MAX: u64 = 6_300_000;
const VQPS: u32 = 10_000;
/// What the documentation of [`Core::vqp_bytes`] promises.
const VQP_BYTES_MAX: u64 = 512;
const USED_VQP_BYTES_MAX: u64 = 1_200;
/// Rounds that a connect or a READ may take.
const ROUNDS_MAX: u32 = 1_000;

struct End {
    core: Core<SimDevice>,
    client: ClientId,
    region: MrInfo,
}

fn end(net: &SimNet, host: usize) -> End {
    let device = net.device(host, elver_sim::Config::default()).unwrap();
    let mut core = Core::new(device, Config::default(), host as u64, net.now()).unwrap();
    let limits = ClientLimits { vqps: VQPS, completions: VQPS, ..ClientLimits::default() };
    let client = core.client_open(limits).unwrap();
    let memory = core.device().alloc_memory(4_096).unwrap();
    let region = core.reg_mr(client, memory, None, crate::common::ALL).unwrap();
    End { core, client, region }
}

/// Both look at the network, and time passes until the next packet comes.
fn round(net: &SimNet, ends: [&mut End; 2]) {
    for end in ends {
        end.core.poll(net.now());
    }
    let later = net.now().saturating_add_ns(1_000);
    net.advance(net.next_arrival().map_or(later, |next| next.min(later)));
}

#[test]
fn connections_take_what_is_promised() {
    let net = network(0, 1);
    let now = || net.now();
    let [mut meta, mut own] = [0, 1].map(|host| end(&net, host));
    let server = meta.core.serve_meta(PEERS + 1).unwrap();
    let gid = |peer: u32| Gid::from(IpAddr::from((0x0b00_0000 + peer).to_be_bytes()));
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
        let connected = (0..ROUNDS_MAX).any(|_| {
            round(&net, [&mut own, &mut meta]);
            let Some(event) = own.core.poll_event() else { return false };
            assert!(matches!(event, Event::Connected { result: Ok(_), .. }), "{event:?}");
            true
        });
        assert!(connected, "peer {peer} was not connected");
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
    let each = |core: &Core<SimDevice>| (core.vqp_bytes() - vqps_before) / u64::from(VQPS);
    assert!(each(&own.core) <= VQP_BYTES_MAX, "{} bytes", each(&own.core));
    let sges = [Sge { addr: own.region.addr, length: 8, lkey: own.region.lkey }];
    let remote = RemoteAddr { addr: meta.region.addr, rkey: meta.region.rkey };
    let read = crate::common::wr(0, SendOp::Read(remote), &sges);
    for vqp in &vqps {
        own.core.post_send(own.client, *vqp, &[read], now()).unwrap();
        let mut done = [Completion { vqp: *vqp, source: None, wc: Wc::default() }];
        let completed = (0..ROUNDS_MAX).any(|_| {
            round(&net, [&mut own, &mut meta]);
            own.core.poll_completions(own.client, &mut done) > 0
        });
        assert!(completed, "a READ did not complete");
        assert_eq!(done[0].wc.status, WcStatus::Success);
    }
    assert!(each(&own.core) <= USED_VQP_BYTES_MAX, "{} bytes", each(&own.core));
    let grown = own.core.connection_bytes() - full;
    assert!(grown < 1 << 16, "the pool grew by {grown} bytes with VQPs");
}
