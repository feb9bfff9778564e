//! Both ends of a ring as they are, `Sender` and `Receiver` with their slots, under every order that the memory model
//! allows, by loom. What lands in the receiver's slots are plain bytes to it: loom objects to a read or a WRITE that
//! nothing orders behind the one before. So it sees what each end touches when, and each pointer's order by itself.

use std::cell::Cell as Local;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64 as Word;

use elver_ring::{Carrier, Cell, Config, Error, Pause, Receiver, Sender, Slots, Write};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const SLOTS: usize = 2;
/// Words of a slot, of which the header and 8 bytes are used.
const SLOT_WORDS: usize = 8;
const USED_WORDS: usize = 2;
/// What a pointer's word counts; above it stands whether its end has ended.
const COUNT: u64 = (1 << 63) - 1;
/// More than a lap.
const MESSAGES: u64 = 3;
const PREEMPTIONS_MAX: usize = 2;

/// Each message goes out by itself, and each is told when it is read.
const EAGER: Config =
    Config { slots: SLOTS as u32, slot_bytes: 64, alpha: 1, beta: 1, gamma: 1, linger_ns: None };
/// The tail is told of both slots at once, and the head lazily.
const LAZY: Config = Config { alpha: 2, beta: 1, gamma: 2, ..EAGER };

/// How pointers are written and read.
#[derive(Clone, Copy)]
struct Orders {
    tail: [Ordering; 2],
    head: [Ordering; 2],
}

const RIGHT: Orders = Orders {
    tail: [Ordering::Release, Ordering::Acquire],
    head: [Ordering::Release, Ordering::Acquire],
};

/// What both ends' processes and the device see of one ring.
struct Shared {
    slots: [[UnsafeCell<u64>; USED_WORDS]; SLOTS],
    tail: AtomicU64,
    head: AtomicU64,
    orders: Orders,
    /// What loom objected to at the sender: it goes on with the other thread, which would wait for ever.
    objected: Mutex<Option<String>>,
}

/// Slots of one end, by themselves.
struct Own {
    words: *mut u64,
    slots: Slots,
}

impl Own {
    fn new() -> Own {
        let mut memory = vec![0_u64; SLOTS * SLOT_WORDS].into_boxed_slice();
        let words = memory.as_mut_ptr();
        let start = NonNull::new(words.cast()).unwrap();
        // SAFETY: the memory lives as long as its owner, is aligned, and is touched beside it as atomics alone, by the
        // thread that has it.
        let slots = unsafe { Slots::new(start, (SLOTS * SLOT_WORDS * 8) as u64, Box::new(memory)) };
        Own { words, slots }
    }

    fn word(&self, at: usize) -> &Word {
        assert!(at < SLOTS * SLOT_WORDS);
        // SAFETY: a word inside, which lives as long as `slots`.
        unsafe { Word::from_ptr(self.words.add(at)) }
    }
}

/// One end's way to the other: what is posted lands at once, in this order.
#[derive(Clone)]
struct Lane(Rc<End>);

struct End {
    shared: Arc<Shared>,
    outgoing: Own,
    incoming: Own,
    advances: Local<u64>,
    /// What the peer has told, and what it was told: the slots between are this end's.
    told: Local<u64>,
    freed: Local<u64>,
}

impl Lane {
    fn new(shared: Arc<Shared>) -> Lane {
        let (outgoing, incoming) = (Own::new(), Own::new());
        let (advances, told, freed) = (Local::new(0), Local::new(0), Local::new(0));
        Lane(Rc::new(End { shared, outgoing, incoming, advances, told, freed }))
    }
}

impl Carrier for Lane {
    fn post(&self, writes: &[Write]) -> Result<bool, Error> {
        let End { shared, outgoing, advances, freed, .. } = &*self.0;
        if std::thread::panicking() {
            // What loom has objected to is told, and not what ends say when they go.
            return Ok(false);
        }
        for write in writes {
            match *write {
                Write::Slots(span) => {
                    let first = span.offset as usize / 64;
                    for slot in first..first + (span.len as usize).div_ceil(64) {
                        for (at, word) in shared.slots[slot].iter().enumerate() {
                            let value =
                                outgoing.word(slot * SLOT_WORDS + at).load(Ordering::Relaxed);
                            // SAFETY: loom has checked that nobody else uses it now.
                            word.with_mut(|word| unsafe { *word = value });
                        }
                    }
                }
                Write::Tail(tail) => {
                    shared.tail.store(tail, shared.orders.tail[0]);
                    advances.set(advances.get() + 1);
                }
                Write::Head(head) => {
                    freed.set(head & COUNT);
                    shared.head.store(head, shared.orders.head[0]);
                }
            }
        }
        Ok(true)
    }

    fn poll(&self) -> Result<(), Error> {
        Ok(())
    }

    fn advances(&self) -> u64 {
        self.0.advances.get()
    }

    fn word(&self, cell: Cell) -> u64 {
        let shared = &self.0.shared;
        match cell {
            Cell::Head => shared.head.load(shared.orders.head[1]),
            Cell::Tail => {
                let tail = shared.tail.load(shared.orders.tail[1]);
                self.0.told.set(tail & COUNT);
                tail
            }
        }
    }

    fn outgoing(&self) -> &Slots {
        &self.0.outgoing.slots
    }

    /// As they are now, those that are this end's.
    fn incoming(&self) -> &Slots {
        let End { shared, incoming, told, freed, .. } = &*self.0;
        for number in freed.get()..told.get() {
            let slot = number as usize % SLOTS;
            for (at, word) in shared.slots[slot].iter().enumerate() {
                // SAFETY: loom has checked that nobody else writes it now.
                let value = word.with(|word| unsafe { *word });
                incoming.word(slot * SLOT_WORDS + at).store(value, Ordering::Relaxed);
            }
        }
        &incoming.slots
    }

    fn rest(&self, _: &mut Pause) -> Result<(), Error> {
        if std::thread::panicking() {
            return Err(Error::Ended);
        }
        let objected = self.0.shared.objected.lock().unwrap().take();
        assert!(objected.is_none(), "{}", objected.unwrap_or_default());
        thread::yield_now();
        Ok(())
    }
}

fn content(id: u64) -> [u8; 8] {
    (0x1111 * (id + 1)).to_le_bytes()
}

fn send(config: Config, lane: Lane) {
    let mut sender = Sender::new(config, lane).unwrap();
    for id in 0..MESSAGES {
        sender.send(&content(id), None).unwrap();
    }
    sender.finish(None).unwrap();
}

/// Runs both ends in all orders.
fn check(config: Config, orders: Orders) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let slots = std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0)));
        let word = || AtomicU64::new(0);
        let objected = Mutex::default();
        let shared = Arc::new(Shared { slots, tail: word(), head: word(), orders, objected });
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || {
            let sends = || send(config, Lane::new(Arc::clone(&theirs)));
            if let Err(what) = catch_unwind(AssertUnwindSafe(sends)) {
                *theirs.objected.lock().unwrap() = what.downcast_ref::<String>().cloned();
                resume_unwind(what);
            }
        });
        let mut receiver = Receiver::new(config, Lane::new(shared)).unwrap();
        for id in 0..MESSAGES {
            let read = receiver.recv(None).unwrap().unwrap().to_vec();
            assert_eq!(read, content(id));
        }
        assert!(receiver.recv(None).unwrap().is_none());
        other.join().unwrap();
    });
}

#[test]
fn both_ends_touch_what_is_theirs_alone() {
    check(EAGER, RIGHT);
    check(LAZY, RIGHT);
}

const WEAK: Ordering = Ordering::Relaxed;

/// Each order that is weakened is caught, whatever the ring's measures. In a test of its own: loom goes on with no other model
/// in a thread that one has failed in.
macro_rules! caught {
    ($($name:ident: $config:expr, $pointer:ident [$write:expr, $read:expr];)*) => {$(
        #[test]
        #[should_panic(expected = "oncurrent")]
        fn $name() {
            check($config, Orders { $pointer: [$write, $read], ..RIGHT });
        }
    )*};
}

caught! {
    a_tail_that_is_written_weakly: EAGER, tail [WEAK, Ordering::Acquire];
    a_tail_that_is_read_weakly: EAGER, tail [Ordering::Release, WEAK];
    a_head_that_is_written_weakly: EAGER, head [WEAK, Ordering::Acquire];
    a_head_that_is_read_weakly: EAGER, head [Ordering::Release, WEAK];
    a_tail_of_many_that_is_written_weakly: LAZY, tail [WEAK, Ordering::Acquire];
    a_tail_of_many_that_is_read_weakly: LAZY, tail [Ordering::Release, WEAK];
    a_lazy_head_that_is_written_weakly: LAZY, head [WEAK, Ordering::Acquire];
    a_lazy_head_that_is_read_weakly: LAZY, head [Ordering::Release, WEAK];
}
