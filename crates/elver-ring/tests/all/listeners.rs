//! What comes to a listener's port, whoever takes it in: the listener, its rings, tasks that are woken at once, at a node that
//! stands still.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::common::{TestNode, WAIT, at_one_that_stands, config, session_at};
use elver::tokio::AsyncSession;
use elver::{
    Layout, Payload, Policy, SendFlags, SendOp, SendWr, Session, SessionOptions, VqpOptions,
};
use elver_ring::{Carrier, Connecting, Ends, Error, Listener, ListenerOptions, Options, Pause};
use elver_testkit::{PATIENCE, wait_for};

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

thread_local! {
    /// What the waker below runs.
    static AT_ONCE: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs its task when it is woken, on the spot; one that runs already has looked by then.
struct Inline;

impl Wake for Inline {
    fn wake(self: Arc<Inline>) {
        if let Some(mut task) = AT_ONCE.take() {
            task();
            AT_ONCE.set(Some(task));
        }
    }
}

/// A task that accepts whenever it is woken: what it has.
fn accepts_at_once(session: &Session, listener: &Rc<Listener>) -> Rc<RefCell<Vec<Ends>>> {
    let accepted: Rc<RefCell<Vec<Ends>>> = Rc::default();
    let waker = Waker::from(Arc::new(Inline));
    let (woken, its, session) = (waker.clone(), accepted.clone(), session.clone());
    let listener = listener.clone();
    AT_ONCE.set(Some(Box::new(move || {
        let ends = listener.try_accept().unwrap();
        its.borrow_mut().extend(ends);
        session.wake_on_news(&woken);
    })));
    waker.wake();
    accepted
}

/// It was woken when the greeting had been taken, and before it waited: it found none, and slept on.
#[test]
fn a_task_that_is_woken_while_a_greeting_is_taken_in_finds_it() {
    let node = TestNode::start(config(107, 1));
    let (session, others) = (session_at(&node), session_at(&node));
    let listener = Rc::new(Listener::bind(&session, 0, ListenerOptions::default()).unwrap());
    let [ours, _theirs] = pair(&others, &listener);
    let accepted = accepts_at_once(&session, &listener);
    let mut offered = [offer(&others, &listener)];
    wait_for_offers(&mut offered);
    // What this does first is to take in what came to the port.
    let mut pause = Pause::new(None);
    let before = listener.counters().asked;
    wait_for("the greeting to be taken in", || {
        ours.sender.carrier().lie_down(&mut pause).unwrap();
        (listener.counters().asked > before).then_some(())
    });
    assert_eq!(accepted.borrow().len(), 1);
    AT_ONCE.take();
}

/// It took what was under way from whom it was waited for by, which had it in use.
#[test]
fn a_task_that_is_woken_while_a_pair_is_answered_may_accept_it() {
    let node = TestNode::start(config(108, 1));
    let (session, others) = (session_at(&node), session_at(&node));
    let options = ListenerOptions { policy: Policy::Leased, ..ListenerOptions::default() };
    let listener = Rc::new(Listener::bind(&session, 0, options).unwrap());
    let accepted = accepts_at_once(&session, &listener);
    let shortly = Some(Duration::from_millis(1));
    for _ in 0..20 {
        let mut connecting = offer(&others, &listener);
        let pairs = Cell::new(0);
        let theirs = wait_for("a pair", || {
            match listener.accept(shortly) {
                Ok(ends) => accepted.borrow_mut().push(ends),
                Err(Error::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
            pairs.set(accepted.borrow().len());
            connecting.poll().unwrap()
        });
        assert_eq!(pairs.get(), 1);
        // Their end wakes it, too.
        drop((accepted.take(), theirs));
    }
    AT_ONCE.take();
}

/// Of who is to find that a node stands still, while that does not take the test long.
fn shortly_patient() -> SessionOptions {
    SessionOptions { patience: Duration::from_secs(2), ..SessionOptions::default() }
}

/// All that came together was lost behind the first for whose successor there was no room: who had sent it waited for a second,
/// and then lost the offer.
#[test]
fn what_came_to_a_node_that_stands_still_is_answered_when_it_goes_on() {
    const OFFERS: usize = 60;
    // For half as many receives as there are offers.
    let layout = Layout { receive_slots: 32, ..Layout::default() };
    let options = SessionOptions { layout, ..shortly_patient() };
    let options = [options, SessionOptions::default()];
    at_one_that_stands(config(114, 1), options, |[session, others], stands| {
        let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
        let mut offered: Vec<_> = (0..OFFERS).map(|_| offer(&others, &listener)).collect();
        wait_for_offers(&mut offered);
        // Behind all that the node has told of them.
        session.create_vqp(elver::VqpOptions::default()).unwrap();
        let still = stands.still();
        let full = listener.try_accept().map(drop).unwrap_err();
        assert!(matches!(full, Error::TimedOut), "{full}");
        drop(still);
        let ends: Vec<Ends> = (0..OFFERS).map(|_| listener.accept(WAIT).unwrap()).collect();
        assert_eq!(ends.len(), OFFERS);
        // As many more come as there are receives.
        offered.retain_mut(|offer| {
            wait_for("a pair", || offer.poll().unwrap());
            false
        });
        let mut again: Vec<_> = (0..OFFERS).map(|_| offer(&others, &listener)).collect();
        wait_for_offers(&mut again);
        let more: Vec<Ends> = (0..OFFERS).map(|_| listener.accept(WAIT).unwrap()).collect();
        drop((ends, more));
    });
}

/// As long as a node that hung is not asked again, all was kept that somebody said meanwhile.
#[test]
fn who_says_much_while_a_node_is_not_asked_is_kept_up_to_his_share() {
    const SHARE: usize = 512;
    // All of it comes before the node is asked again, however slow the machine.
    let patient = SessionOptions { patience: Duration::from_secs(5), ..SessionOptions::default() };
    let options = [patient, shortly_patient()];
    at_one_that_stands(config(123, 1), options, |[session, others], stands| {
        let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
        let mut offered = [offer(&others, &listener)];
        wait_for_offers(&mut offered);
        let options = VqpOptions { max_send_wr: 1_024, ..VqpOptions::default() };
        let voice = others.create_vqp(options).unwrap();
        voice.qconnect(session.gid(), listener.port()).unwrap();
        // Behind what the node has told of it.
        session.create_vqp(VqpOptions::default()).unwrap();
        let still = stands.still();
        assert!(listener.try_accept().unwrap().is_none());
        drop(still);
        let before = listener.counters();
        let (op, payload) = (SendOp::Send, Payload::Inline(b"much"));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), payload, dest: None };
        voice.post_send(&[wr; SHARE + 100]).unwrap();
        let after = wait_for("what is too much", || {
            assert!(listener.try_accept().unwrap().is_none());
            Some(listener.counters()).filter(|after| after.crowded > 0)
        });
        assert_eq!(after.asked, before.asked, "it was kept until the node was asked");
        // Who has offered before is answered.
        let ends = listener.accept(WAIT).unwrap();
        assert_eq!(ends.sender.carrier().peer(), Some(session.gid()));
    });
}

/// A node that hung when it was asked whose a greeting is, and goes on: with nothing else to come, the greeting lay there.
fn a_greeting_that_was_kept_is_asked_for(
    group: u8,
    accept: impl FnOnce(&Session, &Listener) -> Result<Ends, Error>,
) {
    let options = [shortly_patient(); 2];
    at_one_that_stands(config(group, 1), options, |[session, others], stands| {
        let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
        let mut offered = [offer(&others, &listener)];
        wait_for_offers(&mut offered);
        // Behind what the node has told of it.
        session.create_vqp(elver::VqpOptions::default()).unwrap();
        assert!(listener.deadline().is_none());
        let still = stands.still();
        assert!(listener.try_accept().unwrap().is_none());
        drop(still);
        assert!(listener.deadline().is_some());
        accept(&session, &listener).unwrap();
        assert!(listener.deadline().is_none());
    });
}

#[test]
fn who_accepts_asks_a_node_again_that_hung() {
    a_greeting_that_was_kept_is_asked_for(16, |_, listener| listener.accept(WAIT));
}

#[test]
fn a_task_that_accepts_asks_a_node_again_that_hung() {
    a_greeting_that_was_kept_is_asked_for(17, |session, listener| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let session = AsyncSession::new(session.clone()).unwrap();
            let accepted = tokio::time::timeout(PATIENCE, listener.accept_async(&session));
            accepted.await.expect("it looks again")
        })
    });
}
