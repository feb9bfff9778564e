//! What the two ends of a pair of rings tell each other once, in a message of their VQP: 15 words of 8
//! bytes, little-endian.
//!
//! | word | what |
//! | --- | --- |
//! | 0 | `"RB2R"`, the version (16 bits), the kind (16 bits) |
//! | 1 to 4 | measures of the ring from who connects: slots and bytes of a slot; α and β; γ; nanoseconds that a batch waits, or all ones |
//! | 5 to 8 | the same of the ring back |
//! | 9, 10 | address and rkey of the words that the peer writes; of a question, those of the offer; of a refusal, the reason |
//! | 11, 12 | address and rkey of the slots that the peer fills; of a question, those of the offer |
//! | 13 | what the user of who connects says of the pair; of a welcome, the number of the listener's end |
//! | 14 | what is spoken over the rings |
//!
//! Later on, who connected wakes the listener's end by a message of 9 bytes to the port: 1, and that number.

use elver::RemoteAddr;

use crate::error::Refusal;
use crate::protocol::Config;

/// The version of greeting and protocol.
pub(crate) const VERSION: u16 = 4;
/// Bytes of a greeting.
pub(crate) const GREETING_BYTES: usize = WORDS * 8;
const WORDS: usize = 15;
const MAGIC: u32 = u32::from_le_bytes(*b"RB2R");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// Who connects: the measures of both rings, and where they are at this end.
    Hello { there: Config, back: Config, place: Place, token: u64, application: u64 },
    /// The listener's end, and its number in wakings.
    Welcome(Place, u64),
    /// The listener does not take it.
    Refused(Refusal),
    /// Who connects has waited for long for an answer to a greeting, which it names by where its end is. It comes by
    /// another VQP than that. A listener that has the greeting still says nothing.
    Waiting(Place),
}

/// Where an end keeps what its peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) cells: RemoteAddr,
    pub(crate) slots: RemoteAddr,
}

/// Bytes that are no greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nonsense {
    Malformed(&'static str),
    Version(u16),
}

const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const REFUSED: u16 = 3;
const WAITING: u16 = 4;
const REFUSALS: [Refusal; 12] = [
    Refusal::Version,
    Refusal::Malformed,
    Refusal::Config,
    Refusal::TooLarge,
    Refusal::Memory,
    Refusal::Application,
    Refusal::Closed,
    Refusal::PeerShare,
    Refusal::Connection,
    Refusal::Unreachable,
    Refusal::Crowded,
    Refusal::Lost,
];

impl Greeting {
    pub(crate) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut words = [0; WORDS];
        let kind = match *self {
            Greeting::Hello { there, back, place, token, application } => {
                put_config(&mut words[1..5], &there);
                put_config(&mut words[5..9], &back);
                put_place(&mut words, place);
                (words[13], words[14]) = (token, application);
                HELLO
            }
            Greeting::Welcome(place, bell) => {
                put_place(&mut words, place);
                words[13] = bell;
                WELCOME
            }
            Greeting::Refused(reason) => {
                let at = REFUSALS.iter().position(|known| *known == reason);
                words[9] = at.map_or(u64::MAX, |at| at as u64);
                REFUSED
            }
            Greeting::Waiting(place) => {
                put_place(&mut words, place);
                WAITING
            }
        };
        words[0] = u64::from(MAGIC) | u64::from(VERSION) << 32 | u64::from(kind) << 48;
        let mut bytes = [0; GREETING_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Greeting, Nonsense> {
        let Some((first, _)) = bytes.split_first_chunk().filter(|_| bytes.len() >= 8) else {
            return Err(Nonsense::Malformed("it is too short for a greeting"));
        };
        let first = u64::from_le_bytes(*first);
        if first as u32 != MAGIC {
            return Err(Nonsense::Malformed("it does not begin as a greeting does"));
        }
        // Another version's may be of another length.
        let version = (first >> 32) as u16;
        if version != VERSION {
            return Err(Nonsense::Version(version));
        }
        let bytes: &[u8; GREETING_BYTES] =
            bytes.try_into().map_err(|_| Nonsense::Malformed("a greeting has another length"))?;
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*from);
        }
        let greeting = match (first >> 48) as u16 {
            HELLO => Greeting::Hello {
                there: config(&words[1..5])?,
                back: config(&words[5..9])?,
                place: place(&words)?,
                token: words[13],
                application: words[14],
            },
            WELCOME => Greeting::Welcome(place(&words)?, words[13]),
            REFUSED => {
                let reason = usize::try_from(words[9]).ok().and_then(|at| REFUSALS.get(at));
                let unknown = Nonsense::Malformed("it refuses for an unknown reason");
                Greeting::Refused(*reason.ok_or(unknown)?)
            }
            WAITING => Greeting::Waiting(place(&words)?),
            _ => return Err(Nonsense::Malformed("a greeting of an unknown kind")),
        };
        // What a kind has no use for is zero.
        if greeting.encode() == *bytes {
            Ok(greeting)
        } else {
            Err(Nonsense::Malformed("something stands where nothing does"))
        }
    }
}

/// The message that wakes who connected.
pub(crate) const WAKING: &[u8] = &[1];
/// Bytes of a waking to a port.
const WAKING_BYTES: usize = 9;

/// The message that wakes a listener's end.
pub(crate) fn waking(bell: u64) -> [u8; WAKING_BYTES] {
    let mut bytes = [1; WAKING_BYTES];
    bytes[1..].copy_from_slice(&bell.to_le_bytes());
    bytes
}

/// Which end a message wakes, if it is a waking.
pub(crate) fn woken(message: &[u8]) -> Option<u64> {
    let message: &[u8; WAKING_BYTES] = message.try_into().ok()?;
    let [1, bell @ ..] = message else { return None };
    Some(u64::from_le_bytes(*bell))
}

fn put_config(words: &mut [u64], config: &Config) {
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    words[0] = join(config.slots, config.slot_bytes);
    words[1] = join(config.alpha, config.beta);
    words[2] = u64::from(config.gamma);
    words[3] = config.linger_ns.unwrap_or(u64::MAX);
}

fn config(words: &[u64]) -> Result<Config, Nonsense> {
    let (slots, slot_bytes) = (words[0] as u32, (words[0] >> 32) as u32);
    let (alpha, beta) = (words[1] as u32, (words[1] >> 32) as u32);
    let gamma = u32::try_from(words[2]).map_err(|_| Nonsense::Malformed("γ is too large"))?;
    let linger_ns = Some(words[3]).filter(|linger_ns| *linger_ns != u64::MAX);
    Ok(Config { slots, slot_bytes, alpha, beta, gamma, linger_ns })
}

fn put_place(words: &mut [u64], place: Place) {
    let Place { cells, slots } = place;
    words[9..13].copy_from_slice(&[cells.addr, cells.rkey.into(), slots.addr, slots.rkey.into()]);
}

fn place(words: &[u64]) -> Result<Place, Nonsense> {
    let at = |addr: u64, rkey: u64| match u32::try_from(rkey) {
        Ok(rkey) => Ok(RemoteAddr { addr, rkey }),
        Err(_) => Err(Nonsense::Malformed("an rkey has 32 bits")),
    };
    Ok(Place { cells: at(words[9], words[10])?, slots: at(words[11], words[12])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_and_nothing_else_does() {
        let at = |addr, rkey| RemoteAddr { addr, rkey };
        let place = Place { cells: at(1 << 40, 7), slots: at(3, u32::MAX) };
        let there = Config { linger_ns: Some(5), ..Config::default() };
        let (back, token, application) = (there.unbatched(), u64::MAX, 1 << 63);
        let hello = Greeting::Hello { there, back, place, token, application };
        let refused = REFUSALS.map(Greeting::Refused);
        let others = [hello, Greeting::Welcome(place, 9), Greeting::Waiting(place)];
        for greeting in others.into_iter().chain(refused) {
            let bytes = greeting.encode();
            assert_eq!(Greeting::decode(&bytes), Ok(greeting));
            for len in 0..bytes.len() {
                assert!(Greeting::decode(&bytes[..len]).is_err());
            }
            // Whatever a bit makes of it, it is told apart or another greeting.
            for bit in 0..8 * bytes.len() {
                let mut other = bytes;
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Greeting::decode(&other), Ok(greeting), "bit {bit}");
            }
        }
    }

    #[test]
    fn another_version_is_told_before_anything_else_of_it_is_read() {
        let mut bytes = Greeting::Refused(Refusal::Config).encode();
        bytes[4] = 9;
        assert_eq!(Greeting::decode(&bytes), Err(Nonsense::Version(9)));
        assert_eq!(Greeting::decode(&bytes[..8]), Err(Nonsense::Version(9)));
    }
}
