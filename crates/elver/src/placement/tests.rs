use std::os::fd::AsFd;
use std::thread;

use elver_portal::{
    Answer, Command, Message, NodeEnd, Received, Refusal, RefusalCode, Request, Scratch, Socket,
    memfd,
};
use elver_verbs::AccessFlags;

use super::*;
use crate::mr::{Kind, Mr};
use crate::silent;

#[test]
fn a_machine_with_one_node_has_no_choice() {
    let nobody = || panic!("nobody asks where the thread runs");
    for numa in [Numa::Any, Numa::Here, Numa::Node(3)] {
        assert_eq!(numa.among(&[3], nobody), None, "{numa:?}");
    }
    // The daemon says which there are.
    assert_eq!(Numa::Node(0).among(&[3], nobody), Some(0));
    // A system that tells of none may have some.
    assert_eq!(Numa::Here.among(&[], nobody), None);
    assert_eq!(Numa::Node(1).among(&[], nobody), Some(1));
}

#[test]
fn among_several_it_is_the_threads_or_the_one_that_is_named() {
    let nodes = [0, 2];
    assert_eq!(Numa::Any.among(&nodes, || Some(2)), None);
    assert_eq!(Numa::Here.among(&nodes, || Some(2)), Some(2));
    assert_eq!(Numa::Here.among(&nodes, || Some(1)), None, "it has no memory");
    assert_eq!(Numa::Here.among(&nodes, || None), None);
    assert_eq!(Numa::Node(2).among(&nodes, || Some(0)), Some(2));
    assert_eq!(Numa::Node(1).among(&nodes, || Some(0)), Some(1));
}

/// A node that refuses each wish: what it was asked for, until the process goes.
fn unwilling_node(socket: &Socket, mut end: NodeEnd, code: RefusalCode) -> Vec<&'static str> {
    let (mut asked, mut scratch) = (Vec::new(), Scratch::default());
    loop {
        let request = match end.next_request(&mut scratch).unwrap() {
            Some(Request::Command { request, command: Command::AllocMrNear { .. } }) => {
                asked.push("near");
                let refusal = Refusal { code, text: "what is 21?" };
                assert!(end.answer(request, &Answer::Refused(refusal)).unwrap());
                continue;
            }
            Some(Request::Command { request, command: Command::AllocMr { huge, .. } }) => {
                asked.push(if huge { "huge" } else { "small" });
                request
            }
            Some(_) => continue,
            None if matches!(socket.receive(false), Ok(Received::Closed) | Err(_)) => {
                return asked;
            }
            None => {
                thread::yield_now();
                continue;
            }
        };
        let file = memfd::create("test", memfd::HUGE_PAGE, memfd::Pages::Small).unwrap();
        socket.send(&Message::Memory { request }, Some(file.as_fd())).unwrap();
        let answer = Answer::Mr { lkey: request, rkey: 6, file_bytes: memfd::HUGE_PAGE };
        assert!(end.answer(request, &answer).unwrap());
    }
}

#[test]
fn an_older_node_makes_memory_wherever_it_likes_and_is_asked_once() {
    let (session, socket, end) = silent::session();
    let node = thread::spawn(move || unwilling_node(&socket, end, RefusalCode::Unsupported));
    for huge in [false, true] {
        let kind = Kind { huge, near: Some(0), ..Kind::default() };
        let mr = Mr::alloc(&session, 4_096, AccessFlags::LOCAL_WRITE, kind).unwrap();
        mr.write_u64(4_088, 7).unwrap();
        assert_eq!(mr.read_u64(4_088).unwrap(), 7);
    }
    drop(session);
    assert_eq!(node.join().unwrap(), ["near", "small", "huge"]);
}

/// A daemon may have begun before a NUMA node came, at which a thread runs by now: it was refused all memory.
#[test]
fn a_thread_at_a_node_that_the_daemon_does_not_know_has_memory_elsewhere() {
    let (session, socket, end) = silent::session();
    let node = thread::spawn(move || unwilling_node(&socket, end, RefusalCode::OutOfRange));
    let kind = Kind { near: Some(9), ..Kind::default() };
    for _ in 0..2 {
        Mr::alloc(&session, 4_096, AccessFlags::LOCAL_WRITE, kind).unwrap();
    }
    let named = Kind { is_named: true, ..kind };
    let refused = Mr::alloc(&session, 4_096, AccessFlags::LOCAL_WRITE, named).unwrap_err();
    assert!(matches!(refused, crate::Error::Refused { code: RefusalCode::OutOfRange, .. }));
    drop(session);
    assert_eq!(node.join().unwrap(), ["near", "small", "near", "small", "near"]);
}
