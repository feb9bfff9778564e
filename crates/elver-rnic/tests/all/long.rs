//! WRs within a device that are too long to be copied at once.

use crate::common::dc::{KEY, dci, dct, dest, handle};
use crate::common::{ALL_ACCESS, Net, VecMemory};
use elver_verbs::*;

const LENGTH: u32 = 40 << 20;
/// What one call may move: a turn, and a step more.
const CALL_MAX: usize = 20 << 20;
/// Bytes between two that are looked at.
const SAMPLE: usize = 1 << 16;

/// A device with two QPs that talk to each other, and a region with room for a WR's bytes at both ends.
struct Pair {
    net: Net,
    qp: Qp,
    to: Option<Dest>,
    /// Who receives.
    peer: Qp,
    srq: Option<Srq>,
    memory: VecMemory,
    mr: MrInfo,
}

impl Pair {
    fn new(qp_type: QpType) -> Pair {
        let mut net = Net::new(1);
        let host = &mut net.hosts[0];
        let memory = VecMemory::new(0x9000_0000, 2 * LENGTH as usize);
        let bytes: Vec<u8> = (0..LENGTH).map(|at| 1 + (at / 3 + at / 7_001) as u8 % 255).collect();
        memory.fill(0, &bytes);
        let mr = host.nic.reg_mr(host.pd, memory.clone(), None, ALL_ACCESS).unwrap();
        if qp_type == QpType::Dci {
            let target = dct(host, KEY, ALL_ACCESS);
            let (qp, ah) = (dci(host, 0, 0), handle(host, 0));
            let to = dest(ah, &target, KEY, 0);
            return Pair { net, qp, to, peer: target.qp, srq: Some(target.srq), memory, mr };
        }
        let (qp, peer) = net.connect_hosts([0, 0], qp_type, |attr| attr.path_mtu = Mtu::Mtu4096);
        Pair { net, qp, to: None, peer, srq: None, memory, mr }
    }

    fn half(&self, second: bool) -> Sge {
        let skip = if second { u64::from(LENGTH) } else { 0 };
        Sge { addr: self.mr.addr + skip, length: LENGTH, lkey: self.mr.lkey }
    }

    fn receive(&mut self) {
        let sges = [self.half(true)];
        let wr = [RecvWr { wr_id: 1, sges: &sges }];
        let nic = &mut self.net.hosts[0].nic;
        match self.srq {
            Some(srq) => nic.post_srq_recv(self.net.now, srq, &wr).unwrap(),
            None => nic.post_recv(self.net.now, self.peer, &wr).unwrap(),
        }
    }

    fn post(&mut self, op: SendOp) {
        let sge = [self.half(false)];
        self.net.hosts[0].post(self.net.now, self.qp, op, &sge, self.to);
    }

    /// Bytes that have arrived in the second half, or nearly so many.
    fn arrived(&self) -> usize {
        let at = |sample: &usize| self.memory.get(LENGTH as usize + *sample, 1) != [0];
        (0..LENGTH as usize).step_by(SAMPLE).filter(at).count() * SAMPLE
    }

    /// The device works until it has nothing to do, and moves no more in any call than it may.
    fn work(&mut self) {
        let mut before = 0;
        for call in 0..30_000 {
            let arrived = self.arrived();
            assert!(arrived <= before + CALL_MAX, "call {call} moved {}", arrived - before);
            before = arrived;
            let more = self.net.transmit_one(0);
            assert!(!more, "nothing leaves the device");
            let arrived = self.arrived();
            assert!(arrived <= before + CALL_MAX, "a poll moved {}", arrived - before);
            before = arrived;
            let nic = &mut self.net.hosts[0].nic;
            let Some(due) = nic.poll_timeout() else { return };
            self.net.now = self.net.now.max(due);
            nic.handle_timeout(self.net.now);
        }
        panic!("the device never comes to rest");
    }

    fn ends(&mut self) -> Vec<(WcOpcode, WcStatus, u32)> {
        let mut ends: Vec<_> = self.net.hosts[0].poll();
        ends.sort_by_key(|wc| wc.wr_id);
        ends.iter().map(|wc| (wc.opcode, wc.status, wc.byte_len)).collect()
    }
}

#[test]
fn long_wrs_within_a_device_arrive_step_by_step() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Dci] {
        for kind in
            [SendOpcode::Write, SendOpcode::WriteWithImm, SendOpcode::Send, SendOpcode::Read]
        {
            if !qp_type.supports(kind) {
                continue;
            }
            let mut pair = Pair::new(qp_type);
            let remote = RemoteAddr { addr: pair.half(true).addr, rkey: pair.mr.rkey };
            let (op, told, of) = match kind {
                SendOpcode::Write => (SendOp::Write(remote), None, WcOpcode::RdmaWrite),
                SendOpcode::WriteWithImm => {
                    let told = Some(WcOpcode::RecvRdmaWithImm);
                    (SendOp::WriteWithImm(remote, 5), told, WcOpcode::RdmaWrite)
                }
                SendOpcode::Send => (SendOp::Send, Some(WcOpcode::Recv), WcOpcode::Send),
                // It reads the first half, and the WR's own memory is the second.
                _ => {
                    let remote = RemoteAddr { addr: pair.half(false).addr, rkey: pair.mr.rkey };
                    let sge = [pair.half(true)];
                    let (now, to) = (pair.net.now, pair.to);
                    pair.net.hosts[0].post(now, pair.qp, SendOp::Read(remote), &sge, to);
                    pair.work();
                    let end = (WcOpcode::RdmaRead, WcStatus::Success, LENGTH);
                    assert_eq!(pair.ends(), [end], "{qp_type:?}");
                    assert!(
                        pair.memory.get(0, LENGTH as usize)
                            == pair.memory.get(LENGTH as usize, LENGTH as usize)
                    );
                    continue;
                }
            };
            pair.receive();
            pair.post(op);
            pair.work();
            let mut expected = vec![(of, WcStatus::Success, 0)];
            expected.extend(told.map(|opcode| (opcode, WcStatus::Success, LENGTH)));
            let mut ends = pair.ends();
            ends.sort_by_key(|(_, _, bytes)| *bytes);
            assert_eq!(ends, expected, "{qp_type:?} {kind:?}");
            let halves = [0, LENGTH as usize].map(|at| pair.memory.get(at, LENGTH as usize));
            assert!(halves[0] == halves[1], "{qp_type:?} {kind:?} arrives as it was");
        }
    }
}

/// The peer is stopped when a part has come: the WR ends as if its packets were lost, and so does a WRITE whose
/// region goes; what is posted next is whole.
#[test]
fn a_long_wr_ends_with_what_it_goes_to() {
    for kind in [SendOpcode::Write, SendOpcode::Send] {
        let mut pair = Pair::new(QpType::Rc);
        let remote = RemoteAddr { addr: pair.half(true).addr, rkey: pair.mr.rkey };
        pair.receive();
        pair.post(if kind == SendOpcode::Send { SendOp::Send } else { SendOp::Write(remote) });
        pair.net.transmit_one(0);
        let arrived = pair.arrived();
        assert!(0 < arrived && arrived < LENGTH as usize, "{kind:?}: {arrived}");
        let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        let now = pair.net.now;
        pair.net.hosts[0].nic.modify_qp(now, pair.peer, &error, QpAttrMask::STATE).unwrap();
        pair.work();
        let statuses: Vec<WcStatus> = pair.ends().iter().map(|end| end.1).collect();
        assert!(statuses.contains(&WcStatus::RetryExcErr), "{kind:?}: {statuses:?}");
        assert!(statuses.contains(&WcStatus::WrFlushErr), "{kind:?}: {statuses:?}");
        assert_eq!(pair.arrived(), arrived, "{kind:?}");
    }
}

/// An unreliable WRITE is dropped with all that was still to come, and the next one is whole.
#[test]
fn a_long_unreliable_write_that_is_dropped_leaves_nothing_to_the_next() {
    let mut pair = Pair::new(QpType::Uc);
    let remote = RemoteAddr { addr: pair.half(true).addr, rkey: pair.mr.rkey };
    let bad = RemoteAddr { addr: remote.addr, rkey: remote.rkey ^ 1 };
    pair.post(SendOp::Write(bad));
    pair.post(SendOp::Write(remote));
    pair.work();
    assert_eq!(pair.ends(), [(WcOpcode::RdmaWrite, WcStatus::Success, 0); 2]);
    assert_eq!(pair.net.hosts[0].nic.counters().drop_unreliable, 1);
    assert_eq!(pair.arrived(), LENGTH as usize);
}
