//! A DC target sends an address that never proved that it receives there at most what came from it,
//! and an honest initiator hardly notices.

use crate::common::dc::{KEY, Target, dci, dct, dest, handle, post_shared, statuses};
use crate::common::{ALL_ACCESS, Net, Packet, address};
use elver_random::Rng;
use elver_rnic::MAX_PACKET;
use elver_verbs::*;
use elver_wire::*;

/// Host 1 is the target, host 0 the initiator.
struct Pair {
    net: Net,
    target: Target,
    qp: Qp,
    ah: Ah,
}

impl Pair {
    fn new() -> Pair {
        let mut net = Net::new(2);
        let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
        let qp = dci(&mut net.hosts[0], 0, 0);
        let ah = handle(&mut net.hosts[0], 1);
        Pair { net, target, qp, ah }
    }

    /// Posts a READ and runs it; returns the packets that it took each way.
    fn read(&mut self, len: u32) -> [usize; 2] {
        let (remote, sge) = (self.net.hosts[1].remote(0), [self.net.hosts[0].sge(0, len)]);
        let to = dest(self.ah, &self.target, KEY, 0);
        self.net.hosts[0].post(self.net.now, self.qp, SendOp::Read(remote), &sge, to);
        let mut packets = [0; 2];
        self.net.run(|packet| {
            packets[usize::from(packet.flow.src.ip() != address(0))] += 1;
            1
        });
        assert_eq!(statuses(&mut self.net.hosts[0]), [WcStatus::Success], "a READ of {len}");
        packets
    }
}

#[test]
fn a_first_read_of_up_to_an_mtu_takes_one_round_trip() {
    for len in [0, 1, 340, 1024] {
        assert_eq!(Pair::new().read(len), [1, 1], "{len} bytes");
    }
}

#[test]
fn a_longer_first_read_takes_one_more_and_only_the_first() {
    let mut pair = Pair::new();
    assert_eq!(pair.read(65_536), [2, 65]);
    assert_eq!(pair.net.hosts[0].nic.counters().dc_proofs_given, 1);
    assert_eq!(pair.read(65_536), [1, 64]);
    // Another DCI, and another target of the same host.
    pair.qp = dci(&mut pair.net.hosts[0], 0, 0);
    assert_eq!(pair.read(65_536), [1, 64]);
    pair.target = dct(&mut pair.net.hosts[1], KEY, ALL_ACCESS);
    assert_eq!(pair.read(65_536), [1, 64]);
    assert_eq!(pair.net.hosts[0].nic.counters().dc_proofs_given, 1);
}

/// A DCI without retries, and the way to the target.
fn without_retries(net: &mut Net) -> (Qp, Option<Dest>) {
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let init = QpInit::new(QpType::Dci, net.hosts[0].pd, net.hosts[0].cq);
    let qp = net.hosts[0].nic.create_qp(QpInit { sq_sig_all: true, ..init }).unwrap();
    net.hosts[0].connect(qp, QpType::Dci, address(0), 0, |attr| attr.retry_cnt = 0);
    let ah = handle(&mut net.hosts[0], 1);
    (qp, dest(ah, &target, KEY, 0))
}

/// Who has no retries left to spend may be asked all the same.
#[test]
fn proving_costs_no_retry() {
    let mut net = Net::new(2);
    let (qp, to) = without_retries(&mut net);
    for len in [20_000, 64, 20_000, 64] {
        let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, len)]);
        net.hosts[0].post(net.now, qp, SendOp::Read(remote), &sge, to);
    }
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 4]);
}

/// A long READ goes out before the token is here, and a WRITE behind it with the token: the target
/// asks for the READ again, and must not miss it once more when the WRITE comes.
#[test]
fn what_was_sent_behind_the_proof_costs_no_retry() {
    let mut net = Net::new(2);
    let (qp, to) = without_retries(&mut net);
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 64)]);
    let long = [net.hosts[0].sge(0, 2048)];
    let post = |net: &mut Net, op, sge: &[Sge]| net.hosts[0].post(net.now, qp, op, sge, to);
    let take = |net: &mut Net| {
        net.transmit();
        std::mem::take(&mut net.wire)
    };
    post(&mut net, SendOp::Write(remote), &sge);
    take(&mut net).iter().for_each(|write| net.deliver(write));
    let acknowledged = take(&mut net);
    post(&mut net, SendOp::Read(remote), &long);
    let read = take(&mut net);
    acknowledged.iter().for_each(|ack| net.deliver(ack));
    post(&mut net, SendOp::Write(remote), &sge);
    let write = take(&mut net);
    read.iter().chain(&write).for_each(|packet| net.deliver(packet));
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 3]);
    assert_eq!(net.hosts[1].nic.counters().dc_proofs_asked, 1, "the test means to be asked");
}

/// A target that was made anew does not know its tokens again, and asks.
#[test]
fn a_token_of_before_a_restart_is_asked_for_anew() {
    let mut pair = Pair::new();
    pair.read(65_536);
    let fresh = Net::with_config(3, |_| {}).hosts.pop().unwrap();
    pair.net.hosts[1] = fresh;
    pair.target = dct(&mut pair.net.hosts[1], KEY, ALL_ACCESS);
    assert_eq!(pair.read(65_536), [2, 65]);
    assert_eq!(pair.net.hosts[1].nic.counters().dc_proofs_asked, 1);
}

/// A token becomes too old, and the next one is told before it does.
#[test]
fn tokens_are_renewed() {
    let mut pair = Pair {
        net: Net::with_config(2, |config| config.dc_token_ns = 10_000_000_000),
        ..Pair::new()
    };
    pair.target = dct(&mut pair.net.hosts[1], KEY, ALL_ACCESS);
    pair.qp = dci(&mut pair.net.hosts[0], 0, 0);
    pair.ah = handle(&mut pair.net.hosts[0], 1);
    pair.read(65_536);
    for _ in 0..5 {
        pair.net.now = pair.net.now.saturating_add_ns(9_000_000_000);
        pair.qp = dci(&mut pair.net.hosts[0], 0, 0);
        assert_eq!(pair.read(65_536), [1, 64]);
    }
    pair.net.now = pair.net.now.saturating_add_ns(100_000_000_000);
    pair.qp = dci(&mut pair.net.hosts[0], 0, 0);
    assert_eq!(pair.read(65_536), [2, 65]);
}

/// What a forger knows who was a member: everything of the target's but what it told the victim.
struct Forger {
    rng: Rng,
    target: u32,
    rkey: u32,
    addr: u64,
}

impl Forger {
    fn below(&mut self, count: u32) -> u32 {
        self.rng.next_u32() % count
    }

    fn message(&mut self) -> Message {
        let len = [0, 1, 340, 1024, 1025, 65_536, 1 << 20, u32::MAX][self.below(8) as usize];
        let reth = Reth { va: self.addr, rkey: self.rkey, len };
        let atomic = AtomicEth { va: self.addr, rkey: self.rkey, swap_or_add: 1, compare: 0 };
        match self.below(10) {
            0 => Message::SendOnly(Tail::Plain),
            1 => Message::SendFirst,
            2 => Message::SendMiddle,
            3 => Message::WriteOnly(Reth { len: 0, ..reth }, None),
            4 => Message::FetchAdd(atomic),
            5 => Message::CmpSwp(AtomicEth { va: self.addr + 1, ..atomic }),
            _ => Message::ReadRequest(reth),
        }
    }

    fn packet(&mut self) -> Packet {
        let session = 0xff_fff0 + self.below(6);
        let eth = DcEth {
            src_qpn: Qpn::from_wrapping(0x100 + self.below(3)),
            stream: self.below(2) as u16,
            session,
            fill: [0, 0, 4, 312, 1000, 1024, 4096][self.below(7) as usize],
        };
        let token = [0, 7, self.rng.next_u64()][self.below(3) as usize];
        let extra = match self.below(8) {
            0 => DcExtra::None,
            1 => DcExtra::Token(token),
            _ => {
                let access_key = if self.below(10) == 0 { 1 } else { KEY };
                let mtu = 1 + self.below(5) as u8;
                DcExtra::Connect(DcConnect { access_key, token, mtu })
            }
        };
        let psn = Psn::from_wrapping(session.wrapping_add(self.below(4)).wrapping_sub(1));
        let dest = Qpn::from_wrapping(self.target);
        let message = self.message();
        let mut headers = Headers::new(Route::Dc { eth, extra }, message, dest, psn).unwrap();
        headers.ack_req = self.below(4) > 0;
        let payload = if message == Message::SendFirst { 1024 } else { 0 };
        let mut bytes = vec![0; 2 * MAX_PACKET];
        let len = packet_len(headers.emit(&mut bytes, payload), payload);
        bytes.truncate(len);
        let [src, dst] = [9, 1].map(|host| (address(host), UDP_PORT).into());
        let flow = Flow { src, dst };
        icrc::seal(&flow, 0, &mut bytes);
        // Congestion that the forger claims is to be told to nobody.
        Packet { flow, traffic_class: self.below(4) as u8, bytes }
    }
}

#[test]
fn whatever_is_forged_the_victim_gets_no_more_than_was_sent() {
    for seed in 0..200u64 {
        let mut pair = Pair::new();
        // The target goes that way itself, so that it has a path to the victim.
        handle(&mut pair.net.hosts[1], 9);
        for wr_id in 0..8 {
            post_shared(&mut pair.net.hosts[1], pair.target.srq, wr_id, 0);
        }
        let host = &pair.net.hosts[1];
        let (rkey, addr) = (host.mr.rkey, host.mr.addr);
        let mut forger = Forger { rng: Rng::new(seed), target: pair.target.number, rkey, addr };
        let (mut received, mut sent) = (0, 0);
        for step in 0..300 {
            let packet = forger.packet();
            received += packet.bytes.len();
            pair.net.deliver(&packet);
            if forger.below(3) == 0 {
                pair.net.now = pair.net.now.saturating_add_ns(u64::from(forger.below(100_000)));
                pair.net.transmit();
                sent += pair.net.wire.drain(..).map(|packet| packet.bytes.len()).sum::<usize>();
                assert!(sent <= received, "seed {seed}, step {step}: {sent} for {received}");
            }
        }
        assert!(sent > 0, "seed {seed}: nothing was answered, which shows nothing");
    }
}

/// Forged addresses take at most half of a target's room; who proves where he is gets the rest.
#[test]
fn forged_addresses_leave_room_for_the_honest() {
    let mut net = Net::with_config(2, |config| config.max_dc_contexts = 16);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let (rkey, addr) = (net.hosts[1].mr.rkey, net.hosts[1].mr.addr);
    let mut forger = Forger { rng: Rng::new(1), target: target.number, rkey, addr };
    for number in 0..2_000u32 {
        let mut packet = forger.packet();
        packet.flow.src.set_ip((0x0b00_0000 + number).to_be_bytes().into());
        icrc::seal(&packet.flow, 0, &mut packet.bytes);
        net.deliver(&packet);
    }
    net.transmit();
    net.wire.clear();
    assert_eq!(net.hosts[1].nic.dct_contexts(target.qp).unwrap(), 8);
    let qp = dci(&mut net.hosts[0], 0, 0);
    let ah = handle(&mut net.hosts[0], 1);
    let (remote, sge) = (net.hosts[1].remote(0), [net.hosts[0].sge(0, 340)]);
    let to = dest(ah, &target, KEY, 0);
    net.hosts[0].post(net.now, qp, SendOp::Read(remote), &sge, to);
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
}
