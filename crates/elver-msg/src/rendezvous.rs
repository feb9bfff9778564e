//! Where the ranks of a group learn where each other is: one place that all of them know. A rank sends a message
//! through a ring, and gets one back when all have come.
//!
//! | bytes | of a rank's message | of the answer |
//! | --- | --- | --- |
//! | 0 to 3 | `"ELMR"` | `"ELMR"` |
//! | 4, 5 | version, 1 | version, 1 |
//! | 6, 7 | its port | 0, or why it is not wanted |
//! | 8 to 11 | its rank | 0 |
//! | 12 to 15 | how many it counts | how many there are |
//! | 16 to 31 | the group's token | addresses by rank: GID (16 bytes), port (2) |
//! | 32 to 47 | its GID | … |

use std::time::{Duration, Instant};

use elver::{Gid, Session};
use elver_ring::{Carrier, Config, Ends, Listener, ListenerOptions};

use crate::closing::Closing;
use crate::error::Unwanted;
use crate::link::Link;
use crate::{Address, Error};

/// Most ranks of a group.
pub const RANKS_MAX: u32 = 1_024;

const APPLICATION: u64 = u64::from_le_bytes(*b"meet msg");
const MAGIC: &[u8; 4] = b"ELMR";
const VERSION: u16 = 1;
const ASK_BYTES: usize = 48;
const HEAD_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 18;
/// Slots of 64 bytes: the longest answer fits in half of them.
const SLOTS: u32 = 1_024;
/// Most that wait beside the ranks.
const STRANGERS_MAX: usize = 16;
/// Most that are taken in until those are heard that are there.
const ACCEPTS_AT_ONCE: usize = 16;
/// How long one has to say who it is.
const ASK_TIME: Duration = Duration::from_secs(5);
/// The longest sleep: what a peer writes wakes nobody here.
const LOOK: Duration = Duration::from_millis(1);

const _: () = assert!(HEAD_BYTES + RANKS_MAX as usize * ADDRESS_BYTES < SLOTS as usize * 32);

/// The place. `elver launch` has one; so may any process with a session.
pub struct Rendezvous {
    session: Session,
    listener: Listener,
    token: u128,
    ranks: Vec<Option<(Ends, Address)>>,
    /// Those that have not said who they are.
    asked: Vec<(Ends, Instant)>,
    /// Those that were told why they are not wanted.
    closing: Closing,
    refused: u64,
}

impl Rendezvous {
    /// For so many ranks, of a group with this token; at a port of the session's node, 0 for a free one.
    ///
    /// # Errors
    /// [`Error::Options`] for a number of ranks that cannot be; [`Error::Ring`] if another has the port.
    pub fn bind(session: &Session, port: u16, size: u32, token: u128) -> Result<Rendezvous, Error> {
        check_size(size)?;
        let options = ListenerOptions { application: APPLICATION, ..ListenerOptions::default() };
        Ok(Rendezvous {
            session: session.clone(),
            listener: Listener::bind(session, port, options)?,
            token,
            ranks: (0..size).map(|_| None).collect(),
            asked: Vec::new(),
            closing: Closing::new(),
            refused: 0,
        })
    }

    /// Where ranks find it.
    pub fn address(&self) -> Address {
        Address { gid: self.session.gid(), port: self.listener.port() }
    }

    /// How many came that are none of the group.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Ranks that have not come yet.
    pub fn missing(&self) -> Vec<u32> {
        let all = (0..).zip(&self.ranks).filter(|(_, rank)| rank.is_none());
        all.map(|(rank, _)| rank).collect()
    }

    /// Takes in who has come; true when all ranks have, and were told where the others are.
    ///
    /// # Errors
    /// [`Error::Ring`] if the node is gone.
    pub fn poll(&mut self) -> Result<bool, Error> {
        self.closing.look();
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(ends) = self.listener.try_accept()? else { break };
            if self.asked.len() >= self.ranks.len() + STRANGERS_MAX {
                // Who comes now may be a rank, which speaks at once.
                let (stranger, _) = self.asked.remove(0);
                stranger.sender.carrier().hurry();
            }
            self.asked.push((ends, Instant::now()));
        }
        let mut at = 0;
        while let Some((ends, since)) = self.asked.get_mut(at) {
            let heard = ends.receiver.try_recv().map(|message| message.map(|all| all.to_vec()));
            let heard = match heard {
                Ok(None) if !ends.receiver.is_ended() && since.elapsed() < ASK_TIME => {
                    at += 1;
                    continue;
                }
                Ok(heard) => heard,
                Err(_) => None,
            };
            let (ends, _) = self.asked.remove(at);
            match heard {
                Some(bytes) => self.came(ends, &bytes),
                // Nobody is waited for who lets nothing through.
                None => ends.sender.carrier().hurry(),
            }
        }
        if self.ranks.iter().any(Option::is_none) {
            for (ends, _) in self.ranks.iter().flatten() {
                // Its news, or each wait would be over at once. One that has gone is missed by the others.
                let _ = ends.receiver.carrier().poll();
            }
            return Ok(false);
        }
        let addresses: Vec<_> = self.ranks.iter().flatten().map(|(_, address)| *address).collect();
        let answer = encode_answer(0, &addresses);
        for (ends, _) in self.ranks.iter_mut().flatten() {
            // One that is gone is missed by the others.
            let _ = ends.sender.try_send(&answer).and_then(|()| ends.sender.end());
        }
        Ok(true)
    }

    /// Waits until all ranks have come and were told, or `stop` says that it is enough; whether they have.
    ///
    /// # Errors
    /// As [`Rendezvous::poll`].
    pub fn run(&mut self, mut stop: impl FnMut() -> bool) -> Result<bool, Error> {
        while !self.poll()? {
            if stop() {
                return Ok(false);
            }
            match self.session.wait_ready(Some(LOOK)) {
                Ok(_) | Err(elver::Error::TimedOut | elver::Error::Woken) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn came(&mut self, mut ends: Ends, bytes: &[u8]) {
        let judged = decode_ask(bytes).and_then(|ask| {
            if ask.token != self.token {
                return Err(Unwanted::Group);
            }
            if ask.size as usize != self.ranks.len() {
                return Err(Unwanted::Size);
            }
            match self.ranks.get(ask.rank as usize) {
                Some(None) => Ok(ask),
                _ => Err(Unwanted::Rank),
            }
        });
        match judged {
            Ok(ask) => self.ranks[ask.rank as usize] = Some((ends, ask.address)),
            Err(why) => {
                self.refused += 1;
                // It may be gone.
                let answer = encode_answer(why as u16, &[]);
                let _ = ends.sender.try_send(&answer);
                self.closing.push(Link::new(ends));
            }
        }
    }
}

impl Drop for Rendezvous {
    /// Those that have said nothing are not waited for, those that were refused all together, and with them the ranks that
    /// have come if not all have. Behind that a rank has a moment of its own for its answer.
    fn drop(&mut self) {
        self.asked.iter().for_each(|(ends, _)| ends.sender.carrier().hurry());
        let is_over = self.ranks.iter().all(Option::is_some);
        let ranks = if is_over { Vec::new() } else { std::mem::take(&mut self.ranks) };
        let ranks = ranks.into_iter().flatten().map(|(ends, _)| Link::new(ends));
        self.closing.finish(&self.session, ranks);
    }
}

/// Asks a rendezvous where all ranks are, and waits until they are known.
pub(crate) fn ask(
    session: &Session,
    at: Address,
    ask: Ask,
    at_most: Duration,
) -> Result<Vec<Address>, Error> {
    let began = Instant::now();
    let deadline = began + at_most;
    let left = || Some(deadline.saturating_duration_since(Instant::now()));
    let config = Config::default().with_slots(SLOTS);
    let options =
        elver_ring::Options { application: APPLICATION, ..elver_ring::Options::both(config) };
    let late = |error| match error {
        elver_ring::Error::TimedOut => Error::Join {
            seconds: at_most.as_secs(),
            what: format!("the rendezvous at {at} has not told where all ranks are"),
            why: String::new(),
        },
        error => error.into(),
    };
    let mut ends = elver_ring::connect(session, at.gid, at.port, options, left()).map_err(late)?;
    ends.sender.send(&encode_ask(&ask), left()).map_err(late)?;
    ends.sender.flush()?;
    let answer = ends.receiver.recv(left()).map_err(late)?.map(|message| message.to_vec());
    let Some(answer) = answer else {
        return Err(Error::Join {
            seconds: began.elapsed().as_secs(),
            what: format!("the rendezvous at {at} has gone before all ranks came"),
            why: String::new(),
        });
    };
    let who = || format!("the rendezvous at {at}");
    let unwanted = |why| Error::Unwanted { who: who(), why };
    let addresses = decode_answer(&answer).map_err(unwanted)?;
    if addresses.len() != ask.size as usize {
        return Err(unwanted(Unwanted::Size));
    }
    Ok(addresses)
}

/// What a rank says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) token: u128,
    pub(crate) address: Address,
}

pub(crate) fn check_size(size: u32) -> Result<(), Error> {
    match size {
        1..=RANKS_MAX => Ok(()),
        _ => Err(Error::Options { what: "a group has 1 to 1,024 ranks" }),
    }
}

fn encode_ask(ask: &Ask) -> [u8; ASK_BYTES] {
    let Ask { rank, size, token, address } = ask;
    let mut bytes = [0; ASK_BYTES];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&address.port.to_le_bytes());
    bytes[8..12].copy_from_slice(&rank.to_le_bytes());
    bytes[12..16].copy_from_slice(&size.to_le_bytes());
    bytes[16..32].copy_from_slice(&token.to_le_bytes());
    bytes[32..].copy_from_slice(&address.gid.0);
    bytes
}

/// The number behind a message's first bytes, of this version.
fn number(bytes: &[u8]) -> Result<u16, Unwanted> {
    let Some(&[a, b, c, d, low, high, first, second]) = bytes.first_chunk() else {
        return Err(Unwanted::Nonsense);
    };
    if &[a, b, c, d] != MAGIC {
        return Err(Unwanted::Nonsense);
    }
    match u16::from_le_bytes([low, high]) {
        VERSION => Ok(u16::from_le_bytes([first, second])),
        _ => Err(Unwanted::Version),
    }
}

fn decode_ask(bytes: &[u8]) -> Result<Ask, Unwanted> {
    let port = number(bytes)?;
    let bytes: &[u8; ASK_BYTES] = bytes.try_into().map_err(|_| Unwanted::Nonsense)?;
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let wide = |at: usize| u128::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let gid = Gid(std::array::from_fn(|byte| bytes[32 + byte]));
    let address = Address { gid, port };
    Ok(Ask { rank: word(8), size: word(12), token: wide(16), address })
}

fn encode_answer(why: u16, addresses: &[Address]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + addresses.len() * ADDRESS_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(why.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend((addresses.len() as u32).to_le_bytes());
    for address in addresses {
        bytes.extend(address.gid.0);
        bytes.extend(address.port.to_le_bytes());
    }
    bytes
}

fn decode_answer(bytes: &[u8]) -> Result<Vec<Address>, Unwanted> {
    let why = number(bytes)?;
    if why != 0 {
        return Err(Unwanted::of(why.into()));
    }
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Unwanted::Nonsense)?;
    let count = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    let (addresses, over) = rest.as_chunks::<ADDRESS_BYTES>();
    if !over.is_empty() || addresses.len() != count as usize {
        return Err(Unwanted::Nonsense);
    }
    let address = |bytes: &[u8; ADDRESS_BYTES]| Address {
        gid: Gid(std::array::from_fn(|at| bytes[at])),
        port: u16::from_le_bytes([bytes[16], bytes[17]]),
    };
    Ok(addresses.iter().map(address).collect())
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Reads any bytes as what comes to a rendezvous, and from one; for fuzzing.
pub(crate) fn read_any(bytes: &[u8]) {
    if let Ok(ask) = decode_ask(bytes) {
        assert_eq!(decode_ask(&encode_ask(&ask)), Ok(ask));
    }
    if let Ok(addresses) = decode_answer(bytes) {
        assert_eq!(decode_answer(&encode_answer(0, &addresses)), Ok(addresses));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { gid: Gid([port as u8; 16]), port }
    }

    #[test]
    fn what_is_encoded_decodes_and_nothing_shorter_does() {
        let ask = Ask { rank: 3, size: 7, token: 1 << 99, address: address(11) };
        let bytes = encode_ask(&ask);
        assert_eq!(decode_ask(&bytes), Ok(ask));
        let addresses = [address(1), address(2)];
        let answer = encode_answer(0, &addresses);
        assert_eq!(decode_answer(&answer).as_deref(), Ok(&addresses[..]));
        assert_eq!(decode_answer(&encode_answer(3, &[])), Err(Unwanted::Size));
        for len in 0..ASK_BYTES {
            assert_eq!(decode_ask(&bytes[..len]), Err(Unwanted::Nonsense), "{len}");
        }
        for len in 0..answer.len() {
            assert_eq!(decode_answer(&answer[..len]), Err(Unwanted::Nonsense), "{len}");
        }
    }

    #[test]
    fn another_version_is_told() {
        let ask = Ask { rank: 0, size: 1, token: 0, address: address(1) };
        let mut bytes = encode_ask(&ask);
        bytes[4] = 2;
        assert_eq!(decode_ask(&bytes), Err(Unwanted::Version));
    }
}
