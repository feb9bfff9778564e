//! READs and WRITEs that a process does itself, beside the same through the node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use elver::{
    AccessFlags, Mr, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Session, Vqp,
    VqpOptions, Wc, WcStatus,
};
use elver_testkit::{Launch, PATIENCE, Role, copy, is_root, role};

use crate::common::{ALL, PLACE, TestNode, WAIT, completion, run, session_at, succeeds, wr};

/// A node that lets processes reach memory themselves, or not, and waits long for who stands still inside.
fn node(group: u8, is_direct: bool) -> TestNode {
    let mut config = PLACE.alone(group);
    config.direct.enabled = is_direct;
    config.direct.patience_ms = PATIENCE.as_millis() as u64;
    TestNode::start(config)
}

fn connected(session: &Session, options: VqpOptions) -> Vqp {
    let vqp = session.create_vqp(options).unwrap();
    vqp.qconnect(session.gid(), 0).unwrap();
    vqp
}

/// WRITEs and READs that processes did themselves, by their own account.
fn counts(node: &TestNode) -> (u64, u64) {
    let status = node.thread.status().unwrap();
    (status.engine["direct_writes"], status.engine["direct_reads"])
}

/// Writes until it is done directly.
fn warm(node: &TestNode, vqp: &Vqp, remote: RemoteAddr) {
    let (before, began) = (counts(node).0, Instant::now());
    let payload = Payload::Inline(&[0; 8]);
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Write(remote),
        flags: SendFlags::SIGNALED,
        payload,
        dest: None,
    };
    while counts(node).0 == before {
        assert!(began.elapsed() < PATIENCE, "nothing goes directly");
        succeeds(vqp, wr);
    }
}

#[test]
fn what_the_node_lets_a_process_it_does_itself() {
    let node = node(100, true);
    let (here, there) = (session_at(&node), session_at(&node));
    let (local, remote) = (here.alloc(4096, ALL).unwrap(), there.alloc_apart(8192, ALL).unwrap());
    let vqp = connected(&here, VqpOptions::default());
    warm(&node, &vqp, remote.remote(0));
    let before = counts(&node);
    local.write(100, b"one and two").unwrap();
    let pieces = [local.sge(100, 3), local.sge(0, 0), local.sge(107, 4)];
    succeeds(&vqp, wr(1, SendOp::Write(remote.remote(8_185)), &pieces));
    let mut bytes = [0; 7];
    remote.read(8_185, &mut bytes).unwrap();
    assert_eq!(&bytes, b"one two");
    let wc = run(&vqp, wr(2, SendOp::Read(remote.remote(8_185)), &[local.sge(9, 7)]));
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.qp_num), (2, WcStatus::Success, 7, vqp.id()));
    local.read(9, &mut bytes).unwrap();
    assert_eq!(&bytes, b"one two");
    assert_eq!(counts(&node), (before.0 + 1, before.1 + 1));
    // Atomics are the node's.
    remote.write_u64(16, 40).unwrap();
    let add = SendOp::FetchAdd { remote: remote.remote(16), add: 2 };
    succeeds(&vqp, wr(3, add, &[local.sge(0, 8)]));
    assert_eq!((local.read_u64(0).unwrap(), remote.read_u64(16).unwrap()), (40, 42));
    assert_eq!(counts(&node), (before.0 + 1, before.1 + 1));

    let status = node.thread.status().unwrap();
    let way = |id: u32| status.vqps.iter().find(|one| one.vqp == id).unwrap().way.clone();
    assert_eq!(way(vqp.id()), "direct");
    let sessions = status.sessions.iter().filter(|one| one.regions_reached == 1);
    assert_eq!(sessions.map(|one| one.direct_reads).sum::<u64>(), before.1 + 1);
    // In the session's arena stand its rings as well, so to speak: that nobody else gets.
    let small = there.alloc(64, ALL).unwrap();
    succeeds(&vqp, wr(4, SendOp::Write(small.remote(0)), &[local.sge(0, 8)]));
    succeeds(&vqp, wr(5, SendOp::Write(small.remote(0)), &[local.sge(0, 8)]));
    assert_eq!(counts(&node).0, before.0 + 1);
}

/// To ask for a region takes both ends longer than a READ does, and who reads once would wait for it.
#[test]
fn a_first_wr_asks_for_nothing() {
    let node = node(111, true);
    let (here, there) = (session_at(&node), session_at(&node));
    let (local, remote) = (here.alloc(64, ALL).unwrap(), there.alloc_apart(4096, ALL).unwrap());
    let read = |id| wr(id, SendOp::Read(remote.remote(0)), &[]);
    let asked = || {
        let status = node.thread.status().unwrap();
        let reached = status.sessions.iter().map(|one| one.regions_reached).sum::<u32>();
        (status.engine["commands"], reached)
    };
    let mut vqp = connected(&here, VqpOptions::default());
    // Nor does one that is connected anew, or another one.
    for connects in 0..3 {
        let (commands, reached) = asked();
        assert_eq!(reached, connects.min(1));
        let sges = [local.sge(0, 8)];
        let read = SendWr { payload: Payload::Sges(&sges), ..read(1) };
        succeeds(&vqp, read);
        assert_eq!(asked(), (commands, reached), "connection {connects}");
        // The next one does, once.
        for _ in 0..4 {
            succeeds(&vqp, read);
        }
        assert_eq!(asked(), (commands + 1, 1), "connection {connects}");
        if connects == 0 {
            vqp.qconnect(here.gid(), 0).unwrap();
        } else {
            // Before what is asked for the next one, and is answered.
            drop(vqp);
            vqp = connected(&here, VqpOptions::default());
        }
    }
    assert!(counts(&node).1 >= 9, "they go directly then");
}

#[test]
fn a_node_that_is_told_not_to_lets_nobody() {
    let node = node(101, false);
    let session = session_at(&node);
    let mr = session.alloc_apart(4096, ALL).unwrap();
    let vqp = connected(&session, VqpOptions::default());
    for id in 0..100 {
        succeeds(&vqp, wr(id, SendOp::Write(mr.remote(0)), &[mr.sge(64, 8)]));
    }
    assert_eq!(counts(&node), (0, 0));
    assert!(node.thread.status().unwrap().vqps.iter().all(|vqp| vqp.way == "engine"));
}

/// A generator of numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What came of a WR: number, status, operation, bytes.
type Came = (u64, WcStatus, elver::WcOpcode, u32);

/// Does what `seed` says until something fails; what was told of it, and what both memories hold then.
fn do_things(node: &TestNode, seed: u64, is_direct: bool) -> (Vec<Came>, Vec<u8>, Vec<u8>) {
    const LEN: u64 = 512;
    const LAST: u64 = 200;
    let (here, there) = (session_at(node), session_at(node));
    let local = here.alloc(LEN, ALL).unwrap();
    let only_read = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let remotes =
        [there.alloc_apart(LEN, ALL), there.alloc_apart(LEN, only_read)].map(Result::unwrap);
    for (at, mr) in [&local, &remotes[0], &remotes[1]].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..LEN).map(|n| (n * 7 + at as u64) as u8).collect();
        mr.write(0, &bytes).unwrap();
    }
    let vqp = connected(&here, VqpOptions { max_send_wr: 8, ..VqpOptions::default() });
    if is_direct {
        let before = counts(node).1;
        let began = Instant::now();
        for mr in &remotes {
            let reached = |node: &TestNode| {
                node.thread.status().unwrap().sessions.iter().map(|one| one.regions_reached).max()
            };
            let before = reached(node).unwrap_or(0);
            while reached(node).unwrap_or(0) == before {
                assert!(began.elapsed() < PATIENCE, "nothing goes directly");
                succeeds(&vqp, wr(0, SendOp::Read(mr.remote(0)), &[local.sge(500, 1)]));
            }
        }
        while counts(node).1 == before {
            succeeds(&vqp, wr(0, SendOp::Read(remotes[0].remote(0)), &[local.sge(500, 1)]));
        }
        local.write(500, &[0; 1]).unwrap();
    } else {
        local.write(500, &[0; 1]).unwrap();
    }
    let mut numbers = Numbers(seed);
    let (mut came, mut posted) = (Vec::new(), 0_u64);
    let mut wcs = [Wc::default(); 16];
    let take = |came: &mut Vec<Came>, wcs: &[Wc]| {
        came.extend(wcs.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)));
    };
    for id in 1..=LAST {
        let mr = &remotes[usize::from(numbers.below(5) == 0)];
        // Once in a while beyond the end, with a key that is wrong, or without the right.
        let len = numbers.below(60) as u32 + 1;
        let wild = numbers.below(250) == 0;
        let at = if wild { LEN - 8 } else { numbers.below(LEN - 60) };
        let mut remote = mr.remote(at);
        if numbers.below(400) == 0 {
            remote.rkey ^= 0x5a00;
        }
        let from = numbers.below(LEN - 120);
        let sges = [local.sge(from, len / 2), local.sge(from + 60, len - len / 2)];
        let bytes: Vec<u8> = (0..len).map(|n| (id + u64::from(n)) as u8).collect();
        let is_read = numbers.below(3) == 0 || mr.rkey() == remotes[1].rkey() && !wild;
        let (op, payload) = match (is_read, numbers.below(4)) {
            (true, _) => (SendOp::Read(remote), Payload::Sges(&sges[..])),
            (false, 0) => (SendOp::Write(remote), Payload::Inline(&bytes[..])),
            (false, _) => (SendOp::Write(remote), Payload::Sges(&sges[..])),
        };
        let flags = if numbers.below(3) == 0 || id % 7 == 0 || id == LAST {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let wr = SendWr { wr_id: id, op, flags, payload, dest: None };
        let result = vqp.post_send(&[wr]);
        match result {
            Ok(()) => posted += 1,
            Err(failed) => {
                assert!(matches!(failed.error, elver::Error::NotConnected { .. }), "{failed}");
                break;
            }
        }
        if flags == SendFlags::SIGNALED {
            // So that what is refused is told before the next one is posted, either way.
            let count = vqp.wait_cq(&mut wcs, WAIT).unwrap();
            take(&mut came, &wcs[..count]);
            if wcs[..count].iter().any(|wc| wc.status != WcStatus::Success) {
                break;
            }
        }
    }
    assert!(posted > 0);
    while let Ok(count @ 1..) = vqp.poll_cq(&mut wcs) {
        take(&mut came, &wcs[..count]);
    }
    // One that failed took those behind it along.
    if let Some(failed) = came.iter().position(|one| one.1 != WcStatus::Success) {
        came.truncate(failed + 1);
    }
    let read = |mr: &Mr| {
        let mut bytes = vec![0; LEN as usize];
        mr.read(0, &mut bytes).unwrap();
        bytes
    };
    (came, read(&local), read(&remotes[0]))
}

#[test]
fn both_ways_do_and_refuse_the_same() {
    let (direct, engine) = (node(102, true), node(103, false));
    let mut refused = 0;
    for seed in 0..40 {
        let (one, other) = (do_things(&direct, seed, true), do_things(&engine, seed, false));
        assert_eq!(one.0, other.0, "seed {seed}");
        assert!(one == other, "seed {seed}: the memories differ");
        refused += usize::from(one.0.iter().any(|came| came.1 == WcStatus::RemAccessErr));
    }
    assert!((10..=35).contains(&refused), "{refused} ended by a refusal");
    let (writes, reads) = counts(&direct);
    assert!(writes > 500 && reads > 300, "{writes} {reads}");
}

#[test]
fn queues_are_as_long_as_they_are_both_ways() {
    for (group, is_direct) in [(104, true), (105, false)] {
        let node = node(group, is_direct);
        let session = session_at(&node);
        let mr = session.alloc_apart(4096, ALL).unwrap();
        let vqp = connected(&session, VqpOptions { max_send_wr: 16, ..VqpOptions::default() });
        if is_direct {
            warm(&node, &vqp, mr.remote(0));
        }
        let unsignalled =
            SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Write(mr.remote(0)), &[]) };
        let sges = [mr.sge(64, 8)];
        let unsignalled = SendWr { payload: Payload::Sges(&sges), ..unsignalled };
        for _ in 0..16 {
            vqp.post_send(&[unsignalled]).unwrap();
        }
        let full = vqp.post_send(&[unsignalled]).unwrap_err();
        assert!(matches!(
            full.error,
            elver::Error::QueueFull { capacity: 16, unsignalled: 16, .. }
        ));
        let vqp = connected(&session, VqpOptions { max_send_wr: 16, ..VqpOptions::default() });
        if is_direct {
            warm(&node, &vqp, mr.remote(0));
        }
        // Of those that are signalled the queue is full too, until they are taken.
        for id in 0..16 {
            vqp.post_send(&[wr(id, SendOp::Write(mr.remote(0)), &sges)]).unwrap();
        }
        let full = vqp.post_send(&[unsignalled]).unwrap_err();
        assert!(matches!(full.error, elver::Error::QueueFull { capacity: 16, unsignalled: 0, .. }));
        for id in 0..16 {
            assert_eq!(completion(&vqp).wr_id, id);
        }
        vqp.post_send(&[unsignalled]).unwrap();
        let before = counts(&node);
        assert_eq!(before.0 > 0, is_direct);
    }
}

/// What is written and then told by a message stands there when that comes, and what was told before a WRITE was sent
/// before it.
#[test]
fn messages_and_direct_writes_keep_their_order() {
    const ROUNDS: u64 = 3_000;
    let node = node(106, true);
    let (path, gid) = (node.path.clone(), node.gid);
    let (tell, told) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        let session = Session::connect(path).unwrap();
        let (mr, inbox) = (session.alloc_apart(64, ALL).unwrap(), session.alloc(64, ALL).unwrap());
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        let port = vqp.qbind(0).unwrap();
        for id in 0..8 {
            vqp.post_recv(&[RecvWr { wr_id: id, sges: &[inbox.sge(id * 8, 8)] }]).unwrap();
        }
        tell.send((port, mr.remote(0))).unwrap();
        let mut seen = 0;
        while seen < ROUNDS {
            for message in vqp.wait_msgs(WAIT).unwrap() {
                seen += 1;
                let id = message.wc.wr_id;
                assert_eq!(inbox.read_u64(id * 8).unwrap(), seen);
                let written = mr.read_u64(0).unwrap();
                assert!(written >= seen, "{seen} was told, and {written} is written");
                vqp.post_recv(&[RecvWr { wr_id: id, sges: &[inbox.sge(id * 8, 8)] }]).unwrap();
            }
        }
        // Not before the last WRITE has been looked at.
        mr.deregister().unwrap();
    });
    let (port, remote) = told.recv().unwrap();
    let session = session_at(&node);
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(gid, port).unwrap();
    let mut wcs = [Wc::default(); 64];
    let mut outstanding = 0;
    for round in 1..=ROUNDS {
        let bytes = round.to_ne_bytes();
        let inline = |wr_id, op| SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&bytes),
            dest: None,
        };
        // Now and then the WRITE finds a message on its way, and goes behind it.
        vqp.post_send(&[inline(1, SendOp::Write(remote)), inline(2, SendOp::Send)]).unwrap();
        outstanding += 2;
        while outstanding > if round % 3 == 0 { 0 } else { 4 } {
            let count = vqp.wait_cq(&mut wcs, WAIT).unwrap();
            assert!(wcs[..count].iter().all(|wc| wc.status == WcStatus::Success));
            outstanding -= count;
        }
    }
    while outstanding > 0 {
        outstanding -= vqp.wait_cq(&mut wcs, WAIT).unwrap();
    }
    receiver.join().unwrap();
    let (writes, _) = counts(&node);
    assert!((100..ROUNDS).contains(&writes), "{writes} of {ROUNDS} went directly");
}

/// Writes to a region without a pause, until it is refused or told to end; how many WRITEs there were.
fn write_on(path: &std::path::Path, remote: RemoteAddr, written: &AtomicU64, ends: &AtomicBool) {
    let session = Session::connect(path).unwrap();
    let local = session.alloc(4096, ALL).unwrap();
    let vqp = connected(&session, VqpOptions::default());
    let mut count = 0_u64;
    while !ends.load(Ordering::Relaxed) {
        count += 1;
        local.write(0, &[count as u8; 1024]).unwrap();
        let wc = run(&vqp, wr(count, SendOp::Write(remote), &[local.sge(0, 1024)]));
        if wc.status != WcStatus::Success {
            assert_eq!(wc.status, WcStatus::RemAccessErr);
            return;
        }
        written.store(count, Ordering::Relaxed);
    }
}

/// Ends who writes on, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_written_once_a_deregistration_has_returned() {
    let node = node(107, true);
    let session = session_at(&node);
    for round in 0..12 {
        let shared = session.alloc_shared(4096, ALL).unwrap();
        // It keeps the memory, and nobody else has its key.
        let kept = session.attach(&shared.share().unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
        let (written, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (path, remote) = (&node.path, shared.remote(0));
            let (writes, told) = (&written, &ends);
            scope.spawn(move || write_on(path, remote, writes, told));
            let _ends = Ends(&ends);
            let (before, began) = (counts(&node).0, Instant::now());
            while counts(&node).0 < before + 50 * (round % 3 + 1) {
                assert!(began.elapsed() < PATIENCE, "nothing goes directly");
            }
            shared.deregister().unwrap();
            let (mut then, mut later) = ([0; 1024], [0; 1024]);
            kept.read(0, &mut then).unwrap();
            assert!(then.iter().all(|byte| *byte == then[0]), "a WRITE was cut off");
            for _ in 0..2_000 {
                kept.read(0, &mut later).unwrap();
                assert_eq!(then, later);
            }
        });
        assert!(written.load(Ordering::Relaxed) > 0);
    }
    let status = node.thread.status().unwrap();
    assert_eq!(status.engine["direct_stuck"], 0);
}

/// Not a test of its own: writes to a region until it is killed or refused.
#[test]
fn process_that_writes_on() {
    let Some(Role { socket, knows }) = role() else { return };
    let (addr, rkey) = knows.split_once(' ').unwrap();
    let remote = RemoteAddr { addr: addr.parse().unwrap(), rkey: rkey.parse().unwrap() };
    write_on(&socket, remote, &AtomicU64::new(0), &AtomicBool::new(false));
}

#[test]
fn a_process_that_is_killed_keeps_nobody_waiting() {
    let node = node(108, true);
    let session = session_at(&node);
    for _ in 0..8 {
        let mr = session.alloc_apart(4096, ALL).unwrap();
        let (RemoteAddr { addr, rkey }, before) = (mr.remote(0), counts(&node).0);
        let launch = Launch::new("direct::process_that_writes_on", &node.path);
        let writer = launch.knows(format!("{addr} {rkey}")).start();
        let began = Instant::now();
        while counts(&node).0 < before + 100 {
            assert!(began.elapsed() < PATIENCE, "nothing goes directly");
        }
        writer.kill();
        let began = Instant::now();
        mr.deregister().unwrap();
        // The lease, and no patience for the dead.
        assert!(2 * began.elapsed() < PATIENCE);
    }
    assert_eq!(node.thread.status().unwrap().engine["direct_stuck"], 0);
}

#[test]
fn another_user_gets_no_file() {
    if !is_root() {
        return println!("skipped: only root can run processes of other users");
    }
    let node = node(109, true);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&node.path, mode).unwrap();
    let program = std::env::temp_dir().join(format!("elver-direct-{}", std::process::id()));
    copy(&std::env::current_exe().unwrap(), &program);
    let session = session_at(&node);
    let mr = session.alloc_apart(4096, ALL).unwrap();
    let RemoteAddr { addr, rkey } = mr.remote(0);
    let launch = Launch::new("direct::process_that_writes_on", &node.path).program(&program);
    let writer = launch.user(65_534).knows(format!("{addr} {rkey}")).start();
    // It has the key, and writes through the node.
    let began = Instant::now();
    let mut seen = 0;
    while seen < 20 {
        let before = mr.read_u64(0).unwrap();
        while mr.read_u64(0).unwrap() == before {
            assert!(began.elapsed() < PATIENCE, "it writes nothing");
        }
        seen += 1;
    }
    let status = node.thread.status().unwrap();
    assert_eq!(status.engine["direct_writes"], 0);
    assert!(status.sessions.iter().all(|one| one.regions_reached == 0));
    writer.kill();
    let _ = std::fs::remove_file(&program);
}

#[test]
fn who_waits_for_the_descriptor_is_woken_all_the_same() {
    let node = node(110, true);
    let session = session_at(&node);
    let mr = session.alloc_apart(4096, ALL).unwrap();
    let vqp = connected(&session, VqpOptions::default());
    warm(&node, &vqp, mr.remote(0));
    let sges = [mr.sge(64, 8)];
    let wr = wr(7, SendOp::Write(mr.remote(0)), &sges);
    // One that is done and not taken: there is something.
    vqp.post_send(&[wr]).unwrap();
    assert!(!session.arm().unwrap());
    assert_eq!(completion(&vqp).wr_id, 7);
    while !session.arm().unwrap() {
        session.poll_ready().unwrap();
    }
    let before = counts(&node);
    vqp.post_send(&[wr]).unwrap();
    assert_eq!(counts(&node), before, "the node does it, which wakes who waits");
    let mut fds = [rustix::event::PollFd::new(&session, rustix::event::PollFlags::IN)];
    let patience = rustix::time::Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1));
    session.disarm().unwrap();
    assert_eq!(completion(&vqp).wr_id, 7);
}
