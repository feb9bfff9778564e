//! Signals, where waits are to end by them: nothing is lost by one, and nothing sent twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{TOKEN, TestNode, addresses, config, content};
use elver::{Session, SessionOptions};
use elver_msg::{Error, Group, Options, Tag};

/// Longer than rings hold.
const LONG: usize = 3 << 20;
const TURNS: u64 = 20;

fn is_interrupted<T>(ended: &Result<T, Error>) -> bool {
    matches!(ended, Err(Error::Session(error)) if matches!(**error, elver::Error::Interrupted))
}

/// A rank at a node whose waits signals end, which it gets without a pause.
fn under_fire(node: &TestNode, rank: u32, run: impl FnOnce(&Group)) {
    let options =
        SessionOptions { spin: Duration::ZERO, end_on_signal: true, ..SessionOptions::default() };
    let session = Session::connect_with(Some(&node.path), options).unwrap();
    let options = Options { spin: Duration::ZERO, ..Options::default() };
    let group = Group::join(&session, rank, &addresses(&[node], 2), TOKEN, options).unwrap();
    let done = AtomicBool::new(false);
    // SAFETY: names this thread, which lives until the other was joined with.
    let me = unsafe { libc::pthread_self() } as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        run(&group);
        done.store(true, Ordering::Relaxed);
    });
    group.finish().unwrap();
}

#[test]
fn a_signal_loses_nothing_and_sends_nothing_twice() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; all zeros are a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let node = TestNode::start(config(58, 1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            under_fire(&node, 0, |group| {
                for turn in 0..TURNS {
                    group.send(1, 1, &content(turn, LONG)).unwrap();
                    group.barrier().unwrap();
                }
                // What does not come is waited for until a signal does.
                assert!(is_interrupted(&group.recv(1, 9, &mut [0])));
                assert!(is_interrupted(&group.probe(1, 9)));
                group.send(1, 2, b"now").unwrap();
                while is_interrupted(&group.recv_vec(1, 9)) {}
            });
        });
        under_fire(&node, 1, |group| {
            let mut into = vec![0; LONG];
            for turn in 0..TURNS {
                // Until one has begun to come, signals end the wait, and the next takes it.
                while let Err(error) = group.recv(0, Tag::Any, &mut into) {
                    assert!(is_interrupted::<()>(&Err(error)));
                }
                assert!(into == content(turn, LONG), "{turn}");
                group.barrier().unwrap();
            }
            while is_interrupted(&group.recv(0, 2, &mut [0; 3])) {}
            group.send(0, 9, b"!").unwrap();
        });
    });
}
