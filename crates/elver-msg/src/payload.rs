use crate::Region;
use crate::protocol::{Memory, Remote};

/// Bytes of a message that a request keeps: a vector, or registered memory.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes of the process.
    Bytes(Vec<u8>),
    /// Registered memory: long messages are not copied if the receiver has such too.
    Region(Region),
}

impl Payload {
    /// Bytes of it.
    pub fn len(&self) -> u64 {
        match self {
            Payload::Bytes(bytes) => bytes.len() as u64,
            Payload::Region(region) => region.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::Bytes(bytes)
    }
}

/// A copy.
impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        Payload::Bytes(bytes.to_vec())
    }
}

/// A copy.
impl<const N: usize> From<&[u8; N]> for Payload {
    fn from(bytes: &[u8; N]) -> Payload {
        Payload::Bytes(bytes.to_vec())
    }
}

/// The same memory.
impl From<&Region> for Payload {
    fn from(region: &Region) -> Payload {
        Payload::Region(region.clone())
    }
}

impl Memory for Payload {
    fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Payload::Bytes(bytes) => {
                let from = offset as usize;
                into.copy_from_slice(&bytes[from..from + into.len()]);
            }
            Payload::Region(region) => {
                region.read(offset, into).expect("a message lies in its memory");
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        match self {
            // A message grows as it comes: its length is its sender's word.
            Payload::Bytes(all) => all.extend_from_slice(bytes),
            Payload::Region(region) => {
                region.write(offset, bytes).expect("a message is no longer than its room");
            }
        }
    }

    fn remote(&self) -> Option<Remote> {
        match self {
            Payload::Bytes(_) => None,
            Payload::Region(region) => {
                let elver::RemoteAddr { addr, rkey } = region.remote();
                Some(Remote { addr, rkey })
            }
        }
    }
}
