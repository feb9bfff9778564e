//! The pointers under every order that the memory model allows, by loom: slots are written as any bytes are, a
//! pointer behind them with release, and read with acquire.

use std::sync::Arc;

use elver_ring::protocol::{Config, Fault, Receiver, Sender, Span};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const SMALL: Config =
    Config { slots: 2, slot_bytes: 64, alpha: 1, beta: 1, gamma: 1, linger_ns: None };
/// More than a lap.
const MESSAGES: u64 = 3;
const PREEMPTIONS_MAX: usize = 3;

/// What both ends' processes and their device see of one ring. Of each slot the first two words count.
struct Shared {
    slots: [[AtomicU64; 2]; 2],
    tail: AtomicU64,
    head: AtomicU64,
}

/// How pointers are written and read.
#[derive(Clone, Copy)]
struct Orders {
    write: Ordering,
    read: Ordering,
}

fn slot(span: Span) -> usize {
    (span.offset / u64::from(SMALL.slot_bytes)) as usize
}

fn content(id: u64) -> u64 {
    0x1111 * (id + 1)
}

/// Sends all messages: a WRITE of the slot, and one of the tail behind it.
fn send(shared: &Shared, orders: Orders) -> Result<(), Fault> {
    let mut sender = Sender::new(SMALL).unwrap();
    for id in 0..MESSAGES {
        let frame = loop {
            sender.head_is(shared.head.load(orders.read))?;
            match sender.reserve(8) {
                Ok(frame) => break frame,
                Err(_) => thread::yield_now(),
            }
        };
        let header = frame.header();
        sender.commit(&frame, 0);
        // Nothing waits for what completes here: it has when it was done.
        sender.advanced(id);
        let due = sender.due().expect("each message goes out by itself");
        let words = &shared.slots[slot(due.slots[0])];
        words[1].store(content(id), Ordering::Relaxed);
        words[0].store(header, Ordering::Relaxed);
        shared.tail.store(due.tail.expect("with its tail"), orders.write);
        sender.posted(&due);
    }
    Ok(())
}

/// Receives them; the numbers that it found.
fn receive(shared: &Shared, orders: Orders) -> Result<Vec<u64>, Fault> {
    let mut receiver = Receiver::new(SMALL).unwrap();
    let mut found = Vec::new();
    while found.len() < MESSAGES as usize {
        receiver.tail_is(shared.tail.load(orders.read))?;
        let Some(offset) = receiver.next_offset() else {
            thread::yield_now();
            continue;
        };
        let words = &shared.slots[slot(Span { offset, len: 0 })];
        let frame = receiver.frame(words[0].load(Ordering::Relaxed))?;
        found.push(words[1].load(Ordering::Relaxed));
        receiver.release(&frame);
        let head = receiver.due().expect("each is told");
        shared.head.store(head, orders.write);
        receiver.posted(head);
    }
    Ok(found)
}

/// Runs both ends in all orders.
fn check(orders: Orders) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let word = || AtomicU64::new(0);
        let slots = [[word(), word()], [word(), word()]];
        let shared = Arc::new(Shared { slots, tail: word(), head: word() });
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || send(&theirs, orders));
        let expected: Vec<u64> = (0..MESSAGES).map(content).collect();
        assert_eq!(receive(&shared, orders), Ok(expected), "what was received");
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

#[test]
fn messages_arrive_whole_and_in_order() {
    check(Orders { write: Ordering::Release, read: Ordering::Acquire });
}

/// The model sees what it is for: a slot's old bytes behind a new pointer.
#[test]
#[should_panic(expected = "what was received")]
fn pointers_that_order_nothing_are_caught() {
    check(Orders { write: Ordering::Relaxed, read: Ordering::Relaxed });
}
