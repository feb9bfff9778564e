//! Processes that are killed: a client hears it with its calls under way, and a server's handlers hear that
//! nobody waits.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{TestNode, WAIT, config};
use elver::{Gid, Session};
use elver_rpc::{
    Client, ClientOptions, Code, Executed, Method, Responder, Server, ServerOptions, Sink, Status,
};

const SOCKET: &str = "ELVER_RPC_TEST_SOCKET";
const ADDRESS: &str = "ELVER_RPC_TEST_ADDRESS";

const NEVER: Method<u64, u64> = Method::new(1, "test.Never");
const ADD: Method<(u64, u64), u64> = Method::new(2, "test.Add");
const PUT: Method<(), ()> = Method::new(3, "test.Put");

/// A process that ends when this is dropped, and what it said first.
struct Process(Child, String);

impl Process {
    /// Runs a test of this program as a process of its own, until it has said a line.
    fn start(test: &str, node: &TestNode, address: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, &node.path)
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        Process(child, line.trim().to_string())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let session = Session::connect(socket).unwrap();
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
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let session = Session::connect(socket).unwrap();
    let port = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let options = ClientOptions::default();
    let client = Client::connect(&session, session.gid(), port, options, WAIT).unwrap();
    let call = client.start(NEVER, &1, None).unwrap();
    client.flush();
    eprintln!("ready");
    let _ = call.wait();
}

fn client(session: &Session, gid: Gid, process: &Process) -> Client {
    let port = process.1.parse().unwrap();
    Client::connect(session, gid, port, ClientOptions::default(), WAIT).unwrap()
}

#[test]
fn a_server_that_is_killed_fails_the_calls_under_way() {
    let node = TestNode::start(config(30, 1));
    let session = node.session();
    let process = Process::start("process_that_is_a_server", &node, "");
    let client = client(&session, node.gid, &process);
    assert_eq!(client.call(ADD, &(1, 2), WAIT).unwrap(), 3);
    let calls = [1, 2, 3].map(|at| client.start(NEVER, &at, None).unwrap());
    client.flush();
    process.kill();
    let killed = Instant::now();
    for call in calls {
        let error = call.wait().unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::Maybe));
    }
    println!("heard after {:?}", killed.elapsed());
    let error = client.call(ADD, &(1, 2), None).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::No));
    assert!(error.cause.is_some(), "{error}");
    assert_eq!((client.under_way(), client.counters().failed), (0, 3));
}

#[test]
fn a_server_that_is_killed_ends_a_stream() {
    let node = TestNode::start(config(31, 1));
    let session = node.session();
    let process = Process::start("process_that_is_a_server", &node, "");
    let client = client(&session, node.gid, &process);
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
    let serving = node.serve(ServerOptions::default(), move |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
        server.on_deferred(NEVER, move |_, responder: Responder<u64>| {
            tell.send(responder).unwrap();
        });
    });
    let session = node.session();
    let other = serving.client(&session).unwrap();
    let process = Process::start("process_that_is_a_client", &node, &serving.port.to_string());
    assert_eq!(process.1, "ready");
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
