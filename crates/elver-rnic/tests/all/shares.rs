//! Who shares a device with others: nobody keeps it from them, nor is it said to be slow by who has no say.

use crate::common::dc::{KEY, dci, dct, dest, handle, statuses};
use crate::common::{ALL_ACCESS, Net, Packet, address};
use elver_rnic::Time;
use elver_verbs::*;
use elver_wire::{Flow, Headers, Message, PacketView, Psn, Qpn, Route, icrc, packet_len};

/// Who read without end had all answers of a DC target, and the others' ended in a time-out.
#[test]
fn a_dc_target_answers_each_initiator_in_turn() {
    const LONG: u32 = 512 << 10;
    let mut net = Net::new(3);
    let target = dct(&mut net.hosts[2], KEY, ALL_ACCESS);
    let remote = net.hosts[2].remote(0);
    let [greedy, modest] = [0, 1].map(|host| {
        let qp = dci(&mut net.hosts[host], 0, 0);
        let ah = handle(&mut net.hosts[host], 2);
        let to = dest(ah, &target, KEY, 0);
        // The target knows both.
        let sge = [net.hosts[host].sge(0, 8)];
        net.hosts[host].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[host]), [WcStatus::Success]);
        (qp, to)
    });
    let sge = [net.hosts[0].sge(0, LONG)];
    net.hosts[0].post(net.now, greedy.0, SendOp::Read(remote), &sge, greedy.1);
    while net.transmit_one(0) {}
    let asked = std::mem::take(&mut net.wire);
    asked.iter().for_each(|packet| net.deliver(packet));
    assert!(net.transmit_one(2), "the first answer");
    let sge = [net.hosts[1].sge(0, 8)];
    net.hosts[1].post(net.now, modest.0, SendOp::Write(remote), &sge, modest.1);
    while net.transmit_one(1) {}
    let (answers, asked): (Vec<_>, Vec<_>) =
        std::mem::take(&mut net.wire).into_iter().partition(|p| p.flow.src.ip() == address(2));
    assert_eq!(answers.len(), 1);
    asked.iter().for_each(|packet| net.deliver(packet));
    let mut before = 0;
    while net.transmit_one(2) && net.wire[before].flow.dst.ip() != address(1) {
        before += 1;
    }
    assert!(before <= 32, "{before} answers to another before the one to who wrote 8 bytes");
    assert!(net.transmit_one(2), "who reads has not had all of it yet");
}

/// A datagram of QP 1 that had to wait for its turn on a path waited for ever, and all behind it.
#[test]
fn qp_1_goes_on_when_it_has_waited_for_its_path() {
    const QKEY: u32 = 0x8001_0000;
    let mut net = Net::with_config(2, |config| config.flow.unacked_burst_bytes = 320);
    let [sender, taker] = [0, 1].map(|host| {
        let (pd, cq) = (net.hosts[host].pd, net.hosts[host].cq);
        let init = QpInit { general_services: true, ..QpInit::new(QpType::Ud, pd, cq) };
        let qp = net.hosts[host].nic.create_qp(init).unwrap();
        net.hosts[host].connect(qp, QpType::Ud, address(0), 0, |attr| attr.qkey = QKEY);
        qp
    });
    let ah = handle(&mut net.hosts[0], 1);
    let dest = Dest::Ud { ah, remote_qpn: 1, remote_qkey: QKEY };
    for at in 0..4 {
        let sges = [net.hosts[1].sge(at * 1024, 1024)];
        let receives = [RecvWr { wr_id: at, sges: &sges }];
        net.hosts[1].nic.post_recv(Time(1), taker, &receives).unwrap();
        let sge = [net.hosts[0].sge(8192, 256)];
        net.hosts[0].post(net.now, sender, SendOp::Send, &sge, Some(dest));
    }
    net.run_clean();
    let arrived = net.hosts[1].poll().iter().filter(|wc| wc.opcode == WcOpcode::Recv).count();
    assert_eq!(arrived, 4);
}

/// Any process beside a peer slowed all that went there, by naming QP 1.
#[test]
fn congestion_is_told_by_who_takes_part_alone() {
    let mut net = Net::new(2);
    let (connected, _) = net.connect(QpType::Rc, |_| {});
    let idle = net.hosts[0].create_qp(QpType::Rc);
    let datagrams = net.hosts[0].create_qp(QpType::Ud);
    net.hosts[0].connect(datagrams, QpType::Ud, address(0), 0, |_| {});
    let target = dct(&mut net.hosts[0], KEY, ALL_ACCESS).number;
    let number = |qp| net.hosts[0].nic.qp_num(qp).unwrap();
    let [connected, idle, datagrams] = [connected, idle, datagrams].map(number);
    let port = elver_wire::UDP_PORT;
    for (qpn, host, from_port, believed) in [
        (connected, 1, 50_000, true),
        (connected, 2, port, false),
        (idle, 1, port, false),
        (target, 1, port, false),
        (datagrams, 1, 50_000, false),
        (datagrams, 1, port, true),
    ] {
        let flow = Flow { src: (address(host), from_port).into(), dst: (address(0), port).into() };
        let to = Qpn::new(qpn).unwrap();
        let psn = Psn::from_wrapping(0);
        let mut headers = Headers::new(Route::Rc, Message::Cnp, to, psn).unwrap();
        headers.becn = true;
        let mut bytes = vec![0; packet_len(headers.header_len(), 0)];
        headers.emit(&mut bytes, 0);
        icrc::seal(&flow, 0, &mut bytes);
        assert!(PacketView::parse(&bytes).is_ok());
        let before = net.hosts[0].nic.counters().cnp_received;
        net.deliver(&Packet { flow, traffic_class: 0, bytes });
        let heard = net.hosts[0].nic.counters().cnp_received - before;
        assert_eq!(heard == 1, believed, "{qpn:#x} from host {host}, port {from_port}");
    }
}

/// What a duplicate was told took the place of a refusal that waited, which nobody made again.
#[test]
fn a_refusal_is_not_overtaken_by_what_a_duplicate_is_told() {
    let mut net = Net::with_config(2, |config| config.tail_probe_ns = 0);
    let (qp, _) = net.connect(QpType::Rc, |attr| attr.timeout = 31);
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
    for _ in 0..3 {
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
    }
    while net.transmit_one(0) {}
    let sent: Vec<_> = std::mem::take(&mut net.wire).into();
    assert_eq!(sent.len(), 3);
    net.deliver(&sent[0]);
    while net.transmit_one(1) {}
    net.wire.clear();
    // The second is missing when the third comes, and then the first comes again.
    net.deliver(&sent[2]);
    net.deliver(&sent[0]);
    let begun = net.now;
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 3]);
    assert!(net.now.ns_since(begun) < 1_000_000_000, "it waited for its timer");
}

/// It went on reading its owner's memory, and sending that.
#[test]
fn a_qp_whose_owner_has_stopped_it_says_nothing_more() {
    let mut net = Net::new(3);
    let (asker, stopped) = net.connect(QpType::Rc, |_| {});
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let qp = dci(&mut net.hosts[2], 0, 0);
    let ah = handle(&mut net.hosts[2], 1);
    let to = dest(ah, &target, KEY, 0);
    let remote = net.hosts[1].remote(0);
    let sge = [net.hosts[2].sge(0, 8)];
    net.hosts[2].post(net.now, qp, SendOp::Write(remote), &sge, to);
    net.run_clean();
    for (host, qp, to) in [(0, asker, None), (2, qp, to)] {
        let sge = [net.hosts[host].sge(0, 16 << 10)];
        net.hosts[host].post(net.now, qp, SendOp::Read(remote), &sge, to);
        while net.transmit_one(host) {}
    }
    let asked = std::mem::take(&mut net.wire);
    asked.iter().for_each(|packet| net.deliver(packet));
    assert!(net.transmit_one(1), "the first answer");
    let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    for qp in [stopped, target.qp] {
        let now = net.now;
        net.hosts[1].nic.modify_qp(now, qp, &error, QpAttrMask::STATE).unwrap();
    }
    assert!(!net.transmit_one(1), "it goes on");
}

/// What was under way to an address was taken off another one's window, for good.
#[test]
fn a_qp_that_turns_to_another_address_leaves_the_first_ones_window() {
    let mut net = Net::with_config(3, |config| {
        (config.flow.window_initial, config.flow.window_min) = (2, 2);
        config.flow.window_max = 2;
    });
    let (turns, _) = net.connect(QpType::Rc, |_| {});
    let (stays, _) = net.connect(QpType::Rc, |_| {});
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
    for _ in 0..2 {
        net.hosts[0].post(net.now, turns, SendOp::Write(remote), &sge, None);
    }
    while net.transmit_one(0) {}
    assert_eq!(net.wire.len(), 2);
    net.wire.clear();
    let mut attr = QpAttr { qp_state: QpState::Sqd, ..QpAttr::default() };
    let now = net.now;
    net.hosts[0].nic.modify_qp(now, turns, &attr, QpAttrMask::STATE).unwrap();
    attr.ah_attr.dgid = Gid::from(address(2));
    let mask = QpAttrMask::STATE | QpAttrMask::AV;
    net.hosts[0].nic.modify_qp(now, turns, &attr, mask).unwrap();
    for _ in 0..2 {
        net.hosts[0].post(net.now, stays, SendOp::Write(remote), &sge, None);
    }
    while net.transmit_one(0) {}
    let sent = net.wire.iter().filter(|packet| packet.flow.dst.ip() == address(1)).count();
    assert_eq!(sent, 2, "the window of the first address is full of what left it");
}

/// A queue full of large WRs was copied in one call, while nobody else was served.
#[test]
fn who_copies_much_within_a_device_gives_way() {
    const LENGTH: u32 = 512 << 10;
    let mut net = Net::new(1);
    let (qp, _) = net.connect_hosts([0, 0], QpType::Rc, |_| {});
    let (remote, sge) = (net.hosts[0].remote(0), [net.hosts[0].sge(0, LENGTH)]);
    let mut done = 0;
    for _ in 0..64 {
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
    }
    done += net.hosts[0].poll().len();
    assert!(done == 32 && net.hosts[0].nic.poll_timeout().is_some(), "{done}");
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 32]);
}
