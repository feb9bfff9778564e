//! A process that writes anything, at any time, into the gate by which it reaches memory of others: the node's end waits for
//! it, or does not, and must do nothing else. Each word has one writer, whatever stands in the others.

use std::fs::File;
use std::os::unix::fs::FileExt;

use elver_portal::{ClientGate, DOORS_MAX, GATE_BYTES, GateCounts, NodeGate, memfd};

/// Bytes of a step: what to do, where, with what.
const STEP: usize = 11;
/// More than one access has.
const BYTES_MAX: u64 = 1 << 40;
const WORDS: usize = (GATE_BYTES / 8) as usize;
/// The words of the client's.
const EPOCH: usize = 0;
const COUNTS: std::ops::Range<usize> = 1..4;

/// Runs an input.
pub fn run(data: &[u8]) {
    let fd = memfd::create("fuzz", GATE_BYTES, memfd::Pages::Small).expect("a file");
    let node = NodeGate::map(&fd).expect("a mapping");
    let mut client = ClientGate::map(&fd).expect("a mapping");
    let file = File::from(fd);
    // An access that the node waits for.
    let mut awaited = None;
    for step in data.chunks_exact(STEP) {
        let at = u16::from_le_bytes([step[1], step[2]]);
        let value = u64::from_le_bytes(step[3..].try_into().expect("8 bytes"));
        let before = words(&file);
        // Most are near those that there are; the others are as far as any.
        let door = match at >> 14 {
            3 => u32::MAX - u32::from(at),
            _ => u32::from(at) % (DOORS_MAX + 2),
        };
        match step[0] % 8 {
            0 => {
                node.open(door, value);
                let opened = (door < DOORS_MAX).then(|| word_of(door));
                changed_at_most(&before, &file, opened);
                assert!(opened.is_none_or(|at| words(&file)[at] == value));
            }
            1 => {
                awaited = node.shut(door).or(awaited);
                let shut = (door < DOORS_MAX).then(|| word_of(door));
                changed_at_most(&before, &file, shut);
                assert!(shut.is_none_or(|at| words(&file)[at] == 0));
                let epoch = before[EPOCH];
                let inside = (epoch % 2 == 1).then_some(epoch);
                assert!(inside.is_none() || awaited == inside, "who is inside is waited for");
                assert!(
                    client.enter(door, value).is_none(),
                    "nobody enters by a door that is shut"
                );
            }
            // The client's own code, whatever was written into its words.
            2 => {
                let bytes = value % BYTES_MAX;
                let entered = client.enter(door, value).map(|mut inside| match value % 2 {
                    0 => inside.has_read(bytes),
                    _ => inside.has_written(bytes),
                });
                let own = |at: usize| at == EPOCH || COUNTS.contains(&at);
                let after = words(&file);
                assert!((0..WORDS).all(|at| own(at) || after[at] == before[at]));
                let is_open = door < DOORS_MAX && before[word_of(door)] == value && value != 0;
                assert_eq!(entered.is_some(), is_open);
            }
            3 => {
                if let Some(epoch) = awaited {
                    assert_eq!(node.is_past(epoch), before[EPOCH] != epoch);
                }
                changed_at_most(&before, &file, None);
            }
            4 => {
                let GateCounts { reads, writes, bytes } = node.counts();
                assert_eq!([reads, writes, bytes], before[COUNTS]);
                changed_at_most(&before, &file, None);
            }
            // Anything, anywhere.
            _ => {
                let offset = u64::from(at) % (GATE_BYTES - 7);
                file.write_all_at(&value.to_le_bytes(), offset).expect("bytes of the file");
            }
        }
    }
}

/// Where a door's word is: they are the last of the page.
fn word_of(door: u32) -> usize {
    WORDS - DOORS_MAX as usize + door as usize
}

fn words(file: &File) -> [u64; WORDS] {
    let mut bytes = [0; GATE_BYTES as usize];
    file.read_exact_at(&mut bytes, 0).expect("the file's bytes");
    std::array::from_fn(|at| {
        let word = bytes[at * 8..].first_chunk().expect("there are so many words");
        u64::from_ne_bytes(*word)
    })
}

/// The node wrote at most one word.
fn changed_at_most(before: &[u64; WORDS], file: &File, allowed: Option<usize>) {
    let after = words(file);
    for at in (0..WORDS).filter(|at| Some(*at) != allowed) {
        assert_eq!(before[at], after[at], "word {at}");
    }
}
