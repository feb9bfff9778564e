use crate::layout::{CLUSTER_BYTES_MAX, HEAD_BYTES};
use crate::{Layout, SLOTS, TableId};

/// Marks a cluster that is the last of its chain: no chain leads to the first bucket.
const NO_CLUSTER: u32 = 0;

const INCARNATION: usize = 8;
const GENERATION: usize = 12;
const NEXT: usize = 16;
const NEXT_GENERATION: usize = 20;
const LENGTHS: usize = 24;

/// 1 in each byte of a word, and the top bit of each.
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const TOP_BITS: u64 = 0x80 * EACH_BYTE;

/// The way from one cluster of a chain to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    /// What the target's generation is while the link holds.
    pub(crate) generation: u32,
}

/// Why bytes are not the cluster that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Of a table of this incarnation.
    Incarnation(u32),
    /// Read while it was written, or never written whole.
    Torn,
    /// Written whole, but no table writes such.
    Malformed,
}

/// The bytes of a cluster, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    bytes: &'a [u8],
    layout: &'a Layout,
}

impl<'a> View<'a> {
    /// Checks that `bytes`, of the layout's length, are the cluster at `index` at one moment.
    pub(crate) fn open(
        bytes: &'a [u8],
        layout: &'a Layout,
        id: &TableId,
        index: u32,
    ) -> Result<View<'a>, Fault> {
        let view = View { bytes, layout };
        if bytes.len() != layout.cluster_bytes() {
            return Err(Fault::Malformed);
        }
        let incarnation = view.word(INCARNATION);
        if !may_become(incarnation, id.incarnation) {
            return Err(Fault::Incarnation(incarnation));
        }
        let (sum, body) = bytes.split_at(INCARNATION);
        if incarnation != id.incarnation || sum != id.checksum(index, body).to_le_bytes() {
            return if view.is_unwritten() { Ok(view) } else { Err(Fault::Torn) };
        }
        // The marks of all entries at once: what is added brings those that are too large to 128 at
        // least, and none to 256.
        let marks = u64::from(view.word(LENGTHS)) | u64::from(view.word(LENGTHS + 4)) << 32;
        let room = 0x7f - (layout.value_len_max() as u64 + 1);
        let lengths_fit = (marks | ((marks & !TOP_BITS) + room * EACH_BYTE)) & TOP_BITS == 0;
        let indirect = layout.buckets()..layout.clusters();
        let next_fits = view.next().is_none_or(|next| indirect.contains(&next.index));
        if lengths_fit && next_fits { Ok(view) } else { Err(Fault::Malformed) }
    }

    /// Whether nothing was ever stored there: all of it is 0, which reads as a cluster without
    /// entries, of generation 0 and at the end of its chain.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.word(GENERATION)
    }

    /// The link to the rest of the chain.
    pub(crate) fn next(&self) -> Option<Link> {
        let (index, generation) = (self.word(NEXT), self.word(NEXT_GENERATION));
        (index != NO_CLUSTER).then_some(Link { index, generation })
    }

    /// Key and value of an entry; none when it is empty.
    pub(crate) fn entry(&self, slot: usize) -> Option<(&'a [u8], &'a [u8])> {
        let value_len = self.length_mark(slot).checked_sub(1)?;
        let at = HEAD_BYTES + slot * self.layout.entry_bytes();
        let (key, value) = self.bytes[at..].split_at(self.layout.key_len());
        Some((key, &value[..value_len]))
    }

    /// The entry that holds a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<(usize, &'a [u8])> {
        (0..SLOTS).find_map(|slot| match self.entry(slot) {
            Some((held, value)) if held == key => Some((slot, value)),
            _ => None,
        })
    }

    /// An empty entry.
    pub(crate) fn room(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.length_mark(*slot) == 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        (0..SLOTS).all(|slot| self.length_mark(slot) == 0)
    }

    fn length_mark(&self, slot: usize) -> usize {
        usize::from(self.bytes[LENGTHS + slot])
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.bytes;
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
}

/// Whether an incarnation that was read is a table's, or a mixture of that with what stood there
/// before: 0. The table never changes it otherwise, so that a mixture cannot show another.
fn may_become(read: u32, incarnation: u32) -> bool {
    let mut bytes = read.to_le_bytes().into_iter().zip(incarnation.to_le_bytes());
    read == incarnation || bytes.all(|(read, byte)| read == 0 || read == byte)
}

/// A cluster that its writer works on; what it holds passed [`View::open`] or was made here.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    bytes: [u8; CLUSTER_BYTES_MAX],
    layout: Layout,
}

impl Cluster {
    /// One without entries and at the end of its chain.
    pub(crate) fn blank(layout: Layout, id: &TableId, generation: u32) -> Cluster {
        let mut cluster = Cluster { bytes: [0; CLUSTER_BYTES_MAX], layout };
        cluster.set_word(INCARNATION, id.incarnation);
        cluster.set_word(GENERATION, generation);
        cluster.set_next(None);
        cluster
    }

    /// A copy of a checked one.
    pub(crate) fn copy_of(view: &View<'_>) -> Cluster {
        let mut bytes = [0; CLUSTER_BYTES_MAX];
        bytes[..view.bytes.len()].copy_from_slice(view.bytes);
        Cluster { bytes, layout: *view.layout }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { bytes: &self.bytes[..self.layout.cluster_bytes()], layout: &self.layout }
    }

    /// Fills an entry; the caller checked both lengths.
    pub(crate) fn set(&mut self, slot: usize, key: &[u8], value: &[u8]) {
        let entry = self.entry_mut(slot);
        entry.fill(0);
        entry[..key.len()].copy_from_slice(key);
        entry[key.len()..key.len() + value.len()].copy_from_slice(value);
        self.bytes[LENGTHS + slot] = 1 + value.len() as u8;
    }

    /// Empties an entry. Values may be secrets, so that nothing of it is left.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.entry_mut(slot).fill(0);
        self.bytes[LENGTHS + slot] = 0;
    }

    pub(crate) fn set_next(&mut self, next: Option<Link>) {
        let next = next.unwrap_or(Link { index: NO_CLUSTER, generation: 0 });
        self.set_word(NEXT, next.index);
        self.set_word(NEXT_GENERATION, next.generation);
    }

    /// The bytes with the checksum that makes them the cluster at `index`.
    pub(crate) fn seal(&mut self, id: &TableId, index: u32) -> &[u8] {
        let bytes = &mut self.bytes[..self.layout.cluster_bytes()];
        let (sum, body) = bytes.split_at_mut(INCARNATION);
        sum.copy_from_slice(&id.checksum(index, body).to_le_bytes());
        bytes
    }

    fn entry_mut(&mut self, slot: usize) -> &mut [u8] {
        let len = self.layout.entry_bytes();
        &mut self.bytes[HEAD_BYTES + slot * len..][..len]
    }

    fn set_word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TableId = TableId { seed: 5, incarnation: 6 };

    fn layout() -> Layout {
        Layout::new(4, 2, 3, 5).unwrap()
    }

    fn open(bytes: &[u8], index: u32) -> Result<(), Fault> {
        View::open(bytes, &layout(), &ID, index).map(|_| ())
    }

    #[test]
    fn entries_come_back() {
        let mut cluster = Cluster::blank(layout(), &ID, 3);
        cluster.set(7, b"key", b"value");
        cluster.set(0, b"abc", b"");
        cluster.set_next(Some(Link { index: 5, generation: 8 }));
        let layout = layout();
        let view = View::open(cluster.seal(&ID, 1), &layout, &ID, 1).unwrap();
        assert_eq!(view.find(b"key"), Some((7, &b"value"[..])));
        assert_eq!(view.entry(0), Some((&b"abc"[..], &b""[..])));
        assert_eq!((view.find(b"abd"), view.entry(1), view.room()), (None, None, Some(1)));
        assert_eq!((view.generation(), view.is_empty()), (3, false));
        assert_eq!(view.next(), Some(Link { index: 5, generation: 8 }));
        cluster.set(7, b"key", b"new");
        assert_eq!(cluster.view().find(b"key"), Some((7, &b"new"[..])));
        cluster.clear(7);
        cluster.clear(0);
        cluster.set_next(None);
        assert!(cluster.view().is_empty());
        assert_eq!(cluster.seal(&ID, 1), Cluster::blank(layout, &ID, 3).seal(&ID, 1));
    }

    #[test]
    fn where_nothing_was_stored_is_nothing() {
        let zeros = [0; CLUSTER_BYTES_MAX];
        let (zeros, layout) = (&zeros[..layout().cluster_bytes()], layout());
        for id in [ID, TableId { incarnation: 0, ..ID }] {
            let view = View::open(zeros, &layout, &id, 1).unwrap();
            assert!(view.is_unwritten() && view.is_empty());
            assert_eq!((view.find(&[0; 3]), view.room()), (None, Some(0)));
            assert_eq!((view.generation(), view.next()), (0, None));
        }
        // The first store of the first change, whichever it is.
        for word in 0..zeros.len() / 8 {
            let mut begun = zeros.to_vec();
            begun[8 * word] = 1;
            let fault = open(&begun, 1).unwrap_err();
            assert!(fault == Fault::Torn || (word == 1 && fault == Fault::Incarnation(1)));
        }
        for (begun, fault) in [([6, 0], Fault::Torn), ([6, 1], Fault::Incarnation(0x106))] {
            let mut mixed = zeros.to_vec();
            mixed[8..10].copy_from_slice(&begun);
            assert_eq!(open(&mixed, 1), Err(fault));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut cluster = Cluster::blank(layout(), &ID, 0);
        cluster.set(2, b"key", b"value");
        let bytes = cluster.seal(&ID, 1);
        assert_eq!(open(bytes, 1), Ok(()));
        assert_eq!(open(bytes, 2), Err(Fault::Torn));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&flipped, 1).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_no_table_writes_is_malformed() {
        let mut long = Cluster::blank(layout(), &ID, 0);
        long.bytes[LENGTHS + 3] = 7;
        assert_eq!(open(long.seal(&ID, 1), 1), Err(Fault::Malformed));
        for index in [3, 6, u32::MAX] {
            let mut astray = Cluster::blank(layout(), &ID, 0);
            astray.set_next(Some(Link { index, generation: 0 }));
            assert_eq!(open(astray.seal(&ID, 1), 1), Err(Fault::Malformed), "{index}");
        }
        assert_eq!(open(&[], 1), Err(Fault::Malformed));
        let other = TableId { incarnation: 1, ..ID };
        let mut foreign = Cluster::blank(layout(), &other, 0);
        assert_eq!(open(foreign.seal(&other, 1), 1), Err(Fault::Incarnation(1)));
    }
}
