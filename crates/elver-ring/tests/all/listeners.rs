//! What comes to a listener's port, whoever takes it in.

use crate::common::{TestNode, config, session_at};
use elver::Session;
use elver_ring::{Carrier, Connecting, Ends, Listener, ListenerOptions, Options, Pause};
use elver_testkit::wait_for;

fn offer(session: &Session, listener: &Listener) -> Connecting {
    let gid = session.gid();
    Connecting::start(session, gid, listener.port(), Options::default()).unwrap()
}

/// Waits until offers have come to the port.
fn wait_for_offers(offered: &mut [Connecting]) {
    wait_for("the offers to come", || {
        assert!(offered.iter_mut().all(|offer| offer.poll().unwrap().is_none()), "nobody answers");
        offered.iter().all(|offer| offer.deadline().is_some()).then_some(())
    });
}

/// Both ends of a pair: the listener's, and the other.
fn pair(session: &Session, listener: &Listener) -> [Ends; 2] {
    let mut connecting = offer(session, listener);
    let (mut ours, mut theirs) = (None, None);
    wait_for("a pair", || {
        ours = ours.take().or(listener.try_accept().unwrap());
        if theirs.is_none() {
            theirs = connecting.poll().unwrap();
        }
        (ours.is_some() && theirs.is_some()).then_some(())
    });
    [ours.unwrap(), theirs.unwrap()]
}

/// It was told to the wait, which has no use for it: who had offered waited until the sleep was over.
#[test]
fn a_greeting_that_a_rings_wait_takes_in_is_looked_for_before_the_next_sleep() {
    let node = TestNode::start(config(100, 1));
    let (session, others) = (session_at(&node), session_at(&node));
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let [ours, _theirs] = pair(&others, &listener);
    let mut offered = [offer(&others, &listener)];
    wait_for_offers(&mut offered);
    let mut pause = Pause::new(None);
    let before = listener.counters().asked;
    wait_for("a wait to take in the greeting", || {
        ours.receiver.carrier().rest(&mut pause).unwrap();
        (listener.counters().asked > before).then_some(())
    });
    let mut sleeps = || ours.sender.carrier().lie_down(&mut pause).unwrap().is_some();
    assert!(!sleeps(), "a greeting came");
    // Who does not look for it all the same sleeps.
    assert!(sleeps());
    assert!(listener.try_accept().unwrap().is_some());
}
