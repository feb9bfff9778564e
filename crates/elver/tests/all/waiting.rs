//! Waiting by a descriptor, over all that a session has, and until somebody ends it.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use elver::{
    Completed, Error, Mr, Ready, RecvWr, RefusalCode, SendOp, Session, SessionCell, SessionOptions,
    Vqp, VqpOptions, VqpState, Wc, WcStatus,
};
use elver_testkit::wait_for;
use rustix::event::epoll;
use rustix::time::Timespec;

use crate::common::{ALL, TestNode, WAIT, alone, wr};

/// A session that sleeps at once, so that every wait needs a waking.
fn sleepy(node: &TestNode) -> Session {
    let options = SessionOptions { spin: Duration::ZERO, ..SessionOptions::default() };
    Session::connect_with(Some(&node.path), options).unwrap()
}

fn connected(session: &Session, node: &TestNode) -> Vqp {
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    vqp
}

fn read(vqp: &Vqp, mr: &Mr, wr_id: u64) {
    vqp.post_send(&[wr(wr_id, SendOp::Read(mr.remote(0)), &[mr.sge(64, 8)])]).unwrap();
}

/// An epoll set with a session in it.
struct Set(std::os::fd::OwnedFd);

impl Set {
    fn of(session: &Session) -> Set {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, session, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
        Set(set)
    }

    /// Whether the descriptor becomes readable.
    fn wait(&self, at_most: Duration) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let timeout = Timespec::try_from(at_most).unwrap();
        let (ready, _) = epoll::wait(&self.0, &mut events[..], Some(&timeout)).unwrap();
        !ready.is_empty()
    }
}

/// A node that wakes a session that armed after it told something, or not at all, hangs this: each
/// round goes by the descriptor alone, at many distances between posting and arming.
#[test]
fn no_waking_by_the_descriptor_is_lost() {
    const ROUNDS: u64 = 5_000;
    let node = alone(180);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = connected(&session, &node);
    let set = Set::of(&session);
    let (mut slept, mut busy) = (0, 0);
    for round in 0..ROUNDS {
        read(&vqp, &mr, round);
        (0..round % 64 * 40).for_each(|_| std::hint::spin_loop());
        let mut wcs = [Wc::default()];
        while vqp.poll_cq(&mut wcs).unwrap() == 0 {
            if session.arm().unwrap() {
                slept += 1;
                assert!(set.wait(WAIT.unwrap()), "round {round}: the waking is lost");
                session.disarm().unwrap();
            } else {
                busy += 1;
            }
        }
        assert_eq!(wcs[0].succeeded().unwrap().wr_id, round);
    }
    assert!(slept > 0, "{slept} sleeps, {busy} times busy");
}

/// What another call has taken from the ring, but nobody from the session, would be slept over.
#[test]
fn arming_says_busy_while_there_is_something_to_take() {
    let node = alone(181);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let (one, other) = (connected(&session, &node), connected(&session, &node));
    read(&one, &mr, 1);
    read(&other, &mr, 2);
    let mut wcs = [Wc::default()];
    // Takes both completions from the ring.
    while session.wait_ready(WAIT).unwrap().len() < 2 {}
    assert_eq!(other.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    assert!(!session.arm().unwrap());
    assert_eq!(one.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    assert!(session.arm().unwrap(), "all is taken");
    let set = Set::of(&session);
    assert!(!set.wait(Duration::ZERO), "nothing came");
    session.disarm().unwrap();
    // A connect that has ended is something too.
    let connecting = one.qconnect_start(node.gid, 0, Default::default()).unwrap();
    while session.arm().unwrap() {
        assert!(set.wait(WAIT.unwrap()));
        session.disarm().unwrap();
        session.poll().unwrap();
    }
    connecting.poll().unwrap().expect("it has ended");
}

/// Who watches a session for tasks leaves things there that none has asked for yet, and must not look for ever.
#[test]
fn arming_for_news_leaves_what_is_there() {
    let node = alone(227);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = connected(&session, &node);
    read(&vqp, &mr, 1);
    session.wait_ready(WAIT).unwrap();
    assert!(!session.arm().unwrap());
    let heard = Arc::new(Count::default());
    let waker = Waker::from(heard.clone());
    assert!(session.arm_for_news(&waker).unwrap());
    let set = Set::of(&session);
    assert!(!set.wait(Duration::ZERO), "nothing came");
    read(&vqp, &mr, 2);
    // Either the descriptor tells, or it was done here, of which the waker does.
    while heard.0.load(Ordering::Relaxed) == 0 {
        assert!(set.wait(WAIT.unwrap()));
        session.disarm().unwrap();
    }
    let (mut wcs, mut taken) = ([Wc::default(); 2], 0);
    while taken < 2 {
        taken += vqp.wait_cq(&mut wcs[taken..], WAIT).unwrap();
    }
    let closing = session.close_start().unwrap();
    while !closing.poll().unwrap() {
        // It may end in between.
        if session.arm_for_news(&waker).unwrap_or(false) {
            assert!(set.wait(WAIT.unwrap()));
        }
    }
    closing.wait(WAIT).unwrap();
    assert!(vqp.qconnect(node.gid, 0).is_err());
}

#[derive(Default)]
struct Count(AtomicU32);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A second wait for a connect that had ended waited for ever, and a second look found nothing.
#[test]
fn a_connect_tells_its_end_as_often_as_it_is_asked() {
    let node = alone(186);
    let session = sleepy(&node);
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let connecting = vqp.qconnect_start(node.gid, 0, Default::default()).unwrap();
    let via = connecting.wait(WAIT).unwrap();
    assert_eq!(connecting.wait(WAIT).unwrap(), via);
    assert_eq!(connecting.poll().unwrap(), Some(via));
    assert!(session.arm().unwrap(), "nothing is untold");
    session.disarm().unwrap();
    let nowhere = "192.0.2.1".parse().unwrap();
    let refused = vqp.qconnect_start(nowhere, 0, Default::default()).unwrap();
    for _ in 0..2 {
        assert!(matches!(refused.wait(WAIT), Err(Error::Refused { .. })));
    }
}

/// Its VQP stayed "connecting" for its user, though the node had connected it.
#[test]
fn a_connect_that_nobody_asks_for_goes_on() {
    let node = alone(187);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    drop(vqp.qconnect_start(node.gid, 0, Default::default()).unwrap());
    // Whoever asks the node hears of the connect before, and there is nothing of it to take.
    while vqp.info().unwrap().state != VqpState::Connected {}
    assert!(session.arm().unwrap(), "nobody waits for it");
    session.disarm().unwrap();
    read(&vqp, &mr, 3);
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, WAIT).unwrap();
    assert_eq!(wcs[0].succeeded().unwrap().wr_id, 3);
    // One that goes before its answer comes leaves nothing behind.
    drop(vqp.qconnect_start(node.gid, 0, Default::default()).unwrap());
    drop(vqp);
    assert!(connected(&session, &node).info().is_ok());
}

#[test]
fn a_wait_over_all_tells_each_that_has_something_until_it_is_empty() {
    let node = alone(182);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqps: Vec<Vqp> = (0..5).map(|_| connected(&session, &node)).collect();
    for vqp in &vqps[1..4] {
        read(vqp, &mr, u64::from(vqp.id()));
        read(vqp, &mr, 0);
    }
    let (mut found, mut told) = (vec![0; vqps.len()], 0);
    while found.iter().sum::<usize>() < 6 {
        for ready in session.wait_ready(WAIT).unwrap() {
            let Ready::Vqp(vqp) = ready else { panic!("{ready:?}") };
            let at = vqps.iter().position(|it| it.id() == vqp.id()).unwrap();
            // One at a time: it is told again.
            let taken = vqp.poll_cq(&mut [Wc::default()]).unwrap();
            assert_eq!(taken, 1, "it was told");
            found[at] += taken;
            told += 1;
        }
    }
    assert_eq!((found, told), (vec![0, 2, 2, 2, 0], 6));
    let none = session.wait_ready(Some(Duration::from_millis(1)));
    assert!(matches!(none, Err(Error::TimedOut)), "{none:?}");
    // Alone, and the last to have something: it was the first in the list once.
    read(&vqps[4], &mr, 9);
    assert_eq!(session.wait_ready(WAIT).unwrap().len(), 1);
}

/// A session that asks a port: its memory, and its VQP.
fn asks(node: &TestNode, port: u16) -> (Session, Mr, Vqp) {
    let session = sleepy(node);
    let mr = session.alloc(64, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, port).unwrap();
    (session, mr, vqp)
}

/// Who asks a bound VQP goes, of which its session has been told when this returns.
fn goes(node: &TestNode, bound: &Vqp, asks: (Session, Vqp)) {
    let failed = || node.thread.status().unwrap().core["vqp_errors"];
    let before = failed();
    let (session, vqp) = asks;
    drop((vqp, session));
    wait_for("the VQP back to fail", || (failed() > before).then_some(()));
    // All that the node has told by now is taken in with its answer.
    bound.info().unwrap();
}

/// What becomes of an answer, and that who asked is gone, concerns nobody when the program has let go of the VQP back to him:
/// told again and again, it would keep every wait from sleeping.
#[test]
fn what_is_told_of_a_vqp_back_to_a_sender_that_nobody_holds_ends_no_wait() {
    let node = alone(149);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let sleeps = || {
        for _ in 0..3 {
            let none = session.wait_ready(Some(Duration::from_millis(1)));
            assert!(matches!(none, Err(Error::TimedOut)), "{none:?}");
        }
    };
    for fails in [false, true] {
        let (asks, near, vqp) = asks(&node, port);
        bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }]).unwrap();
        vqp.post_send(&[wr(2, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
        let message = bound.wait_msgs(WAIT).unwrap().remove(0);
        if fails {
            drop((vqp, asks));
            while message.source.info().unwrap().state != VqpState::Error {}
        } else {
            vqp.post_recv(&[RecvWr { wr_id: 3, sges: &[near.sge(0, 8)] }]).unwrap();
            message.source.post_send(&[wr(4, SendOp::Send, &[mr.sge(0, 8)])]).unwrap();
        }
        // It is there, and nobody takes it.
        assert_eq!(session.wait_ready(WAIT).unwrap().len(), 1);
        assert_eq!(session.wait_ready(WAIT).unwrap().len(), 1, "somebody may take it");
        drop(message);
        sleeps();
    }
}

/// The same where it has let go of the VQP before the asker ends.
#[test]
fn the_end_of_a_sender_whom_nobody_answers_any_more_ends_no_wait() {
    let node = alone(233);
    let session = sleepy(&node);
    let mr = session.alloc(64, ALL).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let alone = node.thread.status().unwrap().vqps_total;
    for _ in 0..10 {
        let (asks, near, vqp) = asks(&node, port);
        bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }]).unwrap();
        vqp.post_send(&[wr(2, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
        drop(bound.wait_msgs(WAIT).unwrap());
        drop((vqp, asks));
        let began = Instant::now();
        while node.thread.status().unwrap().vqps_total > alone {
            assert!(began.elapsed() < WAIT.unwrap(), "the VQP back to the asker stays");
            let none = session.wait_ready(Some(Duration::from_millis(1)));
            assert!(matches!(none, Err(Error::TimedOut)), "{none:?}");
        }
    }
}

/// It is the program's alone when the bound VQP has gone.
#[test]
fn a_vqp_back_to_a_sender_tells_who_holds_it_when_the_bound_one_has_gone() {
    let node = alone(232);
    let session = sleepy(&node);
    let mr = session.alloc(64, ALL).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let (_asks, near, vqp) = asks(&node, bound.qbind(0).unwrap());
    vqp.post_recv(&[RecvWr { wr_id: 1, sges: &[near.sge(8, 8)] }]).unwrap();
    bound.post_recv(&[RecvWr { wr_id: 2, sges: &[mr.sge(0, 8)] }]).unwrap();
    vqp.post_send(&[wr(3, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
    let source = bound.wait_msgs(WAIT).unwrap().remove(0).source;
    drop(bound);
    source.post_send(&[wr(4, SendOp::Send, &[mr.sge(0, 8)])]).unwrap();
    assert_eq!(session.wait_ready(WAIT).unwrap().len(), 1);
    let mut wcs = [Wc::default(); 2];
    assert_eq!(source.wait_cq(&mut wcs, WAIT).unwrap(), 1);
    assert_eq!((wcs[0].wr_id, wcs[0].status), (4, WcStatus::Success));
}

/// The node told that it had failed before the program had taken its message, or before there was one to take: it then looked
/// as if it stood, and nobody said any more that it does not.
#[test]
fn who_takes_the_message_of_a_sender_that_is_gone_hears_that_it_is() {
    let node = alone(130);
    let session = sleepy(&node);
    let mr = session.alloc(64, ALL).unwrap();
    let alone = node.thread.status().unwrap().vqps_total;
    for (comes_first, is_taken) in [(true, true), (false, true), (true, false)] {
        let bound = session.create_vqp(VqpOptions::default()).unwrap();
        let (asks, near, vqp) = asks(&node, bound.qbind(0).unwrap());
        let receive = || bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }]).unwrap();
        if comes_first {
            receive();
        }
        vqp.post_send(&[wr(2, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
        vqp.wait_cq(&mut [Wc::default()], WAIT).unwrap();
        goes(&node, &bound, (asks, vqp));
        if !comes_first {
            receive();
        }
        if is_taken {
            let message = bound.wait_msgs(WAIT).unwrap().remove(0);
            let failure = wait_for("its failure", || {
                session.poll().unwrap();
                message.source.failure()
            });
            let gone = matches!(&failure, Error::Refused { code: RefusalCode::PeerGone, .. });
            assert!(gone, "{failure}");
            let none = session.wait_ready(Some(Duration::from_millis(1)));
            assert!(matches!(none, Err(Error::TimedOut)), "{none:?}: it was told");
        }
        drop(bound);
        wait_for("all to go", || (node.thread.status().unwrap().vqps_total == alone).then_some(()));
    }
}

/// The VQP back to it was let go with its failure, though a message named it that the program had not taken.
#[test]
fn who_takes_a_later_message_of_a_sender_that_is_gone_hears_it_too() {
    let node = alone(131);
    let session = sleepy(&node);
    let mr = session.alloc(64, ALL).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let alone = node.thread.status().unwrap().vqps_total;
    let (asks, near, vqp) = asks(&node, bound.qbind(0).unwrap());
    let send = || {
        bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }]).unwrap();
        vqp.post_send(&[wr(2, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
        vqp.wait_cq(&mut [Wc::default()], WAIT).unwrap();
    };
    send();
    drop(bound.wait_msgs(WAIT).unwrap());
    send();
    goes(&node, &bound, (asks, vqp));
    let came = session.wait_ready(WAIT).unwrap();
    assert!(matches!(&came[..], [Ready::Vqp(vqp)] if vqp.id() == bound.id()), "{came:?}");
    let message = bound.wait_msgs(WAIT).unwrap().remove(0);
    let came = session.wait_ready(WAIT).unwrap();
    assert!(matches!(&came[..], [Ready::Vqp(vqp)] if vqp.id() == message.source.id()), "{came:?}");
    let failure = message.source.failure().unwrap();
    assert!(matches!(&failure, Error::Refused { code: RefusalCode::PeerGone, .. }), "{failure}");
    drop(came);
    // Then it goes.
    drop(message);
    assert!(bound.qpop_msgs().unwrap().is_empty());
    wait_for("it to go", || (node.thread.status().unwrap().vqps_total == alone).then_some(()));
}

/// Who held it when its failure came, or when he looked for more, kept it: it was forgotten, and stayed until 1,024 others had
/// come.
#[test]
fn a_vqp_back_to_a_sender_that_is_gone_goes_when_it_is_held_no_more() {
    let node = alone(132);
    let session = sleepy(&node);
    let mr = session.alloc(64, ALL).unwrap();
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let alone = node.thread.status().unwrap().vqps_total;
    let (asks, near, vqp) = asks(&node, bound.qbind(0).unwrap());
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }]).unwrap();
    vqp.post_send(&[wr(2, SendOp::Send, &[near.sge(0, 8)])]).unwrap();
    let message = bound.wait_msgs(WAIT).unwrap().remove(0);
    goes(&node, &bound, (asks, vqp));
    assert!(bound.qpop_msgs().unwrap().is_empty());
    assert!(message.source.failure().is_some());
    drop(message);
    assert!(bound.qpop_msgs().unwrap().is_empty());
    wait_for("it to go", || (node.thread.status().unwrap().vqps_total == alone).then_some(()));
}

#[test]
fn vqps_share_a_cq() {
    let node = alone(183);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let cq = session.create_cq();
    let vqps: Vec<Vqp> = (0..3)
        .map(|_| {
            let vqp = session.create_vqp_on(VqpOptions::default(), &cq).unwrap();
            vqp.qconnect(node.gid, 0).unwrap();
            vqp
        })
        .collect();
    for vqp in &vqps {
        read(vqp, &mr, u64::from(vqp.id()));
    }
    let mut ids = Vec::new();
    while ids.len() < 3 {
        let mut wcs = [Wc::default(); 8];
        let taken = cq.wait(&mut wcs, WAIT).unwrap();
        for wc in &wcs[..taken] {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, u64::from(wc.qp_num)));
            ids.push(wc.qp_num);
        }
    }
    ids.sort_unstable();
    let mut made: Vec<u32> = vqps.iter().map(Vqp::id).collect();
    made.sort_unstable();
    assert_eq!(ids, made);
    // What it holds of a VQP that goes stays, as in the verbs.
    read(&vqps[0], &mr, 5);
    while !matches!(session.wait_ready(WAIT).unwrap()[..], [Ready::Cq(_)]) {}
    drop(vqps);
    assert_eq!(cq.poll(&mut [Wc::default(); 2]).unwrap(), 1);
    let stranger = sleepy(&node);
    assert!(stranger.create_vqp_on(VqpOptions::default(), &cq).is_err());
}

#[test]
fn a_waker_ends_a_wait_from_another_thread() {
    let node = alone(184);
    for spin in [Duration::ZERO, WAIT.unwrap()] {
        let options = SessionOptions { spin, ..SessionOptions::default() };
        let session = Session::connect_with(Some(&node.path), options).unwrap();
        let vqp = connected(&session, &node);
        let waker = session.waker().unwrap();
        for _ in 0..50 {
            let elsewhere = {
                let waker = waker.clone();
                std::thread::spawn(move || waker.wake())
            };
            let ended = vqp.wait_cq(&mut [Wc::default()], WAIT);
            assert!(matches!(ended, Err(Error::Woken)), "{ended:?}");
            elsewhere.join().unwrap();
        }
        // One that came before counts for the next wait, and calls that ask the node end as ever.
        waker.wake();
        session.alloc(64, ALL).unwrap();
        let ended = vqp.wait_msgs(WAIT).map(|messages| messages.len());
        assert!(matches!(ended, Err(Error::Woken)), "{ended:?}");
        let none = vqp.wait_cq(&mut [Wc::default()], Some(Duration::from_millis(1)));
        assert!(matches!(none, Err(Error::TimedOut)), "{none:?}");
        // Who found its descriptor readable takes it back so; it was left there.
        waker.wake();
        let ended = session.wait_ready(Some(Duration::ZERO));
        assert!(matches!(ended, Err(Error::Woken)), "{ended:?}");
        assert!(waker.as_fd().try_clone_to_owned().is_ok());
        // The end is no wait that it ends: the session was dropped before the node had let it go.
        waker.wake();
        drop(vqp);
        session.close().unwrap();
    }
}

/// A program that was asked to end by a signal sat in a wait until a message came.
#[test]
fn a_signal_ends_a_wait_that_sleeps_if_it_shall() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn note(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler touches an atomic alone; all zeros are a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let node = alone(185);
    let options =
        SessionOptions { spin: Duration::ZERO, end_on_signal: true, ..SessionOptions::default() };
    let session = Session::connect_with(Some(&node.path), options).unwrap();
    let vqp = connected(&session, &node);
    // SAFETY: names this thread, which is joined with below.
    let me = unsafe { libc::pthread_self() } as usize;
    let done = std::sync::Arc::new(AtomicU32::new(0));
    let signals = {
        let done = done.clone();
        std::thread::spawn(move || {
            // One may come while the thread does not sleep yet.
            while done.load(Ordering::Relaxed) == 0 {
                // SAFETY: the thread lives until this one was joined with.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        })
    };
    let ended = vqp.wait_cq(&mut [Wc::default()], WAIT);
    done.store(1, Ordering::Relaxed);
    signals.join().unwrap();
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    assert!(SEEN.load(Ordering::Relaxed) > 0);
    // Without the option they do not, however many come.
    let session = sleepy(&node);
    let vqp = connected(&session, &node);
    let done = std::sync::Arc::new(AtomicU32::new(0));
    let signals = {
        let done = done.clone();
        std::thread::spawn(move || {
            while done.load(Ordering::Relaxed) == 0 {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        })
    };
    let ended = vqp.wait_cq(&mut [Wc::default()], Some(Duration::from_millis(20)));
    done.store(1, Ordering::Relaxed);
    signals.join().unwrap();
    assert!(matches!(ended, Err(Error::TimedOut)), "{ended:?}");
}

thread_local! {
    /// What the waker below calls.
    static AT_ONCE: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs its task when it is woken, on the spot.
struct Inline;

impl std::task::Wake for Inline {
    fn wake(self: Arc<Inline>) {
        let task = AT_ONCE.take();
        let mut task = task.expect("it is woken once");
        task();
    }
}

/// A waker may run its task inside of `wake`, which then uses the session, and what is kept of it: each of these calls was
/// in use itself.
#[test]
fn a_task_that_its_waker_runs_at_once_finds_the_session_free() {
    let node = alone(188);
    let session = sleepy(&node);
    let mr = session.alloc(4096, ALL).unwrap();
    let vqp = connected(&session, &node);
    let kept = Rc::new(SessionCell::new(&session, 0));
    let sleeping = |runs: &Rc<Cell<u32>>| {
        let (session, kept, runs) = (session.clone(), kept.clone(), runs.clone());
        AT_ONCE.set(Some(Box::new(move || {
            session.poll().unwrap();
            *kept.borrow_mut() += 1;
            runs.set(runs.get() + 1);
        })));
    };
    let waker = Waker::from(Arc::new(Inline));
    let runs = Rc::new(Cell::new(0));
    let mut wcs = [Wc::default()];
    // A look, a wait and a disarm each wake.
    let calls: [&mut dyn FnMut(); 3] = [
        &mut || {
            while runs.get() == 0 {
                session.poll().unwrap();
            }
        },
        &mut || {
            session.wait_ready(WAIT).unwrap();
        },
        &mut || session.disarm().unwrap(),
    ];
    for call in calls {
        runs.set(0);
        read(&vqp, &mr, 1);
        sleeping(&runs);
        session.wake_on_news(&waker);
        call();
        assert_eq!(runs.get(), 1);
        vqp.wait_cq(&mut wcs, WAIT).unwrap();
    }
    // Of what is borrowed beside the session it hears when that is free.
    runs.set(0);
    read(&vqp, &mr, 1);
    sleeping(&runs);
    session.wake_on_news(&waker);
    let mut value = kept.borrow_mut();
    vqp.wait_cq(&mut wcs, WAIT).unwrap();
    *value += 10;
    assert_eq!(runs.get(), 0);
    drop(value);
    assert_eq!((runs.get(), *kept.borrow()), (1, 14));
}
