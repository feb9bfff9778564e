//! Sessions that end while somebody is inside: what is waited for behind them, and for how long.

use std::process::{Child, Command as Program, Stdio};

use elver_portal::{
    Answer, ClientEnd, ClientGate, Command, ConnectOptions, Message, Received, Reply, Scratch,
    VqpOptions,
};
use elver_verbs::{AccessFlags, Gid};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::engine::Engine;
use crate::engine::door::{EVENTS_MAX, PROCESS};
use crate::engine::tests::{USER, engine, session, until};

type Client = (Socket, ClientEnd);

/// Asks something; what `take` makes of the answer.
fn ask<T>(
    engine: &mut Engine,
    (socket, end): &mut Client,
    command: &Command<'_>,
    take: impl Fn(Answer<'_>) -> Option<T>,
) -> T {
    assert!(end.command(1, command).unwrap());
    if end.must_wake() {
        socket.wake().unwrap();
    }
    until(engine, |_| match end.next_reply(&mut Scratch::default()).unwrap()? {
        Reply::Answer { answer, .. } => Some(take(answer).expect("another answer")),
        other => panic!("{other:?}"),
    })
}

/// The file that came over a socket.
fn file(socket: &Socket) -> std::os::fd::OwnedFd {
    loop {
        match socket.receive(true).unwrap() {
            Received::Message(Message::Wake, _) => {}
            Received::Message(Message::Memory { .. }, Some(file)) => return file,
            other => panic!("{other:?}"),
        }
    }
}

/// A region of a session's, open to peers: both of its keys.
fn alloc(engine: &mut Engine, owner: &mut Client) -> (u32, u32) {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let alloc = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let keys = ask(engine, owner, &alloc, |answer| match answer {
        Answer::Mr { lkey, rkey, .. } => Some((lkey, rkey)),
        _ => None,
    });
    file(&owner.0);
    keys
}

/// Has a session reach a region, and its process stay inside.
fn stay_inside(engine: &mut Engine, client: &mut Client, gid: Gid, rkey: u32) -> ClientGate {
    let vqp = ask(engine, client, &Command::CreateVqp(VqpOptions::default()), |answer| {
        if let Answer::Vqp(vqp) = answer { Some(vqp) } else { None }
    });
    let connect = Command::Connect { vqp, gid, port: 0, options: ConnectOptions::default() };
    ask(engine, client, &connect, |answer| matches!(answer, Answer::Connected(_)).then_some(()));
    let there = ask(engine, client, &Command::Reach { vqp, rkey }, |answer| {
        if let Answer::Reached(reach) = answer { Some(reach) } else { None }
    });
    let mut gate = ClientGate::map(file(&client.0)).unwrap();
    std::mem::forget(gate.enter(there.door, there.generation).unwrap());
    gate
}

fn without_sessions(engine: &mut Engine, left: usize) {
    until(engine, |engine| (engine.sessions.len() == left).then_some(()));
}

/// It was waited for as long as the node ran, and kept what it took; one after the other, all descriptors.
#[test]
fn a_deregistration_whose_session_has_ended_waits_for_nobody() {
    let (mut engine, _outlet) = engine([127, 99, 3, 9]);
    let gid = engine.core.gid();
    engine.directs.patience_ns = 50_000_000;
    for goodbye in [false, true] {
        let mut own = session(&mut engine, USER);
        let (lkey, rkey) = alloc(&mut engine, &mut own);
        let _gate = stay_inside(&mut engine, &mut own, gid, rkey);
        assert!(own.1.command(2, &Command::DeregisterMr { lkey }).unwrap());
        if goodbye {
            assert!(own.1.command(3, &Command::Goodbye).unwrap());
        }
        if own.1.must_wake() {
            own.0.wake().unwrap();
        }
        until(&mut engine, |engine| (!engine.directs.waits.is_empty()).then_some(()));
        drop(own);
        without_sessions(&mut engine, 0);
        until(&mut engine, |engine| engine.directs.is_idle().then_some(()));
    }
}

/// A process that ends when it is told to.
fn process() -> Child {
    Program::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Its end was told without end, and the engine never slept again.
#[test]
fn a_process_that_outlives_its_session_is_not_watched_though_it_is_waited_for() {
    let (mut engine, _outlet) = engine([127, 99, 3, 10]);
    let gid = engine.core.gid();
    let mut owner = session(&mut engine, USER);
    let (_, rkey) = alloc(&mut engine, &mut owner);
    let mut child = process();
    let mut other = session(&mut engine, USER);
    let slot = engine.sessions.len() as u32 - 1;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let other_session = engine.sessions.get(slot).unwrap();
    let token = other_session.token(slot);
    engine.door.watch_process(other_session.process.insert(pidfd), token).unwrap();
    let _gate = stay_inside(&mut engine, &mut other, gid, rkey);
    drop(other);
    without_sessions(&mut engine, 1);
    assert_eq!(engine.directs.lingering.len(), 1);
    drop(child.stdin.take());
    child.wait().unwrap();
    let mut tokens = [0; EVENTS_MAX];
    let count = engine.door.ready(&mut tokens);
    assert!(!tokens[..count].contains(&(token | PROCESS)));
    // And it is waited for no longer.
    until(&mut engine, |engine| engine.directs.is_idle().then_some(()));
}

/// It was said at once to stand still, and the deregistration was refused.
#[test]
fn who_is_inside_of_what_goes_when_its_session_ends_is_waited_for_until_it_dies() {
    let (mut engine, _outlet) = engine([127, 99, 3, 11]);
    let gid = engine.core.gid();
    let mut owner = session(&mut engine, USER);
    let (lkey, rkey) = alloc(&mut engine, &mut owner);
    let mut child = process();
    let mut other = session(&mut engine, USER);
    let slot = engine.sessions.len() as u32 - 1;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    engine.sessions.get(slot).unwrap().process = Some(pidfd);
    let _gate = stay_inside(&mut engine, &mut other, gid, rkey);
    assert!(owner.1.command(2, &Command::DeregisterMr { lkey }).unwrap());
    if owner.1.must_wake() {
        owner.0.wake().unwrap();
    }
    until(&mut engine, |engine| (!engine.directs.waits.is_empty()).then_some(()));
    drop(other);
    without_sessions(&mut engine, 1);
    assert!(!engine.directs.waits.values().next().unwrap()[0].accesses[0].is_given_up());
    drop(child.stdin.take());
    child.wait().unwrap();
    let is_done =
        until(&mut engine, |_| match owner.1.next_reply(&mut Scratch::default()).unwrap()? {
            Reply::Answer { answer, .. } => Some(matches!(answer, Answer::Done)),
            other => panic!("{other:?}"),
        });
    assert!(is_done && engine.directs.is_idle());
}

/// How many messages with a file come for a request.
fn files_for(socket: &Socket, request: u32) -> usize {
    let mut files = 0;
    loop {
        match socket.receive(true).unwrap() {
            Received::Message(Message::Memory { request: of }, Some(_)) => {
                files += usize::from(of == request);
            }
            Received::Message(..) => {}
            Received::Nothing => return files,
            other => panic!("{other:?}"),
        }
    }
}

/// The node thought that its process had it, and sent the next region's file alone, which was taken for the gate's.
#[test]
fn a_gate_whose_first_region_could_not_be_sent_comes_with_the_next() {
    let (mut engine, _outlet) = engine([127, 99, 3, 14]);
    let gid = engine.core.gid();
    let mut client = session(&mut engine, USER);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let alloc = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let alloc = |engine: &mut Engine, client: &mut Client| {
        ask(engine, client, &alloc, |answer| match answer {
            Answer::Mr { rkey, .. } => Some(Some(rkey)),
            Answer::Refused(_) => Some(None),
            _ => None,
        })
    };
    // Until its socket takes no more.
    let mut rkeys = Vec::new();
    while let Some(rkey) = alloc(&mut engine, &mut client) {
        rkeys.push(rkey);
    }
    let most = files_for(&client.0, 1);
    let vqp = ask(&mut engine, &mut client, &Command::CreateVqp(VqpOptions::default()), |answer| {
        if let Answer::Vqp(vqp) = answer { Some(vqp) } else { None }
    });
    let connect = Command::Connect { vqp, gid, port: 0, options: ConnectOptions::default() };
    ask(&mut engine, &mut client, &connect, |answer| {
        matches!(answer, Answer::Connected(_)).then_some(())
    });
    // There is room for the gate's file, and for no other.
    for _ in 1..most {
        alloc(&mut engine, &mut client).unwrap();
    }
    let reach = Command::Reach { vqp, rkey: rkeys[0] };
    ask(&mut engine, &mut client, &reach, |answer| {
        matches!(answer, Answer::Refused(_)).then_some(())
    });
    assert_eq!(files_for(&client.0, 1), most);
    // It is not unmapped by the engine, which would wait for whoever holds the lock of the file.
    let gate = |engine: &mut Engine| {
        engine.sessions.open(0).unwrap().gate.as_ref().map(|gate| Arc::as_ptr(&gate.end))
    };
    let first = gate(&mut engine);
    assert!(first.is_some());
    let reach = Command::Reach { vqp, rkey: rkeys[1] };
    ask(&mut engine, &mut client, &reach, |answer| {
        matches!(answer, Answer::Reached(_)).then_some(())
    });
    assert_eq!(files_for(&client.0, 1), 2);
    assert_eq!(gate(&mut engine), first);
}
