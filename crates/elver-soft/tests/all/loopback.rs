//! Devices on loopback: packets through real sockets.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::common::{End, complete, pair, scratch};
use elver_soft::{Idle, SoftConfig, SoftThread, drive};
use elver_verbs::*;

fn all_succeed(wcs: &[Wc]) {
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
}

fn megabytes_both_ways(n: u8, change: impl Fn(&mut SoftConfig)) {
    let (mut a, mut b) = pair(n, QpType::Rc, change);
    let data: Vec<u8> = (0..1_000_003u32).map(|i| ((i * 31) >> 3) as u8).collect();
    a.memory.write(0, &data).unwrap();
    let sge = [a.sge(0, data.len() as u32)];
    let to = b.remote(100);
    a.post(SendOp::Write(to), &sge);
    all_succeed(&complete(&mut a, &mut b, 1));
    let mut arrived = vec![0; data.len()];
    b.memory.read(100, &mut arrived).unwrap();
    assert!(arrived == data, "what was written is there");

    a.memory.write(0, &vec![0; data.len()]).unwrap();
    a.post(SendOp::Read(to), &sge);
    all_succeed(&complete(&mut a, &mut b, 1));
    a.memory.read(0, &mut arrived).unwrap();
    assert!(arrived == data, "what was read is there");
    assert_eq!(b.device.counters().drop_icrc, 0);
    assert_eq!(a.device.counters().drop_icrc, 0);
}

#[test]
fn with_segmentation() {
    megabytes_both_ways(11, |_| {});
}

#[test]
fn without_segmentation() {
    megabytes_both_ways(12, |config| {
        config.gso = false;
        config.gro = false;
    });
}

#[test]
fn segmentation_on_one_side_of_the_wire_only() {
    megabytes_both_ways(13, |config| config.gro = false);
    megabytes_both_ways(23, |config| config.gso = false);
}

/// Several messages in turns of a few packets, in trains that are looked behind.
#[test]
fn in_short_turns_everything_arrives() {
    let (mut a, mut b) = pair(19, QpType::Rc, |_| {});
    a.device.take_short_turns(a.qp, true);
    b.device.take_short_turns(b.qp, true);
    let sge = [a.sge(0, 1 << 20)];
    let to = b.remote(0);
    for _ in 0..4 {
        a.post(SendOp::Write(to), &sge);
        a.post(SendOp::Read(to), &sge);
    }
    let back = [b.sge(0, 1 << 20)];
    let from = a.remote(0);
    b.post(SendOp::Write(from), &back);
    all_succeed(&complete(&mut a, &mut b, 8));
}

/// Bytes come through as they do without it, and the device tells when it is to be driven again.
#[test]
fn with_delay_everything_arrives_later() {
    let delay = Duration::from_micros(200);
    let (mut a, mut b) = pair(20, QpType::Rc, |config| config.faults.delay = delay);
    let sge = [a.sge(0, 100_000)];
    let to = b.remote(0);
    let began = Instant::now();
    for _ in 0..4 {
        a.post(SendOp::Write(to), &sge);
        a.post(SendOp::Read(to), &sge);
    }
    all_succeed(&complete(&mut a, &mut b, 8));
    assert!(began.elapsed() >= 2 * delay, "there and back");
    assert_eq!(b.device.counters().drop_driver, 0);
}

/// Also of a process that is killed: what was recorded is in the file soon, without anybody's doing.
#[test]
fn what_is_recorded_is_in_the_file_while_the_device_goes_on() {
    let recorded = scratch("loopback.pcapng");
    let first = IpAddr::from([127, 0, 24, 1]);
    let (mut a, mut b) = pair(24, QpType::Rc, |config| {
        config.capture = (config.rnic.addresses[0] == first).then(|| recorded.clone());
    });
    let (sge, to) = ([a.sge(0, 8)], b.remote(0));
    a.post(SendOp::Write(to), &sge);
    all_succeed(&complete(&mut a, &mut b, 1));
    let end = Instant::now() + Duration::from_secs(60);
    // The blocks that it begins with, and one of each packet: the WRITE and its ACK.
    while std::fs::metadata(&recorded).unwrap().len() < 48 + 2 * 76 {
        assert!(Instant::now() < end, "{} bytes", std::fs::metadata(&recorded).unwrap().len());
        a.device.progress();
    }
    std::fs::remove_file(&recorded).unwrap();
}

#[test]
fn who_hears_nobody_gives_up() {
    let (mut a, mut b) = pair(21, QpType::Rc, |config| {
        config.faults.peers_die_after = Some(Duration::ZERO);
    });
    let sge = [a.sge(0, 8)];
    let to = b.remote(0);
    a.post(SendOp::Write(to), &sge);
    let wcs = complete(&mut a, &mut b, 1);
    assert_eq!(wcs[0].status, WcStatus::RetryExcErr);
}

#[test]
fn atomics_count() {
    let (mut a, mut b) = pair(14, QpType::Rc, |_| {});
    let sge = [a.sge(0, 8)];
    for _ in 0..10 {
        let remote = b.remote(64);
        a.post(SendOp::FetchAdd { remote, add: 3 }, &sge);
    }
    all_succeed(&complete(&mut a, &mut b, 10));
    assert_eq!(b.memory.read_u64(64).unwrap(), 30);
    assert_eq!(a.memory.read_u64(0).unwrap(), 27);
}

#[test]
fn small_socket_buffers_only_cost_time() {
    let (mut a, mut b) = pair(15, QpType::Rc, |config| {
        config.rcvbuf = 64 << 10;
        config.gro = false;
    });
    let sge = [a.sge(0, 2 << 20)];
    for _ in 0..4 {
        let to = b.remote(0);
        a.post(SendOp::Write(to), &sge);
    }
    all_succeed(&complete(&mut a, &mut b, 4));
}

#[test]
fn a_thread_drives_the_peer_in_every_mode() {
    for (n, idle) in
        [(16, Idle::Spin), (17, Idle::Yield { spins: 10 }), (18, Idle::Sleep { spins: 10 })]
    {
        let (mut a, b) = pair(n, QpType::Rc, |_| {});
        let to = b.remote(8);
        let End { device, memory, .. } = b;
        let thread = SoftThread::spawn(device, idle).unwrap();
        a.memory.write_u64(0, 77).unwrap();
        let sge = [a.sge(0, 8)];
        a.post(SendOp::Write(to), &sge);
        let mut wc = [Wc::default()];
        let stop = AtomicBool::new(false);
        let cq = a.cq;
        drive(&mut a.device, idle, &stop, |device| device.poll_cq(cq, &mut wc).unwrap() == 0)
            .unwrap();
        all_succeed(&wc);
        assert_eq!(memory.read_u64(8).unwrap(), 77);
        let received = thread.call(|device| device.counters().rx_packets).unwrap();
        assert!(received >= 1);
        assert_eq!(thread.stop().unwrap().address(), IpAddr::from([127, 0, n, 2]));
    }
}

#[test]
fn an_address_is_taken_once() {
    let ip = IpAddr::from([127, 0, 24, 1]);
    let first = elver_soft::SoftDevice::open(SoftConfig::for_address(ip)).unwrap();
    let error = elver_soft::SoftDevice::open(SoftConfig::for_address(ip)).err().unwrap();
    assert!(error.to_string().contains("127.0.24.1:4791"), "{error}");
    drop(first);
    // A child that another test starts just now has a copy of the socket until it is another program.
    let limit = Instant::now() + Duration::from_secs(30);
    while let Err(error) = elver_soft::SoftDevice::open(SoftConfig::for_address(ip)) {
        assert!(Instant::now() < limit, "{error}");
        std::thread::yield_now();
    }
}
