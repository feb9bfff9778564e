use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use elver_portal::{
    Answer, Command, HeirsLayout, Message, NodeEnd, Refusal, RefusalCode, Request, Scratch, Socket,
    memfd,
};
use elver_testkit::{PATIENCE, wait_for};
use elver_verbs::{AccessFlags, Gid, QpState};

use super::*;
use crate::silent::{self, impatient};
use crate::{ConnectOptions, Destination, Mr, PrepareOptions, Session, Vqp, VqpOptions};

/// What waits for the node's answer.
type Asks = fn(&Session) -> Result<(), Error>;

const ALL: AccessFlags = AccessFlags::all();
const GID: Gid = Gid([9; 16]);

/// A session whose children would find the node.
fn session() -> (Session, Socket, NodeEnd) {
    let (session, socket, node) = silent::session_with(impatient());
    session.inner.borrow_mut().link.path = Some("/nowhere".into());
    (session, socket, node)
}

/// What the node is asked, as far as it is looked at.
#[derive(Debug, PartialEq)]
enum Asked {
    Destroy(u32),
    Deregister(u32),
    Disown(u32),
    /// A piece of the arena, by its offset.
    Carve(u64),
    Other,
}

/// What the node is asked next, but for signs of life; nothing if that is all.
fn next_command(node: &mut NodeEnd) -> Option<(u32, Asked)> {
    let mut scratch = Scratch::default();
    loop {
        let Request::Command { request, command } = node.next_request(&mut scratch).unwrap()?
        else {
            panic!("a post");
        };
        let asked = match command {
            Command::DestroyVqp { vqp } => Asked::Destroy(vqp),
            Command::DeregisterMr { lkey } => Asked::Deregister(lkey),
            Command::Disown { set } => Asked::Disown(set),
            Command::CarveMr { offset, .. } => Asked::Carve(offset),
            _ => Asked::Other,
        };
        if request != 0 {
            return Some((request, asked));
        }
    }
}

fn create(session: &Session) -> Result<(), Error> {
    session.create_vqp(VqpOptions::default()).map(drop)
}

fn alloc(session: &Session) -> Result<(), Error> {
    session.alloc(64, ALL).map(drop)
}

fn alloc_apart(session: &Session) -> Result<(), Error> {
    session.alloc_apart(64, ALL).map(drop)
}

fn prepare(session: &Session) -> Result<(), Error> {
    session.prepare(1, &[Destination::new(GID)], PrepareOptions::default()).map(drop)
}

fn register(session: &Session) -> Result<(), Error> {
    let mut bytes = [0_u8; 64];
    // SAFETY: nobody is there who would touch them.
    unsafe { session.register(bytes.as_mut_ptr(), 64, ALL) }.map(drop)
}

/// Each of them waited without an end.
#[test]
fn a_node_that_hangs_ends_each_call_that_waits_for_its_answer() {
    let asks: [(&str, Asks); 11] = [
        ("create", create),
        ("alloc", alloc),
        ("alloc_apart", alloc_apart),
        ("prepare", prepare),
        ("register", register),
        ("bind", |session| silent::vqp(session).qbind(1).map(drop)),
        ("info", |session| silent::vqp(session).info().map(drop)),
        ("connect", |session| silent::vqp(session).qconnect(GID, 0).map(drop)),
        ("warm", |session| session.warm(&[GID]).map(drop)),
        ("deregister", |session| Mr::inherited(session, 64, (1, 2), ALL).unwrap().deregister()),
        ("close", |session| session.clone().close()),
    ];
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for (what, ask) in asks {
            let (session, _socket, _node) = session();
            let asked = ask(&session);
            tell.send((what, asked)).unwrap();
        }
    });
    for (what, _) in asks {
        // It is the one that does not come back.
        let (whose, asked) = told.recv_timeout(PATIENCE).expect(what);
        assert!(matches!(asked, Err(Error::Silent)), "{whose}: {asked:?}");
    }
}

/// Each slice began anew: who waits so, as Python does, waited for ever.
#[test]
fn a_node_that_hangs_ends_waits_in_slices_too() {
    let (session, _socket, mut node) = session();
    let vqp = silent::vqp(&session);
    let connecting = vqp.qconnect_start(GID, 0, ConnectOptions::default()).unwrap();
    let slice = Some(Duration::from_millis(5));
    let ends = |wait: &dyn Fn() -> Error| {
        wait_for("the end of the wait", || {
            let error = wait();
            (!matches!(error, Error::TimedOut)).then_some(error)
        })
    };
    let ended = ends(&|| connecting.wait(slice).unwrap_err());
    assert!(matches!(ended, Error::Silent), "{ended}");
    // What another call heard counts.
    let closing = session.close_start().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 2 * impatient().patience {
        assert!(matches!(closing.wait(slice), Err(Error::TimedOut)));
        while next_command(&mut node).is_some() {}
        assert!(node.answer(0, &Answer::Done).unwrap());
        session.poll().unwrap();
    }
    let ended = ends(&|| closing.wait(slice).unwrap_err());
    assert!(matches!(ended, Error::Silent), "{ended}");
}

/// What was made stayed, unknown to the process, until its session ended.
#[test]
fn what_a_node_makes_too_late_is_undone() {
    let mr = |file_bytes| Answer::Mr { lkey: 5, rkey: 6, file_bytes };
    let prepared = Answer::Prepared { set: 7, file_bytes: HeirsLayout::RINGS.bytes() as u64 };
    let cases: [(Asks, Answer<'_>, Asked); 5] = [
        (create, Answer::Vqp(3), Asked::Destroy(3)),
        (alloc, mr(0), Asked::Deregister(5)),
        (register, mr(0), Asked::Deregister(5)),
        (alloc_apart, mr(4096), Asked::Deregister(5)),
        (prepare, prepared, Asked::Disown(7)),
    ];
    for (ask, answer, undoes) in cases {
        let (session, socket, mut node) = session();
        assert!(matches!(ask(&session), Err(Error::Silent)));
        let (request, _) = next_command(&mut node).unwrap();
        assert!(next_command(&mut node).is_none());
        if matches!(answer, Answer::Mr { file_bytes: 4096, .. } | Answer::Prepared { .. }) {
            let file = memfd::create("late", 4096, memfd::Pages::Small).unwrap();
            socket.send(&Message::Memory { request }, Some(file.as_fd())).unwrap();
        }
        assert!(node.answer(request, &answer).unwrap());
        assert!(session.poll().unwrap());
        let (_, command) = next_command(&mut node).unwrap();
        assert_eq!(command, undoes);
        assert!(next_command(&mut node).is_none(), "it is told once");
        let kept = session.inner.borrow_mut().link.file(request);
        assert!(kept.is_err(), "its file is closed");
    }
}

/// It stayed, and what it had of the user's quota, until the session ended.
#[test]
fn a_set_whose_file_is_not_as_it_should_be_is_given_back() {
    let (session, socket, mut node) = session();
    let answering = thread::spawn(move || {
        let (request, _) = wait_for("the command", || next_command(&mut node));
        let file = memfd::create("short", 4096, memfd::Pages::Small).unwrap();
        socket.send(&Message::Memory { request }, Some(file.as_fd())).unwrap();
        assert!(node.answer(request, &Answer::Prepared { set: 7, file_bytes: 4096 }).unwrap());
        (socket, node)
    });
    let ended = prepare(&session).unwrap_err();
    let (_socket, mut node) = answering.join().unwrap();
    assert!(!matches!(ended, Error::Silent), "{ended}");
    assert_eq!(next_command(&mut node).map(|(_, asked)| asked), Some(Asked::Disown(7)));
}

/// The node may register it yet, for memory that another region would have by then.
#[test]
fn a_piece_of_the_arena_stays_in_use_until_a_node_that_hangs_has_answered() {
    let offset = |node: &mut NodeEnd| match next_command(node) {
        Some((request, Asked::Carve(offset))) => (request, offset),
        other => panic!("{other:?}"),
    };
    let late = [
        (Answer::Mr { lkey: 5, rkey: 6, file_bytes: 0 }, true),
        (Answer::Refused(Refusal { code: RefusalCode::Limit, text: "too many" }), false),
    ];
    for (answer, is_made) in late {
        let (session, _socket, mut node) = session();
        assert!(matches!(alloc(&session), Err(Error::Silent)));
        let (request, first) = offset(&mut node);
        assert!(matches!(alloc(&session), Err(Error::Silent)));
        assert_ne!(offset(&mut node).1, first, "it may be another's");
        assert!(node.answer(request, &answer).unwrap());
        session.poll().unwrap();
        if is_made {
            assert!(matches!(alloc(&session), Err(Error::Silent)));
            let (goes, command) = next_command(&mut node).unwrap();
            assert_eq!(command, Asked::Deregister(5));
            assert_ne!(offset(&mut node).1, first, "it is deregistered, and may be touched yet");
            assert!(node.answer(goes, &Answer::Done).unwrap());
            session.poll().unwrap();
        }
        assert!(matches!(alloc(&session), Err(Error::Silent)));
        assert_eq!(offset(&mut node).1, first);
    }
}

/// It is slow, or what it was asked for is: it says so as long as it lives.
#[test]
fn a_node_that_takes_its_time_is_waited_for_as_long_as_it_gives_signs() {
    let (session, _socket, mut node) = session();
    let node = thread::spawn(move || {
        let mut scratch = Scratch::default();
        let (mut signs, mut asked) = (0, None);
        while signs < 6 {
            let request =
                wait_for("a question", || match node.next_request(&mut scratch).unwrap() {
                    Some(Request::Command { request, .. }) => Some(request),
                    Some(_) => panic!("a post"),
                    None => None,
                });
            if request == 0 {
                signs += 1;
                let text = "there is none";
                let refusal = Refusal { code: RefusalCode::NoSuchVqp, text };
                assert!(node.answer(0, &Answer::Refused(refusal)).unwrap());
            } else {
                asked = Some(request);
            }
        }
        assert!(node.answer(asked.unwrap(), &Answer::Vqp(3)).unwrap());
        // It is mapped until the other end has read it.
        node
    });
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    assert_eq!(vqp.id(), 3);
    node.join().unwrap();
}

/// Each of them waited for room by itself, ten seconds long.
#[test]
fn who_drops_much_waits_once_for_a_node_that_stands_still() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let (session, _socket, mut node) = session();
        let inherited =
            |id| Vqp::inherited(&session, id, QpState::Rts, &VqpOptions::default(), None);
        let vqps: Vec<Vqp> = (1..=200).map(inherited).collect();
        drop(vqps);
        let asked = std::iter::from_fn(|| {
            session.poll().unwrap();
            next_command(&mut node)
        });
        let gone: Vec<u32> = asked
            .map(|(_, command)| match command {
                Asked::Destroy(vqp) => vqp,
                other => panic!("{other:?}"),
            })
            .collect();
        tell.send(gone).unwrap();
    });
    let gone = told.recv_timeout(40 * impatient().patience).unwrap();
    assert_eq!(gone, (1..=200).collect::<Vec<u32>>(), "each once, in their order");
}
