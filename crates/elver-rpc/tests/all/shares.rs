//! What one node may have of a server.

use std::time::Instant;

use crate::common::{WAIT, cluster, serve, session_at};
use elver_rpc::{ClientOptions, Code, Executed, Method, ServerOptions};

const ADD: Method<(u64, u64), u64> = Method::new(1, "test.Add");

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
