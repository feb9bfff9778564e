//! What both ends of a pair tell each other first: words of 4 bytes, little-endian.
//!
//! | word | what |
//! | --- | --- |
//! | 0 | `"ELMS"` |
//! | 1 | major version (16 bits), minor version (16 bits) |
//! | 2, 3 | rank, and how many there are |
//! | 4 | messages that this end holds though nobody waits for them |
//! | 5 | bytes of those that came whole |
//! | 6 | longest message that comes whole |
//! | 7 | zero |
//! | 8, 9 | longest message that this end takes |
//! | 10 to 13 | the group's token |
//!
//! What follows is of later minor versions, and passed over. The first two words stay what they are in every
//! version, so that ends of different ones can tell each other.

use elver_ring::frames;

use super::fault::Fault;
use super::frame::{MAJOR, MINOR};
use super::limits::Limits;

const MAGIC: u32 = u32::from_le_bytes(*b"ELMS");
/// Bytes of a greeting of this version.
pub const GREETING_BYTES: usize = 4 * WORDS;
const WORDS: usize = 14;

/// Who an end is, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Version; those of the same major one understand each other.
    pub version: (u16, u16),
    /// Its rank.
    pub rank: u32,
    /// How many ranks it knows of.
    pub size: u32,
    /// What it takes.
    pub limits: Limits,
    /// Which group it is of.
    pub token: u128,
}

impl Greeting {
    /// This version's.
    pub fn new(rank: u32, size: u32, limits: Limits, token: u128) -> Greeting {
        Greeting { version: (u16::from(MAJOR), MINOR), rank, size, limits, token }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let Greeting { version: (major, minor), rank, size, limits, token } = *self;
        let part = |value: u128, at: u32| (value >> (32 * at)) as u32;
        let message = u128::from(limits.message_bytes);
        let words: [u32; WORDS] = [
            MAGIC,
            u32::from(major) | u32::from(minor) << 16,
            rank,
            size,
            limits.unexpected_messages,
            limits.unexpected_bytes,
            limits.eager_bytes,
            0,
            part(message, 0),
            part(message, 1),
            part(token, 0),
            part(token, 1),
            part(token, 2),
            part(token, 3),
        ];
        frames::of_words(words)
    }

    /// The version of a greeting, whatever version it is of.
    ///
    /// # Errors
    /// [`Fault::Greeting`] if it is none.
    pub fn version_of(body: &[u8]) -> Result<(u16, u16), Fault> {
        frames::version_of(MAGIC, body).ok_or(Fault::Greeting)
    }

    /// Reads one of this major version.
    ///
    /// # Errors
    /// [`Fault::Greeting`].
    pub fn decode(body: &[u8]) -> Result<Greeting, Fault> {
        let version = Greeting::version_of(body)?;
        let words: [u32; WORDS] = frames::words(body).ok_or(Fault::Greeting)?;
        let join = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        let limits = Limits {
            unexpected_messages: words[4],
            unexpected_bytes: words[5],
            eager_bytes: words[6],
            message_bytes: join(8),
        };
        let token = u128::from(join(10)) | u128::from(join(12)) << 64;
        let [rank, size] = [words[2], words[3]];
        if version.0 != u16::from(MAJOR) || words[7] != 0 || rank >= size || !limits.can_be() {
            return Err(Fault::Greeting);
        }
        Ok(Greeting { version, rank, size, limits, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting::new(3, 4, Limits { message_bytes: 1 << 40, ..Limits::default() }, 1 << 100 | 7)
    }

    #[test]
    fn greetings_of_later_minor_versions_are_understood() {
        let greeting = Greeting { version: (MAJOR.into(), 9), ..greeting() };
        let mut bytes = greeting.encode().to_vec();
        bytes.extend([1, 2, 3]);
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        for len in 0..GREETING_BYTES {
            assert_eq!(Greeting::decode(&bytes[..len]), Err(Fault::Greeting));
        }
        bytes[0] ^= 1;
        assert_eq!(Greeting::decode(&bytes), Err(Fault::Greeting));
    }

    #[test]
    fn another_major_version_is_told_and_nonsense_is_none() {
        let next = u16::from(MAJOR) + 1;
        let other = Greeting { version: (next, 0), ..greeting() };
        assert_eq!(Greeting::version_of(&other.encode()), Ok((next, 0)));
        let beyond = Greeting { rank: 4, ..greeting() };
        let mut silent = greeting();
        silent.limits.unexpected_messages = 0;
        for wrong in [other, beyond, silent] {
            assert_eq!(Greeting::decode(&wrong.encode()), Err(Fault::Greeting));
        }
    }
}
