//! Which QP sends next.

use crate::common::{Net, Packet};
use elver_rnic::MAX_PACKET;
use elver_verbs::*;
use elver_wire::icrc;

/// Posts a WRITE of so many packets.
fn write(net: &mut Net, qp: Qp, packets: u32) {
    let (sge, remote) = (net.hosts[0].sge(0, packets * 1024), net.hosts[1].remote(0));
    net.hosts[0].post(net.now, qp, SendOp::Write(remote), &[sge], None);
}

/// What the first host sends next: the QP at the other end, and whether that ends a short turn.
fn next(net: &mut Net) -> Option<(u32, bool)> {
    let mut buf = [0; MAX_PACKET];
    let sent = net.hosts[0].nic.poll_transmit(net.now, &mut buf)?;
    let bytes = &mut buf[..sent.len];
    icrc::seal(&sent.flow, 0, bytes);
    let to = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
    let (flow, traffic_class) = (sent.flow, sent.traffic_class);
    net.wire.push_back(Packet { flow, traffic_class, bytes: bytes.to_vec() });
    Some((to, sent.ends_piece))
}

#[test]
fn who_takes_short_turns_gives_way_to_who_comes_later() {
    let mut net = Net::new(2);
    let (patient, patient_peer) = net.connect(QpType::Rc, |_| {});
    let (other, other_peer) = net.connect(QpType::Rc, |_| {});
    let [patient_peer, other_peer] =
        [patient_peer, other_peer].map(|qp| net.hosts[1].nic.qp_num(qp).unwrap());
    net.hosts[0].nic.take_short_turns(patient, true);
    write(&mut net, patient, 8);
    assert!(net.hosts[0].nic.gives_way());
    let mut turn = 1;
    while next(&mut net) == Some((patient_peer, false)) {
        turn += 1;
    }
    assert!(turn < 8, "its turn ends before its message: {turn} packets");

    // It stood first.
    write(&mut net, other, 2);
    assert!(!net.hosts[0].nic.gives_way());
    assert_eq!(next(&mut net), Some((other_peer, false)));
    assert_eq!(next(&mut net), Some((other_peer, false)));
    for packet in turn..8 {
        let ends = packet % turn + 1 == turn;
        assert_eq!(next(&mut net), Some((patient_peer, ends)), "packet {packet}");
    }
    net.run_clean();
    let statuses: Vec<WcStatus> = net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success; 2]);
}

#[test]
fn a_turn_that_is_not_short_is_not_broken() {
    let mut net = Net::new(2);
    let (first, first_peer) = net.connect(QpType::Rc, |_| {});
    let (second, _) = net.connect(QpType::Rc, |_| {});
    let first_peer = net.hosts[1].nic.qp_num(first_peer).unwrap();
    net.hosts[0].nic.take_short_turns(first, true);
    net.hosts[0].nic.take_short_turns(first, false);
    write(&mut net, first, 8);
    assert!(!net.hosts[0].nic.gives_way());
    write(&mut net, second, 8);
    for packet in 0..8 {
        assert_eq!(next(&mut net), Some((first_peer, false)), "packet {packet}");
    }
}

/// Opcodes of what the second host sends next, at most so many packets.
fn opcodes(net: &mut Net, most: usize) -> Vec<u8> {
    let sent = (0..most).take_while(|_| net.transmit_one(1)).count();
    net.wire.iter().rev().take(sent).rev().map(|packet| packet.bytes[0]).collect()
}

/// A peer that READs much of an RC QP keeps its send queue waiting for one packet at a time, and no longer.
#[test]
fn answers_to_reads_and_sends_of_one_qp_take_turns() {
    const PACKETS: u32 = 24;
    const READ_ANSWERS: std::ops::RangeInclusive<u8> = 0x0d..=0x10;
    let mut net = Net::new(2);
    let (reader, reads_of) = net.connect(QpType::Rc, |_| {});
    let (sge, remote) = (net.hosts[0].sge(0, 64 * 1024), net.hosts[1].remote(0));
    net.hosts[0].post(net.now, reader, SendOp::Read(remote), &[sge], None);
    while net.transmit_one(0) {}
    for packet in net.wire.drain(..).collect::<Vec<_>>() {
        net.deliver(&packet);
    }
    assert_eq!(opcodes(&mut net, 2).len(), 2);

    let (sge, remote) = (net.hosts[1].sge(0, PACKETS * 1024), net.hosts[0].remote(0));
    net.hosts[1].post(net.now, reads_of, SendOp::Write(remote), &[sge], None);
    let told = opcodes(&mut net, 2 * PACKETS as usize);
    let answers = |of: &[u8]| of.iter().filter(|opcode| READ_ANSWERS.contains(opcode)).count();
    for (at, pair) in told.chunks(2).enumerate() {
        assert_eq!(answers(pair), 1, "packets {} and the next: {pair:x?}", 2 * at);
    }
    net.run_clean();
    for host in &mut net.hosts {
        assert_eq!(host.poll().iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
    }
}
