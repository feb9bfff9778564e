//! Sessions that end with files unread, at either end.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use elver_portal::{Answer, ClientEnd, Command, Layout, Message, Received, Reply, Scratch, Socket};
use elver_verbs::AccessFlags;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_linger;
use rustix::time::Timespec;

use crate::clock::now;
use crate::engine::Engine;
use crate::engine::sessions::GREETINGS_MAX;
use crate::engine::sessions::ends::End;
use crate::engine::tests::{USER, engine, session, until};

/// Allocates and gives back, and does not take the file.
fn alloc_and_forget(engine: &mut Engine, (socket, end): &mut (Socket, ClientEnd)) {
    let access = AccessFlags::LOCAL_WRITE;
    let alloc = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let mut ask = |command: &Command<'_>| {
        assert!(end.command(1, command).unwrap());
        if end.must_wake() {
            socket.wake().unwrap();
        }
        until(engine, |_| match end.next_reply(&mut Scratch::default()).unwrap()? {
            Reply::Answer { answer: Answer::Mr { lkey, .. }, .. } => Some(Some(lkey)),
            Reply::Answer { .. } => Some(None),
            other => panic!("{other:?}"),
        })
    };
    if let Some(lkey) = ask(&alloc) {
        ask(&Command::DeregisterMr { lkey });
    }
}

/// Takes what came; how many files.
fn take_files(socket: &Socket) -> u32 {
    let mut files = 0;
    loop {
        match socket.receive(true).unwrap() {
            Received::Message(Message::Memory { .. }, Some(_)) => files += 1,
            Received::Message(..) => {}
            Received::Nothing | Received::Closed => return files,
            other => panic!("{other:?}"),
        }
    }
}

/// Hundreds of sockets of one user's held all files that the node may have on their way, and nobody got a session.
#[test]
fn files_that_a_client_does_not_take_are_few_and_count_when_its_session_has_ended() {
    let (mut engine, _outlet) = engine([127, 99, 3, 12]);
    let mut user = session(&mut engine, USER);
    for _ in 0..100 {
        alloc_and_forget(&mut engine, &mut user);
    }
    let unread = take_files(&user.0);
    assert!((2..32).contains(&unread), "{unread}");

    alloc_and_forget(&mut engine, &mut user);
    engine.end(0, End::Violation, now());
    // It hears of it all the same.
    let mut heard = [PollFd::new(&user.0, PollFlags::RDHUP)];
    assert_eq!(poll(&mut heard, Some(&Timespec::default())), Ok(1));
    engine.tidy(now());
    assert_eq!((engine.sessions.len(), engine.sessions.partings.of(USER)), (0, 1));
    engine.sessions.limits.sessions = 1;
    let places = 1 + GREETINGS_MAX;
    let has_room = |engine: &mut Engine| (!engine.sessions.is_crowded(USER, now())).then_some(());
    until(&mut engine, has_room);
    let mut others = Vec::new();
    for _ in 1..places {
        let mut other = session(&mut engine, USER);
        alloc_and_forget(&mut engine, &mut other);
        engine.end(0, End::Violation, now());
        others.push(other);
    }
    assert!(engine.sessions.is_crowded(USER, now()));

    // Those that are taken, and those whose owner has gone, count no more.
    take_files(&user.0);
    others.pop();
    until(&mut engine, |engine| (engine.sessions.partings.of(USER) == places - 2).then_some(()));
    until(&mut engine, has_room);
    drop(others);
    until(&mut engine, |engine| (engine.sessions.partings.of(USER) == 0).then_some(()));
}

/// A socket whose last close waits for as long as its peer does not read.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.99.3.13:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let bytes = [0; 65_536];
    loop {
        match socket.write(&bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    socket.set_nonblocking(false).unwrap();
    set_socket_linger(&socket, Some(std::time::Duration::from_secs(600))).unwrap();
    (socket, peer)
}

/// Where the system does not refuse them, the engine closed them, and stood until their peers had read.
#[test]
fn a_file_whose_close_waits_keeps_nobody_but_its_own_users_thread() {
    let (mut engine, _outlet) = engine([127, 99, 3, 13]);
    // The second end may be sent files, on whatever system.
    let (theirs, ours) = Socket::pair().unwrap();
    assert!(ours.may_hold_files());
    let hello = Message::Hello { layout: Layout::default(), first: None };
    let (socket, mut peer) = lingering();
    theirs.send(&hello, Some(socket.as_fd())).unwrap();
    drop(socket);
    engine.admit(ours, now());
    let account = engine.sessions.at(0).unwrap().account();
    until(&mut engine, |engine| (engine.counters.violations_message == 1).then_some(()));
    assert_eq!(engine.sessions.len(), 0);
    // It stands there, and counts.
    assert_eq!(engine.sessions.partings.of(account), 1);
    engine.tidy(now());
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    until(&mut engine, |engine| (engine.sessions.partings.of(account) == 0).then_some(()));
}
