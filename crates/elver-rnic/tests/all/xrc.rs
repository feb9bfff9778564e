//! XRC: into which shared receive queue a message goes, and what its peer cannot reach.

use crate::common::{ALL_ACCESS, Host, Net, VecMemory, address};
use elver_rnic::Time;
use elver_verbs::*;
use elver_wire::{Headers, Message, PacketView, Qpn, Route, XrcEth, icrc, packet_len};

/// A shared receive queue of its own PD, with a region and a CQ of its own.
struct Queue {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    memory: VecMemory,
    mr: MrInfo,
}

impl Queue {
    fn new(host: &mut Host, xrcd: Xrcd, base: u64) -> Queue {
        let nic = &mut host.nic;
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(CqInit { cqe: 256 }).unwrap();
        let init = SrqInit { pd, max_wr: 256, max_sge: 2 };
        let srq = nic.create_xrc_srq(init, xrcd, cq).unwrap();
        let memory = VecMemory::new(base, 1 << 16);
        let mr = nic.reg_mr(pd, memory.clone(), None, ALL_ACCESS).unwrap();
        Queue { pd, cq, srq, memory, mr }
    }

    fn receive(&self, host: &mut Host, at: u64, length: u32) {
        let sges = [Sge { addr: self.mr.addr + at, length, lkey: self.mr.lkey }];
        host.nic.post_srq_recv(Time::ZERO, self.srq, &[RecvWr { wr_id: at, sges: &sges }]).unwrap();
    }

    fn poll(&self, host: &mut Host) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 64];
        let count = host.nic.poll_cq(self.cq, &mut wcs).unwrap();
        wcs[..count].to_vec()
    }

    fn dest(&self) -> Option<Dest> {
        Some(Dest::Xrc { remote_srqn: self.srq.0 })
    }

    fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr + at, rkey: self.mr.rkey }
    }
}

/// An initiator at host 0, and a target at host 1 with two queues in its domain.
struct Pair {
    net: Net,
    initiator: Qp,
    target: Qp,
    xrcd: Xrcd,
    queues: [Queue; 2],
}

impl Pair {
    fn new() -> Pair {
        let mut net = Net::new(2);
        let xrcd = net.hosts[1].nic.open_xrcd().unwrap();
        let queues = [0x5000_0000, 0x6000_0000].map(|at| Queue::new(&mut net.hosts[1], xrcd, at));
        let initiator = net.hosts[0].create_qp(QpType::XrcSend);
        let target = net.hosts[1].nic.create_xrc_target(xrcd).unwrap();
        let numbers = [(0, initiator), (1, target)]
            .map(|(host, qp): (usize, Qp)| net.hosts[host].nic.qp_num(qp).unwrap());
        net.hosts[0].connect(initiator, QpType::XrcSend, address(1), numbers[1], |_| ());
        net.hosts[1].connect(target, QpType::XrcRecv, address(0), numbers[0], |_| ());
        Pair { net, initiator, target, xrcd, queues }
    }

    fn post(&mut self, op: SendOp, at: u64, length: u32, dest: Option<Dest>) {
        let sge = [self.net.hosts[0].sge(at, length)];
        self.net.hosts[0].post(self.net.now, self.initiator, op, &sge, dest);
    }

    fn statuses(&mut self) -> Vec<WcStatus> {
        self.net.hosts[0].poll().iter().map(|wc| wc.status).collect()
    }

    fn state(&self) -> QpState {
        self.net.hosts[1].nic.query_qp(self.target).unwrap().0.qp_state
    }

    /// Gives the target the packets that wait, each through `forge`, which may change its queue.
    fn deliver(&mut self, mut forge: impl FnMut(usize, u32) -> u32) {
        self.net.transmit();
        for (index, packet) in self.net.wire.drain(..).collect::<Vec<_>>().into_iter().enumerate() {
            let mut forged = packet.clone();
            let view = PacketView::parse(&packet.bytes).unwrap();
            if let Route::Xrc(Some(eth)) = view.headers().route() {
                let srqn = Qpn::from_wrapping(forge(index, eth.srqn.get()));
                let route = Route::Xrc(Some(XrcEth { srqn }));
                let given = view.headers();
                let mut headers =
                    Headers::new(route, given.message(), given.dest_qpn, given.psn).unwrap();
                (headers.ack_req, headers.solicited) = (given.ack_req, given.solicited);
                let len = headers.write(&packet.flow, 0, view.payload(), &mut forged.bytes);
                assert_eq!(len, packet.bytes.len());
            }
            self.net.deliver(&forged);
        }
    }
}

#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    let mut pair = Pair::new();
    let numbers = [0, 1].map(|which: usize| pair.queues[which].dest());
    pair.net.hosts[0].memory.fill(0, &[7; 5_000]);
    for which in [0, 1] {
        for at in [0, 8_192, 16_384] {
            pair.queues[which].receive(&mut pair.net.hosts[1], at, 8_192);
        }
    }
    pair.post(SendOp::Send, 0, 5_000, numbers[1]);
    pair.post(SendOp::SendWithImm(9), 0, 10, numbers[0]);
    let written = pair.queues[1].remote(40_000);
    pair.post(SendOp::WriteWithImm(written, 5), 0, 3_000, numbers[1]);
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::Success; 3]);
    let of = |pair: &mut Pair, which: usize| -> Vec<(u64, WcOpcode, u32, u32)> {
        let wcs = pair.queues[which].poll(&mut pair.net.hosts[1]);
        wcs.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data)).collect()
    };
    assert_eq!(of(&mut pair, 0), [(0, WcOpcode::Recv, 10, 9)]);
    let second = [(0, WcOpcode::Recv, 5_000, 0), (8_192, WcOpcode::RecvRdmaWithImm, 3_000, 5)];
    assert_eq!(of(&mut pair, 1), second);
    assert_eq!(pair.queues[1].memory.get(0, 5_000), [7; 5_000]);
    assert_eq!(pair.queues[1].memory.get(40_000, 3_000), [7; 3_000]);
    let source = pair.net.hosts[0].nic.qp_num(pair.initiator).unwrap();
    let (attr, made) = pair.net.hosts[1].nic.query_qp(pair.target).unwrap();
    assert_eq!((attr.dest_qp_num, made.qp_type), (source, QpType::XrcRecv));
    // Whatever was named last is not its own.
    assert_eq!((made.pd, made.send_cq, made.recv_cq, made.srq), (None, None, None, None));
    let (_, made) = pair.net.hosts[0].nic.query_qp(pair.initiator).unwrap();
    assert!(made.pd.is_some() && made.send_cq.is_some());
}

/// A queue without receives stops the pair, as an RC pair would be; the other queue's wait does nothing for it.
#[test]
fn a_queue_without_receives_is_waited_for() {
    let mut pair = Pair::new();
    pair.queues[0].receive(&mut pair.net.hosts[1], 0, 64);
    let (first, second) = (pair.queues[0].dest(), pair.queues[1].dest());
    pair.post(SendOp::Send, 0, 8, second);
    pair.post(SendOp::Send, 0, 8, first);
    pair.net.transmit();
    while let Some(packet) = pair.net.wire.pop_front() {
        pair.net.deliver(&packet);
    }
    assert!(pair.queues[0].poll(&mut pair.net.hosts[1]).is_empty(), "the second overtook");
    pair.queues[1].receive(&mut pair.net.hosts[1], 0, 64);
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::Success; 2]);
    for queue in &pair.queues {
        assert_eq!(queue.poll(&mut pair.net.hosts[1]).len(), 1);
    }
}

/// Packets are lost, doubled and late; each message arrives once, in order, at its queue, and READs and atomics of
/// both protection domains are right.
#[test]
fn under_faults_everything_arrives_once_and_in_order() {
    for seed in 1..60_u64 {
        let mut pair = Pair::new();
        let mut state = seed;
        let mut draw = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut expected: [Vec<u32>; 2] = Default::default();
        let mut sum = [0_u64; 2];
        for number in 0..40_u32 {
            let which = draw(2) as usize;
            let dest = pair.queues[which].dest();
            match draw(4) {
                0 | 1 => {
                    let at = expected[which].len() as u64 * 1_024;
                    pair.queues[which].receive(&mut pair.net.hosts[1], at, 8_192);
                    let length = [0, 8, 1_024, 3_000][draw(4) as usize];
                    pair.post(SendOp::SendWithImm(number), 0, length, dest);
                    expected[which].push(number);
                }
                2 => {
                    let remote = pair.queues[which].remote(60_000);
                    sum[which] += u64::from(number);
                    let add = u64::from(number);
                    pair.post(SendOp::FetchAdd { remote, add }, 100_000, 8, dest);
                }
                _ => {
                    let remote = pair.queues[which].remote(50_000);
                    pair.queues[which].memory.fill(50_000, &[which as u8 + 1; 4_096]);
                    let at = 200_000 + u64::from(number) * 4_096;
                    pair.post(SendOp::Read(remote), at, 4_096, dest);
                }
            }
        }
        pair.net.run(|_| match draw(10) {
            0 => 0,
            1 => 2,
            _ => 1,
        });
        let statuses = pair.statuses();
        assert!(statuses.len() == 40 && statuses.iter().all(|s| *s == WcStatus::Success), "{seed}");
        for which in [0, 1] {
            let wcs = pair.queues[which].poll(&mut pair.net.hosts[1]);
            let told: Vec<u32> = wcs.iter().map(|wc| wc.imm_data).collect();
            assert_eq!(told, expected[which], "{seed}");
            let word = pair.queues[which].memory.get(60_000, 8);
            assert_eq!(u64::from_ne_bytes(word.try_into().unwrap()), sum[which], "{seed}");
        }
    }
}

/// READs are answered from the domain of the queue that they named, whatever came before the answer left.
#[test]
fn a_read_keeps_its_own_protection_domain() {
    let mut pair = Pair::new();
    let dests = [0, 1].map(|which: usize| pair.queues[which].dest());
    for which in [0, 1] {
        pair.queues[which].memory.fill(0, &[which as u8 + 1; 8_192]);
        let remote = pair.queues[which].remote(0);
        pair.post(SendOp::Read(remote), 10_000 + 8_192 * which as u64, 8_192, dests[which]);
    }
    // All requests are there before the first answer leaves.
    pair.net.transmit();
    while let Some(packet) = pair.net.wire.pop_front() {
        pair.net.deliver(&packet);
    }
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::Success; 2]);
    assert_eq!(pair.net.hosts[0].memory.get(10_000, 8_192), [1; 8_192]);
    assert_eq!(pair.net.hosts[0].memory.get(18_192, 8_192), [2; 8_192]);

    // By the other queue's number a key opens nothing.
    let remote = pair.queues[0].remote(0);
    pair.post(SendOp::Read(remote), 0, 64, dests[1]);
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::RemAccessErr]);
}

#[test]
fn queues_that_are_not_of_the_domain_cannot_be_named() {
    let nobodys = 0x12_3456;
    for kind in 0..4 {
        let mut pair = Pair::new();
        let host = &mut pair.net.hosts[1];
        let other = host.nic.open_xrcd().unwrap();
        let foreign = Queue::new(host, other, 0x7000_0000);
        let basic = SrqInit { pd: host.pd, max_wr: 8, max_sge: 1 };
        let basic = host.nic.create_srq(basic).unwrap();
        foreign.receive(host, 0, 64);
        let remote_srqn = match kind {
            0 => foreign.srq.0,
            1 => basic.0,
            2 => nobodys,
            _ => {
                // Its number was a queue's before.
                let gone = pair.queues[1].srq;
                host.nic.destroy_srq(gone).unwrap();
                gone.0
            }
        };
        pair.queues[0].receive(&mut pair.net.hosts[1], 0, 64);
        pair.post(SendOp::Send, 0, 8, Some(Dest::Xrc { remote_srqn }));
        pair.net.run_clean();
        assert_eq!(pair.statuses(), [WcStatus::RemInvReqErr], "{kind}");
        assert_eq!(pair.state(), QpState::Err);
        assert!(foreign.poll(&mut pair.net.hosts[1]).is_empty());
        assert!(pair.queues[0].poll(&mut pair.net.hosts[1]).is_empty());
    }
}

/// A peer that changes the queue within a message, or names another one in a packet that was executed before, gets
/// no bytes into it.
#[test]
fn a_message_stays_with_its_queue() {
    let mut pair = Pair::new();
    for queue in &pair.queues {
        queue.receive(&mut pair.net.hosts[1], 0, 8_192);
    }
    let (first, other) = (pair.queues[0].dest(), pair.queues[1].srq.0);
    pair.net.hosts[0].memory.fill(0, &[9; 4_096]);
    pair.post(SendOp::Send, 0, 4_096, first);
    pair.deliver(|index, srqn| if index == 2 { other } else { srqn });
    assert_eq!(pair.state(), QpState::Err);
    assert_eq!(pair.queues[1].memory.get(0, 8_192), [0; 8_192]);
    assert!(pair.queues[1].poll(&mut pair.net.hosts[1]).is_empty());
    let flushed = pair.queues[0].poll(&mut pair.net.hosts[1]);
    assert_eq!(flushed.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::WrFlushErr]);
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::RemInvReqErr]);

    let mut pair = Pair::new();
    for queue in &pair.queues {
        queue.receive(&mut pair.net.hosts[1], 0, 8_192);
    }
    let (first, other) = (pair.queues[0].dest(), pair.queues[1].srq.0);
    pair.net.hosts[0].memory.fill(0, &[9; 4_096]);
    pair.post(SendOp::Send, 0, 4_096, first);
    pair.net.transmit();
    let packets: Vec<_> = pair.net.wire.drain(..).collect();
    for (index, packet) in packets.iter().enumerate() {
        pair.net.deliver(packet);
        if index == 1 {
            pair.net.wire.push_back(packets[0].clone());
            pair.deliver(|_, _| other);
        }
    }
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::Success]);
    assert_eq!(pair.queues[0].memory.get(0, 4_096), [9; 4_096]);
    assert_eq!(pair.queues[0].poll(&mut pair.net.hosts[1]).len(), 1);
}

/// A queue that goes while it receives takes its receive along, and its CQ and domain can go with it.
#[test]
fn a_queue_may_go_while_it_receives() {
    let mut pair = Pair::new();
    pair.queues[0].receive(&mut pair.net.hosts[1], 0, 8_192);
    let first = pair.queues[0].dest();
    pair.post(SendOp::Send, 0, 4_096, first);
    pair.net.transmit();
    let packets: Vec<_> = pair.net.wire.drain(..).collect();
    pair.net.deliver(&packets[0]);
    let (cq, srq, pd) = (pair.queues[0].cq, pair.queues[0].srq, pair.queues[0].pd);
    let nic = &mut pair.net.hosts[1].nic;
    assert!(matches!(nic.destroy_cq(cq), Err(VerbsError::InUse { .. })));
    nic.destroy_srq(srq).unwrap();
    nic.destroy_cq(cq).unwrap();
    nic.dereg_mr(pair.queues[0].mr.mr).unwrap();
    nic.dealloc_pd(pd).unwrap();
    for packet in &packets[1..] {
        pair.net.deliver(packet);
    }
    assert_eq!(pair.state(), QpState::Err);
    pair.net.run_clean();
    assert_eq!(pair.statuses(), [WcStatus::RemInvReqErr]);

    let nic = &mut pair.net.hosts[1].nic;
    let in_use = VerbsError::InUse { kind: ObjectKind::Xrcd, handle: pair.xrcd.0, users: 2 };
    assert_eq!(nic.close_xrcd(pair.xrcd), Err(in_use));
    nic.destroy_qp(Time::ZERO, pair.target).unwrap();
    nic.destroy_srq(pair.queues[1].srq).unwrap();
    nic.destroy_cq(pair.queues[1].cq).unwrap();
    nic.close_xrcd(pair.xrcd).unwrap();
    assert!(nic.close_xrcd(pair.xrcd).is_err());
}

#[test]
fn the_ends_do_only_what_they_are_for() {
    let mut pair = Pair::new();
    let (xrcd, pd, cq) = (pair.xrcd, pair.net.hosts[1].pd, pair.net.hosts[1].cq);
    let nic = &mut pair.net.hosts[1].nic;
    assert!(nic.create_qp(QpInit::new(QpType::XrcRecv, pd, cq)).is_err());
    let with_srq = QpInit { srq: Some(pair.queues[0].srq), ..QpInit::new(QpType::XrcSend, pd, cq) };
    assert!(nic.create_qp(with_srq).is_err());
    assert!(nic.create_xrc_target(Xrcd(5)).is_err());
    let init = SrqInit { pd, max_wr: 8, max_sge: 1 };
    assert!(nic.create_xrc_srq(init, Xrcd(5), cq).is_err());
    assert!(nic.create_xrc_srq(init, xrcd, Cq(5)).is_err());
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        dest: pair.queues[0].dest(),
    };
    assert!(nic.post_send(Time::ZERO, pair.target, &[wr]).is_err());
    assert!(nic.post_recv(Time::ZERO, pair.target, &[RecvWr { wr_id: 0, sges: &[] }]).is_err());
    let nic = &mut pair.net.hosts[0].nic;
    assert!(nic.post_recv(Time::ZERO, pair.initiator, &[RecvWr { wr_id: 0, sges: &[] }]).is_err());
    let nowhere = SendWr { dest: None, ..wr };
    assert!(nic.post_send(Time::ZERO, pair.initiator, &[nowhere]).is_err());

    // Packets of RC for a target, and of XRC for an RC QP, are for no QP.
    let (_, rc) = pair.net.connect(QpType::Rc, |_| ());
    let numbers = [rc, pair.target].map(|qp| pair.net.hosts[1].nic.qp_num(qp).unwrap());
    let eth = XrcEth { srqn: Qpn::from_wrapping(pair.queues[0].srq.0) };
    let routes = [Route::Xrc(Some(eth)), Route::Rc];
    pair.post(SendOp::Send, 0, 8, pair.queues[0].dest());
    pair.net.transmit();
    let template = pair.net.wire.pop_front().unwrap();
    for (route, number) in routes.into_iter().zip(numbers) {
        let psn = PacketView::parse(&template.bytes).unwrap().headers().psn;
        let message = Message::SendOnly(elver_wire::Tail::Plain);
        let headers = Headers::new(route, message, Qpn::from_wrapping(number), psn).unwrap();
        let mut forged = template.clone();
        let at = headers.emit(&mut forged.bytes, 0);
        forged.bytes.truncate(packet_len(at, 0));
        icrc::seal(&forged.flow, 0, &mut forged.bytes);
        pair.net.deliver(&forged);
    }
    assert_eq!(pair.net.hosts[1].nic.counters().drop_qpn, 2);
}
