//! Memory at NUMA nodes. Where its pages lie, the lab's scenario `numa` tells, on a machine that has two.

use elver::{AccessFlags, Error, Mr, Numa, Placement, RefusalCode, SendOp, Session, VqpOptions};
use elver_portal::memfd::{self, Pages};

use crate::common::{ALL, alone, session_at, succeeds, wr};

const PAGE: u64 = 4_096;

/// Whether a small region has a file of its own: such a one begins at a page. What is made goes to the others, since a place of the
/// arena that has come back would be the next one's.
fn is_apart(session: &Session, placement: Placement, others: &mut Vec<Mr>) -> bool {
    // No piece of the arena begins at a page so.
    let before = session.alloc(64, ALL).unwrap();
    let mr = session.alloc_placed(64, ALL, placement).unwrap();
    let is_behind = mr.addr() == before.addr() + 64;
    assert_eq!(mr.addr().is_multiple_of(PAGE), !is_behind);
    others.extend([before, mr]);
    !is_behind
}

/// Whether a wish is heard here: a container may forbid it.
fn may_wish() -> bool {
    let Some(&node) = Numa::nodes().last() else { return false };
    memfd::create_near("test", PAGE, Pages::Small, Some(node)).is_ok_and(|(_, is_near)| is_near)
}

#[test]
fn small_memory_stands_in_the_arena_where_there_is_one_node() {
    let node = alone(235);
    let session = session_at(&node);
    // So that the next one does not begin at a page.
    let mut all = vec![session.alloc(64, ALL).unwrap()];
    let there = Numa::nodes().first().map_or(Numa::Any, |node| Numa::Node(*node));
    let has_choice = Numa::nodes().len() > 1;
    for numa in [Numa::Here, there] {
        let placement = Placement { numa, ..Placement::default() };
        assert_eq!(is_apart(&session, placement, &mut all), has_choice, "{numa:?}");
    }
    let anywhere = Placement { numa: Numa::Any, ..Placement::default() };
    assert!(!is_apart(&session, anywhere, &mut all));
    for placement in [Placement { huge: true, ..anywhere }, Placement { apart: true, ..anywhere }] {
        assert!(is_apart(&session, placement, &mut all), "{placement:?}");
    }
}

#[test]
fn placed_memory_is_read_and_written_as_any_other() {
    let node = alone(236);
    let (here, there) = (session_at(&node), session_at(&node));
    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    let nodes = Numa::nodes().iter().map(|node| Numa::Node(*node));
    for numa in [Numa::Any, Numa::Here].into_iter().chain(nodes) {
        let placement = Placement { numa, ..Placement::default() };
        let local = here.alloc_placed(1 << 20, AccessFlags::LOCAL_WRITE, placement).unwrap();
        let remote = there.alloc_placed(1 << 20, ALL, placement).unwrap();
        remote.write(5_000, b"from there").unwrap();
        succeeds(&vqp, wr(1, SendOp::Read(remote.remote(5_000)), &[local.sge(900_000, 10)]));
        let mut bytes = [0; 10];
        local.read(900_000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from there", "{numa:?}");
    }
    let unplaced = node.thread.status().unwrap().engine["regions_unplaced"];
    assert!(unplaced == 0 || !may_wish(), "{unplaced}");
}

#[test]
fn a_numa_node_that_is_not_there_is_refused_and_nothing_is_made() {
    let node = alone(237);
    let session = session_at(&node);
    let Some(last) = Numa::nodes().last() else {
        // Of a system that tells of no nodes nobody knows which are not there.
        return;
    };
    for absent in [last + 1, 1_023, u16::MAX] {
        let placement = Placement { numa: Numa::Node(absent), ..Placement::default() };
        match session.alloc_placed(4_096, ALL, placement).unwrap_err() {
            Error::Refused { code, text, .. } => {
                assert_eq!(code, RefusalCode::OutOfRange);
                assert!(text.contains(&absent.to_string()), "{text}");
            }
            error => panic!("{error}"),
        }
    }
    let users = node.thread.status().unwrap().users;
    assert_eq!(users.iter().map(|user| user.mrs).sum::<u32>(), 0);
}
