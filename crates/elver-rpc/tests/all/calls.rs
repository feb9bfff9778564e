//! Calls between a client and a server, each on a thread, over rings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::{
    Serving, TestNode, WAIT, both_ways_at, cluster, config, content, serve, session_at,
};
use elver::Policy;
use elver_rpc::{
    Client, ClientOptions, Code, Executed, Limits, Method, Responder, Server, ServerOptions, Sink,
    Source, Status,
};
use elver_testkit::wait_for;

const ADD: Method<(u64, u64), u64> = Method::new(1, "test.Add");
const ECHO: Method<Vec<u8>, Vec<u8>> = Method::new(2, "test.Echo");
const LATER: Method<u64, u64> = Method::new(3, "test.Later");
const PUT: Method<u64, u64> = Method::new(4, "test.Put");
const GET: Method<(u64, u64), u64> = Method::new(5, "test.Get");
const NEVER: Method<u64, u64> = Method::new(6, "test.Never");
const NOT_THERE: Method<u64, u64> = Method::new(99, "test.NotThere");

/// Checks the bytes of a stream, and counts them.
struct Checked {
    id: u64,
    at: usize,
}

impl Sink for Checked {
    type Response = u64;

    fn write(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let end = self.at + bytes.len();
        if content(self.id, end)[self.at..] != *bytes {
            return Err(Status::new(Code::DataLoss, format!("wrong bytes behind {}", self.at)));
        }
        self.at = end;
        Ok(())
    }

    fn end(&mut self) -> Result<u64, Status> {
        Ok(self.at as u64)
    }
}

/// Gives so many bytes.
struct Made {
    bytes: Vec<u8>,
    at: usize,
}

impl Source for Made {
    type Response = u64;

    fn read(&mut self, room: &mut [u8]) -> Result<usize, Status> {
        let len = room.len().min(self.bytes.len() - self.at);
        room[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }

    fn end(&mut self) -> Result<u64, Status> {
        Ok(self.at as u64)
    }
}

fn methods(server: &mut Server) {
    server.on(ADD, |(one, other), _| {
        one.checked_add(other).ok_or_else(|| Status::new(Code::OutOfRange, "the sum is too large"))
    });
    server.on(ECHO, |bytes, _| Ok(bytes));
    server.on_upload(PUT, |id, _| Ok(Checked { id, at: 0 }));
    server.on_download(GET, |(id, len), _| Ok(Made { bytes: content(id, len as usize), at: 0 }));
}

fn served(group: u8, options: ServerOptions) -> (TestNode, Serving) {
    let node = TestNode::start(config(group, 1));
    let serving = serve(&node, options, methods);
    (node, serving)
}

/// Clients and server by an RC queue pair of each connection's own: who connects while the server sleeps is answered.
#[test]
fn calls_go_by_leases_at_both_ends() {
    let (one, other) = cluster(12);
    let mut options = ServerOptions::default();
    options.listener.policy = Policy::Leased;
    let server = serve(&one, options, |server| {
        server.on(ADD, |(one, other), _| Ok(one + other));
    });
    let session = session_at(&other);
    let mut options = ClientOptions::default();
    options.ring.policy = Policy::Leased;
    let clients = [(); 2]
        .map(|()| Client::connect(&session, server.gid, server.port, options, WAIT).unwrap());
    for client in &clients {
        assert_eq!(client.call(ADD, &(3, 4), WAIT).unwrap(), 7);
    }
    for node in [&one, &other] {
        let vqps = node.thread.status().unwrap().vqps;
        let leased = vqps.iter().filter(|vqp| vqp.via.as_deref() == Some("leased")).count();
        assert_eq!(leased, 2, "{vqps:?}");
    }
}

#[test]
fn calls_are_answered_or_fail_with_a_status() {
    both_ways_at(1, false, |node| {
        let serving = serve(node, ServerOptions::default(), methods);
        let session = session_at(node);
        let client = serving.client(&session).unwrap();
        assert_eq!(client.call(ADD, &(3, 4), None).unwrap(), 7);
        let error = client.call(ADD, &(u64::MAX, 1), WAIT).unwrap_err();
        assert_eq!(error.status, Status::new(Code::OutOfRange, "the sum is too large"));
        assert_eq!(error.executed, Executed::Maybe);
        let error = client.call(NOT_THERE, &1, WAIT).unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::Unimplemented, Executed::No));
        assert!(error.to_string().contains("99"), "{error}");
        // What cannot be read, on either side.
        let short: Method<u8, u64> = Method::new(ADD.id(), "test.Add");
        assert_eq!(client.call(short, &1, WAIT).unwrap_err().code(), Code::InvalidArgument);
        let narrow: Method<(u64, u64), u32> = Method::new(ADD.id(), "test.Add");
        assert_eq!(client.call(narrow, &(1, 1), WAIT).unwrap_err().code(), Code::Internal);
        // A stream where none is taken, and none where one is.
        let upload = client.upload(ADD, &(1, 2), WAIT).unwrap();
        assert_eq!(upload.finish().unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(client.call(PUT, &1, WAIT).unwrap_err().code(), Code::InvalidArgument);
        // One that comes back where none is taken, more than its window. It ended all other calls.
        let other = client.start(ADD, &(5, 6), WAIT).unwrap();
        let error = client.call(GET, &(3, 1 << 20), WAIT).unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::InvalidArgument, Executed::Maybe));
        assert!(error.to_string().contains("as a download"), "{error}");
        assert_eq!(other.wait().unwrap(), 11);
        assert_eq!(client.call(ADD, &(1, 1), WAIT).unwrap(), 2, "the connection is well");
        let counters = client.counters();
        assert_eq!((counters.succeeded, counters.faults), (4, 0));
        drop(client);
        let counters = serving.stop();
        assert_eq!((counters.calls.requests, counters.calls.faults), (10, 0));
    });
}

/// A stream came whole, and its bytes were withheld for the response behind it, which was decoded before each was read.
#[test]
fn a_response_that_cannot_be_read_takes_nothing_from_its_stream() {
    both_ways_at(46, false, |node| {
        let serving = serve(node, ServerOptions::default(), methods);
        let session = session_at(node);
        let client = serving.client(&session).unwrap();
        let narrow: Method<(u64, u64), u32> = Method::new(GET.id(), "test.Get");
        let mut download = client.download(narrow, &(3, 10_000), WAIT).unwrap();
        let began = Instant::now();
        while client.counters().succeeded == 0 {
            client.flush();
            assert!(began.elapsed() < WAIT.unwrap(), "the response comes");
        }
        let (mut bytes, mut part) = (Vec::new(), [0; 1_000]);
        loop {
            match download.read(&mut part).unwrap() {
                0 => break,
                len => bytes.extend_from_slice(&part[..len]),
            }
        }
        assert_eq!(bytes, content(3, 10_000));
        assert_eq!(download.finish().unwrap_err().code(), Code::Internal);
    });
}

#[test]
fn calls_are_pipelined_and_answered_in_any_order() {
    both_ways_at(2, true, |node| {
        let serving = serve(node, ServerOptions::default(), |server| {
            methods(server);
            let mut waiting: Vec<(u64, Responder<u64>)> = Vec::new();
            server.on_deferred(LATER, move |number, responder| {
                waiting.push((number, responder));
                if waiting.len() == 8 {
                    // In the reverse order, by another thread.
                    let all = std::mem::take(&mut waiting);
                    std::thread::spawn(move || {
                        for (number, responder) in all.into_iter().rev() {
                            responder.respond(Ok(number * 10));
                        }
                    });
                }
            });
        });
        let session = session_at(node);
        let client = serving.client(&session).unwrap();
        for round in 0..50 {
            let calls: Vec<_> =
                (0..8).map(|at| client.start(LATER, &(round * 8 + at), WAIT).unwrap()).collect();
            // Those that are asked for between are answered at once.
            let quick: Vec<_> =
                (0..40).map(|at| client.start(ADD, &(at, 1), WAIT).unwrap()).collect();
            for (at, call) in quick.into_iter().enumerate() {
                assert_eq!(call.wait().unwrap(), at as u64 + 1);
            }
            for (at, call) in calls.into_iter().enumerate() {
                assert_eq!(call.wait().unwrap(), (round * 8 + at as u64) * 10);
            }
        }
        assert_eq!(client.under_way(), 0);
        assert_eq!(client.counters().succeeded, 50 * 48);
    });
}

#[test]
fn who_waits_no_longer_is_told_and_the_handler_too() {
    both_ways_at(3, false, |node| {
        let (tell, kept) = mpsc::channel();
        let serving = serve(node, ServerOptions::default(), move |server| {
            methods(server);
            server.on_deferred(NEVER, move |_, responder: Responder<u64>| {
                tell.send(responder).unwrap();
            });
        });
        let session = session_at(node);
        let client = serving.client(&session).unwrap();
        let time = Duration::from_millis(30);
        let late = client.call(NEVER, &1, Some(time)).unwrap_err();
        assert_eq!((late.code(), late.executed), (Code::DeadlineExceeded, Executed::Maybe));
        let responder = kept.recv_timeout(WAIT.unwrap()).unwrap();
        // By the server's clock it may come a little later.
        while !responder.context().is_cancelled() || client.under_way() > 0 {
            client.flush();
        }
        drop(responder);

        let mut call = client.start(NEVER, &1, WAIT).unwrap();
        assert!(call.poll().is_none());
        let responder = kept.recv_timeout(WAIT.unwrap()).unwrap();
        assert!(!responder.context().is_cancelled());
        call.cancel();
        assert_eq!(call.wait().unwrap_err().code(), Code::Cancelled);
        while !responder.context().is_cancelled() {
            std::thread::yield_now();
        }
        // Its answer is dropped, and counted.
        responder.respond(Ok(1));

        drop(client.start(NEVER, &1, None).unwrap());
        let responder = kept.recv_timeout(WAIT.unwrap()).unwrap();
        while !responder.context().is_cancelled() {
            client.flush();
        }
        drop(responder);
        // Its slots are free again when the server has answered.
        while client.under_way() > 0 {
            client.flush();
        }
        let counters = client.counters();
        // Either end may have been the first to see that the deadline had passed.
        assert_eq!((counters.cancelled, counters.late), (1, 2 + counters.expired));
        // One that nobody answers.
        let call = client.start(NEVER, &1, WAIT).unwrap();
        client.flush();
        drop(kept.recv_timeout(WAIT.unwrap()).unwrap());
        assert_eq!(call.wait().unwrap_err().code(), Code::Internal);
        let too_late = client.start(ADD, &(1, 1), Some(Duration::ZERO)).unwrap_err();
        assert_eq!((too_late.code(), too_late.executed), (Code::DeadlineExceeded, Executed::No));
        assert_eq!(client.call(ADD, &(1, 1), WAIT).unwrap(), 2);
        drop(client);
        let counters = serving.stop();
        assert_eq!(counters.deferred, 0);
        assert_eq!(counters.calls.answers_dropped, 3);
    });
}

#[test]
fn messages_longer_than_a_frame_go_both_ways() {
    both_ways_at(4, true, |node| {
        let serving = serve(node, ServerOptions::default(), methods);
        let session = session_at(node);
        let client = serving.client(&session).unwrap();
        for len in [0, 87, 88, 89, 16_380, 16_384, 100_000, 3 << 20] {
            let bytes = content(len as u64, len);
            assert!(client.call(ECHO, &bytes, WAIT).unwrap() == bytes, "{len}");
        }
        // Many at once.
        let bytes = content(9, 200_000);
        let calls: Vec<_> = (0..20).map(|_| client.start(ECHO, &bytes, WAIT).unwrap()).collect();
        for call in calls {
            assert!(call.wait().unwrap() == bytes);
        }
    });
}

#[test]
fn streams_go_both_ways_between_nodes() {
    let (meta, other) = cluster(5);
    let serving = serve(&meta, ServerOptions::default(), methods);
    let session = session_at(&other);
    let client = serving.client(&session).unwrap();
    let bytes = content(7, 4 << 20);
    let mut upload = client.upload(PUT, &7, WAIT).unwrap();
    for piece in bytes.chunks(100_000) {
        upload.write(piece).unwrap();
    }
    assert_eq!(upload.finish().unwrap(), 4 << 20);

    let mut download = client.download(GET, &(7, 4 << 20), WAIT).unwrap();
    let (mut read, mut some) = (Vec::new(), vec![0; 70_000]);
    loop {
        match download.read(&mut some).unwrap() {
            0 => break,
            len => read.extend_from_slice(&some[..len]),
        }
    }
    assert!(read == bytes);
    assert_eq!(download.finish().unwrap(), 4 << 20);
    // Passed over, and empty ones.
    assert_eq!(client.download(GET, &(7, 1 << 20), WAIT).unwrap().finish().unwrap(), 1 << 20);
    assert_eq!(client.download(GET, &(7, 0), WAIT).unwrap().finish().unwrap(), 0);
    assert_eq!(client.upload(PUT, &7, WAIT).unwrap().finish().unwrap(), 0);
    // One that the server ends before its time.
    let mut wrong = client.upload(PUT, &7, WAIT).unwrap();
    let error = std::iter::repeat_with(|| wrong.write(&[1; 50_000])).find_map(Result::err).unwrap();
    assert_eq!(error.code(), Code::DataLoss);
}

#[test]
fn a_stream_that_nobody_reads_keeps_no_call_waiting() {
    let (node, serving) = served(6, ServerOptions::default());
    let session = session_at(&node);
    let client = serving.client(&session).unwrap();
    let mut slow = client.download(GET, &(1, 2 << 20), WAIT).unwrap();
    let mut upload = client.upload(PUT, &7, WAIT).unwrap();
    upload.write(&content(7, 1000)).unwrap();
    for at in 0..500 {
        assert_eq!(client.call(ADD, &(at, 1), WAIT).unwrap(), at + 1);
    }
    let (mut read, mut some) = (0, [0; 5_000]);
    loop {
        match slow.read(&mut some).unwrap() {
            0 => break,
            len => read += len,
        }
        client.call(ADD, &(1, 1), WAIT).unwrap();
    }
    assert_eq!(read, 2 << 20);
    assert_eq!(upload.finish().unwrap(), 1000);
    // One that is dropped in the middle is cancelled.
    let mut dropped = client.download(GET, &(1, 2 << 20), WAIT).unwrap();
    assert!(dropped.read(&mut some).unwrap() > 0);
    drop(dropped);
    while client.under_way() > 1 {
        client.flush();
    }
    drop(slow);
    drop(client);
    assert_eq!(serving.stop().calls.cancelled, 1);
}

#[test]
fn every_bound_says_what_it_is() {
    let limits = Limits { calls: 3, message_bytes: 5_000, held_bytes: 8_000, ..Limits::default() };
    let options = ServerOptions { limits, clients: 2, deferred: 2, ..ServerOptions::default() };
    let node = TestNode::start(config(7, 1));
    let (tell, kept) = mpsc::channel();
    let serving = serve(&node, options, move |server| {
        methods(server);
        server.on_deferred(NEVER, move |_, responder: Responder<u64>| {
            tell.send(responder).unwrap();
        });
        let big: Method<u64, Vec<u8>> = Method::new(20, "test.Big");
        server.on(big, |len, _| Ok(vec![1; len as usize]));
    });
    let session = session_at(&node);
    let client = serving.client(&session).unwrap();
    assert_eq!((client.server().calls, client.server().message_max), (3, 5_000));
    // Bytes of a message, there and back.
    assert_eq!(client.call(ECHO, &vec![1; 4_996], WAIT).unwrap().len(), 4_996);
    let error = client.call(ECHO, &vec![1; 4_997], WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
    assert!(error.to_string().contains("5001") && error.to_string().contains("5000"), "{error}");
    let big: Method<u64, Vec<u8>> = Method::new(20, "test.Big");
    let error = client.call(big, &20_000, WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::Maybe));
    // Calls that are under way.
    let calls = [1, 2].map(|at| client.start(NEVER, &at, WAIT).unwrap());
    client.flush();
    let kept = [kept.recv_timeout(WAIT.unwrap()).unwrap(), kept.recv().unwrap()];
    // Those that are worked on, of all clients.
    let other = serving.client(&session).unwrap();
    let error = other.call(NEVER, &1, WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
    let third = client.start(ADD, &(1, 1), WAIT).unwrap();
    let error = client.start(ADD, &(1, 1), WAIT).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
    assert_eq!(third.wait().unwrap(), 2);
    // Clients.
    let error = serving.client(&session).unwrap_err();
    assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
    assert!(error.to_string().contains("2 clients"), "{error}");
    // All of it is free again.
    kept.into_iter().for_each(|responder| responder.respond(Ok(5)));
    assert_eq!(calls.map(|call| call.wait().unwrap()), [5, 5]);
    drop(other);
    let began = Instant::now();
    while serving.client(&session).is_err() {
        assert!(began.elapsed().as_secs() < 30);
    }
    drop(client);
    let counters = serving.stop();
    assert!(counters.refused > 0 && counters.calls.exhausted == 1, "{counters:?}");
}

#[test]
fn an_answer_that_is_too_long_for_the_client_is_told() {
    let (node, serving) = served(8, ServerOptions::default());
    let session = session_at(&node);
    let limits = Limits { message_bytes: 30_000, ..Limits::default() };
    let options = ClientOptions { limits, ..ClientOptions::default() };
    let client = Client::connect(&session, node.gid, serving.port, options, WAIT).unwrap();
    let error = client.call(ECHO, &vec![1; 40_000], WAIT).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert_eq!(client.call(ECHO, &vec![1; 20_000], WAIT).unwrap().len(), 20_000);
}

#[test]
fn nobody_at_a_port_is_unavailable() {
    let node = TestNode::start(config(9, 1));
    let session = session_at(&node);
    let connect = |port, options| Client::connect(&session, node.gid, port, options, WAIT);
    let began = Instant::now();
    let error = connect(4_321, ClientOptions::default()).unwrap_err();
    println!("told after {:?}: {error}", began.elapsed());
    assert_eq!((error.code(), error.executed), (Code::Unavailable, Executed::No));
    assert!(error.cause.is_some());
    let serving = serve(&node, ServerOptions::default(), methods);
    let mut short = ClientOptions::default();
    (short.ring.there.slots, short.ring.there.slot_bytes) = (2, 64);
    (short.ring.there.alpha, short.ring.there.beta, short.ring.there.gamma) = (1, 1, 2);
    let error = connect(serving.port, short).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

/// Its end was dropped where it was found, which waits for a second if the client's node acknowledges nothing: all others
/// waited with it.
#[test]
fn a_client_whose_rings_are_too_short_is_let_go_beside_the_others() {
    let node = TestNode::start(config(110, 1));
    let (session, theirs) = (session_at(&node), session_at(&node));
    let mut server = Server::bind(&session, 0, ServerOptions::default()).unwrap();
    let short = elver_ring::Config {
        slots: 2,
        slot_bytes: 64,
        alpha: 1,
        beta: 1,
        gamma: 2,
        ..elver_ring::Config::default()
    };
    let options = elver_ring::Options {
        back: short,
        application: elver_rpc::APPLICATION,
        ..elver_ring::Options::default()
    };
    let mut connecting =
        elver_ring::Connecting::start(&theirs, node.gid, server.port(), options).unwrap();
    let ends = wait_for("an end of it", || {
        let came = connecting.poll();
        server.poll().unwrap();
        let counters = server.counters();
        (counters.refused == 1).then(|| (counters.closing, came.is_ok()))
    });
    assert_eq!(ends, (1, true), "it is said goodbye to while others are served");
    wait_for("the goodbye", || {
        server.poll().unwrap();
        (server.counters().closing == 0).then_some(())
    });
}

#[test]
fn many_clients_are_served_by_the_servers_of_a_group() {
    const SERVERS: u16 = 2;
    const FIRST: u16 = 7_000;
    let node = TestNode::start(config(10, 1));
    let counts: [Arc<AtomicU64>; 2] = Default::default();
    let servers: Vec<_> = (0..SERVERS)
        .map(|at| {
            let (path, count) = (node.path.clone(), counts[usize::from(at)].clone());
            let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let stopped = stop.clone();
            let (tell, told) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let session = elver::Session::connect(path).unwrap();
                let options = ServerOptions { group: (FIRST, SERVERS), ..ServerOptions::default() };
                let mut server = Server::bind(&session, FIRST + at, options).unwrap();
                server.on(ADD, move |(one, other), _| {
                    count.fetch_add(1, Ordering::Relaxed);
                    Ok(one + other)
                });
                tell.send(()).unwrap();
                server.run(&stopped).unwrap();
            });
            told.recv().unwrap();
            (stop, thread)
        })
        .collect();
    let session = session_at(&node);
    let clients: Vec<_> = (0..10)
        .map(|spread| {
            let options = ClientOptions { spread: Some(spread), ..ClientOptions::default() };
            Client::connect(&session, node.gid, FIRST, options, WAIT).unwrap()
        })
        .collect();
    for _ in 0..20 {
        let calls: Vec<_> =
            clients.iter().map(|client| client.start(ADD, &(1, 2), WAIT).unwrap()).collect();
        clients.iter().for_each(|client| {
            client.flush();
        });
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), 3));
    }
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [100, 100]);
    drop(clients);
    for (stop, thread) in servers {
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}

#[test]
fn a_time_beyond_all_clocks_is_no_time_at_all_past() {
    let (node, serving) = served(60, ServerOptions::default());
    let session = session_at(&node);
    let client = serving.client(&session).unwrap();
    // In µs these are more than 64 bits have; the last one's lowest 64 are 0.
    for seconds in [u64::MAX, u64::MAX / 1_000_000 + 1, 1 << 58] {
        let deadline = Some(Duration::from_secs(seconds));
        assert_eq!(client.call(ADD, &(1, 2), deadline).unwrap(), 3);
    }
}

/// Who answers from another thread ends the server's sleep.
#[test]
fn an_answer_from_another_thread_wakes_the_server() {
    let node = TestNode::start(config(61, 1));
    let (hand, handed) = mpsc::channel::<Responder<u64>>();
    let serving = serve(&node, ServerOptions::default(), move |server| {
        server.on_deferred(LATER, move |_, responder| hand.send(responder).unwrap());
    });
    let answering = std::thread::spawn(move || {
        for responder in handed {
            responder.respond(Ok(7));
        }
    });
    let session = session_at(&node);
    let client = serving.client(&session).unwrap();
    for _ in 0..2_000 {
        assert_eq!(client.call(LATER, &1, WAIT).unwrap(), 7);
    }
    drop(client);
    serving.stop();
    answering.join().unwrap();
}

/// A signal ends the wait for one call, where waits shall end by signals, and the connection stays.
#[test]
fn a_signal_ends_one_call_and_no_other() {
    use elver::{Session, SessionOptions};

    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; all zeros are a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let node = TestNode::start(config(82, 1));
    let server = serve(&node, ServerOptions::default(), |server| {
        methods(server);
        let mut kept = Vec::new();
        server.on_deferred(NEVER, move |_, responder: Responder<u64>| kept.push(responder));
    });
    let options =
        SessionOptions { spin: Duration::ZERO, end_on_signal: true, ..SessionOptions::default() };
    let session = Session::connect_with(Some(&node.path), options).unwrap();
    let client = server.client(&session).unwrap();
    // SAFETY: names this thread, which lives until the other was joined with.
    let me = unsafe { libc::pthread_self() } as usize;
    let done = Arc::new(AtomicU64::new(0));
    let other = client.start(NEVER, &2, None).unwrap();
    let call = client.start(NEVER, &1, None).unwrap();
    let ended = std::thread::scope(|scope| {
        let signals = done.clone();
        scope.spawn(move || {
            // One may come while the thread does not sleep yet.
            while signals.load(Ordering::Relaxed) == 0 {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        let ended = call.wait();
        done.store(1, Ordering::Relaxed);
        ended.unwrap_err()
    });
    assert_eq!((ended.code(), ended.executed), (Code::Cancelled, Executed::Maybe), "{ended}");
    assert!(ended.cause.is_none(), "the connection has not failed");
    assert!(!other.is_done());
    assert_eq!(client.call(ADD, &(1, 2), Some(WAIT.unwrap())).unwrap(), 3);
}
