//! CQs: what becomes of those that complete on one that overflowed, and who keeps one.

use crate::common::{ALL_ACCESS, Host, Net, REGION, VecMemory, address};
use elver_rnic::{Config, Time};
use elver_verbs::*;

/// A CQ of one entry, and a QP of the host whose SENDs and WRITEs complete there.
fn on_small_cq(host: &mut Host, cq: Cq, qp_type: QpType) -> Qp {
    let init = QpInit { sq_sig_all: true, send_cq: cq, ..QpInit::new(qp_type, host.pd, host.cq) };
    host.nic.create_qp(init).unwrap()
}

fn small_cq(host: &mut Host) -> Cq {
    host.nic.create_cq(CqInit { cqe: 1 }).unwrap()
}

fn drain(host: &mut Host, cq: Cq) -> usize {
    host.nic.poll_cq(cq, &mut [Wc::default(); 16]).unwrap()
}

fn state(host: &Host, qp: Qp) -> QpState {
    host.nic.query_qp(qp).unwrap().0.qp_state
}

fn events(host: &mut Host) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| host.nic.poll_async_event()).collect()
}

/// Connects a QP of the first host with one of the second that it made before.
fn connect(net: &mut Net, [own, peer]: [Qp; 2]) {
    let numbers = [(0, own), (1, peer)]
        .map(|(host, qp): (usize, Qp)| net.hosts[host].nic.qp_num(qp).unwrap());
    net.hosts[0].connect(own, QpType::Rc, address(1), numbers[1], |_| {});
    net.hosts[1].connect(peer, QpType::Rc, address(0), numbers[0], |_| {});
}

fn reset(host: &mut Host, now: Time, qp: Qp) {
    let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    host.nic.modify_qp(now, qp, &attr, QpAttrMask::STATE).unwrap();
}

fn write(net: &mut Net, qp: Qp) {
    let (sge, remote) = (net.hosts[0].sge(0, 64), net.hosts[1].remote(0));
    net.hosts[0].post(net.now, qp, SendOp::Write(remote), &[sge], None);
}

/// A QP that begins anew on a CQ in error, and one that was in RESET when it overflowed, fail with their event
/// with the first completion, though the CQ is empty again: nothing is done in silence.
#[test]
fn whoever_completes_on_a_cq_in_error_fails_and_is_told() {
    let mut net = Net::new(2);
    let cq = small_cq(&mut net.hosts[0]);
    let pairs = [(); 2].map(|()| {
        let own = on_small_cq(&mut net.hosts[0], cq, QpType::Rc);
        [own, net.hosts[1].create_qp(QpType::Rc)]
    });
    connect(&mut net, pairs[0]);
    for _ in 0..2 {
        write(&mut net, pairs[0][0]);
    }
    net.run_clean();
    assert_eq!(
        events(&mut net.hosts[0]),
        [AsyncEvent::CqErr(cq), AsyncEvent::QpFatal(pairs[0][0])]
    );
    assert_eq!(drain(&mut net.hosts[0], cq), 1);

    for pair in pairs {
        for (host, qp) in [0, 1].into_iter().zip(pair) {
            let now = net.now;
            reset(&mut net.hosts[host], now, qp);
        }
        connect(&mut net, pair);
        write(&mut net, pair[0]);
        net.run_clean();
        assert_eq!(events(&mut net.hosts[0]), [AsyncEvent::QpFatal(pair[0])]);
        assert_eq!(state(&net.hosts[0], pair[0]), QpState::Err);
        // What is flushed to there since is lost as well, and its owner knows.
        write(&mut net, pair[0]);
        assert_eq!(events(&mut net.hosts[0]), []);
        assert_eq!(drain(&mut net.hosts[0], cq), 0);
    }
}

/// Within a device as over packets.
#[test]
fn who_completes_within_a_device_on_a_cq_in_error_fails_and_is_told() {
    let mut net = Net::new(1);
    let cq = small_cq(&mut net.hosts[0]);
    let own = on_small_cq(&mut net.hosts[0], cq, QpType::Rc);
    let peer = net.hosts[0].create_qp(QpType::Rc);
    for _ in 0..2 {
        for qp in [own, peer] {
            let now = net.now;
            reset(&mut net.hosts[0], now, qp);
        }
        let numbers = [own, peer].map(|qp| net.hosts[0].nic.qp_num(qp).unwrap());
        net.hosts[0].connect(own, QpType::Rc, address(0), numbers[1], |_| {});
        net.hosts[0].connect(peer, QpType::Rc, address(0), numbers[0], |_| {});
        let (sge, remote) = (net.hosts[0].sge(0, 64), net.hosts[0].remote(64));
        for _ in 0..2 {
            net.hosts[0].post(net.now, own, SendOp::Write(remote), &[sge], None);
        }
        assert_eq!(state(&net.hosts[0], own), QpState::Err);
        let told = events(&mut net.hosts[0]);
        assert_eq!(
            told.iter().filter(|at| **at == AsyncEvent::QpFatal(own)).count(),
            1,
            "{told:?}"
        );
        drain(&mut net.hosts[0], cq);
    }
}

/// A target of XRC that comes to a queue whose CQ is in error: its initiator is not told that a message arrived
/// which nobody hears of.
#[test]
fn a_target_of_xrc_fails_with_the_cq_of_the_queue_that_is_named() {
    let mut net = Net::new(2);
    let host = &mut net.hosts[1];
    let xrcd = host.nic.open_xrcd().unwrap();
    let cqs = [host.cq, small_cq(host)];
    let init = SrqInit { pd: host.pd, max_wr: 16, max_sge: 1 };
    let srqs = cqs.map(|cq| host.nic.create_xrc_srq(init, xrcd, cq).unwrap());
    for srq in srqs {
        for wr_id in 0..4 {
            let sges = [host.sge(0, 64)];
            host.nic.post_srq_recv(net.now, srq, &[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
    }
    let pairs = [(); 2].map(|()| {
        let initiator = net.hosts[0].create_qp(QpType::XrcSend);
        let target = net.hosts[1].nic.create_xrc_target(xrcd).unwrap();
        let numbers = [(0, initiator), (1, target)]
            .map(|(host, qp): (usize, Qp)| net.hosts[host].nic.qp_num(qp).unwrap());
        net.hosts[0].connect(initiator, QpType::XrcSend, address(1), numbers[1], |_| ());
        net.hosts[1].connect(target, QpType::XrcRecv, address(0), numbers[0], |_| ());
        [initiator, target]
    });
    let send = |net: &mut Net, qp: Qp, srq: Srq| {
        let sge = [net.hosts[0].sge(0, 8)];
        let dest = Some(Dest::Xrc { remote_srqn: srq.0 });
        net.hosts[0].post(net.now, qp, SendOp::Send, &sge, dest);
        net.run_clean();
    };
    // The second target takes a message of the first queue, the first one overflows the second's CQ.
    send(&mut net, pairs[1][0], srqs[0]);
    send(&mut net, pairs[0][0], srqs[1]);
    send(&mut net, pairs[0][0], srqs[1]);
    assert_eq!(state(&net.hosts[1], pairs[0][1]), QpState::Err);
    assert_eq!(state(&net.hosts[1], pairs[1][1]), QpState::Rts);
    drain(&mut net.hosts[1], cqs[1]);
    events(&mut net.hosts[1]);

    send(&mut net, pairs[1][0], srqs[1]);
    assert_eq!(state(&net.hosts[1], pairs[1][1]), QpState::Err);
    assert_eq!(events(&mut net.hosts[1]), [AsyncEvent::QpFatal(pairs[1][1])]);
}

/// Who has bytes written to memory that is not at hand is told in a CQ, which stays until then.
#[test]
fn a_cq_stays_until_bytes_that_wait_are_told_there() {
    let mut host = Host::new(Config::for_address(address(0)), 7);
    let memory = VecMemory::new(0x7000_0000, REGION);
    let mr = host.nic.reg_mr(host.pd, memory.clone(), None, ALL_ACCESS).unwrap().mr;
    memory.recede();
    let cq = small_cq(&mut host);
    assert_eq!(host.nic.write_region(mr, 3, b"later", cq, 2), Ok(false));
    let refused = host.nic.destroy_cq(cq);
    assert_eq!(refused, Err(VerbsError::InUse { kind: ObjectKind::Cq, handle: cq.0, users: 1 }));
    let mut errand = host.nic.poll_errand().unwrap();
    let done = VecMemory::run_errand(&mut errand);
    host.nic.errand_done(Time(1), errand, done);
    assert_eq!(drain(&mut host, cq), 1);
    assert_eq!(host.nic.destroy_cq(cq), Ok(()));
}
