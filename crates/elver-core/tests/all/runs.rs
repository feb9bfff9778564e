//! WRs that go to the device by the call that posts them, and end in runs: whatever stands between them, each does
//! what it says, and is told or not as was asked.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

/// Regions of each end.
const REGIONS: u64 = 2;
const BYTES: u64 = 1 << 12;

/// What the `n`th WR is, so that a few hundred of them have most sequences of region, operation and flag.
fn choice(n: u64, of: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(of as u32 * 7) >> 60
}

#[test]
fn runs_of_all_sorts_are_told_as_they_were_asked_for() {
    let mut cluster = Cluster::new(3, &config());
    let near = [(); REGIONS as usize].map(|()| cluster.region(1, BYTES, AccessFlags::LOCAL_WRITE));
    let far = [(); REGIONS as usize].map(|()| cluster.region(2, BYTES, ALL));
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    let (mut posted, mut expected) = (0, Vec::new());
    for batch in [1, 2, 3, 64, 5, 1, 100, 17, 33, 64] {
        for (at, region) in near.iter().enumerate() {
            (0..BYTES / 8).for_each(|n| region.fill(8 * n, &((n << 8) | at as u64).to_ne_bytes()));
        }
        let sges: Vec<[Sge; 2]> = (posted..posted + batch)
            .map(|n| {
                let region = &near[(choice(n, 0) % REGIONS) as usize];
                [region.sge(8 * n, 4), region.sge(8 * n + 4, 4)]
            })
            .collect();
        let wrs: Vec<SendWr<'_>> = (posted..posted + batch)
            .zip(&sges)
            .map(|(n, sges)| {
                let remote = far[(choice(n, 1) % REGIONS) as usize].remote(8 * n);
                let op = match choice(n, 2) {
                    0..4 => SendOp::Read(remote),
                    _ => SendOp::Write(remote),
                };
                let pieces = match choice(n, 3) {
                    0 => 2,
                    1 => 0,
                    _ => 1,
                };
                let make = if choice(n, 4) < 4 { wr } else { quiet };
                make(n, op, &sges[..pieces])
            })
            .collect();
        cluster.post(1, vqp, &wrs);
        let told = wrs.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED));
        expected.extend(told.map(|wr| wr.wr_id));
        posted += batch;
        let client = cluster.nodes[1].client;
        cluster.until("all are done", |cluster| {
            cluster.nodes[1].core.vqp_info(client, vqp).is_ok_and(|it| it.sends_done == it.sends)
        });
        for wr in wrs.iter().filter(|wr| matches!(wr.op, SendOp::Write(_))) {
            let (n, Payload::Sges(sges)) = (wr.wr_id, wr.payload) else { panic!("{wr:?}") };
            let bytes = sges.iter().map(|sge| sge.length as usize).sum();
            let value = ((n << 8) | (choice(n, 0) % REGIONS)).to_ne_bytes();
            let there = far[(choice(n, 1) % REGIONS) as usize].bytes(8 * n, bytes);
            assert_eq!(there, value[..bytes], "WR {n}");
        }
    }
    let done = cluster.take(1, expected.len());
    let told: Vec<u64> = done.iter().map(|done| done.wc.wr_id).collect();
    assert_eq!(told, expected);
    assert!(done.iter().all(|done| done.wc.status == WcStatus::Success));
    cluster.nodes[1].core.audit().unwrap();
    cluster.check();
}

#[test]
fn a_region_is_used_until_the_last_of_a_run_has_ended() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, BYTES, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, BYTES, ALL);
    let vqp = cluster.vqp(1);
    cluster.connect(1, vqp, 2, 0);
    let sges = [near.sge(0, 8)];
    // Known from here on, so that what follows goes at once.
    cluster.post(1, vqp, &[wr(0, SendOp::Read(far.remote(0)), &sges)]);
    cluster.take_one(1);
    let wrs: Vec<SendWr<'_>> =
        (1..=40).map(|n| quiet(n, SendOp::Write(far.remote(8 * n)), &sges)).collect();
    cluster.post(1, vqp, &wrs);
    let (client, lkey, now) = (cluster.nodes[1].client, sges[0].lkey, cluster.now());
    assert_eq!(cluster.nodes[1].core.dereg_mr(client, lkey, 5, now), Ok(()));
    let refused = cluster.try_post(1, vqp, &wrs[..1]).unwrap_err();
    assert!(matches!(refused, (0, PostError::LocalAccess { .. })), "{refused:?}");
    cluster.until("it goes when they have ended", |cluster| {
        let node = &cluster.nodes[1];
        let is_told = |event: &Event| matches!(event, Event::Deregistered { token: 5, .. });
        let is_gone = node.events.iter().any(is_told);
        let left = node.core.vqp_info(client, vqp).unwrap().outstanding;
        assert!(!is_gone || left == 0, "{left} WRs use it");
        is_gone
    });
    cluster.nodes[1].core.audit().unwrap();
    cluster.check();
}

/// Messages of any length one behind the other: the short ones go another way than the rest.
#[test]
fn messages_of_all_lengths_arrive_whole_and_in_order() {
    let mut cluster = Cluster::new(3, &config());
    let near = cluster.region(1, BYTES, AccessFlags::LOCAL_WRITE);
    let far = cluster.region(2, 64 * BYTES, ALL);
    let (vqp, bound) = (cluster.vqp(1), cluster.bound(2, 7));
    cluster.connect(1, vqp, 2, 7);
    (0..BYTES).for_each(|n| near.fill(n, &[(n * 7) as u8]));
    let mut posted = 0;
    for batch in [1, 1, 2, 7, 40, 60] {
        let length = |n: u64| [0, 1, 8, 63, 64, 65, 300, 8, 17, 64][(n % 10) as usize];
        let room: Vec<[Sge; 1]> = (0..batch).map(|n| [far.sge((posted + n) * 512, 512)]).collect();
        for (n, sges) in (posted..).zip(&room) {
            cluster.recv(2, bound, n, sges);
        }
        let sges: Vec<[Sge; 1]> =
            (posted..posted + batch).map(|n| [near.sge(n, length(n))]).collect();
        let wrs: Vec<SendWr<'_>> = (posted..posted + batch)
            .zip(&sges)
            .map(|(n, sges)| {
                let op =
                    if choice(n, 5) < 4 { SendOp::SendWithImm(n as u32) } else { SendOp::Send };
                let make = if choice(n, 6) < 8 { wr } else { quiet };
                make(n, op, sges)
            })
            .collect();
        cluster.post(1, vqp, &wrs);
        let done = cluster.take(2, batch as usize);
        for (wr, done) in wrs.iter().zip(&done) {
            let imm = match wr.op {
                SendOp::SendWithImm(imm) => (WcFlags::WITH_IMM, imm),
                _ => (WcFlags::empty(), 0),
            };
            let (n, length) = (wr.wr_id, length(wr.wr_id));
            assert_eq!(
                (done.wc.wr_id, done.wc.byte_len, done.wc.status),
                (n, length, WcStatus::Success)
            );
            assert_eq!((done.wc.flags, done.wc.imm_data), imm, "message {n}");
            let bytes = far.bytes(n * 512, length as usize);
            assert_eq!(bytes, near.bytes(n, length as usize), "message {n}");
        }
        let client = cluster.nodes[1].client;
        cluster.until("all are done", |cluster| {
            cluster.nodes[1].core.vqp_info(client, vqp).is_ok_and(|it| it.sends_done == it.sends)
        });
        let told =
            wrs.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED)).map(|wr| wr.wr_id);
        let told: Vec<u64> = told.collect();
        let done = cluster.take(1, told.len());
        assert_eq!(done.iter().map(|done| done.wc.wr_id).collect::<Vec<u64>>(), told);
        posted += batch;
    }
    cluster.nodes[1].core.audit().unwrap();
    cluster.check();
}
