//! Nodes of these tests, and groups at them: each rank a thread with a session of its own.

use elver::Session;
use elver::node::config::Config as NodeConfig;
use elver_msg::{Address, Group, Options};
use elver_testkit::Place;

pub use elver_testkit::{TestNode, WAIT};

/// Where nodes of these tests are.
pub const PLACE: Place =
    Place { name: "msg", network: 17, udp_ports: 30_000, registry_ports: 31_000 };

/// Which group it is.
pub const TOKEN: u128 = 0x5eed;
/// A rank's port is behind it.
const PORTS: u16 = 100;

/// As [`Place::config`].
pub fn config(group: u8, host: u8) -> NodeConfig {
    PLACE.config(group, host)
}

/// As [`Place::cluster`].
pub fn cluster(group: u8) -> (TestNode, TestNode) {
    PLACE.cluster(group, |_| ())
}

/// As [`Place::both_ways`].
pub fn both_ways_at(group: u8, much: bool, test: impl Fn(&TestNode)) {
    PLACE.both_ways(group, much, test);
}

pub fn session_at(node: &TestNode) -> Session {
    Session::connect(&node.path).unwrap()
}

/// Where so many ranks are that stand at some nodes in turn.
pub fn addresses(nodes: &[&TestNode], size: u32) -> Vec<Address> {
    let address = |rank: u32| {
        let node = nodes[rank as usize % nodes.len()];
        Address { gid: node.gid, port: PORTS + rank as u16 }
    };
    (0..size).map(address).collect()
}

/// One rank of a group at some nodes.
pub fn join(nodes: &[&TestNode], rank: u32, size: u32, options: Options) -> Group {
    let session = session_at(nodes[rank as usize % nodes.len()]);
    Group::join(&session, rank, &addresses(nodes, size), TOKEN, options).unwrap()
}

/// Runs all ranks of a group, at these nodes in turn; what each gives, by rank.
pub fn together<T: Send>(
    nodes: &[&TestNode],
    size: u32,
    options: Options,
    run: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| scope.spawn(move || run(join(nodes, rank, size, options))))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What a message has in it.
pub fn content(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (((id * 31 + at) * 0x9e37) >> 5) as u8).collect()
}
