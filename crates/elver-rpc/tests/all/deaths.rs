//! Processes that are killed: a client hears it with its calls under way, and a server's handlers hear that
//! nobody waits.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{PLACE, TestNode, WAIT, config, serve, session_at};
use elver::{Gid, Ready, Session};
use elver_rpc::{
    Client, ClientOptions, Code, Executed, Method, Responder, Server, ServerOptions, Sink, Status,
};
use elver_testkit::{Launch, Process, Role, hears_within_a_second, patient, role, wait_for};

const NEVER: Method<u64, u64> = Method::new(1, "test.Never");
const ADD: Method<(u64, u64), u64> = Method::new(2, "test.Add");
const PUT: Method<(), ()> = Method::new(3, "test.Put");

/// Takes whatever comes.
struct Taken;

impl Sink for Taken {
    type Response = ();

    fn write(&mut self, _: &[u8]) -> Result<(), Status> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), Status> {
        Ok(())
    }
}

/// Not a test of its own: a server that keeps a call.
#[test]
fn process_that_is_a_server() {
    let Some(role) = role() else { return };
    let session = Session::connect(role.socket).unwrap();
    let mut server = Server::bind(&session, 0, ServerOptions::default()).unwrap();
    let mut kept = Vec::new();
    server.on_deferred(NEVER, move |_, responder: Responder<u64>| kept.push(responder));
    server.on(ADD, |(one, other), _| Ok(one + other));
    server.on_upload(PUT, |(), _| Ok(Taken));
    eprintln!("{}", server.port());
    server.run(&AtomicBool::new(false)).unwrap();
}

/// Not a test of its own: a client with a call under way.
#[test]
fn process_that_is_a_client() {
    let Some(Role { socket, knows }) = role() else { return };
    let session = Session::connect(socket).unwrap();
    let port = knows.parse().unwrap();
    let options = ClientOptions::default();
    let client = Client::connect(&session, session.gid(), port, options, WAIT).unwrap();
    let call = client.start(NEVER, &1, None).unwrap();
    client.flush();
    eprintln!("ready");
    let _ = call.wait();
}

/// A client of a process that says its port.
fn client(session: &Session, gid: Gid, process: &mut Process) -> Client {
    let port = process.says().parse().unwrap();
    Client::connect(session, gid, port, ClientOptions::default(), WAIT).unwrap()
}

#[test]
fn a_server_that_is_killed_fails_the_calls_under_way() {
    let node = TestNode::start(config(30, 1));
    hears_within_a_second(|| fails_the_calls_under_way(&node));
}

/// After which time.
fn fails_the_calls_under_way(node: &TestNode) -> Duration {
    let session = session_at(node);
    let mut process = Launch::new("deaths::process_that_is_a_server", &node.path).start();
    let client = client(&session, node.gid, &mut process);
    assert_eq!(client.call(ADD, &(1, 2), WAIT).unwrap(), 3);
    let calls = [1, 2, 3].map(|at| client.start(NEVER, &at, None).unwrap());
    client.flush();
    process.kill();
    let killed = Instant::now();
    for call in calls {
        let error = call.wait().unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
    }
    let took = killed.elapsed();
    println!("heard after {took:?}");
    let error = client.call(ADD, &(1, 2), None).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::No));
    assert!(error.cause.is_some(), "{error}");
    assert_eq!((client.under_way(), client.counters().failed), (0, 3));
    took
}

/// The client's node ends, and another one is there in its place: what was under way may have been executed, and a new
/// client calls.
#[test]
fn a_node_that_starts_anew_ends_its_calls_and_takes_new_ones() {
    let (meta, other) = PLACE.cluster(34, patient);
    let (tell, kept) = mpsc::channel();
    let serving = serve(&meta, ServerOptions::default(), move |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
        server.on_deferred(NEVER, move |_, responder: Responder<u64>| {
            tell.send(responder).unwrap();
        });
    });
    let session = session_at(&other);
    let client = serving.client(&session).unwrap();
    let call = client.start(NEVER, &1, None).unwrap();
    client.flush();
    let responder = kept.recv_timeout(WAIT.unwrap()).unwrap();
    drop(other);
    let error = call.wait().unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
    let error = client.call(ADD, &(1, 2), WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::No));
    wait_for("the server to hear of it", || responder.context().is_cancelled().then_some(()));
    let other = PLACE.member(34, 2, patient);
    let session = session_at(&other);
    assert_eq!(serving.client(&session).unwrap().call(ADD, &(1, 2), WAIT).unwrap(), 3);
    serving.stop();
}

#[test]
fn a_server_that_is_killed_ends_a_stream() {
    let node = TestNode::start(config(31, 1));
    let session = session_at(&node);
    let mut process = Launch::new("deaths::process_that_is_a_server", &node.path).start();
    let client = client(&session, node.gid, &mut process);
    let mut upload = client.upload(PUT, &(), None).unwrap();
    upload.write(&[1; 100_000]).unwrap();
    process.kill();
    let error =
        std::iter::repeat_with(|| upload.write(&[1; 50_000])).find_map(Result::err).unwrap();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
}

#[test]
fn a_client_that_is_killed_is_forgotten() {
    let node = TestNode::start(config(32, 1));
    let (tell, kept) = mpsc::channel();
    let serving = serve(&node, ServerOptions::default(), move |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
        server.on_deferred(NEVER, move |_, responder: Responder<u64>| {
            tell.send(responder).unwrap();
        });
    });
    let session = session_at(&node);
    let other = serving.client(&session).unwrap();
    let launch = Launch::new("deaths::process_that_is_a_client", &node.path);
    let mut process = launch.knows(serving.port).start();
    assert_eq!(process.says(), "ready");
    let responder = kept.recv().unwrap();
    assert!(!responder.context().is_cancelled());
    process.kill();
    let killed = Instant::now();
    while !responder.context().is_cancelled() {
        assert!(killed.elapsed() < Duration::from_secs(30));
        std::thread::yield_now();
    }
    println!("heard after {:?}", killed.elapsed());
    responder.respond(Ok(1));
    assert_eq!(other.call(ADD, &(1, 2), WAIT).unwrap(), 3);
    let counters = serving.stop();
    assert_eq!((counters.clients, counters.accepted), (1, 2));
    assert_eq!((counters.deferred, counters.calls.answers_dropped), (0, 1));
}

/// What stands in the ring when its connection fails may be under way.
#[test]
fn a_call_that_the_connection_fails_with_may_have_gone() {
    let node = TestNode::start(config(33, 1));
    let serving = serve(&node, ServerOptions::default(), |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
    });
    let session = session_at(&node);
    let mut options = ClientOptions::default();
    // Each request goes by itself.
    options.ring.there = options.ring.there.unbatched();
    let client = Client::connect(&session, node.gid, serving.port, options, WAIT).unwrap();
    assert_eq!(client.call(ADD, &(1, 2), WAIT).unwrap(), 3);
    serving.stop();
    // The session knows it before the client has looked.
    let began = Instant::now();
    let has_failed = |ready: Vec<Ready>| {
        ready.iter().any(|ready| matches!(ready, Ready::Vqp(vqp) if vqp.failure().is_some()))
    };
    while !has_failed(session.poll_ready().unwrap()) {
        assert!(began.elapsed() < WAIT.unwrap(), "the server's end is missed");
    }
    let error = client.start(ADD, &(1, 2), WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
}
