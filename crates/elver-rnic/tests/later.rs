//! Memory that is not at hand: whoever needs it waits, is executed once, and holds nobody else up.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod common;

use std::collections::VecDeque;

use common::dc::{KEY, dci, dct, dest, handle};
use common::{ALL_ACCESS, Host, Net, REGION, VecMemory, address};
use elver_random::Rng;
use elver_rnic::{Config, Errand};
use elver_verbs::*;

/// Hosts with a second region, which is not at hand.
struct Late {
    net: Net,
    memories: Vec<(VecMemory, MrInfo)>,
    errands: VecDeque<(usize, Errand<VecMemory>)>,
    /// Errands that are not done before the devices have nothing else to do.
    lazy: bool,
    rng: Rng,
}

impl Late {
    fn new(hosts: usize, seed: u64, change: impl Fn(&mut Config)) -> Late {
        let mut net = Net::with_config(hosts, change);
        let memories = net.hosts.iter_mut().enumerate().map(|(host, at)| {
            let memory = VecMemory::new(0x7000_0000 + host as u64 * 0x100_0000, REGION);
            let mr = at.nic.reg_mr(at.pd, memory.clone(), None, ALL_ACCESS).unwrap();
            memory.recede();
            (memory, mr)
        });
        let memories = memories.collect();
        let rng = Rng::new(seed);
        Late { net, memories, errands: VecDeque::new(), lazy: false, rng }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    fn memory(&self, host: usize, late: bool) -> (&VecMemory, &MrInfo) {
        match late {
            true => (&self.memories[host].0, &self.memories[host].1),
            false => (&self.net.hosts[host].memory, &self.net.hosts[host].mr),
        }
    }

    fn sge(&self, host: usize, late: bool, at: u64, length: u32) -> Sge {
        let (_, mr) = self.memory(host, late);
        Sge { addr: mr.addr + at, length, lkey: mr.lkey }
    }

    fn remote(&self, host: usize, late: bool, at: u64) -> RemoteAddr {
        let (_, mr) = self.memory(host, late);
        RemoteAddr { addr: mr.addr + at, rkey: mr.rkey }
    }

    /// Takes new errands; does the oldest one if `may`.
    fn run_errand(&mut self, may: bool) -> bool {
        for (host, at) in self.net.hosts.iter_mut().enumerate() {
            while let Some(errand) = at.nic.poll_errand() {
                assert!(errand.bytes.len() <= 64 << 10, "{}", errand.bytes.len());
                self.errands.push_back((host, errand));
            }
        }
        let Some((host, mut errand)) = may.then(|| self.errands.pop_front()).flatten() else {
            return false;
        };
        let done = VecMemory::run_errand(&mut errand);
        let now = self.net.now;
        self.net.hosts[host].nic.errand_done(now, errand, done);
        true
    }

    /// Exchanges packets and does errands until there is nothing to do. One of `loss` packets is
    /// lost, and one is doubled.
    fn run(&mut self, loss: u64) {
        let end = self.net.now.saturating_add_ns(2_000_000_000);
        for _ in 0..400_000 {
            self.net.transmit();
            while let Some(packet) = self.net.wire.pop_front() {
                self.net.now = self.net.now.saturating_add_ns(200);
                let times = match loss {
                    0 => 1,
                    _ => [0, 2, 1][self.below(loss).min(2) as usize],
                };
                for _ in 0..times {
                    self.net.deliver(&packet);
                }
                let may = !self.lazy && self.below(4) == 0;
                self.run_errand(may);
            }
            if self.net.transmit() || self.run_errand(true) {
                continue;
            }
            let due = self.net.hosts.iter().filter_map(|host| host.nic.poll_timeout()).min();
            match due {
                Some(due) if due <= end => self.net.now = self.net.now.max(due),
                _ => return,
            }
            for host in &mut self.net.hosts {
                host.nic.handle_timeout(self.net.now);
            }
        }
        panic!("the devices never come to rest");
    }

    fn fill(&mut self, host: usize, late: bool, at: usize, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.next_u64() as u8).collect();
        self.memory(host, late).0.fill(at, &bytes);
        bytes
    }

    /// Posts several operations at once between memory of all kinds, and checks what each did.
    fn exercise(&mut self, qp: Qp, dest: Option<Dest>, loss: u64, seed: u64) {
        const STRIDE: usize = 100_000;
        let (own, peer) = (0, self.net.hosts.len() - 1);
        let mut expected = Vec::new();
        let counter = self.net.hosts[peer].remote(0);
        let before = self.net.hosts[peer].memory.get(0, 8);
        let mut count = u64::from_ne_bytes(before.try_into().unwrap());
        for slot in 1..=4 {
            let (late_own, late_peer) = (self.below(2) == 0, self.below(2) == 0);
            let most = [9, 1_100, 9_000, 99_000][self.below(4) as usize];
            let len = self.below(most) as usize;
            let at = slot * STRIDE;
            // Local memory of a WR is at the front half, remote memory at the back half.
            let (local, remote) = (at, at + 5 * STRIDE);
            let cut = self.below(len as u64 + 1) as u32;
            let mixed = self.below(4) == 0;
            let remote_addr = self.remote(peer, late_peer, remote as u64);
            let sges = [
                self.sge(own, late_own, local as u64, cut),
                self.sge(own, late_own ^ mixed, local as u64 + u64::from(cut), len as u32 - cut),
            ];
            let parts = [(late_own, local, cut as usize), {
                (late_own ^ mixed, local + cut as usize, len - cut as usize)
            }];
            match self.below(3) {
                0 => {
                    let bytes = parts.map(|(late, at, len)| self.fill(own, late, at, len)).concat();
                    self.net.hosts[own].post(
                        self.net.now,
                        qp,
                        SendOp::Write(remote_addr),
                        &sges,
                        dest,
                    );
                    expected.push((peer, late_peer, remote, bytes));
                }
                1 => {
                    let bytes = self.fill(peer, late_peer, remote, len);
                    self.net.hosts[own].post(
                        self.net.now,
                        qp,
                        SendOp::Read(remote_addr),
                        &sges,
                        dest,
                    );
                    let (first, second) = bytes.split_at(cut as usize);
                    expected.push((own, parts[0].0, parts[0].1, first.to_vec()));
                    expected.push((own, parts[1].0, parts[1].1, second.to_vec()));
                }
                _ => {
                    let sge = [self.sge(own, late_own, local as u64, 8)];
                    let add = SendOp::FetchAdd { remote: counter, add: 3 };
                    self.net.hosts[own].post(self.net.now, qp, add, &sge, dest);
                    expected.push((own, late_own, local, count.to_ne_bytes().to_vec()));
                    count += 3;
                }
            }
        }
        self.run(loss);
        let statuses: Vec<_> = self.net.hosts[own].poll().iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, [WcStatus::Success; 4], "seed {seed}");
        for (host, late, at, bytes) in expected {
            let found = self.memory(host, late).0.get(at, bytes.len());
            assert!(found == bytes, "seed {seed}: {} bytes at {at} of host {host}", bytes.len());
        }
        let after = self.net.hosts[peer].memory.get(0, 8);
        assert_eq!(after, count.to_ne_bytes(), "seed {seed}");
    }
}

fn pair(late: &mut Late) -> (Qp, Qp) {
    late.net.connect(QpType::Rc, |attr| attr.path_mtu = Mtu::Mtu1024)
}

#[test]
fn rc_waits_and_executes_once() {
    for seed in 0..150 {
        let mut late = Late::new(2, seed, |_| {});
        late.lazy = seed % 3 == 0;
        let (a, _) = pair(&mut late);
        for _ in 0..4 {
            late.exercise(a, None, [0, 0, 20][seed as usize % 3], seed);
        }
    }
}

#[test]
fn dc_waits_and_executes_once() {
    for seed in 0..150 {
        let mut late = Late::new(2, seed, |_| {});
        late.lazy = seed % 3 == 0;
        let target = dct(&mut late.net.hosts[1], KEY, ALL_ACCESS);
        let qp = dci(&mut late.net.hosts[0], 0, 0);
        let ah = handle(&mut late.net.hosts[0], 1);
        for _ in 0..4 {
            late.exercise(qp, dest(ah, &target, KEY, 0), [0, 0, 20][seed as usize % 3], seed);
        }
    }
}

#[test]
fn qps_of_one_device_wait_and_execute_once() {
    for seed in 0..300 {
        let mut late = Late::new(1, seed, |_| {});
        let host = &mut late.net.hosts[0];
        let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
        host.connect(a, QpType::Rc, address(0), b.0, |_| {});
        host.connect(b, QpType::Rc, address(0), a.0, |_| {});
        for _ in 0..4 {
            late.exercise(a, None, 0, seed);
        }
        assert_eq!(late.net.hosts[0].nic.counters().tx_packets, 0);
    }
}

/// The stall of one process's page held up all that the device did.
#[test]
fn who_waits_holds_nobody_else_up() {
    let mut late = Late::new(2, 1, |_| {});
    let (slow, _) = pair(&mut late);
    let (quick, _) = pair(&mut late);
    let target = dct(&mut late.net.hosts[1], KEY, ALL_ACCESS);
    let dci = dci(&mut late.net.hosts[0], 2, 2);
    let ah = handle(&mut late.net.hosts[0], 1);
    let (own, late_own) = (late.sge(0, false, 0, 4), late.sge(0, true, 0, 4));
    let (near, far) = (late.remote(1, false, 64), late.remote(1, true, 64));
    let now = late.net.now;
    let host = &mut late.net.hosts[0];
    // Requests, answers, what is to be sent, responses; over RC and over DC.
    host.post(now, slow, SendOp::Write(far), &[own], None);
    host.post(now, dci, SendOp::Read(far), &[own], dest(ah, &target, KEY, 0));
    host.post(now, dci, SendOp::Write(near), &[late_own], dest(ah, &target, KEY, 1));
    host.post(now, dci, SendOp::Read(near), &[late_own], dest(ah, &target, KEY, 2));
    let clean = |late: &mut Late| {
        for _ in 0..20 {
            late.net.transmit();
            while let Some(packet) = late.net.wire.pop_front() {
                late.net.deliver(&packet);
            }
            late.run_errand(false);
        }
    };
    clean(&mut late);
    assert_eq!(late.errands.len(), 4);
    assert!(late.net.hosts[0].poll().is_empty());
    let others = [(quick, None), (dci, dest(ah, &target, KEY, 3))];
    for (qp, dest) in others {
        for op in [SendOp::Write(near), SendOp::Read(near)] {
            let now = late.net.now;
            late.net.hosts[0].post(now, qp, op, &[own], dest);
            clean(&mut late);
            let wcs = late.net.hosts[0].poll();
            assert_eq!(wcs.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
        }
    }
    // No errand is given a second time, and no timer has asked for one.
    assert_eq!(late.errands.len(), 4);
    late.run(0);
    let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success; 4]);
}

/// What comes for a stream that waits is bounded, and sent again.
#[test]
fn who_sends_on_to_one_that_waits_fills_a_bounded_room() {
    let mut late = Late::new(2, 2, |_| {});
    let (a, _) = pair(&mut late);
    let bytes = late.fill(0, false, 0, 800_000);
    let (sge, far) = (late.sge(0, false, 0, 800_000), late.remote(1, true, 0));
    let now = late.net.now;
    late.net.hosts[0].post(now, a, SendOp::Write(far), &[sge], None);
    late.net.transmit();
    // As often as a sender that hears nothing sends it again.
    for _ in 0..20 {
        for packet in late.net.wire.clone() {
            late.net.deliver(&packet);
        }
    }
    late.net.wire.clear();
    let counters = late.net.hosts[1].nic.counters();
    assert!(counters.drop_waiting > 0 && counters.waits_for_memory == 1, "{counters:?}");
    late.run(0);
    assert_eq!(late.net.hosts[0].poll().len(), 1);
    assert!(late.memories[1].0.get(0, 800_000) == bytes);
}

#[test]
fn memory_that_is_gone_by_then_is_an_error_as_ever() {
    let ask = |op: fn(RemoteAddr) -> SendOp, own: bool, peer: bool| {
        let mut late = Late::new(2, 3, |_| {});
        let (a, b) = pair(&mut late);
        let (sge, far) = (late.sge(0, own, 0, 3_000), late.remote(1, peer, 0));
        let now = late.net.now;
        late.net.hosts[0].post(now, a, op(far), &[sge], None);
        for (memory, _) in &late.memories {
            memory.vanish();
        }
        late.run(0);
        let status = late.net.hosts[0].poll()[0].status;
        (status, late.net.hosts[1].nic.query_qp(b).unwrap().0.qp_state)
    };
    assert_eq!(ask(SendOp::Write, false, true), (WcStatus::RemOpErr, QpState::Err));
    assert_eq!(ask(SendOp::Read, false, true), (WcStatus::RemOpErr, QpState::Err));
    assert_eq!(ask(SendOp::Write, true, false).0, WcStatus::LocProtErr);
    assert_eq!(ask(SendOp::Read, true, false).0, WcStatus::LocProtErr);
}

/// A stream that is reset while it waits forgets it; its errand ends and changes nothing.
#[test]
fn who_is_reset_waits_no_longer() {
    let mut late = Late::new(2, 4, |_| {});
    let (a, b) = pair(&mut late);
    let (sge, far) = (late.sge(0, true, 0, 4), late.remote(1, true, 0));
    let near = late.sge(0, false, 0, 4);
    let reset = |host: &mut Host, qp: Qp| {
        let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        host.nic.modify_qp(elver_rnic::Time(5), qp, &attr, QpAttrMask::STATE).unwrap();
    };
    let now = late.net.now;
    late.net.hosts[0].post(now, a, SendOp::Write(far), &[near], None);
    late.net.hosts[0].post(now, a, SendOp::Write(far), &[sge], None);
    late.net.transmit();
    while let Some(packet) = late.net.wire.pop_front() {
        late.net.deliver(&packet);
    }
    late.net.transmit();
    late.run_errand(false);
    assert_eq!(late.errands.len(), 2);
    reset(&mut late.net.hosts[0], a);
    reset(&mut late.net.hosts[1], b);
    late.run(0);
    assert!(late.net.hosts.iter_mut().all(|host| host.poll().is_empty()));
}

/// What is sent again has to be fetched again; that took a dead peer's silence back, and the WR was
/// sent for ever.
#[test]
fn a_peer_that_is_gone_is_given_up_though_each_try_waits_for_memory() {
    let mut late = Late::new(2, 5, |_| {});
    let (a, _) = pair(&mut late);
    let (sge, near) = (late.sge(0, true, 0, 2_000), late.remote(1, false, 0));
    let now = late.net.now;
    late.net.hosts[0].post(now, a, SendOp::Write(near), &[sge], None);
    for _ in 0..10_000 {
        late.net.transmit();
        late.net.wire.clear();
        if late.run_errand(true) {
            continue;
        }
        let host = &mut late.net.hosts[0];
        let Some(due) = host.nic.poll_timeout() else { break };
        late.net.now = late.net.now.max(due);
        host.nic.handle_timeout(late.net.now);
    }
    let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExcErr]);
}
