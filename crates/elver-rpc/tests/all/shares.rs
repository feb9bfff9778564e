//! What one node may have of a server.

use std::sync::mpsc;
use std::time::Instant;

use crate::common::{WAIT, cluster, serve, session_at};
use elver_rpc::{ClientOptions, Code, Executed, Method, Responder, ServerOptions};

const ADD: Method<(u64, u64), u64> = Method::new(1, "test.Add");
const LATER: Method<u64, u64> = Method::new(2, "test.Later");
const ECHO: Method<Vec<u8>, Vec<u8>> = Method::new(3, "test.Echo");
const ECHO_LATER: Method<Vec<u8>, Vec<u8>> = Method::new(4, "test.EchoLater");

/// Who cancels what is worked on, and asks again, takes no more than he may have: it is worked on all the same.
#[test]
fn cancelled_calls_count_as_long_as_they_are_worked_on() {
    let (near, far) = cluster(66);
    let options = ServerOptions { deferred: 6, deferred_per_peer: 4, ..ServerOptions::default() };
    let (hand, handed) = mpsc::channel::<Responder<u64>>();
    let serving = serve(&near, options, move |server| {
        server.on_deferred(LATER, move |_, responder| hand.send(responder).unwrap());
    });
    let (here, there) = (session_at(&near), session_at(&far));
    let client = serving.client(&here).unwrap();
    let mut worked_on = Vec::new();
    for at in 0..4 {
        let call = client.start(LATER, &at, WAIT).unwrap();
        client.flush();
        worked_on.push(handed.recv_timeout(WAIT.unwrap()).unwrap());
        drop(call);
        while client.under_way() > 0 {
            client.flush();
        }
    }
    // Nor by coming anew.
    let again = serving.client(&here).unwrap();
    for client in [&client, &again] {
        let error = client.call(LATER, &5, WAIT).unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
        assert!(error.to_string().contains("of this client's node"), "{error}");
    }
    let other = serving.client(&there).unwrap();
    let call = other.start(LATER, &6, WAIT).unwrap();
    other.flush();
    handed.recv_timeout(WAIT.unwrap()).unwrap().respond(Ok(7));
    assert_eq!(call.wait().unwrap(), 7);
    worked_on.into_iter().for_each(|responder| responder.respond(Ok(8)));
    let call = client.start(LATER, &9, WAIT).unwrap();
    client.flush();
    handed.recv_timeout(WAIT.unwrap()).unwrap().respond(Ok(10));
    assert_eq!(call.wait().unwrap(), 10);
    assert_eq!(serving.stop().deferred, 0);
}

/// What a server holds for the clients of one node is bounded, however many they are: each had a bound of its own.
#[test]
fn what_is_held_for_one_nodes_clients_leaves_room_for_anothers() {
    const LEN: usize = 200_000;
    let (near, far) = cluster(68);
    // A response as long as a request is held, before the request's place is free.
    let options = ServerOptions { held_bytes_per_peer: 500_000, ..ServerOptions::default() };
    let (hand, handed) = mpsc::channel::<Responder<Vec<u8>>>();
    let serving = serve(&near, options, move |server| {
        server.on_deferred(ECHO_LATER, move |_, responder| hand.send(responder).unwrap());
        server.on(ECHO, |bytes: Vec<u8>, _| Ok(bytes));
    });
    let (here, there) = (session_at(&near), session_at(&far));
    let bytes = vec![7; LEN];
    let clients = [(); 2].map(|()| serving.client(&here).unwrap());
    let holding = clients.each_ref().map(|client| {
        let call = client.start(ECHO_LATER, &bytes, WAIT).unwrap();
        let began = Instant::now();
        loop {
            client.flush();
            if let Ok(responder) = handed.try_recv() {
                break (call, responder);
            }
            assert!(began.elapsed() < WAIT.unwrap(), "a request as long as may be held is taken");
        }
    });
    // By whichever client.
    for client in &clients {
        let error = client.call(ECHO, &bytes, WAIT).unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
        assert!(error.to_string().contains("of this client's node"), "{error}");
    }
    let other = serving.client(&there).unwrap();
    assert_eq!(other.call(ECHO, &bytes, WAIT).unwrap(), bytes);
    for (call, responder) in holding {
        responder.respond(Ok(vec![8]));
        assert_eq!(call.wait().unwrap(), [8]);
    }
    assert_eq!(clients[0].call(ECHO, &bytes, WAIT).unwrap(), bytes);
    drop(clients);
    drop(other);
    assert_eq!(serving.stop().held_bytes, 0);
}

/// One node's clients leave room for those of others.
#[test]
fn a_node_has_as_many_clients_and_bytes_as_one_may() {
    let (near, far) = cluster(64);
    let rings = ClientOptions::default().ring;
    let of_client: u64 =
        [rings.there, rings.back].map(|config| config.check().unwrap().bytes()).iter().sum();
    let limits = [(2, u64::MAX), (usize::MAX, 2 * of_client), (usize::MAX, 3 * of_client - 1)];
    for (pairs_per_peer, bytes_per_peer) in limits {
        let mut options = ServerOptions::default();
        options.listener.pairs_per_peer = pairs_per_peer;
        options.listener.bytes_per_peer = bytes_per_peer;
        let serving = serve(&near, options, |server| server.on(ADD, |(a, b), _| Ok(a + b)));
        let (here, there) = (session_at(&near), session_at(&far));
        let (first, second) = (serving.client(&here).unwrap(), serving.client(&here).unwrap());
        let error = serving.client(&here).unwrap_err();
        assert_eq!((error.code(), error.executed), (Code::ResourceExhausted, Executed::No));
        assert!(error.to_string().contains("of this node"), "{error}");
        // Another node's is welcome.
        let other = serving.client(&there).unwrap();
        for client in [&first, &second, &other] {
            assert_eq!(client.call(ADD, &(3, 4), WAIT).unwrap(), 7);
        }
        drop(first);
        let began = Instant::now();
        while serving.client(&here).is_err() {
            assert!(began.elapsed() < WAIT.unwrap(), "the place of who has gone is free");
        }
        let counters = serving.stop();
        assert!(counters.rings.beyond_share >= 1, "{counters:?}");
        assert_eq!(counters.rings.beyond_share, counters.rings.refused);
        assert_eq!(counters.refused, 0);
    }
}
