//! Sessions that are opened with their first VQP.

use std::os::fd::AsFd;
use std::time::Duration;

use elver::{
    Destination, Error, Gid, Limits, RefusalCode, SendOp, Session, SessionOptions, Via, VqpOptions,
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
