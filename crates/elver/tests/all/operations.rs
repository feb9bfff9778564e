//! Every operation, in every form, over every kind of connection, between two nodes and on one.

use elver::{
    AccessFault, AccessFlags, ConnectOptions, Error, Gid, Mr, Payload, Policy, PostFailed, RecvWr,
    RefusalCode, SendFlags, SendOp, SendWr, Session, Sge, Vqp, VqpOptions, Wc, WcOpcode, WcStatus,
};

use crate::common::{ALL, WAIT, cluster, completion, session_at, succeeds, wr};

const BYTES: u64 = 1 << 16;

/// Memory, and what should stand in it.
struct Model {
    mr: Mr,
    bytes: Vec<u8>,
}

impl Model {
    fn new(session: &Session, seed: u64) -> Model {
        let mr = session.alloc(BYTES, ALL).unwrap();
        let bytes: Vec<u8> =
            (0..BYTES).map(|at| ((at * 0x9e37_79b9 + seed * 77) >> 11) as u8).collect();
        mr.write(0, &bytes).unwrap();
        Model { mr, bytes }
    }

    #[track_caller]
    fn check(&self, what: &str) {
        let mut bytes = vec![0; self.bytes.len()];
        self.mr.read(0, &mut bytes).unwrap();
        let wrong = bytes.iter().zip(&self.bytes).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "{what}");
    }

    fn gather(&self, parts: &[(u64, u32)]) -> Vec<u8> {
        let part = |(at, len): &(u64, u32)| &self.bytes[*at as usize..][..*len as usize];
        parts.iter().flat_map(part).copied().collect()
    }

    fn scatter(&mut self, parts: &[(u64, u32)], mut data: &[u8]) {
        for &(at, len) in parts {
            let (now, rest) = data.split_at(data.len().min(len as usize));
            self.put(at, now);
            data = rest;
        }
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        self.bytes[at as usize..][..data.len()].copy_from_slice(data);
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.bytes[at as usize..][..8].try_into().unwrap())
    }

    fn sges(&self, parts: &[(u64, u32)]) -> Vec<Sge> {
        parts.iter().map(|&(at, len)| self.mr.sge(at, len)).collect()
    }
}

/// A connection, both sides' memory, and a receiver.
struct Pair {
    vqp: Vqp,
    near: Model,
    far: Model,
    bound: Vqp,
    next_id: u64,
}

/// Where a receive scatters.
const INTO: [(u64, u32); 3] = [(40_000, 5), (50_000, 0), (41_000, 8_000)];

impl Pair {
    fn new(here: &Session, there: &Session, gid: Gid, policy: Policy) -> Pair {
        let bound = there.create_vqp(VqpOptions::default()).unwrap();
        let port = bound.qbind(0).unwrap();
        let vqp = here.create_vqp(VqpOptions::default()).unwrap();
        let options = ConnectOptions { policy, uncached: false };
        vqp.qconnect_with(gid, port, options).unwrap();
        Pair { vqp, near: Model::new(here, 1), far: Model::new(there, 2), bound, next_id: 1 }
    }

    fn post(&mut self, op: SendOp, signalled: bool, payload: Payload<'_>) -> u64 {
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr_id = self.next_id;
        self.next_id += 1;
        let wr = SendWr { wr_id, op, flags, payload, dest: None };
        self.vqp.post_send(&[wr]).unwrap();
        wr_id
    }

    /// Waits for the end of a WR: for its completion, or for that of one behind it.
    fn ends(&mut self, wr_id: u64, signalled: bool, opcode: WcOpcode) {
        let (wr_id, opcode) = if signalled {
            (wr_id, opcode)
        } else {
            let op = SendOp::Write(self.far.mr.remote(0));
            (self.post(op, true, Payload::Sges(&[])), WcOpcode::RdmaWrite)
        };
        let wc = completion(&self.vqp);
        assert_eq!((wc.status, wc.wr_id, wc.opcode), (WcStatus::Success, wr_id, opcode));
        assert_eq!(wc.qp_num, self.vqp.id());
        assert_eq!(self.vqp.poll_cq(&mut [Wc::default()]).unwrap(), 0, "one completion alone");
    }

    /// One-sided and two-sided operations with data of these parts, or inline.
    fn data(&mut self, parts: &[(u64, u32)], signalled: bool, inline: bool) {
        let data = self.near.gather(parts);
        let what = format!("{parts:?}, signalled {signalled}, inline {inline}");
        let sges = self.near.sges(parts);
        let payload = || if inline { Payload::Inline(&data) } else { Payload::Sges(&sges) };
        for kind in 0..5 {
            let remote = self.far.mr.remote(20_000 + kind);
            let (op, opcode, receives) = match kind {
                0 => (SendOp::Write(remote), WcOpcode::RdmaWrite, None),
                1 => (SendOp::WriteWithImm(remote, 9), WcOpcode::RdmaWrite, Some(Some(9))),
                2 => (SendOp::Send, WcOpcode::Send, Some(None)),
                3 => (SendOp::SendWithImm(8), WcOpcode::Send, Some(Some(8))),
                _ if inline => continue,
                _ => (SendOp::Read(remote), WcOpcode::RdmaRead, None),
            };
            if receives.is_some() {
                let sges = self.far.sges(&INTO);
                let posted = self.bound.post_recv(&[RecvWr { wr_id: 5, sges: &sges }]);
                posted.unwrap();
            }
            let wr_id = self.post(op, signalled, payload());
            self.ends(wr_id, signalled, opcode);
            match kind {
                0 | 1 => self.far.put(20_000 + kind, &data),
                2 | 3 => self.far.scatter(&INTO, &data),
                _ => {
                    let read = self.far.bytes[20_000 + kind as usize..][..data.len()].to_vec();
                    self.near.scatter(parts, &read);
                }
            }
            if let Some(imm) = receives {
                let messages = self.bound.wait_msgs(WAIT).unwrap();
                let wc = messages[0].wc;
                let opcode = if kind == 1 { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
                assert_eq!((messages.len(), wc.status, wc.wr_id), (1, WcStatus::Success, 5));
                assert_eq!((wc.opcode, wc.byte_len as usize), (opcode, data.len()), "{what}");
                if let Some(imm) = imm {
                    assert_eq!(wc.imm_data, imm);
                }
            }
            self.far.check(&format!("{what}, operation {kind}, there"));
            self.near.check(&format!("{what}, operation {kind}, here"));
        }
    }

    fn atomics(&mut self, parts: &[(u64, u32)], signalled: bool) {
        let (at, before) = (30_000, self.far.word(30_000));
        let remote = self.far.mr.remote(at);
        for op in [
            SendOp::FetchAdd { remote, add: 5 },
            SendOp::CompareSwap { remote, compare: before.wrapping_add(5), swap: 17 },
            SendOp::CompareSwap { remote, compare: 16, swap: 18 },
        ] {
            let before = self.far.word(at);
            let (after, opcode) = match op {
                SendOp::FetchAdd { add, .. } => (before.wrapping_add(add), WcOpcode::FetchAdd),
                SendOp::CompareSwap { compare, swap, .. } if compare == before => {
                    (swap, WcOpcode::CompSwap)
                }
                _ => (before, WcOpcode::CompSwap),
            };
            let sges = self.near.sges(parts);
            let wr_id = self.post(op, signalled, Payload::Sges(&sges));
            self.ends(wr_id, signalled, opcode);
            self.near.scatter(parts, &before.to_ne_bytes());
            self.far.put(at, &after.to_ne_bytes());
            self.near.check(&format!("{op:?} {parts:?}, here"));
            self.far.check(&format!("{op:?} {parts:?}, there"));
        }
    }

    fn all(&mut self) {
        for signalled in [true, false] {
            for parts in [
                &[][..],
                &[(7, 1)],
                &[(100, 220)],
                &[(100, 5_000)],
                &[(3, 3), (1_000, 4_001), (2, 0), (9_001, 700)],
                &[(60_000, 0), (60_001, 2)],
            ] {
                self.data(parts, signalled, false);
                if parts.iter().map(|(_, len)| len).sum::<u32>() <= 220 {
                    self.data(parts, signalled, true);
                }
            }
            self.atomics(&[(64, 8)], signalled);
            self.atomics(&[(71, 3), (80, 5)], signalled);
        }
    }
}

#[test]
fn every_operation_in_every_form() {
    let (meta, node) = cluster(162, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    for policy in [Policy::Shared, Policy::Lite, Policy::RpcMeta, Policy::Leased] {
        Pair::new(&here, &there, meta.gid, policy).all();
    }
    let neighbour = session_at(&node);
    Pair::new(&here, &neighbour, node.gid, Policy::Shared).all();
}

#[test]
fn a_batch_larger_than_every_physical_queue_keeps_its_order() {
    const COUNT: u64 = 3_000;
    let (meta, node) = cluster(163, |config| {
        config.pool.sq_depth = 32;
        config.transfer.hot_ops = 500;
        config.transfer.window_ms = 10;
    });
    let (here, there) = (session_at(&node), session_at(&meta));
    let (near, far) = (here.alloc(BYTES, ALL).unwrap(), there.alloc(64, ALL).unwrap());
    for policy in [Policy::Shared, Policy::Lite] {
        let options = VqpOptions { max_send_wr: 4_096, ..VqpOptions::default() };
        let vqp = here.create_vqp(options).unwrap();
        let options = ConnectOptions { policy, uncached: false };
        vqp.qconnect_with(meta.gid, 0, options).unwrap();
        far.write_u64(0, 0).unwrap();
        // Each fetches what the one before it left; every seventh is signalled, and the last.
        let at = |n: u64| n % (BYTES / 8) * 8;
        let sges: Vec<[Sge; 1]> = (0..COUNT).map(|n| [near.sge(at(n), 8)]).collect();
        let wrs: Vec<SendWr<'_>> = sges
            .iter()
            .zip(0u64..)
            .map(|(sges, n)| {
                let add = SendOp::FetchAdd { remote: far.remote(0), add: n + 1 };
                let signalled = n % 7 == 6 || n == COUNT - 1;
                let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendWr { flags, ..wr(n, add, sges) }
            })
            .collect();
        vqp.post_send(&wrs).unwrap();
        let mut expected: Vec<u64> = (0..COUNT).filter(|n| n % 7 == 6 || *n == COUNT - 1).collect();
        expected.reverse();
        let mut wcs = [Wc::default(); 64];
        while !expected.is_empty() {
            let count = vqp.wait_cq(&mut wcs, WAIT).unwrap();
            for wc in &wcs[..count] {
                assert_eq!((wc.status, Some(wc.wr_id)), (WcStatus::Success, expected.pop()));
            }
        }
        let mut sum = 0;
        for n in 0..COUNT {
            assert_eq!(near.read_u64(at(n)).unwrap(), sum, "{policy:?} {n}");
            sum += n + 1;
        }
        assert_eq!(far.read_u64(0).unwrap(), sum);
    }
}

/// A receiver on one node and a sender on another.
struct Talk {
    bound: Vqp,
    port: u16,
    vqp: Vqp,
    out: Mr,
    into: Mr,
    gid: Gid,
}

impl Talk {
    fn new(here: &Session, there: &Session, gid: Gid, policy: Policy) -> Talk {
        let bound = there.create_vqp(VqpOptions::default()).unwrap();
        let port = bound.qbind(0).unwrap();
        let vqp = here.create_vqp(VqpOptions::default()).unwrap();
        let options = ConnectOptions { policy, uncached: false };
        vqp.qconnect_with(gid, port, options).unwrap();
        let (out, into) = (here.alloc(2 << 20, ALL).unwrap(), there.alloc(2 << 20, ALL).unwrap());
        Talk { bound, port, vqp, out, into, gid }
    }

    fn receive(&self, wr_id: u64, len: u32) {
        let sges = [self.into.sge(64, len)];
        let posted = self.bound.post_recv(&[RecvWr { wr_id, sges: &sges }]);
        posted.unwrap();
    }

    fn send(&self, wr_id: u64, len: u32) {
        let sges = [self.out.sge(0, len)];
        let posted = self.vqp.post_send(&[wr(wr_id, SendOp::Send, &sges)]);
        posted.unwrap();
    }

    /// A message of so many bytes, into a receive that is there before it or comes after it.
    fn carries(&self, len: u32, early: bool) {
        let data: Vec<u8> = (0..len).map(|at| ((at * 7 + len) >> 1) as u8).collect();
        self.out.write(0, &data).unwrap();
        self.into.write(0, &vec![0xee; len as usize + 128]).unwrap();
        if early {
            self.receive(1, len);
        }
        self.send(2, len);
        if !early {
            self.receive(1, len);
        }
        let sent = completion(&self.vqp);
        assert_eq!((sent.status, sent.wr_id), (WcStatus::Success, 2), "{len} bytes");
        let messages = self.bound.wait_msgs(WAIT).unwrap();
        let wc = messages[0].wc;
        assert_eq!((messages.len(), wc.status, wc.byte_len), (1, WcStatus::Success, len));
        let mut bytes = vec![0; data.len() + 128];
        self.into.read(0, &mut bytes).unwrap();
        let (data_there, around) =
            (&bytes[64..64 + data.len()], [&bytes[..64], &bytes[64 + data.len()..]]);
        assert!(data_there == data, "{len} bytes");
        assert!(around.concat().iter().all(|byte| *byte == 0xee), "{len} bytes");
    }

    /// The code of the reason why the sender's VQP failed. That is told ahead of the end of what it had sent, without
    /// which it cannot be connected anew.
    fn fails(&self) -> RefusalCode {
        let (begun, mut failed) = (std::time::Instant::now(), None);
        let mut ended = 0;
        loop {
            ended += self.vqp.poll_cq(&mut [Wc::default()]).unwrap();
            match self.vqp.failure() {
                Some(Error::Refused { code, text }) => {
                    assert!(!text.is_empty());
                    failed = Some(code);
                }
                Some(other) => panic!("{other}"),
                None => {}
            }
            match failed {
                Some(code) if ended == 1 => return code,
                _ => std::thread::yield_now(),
            }
            assert!(begun.elapsed() < WAIT.unwrap(), "it did not fail: {failed:?}, {ended}");
        }
    }

    /// Connected anew, the sender works.
    fn recovers(&self) {
        self.vqp.qconnect(self.gid, self.port).unwrap();
        self.carries(100, true);
    }
}

#[test]
fn messages_of_all_sizes_around_every_threshold() {
    // Default thresholds, and such that nothing, or little, is copied.
    for (number, (buffer, eager)) in
        [(16_640, 16_384), (512, 0), (512, 256)].into_iter().enumerate()
    {
        let (meta, node) = cluster(164 + number as u8, |config| {
            config.messages.recv_buffer_bytes = buffer;
            config.messages.eager_bytes_max = eager;
        });
        let (here, there) = (session_at(&node), session_at(&meta));
        let mut sizes = vec![0, 1, 2 << 10, (1 << 20) + 1];
        for threshold in [220, eager, buffer, 1_024, 4_096, 1 << 16] {
            sizes.extend((threshold.max(1) - 1)..=threshold + 1);
        }
        for policy in [Policy::Shared, Policy::Lite] {
            let talk = Talk::new(&here, &there, meta.gid, policy);
            for &len in &sizes {
                talk.carries(len, true);
                talk.carries(len, false);
            }
        }
    }
}

#[test]
fn a_message_that_cannot_be_taken_ends_its_sender_and_no_other() {
    let (meta, node) = cluster(167, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let talk = Talk::new(&here, &there, meta.gid, Policy::Shared);
    let other = Talk::new(&here, &there, meta.gid, Policy::Shared);
    // A receive too short: of a message that is copied, and of one that is read.
    for len in [1_000, 100_000] {
        talk.receive(1, len - 1);
        talk.send(2, len);
        let wc = talk.bound.wait_msgs(WAIT).unwrap()[0].wc;
        assert_eq!((wc.status, wc.wr_id), (WcStatus::LocLenErr, 1));
        assert_eq!(talk.fails(), RefusalCode::Overrun);
        other.carries(len, true);
        talk.recovers();
    }
    // A port that nobody has.
    let unbound = talk.port ^ 0x3fff;
    talk.vqp.qconnect(talk.gid, unbound).unwrap();
    talk.send(9, 8);
    assert_eq!(talk.fails(), RefusalCode::NoSuchPort);
    // An address that is no node's.
    let nowhere = Gid::from(std::net::IpAddr::from([127, 9, 9, 9]));
    let refused = talk.vqp.qconnect(nowhere, 0);
    let named = |text: &str| text.contains("no node 127.9.9.9 is registered");
    assert!(
        matches!(&refused, Err(Error::Refused { code: RefusalCode::NoSuchNode, text }) if named(text)),
        "as users type it: {refused:?}"
    );
    other.carries(10, false);
}

#[test]
fn a_sender_waits_for_a_receiver_that_is_slower_and_for_no_other() {
    let (meta, node) = cluster(192, |config| config.messages.backlog = 64);
    let (here, there) = (session_at(&node), session_at(&meta));
    let talk = Talk::new(&here, &there, meta.gid, Policy::Shared);
    let other = Talk::new(&here, &there, meta.gid, Policy::Shared);
    let waits = || node.thread.status().unwrap().core["halts"] == 1;
    let (mut sent, mut completed) = (0, 0);
    // One message at a time, with no receive for any of them.
    while sent == completed || !waits() {
        if sent == completed {
            talk.out.write(8 * sent, &sent.to_le_bytes()).unwrap();
            let sges = [talk.out.sge(8 * sent, 8)];
            talk.vqp.post_send(&[wr(sent, SendOp::Send, &sges)]).unwrap();
            sent += 1;
        }
        completed += talk.vqp.poll_cq(&mut [Wc::default()]).unwrap() as u64;
        assert!(sent < 64, "nobody told it to wait");
    }
    other.carries(8, true);
    for n in 0..sent {
        let sges = [talk.into.sge(8 * n, 8)];
        talk.bound.post_recv(&[RecvWr { wr_id: n, sges: &sges }]).unwrap();
    }
    let mut taken = 0;
    while taken < sent {
        for message in talk.bound.wait_msgs(WAIT).unwrap() {
            assert_eq!((message.wc.status, message.wc.wr_id), (WcStatus::Success, taken));
            let mut word = [0; 8];
            talk.into.read(8 * taken, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), taken);
            taken += 1;
        }
    }
    while completed < sent {
        assert_eq!(completion(&talk.vqp).status, WcStatus::Success);
        completed += 1;
    }
    // And it goes on.
    talk.carries(100, true);
    other.carries(100, false);
}

#[test]
fn nothing_lands_in_memory_that_was_deregistered_under_load() {
    let (meta, node) = cluster(168, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let source = here.alloc(BYTES, ALL).unwrap();
    source.write(0, &[0xbb; BYTES as usize]).unwrap();
    let access = elver::AccessFlags::LOCAL_WRITE.union(elver::AccessFlags::REMOTE_WRITE);
    for round in 0..5 {
        let mut bytes = vec![0u8; BYTES as usize];
        let start = bytes.as_mut_ptr();
        // SAFETY: the bytes live until the region is deregistered, and are not touched till then.
        let target = unsafe { there.register(start, BYTES, access) }.unwrap();
        let options = VqpOptions { max_send_wr: 64, ..VqpOptions::default() };
        let vqp = here.create_vqp(options).unwrap();
        vqp.qconnect(meta.gid, 0).unwrap();
        let remote = target.remote(0);
        let sges = [source.sge(0, BYTES as u32)];
        let post = |id| vqp.post_send(&[wr(id, SendOp::Write(remote), &sges)]);
        for id in 0..32 {
            post(id).unwrap();
        }
        assert_eq!(completion(&vqp).status, WcStatus::Success);
        // While the rest is on its way.
        target.deregister().unwrap();
        let written = bytes.iter().filter(|byte| **byte == 0xbb).count();
        assert!(written > 0, "nothing came in round {round}");
        bytes.fill(0xaa);
        // All that is left, and more, fails or has been done before.
        let mut next = 32;
        loop {
            match post(next) {
                Ok(()) => next += 1,
                Err(PostFailed { posted: 0, error: Error::QueueFull { .. } }) => {}
                Err(PostFailed { posted: 0, error: Error::NotConnected { .. } }) => break,
                Err(failed) => panic!("{failed}"),
            }
            vqp.poll_cq(&mut [Wc::default(); 8]).unwrap();
        }
        assert!(bytes.iter().all(|byte| *byte == 0xaa), "round {round}");
        // The sender's other connections are as good as ever.
        let other = there.alloc(64, ALL).unwrap();
        let vqp = here.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(meta.gid, 0).unwrap();
        succeeds(&vqp, wr(1, SendOp::Write(other.remote(0)), &[source.sge(0, 64)]));
    }
}

#[test]
fn more_who_spin_than_cores_all_get_on() {
    const READS: u64 = 5_000;
    let cores = std::thread::available_parallelism().unwrap().get();
    let (meta, node) = cluster(169, |config| {
        // So long that nobody sleeps, and on any machine.
        config.engine.spin_us = 10_000_000;
        config.engine.yield_cores = u32::MAX;
    });
    let rounds = || node.thread.status().unwrap().engine["rounds"];
    let (before, count) = (rounds(), 2 * cores + 2);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let options = elver::SessionOptions {
                    spin: std::time::Duration::from_secs(10),
                    ..elver::SessionOptions::default()
                };
                let session = Session::connect_with(Some(&node.path), options).unwrap();
                let mr = session.alloc(64, ALL).unwrap();
                let vqp = session.create_vqp(VqpOptions::default()).unwrap();
                vqp.qconnect(meta.gid, 0).unwrap();
                let local = session.create_vqp(VqpOptions::default()).unwrap();
                local.qconnect(node.gid, 0).unwrap();
                for id in 0..READS {
                    succeeds(&local, wr(id, SendOp::Read(mr.remote(0)), &[mr.sge(8, 8)]));
                }
            });
        }
    });
    // An engine that does not let others run turns some thousand times for each READ that it is given.
    let each = (rounds() - before) / (READS * count as u64);
    assert!(each < 100, "{each} rounds for a READ");
}

/// What the library sees itself it refuses at once, and nothing of it goes to the node: the VQP goes on,
/// and what stands before it is done.
#[test]
fn a_wr_that_cannot_be_is_refused_at_once() {
    let (meta, node) = cluster(198, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let target = there.alloc(64, ALL).unwrap();
    let read_only = here.alloc(64, AccessFlags::empty()).unwrap();
    let near = here.alloc(64, ALL).unwrap();
    let gone = here.alloc(64, ALL).unwrap();
    let of_gone = gone.sge(0, 8);
    drop(gone);
    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(meta.gid, 0).unwrap();
    let first = [near.sge(0, 8)];
    let good = wr(1, SendOp::Write(target.remote(0)), &first);
    let read = SendOp::Read(target.remote(0));
    let add = SendOp::FetchAdd { remote: target.remote(4), add: 1 };
    for (op, sge) in [
        (SendOp::Send, of_gone),
        (SendOp::Send, near.sge(60, 8)),
        (SendOp::Send, Sge { lkey: target.lkey() ^ near.lkey() ^ 1, ..near.sge(0, 8) }),
        (read, read_only.sge(0, 8)),
        (add, near.sge(0, 8)),
    ] {
        let failed = vqp.post_send(&[good, wr(2, op, &[sge]), good]).unwrap_err();
        assert_eq!(failed.posted, 1, "{op:?}");
        assert!(matches!(failed.error, Error::Post(_)), "{}", failed.error);
        let mut wcs = [Wc::default(); 4];
        assert_eq!(vqp.wait_cq(&mut wcs, WAIT).unwrap(), 1);
        assert_eq!((wcs[0].wr_id, wcs[0].status), (1, WcStatus::Success), "{op:?}");
    }
    let bound = here.create_vqp(VqpOptions::default()).unwrap();
    let failed = bound.post_recv(&[RecvWr { wr_id: 1, sges: &[read_only.sge(0, 8)] }]);
    assert!(matches!(failed.unwrap_err().error, Error::Post(_)));
}

/// A WR that the peer's memory refuses says why, and what stands behind it is not done.
#[test]
fn an_access_that_is_refused_says_why_and_stops_what_is_behind() {
    let (meta, node) = cluster(193, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let target = there.alloc(64, ALL).unwrap();
    let read_only = there.alloc(64, AccessFlags::REMOTE_READ).unwrap();
    let near = here.alloc(64, ALL).unwrap();
    near.write(0, &[7; 8]).unwrap();
    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    let sges = [near.sge(0, 8)];
    let unknown = elver::RemoteAddr { rkey: target.rkey() ^ 0x1000, ..target.remote(0) };
    for (remote, fault) in [
        (unknown, AccessFault::Key),
        (target.remote(57), AccessFault::Range),
        (read_only.remote(0), AccessFault::Right),
    ] {
        vqp.qconnect(meta.gid, 0).unwrap();
        let flag = wr(2, SendOp::Write(target.remote(0)), &sges);
        // The second one may be refused already when it is posted.
        match vqp.post_send(&[wr(1, SendOp::Write(remote), &sges), flag]) {
            Ok(()) | Err(PostFailed { posted: 1, .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let wc = completion(&vqp);
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RemAccessErr));
        assert_eq!(AccessFault::of(&wc), Some(fault));
        let wc = completion(&vqp);
        assert_eq!((wc.wr_id, wc.status, AccessFault::of(&wc)), (2, WcStatus::WrFlushErr, None));
        assert_eq!(target.read_u64(0).unwrap(), 0, "the flag was written");
    }
}

/// A SEND of a VQP that wants to know it completes when a receive has taken it, and not before; one that no
/// receive can take fails.
#[test]
fn a_confirmed_send_completes_when_a_receive_has_taken_it() {
    let (meta, node) = cluster(194, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let bound = there.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let into = there.alloc(8_192, ALL).unwrap();
    let near = here.alloc(8_192, ALL).unwrap();
    near.write(0, &[5; 8_192]).unwrap();
    let options = VqpOptions { confirm_sends: true, ..VqpOptions::default() };
    let vqp = here.create_vqp(options).unwrap();
    vqp.qconnect(meta.gid, port).unwrap();
    let post = |wr_id, len| vqp.post_send(&[wr(wr_id, SendOp::Send, &[near.sge(0, len)])]);
    for (wr_id, len) in [(1, 0), (2, 1), (3, 64), (4, 8_192)] {
        post(wr_id, len).unwrap();
        // A READ behind it is done before its turn to be told comes.
        let target = SendOp::Read(into.remote(0));
        vqp.post_send(&[wr(wr_id + 10, target, &[near.sge(0, 0)])]).unwrap();
        let shortly = Some(std::time::Duration::from_millis(20));
        let early = vqp.wait_cq(&mut [Wc::default()], shortly);
        assert!(matches!(early, Err(Error::TimedOut)), "{early:?}: nothing has taken it");
        bound.post_recv(&[RecvWr { wr_id, sges: &[into.sge(0, 8_192)] }]).unwrap();
        for wr_id in [wr_id, wr_id + 10] {
            let wc = completion(&vqp);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        let wc = bound.wait_msgs(WAIT).unwrap()[0].wc;
        assert_eq!((wc.wr_id, wc.byte_len, wc.status), (wr_id, len, WcStatus::Success));
    }
    let inline = SendWr { payload: Payload::Inline(&[1]), ..wr(5, SendOp::Send, &[]) };
    assert!(matches!(vqp.post_send(&[inline]).unwrap_err().error, Error::Post(_)));
    // Too short a receive, and a port that nobody has.
    bound.post_recv(&[RecvWr { wr_id: 6, sges: &[into.sge(0, 3)] }]).unwrap();
    post(6, 4).unwrap();
    assert_ne!(completion(&vqp).status, WcStatus::Success);
    vqp.qconnect(meta.gid, port ^ 0x3fff).unwrap();
    post(7, 4).unwrap();
    assert_ne!(completion(&vqp).status, WcStatus::Success);
    // The reason has come with it, and stays.
    for _ in 0..2 {
        let why = vqp.failure();
        assert!(
            matches!(why, Some(Error::Refused { code: RefusalCode::NoSuchPort, .. })),
            "{why:?}"
        );
    }
}
