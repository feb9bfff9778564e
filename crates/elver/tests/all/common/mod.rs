//! Nodes of these tests, sessions at them, and WRs that end well.

use elver::{AccessFlags, Payload, SendFlags, SendOp, SendWr, Session, Sge, Vqp, Wc, WcStatus};
use elver_node::config::Config;
use elver_testkit::Place;

pub use elver_testkit::{TestNode, WAIT};

/// Where nodes of these tests are.
pub const PLACE: Place =
    Place { name: "test", network: 0, udp_ports: 21_000, registry_ports: 22_000 };

pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// As [`Place::config`].
pub fn config(group: u8, host: u8) -> Config {
    PLACE.config(group, host)
}

/// A node as [`Place::alone`].
pub fn alone(group: u8) -> TestNode {
    TestNode::start(PLACE.alone(group))
}

/// As [`Place::cluster`].
pub fn cluster(group: u8, edit: impl Fn(&mut Config)) -> (TestNode, TestNode) {
    PLACE.cluster(group, edit)
}

pub fn session_at(node: &TestNode) -> Session {
    Session::connect(&node.path).unwrap()
}

pub fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    let payload = Payload::Sges(sges);
    SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None }
}

/// Posts a WR and waits for its completion.
pub fn run(vqp: &Vqp, wr: SendWr<'_>) -> Wc {
    vqp.post_send(&[wr]).unwrap();
    completion(vqp)
}

pub fn completion(vqp: &Vqp) -> Wc {
    let mut wcs = [Wc::default()];
    assert_eq!(vqp.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    wcs[0]
}

#[track_caller]
pub fn succeeds(vqp: &Vqp, wr: SendWr<'_>) {
    let wr_id = wr.wr_id;
    let wc = run(vqp, wr);
    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id));
}
