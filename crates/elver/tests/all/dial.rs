//! Sessions that are opened with their first VQP.

use std::os::fd::AsFd;
use std::time::Duration;

use elver::{
    ConnectOptions, Destination, Error, Gid, Limits, Payload, RefusalCode, SendOp, SendWr, Session,
    SessionOptions, Via, VqpOptions, VqpState, Wc, WcStatus,
};
use elver_portal::{
    Answer, Command, Listener, Message, NodeEnd, Received, Request, Scratch, Socket, Welcome, memfd,
};

use crate::common::{ALL, PLACE, TestNode, WAIT, cluster, session_at, succeeds, wr};

fn dial(node: &TestNode, to: &Destination) -> Result<(elver::Vqp, elver::Connecting), Error> {
    Session::dial(Some(&node.path), SessionOptions::default(), to)
}

#[test]
fn a_session_comes_with_its_first_vqp() {
    let (_meta, node) = cluster(230, |_| {});
    // One that the node has not met.
    let third = PLACE.member(230, 3, |_| {});
    let there = session_at(&third);
    let remote = there.alloc(4096, ALL).unwrap();
    remote.write(0, b"other node").unwrap();
    let options = VqpOptions { max_send_wr: 3, ..VqpOptions::default() };
    let to = Destination { options, ..Destination::new(third.gid) };
    let (vqp, connecting) = dial(&node, &to).unwrap();
    let session = vqp.session().clone();
    // What is asked for meanwhile is not taken for the connect's end.
    let local = session.alloc(4096, ALL).unwrap();
    assert_eq!(connecting.wait(WAIT).unwrap(), Via::DcLookup);
    assert_eq!(connecting.poll().unwrap(), Some(Via::DcLookup), "the same each time");
    drop(connecting);
    succeeds(&vqp, wr(1, SendOp::Read(remote.remote(0)), &[local.sge(0, 10)]));
    let mut bytes = [0; 10];
    local.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"other node");
    // It was made as it was asked for, and is one like others.
    let read = wr(1, SendOp::Read(remote.remote(0)), &[]);
    let full = vqp.post_send(&[read; 4]).unwrap_err();
    assert!(matches!(full.error, Error::QueueFull { capacity: 3, .. }), "{full:?}");
    let other = session.create_vqp(VqpOptions::default()).unwrap();
    assert_ne!(other.id(), vqp.id());
    let held = || node.thread.status().unwrap().users.iter().map(|user| user.vqps).sum::<u32>();
    assert_eq!(held(), 2);
    drop((vqp, other, local));
    session.close().unwrap();
    assert_eq!(held(), 0);
}

/// Each had to wait for the connect's end, and the node for each: a turn more where both share a core.
#[test]
fn what_is_posted_while_a_vqp_is_dialled_goes_when_it_is_connected() {
    let (_meta, node) = cluster(238, |_| {});
    let third = PLACE.member(238, 3, |_| {});
    let there = session_at(&third);
    let remote = there.alloc(4096, ALL).unwrap();
    remote.write(0, b"other node").unwrap();
    let options = VqpOptions { max_send_wr: 2, ..VqpOptions::default() };
    let to = Destination { options, ..Destination::new(third.gid) };
    let (vqp, connecting) = dial(&node, &to).unwrap();
    let local = vqp.session().alloc(64, ALL).unwrap();
    let sges = [local.sge(0, 10)];
    let read = |id| wr(id, SendOp::Read(remote.remote(0)), &sges);
    vqp.post_send(&[read(1), read(2)]).unwrap();
    let full = vqp.post_send(&[read(3)]).unwrap_err();
    assert!(matches!(full.error, Error::QueueFull { capacity: 2, .. }), "{full:?}");
    assert_eq!(connecting.wait(WAIT).unwrap(), Via::DcLookup);
    let mut told = Vec::new();
    while told.len() < 2 {
        let mut wcs = [Wc::default(); 4];
        let count = vqp.wait_cq(&mut wcs, WAIT).unwrap();
        told.extend(wcs[..count].iter().map(|wc| (wc.wr_id, wc.status)));
    }
    assert_eq!(told, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let mut bytes = [0; 10];
    local.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"other node");
    // Nor is what was posted then counted twice, or left out.
    vqp.post_send(&[read(4), read(5)]).unwrap();
    assert!(vqp.post_send(&[read(6)]).is_err());
}

#[test]
fn what_is_posted_while_a_vqp_is_dialled_fails_with_the_connect() {
    let (meta, node) = cluster(239, |_| {});
    let there = session_at(&meta);
    let remote = there.alloc(64, ALL).unwrap();
    let write = SendWr {
        payload: Payload::Inline(b"early"),
        ..wr(1, SendOp::Write(remote.remote(0)), &[])
    };
    // It may hear that nobody is there before it has posted.
    let posted = (0..1_000).find_map(|_| {
        let (vqp, connecting) = dial(&node, &Destination::new(Gid([9; 16]))).unwrap();
        match vqp.post_send(&[write]) {
            Ok(()) => Some((vqp, connecting)),
            Err(failed) => {
                let idle =
                    matches!(failed.error, Error::NotConnected { state: VqpState::Idle, .. });
                assert!(idle, "{failed:?}");
                None
            }
        }
    });
    let (vqp, connecting) = posted.expect("once it is faster");
    let refused = connecting.wait(WAIT).unwrap_err();
    assert!(matches!(refused, Error::Refused { code: RefusalCode::NoSuchNode, .. }), "{refused:?}");
    let mut wcs = [Wc::default(); 4];
    assert_eq!(vqp.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (1, WcStatus::WrFlushErr));
    assert!(vqp.post_send(&[write]).is_err(), "it is connected to nobody");
    // A second connect may be refused and leave it where it was, so that nothing is posted before its end.
    let connecting = vqp.qconnect_start(meta.gid, 0, ConnectOptions::default()).unwrap();
    let early = vqp.post_send(&[write]).unwrap_err();
    assert!(
        matches!(early.error, Error::NotConnected { state: VqpState::Connecting, .. }),
        "{early:?}"
    );
    connecting.wait(WAIT).unwrap();
    succeeds(&vqp, write);
}

#[test]
fn what_a_greeting_asks_for_may_be_refused() {
    let (meta, node) = cluster(231, |config| config.quota.session_vqps = 1);
    let code = |error: Option<Error>| match error {
        Some(Error::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    // Longer than the node permits; and then nothing is connected, and nothing stays.
    let options = VqpOptions { max_send_wr: u32::MAX, ..VqpOptions::default() };
    let long = Destination { options, ..Destination::new(meta.gid) };
    assert_eq!(code(dial(&node, &long).err()), RefusalCode::OutOfRange);
    let nobody = Destination::new(Gid([9; 16]));
    let (vqp, connecting) = dial(&node, &nobody).unwrap();
    assert_eq!(code(connecting.wait(WAIT).err()), RefusalCode::NoSuchNode);
    // It counts as any other does.
    let second = vqp.session().create_vqp(VqpOptions::default());
    assert_eq!(code(second.err()), RefusalCode::Limit);
    // The VQP is as if it had been connected in vain by a call.
    vqp.qconnect(meta.gid, 0).unwrap();
    drop(vqp);
}

/// A node of minor version 2: it takes a greeting as far as it knows it.
fn older_node(listener: &Listener, gid: Gid) {
    let socket: Socket = loop {
        match listener.accept().unwrap() {
            Some(socket) => break socket,
            None => std::thread::yield_now(),
        }
    };
    socket.wait(WAIT).unwrap();
    let Received::Message(Message::Hello { layout, first: Some(_) }, None) =
        socket.receive(false).unwrap()
    else {
        panic!("no greeting")
    };
    let file = memfd::create("older", layout.bytes() as u64, memfd::Pages::Small).unwrap();
    let mut end = NodeEnd::map(&file, layout).unwrap();
    let limits = Limits {
        max_sge: 4,
        max_inline: 64,
        max_vqp_wr: 128,
        vqps: 1,
        mrs: 1,
        completions: 16,
        message_bytes: 1 << 20,
        alloc_bytes: 1 << 20,
    };
    let welcome = Welcome { layout, gid, limits, first: false };
    socket.send(&Message::Welcome(welcome), Some(file.as_fd())).unwrap();
    let mut scratch = Scratch::default();
    let mut connected = false;
    while !connected {
        let answer = match end.next_request(&mut scratch).unwrap() {
            Some(Request::Command { request, command: Command::CreateVqp(_) }) => {
                (request, Answer::Vqp(5))
            }
            Some(Request::Command { request, command: Command::Connect { vqp: 5, .. } }) => {
                connected = true;
                (request, Answer::Connected(Via::DcCached))
            }
            None => {
                std::thread::yield_now();
                continue;
            }
            other => panic!("{}", other.is_some()),
        };
        assert!(end.answer(answer.0, &answer.1).unwrap());
        if end.must_wake() {
            socket.wake().unwrap();
        }
    }
    // Until the process goes.
    while !matches!(socket.receive(false), Ok(Received::Closed) | Err(_)) {
        socket.wait(Some(Duration::from_secs(10))).unwrap();
    }
}

#[test]
fn an_older_node_is_asked_by_commands() {
    let path = std::env::temp_dir().join(format!("elver-older-{}.sock", std::process::id()));
    let listener = Listener::bind(&path).unwrap();
    let gid = Gid([7; 16]);
    let node = std::thread::spawn(move || older_node(&listener, gid));
    let to = Destination::new(gid);
    let dialled = Session::dial(Some(&path), SessionOptions::default(), &to);
    let (vqp, connecting) = dialled.unwrap();
    assert_eq!(connecting.wait(WAIT).unwrap(), Via::DcCached);
    assert_eq!(vqp.id(), 5);
    drop((vqp, connecting));
    node.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}
