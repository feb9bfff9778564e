//! What both ends tell each other first. A hello and a welcome are the same words of 4 bytes:
//!
//! | word | what |
//! | --- | --- |
//! | 0 | `"ELRP"` |
//! | 1 | major version (16 bits), minor version (16 bits) |
//! | 2 | bytes of a stream that may come before its first credit |
//! | 3 | most bytes of a message that this end takes |
//! | 4 | of a welcome: how many calls may be under way |
//! | 5 | of a welcome: the first port of the server's group (16 bits), how many there are (16 bits) |
//!
//! What follows is of later minor versions, and passed over. The first two words stay what they are in
//! every version, and so do the first two bytes of a frame and what a refusal looks like: so that ends of
//! different versions can tell each other.

use elver_ring::frames;

use super::fault::Fault;
use super::frame::{MAJOR, MINOR};

const MAGIC: u32 = u32::from_le_bytes(*b"ELRP");
/// Bytes of a greeting of this version.
pub const GREETING_BYTES: usize = 24;

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Version; those of the same major one understand each other.
    pub version: (u16, u16),
    /// Bytes of a stream that may come before its first credit.
    pub window: u32,
    /// Most bytes of a message that this end takes.
    pub message_max: u32,
    /// How many calls may be under way.
    pub calls: u32,
    /// The ports of a server's group: the first, and how many.
    pub group: (u16, u16),
}

impl Greeting {
    /// This version's, without a group.
    pub fn new(window: u32, message_max: u32, calls: u32) -> Greeting {
        let version = (u16::from(MAJOR), MINOR);
        Greeting { version, window, message_max, calls, group: (0, 0) }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let pair = |(low, high): (u16, u16)| u32::from(low) | u32::from(high) << 16;
        let Greeting { version, window, message_max, calls, group } = *self;
        frames::of_words([MAGIC, pair(version), window, message_max, calls, pair(group)])
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
        let [_, _, window, message_max, calls, group] =
            frames::words(body).ok_or(Fault::Greeting)?;
        let group = (group as u16, (group >> 16) as u16);
        if version.0 != u16::from(MAJOR) {
            return Err(Fault::Greeting);
        }
        Ok(Greeting { version, window, message_max, calls, group })
    }
}

/// Why ends of two versions do not understand each other.
pub fn versions_differ(client: (u16, u16), server: (u16, u16)) -> String {
    let ((a, b), (c, d)) = (client, server);
    format!(
        "the client speaks version {a}.{b}, and the server {c}.{d}: both need the same first number"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_of_later_minor_versions_are_understood() {
        let greeting = Greeting { version: (1, 9), group: (7, 2), ..Greeting::new(1, 2, 3) };
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
    fn another_major_version_is_told() {
        let greeting = Greeting { version: (2, 0), ..Greeting::new(1, 2, 3) };
        assert_eq!(Greeting::version_of(&greeting.encode()), Ok((2, 0)));
        assert_eq!(Greeting::decode(&greeting.encode()), Err(Fault::Greeting));
        let told = versions_differ((1, 0), (2, 0));
        assert!(told.contains("1.0") && told.contains("2.0"), "{told}");
    }
}
