//! Bugs to plant: a model that does not catch them is worth nothing.

use std::fmt;
use std::str::FromStr;

use elver_sim::Rng;
use thiserror::Error;

/// A bug to plant in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Canary {
    /// The tail is written before the slots that it tells of.
    TailFirst,
    /// A receiver believes a tail that has not come yet.
    TailBelievedEarly,
    /// The slots of a transmission with a tail are left out.
    SlotsLeftOut,
    /// Slots are freed before their message is read.
    FreedBeforeRead,
    /// A WRITE of a tail is executed a second time, later.
    TailRepeated,
    /// A message is read twice.
    ReadTwice,
    /// A message is lost between the ring and its reader.
    MessageLost,
}

const NAMES: [(Canary, &str); 7] = [
    (Canary::TailFirst, "tail-first"),
    (Canary::TailBelievedEarly, "tail-believed-early"),
    (Canary::SlotsLeftOut, "slots-left-out"),
    (Canary::FreedBeforeRead, "freed-before-read"),
    (Canary::TailRepeated, "tail-repeated"),
    (Canary::ReadTwice, "read-twice"),
    (Canary::MessageLost, "message-lost"),
];

/// Strikes in a hundred chances.
const PERCENT: u32 = 30;

impl Canary {
    /// Every canary.
    pub fn all() -> impl Iterator<Item = Canary> {
        NAMES.into_iter().map(|(canary, _)| canary)
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(canary, _)| canary == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// No canary has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown canary `{0}`; `elver sim ring --list-canaries` lists them")]
pub struct UnknownCanary(pub String);

impl FromStr for Canary {
    type Err = UnknownCanary;

    fn from_str(name: &str) -> Result<Canary, UnknownCanary> {
        let named = NAMES.into_iter().find(|(_, given)| *given == name);
        named.map(|(canary, _)| canary).ok_or_else(|| UnknownCanary(name.into()))
    }
}

/// Plants a run's bug.
#[derive(Debug)]
pub(crate) struct Planter {
    canary: Option<Canary>,
    rng: Rng,
    pub(crate) strikes: u64,
}

impl Planter {
    pub(crate) fn new(canary: Option<Canary>, rng: Rng) -> Planter {
        Planter { canary, rng, strikes: 0 }
    }

    /// Whether the run's bug is this one, and strikes now.
    pub(crate) fn strikes(&mut self, canary: Canary) -> bool {
        let struck = self.canary == Some(canary) && self.rng.percent(PERCENT);
        self.strikes += u64::from(struck);
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        for canary in Canary::all() {
            assert_eq!(canary.to_string().parse(), Ok(canary));
        }
        assert!("nothing".parse::<Canary>().is_err());
    }
}
