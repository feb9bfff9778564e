//! The writer against a model, its limits, and what a table costs its readers.

use std::collections::BTreeMap;

use crate::common::{ID, TestMemory, key};
use elver_kv::*;
use elver_verbs::Memory;
use proptest::prelude::*;

/// Looks a key up in memory that nobody changes; the value and the READs that it took.
fn find(memory: &TestMemory, descriptor: &Descriptor, key: &[u8]) -> (Option<Value>, u32) {
    let mut lookup = Lookup::new(descriptor, key).unwrap();
    for reads in 1.. {
        let read = lookup.read();
        if let Step::Done(value) = lookup.feed(&memory.range(read.offset, read.len)).unwrap() {
            return (value, reads);
        }
    }
    unreachable!()
}

#[derive(Clone, Debug)]
enum Call {
    Insert(u32, Vec<u8>),
    Update(u32, Vec<u8>),
    Put(u32, Vec<u8>),
    Remove(u32),
}

fn calls() -> impl Strategy<Value = Call> {
    let value = || proptest::collection::vec(any::<u8>(), 0..=5);
    let n = || 0..60u32;
    prop_oneof![
        4 => (n(), value()).prop_map(|(n, value)| Call::Insert(n, value)),
        2 => (n(), value()).prop_map(|(n, value)| Call::Update(n, value)),
        2 => (n(), value()).prop_map(|(n, value)| Call::Put(n, value)),
        4 => n().prop_map(Call::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_map_does(calls in proptest::collection::vec(calls(), 1..300)) {
        let (mut table, memory) = TestMemory::table(Layout::new(3, 3, 4, 5).unwrap());
        let descriptor = table.descriptor(0, 1).unwrap();
        let mut model = BTreeMap::<u32, Vec<u8>>::new();
        for call in calls {
            let (n, new, result) = match &call {
                Call::Insert(n, value) => (*n, Some(value), table.insert(&key(*n), value)),
                Call::Update(n, value) => (*n, Some(value), table.update(&key(*n), value)),
                Call::Put(n, value) => (*n, Some(value), table.put(&key(*n), value).map(|_| ())),
                Call::Remove(n) => (*n, None, table.remove(&key(*n))),
            };
            let held = model.contains_key(&n);
            match (&call, result) {
                (Call::Insert(..), Err(TableError::KeyExists)) => prop_assert!(held),
                (Call::Update(..) | Call::Remove(_), Err(TableError::NoSuchKey)) => {
                    prop_assert!(!held);
                }
                (Call::Insert(..) | Call::Put(..), Err(TableError::Full { len, .. })) => {
                    prop_assert!(!held && table.free_clusters() == 0);
                    prop_assert_eq!(len, model.len() as u64);
                }
                (_, Err(error)) => prop_assert!(false, "{call:?}: {error}"),
                (_, Ok(())) => {
                    prop_assert!(held != matches!(call, Call::Insert(..)) || matches!(call, Call::Put(..)));
                    match new {
                        Some(value) => model.insert(n, value.clone()),
                        None => model.remove(&n),
                    };
                }
            }
            prop_assert_eq!(table.len(), model.len() as u64);
        }
        for n in 0..60 {
            let expected = model.get(&n).map(Vec::as_slice);
            let got = table.get(&key(n)).unwrap();
            prop_assert_eq!(got.as_deref(), expected);
            let (found, _) = find(&memory, &descriptor, &key(n));
            prop_assert_eq!(found.as_deref(), expected);
        }
        let entries: Result<Vec<Entry>, _> = table.entries().collect();
        let entries: BTreeMap<u32, Vec<u8>> = entries
            .unwrap()
            .iter()
            .map(|entry| (u32::from_le_bytes(entry.key[..].try_into().unwrap()), entry.value.to_vec()))
            .collect();
        prop_assert_eq!(entries, model);
    }
}

#[test]
fn at_the_recommended_load_a_key_costs_one_read() {
    for (seed, capacity) in [(1, 1_000), (2, 10_000), (3, 50_000)] {
        let layout = Layout::for_capacity(capacity, 16, 12).unwrap();
        let memory = TestMemory::new(layout.table_bytes());
        let id = TableId { seed, incarnation: 1 };
        let mut table = Table::create(memory.clone(), layout, id).unwrap();
        let descriptor = table.descriptor(0, 1).unwrap();
        let gid = |n: u32| (0xfe80_u128 << 112 | u128::from(n)).to_be_bytes();
        for n in 0..capacity {
            table.insert(&gid(n), &n.to_le_bytes().repeat(3)).unwrap();
        }
        let (mut hits, mut misses, mut most) = (0, 0, 0);
        for n in 0..capacity {
            let (value, reads) = find(&memory, &descriptor, &gid(n));
            assert_eq!(value.as_deref(), Some(&n.to_le_bytes().repeat(3)[..]));
            let (none, reads_of_miss) = find(&memory, &descriptor, &gid(capacity + n));
            assert_eq!(none, None);
            hits += reads;
            misses += reads_of_miss;
            most = most.max(reads).max(reads_of_miss);
        }
        let [hits, misses] = [hits, misses].map(|reads| f64::from(reads) / f64::from(capacity));
        println!(
            "{capacity} entries, {} bytes: {hits:.4} READs a hit, {misses:.4} a miss, at most \
             {most}; {} of {} indirect clusters free",
            layout.table_bytes(),
            table.free_clusters(),
            layout.indirect()
        );
        assert!(hits <= 1.05 && misses <= 1.05 && most <= 2, "{hits} {misses} {most}");
    }
}

#[test]
fn any_seed_takes_the_recommended_load() {
    for capacity in [1, 8, 30, 100, 500, 3_000] {
        for seed in 0..50 {
            let layout = Layout::for_capacity(capacity, 4, 0).unwrap();
            let memory = TestMemory::new(layout.table_bytes());
            let mut table =
                Table::create(memory, layout, TableId { seed, incarnation: 0 }).unwrap();
            for n in 0..layout.capacity() as u32 {
                table.insert(&key(n), &[]).unwrap();
            }
        }
    }
}

#[test]
fn fullness_is_told_in_numbers() {
    let (mut table, _) = TestMemory::table(Layout::new(1, 2, 4, 12).unwrap());
    for n in 0..24 {
        table.insert(&key(n), b"value").unwrap();
    }
    let full = TableError::Full { len: 24, capacity: 4, indirect: 2 };
    assert_eq!(table.insert(&key(24), b"value"), Err(full));
    assert_eq!(table.put(&key(24), b"value"), Err(full));
    assert_eq!(table.put(&key(23), b"other"), Ok(false));
    assert!(full.to_string().contains("holds 24 entries, is meant for 4"), "{full}");
    table.remove(&key(3)).unwrap();
    table.insert(&key(24), b"value").unwrap();

    let (mut table, memory) = TestMemory::table(Layout::new(1, 20, 4, 12).unwrap());
    let most = CHAIN_MAX * SLOTS as u32;
    for n in 0..most {
        table.insert(&key(n), b"value").unwrap();
    }
    let len = u64::from(most);
    assert_eq!(table.insert(&key(most), b"value"), Err(TableError::ChainFull { len }));
    let descriptor = table.descriptor(0, 1).unwrap();
    let reads = (0..=most).map(|n| find(&memory, &descriptor, &key(n)).1).max();
    assert_eq!(reads, Some(CHAIN_MAX));
}

#[test]
fn emptied_clusters_are_used_again() {
    let (mut table, _) = TestMemory::table(Layout::new(1, 3, 4, 4).unwrap());
    for round in 0..10 {
        for n in 0..32 {
            table.insert(&key(n), &key(round)).unwrap();
        }
        assert_eq!(table.free_clusters(), 0);
        for n in 0..32 {
            table.remove(&key((n * 7 + round) % 32)).unwrap();
        }
        assert_eq!((table.free_clusters(), table.len()), (3, 0));
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let layout = Layout::new(2, 0, 4, 12).unwrap();
    let small = Table::create(TestMemory::new(10), layout, ID).unwrap_err();
    assert_eq!(small, TableError::MemoryTooSmall { needed: layout.table_bytes(), given: 10 });
    let (mut table, memory) = TestMemory::table(layout);
    let key_length = TableError::KeyLength { given: 3, expected: 4 };
    assert_eq!(table.insert(b"abc", b""), Err(key_length));
    assert_eq!(table.get(b"abc"), Err(key_length));
    let too_long = TableError::ValueTooLong { given: 13, max: 12 };
    assert_eq!(table.insert(b"abcd", &[0; 13]), Err(too_long));
    assert_eq!(table.update(b"abcd", b""), Err(TableError::NoSuchKey));
    assert_eq!(table.remove(b"abcd"), Err(TableError::NoSuchKey));
    table.insert(b"abcd", b"").unwrap();
    assert_eq!(table.insert(b"abcd", b""), Err(TableError::KeyExists));
    memory.write(0, &vec![7; layout.table_bytes() as usize]).unwrap();
    assert!(matches!(table.get(b"abcd"), Err(TableError::Corrupt { .. })));
    assert!(table.entries().all(|entry| entry.is_err()));
}

#[test]
fn readers_of_a_table_learn_that_another_took_its_place() {
    let (mut table, memory) = TestMemory::table(Layout::new(2, 0, 4, 12).unwrap());
    table.insert(b"abcd", b"value").unwrap();
    let old = table.descriptor(0, 1).unwrap();
    let id = TableId { incarnation: 7, ..ID };
    Table::create(memory.clone(), *table.layout(), id).unwrap();
    let mut lookup = Lookup::new(&old, b"abcd").unwrap();
    let read = lookup.read();
    let gone = lookup.feed(&memory.range(read.offset, read.len));
    assert_eq!(gone, Err(LookupError::Replaced { expected: ID.incarnation, found: 7 }));
}

#[test]
fn what_is_removed_leaves_no_trace() {
    let (mut table, memory) = TestMemory::table(Layout::new(1, 0, 4, 12).unwrap());
    let len = table.layout().table_bytes() as u32;
    let empty = memory.range(0, len);
    table.insert(b"abcd", b"secret").unwrap();
    table.remove(b"abcd").unwrap();
    assert_eq!(memory.range(0, len), empty);
}
