//! Rings and wakings under every order that the memory model allows:
//! `RUSTFLAGS='--cfg loom' cargo test -p elver-portal --lib model`.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::ends::Sleep;
use crate::gate::{ClientGate, NodeGate};
use crate::layout::{PAYLOAD_WORDS, SLOT_WORDS};
use crate::memory::Words;
use crate::ring::{Consumer, Entry, Producer};

const SLOTS: usize = 2;

fn ring() -> (Producer, Consumer) {
    let slots = Words::zeroed(SLOTS * SLOT_WORDS);
    let head = Words::zeroed(1);
    let producer = Producer::new(slots.part(0, slots.len()), head.part(0, 1));
    (producer, Consumer::new(slots, head))
}

fn push(producer: &mut Producer, id: u32, words: usize) -> bool {
    let fill = |writer: &mut crate::ring::Writer<'_>| {
        (0..words).for_each(|word| writer.put(u64::from(id) << 32 | word as u64));
    };
    producer.push(id as u8, id, words, fill).unwrap()
}

fn check(entry: &Entry, id: u32, words: usize) {
    assert_eq!((entry.kind, entry.id), (id as u8, id));
    for (word, value) in entry.words()[..words].iter().enumerate() {
        assert_eq!(*value, u64::from(id) << 32 | word as u64);
    }
}

/// Entries of one slot and of two, over more than a lap: each comes whole and in order.
#[test]
fn entries_arrive_whole_and_in_order() {
    const LENGTHS: [usize; 3] = [1, PAYLOAD_WORDS + 1, 2];
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ring();
        let other = thread::spawn(move || {
            for (id, words) in LENGTHS.into_iter().enumerate() {
                while !push(&mut producer, id as u32, words) {
                    thread::yield_now();
                }
            }
        });
        let mut entry = Entry::default();
        for (id, words) in LENGTHS.into_iter().enumerate() {
            while !consumer.pop(&mut entry).unwrap() {
                thread::yield_now();
            }
            check(&entry, id as u32, words);
        }
        other.join().unwrap();
        assert!(consumer.is_empty());
    });
}

/// A consumer that sleeps only as the protocol says is never left asleep beside an entry: loom
/// would tell of a deadlock.
#[test]
fn no_waking_is_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ring();
        let (mine, theirs) = (Words::zeroed(1), Words::zeroed(1));
        let flags =
            |own: &Words, others: &Words| Sleep { own: own.part(0, 1), others: others.part(0, 1) };
        let sleeper = flags(&mine, &theirs);
        let waker = flags(&theirs, &mine);
        // The socket: a waking that came first is not lost.
        let socket = Arc::new((Mutex::new(false), Condvar::new()));
        let wakings = socket.clone();
        let other = thread::spawn(move || {
            for id in 1..3 {
                assert!(push(&mut producer, id, 1));
                if waker.must_wake() {
                    *wakings.0.lock().unwrap() = true;
                    wakings.1.notify_one();
                }
            }
        });
        let mut entry = Entry::default();
        for id in 1..3 {
            while !consumer.pop(&mut entry).unwrap() {
                if !sleeper.announce(|| consumer.is_empty()) {
                    continue;
                }
                let mut woken = socket.0.lock().unwrap();
                while !*woken {
                    woken = socket.1.wait(woken).unwrap();
                }
                *woken = false;
                sleeper.revoke();
            }
            check(&entry, id, 1);
        }
        other.join().unwrap();
    });
}

/// The same where the first message cannot be sent, and is tried again: the flag is put back beside a sleeper that may be
/// looking, or lying down, at that time.
#[test]
fn a_waking_that_failed_is_not_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ring();
        let (mine, theirs) = (Words::zeroed(1), Words::zeroed(1));
        let flags =
            |own: &Words, others: &Words| Sleep { own: own.part(0, 1), others: others.part(0, 1) };
        let sleeper = flags(&mine, &theirs);
        let waker = flags(&theirs, &mine);
        let socket = Arc::new((Mutex::new(0), Condvar::new()));
        let wakings = socket.clone();
        let other = thread::spawn(move || {
            assert!(push(&mut producer, 1, 1));
            let fails = waker.must_wake();
            if fails {
                waker.not_woken();
            }
            if fails && waker.must_wake() {
                *wakings.0.lock().unwrap() += 1;
                wakings.1.notify_one();
            }
        });
        let mut entry = Entry::default();
        while !consumer.pop(&mut entry).unwrap() {
            if !sleeper.announce(|| consumer.is_empty()) {
                continue;
            }
            let mut woken = socket.0.lock().unwrap();
            while *woken == 0 {
                woken = socket.1.wait(woken).unwrap();
            }
            *woken -= 1;
            sleeper.revoke();
        }
        check(&entry, 1, 1);
        other.join().unwrap();
    });
}

/// Who has shut a door and waited for the access that was under way finds the memory touched no more: loom would tell
/// of an access beside the last look.
#[test]
fn nobody_is_inside_when_a_door_is_shut() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        // The gate's own, and one door.
        let words = Words::zeroed(17);
        let node = NodeGate::over(words.part(0, words.len()));
        let mut client = ClientGate::over(words);
        let memory = Arc::new(UnsafeCell::new(0));
        node.open(0, 1);
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            for _ in 0..2 {
                if let Some(inside) = client.enter(0, 1) {
                    theirs.with_mut(|value| {
                        // SAFETY: loom has checked that nobody else uses it now.
                        unsafe { *value += 1 }
                    });
                    drop(inside);
                }
            }
        });
        if let Some(epoch) = node.shut(0) {
            while !node.is_past(epoch) {
                thread::yield_now();
            }
        }
        memory.with_mut(|value| {
            // SAFETY: as above.
            unsafe { *value = 0 }
        });
        other.join().unwrap();
    });
}
