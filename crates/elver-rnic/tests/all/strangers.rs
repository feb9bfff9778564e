//! What a device does with those whom it does not know: nothing that they could use.

use std::net::IpAddr;

use crate::common::dc::{KEY, dci, dct, dest, handle, statuses};
use crate::common::{ALL_ACCESS, Net, Packet, VecMemory, address};
use elver_rnic::Time;
use elver_verbs::*;
use elver_wire::{DcExtra, PacketView, Route, icrc};

/// A device that counts one number for all its sessions tells each target what it tells the others.
#[test]
fn a_target_cannot_tell_the_numbers_of_sessions_with_others() {
    let mut net = Net::new(3);
    let targets = [1, 2].map(|host| dct(&mut net.hosts[host], KEY, ALL_ACCESS));
    let qp = dci(&mut net.hosts[0], 0, 0);
    let ahs = [1, 2].map(|host| handle(&mut net.hosts[0], host));
    let mut sessions = [const { Vec::new() }; 2];
    for round in 0..40 {
        let which = round % 2;
        let to = dest(ahs[which], &targets[which], KEY, 0);
        let (remote, sge) = (net.hosts[1 + which].remote(0), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run(|packet| {
            let view = PacketView::parse(&packet.bytes).unwrap();
            if packet.flow.dst.ip() == address(1 + which)
                && let Route::Dc { eth, extra: DcExtra::Connect(_) } = view.headers().route()
            {
                sessions[which].push(eth.session);
            }
            1
        });
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
    }
    let [to_one, to_other] = &sessions;
    let grows = |pair: &[u32]| (pair[1].wrapping_sub(pair[0]) as i32) > 0;
    assert!(to_one.len() == 20 && to_one.windows(2).all(grows), "{to_one:?}");
    let apart = to_one[0].abs_diff(to_other[0]);
    assert!(apart > 1 << 16, "{to_one:?} and {to_other:?} begin {apart} from each other");
}

/// What another process of the peer's host can send: everything is right but the port, which the
/// device on that host holds.
fn from_another_port(packet: &Packet) -> Packet {
    let mut forged = packet.clone();
    forged.flow.src.set_port(50_000);
    icrc::seal(&forged.flow, 0, &mut forged.bytes);
    forged
}

#[test]
fn dc_takes_no_packet_from_another_port() {
    let mut net = Net::new(2);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let qp = dci(&mut net.hosts[0], 0, 0);
    let ah = handle(&mut net.hosts[0], 1);
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
    net.hosts[0].memory.fill(0, &[7; 64]);
    net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, dest(ah, &target, KEY, 0));
    net.transmit();
    let request = net.wire.pop_front().unwrap();
    net.deliver(&from_another_port(&request));
    assert!(!net.transmit(), "it was answered");
    assert_eq!(net.hosts[1].nic.counters().drop_source_port, 1);
    assert_eq!(net.hosts[1].memory.get(0, 64), [0; 64]);

    net.deliver(&request);
    assert!(net.transmit());
    let answer = net.wire.pop_front().unwrap();
    net.deliver(&from_another_port(&answer));
    assert_eq!(net.hosts[0].nic.counters().drop_source_port, 1);
    assert_eq!(statuses(&mut net.hosts[0]), []);
    net.deliver(&answer);
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
}

#[test]
fn a_ud_qp_may_mind_the_port() {
    for minds in [false, true] {
        let mut net = Net::new(2);
        let (pd, cq) = (net.hosts[1].pd, net.hosts[1].cq);
        let init = QpInit { same_source_port: minds, ..QpInit::new(QpType::Ud, pd, cq) };
        let taker = net.hosts[1].nic.create_qp(init).unwrap();
        net.hosts[1].connect(taker, QpType::Ud, address(0), 0, |_| {});
        let sges = [net.hosts[1].sge(0, 4096)];
        let receives = [RecvWr { wr_id: 1, sges: &sges }; 2];
        net.hosts[1].nic.post_recv(Time(1), taker, &receives).unwrap();
        let qp = net.hosts[0].create_qp(QpType::Ud);
        net.hosts[0].connect(qp, QpType::Ud, address(1), 0, |_| {});
        let ah = handle(&mut net.hosts[0], 1);
        let to = Dest::Ud { ah, remote_qpn: taker.0, remote_qkey: 0x1111 };
        let sge = [net.hosts[0].sge(0, 64)];
        net.hosts[0].post(net.now, qp, SendOp::Send, &sge, Some(to));
        net.transmit();
        let datagram = net.wire.pop_front().unwrap();
        net.deliver(&from_another_port(&datagram));
        assert_eq!(net.hosts[1].poll().len(), usize::from(!minds));
        assert_eq!(net.hosts[1].nic.counters().drop_source_port, u64::from(minds));
        net.deliver(&datagram);
        assert_eq!(net.hosts[1].poll().len(), 1);
    }
}

/// Management datagrams reach QP 1 and come from it; without one they reach nobody.
#[test]
fn management_datagrams_go_from_qp_1_to_qp_1() {
    const QKEY: u32 = 0x8001_0000;
    // From another device, and within one.
    for (from, to) in [(0, 1), (1, 1)] {
        let mut net = Net::new(2);
        let mut ready = |host: usize| {
            let (pd, cq) = (net.hosts[host].pd, net.hosts[host].cq);
            let init = QpInit { general_services: true, ..QpInit::new(QpType::Ud, pd, cq) };
            let qp = net.hosts[host].nic.create_qp(init).unwrap();
            assert!(net.hosts[host].nic.create_qp(init).is_err(), "a device has one");
            assert_eq!(net.hosts[host].nic.qp_num(qp), Ok(1));
            net.hosts[host].connect(qp, QpType::Ud, address(0), 0, |attr| attr.qkey = QKEY);
            qp
        };
        let taker = ready(to);
        let sender = if from == to { taker } else { ready(from) };
        let rc = QpInit::new(QpType::Rc, net.hosts[0].pd, net.hosts[0].cq);
        let wrong = QpInit { general_services: true, ..rc };
        assert!(net.hosts[0].nic.create_qp(wrong).is_err(), "QP 1 is a UD QP");
        let sges = [net.hosts[to].sge(0, 4096)];
        let receives = [RecvWr { wr_id: 1, sges: &sges }];
        net.hosts[to].nic.post_recv(Time(1), taker, &receives).unwrap();
        let ah = handle(&mut net.hosts[from], to);
        let dest = Dest::Ud { ah, remote_qpn: 1, remote_qkey: QKEY };
        let sge = [net.hosts[from].sge(8192, 256)];
        net.hosts[from].post(net.now, sender, SendOp::Send, &sge, Some(dest));
        net.run(|_| 1);
        let wcs = net.hosts[to].poll();
        let arrived: Vec<_> = wcs.iter().filter(|wc| wc.opcode == WcOpcode::Recv).collect();
        assert!(arrived.len() == 1 && arrived[0].src_qp == 1 && arrived[0].qp_num == 1, "{wcs:?}");
        net.hosts[to].nic.destroy_qp(Time(2), taker).unwrap();
        if from != to {
            net.hosts[from].post(net.now, sender, SendOp::Send, &sge, Some(dest));
            net.run(|_| 1);
            assert_eq!(net.hosts[to].nic.counters().drop_qpn, 1);
        }
    }
}

/// A connected QP believes its peer's address alone, on requests and on answers.
#[test]
fn a_connected_qp_takes_no_packet_from_another_address() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut net = Net::new(2);
        let (qp, _) = net.connect(qp_type, |_| {});
        let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].memory.fill(0, &[7; 64]);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
        net.transmit();
        let mut forged = net.wire.pop_front().unwrap();
        forged.flow.src.set_ip(address(2));
        icrc::seal(&forged.flow, 0, &mut forged.bytes);
        net.deliver(&forged);
        assert!(!net.transmit(), "it was answered");
        assert_eq!(net.hosts[1].nic.counters().drop_source, 1);
        assert_eq!(net.hosts[1].memory.get(0, 64), [0; 64]);
    }
}

/// A device that never gave a path back answered nobody new after as many addresses as it has room
/// for, until it was made anew.
#[test]
fn strangers_use_up_no_paths() {
    const STRANGERS: u32 = 70_000;
    let mut net = Net::with_config(2, |config| config.max_paths = 1 << 16);
    let taker = net.hosts[1].create_qp(QpType::Ud);
    net.hosts[1].connect(taker, QpType::Ud, address(0), 0, |_| {});
    let asker = net.hosts[0].create_qp(QpType::Ud);
    net.hosts[0].connect(asker, QpType::Ud, address(1), 0, |_| {});
    let ah = handle(&mut net.hosts[0], 1);
    let to = Dest::Ud { ah, remote_qpn: taker.0, remote_qkey: 0x1111 };
    let sge = [net.hosts[0].sge(0, 64)];
    net.hosts[0].post(net.now, asker, SendOp::Send, &sge, Some(to));
    net.transmit();
    let honest = net.wire.pop_front().unwrap();
    assert_eq!(net.hosts[0].poll().len(), 1);

    // Receives a datagram from an address, and answers to where it came from.
    let answer = |net: &mut Net, source: IpAddr| {
        let mut datagram = honest.clone();
        datagram.flow.src.set_ip(source);
        icrc::seal(&datagram.flow, 0, &mut datagram.bytes);
        let host = &mut net.hosts[1];
        let sges = [host.sge(0, 4096)];
        host.nic.post_recv(Time(1), taker, &[RecvWr { wr_id: 1, sges: &sges }]).unwrap();
        net.deliver(&datagram);
        let host = &mut net.hosts[1];
        assert_eq!(statuses(host), [WcStatus::Success]);
        let av = AddressVector { dgid: Gid::from(source), ..AddressVector::default() };
        let ah = host.nic.create_ah(host.pd, av).unwrap();
        let to = Dest::Ud { ah, remote_qpn: asker.0, remote_qkey: 0x1111 };
        let sge = [host.sge(0, 64)];
        host.post(net.now, taker, SendOp::Send, &sge, Some(to));
        assert!(net.transmit());
        let sent = net.wire.pop_front().unwrap();
        assert_eq!(sent.flow.dst.ip(), source);
        assert_eq!(statuses(&mut net.hosts[1]), [WcStatus::Success]);
        net.hosts[1].nic.destroy_ah(ah).unwrap();
        net.now = net.now.saturating_add_ns(1_000);
    };
    for stranger in 0..STRANGERS {
        answer(&mut net, IpAddr::from((0x7f01_0000 + stranger).to_be_bytes()));
    }
    answer(&mut net, address(0));
    assert_eq!(net.hosts[1].nic.paths_held(), 0);
    assert!(net.hosts[1].nic.counters().paths_evicted > 4_000);
}

/// Whatever held a path gives it back: address handles, connected QPs, streams of DCIs.
#[test]
fn paths_are_given_back() {
    let mut net = Net::new(3);
    let targets = [1, 2].map(|host| dct(&mut net.hosts[host], KEY, ALL_ACCESS));
    let (rc, _) = net.connect(QpType::Rc, |_| {});
    let dci = dci(&mut net.hosts[0], 2, 1);
    for round in 0..12 {
        let which = round % 2;
        let ah = handle(&mut net.hosts[0], 1 + which);
        let to = dest(ah, &targets[which], KEY, (round % 4) as u16);
        let (remote, sge) = (net.hosts[1 + which].remote(0), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].post(net.now, dci, SendOp::Write(remote), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        net.hosts[0].nic.destroy_ah(ah).unwrap();
    }
    // The RC QP's, and one for each of the four streams.
    assert_eq!(net.hosts[0].nic.paths_held(), 1 + 4);
    net.hosts[0].nic.destroy_qp(net.now, dci).unwrap();
    net.hosts[0].nic.destroy_qp(net.now, rc).unwrap();
    assert_eq!(net.hosts[0].nic.paths_held(), 0);
}

/// A request of a DCI, with a WRITE of 64 bytes, that the caller sends on.
fn connecting(net: &mut Net, qp: Qp, to: Option<Dest>) -> Packet {
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
    net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
    net.transmit();
    net.wire.pop_front().unwrap()
}

/// Somebody tries keys in an honest node's name: he is not listened to, and the node gets in all the
/// same.
#[test]
fn who_forges_an_address_cannot_lock_its_owner_out() {
    let mut net = Net::new(2);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let liar = dci(&mut net.hosts[0], 0, 0);
    let wrong = connecting(&mut net, liar, dest(ah, &target, 5, 0));
    for _ in 0..3_000 {
        net.deliver(&wrong);
    }
    let counters = net.hosts[1].nic.counters();
    assert_eq!(counters.dc_refused_key, 1_001);
    assert_eq!(counters.dc_proofs_asked, 1_999, "the key was not looked at");
    net.transmit();
    net.wire.clear();

    let honest = dci(&mut net.hosts[0], 0, 0);
    net.hosts[0].memory.fill(0, &[7; 64]);
    let request = connecting(&mut net, honest, dest(ah, &target, KEY, 0));
    net.deliver(&request);
    assert_eq!(net.hosts[1].memory.get(0, 64), [0; 64], "it could be anybody");
    net.run_clean();
    assert!(statuses(&mut net.hosts[0]).contains(&WcStatus::Success));
    assert_eq!(net.hosts[1].memory.get(0, 64), [7; 64]);
}

/// Who tries keys from where he is gets no answer for a while; a wrong key now and then does no
/// harm.
#[test]
fn who_tries_keys_is_not_answered() {
    let mut net = Net::with_config(2, |config| config.bad_keys_burst = 20);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let to = dest(ah, &target, KEY, 0);
    let good = dci(&mut net.hosts[0], 0, 0);
    let succeeds = |net: &mut Net, qp: Qp| {
        let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run_clean();
        statuses(&mut net.hosts[0]).ends_with(&[WcStatus::Success])
    };
    assert!(succeeds(&mut net, good));
    for round in 0..25 {
        let tries = dci(&mut net.hosts[0], 0, 0);
        let remote = RemoteAddr { rkey: 0x1234_5600 + round, ..net.hosts[1].remote(0) };
        let sge = [net.hosts[0].sge(0, 64)];
        net.hosts[0].post(net.now, tries, SendOp::Write(remote), &sge, to);
        net.transmit();
        let request = net.wire.pop_front().unwrap();
        net.deliver(&request);
        net.transmit();
        net.wire.clear();
        let now = net.now;
        net.hosts[0].nic.destroy_qp(now, tries).unwrap();
    }
    assert_eq!(net.hosts[1].nic.counters().drop_distrusted, 4);
    assert!(succeeds(&mut net, good), "its session stands");
    let late = dci(&mut net.hosts[0], 0, 0);
    net.now = net.now.saturating_add_ns(20_000_000_000);
    assert!(succeeds(&mut net, late), "it is forgiven");
}

/// Of more events than a device keeps the oldest goes, and whoever tries a wrong key makes one.
#[test]
fn who_tries_keys_hides_no_other_event() {
    let mut net = Net::with_config(2, |config| config.max_async_events = 4);
    let (qp, far) = net.connect(QpType::Rc, |_| {});
    let remote = RemoteAddr { rkey: 0x1234_5600, ..net.hosts[1].remote(0) };
    let sge = [net.hosts[0].sge(0, 64)];
    net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
    net.run_clean();
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let liar = dci(&mut net.hosts[0], 0, 0);
    let wrong = connecting(&mut net, liar, dest(ah, &target, 5, 0));
    for _ in 0..100 {
        net.deliver(&wrong);
    }
    let nic = &mut net.hosts[1].nic;
    assert_eq!((nic.counters().dc_refused_key, nic.counters().async_events_lost), (100, 0));
    let told: Vec<_> = std::iter::from_fn(|| nic.poll_async_event()).collect();
    assert!(told.contains(&AsyncEvent::QpAccessErr(far)), "{told:?}");
    assert_eq!(told.last(), Some(&AsyncEvent::DctAccessErr(target.qp)), "{told:?}");
    // It is told again once it was looked at.
    net.deliver(&wrong);
    let told = net.hosts[1].nic.poll_async_event();
    assert_eq!(told, Some(AsyncEvent::DctAccessErr(target.qp)));
}

/// Tries rkeys over connected QPs, one that is not there after another; whether a DC session opens then.
fn opens_after(net: &mut Net, qp_type: QpType, tries: u32) -> bool {
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    for round in 0..tries {
        let (qp, far) = net.connect(qp_type, |_| {});
        let remote = RemoteAddr { rkey: 0x1234_5600 + round, ..net.hosts[1].remote(0) };
        let sge = [net.hosts[0].sge(0, 64)];
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, None);
        net.transmit();
        let request = net.wire.pop_front().unwrap();
        net.deliver(&request);
        net.transmit();
        net.wire.clear();
        let now = net.now;
        net.hosts[0].nic.destroy_qp(now, qp).unwrap();
        net.hosts[1].nic.destroy_qp(now, far).unwrap();
    }
    net.hosts[0].poll();
    let ah = handle(&mut net.hosts[0], 1);
    let qp = dci(&mut net.hosts[0], 0, 0);
    let request = connecting(net, qp, dest(ah, &target, KEY, 0));
    net.hosts[0].memory.fill(0, &[7; 64]);
    net.deliver(&request);
    net.hosts[1].memory.get(0, 64) == [7; 64]
}

/// Memory that is not open to peers is touched by none, who may know all its keys.
#[test]
fn nobody_reaches_memory_that_is_not_open_to_peers() {
    for qp_type in [QpType::Dci, QpType::Rc, QpType::Uc] {
        for op in [SendOp::Write, SendOp::Read] {
            let mut net = Net::new(2);
            let private = VecMemory::new(0x9000_0000, 64);
            private.fill(0, &[9; 64]);
            let pd = net.hosts[1].pd;
            let access = AccessFlags::LOCAL_WRITE;
            let mr = net.hosts[1].nic.reg_mr(pd, private.clone(), None, access).unwrap();
            let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
            let ah = handle(&mut net.hosts[0], 1);
            let (qp, to) = match qp_type {
                QpType::Dci => (dci(&mut net.hosts[0], 0, 0), dest(ah, &target, KEY, 0)),
                _ => (net.connect(qp_type, |_| {}).0, None),
            };
            let op = op(RemoteAddr { addr: mr.addr, rkey: mr.rkey });
            if qp_type == QpType::Uc && matches!(op, SendOp::Read(_)) {
                continue;
            }
            net.hosts[0].memory.fill(0, &[7; 64]);
            let sge = [net.hosts[0].sge(0, 64)];
            net.hosts[0].post(net.now, qp, op, &sge, to);
            net.run_clean();
            // Over UC nobody is told.
            let end = match qp_type {
                QpType::Uc => WcStatus::Success,
                _ => WcStatus::RemAccessErr,
            };
            assert_eq!(statuses(&mut net.hosts[0]), [end], "{qp_type:?} {op:?}");
            assert_eq!(private.get(0, 64), [9; 64]);
            assert_eq!(net.hosts[0].memory.get(0, 64), [7; 64]);
        }
    }
}

/// The key of a part opens that part, at its own address, and no byte before or behind it. Of windows and local SGEs
/// [`crate::rights`] says the same.
#[test]
fn the_key_of_a_part_opens_that_part_alone() {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    for (from, length, end) in [
        (16, 32, WcStatus::Success),
        (20, 4, WcStatus::Success),
        (15, 32, WcStatus::RemAccessErr),
        (16, 33, WcStatus::RemAccessErr),
        (47, 2, WcStatus::RemAccessErr),
        (0, 4, WcStatus::RemAccessErr),
        (48, 4, WcStatus::RemAccessErr),
    ] {
        for op in [SendOp::Write, SendOp::Read] {
            let mut net = Net::new(2);
            let whole = VecMemory::new(0x9000_0000, 64);
            let bytes: Vec<u8> = (0..64).collect();
            whole.fill(0, &bytes);
            let (pd, iova) = (net.hosts[1].pd, 0x5000);
            let nic = &mut net.hosts[1].nic;
            let mr = nic.reg_mr_part(pd, whole.clone(), (16, 32), Some(iova), access).unwrap();
            assert_eq!((mr.addr, mr.length), (iova, 32));
            for part in [(0, 65), (64, 1), (u64::MAX, 1), (1, u64::MAX)] {
                assert!(nic.reg_mr_part(pd, whole.clone(), part, Some(iova), access).is_err());
            }
            let (qp, _) = net.connect(QpType::Rc, |_| {});
            let op = op(RemoteAddr { addr: iova + from - 16, rkey: mr.rkey });
            net.hosts[0].memory.fill(0, &[99; 64]);
            let sge = [net.hosts[0].sge(0, length)];
            net.hosts[0].post(net.now, qp, op, &sge, None);
            net.run_clean();
            assert_eq!(statuses(&mut net.hosts[0]), [end], "{op:?} {length}");
            let (first, behind) = (from as usize, from as usize + length as usize);
            let mut expected = bytes.clone();
            match (end, op) {
                (WcStatus::Success, SendOp::Write(_)) => expected[first..behind].fill(99),
                (WcStatus::Success, _) => {
                    let read = net.hosts[0].memory.get(0, length as usize);
                    assert_eq!(read, bytes[first..behind]);
                }
                _ => assert_eq!(net.hosts[0].memory.get(0, 64), [99; 64]),
            }
            assert_eq!(whole.get(0, 64), expected, "{op:?} {length}");
        }
    }
}

/// Over RC each wrong rkey costs a QP, and whoever sent them opens no DC session.
#[test]
fn who_tries_rkeys_over_rc_opens_no_session() {
    for (tries, opens) in [(20, true), (25, false)] {
        let mut net = Net::with_config(2, |config| config.bad_keys_burst = 20);
        net.hosts[0].memory.fill(0, &[7; 64]);
        assert_eq!(opens_after(&mut net, QpType::Rc, tries), opens);
        // Nor by a proof that it is there.
        net.run_clean();
        assert_eq!(net.hosts[1].memory.get(0, 64) == [7; 64], opens);
        assert_eq!(net.hosts[1].nic.counters().drop_distrusted == 0, opens);
        let end = if opens { WcStatus::Success } else { WcStatus::RetryExcErr };
        assert_eq!(statuses(&mut net.hosts[0]), [end]);
    }
}

/// Over UC anybody can have sent them who forges an address: its owner has to prove where he is, and
/// gets in.
#[test]
fn who_tries_rkeys_over_uc_has_to_prove_where_he_is() {
    for (tries, asked) in [(20, 0), (25, 1)] {
        let mut net = Net::with_config(2, |config| config.bad_keys_burst = 20);
        let (connected, _) = net.connect(QpType::Uc, |_| {});
        net.hosts[0].memory.fill(0, &[7; 64]);
        assert_eq!(opens_after(&mut net, QpType::Uc, tries), asked == 0);
        let counters = net.hosts[1].nic.counters();
        assert_eq!((counters.dc_proofs_asked, counters.drop_distrusted), (asked, 0));
        assert_eq!(counters.drop_unreliable, u64::from(tries));
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        assert_eq!(net.hosts[1].memory.get(0, 64), [7; 64]);
        // What is connected goes on.
        let (remote, sge) = (net.hosts[1].remote(64), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].post(net.now, connected, SendOp::Write(remote), &sge, None);
        net.run_clean();
        assert_eq!(net.hosts[1].memory.get(64, 64), [7; 64]);
    }
}

#[test]
fn a_port_that_tries_q_keys_is_not_heard_and_the_device_of_its_host_is() {
    let mut net = Net::with_config(2, |config| config.bad_keys_burst = 20);
    let (taker, sges) = (net.hosts[1].create_qp(QpType::Ud), [net.hosts[1].sge(0, 4096)]);
    net.hosts[1].connect(taker, QpType::Ud, address(0), 0, |_| {});
    net.hosts[1].nic.post_recv(Time(1), taker, &[RecvWr { wr_id: 1, sges: &sges }; 2]).unwrap();
    let qp = net.hosts[0].create_qp(QpType::Ud);
    net.hosts[0].connect(qp, QpType::Ud, address(1), 0, |_| {});
    let ah = handle(&mut net.hosts[0], 1);
    let datagram = |net: &mut Net, remote_qkey| {
        let to = Dest::Ud { ah, remote_qpn: taker.0, remote_qkey };
        let sge = [net.hosts[0].sge(0, 64)];
        net.hosts[0].post(net.now, qp, SendOp::Send, &sge, Some(to));
        net.transmit();
        net.wire.pop_front().unwrap()
    };
    let (wrong, right) = (datagram(&mut net, 5), datagram(&mut net, 0x1111));
    for _ in 0..50 {
        net.deliver(&from_another_port(&wrong));
    }
    assert_eq!(net.hosts[1].nic.counters().drop_qkey, 21);
    net.deliver(&from_another_port(&right));
    assert_eq!(net.hosts[1].nic.counters().drop_distrusted, 30);
    assert_eq!(net.hosts[1].poll().len(), 0);
    net.deliver(&right);
    assert_eq!(net.hosts[1].poll().len(), 1);
}
