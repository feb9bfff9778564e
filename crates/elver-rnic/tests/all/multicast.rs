//! Multicast on UD: who receives what is sent to a group, and what nobody can do by it.

use std::net::IpAddr;

use crate::common::{Host, Net, Packet, address};
use elver_verbs::*;
use elver_wire::icrc;

const GRH: usize = 40;
const QKEY: u32 = 0x1111;
const TO_ALL: u32 = 0xff_ffff;

fn group() -> Gid {
    Gid::from("230.0.0.1".parse::<IpAddr>().unwrap())
}

/// A UD QP in RTS with a receive, whose bytes lie at `at` of the host's memory.
fn datagrams(host: &mut Host, at: u64) -> Qp {
    let qp = host.create_qp(QpType::Ud);
    host.connect(qp, QpType::Ud, address(0), 0, |_| ());
    post_receive(host, qp, at);
    qp
}

fn post_receive(host: &mut Host, qp: Qp, at: u64) {
    let sges = [host.sge(at, 256)];
    host.nic.post_recv(elver_rnic::Time::ZERO, qp, &[RecvWr { wr_id: at, sges: &sges }]).unwrap();
}

fn handle(host: &mut Host, dgid: Gid) -> Ah {
    host.nic
        .create_multicast_ah(host.pd, AddressVector { dgid, ..AddressVector::default() })
        .unwrap()
}

fn send(net: &mut Net, from: usize, qp: Qp, remote_qkey: u32) {
    let host = &mut net.hosts[from];
    let ah = handle(host, group());
    host.memory.fill(0, b"to all of you");
    let sge = [host.sge(0, 13)];
    let dest = Some(Dest::Ud { ah, remote_qpn: TO_ALL, remote_qkey });
    host.post(net.now, qp, SendOp::Send, &sge, dest);
}

fn received(host: &mut Host) -> Vec<(u64, u32)> {
    let of = |wc: &Wc| (wc.opcode == WcOpcode::Recv).then_some((wc.wr_id, wc.qp_num));
    host.poll().iter().filter_map(of).collect()
}

#[test]
fn every_qp_of_the_group_receives_but_the_one_that_sent() {
    let mut net = Net::new(3);
    // Two at the sender's host, two at another, one that is in no group, and a host without any.
    let own = [1_000, 2_000].map(|at| datagrams(&mut net.hosts[0], at));
    let others = [1_000, 2_000, 3_000].map(|at| datagrams(&mut net.hosts[1], at));
    for (host, qp) in [(0, own[0]), (0, own[1]), (1, others[0]), (1, others[1])] {
        let first = net.hosts[host].nic.attach_multicast(qp, group()).unwrap();
        assert_eq!(first, qp == own[0] || qp == others[0]);
    }
    send(&mut net, 0, own[0], QKEY);
    net.run_clean();
    assert_eq!(received(&mut net.hosts[0]), [(2_000, own[1].0)]);
    assert_eq!(received(&mut net.hosts[1]), [(1_000, others[0].0), (2_000, others[1].0)]);
    let taken = net.hosts[1].memory.get(1_000, GRH + 13);
    assert_eq!(&taken[GRH..], b"to all of you");
    assert_eq!(taken[GRH - 4..GRH], [230, 0, 0, 1], "the GRH tells the group");
    assert_eq!(net.hosts[2].nic.counters().drop_qpn, 1);

    // Who is not attached sends to all, and who was detached receives no more.
    assert!(!net.hosts[1].nic.detach_multicast(others[0], group()).unwrap());
    assert!(net.hosts[1].nic.detach_multicast(others[1], group()).unwrap(), "the last one");
    post_receive(&mut net.hosts[0], own[1], 2_000);
    send(&mut net, 1, others[2], QKEY);
    net.run_clean();
    let sources: Vec<(u64, u32)> = received(&mut net.hosts[0]);
    assert_eq!(sources, [(1_000, own[0].0), (2_000, own[1].0)]);
    assert_eq!(received(&mut net.hosts[1]), []);
}

#[test]
fn what_has_no_receive_or_another_key_is_dropped_and_counted() {
    let mut net = Net::new(2);
    let sender = datagrams(&mut net.hosts[0], 1_000);
    let members = [1_000, 2_000].map(|at| datagrams(&mut net.hosts[1], at));
    for qp in members {
        net.hosts[1].nic.attach_multicast(qp, group()).unwrap();
    }
    send(&mut net, 0, sender, QKEY + 1);
    net.run_clean();
    assert_eq!(net.hosts[1].nic.counters().drop_qkey, 2);
    assert_eq!(received(&mut net.hosts[1]), []);
    for _ in 0..2 {
        send(&mut net, 0, sender, QKEY);
    }
    net.run_clean();
    assert_eq!(received(&mut net.hosts[1]).len(), 2);
    assert_eq!(net.hosts[1].nic.counters().drop_no_receive, 2);
    // One that takes nothing in its state lets the others be.
    let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    net.hosts[1].nic.modify_qp(net.now, members[0], &attr, QpAttrMask::STATE).unwrap();
    post_receive(&mut net.hosts[1], members[1], 2_000);
    send(&mut net, 0, sender, QKEY);
    net.run_clean();
    assert_eq!(received(&mut net.hosts[1]), [(2_000, members[1].0)]);
    assert_eq!(net.hosts[1].nic.counters().drop_state, 1);
}

/// The packets of all transports, readdressed to the group by a stranger: none but datagrams to QP 0xffffff is
/// looked at, whatever QPs there are.
#[test]
fn a_stranger_does_nothing_by_multicast_that_he_could_not_by_unicast() {
    let mut net = Net::new(2);
    let member = datagrams(&mut net.hosts[1], 1_000);
    net.hosts[1].nic.attach_multicast(member, group()).unwrap();
    let mut captured: Vec<Packet> = Vec::new();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (a, _) = net.connect(qp_type, |_| ());
        let (remote, sge) = (net.hosts[1].remote(5_000), [net.hosts[0].sge(0, 8)]);
        net.hosts[0].memory.fill(0, b"overtake");
        net.hosts[0].post(net.now, a, SendOp::Write(remote), &sge, None);
        net.transmit();
        captured.extend(net.wire.drain(..));
    }
    // A datagram to a member's own number.
    let sender = datagrams(&mut net.hosts[0], 1_000);
    let av = AddressVector { dgid: Gid::from(address(1)), ..AddressVector::default() };
    let pd = net.hosts[0].pd;
    let ah = net.hosts[0].nic.create_ah(pd, av).unwrap();
    let sge = [net.hosts[0].sge(0, 8)];
    let remote_qpn = net.hosts[1].nic.qp_num(member).unwrap();
    let dest = Some(Dest::Ud { ah, remote_qpn, remote_qkey: QKEY });
    net.hosts[0].post(net.now, sender, SendOp::Send, &sge, dest);
    net.transmit();
    captured.extend(net.wire.drain(..));
    assert_eq!(captured.len(), 3);
    for packet in &mut captured {
        packet.flow.dst.set_ip(group().to_ip());
        icrc::seal(&packet.flow, 0, &mut packet.bytes);
        net.deliver(packet);
    }
    assert_eq!(net.hosts[1].nic.counters().drop_qpn, 3);
    assert_eq!(net.hosts[1].memory.get(5_000, 8), [0; 8]);
    assert_eq!(received(&mut net.hosts[1]), []);
    assert!(!net.transmit(), "somebody was answered");

    // A datagram to the group that came to an address of the host, or to another group.
    send(&mut net, 0, sender, QKEY);
    net.transmit();
    let packet = net.wire.pop_front().unwrap();
    for (to, reason) in [(address(1), 4), ("230.0.0.2".parse().unwrap(), 5)] {
        let mut other = packet.clone();
        other.flow.dst.set_ip(to);
        icrc::seal(&other.flow, 0, &mut other.bytes);
        net.deliver(&other);
        assert_eq!(net.hosts[1].nic.counters().drop_qpn, reason);
    }
    net.deliver(&packet);
    assert_eq!(received(&mut net.hosts[1]).len(), 1);
}

/// Wrong Q_Keys from another port count as they do by unicast, and who knows one of a group's guesses none.
#[test]
fn keys_are_not_guessed_by_multicast() {
    let mut net = Net::with_config(2, |config| config.bad_keys_burst = 3);
    let members = [1_000, 2_000].map(|at| datagrams(&mut net.hosts[1], at));
    for qp in members {
        net.hosts[1].nic.attach_multicast(qp, group()).unwrap();
    }
    let attr = QpAttr { qkey: QKEY + 7, ..QpAttr::default() };
    net.hosts[1].nic.modify_qp(net.now, members[1], &attr, QpAttrMask::QKEY).unwrap();
    let sender = datagrams(&mut net.hosts[0], 1_000);
    let mut from_another_port = |qkey| {
        send(&mut net, 0, sender, qkey);
        net.transmit();
        let mut packet = net.wire.pop_front().unwrap();
        packet.flow.src.set_port(50_000);
        icrc::seal(&packet.flow, 0, &mut packet.bytes);
        net.deliver(&packet);
        net.hosts[1].nic.counters().drop_distrusted
    };
    for _ in 0..10 {
        assert_eq!(from_another_port(QKEY), 0);
    }
    // One more than is forgiven at once.
    for _ in 0..4 {
        assert_eq!(from_another_port(QKEY + 1), 0);
    }
    assert_eq!(from_another_port(QKEY), 1);
}

#[test]
fn groups_and_their_members_are_bounded_and_checked() {
    let mut net = Net::with_config(1, |config| {
        (config.max_mcast_grp, config.max_mcast_qp_attach) = (2, 2);
    });
    let host = &mut net.hosts[0];
    let qps = [0, 256, 512].map(|at| datagrams(host, at));
    let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
    let nic = &mut host.nic;
    assert_eq!(nic.attach_multicast(qps[0], gid("230.0.0.1")), Ok(true));
    assert_eq!(nic.attach_multicast(qps[0], gid("230.0.0.1")), Ok(false), "once more is no more");
    assert_eq!(nic.attach_multicast(qps[1], gid("230.0.0.1")), Ok(false));
    let full = nic.attach_multicast(qps[2], gid("230.0.0.1")).unwrap_err();
    assert!(full.to_string().contains("max_mcast_qp_attach"), "{full}");
    assert_eq!(nic.attach_multicast(qps[0], gid("230.0.0.2")), Ok(true));
    let full = nic.attach_multicast(qps[0], gid("230.0.0.3")).unwrap_err();
    assert!(full.to_string().contains("max_mcast_grp"), "{full}");
    for (no_group, why) in [("10.0.0.1", "multicast address"), ("ff02::1", "IP version")] {
        let refused = nic.attach_multicast(qps[0], gid(no_group)).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(nic.detach_multicast(qps[2], gid("230.0.0.1")).is_err());
    assert!(nic.detach_multicast(qps[0], gid("230.0.0.9")).is_err());
    assert!(nic.attach_multicast(Qp(77), gid("230.0.0.1")).is_err());

    let refused = nic.destroy_qp(elver_rnic::Time::ZERO, qps[0]).unwrap_err();
    assert_eq!(refused, VerbsError::InUse { kind: ObjectKind::Qp, handle: qps[0].0, users: 2 });
    assert_eq!(nic.detach_multicast(qps[0], gid("230.0.0.1")), Ok(false));
    assert_eq!(nic.detach_multicast(qps[0], gid("230.0.0.2")), Ok(true));
    nic.destroy_qp(elver_rnic::Time::ZERO, qps[0]).unwrap();
}

#[test]
fn other_transports_have_no_groups() {
    let mut net = Net::new(2);
    let (rc, _) = net.connect(QpType::Rc, |_| ());
    let host = &mut net.hosts[0];
    assert!(host.nic.attach_multicast(rc, group()).is_err());
    let av = AddressVector { dgid: group(), ..AddressVector::default() };
    let refused = host.nic.create_ah(host.pd, av).unwrap_err();
    assert!(refused.to_string().contains("one host"), "{refused}");
    let qp = host.create_qp(QpType::Rc);
    host.init_qp(qp, QpType::Rc);
    let attr = QpAttr { qp_state: QpState::Rtr, ah_attr: av, ..QpAttr::default() };
    let row = qp_state::transition(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
    let mask = QpAttrMask::STATE | row.required;
    assert!(host.nic.modify_qp(elver_rnic::Time::ZERO, qp, &attr, mask).is_err());

    // A DCI's request goes to no group either: it fails here.
    let ah = handle(host, group());
    let dci = crate::common::dc::dci(host, 0, 0);
    let dest = Some(Dest::Dc { ah, remote_dctn: TO_ALL, dc_access_key: 1, stream_id: 0 });
    let sge = [host.sge(0, 8)];
    host.post(net.now, dci, SendOp::Send, &sge, dest);
    net.run_clean();
    let statuses: Vec<WcStatus> = net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::LocQpOpErr]);
}
