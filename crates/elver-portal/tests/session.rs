//! A session over a real socket: files, wakings, the end.

mod common;

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use elver_portal::{
    Answer, ClientEnd, Command, ConnectOptions, First, Layout, Limits, Listener, Message,
    MessageError, NodeEnd, Received, Reply, Request, Scratch, Socket, VqpOptions, Welcome,
    connect_stream, memfd,
};
use elver_verbs::Gid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use common::{ends, small};

/// A path that no other test uses; its directory goes with the value.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("elver-portal-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn message(socket: &Socket, files: bool) -> Received {
    socket.wait(Some(Duration::from_secs(10))).unwrap();
    socket.receive(files).unwrap()
}

const LIMITS: Limits = Limits {
    max_sge: 4,
    max_inline: 220,
    max_vqp_wr: 4096,
    vqps: 100,
    mrs: 50,
    completions: 1000,
    message_bytes: 1 << 30,
    alloc_bytes: 1 << 28,
};

const FIRST: First = First {
    options: VqpOptions {
        class: None,
        max_send_wr: 77,
        max_recv_wr: 5,
        sq_sig_all: true,
        confirm_sends: false,
    },
    gid: Gid([5; 16]),
    port: 4_444,
    connect: ConnectOptions { policy: elver_portal::Policy::Lite, uncached: true },
};

#[test]
fn a_client_gets_its_rings_and_uses_them() {
    let place = Place::new("rings");
    let path = place.0.join("node.sock");
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let client = Socket::connect(&path, Duration::from_secs(60)).unwrap();
    let server = listener.accept().unwrap().expect("a client");
    assert_eq!(server.peer().unwrap().pid, Some(rustix::process::getpid()));
    server.peer_pidfd().unwrap();

    client.send(&Message::Hello { layout: small(), first: None }, None).unwrap();
    let Received::Message(Message::Hello { layout, first: None }, None) = message(&server, false)
    else {
        panic!("no hello");
    };
    let layout = layout.granted(Layout::default());
    let file = memfd::create("rings", layout.bytes() as u64, memfd::Pages::Small).unwrap();
    let mut node = NodeEnd::map(&file, layout).unwrap();
    let welcome = Welcome { layout, gid: Gid([9; 16]), limits: LIMITS, first: false };
    let sent = Message::Welcome(welcome);
    server.send(&sent, Some(std::os::fd::AsFd::as_fd(&file))).unwrap();

    let Received::Message(Message::Welcome(given), Some(file)) = message(&client, true) else {
        panic!("no welcome");
    };
    assert_eq!(given, welcome);
    let mut end = ClientEnd::map(&file, given.layout).unwrap();
    let mut scratch = Scratch::default();
    assert!(node.sleep());
    assert!(end.command(7, &Command::QueryVqp { vqp: 5 }).unwrap());
    assert!(end.must_wake());
    client.wake().unwrap();
    assert!(!end.must_wake(), "one waking is enough");
    assert!(matches!(message(&server, false), Received::Message(Message::Wake, None)));
    node.awake();
    let Some(Request::Command { request: 7, command: Command::QueryVqp { vqp: 5 } }) =
        node.next_request(&mut scratch).unwrap()
    else {
        panic!("no command");
    };
    assert!(node.answer(7, &Answer::Done).unwrap());
    assert!(!node.must_wake(), "the client does not sleep");
    assert!(!end.sleep(), "there is something to take");
    let reply = end.next_reply(&mut scratch).unwrap();
    assert_eq!(reply, Some(Reply::Answer { request: 7, answer: Answer::Done }));

    drop(client);
    assert!(matches!(message(&server, false), Received::Closed));
}

#[test]
fn what_is_no_message_is_told() {
    let (client, server) = Socket::pair().unwrap();
    for bytes in [&[99][..], &[1, 2, 3], &[5, 0], &[0; 600]] {
        rustix::net::send(&client, bytes, rustix::net::SendFlags::empty()).unwrap();
        assert!(matches!(message(&server, false), Received::Invalid(_)), "{bytes:?}");
    }
}

/// A node that turns a process away may not have read all that it sent: the system tells that ahead of the reason.
#[test]
fn what_the_other_end_said_last_is_heard_though_it_left_messages_unread() {
    let (client, server) = Socket::pair().unwrap();
    client.send(&Message::Wake, None).unwrap();
    let text = "too many sessions; close some".to_string();
    server.send(&Message::Rejected { text: text.clone() }, None).unwrap();
    drop(server);
    let Received::Message(Message::Rejected { text: heard }, None) = client.receive(true).unwrap()
    else {
        panic!("the reason is heard")
    };
    assert_eq!(heard, text);
    assert!(matches!(client.receive(true).unwrap(), Received::Closed));
}

#[test]
fn another_version_is_told() {
    let mut bytes = Message::Hello { layout: small(), first: None }.encode();
    bytes[5..7].copy_from_slice(&77u16.to_le_bytes());
    let text = Message::decode(&bytes).unwrap_err().to_string();
    assert!(text.contains("version 77"), "{text}");
}

#[test]
fn every_message_survives_the_round_trip() {
    let layout = Layout::default();
    for message in [
        Message::Hello { layout, first: None },
        Message::Hello { layout, first: Some(FIRST) },
        Message::Welcome(Welcome { layout, gid: Gid([3; 16]), limits: LIMITS, first: false }),
        Message::Welcome(Welcome { layout, gid: Gid([3; 16]), limits: LIMITS, first: true }),
        Message::Rejected { text: "too many sessions; close some".into() },
        Message::Wake,
        Message::Memory { request: 0x1234_5678 },
        Message::Inherit { set: 7, heir: Some(3) },
        Message::Inherit { set: 7, heir: None },
        Message::Inherited { heir: 3 },
    ] {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Ok(message.clone()));
        for len in 0..bytes.len() {
            // A cut text is still a text, and what a later version added may be missing whole; nothing else may
            // be shorter.
            let cut = Message::decode(&bytes[..len]);
            let older = match &message {
                Message::Hello { layout, .. } => {
                    Some(Message::Hello { layout: *layout, first: None })
                }
                Message::Welcome(welcome) => {
                    Some(Message::Welcome(Welcome { first: false, ..*welcome }))
                }
                _ => None,
            };
            let is_older = older
                .is_some_and(|older| len + 1 == older.encode().len() && cut.as_ref() == Ok(&older));
            assert!(cut.is_err() || is_older || matches!(cut, Ok(Message::Rejected { .. })));
        }
    }
}

#[test]
fn a_greeting_that_asks_for_nonsense_is_none() {
    let message = Message::Hello { layout: small(), first: Some(FIRST) };
    let bytes = message.encode();
    let start = Message::Hello { layout: small(), first: None }.encode().len();
    // What is neither there nor not; a class, a flag, a policy and a port that there are not.
    for (at, value) in
        [(start - 1, 2), (start + 8, 9), (start + 9, 7), (start + 16, 99), (start + 22, 1)]
    {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let decoded = Message::decode(&bytes);
        assert_eq!(decoded, Err(MessageError::Unknown { len: bytes.len() }), "{at}: {value}");
    }
}

#[test]
fn a_full_ring_tells_so_and_goes_on() {
    let (mut node, mut client) = ends(small());
    let mut scratch = Scratch::default();
    let mut pushed = 0;
    while client.command(pushed, &Command::Goodbye).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, 32);
    for expected in 0..1000 {
        let Some(Request::Command { request, .. }) = node.next_request(&mut scratch).unwrap()
        else {
            panic!("nothing to take");
        };
        assert_eq!(request, expected);
        assert!(client.command(pushed, &Command::Goodbye).unwrap());
        pushed += 1;
    }
}

#[test]
fn a_node_takes_no_files() {
    let place = Place::new("files");
    let path = place.0.join("node.sock");
    let listener = Listener::bind(&path).unwrap();
    let client = Socket::connect(&path, Duration::from_secs(60)).unwrap();
    let file = memfd::create("test", 4096, memfd::Pages::Small).unwrap();
    // Also before it was accepted.
    let sent = client.send(&Message::Wake, Some(file.as_fd()));
    let server = listener.accept().unwrap().expect("a client");
    if sent.is_ok() {
        // A system that cannot refuse it for us.
        let received = message(&server, false);
        return assert!(matches!(received, Received::Invalid(MessageError::File)), "{received:?}");
    }
    assert!(matches!(server.receive(false).unwrap(), Received::Nothing));
    assert!(!server.may_hold_files());
    client.send(&Message::Wake, None).unwrap();
    assert!(matches!(message(&server, false), Received::Message(Message::Wake, None)));
}

/// Where the system does not refuse them, a node that took the message closed them itself, for as long as their owner
/// liked.
#[test]
fn files_that_a_node_does_not_take_are_not_closed_by_looking_at_them() {
    // The second end may be sent files, on whatever system.
    let (client, server) = Socket::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    client.send(&Message::Wake, None).unwrap();
    client.send(&Message::Wake, Some(writer.as_fd())).unwrap();
    drop(writer);
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    assert!(matches!(message(&server, false), Received::Message(Message::Wake, None)));
    for _ in 0..2 {
        let received = message(&server, false);
        assert!(matches!(received, Received::Invalid(MessageError::File)), "{received:?}");
        let still = reader.read(&mut [0]).unwrap_err();
        assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock);
    }
    assert!(server.may_hold_files());
    drop(server);
    rustix::io::ioctl_fionbio(&reader, false).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn who_does_not_read_leaves_so_many_messages_unread() {
    let (server, client) = Socket::pair().unwrap();
    server.bound_unread().unwrap();
    let file = memfd::create("test", 4096, memfd::Pages::Small).unwrap();
    assert!(!server.is_unread());
    let mut sent = 0;
    while server.send(&Message::Memory { request: sent }, Some(file.as_fd())).is_ok() {
        sent += 1;
        assert!(sent < 32);
    }
    assert!(sent >= 4 && server.is_unread());
    // It hears of the end only behind them, and they are there until it has taken them or is gone.
    server.shut();
    for request in 0..sent {
        let received = message(&client, true);
        assert!(
            matches!(received, Received::Message(Message::Memory { request: of }, Some(_)) if of == request)
        );
        assert_eq!(server.is_unread(), request + 1 < sent);
    }
    assert!(matches!(message(&client, true), Received::Closed));
}

/// Who gives up stays in the queue of a node that lets nobody in; once it was full, the next one waited without end.
#[test]
fn who_is_not_let_in_waits_no_longer_than_he_said() {
    let place = Place::new("queue");
    let soon = Duration::from_millis(20);
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let path = place.0.join(format!("{kind:?}.sock"));
        let full = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let connect = || match kind {
            SocketType::STREAM => {
                connect_stream(&path, soon).map(|it| Box::new(it) as Box<dyn AsFd>)
            }
            _ => Socket::connect(&path, soon).map(|it| Box::new(it) as Box<dyn AsFd>),
        };
        let mut waiting = Vec::new();
        let error = loop {
            match connect() {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), waiting.len()), (ErrorKind::TimedOut, 1));
    }
}
