//! Lanes under every order that the memory model allows, by loom. What lies in one are plain words to it: it objects
//! to a look at one, or a change of it, that nothing orders behind what the other process did.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::packets::{Sent, Space, WORD, send, take};

/// Two packets fit, and leave one word out.
const WORDS: usize = 5;
/// More than a lap.
const PACKETS: u64 = 3;

/// How what was sent and what was taken are told, and read.
#[derive(Clone, Copy)]
struct Orders {
    sent: [Ordering; 2],
    taken: [Ordering; 2],
}

const RIGHT: Orders = Orders {
    sent: [Ordering::Release, Ordering::Acquire],
    taken: [Ordering::Release, Ordering::Acquire],
};

/// A file of one process, that the other one reads.
struct File {
    sent: AtomicU64,
    taken: AtomicU64,
    words: [UnsafeCell<u64>; WORDS],
    orders: Orders,
}

impl File {
    fn new(orders: Orders) -> Arc<File> {
        let words = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(File { sent: AtomicU64::new(0), taken: AtomicU64::new(0), words, orders })
    }
}

impl Space for File {
    const WORDS: usize = WORDS;
    const AGAIN: usize = 2;

    fn sent(&self) -> u64 {
        self.sent.load(self.orders.sent[1])
    }

    fn tell_sent(&self, words: u64) {
        self.sent.store(words, self.orders.sent[0]);
    }

    fn taken(&self) -> u64 {
        self.taken.load(self.orders.taken[1])
    }

    fn tell_taken(&self, words: u64) {
        self.taken.store(words, self.orders.taken[0]);
    }

    fn head(&self, at: usize) -> u64 {
        // SAFETY: loom has checked that nobody changes it now.
        self.words[at].with(|word| unsafe { *word })
    }

    fn set_head(&self, at: usize, head: u64) {
        // SAFETY: loom has checked that nobody else uses it now.
        self.words[at].with_mut(|word| unsafe { *word = head });
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (n, bytes) in bytes.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            self.set_head(at + n, u64::from_le_bytes(word));
        }
    }

    fn get(&self, at: usize, into: &mut [u8]) {
        for (n, into) in into.chunks_mut(WORD).enumerate() {
            into.copy_from_slice(&self.head(at + n).to_le_bytes()[..into.len()]);
        }
    }
}

fn content(packet: u64) -> [u8; WORD] {
    (0x1111_1111_1111_1111 * (packet + 1)).to_le_bytes()
}

/// Runs both processes in all orders.
fn check(orders: Orders) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let (here, there) = (File::new(orders), File::new(orders));
        // What loom objected to at the sender: it goes on with the other thread, which would wait for ever.
        let objected = Arc::new(Mutex::new(false));
        let (own, peer, objects) = (here.clone(), there.clone(), objected.clone());
        let other = thread::spawn(move || {
            let sends = || {
                let mut at = Sent::default();
                for packet in 0..PACKETS {
                    while send(&*own, &*peer, &mut at, 0, &content(packet)).is_err() {
                        thread::yield_now();
                    }
                }
            };
            *objects.lock().unwrap() = catch_unwind(AssertUnwindSafe(sends)).is_err();
        });
        let mut taken = 0;
        for packet in 0..PACKETS {
            let mut bytes = [0; WORD];
            let found = loop {
                if let Some(found) = take(&*here, &mut taken, &mut bytes).unwrap() {
                    break found;
                }
                assert!(!*objected.lock().unwrap(), "the sender was objected to");
                thread::yield_now();
            };
            assert_eq!((found, bytes), ((WORD, 0), content(packet)));
            there.tell_taken(taken);
        }
        other.join().unwrap();
        assert!(!*objected.lock().unwrap(), "the sender was objected to");
    });
}

#[test]
fn packets_arrive_whole_and_in_order() {
    check(RIGHT);
}

#[test]
#[should_panic]
fn what_was_sent_and_told_weakly_is_objected_to() {
    check(Orders { sent: [Ordering::Relaxed, Ordering::Acquire], ..RIGHT });
}

#[test]
#[should_panic]
fn what_was_sent_and_read_weakly_is_objected_to() {
    check(Orders { sent: [Ordering::Release, Ordering::Relaxed], ..RIGHT });
}

#[test]
#[should_panic]
fn what_was_taken_and_told_weakly_is_objected_to() {
    check(Orders { taken: [Ordering::Relaxed, Ordering::Acquire], ..RIGHT });
}

#[test]
#[should_panic]
fn what_was_taken_and_read_weakly_is_objected_to() {
    check(Orders { taken: [Ordering::Release, Ordering::Relaxed], ..RIGHT });
}
