//! Sessions of one node: memory, one-sided operations, errors, the end of either side.

use std::time::Instant;

use elver::{
    AccessFlags, Completed, Error, Payload, PostError, PostFailed, RefusalCode, SendFlags, SendOp,
    SendWr, Session, VqpOptions, VqpState, Wc, WcStatus,
};

use crate::common::{ALL, WAIT, alone, completion, run, session_at, succeeds, wr};

#[test]
fn two_sessions_read_write_and_count() {
    let node = alone(150);
    let (here, there) = (session_at(&node), session_at(&node));
    assert_eq!(here.gid(), node.gid);
    let (local, remote) = (here.alloc(8192, ALL).unwrap(), there.alloc(100, ALL).unwrap());
    assert_eq!(remote.len(), 100);
    remote.write(0, b"from there").unwrap();

    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    assert_eq!(vqp.info().unwrap().state, VqpState::Connected);
    succeeds(&vqp, wr(1, SendOp::Read(remote.remote(0)), &[local.sge(16, 10)]));
    let mut bytes = [0; 10];
    local.read(16, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from there");

    let inline = SendWr {
        wr_id: 2,
        op: SendOp::Write(remote.remote(40)),
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(b"in line"),
        dest: None,
    };
    succeeds(&vqp, inline);
    let mut bytes = [0; 7];
    remote.read(40, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in line");

    remote.write_u64(64, 5).unwrap();
    let add = SendOp::FetchAdd { remote: remote.remote(64), add: 3 };
    succeeds(&vqp, wr(3, add, &[local.sge(0, 8)]));
    let swap = SendOp::CompareSwap { remote: remote.remote(64), compare: 8, swap: 1 };
    succeeds(&vqp, wr(4, swap, &[local.sge(8, 8)]));
    assert_eq!((local.read_u64(0).unwrap(), local.read_u64(8).unwrap()), (5, 8));
    assert_eq!(remote.read_u64(64).unwrap(), 1);
}

#[test]
fn batches_complete_in_order_and_many_at_once() {
    const COUNT: u64 = 5_000;
    let node = alone(151);
    let session = session_at(&node);
    let mr = session.alloc(1 << 16, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions { max_send_wr: 64, ..VqpOptions::default() }).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    let sges = [mr.sge(0, 8)];
    let (mut posted, mut completed) = (0, 0);
    let mut wcs = [Wc::default(); 32];
    while completed < COUNT {
        // Every fourth is signalled, and ends the three before it.
        let wrs: Vec<_> = (posted..COUNT.min(posted + 16))
            .map(|id| {
                let read = wr(id, SendOp::Read(mr.remote(8 + id % 1000 * 8)), &sges);
                let signalled = id % 4 == 3 || id == COUNT - 1;
                let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendWr { flags, ..read }
            })
            .collect();
        match vqp.post_send(&wrs) {
            Ok(()) => posted += wrs.len() as u64,
            Err(PostFailed { posted: done, error: Error::QueueFull { capacity: 64, .. } }) => {
                posted += done as u64;
            }
            Err(failed) => panic!("{failed}"),
        }
        let count = if posted - completed >= 48 || posted == COUNT {
            vqp.wait_cq(&mut wcs, WAIT).unwrap()
        } else {
            vqp.poll_cq(&mut wcs).unwrap()
        };
        for wc in &wcs[..count] {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.wr_id, COUNT.min(completed + 4) - 1);
            completed = wc.wr_id + 1;
        }
    }
}

#[test]
fn registered_memory_is_as_good_but_for_atomics() {
    let node = alone(152);
    let session = session_at(&node);
    let mut bytes = vec![0u8; 10_000];
    let start = bytes.as_mut_ptr();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    // SAFETY: the bytes live until the region is deregistered, and are touched through `start`.
    let own = unsafe { session.register(start, 10_000, access) }.unwrap();
    let mr = session.alloc(10_000, ALL).unwrap();
    mr.write(0, &[7; 9_000]).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    succeeds(&vqp, wr(1, SendOp::Read(mr.remote(0)), &[own.sge(500, 9_000)]));
    succeeds(&vqp, wr(2, SendOp::Read(own.remote(8_000)), &[mr.sge(9_500, 500)]));
    let mut end = [0; 500];
    mr.read(9_500, &mut end).unwrap();
    assert_eq!(end, [7; 500]);

    // SAFETY: it is refused, and nothing is registered.
    let refused = unsafe { session.register(start, 10_000, ALL) };
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let nowhere = std::ptr::without_provenance_mut(4096);
    // SAFETY: as above.
    let refused = unsafe { session.register(nowhere, 10, access) };
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    own.deregister().unwrap();
    assert_eq!(bytes[500..9_500], [7; 9_000]);
}

#[test]
fn what_cannot_be_posted_is_told_at_once() {
    let node = alone(153);
    let session = session_at(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let sges = [mr.sge(0, 8); 5];
    let read = |sges| wr(1, SendOp::Read(mr.remote(0)), sges);
    let post = |wr| match vqp.post_send(&[wr]) {
        Err(PostFailed { posted: 0, error }) => error,
        other => panic!("{other:?}"),
    };
    let idle = Error::NotConnected { vqp: vqp.id(), state: VqpState::Idle }.to_string();
    assert_eq!(post(read(&sges[..1])).to_string(), idle);
    let verbs = |error| match error {
        Error::Post(error) => error,
        other => panic!("{other:?}"),
    };
    vqp.qconnect(node.gid, 0).unwrap();
    assert_eq!(verbs(post(read(&sges))), PostError::TooManySges { given: 5, max: 4 });
    let add = SendOp::FetchAdd { remote: mr.remote(0), add: 1 };
    assert_eq!(verbs(post(wr(1, add, &sges[..2]))), PostError::AtomicLength { given: 16 });
    assert!(matches!(post(wr(1, SendOp::LocalInv(1), &[])), Error::Opcode { .. }));
    let inline = SendWr { payload: Payload::Inline(&[0; 400]), ..wr(1, SendOp::Send, &[]) };
    assert_eq!(verbs(post(inline)), PostError::InlineTooLong { given: 400, max: 220 });
    succeeds(&vqp, read(&sges[..1]));
}

#[test]
fn a_wrong_key_fails_one_vqp_and_no_other() {
    let node = alone(154);
    let session = session_at(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqps: Vec<_> = (0..8)
        .map(|_| {
            let vqp = session.create_vqp(VqpOptions::default()).unwrap();
            vqp.qconnect(node.gid, 0).unwrap();
            vqp
        })
        .collect();
    let wrong = elver::RemoteAddr { rkey: mr.rkey() ^ 0x5500, ..mr.remote(0) };
    let sges = [mr.sge(0, 8)];
    let wc = run(&vqps[0], wr(1, SendOp::Read(wrong), &sges));
    assert_eq!((wc.status, wc.wr_id), (WcStatus::RemAccessErr, 1));
    let refused = vqps[0].post_send(&[wr(2, SendOp::Read(mr.remote(0)), &sges)]);
    let Err(PostFailed { posted: 0, error }) = refused else { panic!("{refused:?}") };
    assert!(matches!(error, Error::NotConnected { state: VqpState::Error, .. }), "{error:?}");
    // The completion's error names the causes that there can be.
    let text = wc.succeeded().unwrap_err().to_string();
    assert!(text.contains("WR 1") && text.contains("rkey"), "{text}");
    for vqp in &vqps[1..] {
        succeeds(vqp, wr(3, SendOp::Read(mr.remote(0)), &sges));
    }
    vqps[0].qconnect(node.gid, 0).unwrap();
    succeeds(&vqps[0], wr(4, SendOp::Read(mr.remote(0)), &sges));
}

#[test]
fn a_region_is_closed_to_peers_once_it_is_deregistered() {
    let node = alone(155);
    let (session, other) = (session_at(&node), session_at(&node));
    let (mr, gone) = (session.alloc(4096, ALL).unwrap(), other.alloc(4096, ALL).unwrap());
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    let (sges, remote) = ([mr.sge(0, 8)], gone.remote(0));
    succeeds(&vqp, wr(1, SendOp::Read(remote), &sges));
    gone.deregister().unwrap();
    let wc = run(&vqp, wr(2, SendOp::Read(remote), &sges));
    assert_eq!(wc.status, WcStatus::RemAccessErr);
}

#[test]
fn small_regions_share_an_arena_and_it_is_used_again() {
    let node = alone(197);
    let (session, other) = (session_at(&node), session_at(&node));
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    let near = session.alloc(4096, ALL).unwrap();
    let mut first = Vec::new();
    // More than the arena holds: the last ones have files of their own.
    let mut regions: Vec<_> = (0..200).map(|_| other.alloc(500, ALL).unwrap()).collect();
    for (index, region) in regions.iter().enumerate() {
        let mut bytes = [1; 500];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 500]);
        assert_eq!(region.addr() % 64, 0);
        region.write(0, &[index as u8; 500]).unwrap();
        first.push(region.addr());
    }
    for (index, region) in regions.iter().enumerate() {
        succeeds(&vqp, wr(1, SendOp::Read(region.remote(0)), &[near.sge(0, 500)]));
        let mut bytes = [0; 500];
        near.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [index as u8; 500]);
    }
    // Nobody else's bytes are in reach, though they stand beside these.
    let beyond = run(&vqp, wr(2, SendOp::Read(regions[0].remote(0)), &[near.sge(0, 501)]));
    assert_eq!(beyond.status, WcStatus::RemAccessErr);

    // A place is free again once nobody can reach it any more, and what was there is gone.
    regions.remove(0).deregister().unwrap();
    let again = other.alloc(500, ALL).unwrap();
    assert_eq!(again.addr(), first[0]);
    let mut bytes = [1; 500];
    again.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 500]);
}

#[test]
fn refusals_say_why() {
    let node = alone(156);
    let session = session_at(&node);
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let other = session.create_vqp(VqpOptions::default()).unwrap();
    let port = vqp.qbind(0).unwrap();
    let code = |result: Result<u16, Error>| match result {
        Err(Error::Refused { code, text }) => {
            assert!(!text.is_empty());
            code
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(code(other.qbind(port)), RefusalCode::PortInUse);
    let too_many = VqpOptions { max_send_wr: u32::MAX, ..VqpOptions::default() };
    let refused = session.create_vqp(too_many).map(|_| 0);
    assert_eq!(code(refused), RefusalCode::OutOfRange);
}

#[test]
fn without_a_node_the_error_says_what_to_start() {
    let error = Session::connect("/nonexistent/elverd.sock").unwrap_err();
    assert!(matches!(error, Error::NoDaemon { .. }));
    let text = error.to_string();
    assert!(text.contains("/nonexistent/elverd.sock") && text.contains("elverd`"), "{text}");
}

#[test]
fn a_node_that_ends_is_noticed_within_a_second() {
    let node = alone(157);
    let (waits, polls) = (session_at(&node), session_at(&node));
    let vqp = polls.create_vqp(VqpOptions::default()).unwrap();
    let path = node.path.clone();
    let ended = std::thread::spawn(move || drop(node));
    let sleeper = waits.create_vqp(VqpOptions::default());
    // Either it was created before the end, or that it ended is told here.
    if let Ok(sleeper) = sleeper {
        let waited = sleeper.wait_cq(&mut [Wc::default()], WAIT);
        assert!(matches!(waited, Err(Error::NodeGone)), "{waited:?}");
    }
    ended.join().unwrap();
    let error = loop {
        match vqp.poll_cq(&mut [Wc::default()]) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NodeGone), "{error}");
    assert!(matches!(Session::connect(path), Err(Error::NoDaemon { .. })));
}

#[test]
fn a_session_that_ends_leaves_nothing() {
    let node = alone(158);
    for _ in 0..3 {
        let session = session_at(&node);
        let mr = session.alloc(1 << 20, ALL).unwrap();
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(node.gid, 0).unwrap();
        let sges = [mr.sge(0, 1 << 20)];
        for id in 0..10 {
            let write = wr(id, SendOp::Write(mr.remote(0)), &sges);
            vqp.post_send(&[write]).unwrap();
        }
        completion(&vqp);
    }
    let session = session_at(&node);
    session.close().unwrap();
    let begun = Instant::now();
    loop {
        let status = node.thread.status().unwrap();
        if status.sessions.is_empty() && status.vqps.is_empty() {
            break;
        }
        assert!(begun.elapsed().as_secs() < 30, "{status:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_child_cannot_use_its_parent_s_session() {
    let node = alone(159);
    let session = session_at(&node);
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    // SAFETY: the child makes no call that needs more than this thread, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = vqp.poll_cq(&mut [Wc::default()]);
        let code = i32::from(!matches!(refused, Err(Error::Forked)));
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0));
    assert_eq!(vqp.poll_cq(&mut [Wc::default()]).unwrap(), 0);
}
