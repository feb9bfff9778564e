//! Tables under every order that the memory model allows, by loom; and the same without a fence, which loom must object
//! to.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::entry::Entry;
use super::presence::{Epoch, Sleeps};
use crate::direct::atomic::Atomic;

impl Atomic for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// One whose fences do nothing.
struct Fenceless(AtomicU64);

impl Atomic for Fenceless {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    fn fence(_: Ordering) {}
}

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn fenceless() -> Fenceless {
    Fenceless(word())
}

fn check(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// An entry is written twice while it is read.
fn read_while_written<A: Atomic + Send + Sync + 'static>(word: fn() -> A) {
    check(move || {
        let entry = Arc::new(Entry::<A, 2> { lap: word(), words: [word(), word()] });
        let written = entry.clone();
        let writer = thread::spawn(move || {
            written.write(&[1, 1]);
            written.write(&[2, 2]);
        });
        if let Some([first, second]) = entry.read() {
            assert_eq!(first, second, "an entry is torn");
        }
        writer.join().unwrap();
        assert_eq!(entry.read(), Some([2, 2]));
    });
}

#[test]
fn entries_are_not_torn() {
    read_while_written(word);
}

#[test]
#[should_panic(expected = "an entry is torn")]
fn without_fences_entries_are_torn() {
    read_while_written(fenceless);
}

/// Memory is taken back and used for something else, while a peer reaches for it.
fn taken_back_while_reached_for<A: Atomic + Send + Sync + 'static>(word: fn() -> A) {
    struct Shared<A> {
        entry: Entry<A, 1>,
        epoch: Epoch<A>,
        memory: UnsafeCell<u64>,
    }
    check(move || {
        let entry = Entry::<A, 1> { lap: word(), words: [word()] };
        entry.write(&[1]);
        let shared = Arc::new(Shared { entry, epoch: Epoch(word()), memory: UnsafeCell::new(0) });
        let peers = shared.clone();
        let peer = thread::spawn(move || {
            let _inside = peers.epoch.enter();
            if peers.entry.read() == Some([1]) {
                // SAFETY: loom has checked that nobody else uses it now.
                peers.memory.with_mut(|memory| unsafe { *memory = 1 });
            }
        });
        shared.entry.write(&[0]);
        Epoch::<A>::taken_back();
        let begun = shared.epoch.now();
        while begun % 2 == 1 && shared.epoch.now() == begun {
            thread::yield_now();
        }
        // SAFETY: as above.
        shared.memory.with_mut(|memory| unsafe { *memory = 2 });
        peer.join().unwrap();
    });
}

#[test]
fn what_was_taken_back_nobody_reaches() {
    taken_back_while_reached_for(word);
}

#[test]
#[should_panic]
fn without_fences_what_was_taken_back_is_reached() {
    taken_back_while_reached_for(fenceless);
}

/// A process lies down while another one sends to it.
fn sent_to_while_falling_asleep<A: Atomic + Send + Sync + 'static>(word: fn() -> A) {
    check(move || {
        let shared = Arc::new((Sleeps(word()), word()));
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let (peers, rings) = (shared.clone(), bell.clone());
        let sender = thread::spawn(move || {
            let (sleeps, sent) = &*peers;
            sent.store(1, Ordering::Release);
            Sleeps::<A>::sent();
            if sleeps.are_said() {
                *rings.0.lock().unwrap() = true;
                rings.1.notify_one();
            }
        });
        let (sleeps, sent) = &*shared;
        sleeps.say(true);
        if sent.load(Ordering::Acquire) == 0 {
            let mut rung = bell.0.lock().unwrap();
            while !*rung {
                rung = bell.1.wait(rung).unwrap();
            }
        }
        sleeps.say(false);
        sender.join().unwrap();
    });
}

#[test]
fn nobody_sleeps_beside_what_was_sent() {
    sent_to_while_falling_asleep(word);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_fences_a_process_sleeps_beside_what_was_sent() {
    sent_to_while_falling_asleep(fenceless);
}
