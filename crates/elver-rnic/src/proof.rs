//! Who is where he says: what a DC target asks of an initiator before it sends more than it received.
//!
//! A source address is easily forged, and a READ request of 76 bytes asks for gigabytes. A target
//! therefore tells each address a token, which only who receives there can repeat, and keeps
//! nothing for it: the token is a keyed hash of the address. See `docs/wire.md`.

use core::net::IpAddr;
use core::num::NonZeroU64;

use elver_random::KeyedHash;
use elver_wire::{BTH_LEN, DcConnect, DcEth, ICRC_LEN, Message, Reth, Tail};

use elver_verbs::Time;

/// An AETH.
const AETH: u64 = 4;
/// A token in an answer.
const TOKEN: u64 = 8;
/// What an answer has at least, without a token.
const BARE_ANSWER: u64 = (BTH_LEN + DcEth::LEN + ICRC_LEN) as u64 + AETH;
/// The original value in an atomic's answer.
const ORIGINAL: u64 = 8;
/// A READ request that connects, without its fill.
const READ_REQUEST: u64 = (BTH_LEN + DcEth::LEN + DcConnect::LEN + Reth::LEN + ICRC_LEN) as u64;

/// What a token proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    /// Nothing: it was never told to this address, or too long ago.
    None,
    /// The initiator is where he says; the token will soon be too old.
    Old,
    /// The initiator is where he says.
    Fresh,
}

/// What tells tokens and knows them again.
#[derive(Debug)]
pub(crate) struct Tokens {
    hash: KeyedHash,
    /// How long the same is told, in nanoseconds; it is believed for as long again.
    epoch_ns: u64,
}

impl Tokens {
    pub(crate) fn new(hash: KeyedHash, epoch_ns: u64) -> Tokens {
        Tokens { hash, epoch_ns }
    }

    /// The token for an address. On the wire 0 stands for none.
    pub(crate) fn of(&self, address: IpAddr, now: Time) -> NonZeroU64 {
        self.in_epoch(address, now.0 / self.epoch_ns)
    }

    /// What a token from this address proves.
    pub(crate) fn check(&self, address: IpAddr, token: Option<NonZeroU64>, now: Time) -> Proof {
        let epoch = now.0 / self.epoch_ns;
        let Some(token) = token else { return Proof::None };
        if token == self.in_epoch(address, epoch) {
            Proof::Fresh
        } else if epoch > 0 && token == self.in_epoch(address, epoch - 1) {
            Proof::Old
        } else {
            Proof::None
        }
    }

    fn in_epoch(&self, address: IpAddr, epoch: u64) -> NonZeroU64 {
        NonZeroU64::new(self.hash.of(address, [epoch])).unwrap_or(NonZeroU64::MIN)
    }
}

/// Length of a packet that refuses, from the BTH to the ICRC.
pub(crate) fn refusal_len(token: bool) -> u64 {
    BARE_ANSWER + if token { TOKEN } else { 0 }
}

/// Most bytes of all answers to a request, from the BTH to the ICRC, with a token in each.
pub(crate) fn answer_len(message: &Message, mtu: u32) -> u64 {
    match message {
        Message::ReadRequest(reth) => {
            let packets = u64::from(reth.len.div_ceil(mtu).max(1));
            packets * refusal_len(true) + u64::from(reth.len).next_multiple_of(4)
        }
        Message::CmpSwp(_) | Message::FetchAdd(_) => refusal_len(true) + ORIGINAL,
        _ => refusal_len(true),
    }
}

/// The fill that makes a request as long as its answers, where one packet is enough for that. `told`
/// says that it connects with a token or does not connect.
#[inline]
pub(crate) fn fill(message: &Message, payload: u32, mtu: u32, connects: bool, told: bool) -> u16 {
    match message {
        Message::ReadRequest(reth) if !told && reth.len <= mtu => {
            answer_len(message, mtu).saturating_sub(READ_REQUEST) as u16
        }
        // Without a word it would be shorter than the answer that there is no context.
        Message::SendOnly(Tail::Plain) if payload == 0 && !connects => 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use elver_random::Rng;

    use super::*;

    const EPOCH: u64 = 1_000;

    #[test]
    fn a_token_proves_its_address_for_a_while() {
        let tokens = Tokens::new(Rng::new(1).keyed_hash(), EPOCH);
        let [here, there] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let token = tokens.of(here, Time(5 * EPOCH));
        let proves = |address, at| tokens.check(address, Some(token), Time(at));
        assert_eq!(proves(here, 6 * EPOCH - 1), Proof::Fresh);
        assert_eq!(proves(here, 6 * EPOCH), Proof::Old);
        assert_eq!(proves(here, 7 * EPOCH), Proof::None);
        assert_eq!(proves(there, 5 * EPOCH), Proof::None);
        assert_eq!(tokens.check(here, None, Time(0)), Proof::None);
        let restarted = Tokens::new(Rng::new(2).keyed_hash(), EPOCH);
        assert_eq!(restarted.check(here, Some(token), Time(5 * EPOCH)), Proof::None);
    }

    #[test]
    fn a_first_read_of_up_to_an_mtu_is_as_long_as_its_answer() {
        for mtu in [256, 1024, 4096] {
            for len in 0..=mtu {
                let read = Message::ReadRequest(Reth { va: 0, rkey: 0, len });
                let fill = fill(&read, 0, mtu, true, false);
                assert!(fill.is_multiple_of(4) && u32::from(fill) <= mtu, "{len} of {mtu}");
                let request = READ_REQUEST + u64::from(fill);
                assert!(request >= answer_len(&read, mtu), "{len} of {mtu}");
            }
            let read = Message::ReadRequest(Reth { va: 0, rkey: 0, len: mtu + 1 });
            assert_eq!(fill(&read, 0, mtu, true, false), 0);
        }
    }
}
