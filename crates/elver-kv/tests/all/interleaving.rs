//! Readers that meet the writer at any moment: each word, or each byte, of a READ is taken at a
//! moment of its own among the writer's stores.

use std::collections::BTreeMap;

use crate::common::{TestMemory, key};
use elver_kv::{Descriptor, Layout, Lookup, LookupError, Step, Table, TableError, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Keys of the tests: as many as two buckets hold whose clusters overflow into each other's.
const KEYS: u32 = 36;

#[derive(Clone, Debug)]
enum Change {
    Put(u32, Vec<u8>),
    Remove(u32),
}

type Model = BTreeMap<u32, Vec<u8>>;

/// What a writer did, store by store.
struct History {
    descriptor: Descriptor,
    /// The memory before the first store and after each.
    moments: Vec<Vec<u8>>,
    /// What the table holds before the first change and after each.
    models: Vec<Model>,
    /// For each moment, the changes that were complete, and those begun.
    progress: Vec<(usize, usize)>,
}

impl History {
    /// Of a table in memory that was never written, where each cluster has its first change.
    fn of(layout: Layout, prepare: &[Change], changes: &[Change]) -> History {
        let (mut table, memory) = TestMemory::table_in_zeros(layout);
        let mut model = Model::new();
        for change in prepare {
            apply(&mut table, &mut model, change);
        }
        memory.record();
        let mut models = vec![model.clone()];
        let mut progress = vec![(0, 0)];
        for (n, change) in changes.iter().enumerate() {
            apply(&mut table, &mut model, change);
            models.push(model.clone());
            // A change is begun before its first store and complete with its last.
            let last = progress.len() - 1;
            progress[last].1 = n + 1;
            while progress.len() <= memory.stores() {
                progress.push((n, n + 1));
            }
            let last = progress.len() - 1;
            progress[last] = (n + 1, n + 1);
        }
        let descriptor = table.descriptor(0, 1).unwrap();
        History { descriptor, moments: memory.moments(), models, progress }
    }

    /// Whether a key may be found like this by a look-up between two moments.
    fn allows(&self, key: u32, found: Option<&Value>, from: usize, to: usize) -> bool {
        let (first, last) = (self.progress[from].0, self.progress[to].1);
        let found = found.map(|value| &value[..]);
        self.models[first..=last].iter().any(|model| model.get(&key).map(Vec::as_slice) == found)
    }
}

fn apply(table: &mut Table<TestMemory>, model: &mut Model, change: &Change) {
    match change {
        Change::Put(n, value) => {
            let put = table.put(&key(*n), value);
            if !matches!(put, Err(TableError::Full { .. })) {
                assert_eq!(put, Ok(model.insert(*n, value.clone()).is_none()));
            }
        }
        Change::Remove(n) => {
            assert_eq!(table.remove(&key(*n)).is_ok(), model.remove(n).is_some());
        }
    }
}

/// Looks a key up; `moment(low)` chooses the moment of a piece of `grain` bytes, not before `low`.
/// Every READ begins after the one before it has ended.
fn look_up(
    history: &History,
    n: u32,
    start: usize,
    grain: usize,
    mut window: impl FnMut(usize) -> usize,
    mut moment: impl FnMut(usize, usize) -> usize,
) -> (Result<Option<Value>, LookupError>, usize, u32) {
    let mut lookup = Lookup::new(&history.descriptor, &key(n)).unwrap();
    let (mut low, mut retries) = (start, 0);
    loop {
        let high = window(low);
        let read = lookup.read();
        let range = read.offset as usize..read.offset as usize + read.len as usize;
        let mut bytes = Vec::with_capacity(range.len());
        for at in range.step_by(grain) {
            bytes.extend_from_slice(&history.moments[moment(low, high)][at..at + grain]);
        }
        low = high;
        let step = lookup.feed(&bytes);
        retries = retries.max(lookup.retries());
        match step {
            Ok(Step::Read(_)) => {}
            Ok(Step::Done(value)) => return (Ok(value), high, retries),
            Err(error) => return (Err(error), high, retries),
        }
    }
}

fn layout() -> Layout {
    Layout::new(2, 2, 4, 12).unwrap()
}

fn changes(max: usize) -> impl Strategy<Value = Vec<Change>> {
    let value = proptest::collection::vec(0u8..3, 0..=12);
    let change = prop_oneof![
        3 => (0..KEYS, value).prop_map(|(n, value)| Change::Put(n, value)),
        2 => (0..KEYS).prop_map(Change::Remove),
    ];
    proptest::collection::vec(change, 1..max)
}

/// Many changes before the first look-up, or none: then look-ups meet the first of each cluster.
fn preparations() -> impl Strategy<Value = Vec<Change>> {
    prop_oneof![3 => changes(60), 1 => Just(Vec::new())]
}

/// A number below `n` from a sequence that the case fixes.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((u128::from(*state) * n as u128) >> 64) as usize
}

/// Samples look-ups over random histories; returns how many READs met the writer.
fn sample(grain: usize, cases: u32) -> u64 {
    // The same cases each time, so that what is counted at the end does not depend on luck.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let met = std::cell::Cell::new(0);
    let strategy = (preparations(), changes(20), any::<u64>());
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&strategy, |(prepare, changes, seed)| {
        let history = History::of(layout(), &prepare, &changes);
        let last = history.moments.len() - 1;
        let mut state = seed;
        for round in 0..200 {
            let n = below(&mut state, KEYS as usize) as u32;
            let start = below(&mut state, last + 1);
            // From READs that nearly stand still to READs as long as the whole history.
            let width = 1 + below(&mut state, [2, 6, last + 1][round % 3]);
            let mut words = state;
            let window = |low: usize| (low + below(&mut state, width + 1)).min(last);
            let moment = |low: usize, high: usize| low + below(&mut words, high - low + 1);
            let (found, end, retries) = look_up(&history, n, start, grain, window, moment);
            met.set(met.get() + u64::from(retries));
            match found {
                Ok(value) => prop_assert!(
                    history.allows(n, value.as_ref(), start, end),
                    "key {n} was never {value:?} between {start} and {end}"
                ),
                Err(LookupError::Unstable { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
        // The writer rests: everything is found as it is.
        for n in 0..KEYS {
            let (found, ..) = look_up(&history, n, last, grain, |low| low, |low, _| low);
            let model = &history.models[history.models.len() - 1];
            let found = found.unwrap();
            prop_assert_eq!(found.as_deref(), model.get(&n).map(Vec::as_slice));
        }
        Ok(())
    });
    result.unwrap();
    met.get()
}

#[test]
fn words_at_any_moment_never_make_an_entry_that_was_not_there() {
    assert!(sample(8, 2_000) > 50_000, "the samples must meet the writer");
}

#[test]
fn bytes_at_any_moment_never_make_an_entry_that_was_not_there() {
    assert!(sample(1, 500) > 10_000, "the samples must meet the writer");
}

/// Every way to read one cluster while one change is made to it.
fn every_interleaving(prepare: &[Change], change: Change, n: u32) {
    let one_bucket = Layout::new(1, 0, 4, 12).unwrap();
    let history = History::of(one_bucket, prepare, std::slice::from_ref(&change));
    let last = history.moments.len() - 1;
    let read = Lookup::new(&history.descriptor, &key(n)).unwrap().read();
    let range = read.offset as usize..read.offset as usize + read.len as usize;
    let words: Vec<usize> = range
        .step_by(8)
        .filter(|at| history.moments[0][*at..at + 8] != history.moments[last][*at..at + 8])
        .collect();
    // Each word changes once: what counts is whether it is read before or after.
    assert_eq!(words.len(), last, "{change:?}");
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for choice in 0u32..1 << words.len() {
        let mut bytes = history.moments[0][read.offset as usize..][..read.len as usize].to_vec();
        for (bit, at) in words.iter().enumerate() {
            if choice >> bit & 1 == 1 {
                let to = *at - read.offset as usize;
                bytes[to..to + 8].copy_from_slice(&history.moments[last][*at..at + 8]);
            }
        }
        let mut lookup = Lookup::new(&history.descriptor, &key(n)).unwrap();
        match lookup.feed(&bytes).unwrap() {
            Step::Read(_) => torn += 1,
            Step::Done(found) if choice == 0 => {
                assert!(history.allows(n, found.as_ref(), 0, 0));
                old += 1;
            }
            Step::Done(found) => {
                assert_eq!(choice, (1 << words.len()) - 1, "a mixture passed: {found:?}");
                assert!(history.allows(n, found.as_ref(), last, last));
                new += 1;
            }
        }
    }
    assert_eq!((old, new, torn), (1, 1, (1 << words.len()) - 2));
}

#[test]
fn of_all_mixtures_of_one_change_only_the_two_ends_pass() {
    let put = |n, byte| Change::Put(n, vec![byte; 12]);
    let prepare = [put(1, 1), put(2, 2), put(3, 3)];
    every_interleaving(&prepare, put(2, 9), 2);
    every_interleaving(&prepare, Change::Put(2, vec![]), 2);
    every_interleaving(&prepare, put(4, 4), 4);
    every_interleaving(&prepare, Change::Remove(1), 1);
    // The first change of a cluster.
    every_interleaving(&[], put(4, 4), 4);
    every_interleaving(&[], put(4, 4), 5);
    // Neighbours of what changes.
    every_interleaving(&prepare, put(2, 9), 3);
    every_interleaving(&prepare, Change::Remove(1), 2);
}

#[test]
fn a_cluster_that_went_to_another_chain_is_not_followed() {
    let layout = Layout::new(2, 2, 4, 12).unwrap();
    let (mut table, memory) = TestMemory::table(layout);
    let descriptor = table.descriptor(0, 1).unwrap();
    let head_of = |n: u32| Lookup::new(&descriptor, &key(n)).unwrap().read().offset;
    let keys_at = |offset| (0..).filter(move |n| head_of(*n) == offset);
    let low: Vec<u32> = keys_at(0).take(17).collect();
    let high: Vec<u32> = keys_at(layout.cluster_bytes() as u64).take(9).collect();
    // The low bucket has three clusters, the last key in the middle one.
    for n in low.iter().chain(&high[..8]) {
        table.insert(&key(*n), &key(*n)).unwrap();
    }
    let wanted = low[10];
    let mut lookup = Lookup::new(&descriptor, &key(wanted)).unwrap();
    let feed = |lookup: &mut Lookup| {
        let read = lookup.read();
        lookup.feed(&memory.range(read.offset, read.len)).unwrap()
    };
    assert!(matches!(feed(&mut lookup), Step::Read(_)));
    // The middle one goes to the high bucket before the reader gets there.
    table.remove(&key(low[16])).unwrap();
    table.insert(&key(high[8]), &key(high[8])).unwrap();
    assert!(matches!(feed(&mut lookup), Step::Read(read) if read.offset == 0));
    assert_eq!(lookup.retries(), 1);
    assert!(matches!(feed(&mut lookup), Step::Read(_)));
    assert_eq!(feed(&mut lookup), Step::Done(Value::copy_from(&key(wanted))));
}
