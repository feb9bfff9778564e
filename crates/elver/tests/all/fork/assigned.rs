//! Queue pairs that were prepared without a destination, and keep the one that a child has found for them.

use elver::{Error, Gid, HeirState, PrepareOptions, SendOp, Session, Vqp};
use elver_testkit::Role;

use super::{Child, WORDS, count, parent, until};
use crate::common::{ALL, cluster, succeeds, wr};

pub(super) fn assigns(role: &Role) {
    let session = Session::connect(&role.socket).unwrap();
    let region = session.alloc(4_096, ALL).unwrap();
    region.write(0, WORDS).unwrap();
    let options = PrepareOptions { unassigned: 2, ..PrepareOptions::default() };
    let heirs = session.prepare(1, &[], options).unwrap();
    let own = session.gid();
    let away = Gid::from("127.255.1.9".parse::<std::net::IpAddr>().unwrap());
    // What a child finds, and the second one's words, read over what it has or connects itself.
    let child = |connects: bool| {
        let child = Child::new(|| {
            let heir = heirs.take(0).unwrap();
            let mr = heir.mr.as_ref().unwrap();
            let found: Vec<bool> = heir.unassigned.iter().map(Vqp::is_connected).collect();
            let refused =
                heirs.assign(0, 0, None).map_err(|error| matches!(error, Error::Invalid { .. }));
            assert_eq!(refused, Err(true), "a child's");
            let vqp = &heir.unassigned[1];
            if connects {
                vqp.qconnect(own, 0).unwrap();
            }
            if vqp.is_connected() {
                succeeds(
                    vqp,
                    wr(1, SendOp::Read(region.remote(0)), &[mr.sge(64, WORDS.len() as u32)]),
                );
                let mut bytes = [0; WORDS.len()];
                mr.read(64, &mut bytes).unwrap();
                assert_eq!(&bytes, WORDS);
            }
            format!("{found:?}")
        });
        let said = child.ends();
        until(&heirs, 0, |state| state == HeirState::Free);
        said
    };
    assert_eq!(child(false), "[false, false]");
    // What a child connects is its own, until its parent says that it stays.
    assert_eq!(child(true), "[false, false]");
    heirs.assign(0, 1, Some(own)).unwrap();
    assert!(!heirs.is_connected(0, 1));
    // It holds from when the session is made anew.
    assert_eq!(child(true), "[false, false]");
    let connected = [(0, 0), (0, 1), (0, 2), (1, 0)].map(|(heir, at)| heirs.is_connected(heir, at));
    assert_eq!(connected, [false, true, false, false]);
    assert_eq!(child(false), "[false, true]");
    assert_eq!(child(false), "[false, true]");
    // Who is away is tried once, and then no more.
    heirs.assign(0, 0, Some(away)).unwrap();
    for _ in 0..2 {
        assert_eq!(child(false), "[false, true]");
    }
    heirs.assign(0, 1, None).unwrap();
    assert_eq!(child(false), "[false, true]");
    assert_eq!(child(false), "[false, false]");
    for (heir, at) in [(1, 0), (0, 2)] {
        assert!(matches!(heirs.assign(heir, at, Some(own)), Err(Error::Invalid { .. })));
    }
}

#[test]
fn a_queue_pair_keeps_the_destination_that_a_child_has_found() {
    let (meta, node) = cluster(189, |_| {});
    assert_eq!(parent(&node, "assigns", &meta).says(), "done");
    assert_eq!(count(&node.thread, "heirs_inherited"), 9);
}
