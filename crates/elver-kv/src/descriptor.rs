use siphasher::sip::SipHasher13;
use thiserror::Error;

use crate::{Layout, LayoutError, SLOTS, TableId};

/// Bytes of an encoded [`Descriptor`].
pub const DESCRIPTOR_BYTES: usize = 40;

const VERSION: u8 = 3;
/// Bytes in front of the check.
const CHECKED_BYTES: usize = DESCRIPTOR_BYTES - 4;
/// Keys the check: it finds accidents, it does not authenticate.
const CHECK_KEY: (u64, u64) = (0x656c_7665_722d_6b76, VERSION as u64);

/// All that a peer must know to read a table. It gets it out of band.
///
/// ```text
///   0  version (3), key length, longest value, entries a cluster (8)   4 × 1
///   4  rkey                                                             4
///   8  address of the table's first byte                                8
///   16 buckets                                                          4
///   20 indirect clusters                                                4
///   24 seed of the hash                                                 8
///   32 incarnation                                                      4
///   36 check of the bytes before                                        4
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    addr: u64,
    rkey: u32,
    layout: Layout,
    id: TableId,
}

impl Descriptor {
    /// The descriptor of a table whose first byte peers reach as `addr` with `rkey`.
    ///
    /// # Errors
    ///
    /// [`DescriptorError::Address`] if the table would end behind the last address.
    pub fn new(
        addr: u64,
        rkey: u32,
        layout: Layout,
        id: TableId,
    ) -> Result<Descriptor, DescriptorError> {
        let bytes = layout.table_bytes();
        if addr.checked_add(bytes).is_none() {
            return Err(DescriptorError::Address { addr, bytes });
        }
        Ok(Descriptor { addr, rkey, layout, id })
    }

    /// Address of the table's first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The key that opens it to READs.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What tells it from other tables.
    pub fn id(&self) -> &TableId {
        &self.id
    }

    /// The descriptor as bytes.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let lengths = [self.layout.key_len() as u8, self.layout.value_len_max() as u8];
        bytes[..4].copy_from_slice(&[VERSION, lengths[0], lengths[1], SLOTS as u8]);
        bytes[4..8].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.layout.buckets().to_le_bytes());
        bytes[20..24].copy_from_slice(&self.layout.indirect().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.id.seed.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.id.incarnation.to_le_bytes());
        let check = check(&bytes);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The descriptor that `bytes` encode, checked: no look-up with it reads out of its table.
    ///
    /// # Errors
    ///
    /// A [`DescriptorError`] that says which field cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Descriptor, DescriptorError> {
        let bytes: &[u8; DESCRIPTOR_BYTES] =
            bytes.try_into().map_err(|_| DescriptorError::Length { given: bytes.len() })?;
        if bytes[0] != VERSION {
            return Err(DescriptorError::Version { given: bytes[0] });
        }
        let (given, expected) = (word(bytes, CHECKED_BYTES), check(bytes));
        if given != expected {
            return Err(DescriptorError::Check { given, expected });
        }
        if usize::from(bytes[3]) != SLOTS {
            return Err(DescriptorError::Slots { given: bytes[3] });
        }
        let (key_len, value_len_max) = (usize::from(bytes[1]), usize::from(bytes[2]));
        let layout = Layout::new(word(bytes, 16), word(bytes, 20), key_len, value_len_max)?;
        let id = TableId { seed: double_word(bytes, 24), incarnation: word(bytes, 32) };
        Descriptor::new(double_word(bytes, 8), word(bytes, 4), layout, id)
    }
}

/// Why bytes are no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DescriptorError {
    /// Another number of bytes.
    #[error("a descriptor has {DESCRIPTOR_BYTES} bytes, not {given}")]
    Length {
        /// Bytes given.
        given: usize,
    },
    /// Another version of the format.
    #[error("descriptor of version {given}; this side knows version {VERSION} alone")]
    Version {
        /// The version that it names.
        given: u8,
    },
    /// The check does not fit the rest.
    #[error("the descriptor's check is {given:#010x}, but its bytes give {expected:#010x}")]
    Check {
        /// The check that it carries.
        given: u32,
        /// The check of its bytes.
        expected: u32,
    },
    /// Clusters of another size.
    #[error("clusters of {given} entries; this side knows clusters of {SLOTS} alone")]
    Slots {
        /// Entries a cluster.
        given: u8,
    },
    /// Its geometry cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The table would end behind the last address.
    #[error("a table of {bytes} bytes at {addr:#x} ends behind the last address")]
    Address {
        /// Address of its first byte.
        addr: u64,
        /// Its size.
        bytes: u64,
    },
}

fn check(bytes: &[u8; DESCRIPTOR_BYTES]) -> u32 {
    SipHasher13::new_with_keys(CHECK_KEY.0, CHECK_KEY.1).hash(&bytes[..CHECKED_BYTES]) as u32
}

fn word(bytes: &[u8; DESCRIPTOR_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn double_word(bytes: &[u8; DESCRIPTOR_BYTES], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn descriptor() -> Descriptor {
        let layout = Layout::for_capacity(100, 16, 12).unwrap();
        let id = TableId { seed: 0x1122_3344_5566_7788, incarnation: 9 };
        Descriptor::new(0x7000_0000, 0xabcd, layout, id).unwrap()
    }

    /// The bytes with a check that fits.
    fn resealed(mut bytes: [u8; DESCRIPTOR_BYTES]) -> [u8; DESCRIPTOR_BYTES] {
        let check = check(&bytes);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = descriptor().encode();
        assert_eq!(Descriptor::decode(&bytes), Ok(descriptor()));
        for bit in 0..DESCRIPTOR_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Descriptor::decode(&flipped).is_err(), "bit {bit}");
        }
        let given = DESCRIPTOR_BYTES - 1;
        assert_eq!(Descriptor::decode(&bytes[1..]), Err(DescriptorError::Length { given }));
    }

    #[test]
    fn what_is_sealed_is_checked_all_the_same() {
        let mut bytes = descriptor().encode();
        bytes[3] = 4;
        let slots = Descriptor::decode(&resealed(bytes));
        assert_eq!(slots, Err(DescriptorError::Slots { given: 4 }));
        let mut bytes = descriptor().encode();
        bytes[8..16].fill(0xff);
        let address = Descriptor::decode(&resealed(bytes));
        assert!(matches!(address, Err(DescriptorError::Address { .. })), "{address:?}");
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same(bytes in any::<[u8; DESCRIPTOR_BYTES]>()) {
            let mut bytes = bytes;
            (bytes[0], bytes[1], bytes[2], bytes[3]) = (VERSION, bytes[1] % 34, bytes[2] % 66, 8);
            bytes[19] &= 0x7f;
            bytes[23] &= 0x7f;
            let bytes = resealed(bytes);
            if let Ok(descriptor) = Descriptor::decode(&bytes) {
                prop_assert_eq!(descriptor.encode(), bytes);
            }
        }
    }
}
