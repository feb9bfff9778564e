//! What a node says last.

use std::time::Duration;

use elver_portal::{Completion, NodeEnd, Socket};
use elver_verbs::Wc;

use crate::silent;
use crate::{Error, Ready, Session, Vqp};

const SOURCE: u32 = 9;

/// A session with a bound VQP, whose node tells a message and a completion of it and is gone, all while its user sleeps.
fn told_last() -> (Session, Vqp) {
    let (session, socket, mut node): (Session, Socket, NodeEnd) = silent::session();
    let vqp = silent::vqp(&session);
    for (wr_id, source) in [(1, Some(SOURCE)), (2, None)] {
        let wc = Wc { wr_id, ..Wc::default() };
        assert!(node.complete(&Completion { vqp: 1, source, wc }).unwrap());
    }
    drop((socket, node));
    // As the sleeper does when it is woken.
    assert!(session.inner.borrow_mut().link.file(0).is_err());
    (session, vqp)
}

fn is_gone<T: std::fmt::Debug>(told: Result<T, Error>) {
    assert!(matches!(told, Err(Error::NodeGone)), "{told:?}");
}

/// It was lost: the look that took it in met the end as well.
#[test]
fn a_message_is_there_though_the_node_has_gone() {
    let soon = Some(Duration::from_secs(30));
    let pop = |vqp: &Vqp| vqp.qpop_msgs();
    let wait = |vqp: &Vqp| vqp.wait_msgs(soon);
    for take in [&pop as &dyn Fn(&Vqp) -> _, &wait] {
        let (_session, vqp) = told_last();
        let messages = take(&vqp).unwrap();
        assert_eq!(messages.iter().map(|it| it.wc.wr_id).collect::<Vec<_>>(), [1]);
        is_gone(take(&vqp));
        is_gone(take(&vqp));
    }
}

/// And where another call has met the end before.
#[test]
fn what_the_node_told_is_there_behind_its_end() {
    let soon = Some(Duration::from_secs(30));
    let (session, vqp) = told_last();
    assert!(session.poll().unwrap());
    is_gone(session.poll());
    let is_of = |ready: Vec<Ready>| matches!(&ready[..], [Ready::Vqp(it)] if it.id() == vqp.id());
    assert!(is_of(session.poll_ready().unwrap()));
    assert!(is_of(session.wait_ready(soon).unwrap()));
    let mut wcs = [Wc::default(); 4];
    assert_eq!((vqp.wait_cq(&mut wcs, soon).unwrap(), wcs[0].wr_id), (1, 2));
    assert_eq!(vqp.wait_msgs(soon).unwrap().len(), 1);
    is_gone(session.poll_ready());
    is_gone(session.wait_ready(soon));
    is_gone(vqp.wait_cq(&mut wcs, soon));
    is_gone(vqp.poll_cq(&mut wcs));
}

/// The look that found a completion in it dropped why.
#[test]
fn why_the_node_ends_a_session_is_told_behind_all_that_it_told() {
    let (session, socket, mut node) = silent::session();
    let vqp = silent::vqp(&session);
    let mut wcs = [Wc::default()];
    for wr_id in [1, 2] {
        let wc = Wc { wr_id, ..Wc::default() };
        assert!(node.complete(&Completion { vqp: 1, source: None, wc }).unwrap());
    }
    session.poll().unwrap();
    let why = Error::Rejected { text: "enough".into() };
    session.inner.borrow_mut().end = Some(why);
    for wr_id in [1, 2] {
        assert_eq!((vqp.wait_cq(&mut wcs, None).unwrap(), wcs[0].wr_id), (1, wr_id));
        assert!(!session.arm().unwrap());
    }
    let told = vqp.wait_cq(&mut wcs, None);
    assert!(matches!(&told, Err(Error::Rejected { text }) if text == "enough"), "{told:?}");
    drop(socket);
}
