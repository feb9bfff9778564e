//! The bytes of a cache. A header of 24 (magic, length, checksum), then records of a tag, a length and as many bytes.
//!
//! Every length is checked against what is there and against a bound before a byte is copied, so that no file makes
//! its reader take more memory than the file has.

use crate::{Attribute, Chardev, HostCache, Message, Provider};

/// The first eight bytes; the last is the version.
pub const MAGIC: [u8; 8] = *b"ELVRVRB1";
/// The longest file.
pub const FILE_MAX: usize = 256 << 10;
/// The most records of one kind.
pub const RECORDS_MAX: usize = 1024;
/// The longest path, and kernel, and build id.
pub const NAME_MAX: usize = 4096;

const HEADER: usize = 24;

/// Why bytes are no cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header.
    #[error("it has {0} bytes, and a header has {HEADER}")]
    Short(usize),
    /// Longer than any.
    #[error("it has {0} bytes, and at most {FILE_MAX} are read")]
    Long(usize),
    /// Of something else, or of another version.
    #[error("it does not start with the magic number of this version")]
    Magic,
    /// The header has another length.
    #[error("it has {is} bytes, and its header says {said}")]
    Length {
        /// Bytes that there are.
        is: usize,
        /// Bytes that the header tells of.
        said: u64,
    },
    /// Bytes changed.
    #[error("its checksum is not that of its bytes")]
    Checksum,
    /// A record reaches beyond the end, is longer than it may be, or lacks a part.
    #[error("the record at byte {0} is cut off, or longer than it may be")]
    Record(usize),
    /// A tag of no kind.
    #[error("the record at byte {at} is of kind {tag}, which there is not")]
    Kind {
        /// Where.
        at: usize,
        /// Which.
        tag: u16,
    },
    /// More records than there may be.
    #[error("it has more than {RECORDS_MAX} records of one kind")]
    Many,
}

mod tag {
    pub(super) const KERNEL: u16 = 1;
    pub(super) const PROCESSORS: u16 = 2;
    pub(super) const LIBRARY: u16 = 3;
    pub(super) const DEVICE: u16 = 4;
    pub(super) const CHARDEV: u16 = 5;
    pub(super) const PROVIDER: u16 = 6;
    pub(super) const ATTRIBUTE: u16 = 7;
    pub(super) const BOOT: u16 = 8;
}

/// The bytes of a cache.
///
/// # Errors
/// It is larger than a reader takes.
pub fn encode(cache: &HostCache) -> Result<Vec<u8>, Malformed> {
    let mut bytes = vec![0; HEADER];
    record(&mut bytes, tag::KERNEL, &[&cache.kernel]);
    record(&mut bytes, tag::BOOT, &[&cache.boot]);
    record(&mut bytes, tag::PROCESSORS, &[&cache.processors]);
    record(&mut bytes, tag::LIBRARY, &[&cache.library]);
    for message in &cache.devices {
        record(&mut bytes, tag::DEVICE, &message_parts(message).each_ref().map(Vec::as_slice));
    }
    for chardev in &cache.chardevs {
        let [head, payload] = message_parts(&chardev.answer);
        record(&mut bytes, tag::CHARDEV, &[&chardev.index.to_le_bytes(), &head, &payload]);
    }
    for provider in &cache.providers {
        let length = (provider.path.len() as u32).to_le_bytes();
        record(&mut bytes, tag::PROVIDER, &[&length, &provider.path, &provider.build]);
    }
    for attribute in &cache.attributes {
        let length = (attribute.path.len() as u32).to_le_bytes();
        record(&mut bytes, tag::ATTRIBUTE, &[&length, &attribute.path, &attribute.value]);
    }
    let length = bytes.len() as u64;
    let checksum = crc32fast::hash(&bytes[HEADER..]);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    // What is written must be readable.
    decode(&bytes)?;
    Ok(bytes)
}

fn message_parts(message: &Message) -> [Vec<u8>; 2] {
    let head = [message.kind.to_le_bytes(), message.flags.to_le_bytes()].concat();
    [head, message.payload.clone()]
}

fn record(bytes: &mut Vec<u8>, tag: u16, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    bytes.extend(tag.to_le_bytes());
    bytes.extend((length as u32).to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
}

/// The cache that these bytes are.
///
/// # Errors
/// They are none.
pub fn decode(bytes: &[u8]) -> Result<HostCache, Malformed> {
    if bytes.len() > FILE_MAX {
        return Err(Malformed::Long(bytes.len()));
    }
    let Some((header, body)) = bytes.split_at_checked(HEADER) else {
        return Err(Malformed::Short(bytes.len()));
    };
    if header[..8] != MAGIC {
        return Err(Malformed::Magic);
    }
    let said = u64::from_le_bytes(word(&header[8..16]));
    if said != bytes.len() as u64 {
        return Err(Malformed::Length { is: bytes.len(), said });
    }
    if u32::from_le_bytes(word(&header[16..20])) != crc32fast::hash(body) {
        return Err(Malformed::Checksum);
    }
    let mut cache = HostCache::default();
    let mut rest = Cursor { bytes: body, at: HEADER };
    while !rest.bytes.is_empty() {
        let at = rest.at;
        let tag = u16::from_le_bytes(word(rest.take(2)?));
        let length = u32::from_le_bytes(word(rest.take(4)?)) as usize;
        let mut inside = Cursor { bytes: rest.take(length)?, at };
        match tag {
            tag::KERNEL => cache.kernel = inside.name()?,
            tag::BOOT => cache.boot = inside.name()?,
            tag::PROCESSORS => cache.processors = inside.name()?,
            tag::LIBRARY => cache.library = inside.name()?,
            tag::DEVICE => push(&mut cache.devices, inside.message()?)?,
            tag::CHARDEV => {
                let index = u32::from_le_bytes(word(inside.take(4)?));
                push(&mut cache.chardevs, Chardev { index, answer: inside.message()? })?;
            }
            tag::PROVIDER => {
                let path = inside.counted()?;
                push(&mut cache.providers, Provider { path, build: inside.name()? })?;
            }
            tag::ATTRIBUTE => {
                let path = inside.counted()?;
                push(&mut cache.attributes, Attribute { path, value: inside.name()? })?;
            }
            tag => return Err(Malformed::Kind { at, tag }),
        }
    }
    Ok(cache)
}

fn push<T>(all: &mut Vec<T>, one: T) -> Result<(), Malformed> {
    if all.len() == RECORDS_MAX {
        return Err(Malformed::Many);
    }
    all.push(one);
    Ok(())
}

/// The first bytes as an array; zeros where there are too few, which callers have made sure of.
fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

struct Cursor<'a> {
    bytes: &'a [u8],
    /// Where it stands in the file; within a record, where that begins.
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) =
            self.bytes.split_at_checked(length).ok_or(Malformed::Record(self.at))?;
        self.bytes = rest;
        self.at += length;
        Ok(taken)
    }

    /// All that is left, which may be as long as a name.
    fn name(&mut self) -> Result<Vec<u8>, Malformed> {
        self.up_to(self.bytes.len())
    }

    /// A length and as many bytes.
    fn counted(&mut self) -> Result<Vec<u8>, Malformed> {
        let length = u32::from_le_bytes(word(self.take(4)?)) as usize;
        self.up_to(length)
    }

    fn message(&mut self) -> Result<Message, Malformed> {
        let kind = u16::from_le_bytes(word(self.take(2)?));
        let flags = u16::from_le_bytes(word(self.take(2)?));
        Ok(Message { kind, flags, payload: self.name()? })
    }

    fn up_to(&mut self, length: usize) -> Result<Vec<u8>, Malformed> {
        if length > NAME_MAX {
            return Err(Malformed::Record(self.at));
        }
        self.take(length).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one() -> HostCache {
        let message = Message { kind: 0x1401, flags: 2, payload: b"attributes".to_vec() };
        HostCache {
            kernel: b"6.1.0 #1".to_vec(),
            boot: b"2ccaff44-01da-4c28-8eed-dcf13c7f2832".to_vec(),
            processors: b"306c3 0-1".to_vec(),
            library: vec![7; 20],
            devices: vec![message.clone()],
            chardevs: vec![Chardev { index: 3, answer: message }],
            providers: vec![Provider { path: b"/usr/lib/librxe.so".to_vec(), build: vec![9; 20] }],
            attributes: vec![Attribute { path: b"/sys/x".to_vec(), value: b"1\n".to_vec() }],
        }
    }

    /// With a header that fits.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(((HEADER + body.len()) as u64).to_le_bytes());
        bytes.extend(crc32fast::hash(body).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = encode(&one()).unwrap();
        assert_eq!(decode(&bytes), Ok(one()));
    }

    #[test]
    fn no_part_of_a_file_is_a_file() {
        let bytes = encode(&one()).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let bytes = encode(&one()).unwrap();
        // The last four of the header are nobody's.
        for at in (0..20).chain(HEADER..bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn lengths_beyond_the_end_are_refused() {
        let mut body = tag::KERNEL.to_le_bytes().to_vec();
        body.extend(u32::MAX.to_le_bytes());
        assert_eq!(decode(&sealed(&body)), Err(Malformed::Record(HEADER + 6)));

        let mut body = Vec::new();
        record(&mut body, tag::PROVIDER, &[&u32::MAX.to_le_bytes(), b"path"]);
        assert!(matches!(decode(&sealed(&body)), Err(Malformed::Record(_))));

        let mut body = Vec::new();
        record(&mut body, tag::KERNEL, &[&[0; NAME_MAX + 1]]);
        assert!(matches!(decode(&sealed(&body)), Err(Malformed::Record(_))));
    }

    #[test]
    fn too_many_records_are_refused() {
        let mut body = Vec::new();
        for _ in 0..=RECORDS_MAX {
            record(&mut body, tag::DEVICE, &[&[0; 4]]);
        }
        assert_eq!(decode(&sealed(&body)), Err(Malformed::Many));
    }

    #[test]
    fn other_kinds_and_sizes_are_refused() {
        let mut body = Vec::new();
        record(&mut body, 99, &[b"x"]);
        assert_eq!(decode(&sealed(&body)), Err(Malformed::Kind { at: HEADER, tag: 99 }));
        assert_eq!(decode(&vec![0; FILE_MAX + 1]), Err(Malformed::Long(FILE_MAX + 1)));
        assert_eq!(decode(b"not a cache, but long enough"), Err(Malformed::Magic));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(body in proptest::collection::vec(any::<u8>(), 0..512)) {
            if let Ok(cache) = decode(&sealed(&body)) {
                prop_assert_eq!(decode(&encode(&cache).unwrap()).unwrap(), cache);
            }
        }
    }
}
