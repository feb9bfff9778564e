//! Every operation on every transport that has it, over packets and by local copies.

use crate::common::{ALL_ACCESS, Host, Net, Packet, VecMemory, address};
use elver_rnic::{Config, Time};
use elver_verbs::*;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 256) as u8).collect()
}

fn statuses(wcs: &[Wc]) -> Vec<WcStatus> {
    wcs.iter().map(|wc| wc.status).collect()
}

fn post_recv(host: &mut Host, now: Time, qp: Qp, wr_id: u64, at: u64, len: u32) {
    let sges = [host.sge(at, len)];
    host.nic.post_recv(now, qp, &[RecvWr { wr_id, sges: &sges }]).unwrap();
}

/// Runs one message of each kind on a connected pair and checks both ends.
fn exercise(net: &mut Net, a: Qp, b: Qp, reliable: bool, mut fault: impl FnMut() -> usize) {
    for len in [0usize, 1, 1023, 1024, 1025, 5000, 70_000] {
        let data = pattern(len);
        let (now, host_b) = (net.now, net.hosts.len() - 1);
        let remote = net.hosts[host_b].remote(500_000);
        let local = [
            net.hosts[0].sge(0, len as u32 / 3),
            net.hosts[0].sge(len as u64 / 3, (len - len / 3) as u32),
        ];
        net.hosts[0].memory.fill(0, &data);

        let ops: &[SendOp] = if reliable {
            &[
                SendOp::Write(remote),
                SendOp::WriteWithImm(remote, 0xabcd),
                SendOp::Send,
                SendOp::SendWithImm(0x1234),
                SendOp::Read(remote),
            ]
        } else {
            &[SendOp::Write(remote), SendOp::Send, SendOp::SendWithImm(0x1234)]
        };
        for op in ops {
            net.hosts[host_b].memory.fill(200_000, &vec![0; len]);
            post_recv(&mut net.hosts[host_b], now, b, 99, 200_000, 80_000);
            if let SendOp::Read(_) = op {
                net.hosts[host_b].memory.fill(500_000, &data);
                net.hosts[0].memory.fill(0, &vec![0; len]);
            } else {
                net.hosts[host_b].memory.fill(500_000, &vec![0; len]);
            }
            net.hosts[0].post(net.now, a, *op, &local, None);
            net.run(|_| fault());
            let sent = net.hosts[0].poll();
            let received = if host_b == 0 { sent.clone() } else { net.hosts[host_b].poll() };
            assert!(sent.iter().all(|wc| wc.status == WcStatus::Success), "{op:?} {len}: {sent:?}");
            let recv = received.iter().find(|wc| wc.wr_id == 99);
            match op {
                SendOp::Write(_) => assert_eq!(net.hosts[host_b].memory.get(500_000, len), data),
                SendOp::WriteWithImm(_, imm) => {
                    assert_eq!(net.hosts[host_b].memory.get(500_000, len), data);
                    let recv = recv.expect("a receive is consumed");
                    assert_eq!((recv.imm_data, recv.opcode), (*imm, WcOpcode::RecvRdmaWithImm));
                    assert_eq!(recv.byte_len, len as u32);
                }
                SendOp::Read(_) => assert_eq!(net.hosts[0].memory.get(0, len), data),
                _ => {
                    let recv = recv.expect("a receive is filled");
                    assert_eq!(recv.byte_len, len as u32);
                    assert_eq!(net.hosts[host_b].memory.get(200_000, len), data, "{op:?} {len}");
                }
            }
            if recv.is_none() {
                // Use up the receive that this operation left.
                net.hosts[0].post(net.now, a, SendOp::Send, &[], None);
                net.run(|_| fault());
                net.hosts[0].poll();
                net.hosts[host_b].poll();
            }
        }
    }
}

fn atomics(net: &mut Net, a: Qp, dest: Option<Dest>) {
    let last = net.hosts.len() - 1;
    net.hosts[last].memory.fill(800, &5u64.to_ne_bytes());
    let remote = net.hosts[last].remote(800);
    let sge = [net.hosts[0].sge(64, 8)];
    net.hosts[0].post(net.now, a, SendOp::FetchAdd { remote, add: 10 }, &sge, dest);
    net.run_clean();
    assert_eq!(net.hosts[0].memory.get(64, 8), 5u64.to_ne_bytes());
    let swap = SendOp::CompareSwap { remote, compare: 15, swap: 77 };
    net.hosts[0].post(net.now, a, swap, &sge, dest);
    net.run_clean();
    assert_eq!(net.hosts[0].memory.get(64, 8), 15u64.to_ne_bytes());
    assert_eq!(net.hosts[last].memory.get(800, 8), 77u64.to_ne_bytes());
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success; 2]);
}

#[test]
fn rc_over_packets() {
    let mut net = Net::new(2);
    let (a, b) = net.connect(QpType::Rc, |_| {});
    exercise(&mut net, a, b, true, || 1);
    atomics(&mut net, a, None);
    assert_eq!(net.hosts[0].nic.counters().retransmits, 0);
}

#[test]
fn rc_over_packets_that_are_lost_and_doubled() {
    let mut net = Net::new(2);
    let (a, b) = net.connect(QpType::Rc, |_| {});
    let mut count = 0u32;
    exercise(&mut net, a, b, true, move || {
        count = count.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        match count >> 16 & 15 {
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        }
    });
    assert!(net.hosts[0].nic.counters().retransmits > 0);
    assert!(net.hosts[1].nic.counters().rx_duplicate > 0);
}

#[test]
fn uc_over_packets() {
    let mut net = Net::new(2);
    let (a, b) = net.connect(QpType::Uc, |_| {});
    exercise(&mut net, a, b, false, || 1);
}

#[test]
fn rc_and_uc_within_one_device() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut net = Net::new(1);
        let host = &mut net.hosts[0];
        let (a, b) = (host.create_qp(qp_type), host.create_qp(qp_type));
        host.connect(a, qp_type, address(0), b.0, |_| {});
        host.connect(b, qp_type, address(0), a.0, |_| {});
        exercise(&mut net, a, b, qp_type == QpType::Rc, || 1);
        if qp_type == QpType::Rc {
            atomics(&mut net, a, None);
        }
        assert_eq!(net.hosts[0].nic.counters().tx_packets, 0, "no packets between QPs of a device");
    }
}

/// A QP that is connected to itself, without the local path.
#[test]
fn rc_with_itself_over_packets() {
    let mut net = Net::with_config(1, |config| config.local_copy = false);
    let host = &mut net.hosts[0];
    let a = host.create_qp(QpType::Rc);
    host.connect(a, QpType::Rc, address(0), a.0, |_| {});
    exercise(&mut net, a, a, true, || 1);
}

#[test]
fn ud_delivers_a_grh() {
    for hosts in [1, 2] {
        let mut net = Net::new(hosts);
        let last = hosts - 1;
        let a = net.hosts[0].create_qp(QpType::Ud);
        let b = net.hosts[last].create_qp(QpType::Ud);
        net.hosts[0].connect(a, QpType::Ud, address(0), 0, |_| {});
        net.hosts[last].connect(b, QpType::Ud, address(0), 0, |_| {});
        let pd = net.hosts[0].pd;
        let av = AddressVector { dgid: Gid::from(address(last)), ..AddressVector::default() };
        let ah = net.hosts[0].nic.create_ah(pd, av).unwrap();
        let data = pattern(300);
        net.hosts[0].memory.fill(0, &data);
        let now = net.now;
        post_recv(&mut net.hosts[last], now, b, 5, 4096, 400);
        let dest = Some(Dest::Ud { ah, remote_qpn: b.0, remote_qkey: 0x1111 });
        let sge = [net.hosts[0].sge(0, 300)];
        net.hosts[0].post(net.now, a, SendOp::SendWithImm(3), &sge, dest);
        net.run_clean();
        let wcs = net.hosts[last].poll();
        let recv = wcs.iter().find(|wc| wc.wr_id == 5).unwrap();
        assert_eq!((recv.byte_len, recv.src_qp, recv.imm_data), (340, a.0, 3));
        assert!(recv.flags.contains(WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!(net.hosts[last].memory.get(4096 + 20, 1), [0x45]);
        assert_eq!(net.hosts[last].memory.get(4096 + 40, 300), data);

        let wrong = Some(Dest::Ud { ah, remote_qpn: b.0, remote_qkey: 0x2222 });
        post_recv(&mut net.hosts[last], now, b, 6, 4096, 400);
        net.hosts[0].post(net.now, a, SendOp::Send, &sge, wrong);
        net.run_clean();
        assert!(net.hosts[last].poll().iter().all(|wc| wc.wr_id != 6));
        assert_eq!(net.hosts[last].nic.counters().drop_qkey, 1);
    }
}

/// What the timer of a receiver that is not ready says, in all tests (IBTA vol. 1, table 45, code 1).
const RNR_NS: u64 = 10_000;

#[test]
fn rnr_waits_for_a_receive() {
    for hosts in [1, 2] {
        let mut net = Net::new(hosts);
        let last = hosts - 1;
        let (a, b) = if hosts == 2 {
            net.connect(QpType::Rc, |attr| attr.rnr_retry = 3)
        } else {
            let host = &mut net.hosts[0];
            let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
            host.connect(a, QpType::Rc, address(0), b.0, |attr| attr.rnr_retry = 3);
            host.connect(b, QpType::Rc, address(0), a.0, |_| {});
            (a, b)
        };
        let sge = [net.hosts[0].sge(0, 10)];
        net.hosts[0].post(net.now, a, SendOp::Send, &sge, None);
        net.transmit();
        while let Some(packet) = net.wire.pop_front() {
            net.deliver(&packet);
            net.transmit();
        }
        let now = net.now;
        post_recv(&mut net.hosts[last], now, b, 9, 0, 100);
        net.run_clean();
        let wcs = net.hosts[0].poll();
        assert_eq!(wcs.iter().find(|wc| wc.wr_id == 7).unwrap().status, WcStatus::Success);
        net.hosts[last].poll();

        // It is tried again as often as the retries say, each time behind the receiver's timer.
        let (begun, refused) = (net.now, net.hosts[last].nic.counters().rnr_nak_sent);
        net.hosts[0].post(net.now, a, SendOp::Send, &sge, None);
        net.run_clean();
        let wcs = net.hosts[0].poll();
        assert_eq!(wcs.iter().find(|wc| wc.wr_id == 7).unwrap().status, WcStatus::RnrRetryExcErr);
        assert_eq!(net.hosts[last].nic.counters().rnr_nak_sent - refused, 1 + 3);
        let took = net.now.ns_since(begun);
        assert!(took >= 3 * RNR_NS, "{hosts} hosts: {took} ns");
    }
}

#[test]
fn each_side_is_told_of_a_refused_access() {
    for hosts in [1, 2] {
        let mut net = Net::new(hosts);
        let (a, b) = if hosts == 2 {
            net.connect(QpType::Rc, |_| {})
        } else {
            let host = &mut net.hosts[0];
            let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
            host.connect(a, QpType::Rc, address(0), b.0, |_| {});
            host.connect(b, QpType::Rc, address(0), a.0, |_| {});
            (a, b)
        };
        let last = hosts - 1;
        let mut remote = net.hosts[last].remote(0);
        remote.rkey ^= 1;
        let sge = [net.hosts[0].sge(0, 10)];
        net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
        net.hosts[0].post(net.now, a, SendOp::Send, &sge, None);
        net.run_clean();
        let mut sent = net.hosts[0].poll();
        sent.retain(|wc| wc.qp_num == a.0);
        assert_eq!(statuses(&sent), [WcStatus::RemAccessErr, WcStatus::WrFlushErr]);
        assert_eq!(net.hosts[last].nic.poll_async_event(), Some(AsyncEvent::QpAccessErr(b)));
        assert_eq!(net.hosts[last].nic.query_qp(b).unwrap().0.qp_state, QpState::Err);
    }
}

#[test]
fn a_silent_peer_exhausts_the_retries() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |attr| {
        attr.timeout = 8;
        attr.retry_cnt = 2;
    });
    let sge = [net.hosts[0].sge(0, 10)];
    let remote = net.hosts[1].remote(0);
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.run(|_| 0);
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::RetryExcErr]);
    assert_eq!(net.hosts[0].nic.counters().timeouts, 3);
}

/// A window of one packet towards the host, and a QP there that never answers: it may wait as long
/// as it likes, but not with the window in its hands. Each further QP would else begin when the one
/// before it has used up its retries, and never behind one whose retries have no end.
#[test]
fn a_silent_peer_leaves_the_window_to_others() {
    for (timeout, tail_probe_ns) in [(10, 0), (10, 500_000), (0, 500_000)] {
        let mut net = Net::with_config(2, |config| {
            config.tail_probe_ns = tail_probe_ns;
            config.flow.window_initial = 1;
            config.flow.window_min = 1;
        });
        let (dead, peer) = net.connect(QpType::Rc, |attr| attr.timeout = timeout);
        let (live, _) = net.connect(QpType::Rc, |_| {});
        net.hosts[1].nic.destroy_qp(net.now, peer).unwrap();
        let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 10_000)]);
        for qp in [dead, live, dead, live] {
            net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
        }
        net.run_clean();
        let live = net.hosts[0].nic.qp_num(live).unwrap();
        let wcs = net.hosts[0].poll();
        let ends: Vec<_> = wcs.iter().map(|wc| (wc.qp_num == live, wc.status)).take(2).collect();
        assert_eq!(ends, [(true, WcStatus::Success); 2], "timeout {timeout}: {wcs:?}");
    }
}

/// Posts a WRITE of 60 packets; its first flight waits on the wire until after the tail probe.
fn with_a_late_flight(lost: bool) -> (Net, u64) {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |_| {});
    let sge = [net.hosts[0].sge(0, 60 * 1024)];
    let remote = net.hosts[1].remote(0);
    net.hosts[0].memory.fill(0, &pattern(60 * 1024));
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.transmit();
    net.now = net.hosts[0].nic.poll_timeout().unwrap();
    net.hosts[0].nic.handle_timeout(net.now);
    if lost {
        net.wire.clear();
    }
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);
    assert_eq!(net.hosts[1].memory.get(0, 60 * 1024), pattern(60 * 1024));
    let counters = net.hosts[0].nic.counters();
    assert_eq!((counters.tail_probes, counters.timeouts), (1 + u64::from(lost), 0));
    let retransmits = counters.retransmits;
    (net, retransmits)
}

#[test]
fn a_peer_that_is_late_is_sent_one_packet_again() {
    let (net, retransmits) = with_a_late_flight(false);
    assert_eq!(retransmits, 1);
    assert_eq!(net.hosts[1].nic.counters().rx_duplicate, 1);
}

#[test]
fn a_process_that_was_late_itself_probes_first() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |attr| {
        attr.timeout = 8;
        attr.retry_cnt = 0;
    });
    let sge = [net.hosts[0].sge(0, 10)];
    let remote = net.hosts[1].remote(0);
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.transmit();
    net.now = net.now.saturating_add_ns(100_000_000);
    net.hosts[0].nic.handle_timeout(net.now);
    let counters = net.hosts[0].nic.counters();
    assert_eq!((counters.tail_probes, counters.timeouts), (1, 0));
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);
}

#[test]
fn a_probe_on_a_long_path_sends_nothing_else_again() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |_| {});
    let sge = [net.hosts[0].sge(0, 10)];
    let remote = net.hosts[1].remote(0);
    for _ in 0..32 {
        net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    }
    net.transmit();
    let flight: Vec<Packet> = net.wire.drain(..).collect();
    let mut answers = Vec::new();
    for packet in &flight {
        net.deliver(packet);
        net.transmit();
        answers.extend(net.wire.drain(..));
    }
    assert!(answers.len() > 1, "the peer answers more than once");
    net.now = net.now.saturating_add_ns(800_000);
    net.hosts[0].nic.handle_timeout(net.now);
    net.transmit();
    for packet in &answers {
        net.deliver(packet);
        net.transmit();
    }
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success; 32]);
    let counters = net.hosts[0].nic.counters();
    assert_eq!((counters.tail_probes, counters.retransmits), (1, 1));
}

#[test]
fn a_tail_probe_finds_that_all_was_lost() {
    assert_eq!(with_a_late_flight(true).1, 60);
}

#[test]
fn an_overflowing_cq_stops_its_qps() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |_| {});
    let host = &mut net.hosts[0];
    let small = host.nic.create_cq(CqInit { cqe: 1 }).unwrap();
    let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, host.pd, small) };
    let qp = host.nic.create_qp(init).unwrap();
    host.connect(qp, QpType::Rc, address(0), qp.0, |_| {});
    for _ in 0..2 {
        host.post(Time(1), qp, SendOp::Write(host.remote(0)), &[], None);
    }
    assert_eq!(host.nic.poll_async_event(), Some(AsyncEvent::CqErr(small)));
    assert_eq!(host.nic.poll_async_event(), Some(AsyncEvent::QpFatal(qp)));
    assert_eq!(host.nic.query_qp(qp).unwrap().0.qp_state, QpState::Err);
    assert_eq!(host.nic.query_qp(a).unwrap().0.qp_state, QpState::Rts);
}

#[test]
fn windows_open_and_close() {
    let mut net = Net::new(2);
    let (a, b) = net.connect(QpType::Rc, |_| {});
    let (now, mr) = (net.now, net.hosts[1].mr);
    let window = {
        let pd = net.hosts[1].pd;
        net.hosts[1].nic.alloc_mw(pd).unwrap()
    };
    let rkey = window.rkey ^ 0x55;
    let bind = BindMw {
        mw: window.mw,
        rkey,
        mr: mr.mr,
        addr: mr.addr + 4096,
        length: 100,
        access: AccessFlags::REMOTE_WRITE,
    };
    net.hosts[1].post(now, b, SendOp::BindMw(bind), &[], None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[1].poll()), [WcStatus::Success]);
    assert!(net.hosts[1].nic.dereg_mr(mr.mr).is_err(), "a window is bound");

    let sge = [net.hosts[0].sge(0, 100)];
    let remote = RemoteAddr { addr: mr.addr + 4096, rkey };
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);

    post_recv(&mut net.hosts[1], now, b, 3, 0, 10);
    net.hosts[0].post(net.now, a, SendOp::SendWithInv(rkey), &[], None);
    net.run_clean();
    let recv = net.hosts[1].poll();
    assert_eq!((recv[0].imm_data, recv[0].flags), (rkey, WcFlags::WITH_INV));
    net.hosts[0].poll();
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::RemAccessErr]);
}

/// A READ comes twice, and with the second one a SEND that takes its key back: who sent that has his
/// answer. That there is none to the duplicate any longer ended the connection.
#[test]
fn a_duplicate_of_a_read_whose_key_was_taken_back_harms_nothing() {
    let mut net = Net::new(2);
    let (a, b) = net.connect(QpType::Rc, |_| {});
    let (mr, pd) = (net.hosts[1].mr, net.hosts[1].pd);
    let window = net.hosts[1].nic.alloc_mw(pd).unwrap();
    let rkey = window.rkey ^ 0x55;
    let access = AccessFlags::REMOTE_READ;
    let bind = BindMw { mw: window.mw, rkey, mr: mr.mr, addr: mr.addr, length: 100, access };
    net.hosts[1].post(net.now, b, SendOp::BindMw(bind), &[], None);
    net.run_clean();
    net.hosts[1].poll();
    let sge = [net.hosts[0].sge(0, 100)];
    let read = SendOp::Read(RemoteAddr { addr: mr.addr, rkey });
    net.hosts[0].post(net.now, a, read, &sge, None);
    let mut request = None;
    net.run(|packet| {
        let asks = packet.flow.src.ip() == address(0);
        request = request.take().or_else(|| asks.then(|| packet.bytes.clone()));
        1
    });
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);
    post_recv(&mut net.hosts[1], net.now, b, 3, 0, 10);
    net.hosts[0].post(net.now, a, SendOp::SendWithInv(rkey), &[], None);
    net.transmit();
    let take_back = net.wire.pop_front().unwrap();
    let (flow, traffic_class) = (take_back.flow, take_back.traffic_class);
    net.deliver(&Packet { flow, traffic_class, bytes: request.unwrap() });
    net.deliver(&take_back);
    let remote = RemoteAddr { addr: mr.addr, rkey: mr.rkey };
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success; 2]);
}

/// A READ comes twice, and its memory is gone by the second time: who has had his answer goes on, as if
/// nothing had come. That there is none to the duplicate ended the stream, silently for him.
#[test]
fn a_duplicate_of_a_read_whose_memory_is_gone_harms_nothing() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |_| {});
    let sge = [net.hosts[0].sge(0, 100)];
    let vanishing = VecMemory::new(0x7000_0000, 4_096);
    let pd = net.hosts[1].pd;
    let target = net.hosts[1].nic.reg_mr(pd, vanishing.clone(), None, ALL_ACCESS).unwrap();
    let read = SendOp::Read(RemoteAddr { addr: target.addr, rkey: target.rkey });
    net.hosts[0].post(net.now, a, read, &sge, None);
    let mut request = None;
    net.run(|packet| {
        let asks = packet.flow.src.ip() == address(0);
        let (flow, traffic_class) = (packet.flow, packet.traffic_class);
        let copy = || Packet { flow, traffic_class, bytes: packet.bytes.clone() };
        request = request.take().or_else(|| asks.then(copy));
        1
    });
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);
    vanishing.vanish();
    net.deliver(&request.unwrap());
    let remote = net.hosts[1].remote(0);
    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::Success]);
    // Who has had none hears that there is none.
    net.hosts[0].post(net.now, a, read, &sge, None);
    net.run_clean();
    assert_eq!(statuses(&net.hosts[0].poll()), [WcStatus::RemOpErr]);
}

#[test]
fn ten_thousand_qps_on_one_device() {
    let mut config = Config::for_address(address(0));
    config.max_qp = 10_000;
    let mut host = Host::new(config, 0);
    let mut qps = Vec::new();
    for _ in 0..10_000 {
        qps.push(host.create_qp(QpType::Rc));
    }
    let init = QpInit::new(QpType::Rc, host.pd, host.cq);
    let full = host.nic.create_qp(init).unwrap_err();
    assert_eq!(full, VerbsError::Limit { kind: ObjectKind::Qp, limit: 10_000, setting: "max_qp" });
    for pair in qps.chunks_exact(2) {
        host.connect(pair[0], QpType::Rc, address(0), pair[1].0, |_| {});
        host.connect(pair[1], QpType::Rc, address(0), pair[0].0, |_| {});
    }
    let remote = host.remote(0);
    for pair in qps.chunks_exact(2) {
        host.post(Time(1), pair[0], SendOp::Write(remote), &[], None);
        assert_eq!(statuses(&host.poll()), [WcStatus::Success]);
    }
    for qp in qps {
        host.nic.destroy_qp(Time(1), qp).unwrap();
    }
    assert!(ALL_ACCESS.contains(AccessFlags::REMOTE_READ));
}

#[test]
fn a_long_queue_of_local_writes_runs_to_its_end() {
    let mut net = Net::new(1);
    let host = &mut net.hosts[0];
    let cap = QpCap { max_send_wr: 2000, ..QpCap::default() };
    let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(QpType::Rc, host.pd, host.cq) };
    let qp = host.nic.create_qp(init).unwrap();
    host.connect(qp, QpType::Rc, address(0), qp.0, |_| {});
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Write(host.remote(0)),
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        dest: None,
    };
    host.nic.post_send(Time(1), qp, &vec![wr; 2000]).unwrap();
    net.run_clean();
    assert_eq!(net.hosts[0].poll().len(), 2000);
}

/// The first packet at a connected QP in RTR is told of, once; one in RTS needs no such word.
#[test]
fn communication_established() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for hosts in [1, 2] {
            let mut net = Net::new(hosts);
            let last = hosts - 1;
            let a = net.hosts[0].create_qp(qp_type);
            let b = net.hosts[last].create_qp(qp_type);
            net.hosts[0].connect(a, qp_type, address(last), b.0, |_| {});
            net.hosts[last].init_qp(b, qp_type);
            let mut attr = QpAttr {
                qp_state: QpState::Rtr,
                ah_attr: AddressVector { dgid: Gid::from(address(0)), ..AddressVector::default() },
                path_mtu: Mtu::Mtu1024,
                dest_qp_num: a.0,
                rq_psn: 0xff_fff0,
                ..QpAttr::default()
            };
            for (from, to) in [(QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)] {
                assert_eq!(net.hosts[last].nic.poll_async_event(), None);
                attr.qp_state = to;
                let row = qp_state::transition(qp_type, from, to).unwrap();
                let mask = QpAttrMask::STATE | row.required;
                net.hosts[last].nic.modify_qp(net.now, b, &attr, mask).unwrap();
                let sges = [net.hosts[0].sge(0, 3000)];
                let remote = net.hosts[last].remote(8192);
                for _ in 0..2 {
                    net.hosts[0].post(net.now, a, SendOp::Write(remote), &sges, None);
                    net.run_clean();
                }
                if to == QpState::Rtr {
                    let event = net.hosts[last].nic.poll_async_event();
                    assert_eq!(event, Some(AsyncEvent::CommEst(b)));
                }
            }
            assert_eq!(net.hosts[last].nic.poll_async_event(), None);
        }
    }
}

/// A CQ that overflows stops the QPs that complete there, tells so of each once, and leaves alone
/// those that have nothing to complete.
#[test]
fn an_overflown_cq_stops_its_running_qps() {
    let mut net = Net::new(2);
    let (a, _) = net.connect(QpType::Rc, |_| {});
    let host = &mut net.hosts[0];
    let small = host.nic.create_cq(CqInit { cqe: 1 }).unwrap();
    let init = |pd| QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, pd, small) };
    let [fails, runs, stopped, idle] = [(); 4].map(|()| host.nic.create_qp(init(host.pd)).unwrap());
    for qp in [fails, runs] {
        host.connect(qp, QpType::Rc, address(1), 5, |_| {});
    }
    host.connect(stopped, QpType::Rc, address(1), 5, |_| {});
    let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    host.nic.modify_qp(net.now, stopped, &error, QpAttrMask::STATE).unwrap();
    host.nic.modify_qp(net.now, fails, &error, QpAttrMask::STATE).unwrap();
    let sges = [host.sge(0, 8)];
    for _ in 0..2 {
        host.post(net.now, fails, SendOp::Send, &sges, None);
    }
    let mut events = Vec::new();
    while let Some(event) = host.nic.poll_async_event() {
        events.push(event);
    }
    assert_eq!(events, [AsyncEvent::CqErr(small), AsyncEvent::QpFatal(runs)]);
    let state = |qp| host.nic.query_qp(qp).unwrap().0.qp_state;
    assert_eq!(
        [runs, stopped, idle, a].map(state),
        [QpState::Err, QpState::Err, QpState::Reset, QpState::Rts]
    );
}

/// Of READs and atomics no more are ever outstanding than the peer agreed to, also while requests
/// and responses are lost. It is counted on the wire: one more than agreed, and this fails.
#[test]
fn a_peer_that_allows_sixteen_reads_never_sees_seventeen() {
    const ALLOWED: usize = 16;
    const POSTED: u64 = 120;
    for lossy in [false, true] {
        let mut net = Net::new(2);
        let (a, _) = net.connect(QpType::Rc, |attr| {
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (ALLOWED as u8, ALLOWED as u8);
        });
        let now = net.now;
        for at in 0..POSTED {
            let remote = net.hosts[1].remote(at * 8);
            let op = match at % 7 {
                0 => SendOp::FetchAdd { remote, add: 1 },
                1 => SendOp::Write(remote),
                _ => SendOp::Read(remote),
            };
            let sge = net.hosts[0].sge(at * 8, 8);
            net.hosts[0].post(now, a, op, &[sge], None);
        }
        let (mut outstanding, mut most, mut count) = (std::collections::BTreeSet::new(), 0, 0);
        net.run(|packet| {
            let psn = u32::from_be_bytes(packet.bytes[8..12].try_into().unwrap()) & 0xff_ffff;
            // IBTA vol. 1, table 38: RC READ_REQUEST and atomics, and what answers them.
            match packet.bytes[0] {
                0x0c | 0x13 | 0x14 => {
                    outstanding.insert(psn);
                    most = most.max(outstanding.len());
                }
                0x10 | 0x12 => {
                    count += 1;
                    if lossy && count % 11 == 0 {
                        return 0;
                    }
                    outstanding.remove(&psn);
                }
                _ => {}
            }
            1
        });
        let wcs = net.hosts[0].poll();
        assert_eq!(wcs.len(), POSTED as usize);
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(most, ALLOWED, "all that was agreed is used, and no more; loss: {lossy}");
        assert_eq!(net.hosts[1].nic.counters().nak_fatal_sent, 0);
    }
}
