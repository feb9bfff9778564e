//! Memory that is not at hand: whoever needs it waits, is executed once, and holds nobody else up.

use std::collections::VecDeque;

use crate::common::dc::{KEY, dci, dct, dest, handle};
use crate::common::{ALL_ACCESS, Host, Net, REGION, VecMemory, address};
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

/// Delivers all packets that are under way, and takes errands, but does none.
fn exchange(late: &mut Late) {
    for _ in 0..20 {
        late.net.transmit();
        while let Some(packet) = late.net.wire.pop_front() {
            late.net.deliver(&packet);
        }
        late.run_errand(false);
    }
}

fn statuses(host: &mut Host) -> Vec<WcStatus> {
    host.poll().iter().map(|wc| wc.status).collect()
}

fn go(host: &mut Host, qp: Qp, qp_state: QpState) -> Result<(), VerbsError> {
    let attr = QpAttr { qp_state, ..QpAttr::default() };
    host.nic.modify_qp(elver_rnic::Time(5), qp, &attr, QpAttrMask::STATE)
}

/// The QP failed, its WRs were told as flushed, and what a READ had fetched was written to memory that
/// its owner believed to have back.
#[test]
fn a_wr_is_not_told_while_its_memory_is_being_written() {
    for len in [4, 3_000] {
        let mut late = Late::new(2, 6, |_| {});
        let (a, _) = pair(&mut late);
        let bytes = late.fill(1, false, 0, len as usize);
        let (sge, near) = (late.sge(0, true, 0, len), late.remote(1, false, 0));
        let own = late.sge(0, false, 0, 4);
        let now = late.net.now;
        let other = late.remote(1, false, 9_000);
        late.net.hosts[0].post(now, a, SendOp::Read(near), &[sge], None);
        late.net.hosts[0].post(now, a, SendOp::Write(other), &[own], None);
        exchange(&mut late);
        assert_eq!(late.errands.len(), 1);
        let host = &mut late.net.hosts[0];
        go(host, a, QpState::Err).unwrap();
        host.post(now, a, SendOp::Write(other), &[own], None);
        assert_eq!(statuses(host), []);
        let in_use = |result| matches!(result, Err(VerbsError::InUse { .. }));
        assert!(in_use(go(host, a, QpState::Reset)) && in_use(host.nic.destroy_qp(now, a)));
        assert!(late.run_errand(true));
        // What came whole has come.
        let first = if len == 4 { WcStatus::Success } else { WcStatus::WrFlushErr };
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(statuses(&mut late.net.hosts[0]), [first, flushed, flushed]);
        exchange(&mut late);
        assert!(late.errands.is_empty());
        let found = late.memories[0].0.get(0, len as usize);
        assert_eq!(found == bytes, len == 4);
        go(&mut late.net.hosts[0], a, QpState::Reset).unwrap();
    }
}

/// Of a QP of one device as well; an atomic that was executed says so.
#[test]
fn an_atomic_whose_result_is_being_written_is_told_when_it_was() {
    let mut late = Late::new(1, 7, |_| {});
    let host = &mut late.net.hosts[0];
    let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
    host.connect(a, QpType::Rc, address(0), b.0, |_| {});
    host.connect(b, QpType::Rc, address(0), a.0, |_| {});
    let (sge, word) = (late.sge(0, true, 0, 8), late.remote(0, false, 64));
    let now = late.net.now;
    for _ in 0..2 {
        let add = SendOp::FetchAdd { remote: word, add: 5 };
        late.net.hosts[0].post(now, a, add, &[sge], None);
    }
    exchange(&mut late);
    assert_eq!(late.errands.len(), 1);
    go(&mut late.net.hosts[0], a, QpState::Err).unwrap();
    assert_eq!(statuses(&mut late.net.hosts[0]), []);
    assert!(late.run_errand(true));
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success, WcStatus::WrFlushErr]);
    assert_eq!(late.net.hosts[0].memory.get(64, 8), 5_u64.to_ne_bytes());
}

/// Its result was written, and its turn had not come yet, when its QP failed: it was told as flushed within a device
/// that begins nothing and leaves it, and whoever posted it again had it executed twice.
#[test]
fn an_atomic_whose_result_was_written_is_not_flushed() {
    let mut late = Late::new(1, 8, |_| {});
    let host = &mut late.net.hosts[0];
    let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
    host.connect(a, QpType::Rc, address(0), b.0, |_| {});
    host.connect(b, QpType::Rc, address(0), a.0, |_| {});
    let (sge, word) = (late.sge(0, true, 0, 8), late.remote(0, false, 64));
    let (now, add) = (late.net.now, SendOp::FetchAdd { remote: word, add: 5 });
    late.net.hosts[0].post(now, a, add, &[sge], None);
    exchange(&mut late);
    assert!(late.run_errand(true));
    go(&mut late.net.hosts[0], a, QpState::Err).unwrap();
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    assert_eq!(late.net.hosts[0].memory.get(64, 8), 5_u64.to_ne_bytes());
}

/// The QP's end told that it had not executed a WRITE, which then was written, and was sent again.
#[test]
fn a_qp_in_error_knows_how_far_it_got_when_what_it_writes_is_written() {
    for gone in [false, true] {
        let mut late = Late::new(2, 8, |_| {});
        let (a, b) = pair(&mut late);
        let (own, far) = (late.sge(0, false, 0, 4), late.remote(1, true, 0));
        let now = late.net.now;
        for _ in 0..2 {
            late.net.hosts[0].post(now, a, SendOp::Write(far), &[own], None);
        }
        exchange(&mut late);
        assert_eq!(late.errands.len(), 1);
        let host = &mut late.net.hosts[1];
        let reached = |host: &Host| {
            let (attr, _) = host.nic.query_qp(b).unwrap();
            (attr.rq_psn, attr.rq_waiting)
        };
        go(host, b, QpState::Err).unwrap();
        let (psn, waiting) = reached(host);
        assert!(waiting);
        if gone {
            late.memories[1].0.vanish();
        }
        assert!(late.run_errand(true));
        let after = if gone { psn } else { psn + 1 };
        assert_eq!(reached(&late.net.hosts[1]), (after, false));
        exchange(&mut late);
        assert!(late.errands.is_empty());
    }
}

/// An errand wrote what a peer had sent; somebody saw that and wrote over it; and when the request had
/// its turn, the memory was at hand, and it was written once more.
#[test]
fn what_an_errand_wrote_is_not_written_again() {
    let mut late = Late::new(2, 9, |_| {});
    let (a, _) = pair(&mut late);
    late.fill(0, false, 0, 4);
    let (own, far) = (late.sge(0, false, 0, 4), late.remote(1, true, 0));
    let now = late.net.now;
    late.net.hosts[0].post(now, a, SendOp::Write(far), &[own], None);
    exchange(&mut late);
    let (host, mut errand) = late.errands.pop_front().unwrap();
    assert!(VecMemory::run_errand(&mut errand));
    let memory = late.memories[1].0.clone();
    memory.come_back();
    memory.fill(0, b"over");
    late.net.hosts[host].nic.errand_done(now, errand, true);
    exchange(&mut late);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    assert_eq!(memory.get(0, 4), b"over");
}

/// A READ within a device from memory that changes all the time read it again after each errand, found
/// other bytes than the errand had written, and held its stream for ever.
#[test]
fn memory_that_changes_is_copied_to_an_end() {
    let mut late = Late::new(1, 10, |_| {});
    let host = &mut late.net.hosts[0];
    let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
    host.connect(a, QpType::Rc, address(0), b.0, |_| {});
    host.connect(b, QpType::Rc, address(0), a.0, |_| {});
    let (sge, near) = (late.sge(0, true, 0, 8), late.remote(0, false, 0));
    let now = late.net.now;
    late.net.hosts[0].post(now, a, SendOp::Read(near), &[sge], None);
    for _ in 0..4 {
        exchange(&mut late);
        late.fill(0, false, 0, 8);
        late.run_errand(true);
    }
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    assert_eq!(late.net.hosts[0].nic.counters().waits_for_memory, 1);
}

/// While an errand wrote to a receive that had been given back, another message took that.
#[test]
fn a_receive_that_is_not_at_hand_fails_at_once() {
    for own_late in [false, true] {
        let mut late = Late::new(1, 11, |_| {});
        let host = &mut late.net.hosts[0];
        let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
        host.connect(a, QpType::Rc, address(0), b.0, |_| {});
        host.connect(b, QpType::Rc, address(0), a.0, |_| {});
        let (own, far) = (late.sge(0, own_late, 0, 8), late.sge(0, true, 64, 8));
        let now = late.net.now;
        let host = &mut late.net.hosts[0];
        host.nic.post_recv(now, b, &[RecvWr { wr_id: 1, sges: &[far] }]).unwrap();
        host.post(now, a, SendOp::Send, &[own], None);
        exchange(&mut late);
        assert_eq!(late.run_errand(true), own_late);
        exchange(&mut late);
        assert!(late.errands.is_empty());
        let mut found = statuses(&mut late.net.hosts[0]);
        found.sort_by_key(|status| *status as u32);
        assert_eq!(found, [WcStatus::LocProtErr, WcStatus::RemOpErr]);
    }
}

/// A window was invalidated, and a WRITE through it was done after that.
#[test]
fn a_window_is_invalidated_when_nothing_is_written_through_it() {
    let mut late = Late::new(2, 12, |_| {});
    let (a, b) = pair(&mut late);
    let own = late.sge(0, false, 0, 4);
    let (mr, now) = (late.memories[1].1, late.net.now);
    let host = &mut late.net.hosts[1];
    let window = host.nic.alloc_mw(host.pd).unwrap();
    let access = AccessFlags::REMOTE_WRITE;
    let (rkey, addr) = (window.rkey.wrapping_add(1), mr.addr);
    let bind = BindMw { mw: window.mw, rkey, mr: mr.mr, addr, length: 64, access };
    host.post(now, b, SendOp::BindMw(bind), &[], None);
    assert_eq!(statuses(host), []);
    exchange(&mut late);
    assert_eq!(statuses(&mut late.net.hosts[1]), [WcStatus::Success]);
    late.net.hosts[0].post(now, a, SendOp::Write(RemoteAddr { addr, rkey }), &[own], None);
    exchange(&mut late);
    assert_eq!(late.errands.len(), 1);
    let host = &mut late.net.hosts[1];
    host.post(now, b, SendOp::LocalInv(rkey), &[], None);
    exchange(&mut late);
    assert_eq!(statuses(&mut late.net.hosts[1]), []);
    let host = &mut late.net.hosts[1];
    assert!(matches!(host.nic.dealloc_mw(window.mw), Err(VerbsError::InUse { .. })));
    late.run(0);
    assert_eq!(statuses(&mut late.net.hosts[1]), [WcStatus::Success]);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
}

/// An invalidation waited for its window while a request was under way, and what was sent behind it had
/// no timer: the peer's silence was never noticed.
#[test]
fn a_peers_silence_is_noticed_behind_an_invalidation_that_waited() {
    let mut late = Late::new(2, 13, |_| {});
    let (a, b) = pair(&mut late);
    let (mr, now) = (late.memories[0].1, late.net.now);
    let (own, result) = (late.sge(1, false, 0, 4), late.sge(0, false, 64, 8));
    let (word, far) = (late.remote(1, false, 64), late.remote(1, false, 128));
    let host = &mut late.net.hosts[0];
    let window = host.nic.alloc_mw(host.pd).unwrap();
    let access = AccessFlags::REMOTE_WRITE;
    let (rkey, addr) = (window.rkey.wrapping_add(1), mr.addr);
    let bind = BindMw { mw: window.mw, rkey, mr: mr.mr, addr, length: 64, access };
    host.post(now, a, SendOp::BindMw(bind), &[], None);
    exchange(&mut late);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    late.net.hosts[1].post(now, b, SendOp::Write(RemoteAddr { addr, rkey }), &[own], None);
    exchange(&mut late);
    assert_eq!(late.errands.len(), 1);
    let host = &mut late.net.hosts[0];
    host.post(now, a, SendOp::FetchAdd { remote: word, add: 1 }, &[result], None);
    host.post(now, a, SendOp::LocalInv(rkey), &[], None);
    host.post(now, a, SendOp::Write(far), &[result], None);
    for _ in 0..10_000 {
        late.net.transmit();
        late.net.wire.clear();
        let host = &mut late.net.hosts[0];
        let Some(due) = host.nic.poll_timeout() else { break };
        late.net.now = late.net.now.max(due);
        late.run_errand(true);
        late.net.hosts[0].nic.handle_timeout(late.net.now);
    }
    let failed = [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::WrFlushErr];
    assert_eq!(statuses(&mut late.net.hosts[0]), failed);
}

/// Within a device, a QP fails while a request that takes a receive waits for its memory: whose
/// receives are gone for good gives no answer, rather than one that says to try again.
#[test]
fn who_failed_while_a_request_waited_does_not_ask_for_another_try() {
    let mut late = Late::new(1, 14, |_| {});
    let host = &mut late.net.hosts[0];
    let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
    host.connect(a, QpType::Rc, address(0), b.0, |attr| attr.rnr_retry = 0);
    host.connect(b, QpType::Rc, address(0), a.0, |_| {});
    let (sge, far, now) = (late.sge(0, false, 0, 3_000), late.remote(0, true, 9), late.net.now);
    let host = &mut late.net.hosts[0];
    host.nic.post_recv(now, b, &[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    host.post(now, a, SendOp::WriteWithImm(far, 5), &[sge], None);
    late.net.transmit();
    late.run_errand(false);
    assert_eq!(late.errands.len(), 1);
    go(&mut late.net.hosts[0], b, QpState::Err).unwrap();
    late.run(0);
    let ended = [WcStatus::WrFlushErr, WcStatus::RetryExcErr];
    assert_eq!(statuses(&mut late.net.hosts[0]), ended);
}

/// Two lanes had a packet under way, which nobody was asked to acknowledge, when the network narrowed
/// and their next packets had to be fetched: the path was full of these two, and stayed so.
#[test]
fn lanes_that_fill_a_path_with_what_was_not_asked_about_ask() {
    let mut late = Late::new(2, 15, |config| {
        config.tail_probe_ns = 0;
        (config.flow.window_initial, config.flow.window_min) = (3, 2);
    });
    let far = late.remote(1, false, 0);
    let (near, rest) = (late.sge(0, false, 0, 1_024), late.sge(0, true, 0, 1_000));
    for _ in 0..2 {
        let (a, _) = late.net.connect(QpType::Rc, |attr| {
            (attr.path_mtu, attr.timeout) = (Mtu::Mtu1024, 0);
        });
        let now = late.net.now;
        late.net.hosts[0].post(now, a, SendOp::Write(far), &[near, rest], None);
    }
    late.lazy = true;
    late.net.transmit();
    late.run_errand(false);
    assert_eq!((late.net.wire.len(), late.errands.len()), (2, 2));
    for mut packet in std::mem::take(&mut late.net.wire) {
        // The mark of congestion (RFC 3168, section 5).
        packet.traffic_class |= 0b11;
        late.net.deliver(&packet);
    }
    late.run(0);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success; 2]);
}

/// What had been read ahead for a WR's last packets, which then were not fetched, was taken for the
/// bytes of a later WR from the same place within the device.
#[test]
fn what_was_read_ahead_is_nobodys_when_the_wr_has_ended() {
    let mut late = Late::new(2, 16, |_| {});
    let [near, far] = [0, 1].map(|host| dct(&mut late.net.hosts[host], KEY, ALL_ACCESS));
    let qp = dci(&mut late.net.hosts[0], 0, 0);
    let [own, peer] = [0, 1].map(|host| handle(&mut late.net.hosts[0], host));
    let (sge, now) = (late.sge(0, true, 0, 3_000), late.net.now);
    let (there, here) = (late.remote(1, false, 0), late.remote(0, false, 10_000));
    let before = late.fill(0, true, 0, 3_000);
    let host = &mut late.net.hosts[0];
    host.post(now, qp, SendOp::Write(there), &[sge], dest(peer, &far, KEY, 0));
    late.net.transmit();
    assert!(late.run_errand(true));
    // The first packet takes what was fetched for all of them; the others find their memory at hand.
    assert!(late.net.transmit_one(0));
    late.memories[0].0.come_back();
    late.run(0);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    assert!(late.net.hosts[1].memory.get(0, 3_000) == before);

    let after = late.fill(0, true, 0, 3_000);
    late.memories[0].0.recede();
    let host = &mut late.net.hosts[0];
    host.post(now, qp, SendOp::Write(here), &[sge], dest(own, &near, KEY, 0));
    late.run(0);
    assert_eq!(statuses(&mut late.net.hosts[0]), [WcStatus::Success]);
    assert!(late.net.hosts[0].memory.get(10_000, 3_000) == after, "bytes of the WR before");
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

/// What waited for one user's memory filled all the room that there was, so that what came for
/// another's was lost.
#[test]
fn what_waits_for_one_users_memory_leaves_room_for_anothers() {
    const HOSTS: usize = 12;
    const STREAMS: usize = 7;
    let mut late = Late::new(HOSTS, 5, |_| {});
    let owner = &mut late.net.hosts[1];
    let other = VecMemory::new(0x9000_0000, REGION);
    let other_mr = owner.nic.reg_mr(owner.pd, other.clone(), None, ALL_ACCESS).unwrap();
    other.recede();
    other.belongs_to(2);
    late.memories[1].0.belongs_to(1);
    let (far, now) = (late.remote(1, true, 0), late.net.now);
    for host in 2..HOSTS {
        let sge = late.sge(host, false, 0, 30_000);
        for _ in 0..STREAMS {
            let (qp, _) = late.net.connect_hosts([host, 1], QpType::Rc, |_| {});
            late.net.hosts[host].post(now, qp, SendOp::Write(far), &[sge], None);
        }
    }
    late.net.transmit();
    for _ in 0..10 {
        for packet in late.net.wire.clone() {
            late.net.deliver(&packet);
        }
    }
    late.net.wire.clear();
    let counters = |late: &Late| late.net.hosts[1].nic.counters().clone();
    let waiting = late.net.hosts[1].nic.waiting_bytes();
    let (full, lost) = ((15 << 20)..=(16 << 20), counters(&late).drop_waiting);
    assert!(lost > 0 && full.contains(&waiting), "{waiting} bytes wait, {lost} were lost");
    // Who comes to that memory only now is told to come again.
    let told = counters(&late).rnr_nak_sent;
    let (last, _) = late.net.connect_hosts([2, 1], QpType::Rc, |_| {});
    let sge = late.sge(2, false, 0, 30_000);
    late.net.hosts[2].post(now, last, SendOp::Write(far), &[sge], None);
    late.net.transmit();
    while let Some(packet) = late.net.wire.pop_front() {
        late.net.deliver(&packet);
    }
    assert!(counters(&late).rnr_nak_sent > told);
    // Nothing of the other's is lost.
    let lost = counters(&late).drop_waiting;
    let (sender, _) = late.net.connect(QpType::Rc, |_| {});
    let near = RemoteAddr { addr: other_mr.addr, rkey: other_mr.rkey };
    let sge = late.sge(0, false, 0, 100_000);
    late.net.hosts[0].post(now, sender, SendOp::Write(near), &[sge], None);
    late.net.transmit();
    while let Some(packet) = late.net.wire.pop_front() {
        late.net.deliver(&packet);
    }
    assert_eq!(counters(&late).drop_waiting, lost);
    late.run(0);
    for (host, count) in (0..HOSTS).map(|host| (host, [1, 0, STREAMS + 1, STREAMS][host.min(3)])) {
        let wcs = late.net.hosts[host].poll();
        let statuses: Vec<_> = wcs.iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, vec![WcStatus::Success; count], "host {host}");
    }
    assert_eq!(late.net.hosts[1].nic.waiting_bytes(), 0);
}

/// Who drives a device has bytes written to memory as its own WRs have, and waits for nobody either.
#[test]
fn bytes_for_a_region_are_written_when_it_is_at_hand() {
    let mut late = Late::new(1, 6, |_| {});
    let (memory, mr) = late.memories[0].clone();
    let host = &mut late.net.hosts[0];
    let (near, cq) = (host.mr.mr, host.cq);
    assert_eq!(host.nic.write_region(near, 3, b"at once", cq, 1), Ok(true));
    assert_eq!(host.memory.get(3, 7), b"at once");
    assert_eq!(host.nic.write_region(mr.mr, 3, b"later", cq, 2), Ok(false));
    assert!(host.nic.write_region(near, REGION as u64, b"beyond", cq, 3).is_err());
    assert!(host.nic.write_region(near, 0, &[0; (64 << 10) + 1], cq, 4).is_err());
    assert!(matches!(host.nic.dereg_mr(mr.mr), Err(VerbsError::InUse { .. })));
    assert!(host.poll().is_empty());
    while late.run_errand(true) {}
    let host = &mut late.net.hosts[0];
    let wcs = host.poll();
    assert_eq!([(wcs[0].wr_id, wcs[0].status)], [(2, WcStatus::Success)]);
    assert_eq!(memory.get(3, 5), b"later");
    // Memory that goes meanwhile is told as well.
    assert_eq!(host.nic.write_region(mr.mr, 3, b"never", cq, 5), Ok(false));
    memory.vanish();
    while late.run_errand(true) {}
    let host = &mut late.net.hosts[0];
    assert_eq!(host.poll()[0].status, WcStatus::LocProtErr);
    assert_eq!(host.nic.dereg_mr(mr.mr), Ok(()));
}

/// A READ waits for memory, and the SEND right behind it takes its key back: what was fetched for it
/// since is not told any more, and the memory is kept until nobody fetches from it.
#[test]
fn a_key_that_is_taken_back_behind_a_read_that_waits_opens_nothing() {
    for length in [64, 5_000] {
        let mut late = Late::new(2, 7, |_| {});
        let (a, b) = pair(&mut late);
        let (memory, mr) = late.memories[1].clone();
        memory.fill(0, &[0xa7; 5_000]);
        let sge = late.sge(0, false, 0, length);
        let (host, now) = (&mut late.net.hosts[1], late.net.now);
        let window = host.nic.alloc_mw(host.pd).unwrap();
        let (rkey, access) = (window.rkey ^ 0x55, AccessFlags::REMOTE_READ);
        let (addr, length) = (mr.addr, u64::from(length));
        let bind = BindMw { mw: window.mw, rkey, mr: mr.mr, addr, length, access };
        host.post(now, b, SendOp::BindMw(bind), &[], None);
        host.nic.post_recv(now, b, &[RecvWr { wr_id: 3, sges: &[] }]).unwrap();
        late.run(0);
        late.net.hosts[1].poll();
        late.net.hosts[0].post(now, a, SendOp::Read(RemoteAddr { addr, rkey }), &[sge], None);
        for op in [None, Some(SendOp::SendWithInv(rkey))] {
            if let Some(op) = op {
                late.net.hosts[0].post(now, a, op, &[], None);
            }
            late.net.transmit();
            while let Some(packet) = late.net.wire.pop_front() {
                late.net.deliver(&packet);
            }
            late.net.transmit();
            late.run_errand(false);
        }
        assert_eq!(late.errands.len(), 1);
        let taken = late.net.hosts[1].poll();
        assert_eq!((taken.len(), taken[0].imm_data), (1, rkey));
        let nic = &mut late.net.hosts[1].nic;
        assert!(matches!(nic.dereg_mr(mr.mr), Err(VerbsError::InUse { .. })));
        late.run_errand(true);
        assert_eq!(late.net.hosts[1].nic.dereg_mr(mr.mr), Ok(()));
        while late.net.transmit() {
            while let Some(packet) = late.net.wire.pop_front() {
                assert!(!packet.bytes.windows(8).any(|bytes| bytes == [0xa7; 8]));
                late.net.deliver(&packet);
            }
        }
        let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
        // It does not say that nothing behind it was executed.
        assert_eq!(statuses, [WcStatus::RemOpErr, WcStatus::WrFlushErr]);
    }
}

/// The peer's memory is gone, and the WR's own is suddenly not at hand: it was said to be at fault.
#[test]
fn a_wr_whose_memory_comes_later_is_not_at_fault_for_its_peers() {
    for length in [100, 100_000] {
        let mut late = Late::new(1, 8, |_| {});
        let host = &mut late.net.hosts[0];
        let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
        host.connect(a, QpType::Rc, address(0), b.0, |_| {});
        host.connect(b, QpType::Rc, address(0), a.0, |_| {});
        let gone = VecMemory::new(0x9000_0000, REGION);
        let mr = host.nic.reg_mr(host.pd, gone.clone(), None, ALL_ACCESS).unwrap();
        gone.vanish();
        late.memories[0].0.recede_after(1);
        let sge = late.sge(0, true, 0, length);
        let target = RemoteAddr { addr: mr.addr, rkey: mr.rkey };
        let now = late.net.now;
        late.net.hosts[0].post(now, a, SendOp::Write(target), &[sge], None);
        late.run(0);
        let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, [WcStatus::RemOpErr]);
    }
}

/// What stands behind a READ that waits is refused. Whoever closed the queue pair then took the answer
/// and the refusal with it, so that the READ was blamed, each time that it was posted again.
#[test]
fn a_refusal_behind_a_read_that_waits_is_told_behind_its_answer() {
    let mut late = Late::new(2, 9, |_| {});
    let (a, b) = pair(&mut late);
    let bytes = late.fill(1, true, 0, 3_000);
    let (sge, now) = (late.sge(0, false, 0, 3_000), late.net.now);
    let (far, nowhere) = (late.remote(1, true, 0), RemoteAddr { addr: 0, rkey: 1 });
    late.net.hosts[0].post(now, a, SendOp::Read(far), &[sge], None);
    late.net.hosts[0].post(now, a, SendOp::Write(nowhere), &[sge], None);
    late.net.transmit();
    while let Some(packet) = late.net.wire.pop_front() {
        late.net.deliver(&packet);
    }
    late.net.transmit();
    let state = |late: &Late| {
        let (attr, _) = late.net.hosts[1].nic.query_qp(b).unwrap();
        (attr.qp_state, attr.rq_waiting)
    };
    assert_eq!(state(&late), (QpState::Err, true));
    late.run(0);
    assert_eq!(state(&late), (QpState::Err, false));
    let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RemAccessErr]);
    assert_eq!(late.net.hosts[0].memory.get(0, 3_000), bytes);
}

/// What waits for memory when its queue is to drain has begun, and ends as it would have.
#[test]
fn who_waits_goes_on_while_its_queue_drains() {
    let mut late = Late::new(1, 10, |_| {});
    let host = &mut late.net.hosts[0];
    let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
    host.connect(a, QpType::Rc, address(0), b.0, |_| {});
    host.connect(b, QpType::Rc, address(0), a.0, |_| {});
    let bytes = late.fill(0, false, 0, 3_000);
    let (sge, far, now) = (late.sge(0, false, 0, 3_000), late.remote(0, true, 9), late.net.now);
    let host = &mut late.net.hosts[0];
    host.post(now, a, SendOp::Write(far), &[sge], None);
    host.post(now, a, SendOp::Write(far), &[sge], None);
    late.net.transmit();
    late.run_errand(false);
    assert_eq!(late.errands.len(), 1);
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    late.net.hosts[0].nic.modify_qp(now, a, &attr, mask).unwrap();
    let drained = |late: &mut Late| {
        let events = std::iter::from_fn(|| late.net.hosts[0].nic.poll_async_event());
        events.filter(|event| matches!(event, AsyncEvent::SqDrained(_))).count()
    };
    assert_eq!(drained(&mut late), 0);
    late.run(0);
    assert_eq!(drained(&mut late), 1);
    let statuses: Vec<_> = late.net.hosts[0].poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success]);
    assert!(late.memories[0].0.get(9, 3_000) == bytes);
}
