//! Rings in tasks.

use std::future::poll_fn;
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{TestNode, WAIT, both_ways_at, config, session_at};
use elver::tokio::AsyncSession;
use elver_ring::{Config, Connecting, Listener, ListenerOptions, Options, connect};
use elver_testkit::PATIENCE;

const MESSAGES: u32 = 500;

/// A task that waits for an answer has its question go out by the deadline, though it flushes nothing.
#[test]
fn a_task_that_waits_for_an_answer_has_its_question_go_out() {
    both_ways_at(69, false, |node| {
        let (tell, told) = mpsc::channel();
        let config = Config { linger_ns: Some(2_000_000), ..Config::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let session = session_at(node);
                let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
                tell.send(listener.port()).unwrap();
                let mut ends = listener.accept(WAIT).unwrap();
                while let Some(message) = ends.receiver.recv(WAIT).unwrap() {
                    let bytes = message.to_vec();
                    drop(message);
                    ends.sender.send(&bytes, WAIT).unwrap();
                    ends.sender.flush().unwrap();
                }
            });
            let port = told.recv().unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = session_at(node);
                let mut ends =
                    connect(&session, node.gid, port, Options::both(config), WAIT).unwrap();
                let session = AsyncSession::new(session).unwrap();
                for turn in 0..4_u8 {
                    ends.sender.send(&[turn], WAIT).unwrap();
                    let answer = tokio::time::timeout(WAIT.unwrap(), ends.recv_async(&session));
                    assert_eq!(answer.await.unwrap().unwrap().unwrap().to_vec(), [turn]);
                }
                assert_eq!(ends.sender.counters().lingered, 4);
                ends.sender.finish(WAIT).unwrap();
            });
        });
    });
}

/// When it was to look next was a time of the system's clock, which was past for a runtime that is ahead of that: it looked
/// without a pause then, and for no other task's sleep any time went by.
#[test]
fn a_task_that_connects_lets_a_paused_clock_go_on() {
    let node = TestNode::start(config(118, 1));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
        let others = AsyncSession::new(session_at(&node)).unwrap();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let (gid, port, options) = (node.gid, listener.port(), Options::default());
        let connecting = Connecting::start(others.session(), gid, port, options).unwrap();
        let began = Instant::now();
        let late =
            poll_fn(|_| if began.elapsed() > PATIENCE { Poll::Ready(()) } else { Poll::Pending });
        tokio::select! {
            pair = connecting.wait_async(&others) => panic!("nobody answers: {pair:?}"),
            () = late => panic!("no time goes by"),
            () = tokio::time::sleep(Duration::from_secs(30)) => {}
        }
    });
}

/// Two tasks of one thread have a ring each, and wait on one session; a third thread answers both.
#[test]
fn tasks_of_one_session_have_a_ring_each() {
    both_ways_at(10, false, |node| {
        let (tell, told) = mpsc::channel();
        // As few slots as make who sends wait for room.
        let config = Config { slots: 8, alpha: 4, beta: 2, gamma: 2, ..Config::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let session = session_at(node);
                let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
                tell.send(listener.port()).unwrap();
                let mut pairs =
                    vec![listener.accept(WAIT).unwrap(), listener.accept(WAIT).unwrap()];
                while !pairs.is_empty() {
                    pairs.retain_mut(|ends| {
                        let message = ends.receiver.try_recv().unwrap();
                        let Some(bytes) = message.map(|message| message.to_vec()) else {
                            return !ends.receiver.is_ended();
                        };
                        ends.sender.send(&bytes, WAIT).unwrap();
                        ends.sender.flush().unwrap();
                        true
                    });
                }
            });
            let port = told.recv().unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = session_at(node);
                let ends = [1, 2].map(|token| {
                    let options = Options { token, ..Options::both(config) };
                    connect(&session, node.gid, port, options, WAIT).unwrap()
                });
                let session = AsyncSession::new(session).unwrap();
                let [mut one, mut other] = ends;
                let exchange = async |ends: &mut elver_ring::Ends| {
                    for number in 0..MESSAGES {
                        let mut room = ends.sender.reserve_async(4, &session).await.unwrap();
                        room.fill(&number.to_le_bytes());
                        room.commit().unwrap();
                        ends.sender.flush().unwrap();
                        let answer = ends.receiver.recv_async(&session).await.unwrap().unwrap();
                        assert_eq!(answer.to_vec(), number.to_le_bytes());
                    }
                    ends.sender.end().unwrap();
                    assert!(ends.receiver.recv_async(&session).await.unwrap().is_none());
                };
                tokio::join!(exchange(&mut one), exchange(&mut other));
            });
        });
    });
}
