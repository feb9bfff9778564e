//! Peers that are no peers: what they send by hand ends their own connection, is counted, and harms nobody
//! else.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{PLACE, TestNode, WAIT, cluster, config, serve, session_at};
use elver::{EmbeddedNode, Session, SessionOptions};
use elver_ring::{Ends, Listener, ListenerOptions, Options};
use elver_rpc::protocol::{CallId, Greeting, Header, Kind, NO_DEADLINE};
use elver_rpc::{Client, ClientOptions, Code, Executed, Method, Server, ServerOptions};
use elver_testkit::wait_for;

const ADD: Method<(u64, u64), u64> = Method::new(1, "test.Add");

fn frame(kind: Kind, call: CallId, change: impl Fn(&mut Header), body: &[u8]) -> Vec<u8> {
    let mut header = Header::new(kind, call);
    header.len = body.len() as u32;
    change(&mut header);
    [&header.encode(), body].concat()
}

fn hello() -> Vec<u8> {
    let greeting = Greeting::new(1 << 16, 1 << 20, 0).encode();
    frame(Kind::Hello, CallId::default(), |_| {}, &greeting)
}

fn welcome() -> Vec<u8> {
    let greeting = Greeting::new(1 << 16, 1 << 20, 4).encode();
    frame(Kind::Welcome, CallId::default(), |_| {}, &greeting)
}

fn request(call: CallId, method: u32, len: usize) -> Vec<u8> {
    let change = |header: &mut Header| {
        (header.method, header.value, header.total) = (method, NO_DEADLINE, len as u32);
    };
    frame(Kind::Request, call, change, &vec![0; len])
}

/// Frames that no client may send, behind a greeting.
fn nonsense() -> Vec<Vec<u8>> {
    let call = CallId { slot: 0, turn: 1 };
    let far = CallId { slot: 1 << 30, turn: 1 };
    let mut wrong = vec![
        Vec::new(),
        vec![1; 7],
        vec![0xff; 200],
        hello(),
        welcome(),
        request(far, 1, 16),
        request(CallId::default(), 1, 16),
        frame(Kind::Response, call, |_| {}, &[]),
        frame(Kind::Piece, call, |_| {}, &[1]),
        frame(Kind::Stream, call, |_| {}, &[1]),
        frame(Kind::Credit, call, |header| header.value = 1, &[]),
        frame(Kind::Cancel, call, |_| {}, &[]),
        frame(Kind::Cancel, call, |header| header.value = 1, &[]),
        frame(Kind::Request, call, |header| header.total = 2, &[1, 2, 3]),
        frame(Kind::Request, call, |header| header.flags = 8, &[]),
    ];
    // A length that is not the body's, another kind, another version.
    for (at, byte) in [(24, 9), (1, 77), (0, 9)] {
        let mut bytes = request(call, 1, 16);
        bytes[at] = byte;
        wrong.push(bytes);
    }
    wrong
}

/// What a hand-made end hears until its ring is over.
fn hears(ends: &mut Ends) -> Vec<Vec<u8>> {
    let mut heard = Vec::new();
    while let Ok(Some(message)) = ends.receiver.recv(WAIT) {
        heard.push(message.to_vec());
    }
    heard
}

fn say(ends: &mut Ends, frame: &[u8]) {
    ends.sender.send(frame, WAIT).unwrap();
    ends.sender.flush().unwrap();
}

/// Of a client's, as a ring is connected that says so.
fn rings() -> Options {
    Options { application: elver_rpc::APPLICATION, ..Options::default() }
}

/// Messages, or streams, would be taken for frames.
#[test]
fn rings_of_another_use_are_refused() {
    let node = TestNode::start(config(27, 1));
    let serving = serve(&node, ServerOptions::default(), |_| {});
    let session = session_at(&node);
    let refused =
        elver_ring::connect(&session, node.gid, serving.port, Options::default(), WAIT).err();
    let refusal = elver_ring::Refusal::Application;
    assert!(
        matches!(&refused, Some(elver_ring::Error::Refused { reason }) if *reason == refusal),
        "{refused:?}"
    );
}

#[test]
fn a_client_that_sends_nonsense_harms_itself_alone() {
    let node = TestNode::start(config(20, 1));
    let serving = serve(&node, ServerOptions::default(), |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
    });
    let session = session_at(&node);
    let honest = serving.client(&session).unwrap();
    let nonsense = nonsense();
    for wrong in &nonsense {
        let mut ends =
            elver_ring::connect(&session, node.gid, serving.port, rings(), WAIT).unwrap();
        say(&mut ends, &hello());
        assert!(ends.receiver.recv(WAIT).unwrap().is_some(), "it is welcome");
        say(&mut ends, wrong);
        assert!(hears(&mut ends).is_empty(), "the end: {wrong:?}");
        assert_eq!(honest.call(ADD, &(1, 2), WAIT).unwrap(), 3);
    }
    // No greeting at all.
    let mut ends = elver_ring::connect(&session, node.gid, serving.port, rings(), WAIT).unwrap();
    say(&mut ends, &request(CallId { slot: 0, turn: 1 }, 1, 16));
    assert!(hears(&mut ends).is_empty());
    // What later versions may add is passed over.
    let mut ends = elver_ring::connect(&session, node.gid, serving.port, rings(), WAIT).unwrap();
    say(&mut ends, &hello());
    let mut later = request(CallId { slot: 0, turn: 1 }, 1, 16);
    later[1] = 200;
    say(&mut ends, &later);
    say(&mut ends, &request(CallId { slot: 0, turn: 1 }, 1, 16));
    assert!(ends.receiver.recv(WAIT).unwrap().is_some());
    let answer = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
    let answer = Header::decode(&answer).unwrap().unwrap();
    assert_eq!((answer.kind, answer.code, answer.len), (Kind::Response, 0, 8));
    drop(ends);
    drop(honest);
    let counters = serving.stop();
    assert_eq!(counters.calls.faults, nonsense.len() as u64 + 1);
    assert_eq!(counters.calls.passed_over, 1);
}

/// A client's node may let nothing through any more. What the client is told last is on its way then, and nobody else
/// waits for that.
#[test]
fn who_lets_nothing_through_keeps_no_server() {
    let (near, _far) = cluster(36);
    let session = session_at(&near);
    let mut server = Server::bind(&session, 0, ServerOptions::default()).unwrap();
    let (gid, port) = (near.gid, server.port());
    let (say_on, go_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let node = EmbeddedNode::new(PLACE.driven(36, 3));
            let session = node.session(SessionOptions::default()).unwrap();
            loop {
                let mut ends = elver_ring::connect(&session, gid, port, rings(), WAIT).unwrap();
                say(&mut ends, &hello());
                assert!(ends.receiver.recv(WAIT).unwrap().is_some(), "it is welcome");
                say(&mut ends, &[0xff; 200]);
                // Out with it; what comes back is hardly looked at.
                let goes_on = loop {
                    node.poll();
                    match go_on.recv_timeout(Duration::from_millis(20)) {
                        Ok(()) => break true,
                        Err(mpsc::RecvTimeoutError::Disconnected) => break false,
                        Err(mpsc::RecvTimeoutError::Timeout) => {}
                    }
                };
                if !goes_on {
                    break;
                }
            }
        });
        // An answer may have been quicker than who stops to look.
        for round in 1.. {
            let began = Instant::now();
            while server.counters().calls.faults < round {
                server.poll().unwrap();
                assert!(began.elapsed() < WAIT.unwrap(), "{:?}", server.counters());
            }
            let is_closing = server.counters().closing > 0;
            while server.counters().closing > 0 {
                server.poll().unwrap();
            }
            if is_closing {
                break;
            }
            assert!(round < 50, "it was waited for");
            say_on.send(()).unwrap();
        }
        drop(say_on);
    });
    assert_eq!(server.counters().clients, 0);
}

#[test]
fn a_client_that_says_nothing_is_not_kept() {
    let node = TestNode::start(config(21, 1));
    let greeting_time = Duration::from_millis(20);
    let options = ServerOptions { greeting_time, ..ServerOptions::default() };
    let serving = serve(&node, options, |_| {});
    let session = session_at(&node);
    let mut ends = elver_ring::connect(&session, node.gid, serving.port, rings(), WAIT).unwrap();
    assert!(hears(&mut ends).is_empty());
    assert_eq!(serving.stop().ungreeted, 1);
}

/// A server made by hand, which answers a client's greeting with `greeting`, and its first request with
/// each of these frames.
fn answered(
    group: u8,
    greeting: Vec<u8>,
    answers: Vec<Vec<u8>>,
    check: impl FnOnce(&Session, Result<Client, elver_rpc::Error>),
) {
    let node = TestNode::start(config(group, 1));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let application = elver_rpc::APPLICATION;
            let listener = ListenerOptions { application, ..ListenerOptions::default() };
            let listener = Listener::bind(&session, 0, listener).unwrap();
            tell.send(listener.port()).unwrap();
            let mut ends = listener.accept(WAIT).unwrap();
            assert!(ends.receiver.recv(WAIT).unwrap().is_some());
            say(&mut ends, &greeting);
            if !answers.is_empty() && matches!(ends.receiver.recv(WAIT), Ok(Some(_))) {
                answers.iter().for_each(|answer| say(&mut ends, answer));
            }
            hears(&mut ends);
        });
        let port = told.recv().unwrap();
        let session = session_at(&node);
        let client = Client::connect(&session, node.gid, port, ClientOptions::default(), WAIT);
        check(&session, client);
    });
}

#[test]
fn a_server_that_answers_nonsense_is_unavailable() {
    let call = CallId { slot: 0, turn: 1 };
    let response =
        |call, len| frame(Kind::Response, call, |header| header.total = 8, &vec![0; len]);
    let wrong = vec![
        vec![vec![3; 40]],
        vec![response(CallId { slot: 3, turn: 1 }, 8)],
        vec![response(CallId { slot: 0, turn: 2 }, 8)],
        vec![response(call, 4), response(call, 4)],
        vec![frame(Kind::Piece, call, |_| {}, &[1])],
        vec![response(call, 4), frame(Kind::Stream, call, |_| {}, &[1])],
        vec![welcome()],
        vec![request(call, 1, 16)],
        vec![frame(Kind::Credit, call, |header| header.value = 1, &[])],
    ];
    for answers in wrong {
        answered(22, welcome(), answers, |_, client| {
            let client = client.unwrap();
            let beside = client.start(ADD, &(3, 4), None).unwrap();
            let other = client.start(ADD, &(3, 4), None).unwrap();
            for call in [beside, other] {
                let error = call.wait().unwrap_err();
                assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
                assert!(error.to_string().contains("broke the protocol"), "{error}");
            }
            assert_eq!(client.counters().faults, 1);
            let error = client.call(ADD, &(1, 2), WAIT).unwrap_err();
            assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::No));
        });
    }
}

#[test]
fn greetings_of_servers_are_checked() {
    let answers = |greeting: Vec<u8>, code: Code, says: &str| {
        answered(23, greeting, Vec::new(), |_, client| {
            let error = client.unwrap_err();
            assert_eq!((error.code(), error.executed), (code, Executed::No));
            assert!(error.to_string().contains(says), "{error}");
        });
    };
    answers(vec![1; 10], Code::Unavailable, "shorter than its header");
    answers(request(CallId { slot: 0, turn: 1 }, 1, 1), Code::Unavailable, "no place here");
    let short = frame(Kind::Welcome, CallId::default(), |_| {}, &[1, 2]);
    answers(short, Code::Unavailable, "greeting makes no sense");
    let mut other = frame(Kind::Refused, CallId::default(), |header| header.code = 9, b"no");
    other[0] = 7;
    answers(other, Code::FailedPrecondition, "version 1.0, and the server 7.0");
    let refused = frame(Kind::Refused, CallId::default(), |header| header.code = 7, b"not you");
    answers(refused, Code::PermissionDenied, "not you");
}

/// A hand-made greeting of another version is answered with both versions.
#[test]
fn clients_of_another_version_are_told() {
    let node = TestNode::start(config(24, 1));
    let serving = serve(&node, ServerOptions::default(), |_| {});
    let session = session_at(&node);
    let mut ends = elver_ring::connect(&session, node.gid, serving.port, rings(), WAIT).unwrap();
    let mut other = hello();
    (other[0], other[36]) = (9, 9);
    say(&mut ends, &other);
    let heard = hears(&mut ends);
    let header = Header::decode(&heard[0]).unwrap().unwrap();
    assert_eq!((header.kind, header.code), (Kind::Refused, Code::FailedPrecondition as u8));
    let told = String::from_utf8_lossy(&heard[0][32..]);
    assert!(told.contains("9.0") && told.contains("1.0"), "{told}");
}

/// A server that never stops to send keeps nobody beyond his deadline.
#[test]
fn a_flood_of_frames_does_not_stop_the_clock() {
    let node = TestNode::start(config(28, 1));
    let session = session_at(&node);
    let options =
        ListenerOptions { application: elver_rpc::APPLICATION, ..ListenerOptions::default() };
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let listener = Listener::bind(&session, 0, options).unwrap();
            tell.send(listener.port()).unwrap();
            let mut ends = listener.accept(WAIT).unwrap();
            assert!(ends.receiver.recv(WAIT).unwrap().is_some(), "a hello");
            say(&mut ends, &welcome());
            let mut later = frame(Kind::Credit, CallId::default(), |_| {}, &[]);
            later[1] = 200;
            // Until the client is gone.
            while ends.sender.send(&later, WAIT).is_ok() {}
        });
        let port = told.recv().unwrap();
        let client =
            Client::connect(&session, node.gid, port, ClientOptions::default(), WAIT).unwrap();
        // Who floods may not have begun, and a request may come to its end before it goes.
        wait_for("a call beside a flood to end in time", || {
            let error = client.call(ADD, &(1, 2), Some(Duration::from_millis(20))).unwrap_err();
            assert_eq!(error.status.code, Code::DeadlineExceeded);
            let has_gone = error.executed == Executed::Maybe;
            (has_gone && client.counters().passed_over > 0).then_some(())
        });
    });
}

/// What a server had answered before it went is an answer, also to who was about to send more.
#[test]
fn an_answer_counts_that_came_before_the_end() {
    let node = TestNode::start(config(29, 1));
    let session = session_at(&node);
    let options =
        ListenerOptions { application: elver_rpc::APPLICATION, ..ListenerOptions::default() };
    let (tell, told) = mpsc::channel();
    let (gone, is_gone) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = session_at(&node);
            let listener = Listener::bind(&session, 0, options).unwrap();
            tell.send(listener.port()).unwrap();
            let mut ends = listener.accept(WAIT).unwrap();
            assert!(ends.receiver.recv(WAIT).unwrap().is_some(), "a hello");
            say(&mut ends, &welcome());
            let asked = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
            let call = Header::decode(&asked).unwrap().unwrap().call;
            let answer = frame(Kind::Response, call, |header| header.total = 8, &[3; 8]);
            say(&mut ends, &answer);
            drop((ends, listener));
            gone.send(()).unwrap();
        });
        let port = told.recv().unwrap();
        let client =
            Client::connect(&session, node.gid, port, ClientOptions::default(), WAIT).unwrap();
        let call = client.start(ADD, &(1, 2), WAIT).unwrap();
        client.flush();
        is_gone.recv().unwrap();
        // The ring to the server is closed by now, which this one finds first.
        let _ = client.start(ADD, &(1, 2), WAIT).map(drop);
        assert_eq!(call.wait().unwrap(), u64::from_le_bytes([3; 8]));
    });
}
