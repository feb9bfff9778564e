use elver_verbs::RemoteAddr;
use thiserror::Error;

use crate::cluster::{Fault, Link, View};
use crate::{CHAIN_MAX, Descriptor, Key, Value};

/// Most READs of one look-up, those included that met the writer.
pub const READS_MAX: u32 = 32;

/// Looks a key up with READs that the caller carries out.
///
/// ```text
///   Lookup::new ──▶ read() ──▶ post the READ ──▶ feed(bytes) ──▶ Step::Done(value or none)
///                      ▲                             │
///                      └───────── Step::Read ────────┘
/// ```
///
/// After an outcome, a value or none or an error, it stands at its start again and may be used for
/// another round.
#[derive(Clone, Debug)]
pub struct Lookup {
    descriptor: Descriptor,
    key: Key,
    /// Index of the first cluster of the key's bucket.
    head: u32,
    /// The link to the cluster to read; none while that is the head of the bucket.
    link: Option<Link>,
    /// Clusters of the chain that were read whole since the head.
    passed: u32,
    reads: u32,
    retries: u32,
}

/// A READ to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where it reads at the peer.
    pub remote: RemoteAddr,
    /// First byte, counted from the start of the table.
    pub offset: u64,
    /// How many bytes: one cluster.
    pub len: u32,
}

/// What bytes led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another READ is needed.
    Read(Read),
    /// The value of the key; none when the table did not hold it.
    Done(Option<Value>),
}

/// Why a look-up has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The table's keys have another length.
    #[error("key of {given} bytes in a table of keys of {expected} bytes")]
    KeyLength {
        /// Bytes of the key.
        given: usize,
        /// Bytes of the table's keys.
        expected: usize,
    },
    /// Fed with other than what the READ fetches.
    #[error("{given} bytes for a READ of {expected}")]
    AnswerLength {
        /// Bytes given.
        given: usize,
        /// Bytes of the READ.
        expected: usize,
    },
    /// Another table lies there now, or none: get the descriptor anew.
    #[error("the table of incarnation {expected:#x} is gone: {found:#x} was found in its place")]
    Replaced {
        /// The descriptor's incarnation.
        expected: u32,
        /// What stands in the cluster.
        found: u32,
    },
    /// Every READ met the writer, or the writer died in the middle of a change.
    #[error("no consistent answer in {reads} READs; try later, or another replica")]
    Unstable {
        /// READs made.
        reads: u32,
    },
    /// The cluster holds what no table writes.
    #[error("cluster {cluster} holds what no table writes; its owner must create it anew")]
    Malformed {
        /// Index of the cluster.
        cluster: u32,
    },
}

impl Lookup {
    /// A look-up of `key` in the table that `descriptor` names.
    ///
    /// # Errors
    ///
    /// [`LookupError::KeyLength`] if the table's keys have another length.
    pub fn new(descriptor: &Descriptor, key: &[u8]) -> Result<Lookup, LookupError> {
        let (given, expected) = (key.len(), descriptor.layout().key_len());
        let wrong_length = LookupError::KeyLength { given, expected };
        let key = Key::copy_from(key).filter(|_| given == expected).ok_or(wrong_length)?;
        let head = descriptor.id().bucket(&key, descriptor.layout().buckets());
        let descriptor = *descriptor;
        Ok(Lookup { descriptor, key, head, link: None, passed: 0, reads: 0, retries: 0 })
    }

    /// The READ to carry out now.
    pub fn read(&self) -> Read {
        let offset = self.descriptor.layout().offset(self.index());
        // The descriptor was checked: the table's last address exists.
        let addr = self.descriptor.addr() + offset;
        let remote = RemoteAddr { addr, rkey: self.descriptor.rkey() };
        Read { remote, offset, len: self.descriptor.layout().cluster_bytes() as u32 }
    }

    /// READs of this round that were answered.
    pub fn reads(&self) -> u32 {
        self.reads
    }

    /// How many of these met the writer. A caller may wait a moment when it grows.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Takes the bytes that [`Lookup::read`] fetched, whatever they are.
    ///
    /// # Errors
    ///
    /// [`LookupError::AnswerLength`] if these are not as many bytes as the READ had; [`LookupError::Replaced`] if the
    /// table is another by now; [`LookupError::Unstable`] after many READs that met the writer;
    /// [`LookupError::Malformed`] if a table holds what none writes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Step, LookupError> {
        let step = self.advance(bytes);
        if !matches!(step, Ok(Step::Read(_))) {
            (self.link, self.passed, self.reads, self.retries) = (None, 0, 0, 0);
        }
        step
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<Step, LookupError> {
        let (id, layout) = (*self.descriptor.id(), *self.descriptor.layout());
        if bytes.len() != layout.cluster_bytes() {
            let (given, expected) = (bytes.len(), layout.cluster_bytes());
            return Err(LookupError::AnswerLength { given, expected });
        }
        self.reads += 1;
        let cluster = self.index();
        match View::open(bytes, &layout, &id, cluster) {
            Ok(view) if self.link.is_some_and(|link| link.generation != view.generation()) => {
                // It left the chain since the link was read; the rest of the chain is unknown.
                (self.link, self.passed) = (None, 0);
                self.retry()
            }
            Ok(view) => self.search(&view),
            Err(Fault::Torn) => self.retry(),
            Err(Fault::Malformed) => Err(LookupError::Malformed { cluster }),
            Err(Fault::Incarnation(found)) => {
                Err(LookupError::Replaced { expected: id.incarnation, found })
            }
        }
    }

    fn search(&mut self, view: &View<'_>) -> Result<Step, LookupError> {
        if let Some((_, value)) = view.find(&self.key) {
            return Ok(Step::Done(Value::copy_from(value)));
        }
        let Some(next) = view.next() else {
            return Ok(Step::Done(None));
        };
        self.passed += 1;
        if self.passed >= CHAIN_MAX {
            return Err(LookupError::Malformed { cluster: self.index() });
        }
        self.link = Some(next);
        self.again()
    }

    fn retry(&mut self) -> Result<Step, LookupError> {
        self.retries += 1;
        self.again()
    }

    fn again(&self) -> Result<Step, LookupError> {
        if self.reads >= READS_MAX {
            return Err(LookupError::Unstable { reads: self.reads });
        }
        Ok(Step::Read(self.read()))
    }

    /// Index of the cluster to read.
    fn index(&self) -> u32 {
        self.link.map_or(self.head, |link| link.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::{Layout, SLOTS, TableId};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ID: TableId = TableId { seed: 1, incarnation: 2 };
    const BASE: u64 = 0x1000;

    fn descriptor() -> Descriptor {
        Descriptor::new(BASE, 9, Layout::new(1, 20, 4, 4).unwrap(), ID).unwrap()
    }

    fn lookup() -> Lookup {
        Lookup::new(&descriptor(), b"key!").unwrap()
    }

    fn link(index: u32, generation: u32) -> Option<Link> {
        Some(Link { index, generation })
    }

    /// A cluster of this generation that leads on to `next`.
    fn sealed(index: u32, generation: u32, next: Option<Link>, value: Option<&[u8]>) -> Vec<u8> {
        let mut cluster = Cluster::blank(*descriptor().layout(), &ID, generation);
        cluster.set_next(next);
        if let Some(value) = value {
            cluster.set(3, b"key!", value);
        }
        cluster.seal(&ID, index).to_vec()
    }

    /// The cluster that a step leads to.
    fn led_to(step: Result<Step, LookupError>) -> u32 {
        let Ok(Step::Read(read)) = step else { panic!("{step:?}") };
        (read.offset / u64::from(read.len)) as u32
    }

    #[test]
    fn it_follows_links_of_the_right_generation() {
        let mut lookup = lookup();
        assert_eq!(lookup.read().remote, RemoteAddr { addr: BASE, rkey: 9 });
        assert_eq!(led_to(lookup.feed(&sealed(0, 0, link(4, 7), None))), 4);
        assert_eq!((lookup.reads(), lookup.retries()), (1, 0));
        // The cluster was taken away meanwhile: from the head again.
        assert_eq!(led_to(lookup.feed(&sealed(4, 8, None, Some(b"old")))), 0);
        assert_eq!((lookup.reads(), lookup.retries()), (2, 1));
        assert_eq!(led_to(lookup.feed(&sealed(0, 0, link(5, 1), None))), 5);
        let done = lookup.feed(&sealed(5, 1, None, Some(b"new")));
        assert_eq!(done, Ok(Step::Done(Value::copy_from(b"new"))));
        assert_eq!((lookup.reads(), lookup.retries(), lookup.read().offset), (0, 0, 0));
        assert_eq!(lookup.feed(&sealed(0, 0, None, None)), Ok(Step::Done(None)));
    }

    #[test]
    fn what_stays_torn_ends() {
        let mut lookup = lookup();
        let mut torn = sealed(0, 0, None, None);
        torn[40] ^= 1;
        for _ in 1..READS_MAX {
            assert_eq!(led_to(lookup.feed(&torn)), 0);
        }
        assert_eq!(lookup.feed(&torn), Err(LookupError::Unstable { reads: READS_MAX }));
    }

    #[test]
    fn a_ring_ends() {
        let mut lookup = lookup();
        assert_eq!(led_to(lookup.feed(&sealed(0, 0, link(4, 0), None))), 4);
        for _ in 2..CHAIN_MAX {
            assert_eq!(led_to(lookup.feed(&sealed(4, 0, link(4, 0), None))), 4);
        }
        let ring = lookup.feed(&sealed(4, 0, link(4, 0), None));
        assert_eq!(ring, Err(LookupError::Malformed { cluster: 4 }));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let given = Lookup::new(&descriptor(), b"four!").unwrap_err();
        assert_eq!(given, LookupError::KeyLength { given: 5, expected: 4 });
        let expected = descriptor().layout().cluster_bytes();
        let short = lookup().feed(&[0; 3]);
        assert_eq!(short, Err(LookupError::AnswerLength { given: 3, expected }));
        let gone = lookup().feed(&alloc::vec![7; expected]);
        assert_eq!(gone, Err(LookupError::Replaced { expected: 2, found: 0x0707_0707 }));
    }

    /// What a hostile or broken owner answers a READ with.
    #[derive(Clone, Debug)]
    enum Answer {
        /// Anything, of about the right length.
        Noise(Vec<u8>),
        /// A cluster with a checksum that fits.
        Sealed { generation: u32, next: Option<(u32, u32)>, lengths: [u8; SLOTS] },
    }

    fn answers() -> impl Strategy<Value = Answer> {
        let len = descriptor().layout().cluster_bytes();
        let next = proptest::option::of((prop_oneof![0..24u32, any::<u32>()], 0..2u32));
        let lengths = prop_oneof![Just([0; SLOTS]), any::<[u8; SLOTS]>()];
        prop_oneof![
            proptest::collection::vec(any::<u8>(), len).prop_map(Answer::Noise),
            proptest::collection::vec(any::<u8>(), 0..2 * len).prop_map(Answer::Noise),
            (0..2u32, next, lengths).prop_map(|(generation, next, lengths)| Answer::Sealed {
                generation,
                next,
                lengths
            }),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_it_ends_and_stays_inside(
            answers in proptest::collection::vec(answers(), READS_MAX as usize),
        ) {
            let bytes_of_table = descriptor().layout().table_bytes();
            let mut lookup = lookup();
            let mut ended = false;
            for answer in answers {
                let read = lookup.read();
                prop_assert!(read.offset + u64::from(read.len) <= bytes_of_table);
                prop_assert_eq!(read.remote.addr, BASE + read.offset);
                let index = (read.offset / u64::from(read.len)) as u32;
                let bytes = match answer {
                    Answer::Noise(bytes) => bytes,
                    Answer::Sealed { generation, next, lengths } => {
                        let next = next.map(|(index, generation)| Link { index, generation });
                        let mut bytes = sealed(index, generation, next, None);
                        bytes[24..32].copy_from_slice(&lengths);
                        let sum = ID.checksum(index, &bytes[8..]);
                        bytes[..8].copy_from_slice(&sum.to_le_bytes());
                        bytes
                    }
                };
                if !matches!(lookup.feed(&bytes), Ok(Step::Read(_))) {
                    ended = true;
                    break;
                }
            }
            prop_assert!(ended);
        }
    }
}
