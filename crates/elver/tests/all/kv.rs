//! A table in a region, read over a VQP: of every kind of memory, while it is written, torn, replaced, gone, and full of
//! what no table writes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use elver::Error;
use elver::kv::{Descriptor, Layout, LookupError, Reader, Store, TableError};
use elver::{AccessFault, AccessFlags, Mr, Session, WcStatus};
use elver_testkit::wait_for;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::{TestNode, alone, cluster, session_at};

const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ);
const KEYS: u32 = 200;

fn layout() -> Layout {
    Layout::for_capacity(KEYS, 4, 12).unwrap()
}

fn key(n: u32) -> [u8; 4] {
    n.to_le_bytes()
}

/// A value in which every piece tells its age.
fn value(age: u32) -> Vec<u8> {
    age.to_le_bytes().repeat(3)
}

fn age(value: &[u8]) -> u32 {
    let age = u32::from_le_bytes(value[..4].try_into().unwrap());
    assert_eq!(value, self::value(age), "a torn value");
    age
}

fn reader(session: &Session, store: &Store, owner: &TestNode) -> Reader {
    let told = store.descriptor().unwrap().encode();
    Reader::connect(session, owner.gid, Descriptor::decode(&told).unwrap()).unwrap()
}

/// Fills a store, changes it, and reads it from another node.
fn is_read(mut store: Store, owner: &TestNode, session: &Session) {
    let mut reader = reader(session, &store, owner);
    assert_eq!(reader.get(&key(0)).unwrap(), None);
    for n in 0..KEYS {
        store.insert(&key(n), &value(n)).unwrap();
    }
    for n in (0..KEYS).step_by(2) {
        store.update(&key(n), &value(n + 1)).unwrap();
    }
    for n in (0..KEYS).step_by(3) {
        store.remove(&key(n)).unwrap();
    }
    for n in 0..KEYS {
        let found = reader.get(&key(n)).unwrap();
        assert_eq!(found, store.get(&key(n)).unwrap());
        assert_eq!(found.is_none(), n % 3 == 0);
    }
    let counters = reader.counters();
    assert_eq!((counters.lookups, counters.torn), (1 + u64::from(KEYS), 0));
    assert!(counters.reads < counters.lookups * 5 / 4, "{counters:?}");
    store.close().unwrap();
    // What peers know of it has run out: the key is nobody's.
    match reader.get(&key(1)).unwrap_err() {
        Error::Completion { wc } => {
            assert_eq!(wc.status, WcStatus::RemAccessErr);
            assert_eq!(AccessFault::of(&wc), Some(AccessFault::Key));
        }
        error => panic!("{error}"),
    }
}

#[test]
fn tables_stand_in_memory_of_every_kind() {
    let (meta, node) = cluster(214, |_| {});
    let (owner, client) = (session_at(&meta), session_at(&node));
    let len = layout().table_bytes();
    is_read(Store::alloc(&owner, layout()).unwrap(), &meta, &client);
    // In the session's arena.
    let small = Layout::for_capacity(KEYS / 8, 4, 12).unwrap();
    let store = Store::alloc(&owner, small).unwrap();
    assert!(small.table_bytes() < 4_096 * 2 && reader(&client, &store, &meta).get(&key(1)).is_ok());
    let in_region = |mr: Mr| {
        mr.write(0, &vec![0xa5; len as usize]).unwrap();
        is_read(Store::in_region(mr, layout()).unwrap(), &meta, &client);
    };
    in_region(owner.alloc(len + 5, OPEN).unwrap());
    in_region(owner.alloc_huge(len, OPEN).unwrap());
    // The process's own. The words are of 8 bytes, so that it begins at such.
    let mut own = vec![0_u64; len as usize / 8];
    // SAFETY: the vector outlives the region, which is_read deregisters, and is not touched meanwhile.
    in_region(unsafe { owner.register(own.as_mut_ptr().cast(), len, OPEN) }.unwrap());
}

#[test]
fn what_cannot_hold_a_table_is_told() {
    let node = alone(215);
    let session = session_at(&node);
    let (needed, given) = (layout().table_bytes(), 64);
    let small = session.alloc(given, OPEN).unwrap();
    match Store::in_region(small, layout()).unwrap_err() {
        Error::Table(error) => assert_eq!(error, TableError::MemoryTooSmall { needed, given }),
        error => panic!("{error}"),
    }
    let mut own = vec![0_u64; 1 + needed as usize / 8];
    // SAFETY: the vector outlives the region, which the node never writes.
    let odd = unsafe { session.register(own.as_mut_ptr().cast::<u8>().add(4), needed, OPEN) };
    let error = Store::in_region(odd.unwrap(), layout()).unwrap_err();
    assert!(error.to_string().contains("a multiple of 8 bytes"), "{error}");
    let mut reader = reader(&session, &Store::alloc(&session, layout()).unwrap(), &node);
    let error = reader.get(b"a long key").unwrap_err();
    assert!(matches!(error, Error::Lookup(LookupError::KeyLength { given: 10, expected: 4 })));
    // That was no READ.
    assert!(reader.vqp().failure().is_none() && reader.counters().reads == 0);
    // Closed to peers.
    let closed = session.alloc(needed, AccessFlags::LOCAL_WRITE).unwrap();
    let store = Store::in_region(closed, layout()).unwrap();
    let mut reader = self::reader(&session, &store, &node);
    match reader.get(&key(0)).unwrap_err() {
        error @ Error::Completion { .. } => {
            assert!(error.to_string().contains("no region"), "{error}")
        }
        error => panic!("{error}"),
    }
}

#[test]
fn what_is_torn_is_read_again_and_told_at_last() {
    let (meta, node) = cluster(216, |_| {});
    let (owner, client) = (session_at(&meta), session_at(&node));
    let mut store = Store::alloc(&owner, Layout::new(1, 0, 4, 12).unwrap()).unwrap();
    store.put(&key(1), &value(1)).unwrap();
    let mut reader = reader(&client, &store, &meta);
    assert_eq!(age(&reader.get(&key(1)).unwrap().unwrap()), 1);
    // As if its writer had stopped in the middle of a change.
    let word = store.mr().read_u64(40).unwrap();
    store.mr().write_u64(40, !word).unwrap();
    let error = reader.get(&key(1)).unwrap_err();
    assert!(matches!(error, Error::Lookup(LookupError::Unstable { reads: 32 })), "{error}");
    assert_eq!((reader.counters().reads, reader.counters().torn), (33, 31));
    store.mr().write_u64(40, word).unwrap();
    assert_eq!(age(&reader.get(&key(1)).unwrap().unwrap()), 1);
    // Another table in its place.
    let bytes = store.layout().table_bytes();
    let anew = owner.alloc(bytes, OPEN).unwrap();
    let mut other = Store::in_region(anew, *store.layout()).unwrap();
    other.put(&key(1), &value(2)).unwrap();
    let mut cluster = vec![0; bytes as usize];
    other.mr().read(0, &mut cluster).unwrap();
    store.mr().write(0, &cluster).unwrap();
    let error = reader.get(&key(1)).unwrap_err();
    assert!(matches!(error, Error::Lookup(LookupError::Replaced { .. })), "{error}");
    assert!(matches!(store.get(&key(1)), Err(TableError::Corrupt { cluster: 0 })));
}

#[test]
fn a_table_is_read_while_it_is_written() {
    let (meta, node) = cluster(217, |_| {});
    let (stop, written) = (AtomicBool::new(false), AtomicBool::new(false));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let owner = session_at(&meta);
            let mut store = Store::alloc(&owner, layout()).unwrap();
            tell.send(store.descriptor().unwrap().encode()).unwrap();
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                for n in 0..KEYS {
                    match n % 3 == 0 && round % 2 == 0 {
                        true => store.remove(&key(n)).unwrap(),
                        false => drop(store.put(&key(n), &value(round)).unwrap()),
                    }
                }
                written.store(true, Ordering::Release);
            }
            round
        });
        let client = session_at(&node);
        let descriptor = Descriptor::decode(&told.recv().unwrap()).unwrap();
        let mut reader = Reader::connect(&client, meta.gid, descriptor).unwrap();
        wait_for("the first round", || written.load(Ordering::Acquire).then_some(()));
        // Who fails here must let the writer go, which the scope waits for.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut ages = [0; KEYS as usize];
            for n in (0..KEYS).cycle().take(5_000) {
                let found = wait_for("a look-up that does not meet the writer", || {
                    match reader.get(&key(n)) {
                        Ok(found) => Some(found),
                        Err(Error::Lookup(LookupError::Unstable { .. })) => None,
                        Err(error) => panic!("{error}"),
                    }
                });
                match found {
                    Some(value) => {
                        let (age, seen) = (age(&value), &mut ages[n as usize]);
                        assert!(age >= *seen, "key {n} was {seen}, and is {age} again");
                        *seen = age;
                    }
                    None => assert_eq!(n % 3, 0, "key {n} is never removed"),
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        println!("{:?} beside {} rounds of the writer", reader.counters(), writer.join().unwrap());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// proptest prints the bytes that break it, and the seed.
#[test]
fn whatever_lies_there_a_look_up_ends() {
    let node = alone(218);
    let session = session_at(&node);
    let layout = Layout::new(2, 2, 4, 12).unwrap();
    let mut store = Store::alloc(&session, layout).unwrap();
    for n in 0..20 {
        store.put(&key(n), &value(n)).unwrap();
    }
    let len = layout.table_bytes() as usize;
    let mut whole = vec![0; len];
    store.mr().read(0, &mut whole).unwrap();
    let reader = RefCell::new(reader(&session, &store, &node));
    // Anything, or a table with some bytes changed.
    let noise = prop::collection::vec(any::<u8>(), len);
    let changed = prop::collection::vec((0..len, any::<u8>()), 0..20).prop_map(move |changes| {
        let mut bytes = whole.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    });
    let cases = prop_oneof![noise, changed];
    TestRunner::new(ProptestConfig::with_cases(200))
        .run(&cases, |bytes| {
            store.mr().write(0, &bytes).unwrap();
            let mut reader = reader.borrow_mut();
            for n in 0..25 {
                match reader.get(&key(n)) {
                    Ok(Some(found)) => prop_assert_eq!(age(&found), n),
                    Ok(None) | Err(Error::Lookup(_)) => {}
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
            prop_assert!(reader.vqp().failure().is_none());
            Ok(())
        })
        .unwrap();
}
