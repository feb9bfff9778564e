//! Small calls allocate nothing, while neither the ends nor the node sleep: neither those that go one by one nor
//! those that are pipelined.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TestNode, WAIT, config, serve, session_at};
use elver_ring::ListenerOptions;
use elver_rpc::{Client, ClientOptions, Method, ServerOptions};
use elver_testkit::allocations;

const ECHO: Method<[u8; 64], [u8; 64]> = Method::new(1, "test.Echo");
const BYTES: Method<[u8; 64], [u8; 64]> = Method::new(2, "test.Bytes");
/// What the server's thread has allocated by now.
const COUNT: Method<(), u64> = Method::new(3, "test.Count");
const CALLS: u64 = 10_000;
const UNDER_WAY: usize = 16;

#[test]
fn nothing_is_allocated_for_a_small_call() {
    // A node that sleeps is woken by a message, which the session makes.
    let mut config = config(40, 1);
    config.engine.spin_us = 1_000_000;
    let node = TestNode::start(config);
    let answered = Arc::new(AtomicU64::new(0));
    let count = answered.clone();
    // Who sleeps is woken by a message of the node's, for which the session makes room: both ends look.
    let spin = Duration::from_secs(60);
    let listener = ListenerOptions { spin, ..ServerOptions::default().listener };
    let options = ServerOptions { listener, ..ServerOptions::default() };
    let serving = serve(&node, options, move |server| {
        server.on(ECHO, |bytes, _| Ok(bytes));
        server.on_bytes(BYTES, move |bytes, _, reply| {
            count.fetch_add(1, Ordering::Relaxed);
            reply.extend_from_slice(bytes);
            Ok(())
        });
        server.on(COUNT, |(), _| Ok(allocations()));
    });
    let session = session_at(&node);
    let mut options = ClientOptions::default();
    options.ring.spin = spin;
    let client = Client::connect(&session, node.gid, serving.port, options, WAIT).unwrap();
    let mut marks = Vec::new();
    let mut calls = std::collections::VecDeque::with_capacity(UNDER_WAY);
    // The first half is not counted: queues grow to what they need.
    for _ in 0..2 {
        let theirs = client.call(COUNT, &(), WAIT).unwrap();
        marks.push((allocations(), theirs));
        for at in 0..CALLS {
            let request = [at as u8; 64];
            if at % 2 == 0 {
                assert_eq!(client.call(ECHO, &request, WAIT).unwrap(), request);
                continue;
            }
            calls.push_back((at, client.start(BYTES, &request, WAIT).unwrap()));
            if calls.len() == UNDER_WAY {
                let (at, call) = calls.pop_front().unwrap();
                assert_eq!(call.wait().unwrap(), [at as u8; 64]);
            }
        }
        for (at, call) in calls.drain(..) {
            assert_eq!(call.wait().unwrap(), [at as u8; 64]);
        }
    }
    let (mine, theirs) = (allocations(), client.call(COUNT, &(), WAIT).unwrap());
    assert_eq!(answered.load(Ordering::Relaxed), CALLS);
    let (mine_before, theirs_before) = marks[1];
    // A session makes room when it looks at its socket, every 50 ms, and for a message to a node that has
    // looked away, as it does when a thread got no core for a millisecond. That is a few dozen times, and an
    // allocation in either kind of call would be 5000.
    for (who, counted) in
        [("the client", mine - mine_before), ("the server", theirs - theirs_before)]
    {
        println!("{who}: {counted} in {CALLS} calls");
        assert!(counted < CALLS / 20, "{who}: {counted} in {CALLS} calls");
    }
}
