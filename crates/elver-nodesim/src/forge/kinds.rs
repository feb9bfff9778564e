//! Who forges, and in which runs.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Who forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forger {
    /// A host off the path that has no secret. It knows addresses, queue pairs, PSNs and regions' keys;
    /// where it does not forge its address, all but what admits it; where it does, it guesses the rest.
    Stranger,
    /// A process of another user on a node's host: it knows every key, and hears all, but has not the
    /// device's port.
    Process,
    /// A member gone bad: it has all nodes' records, and speaks in its own name, as a node that is
    /// registered or as none; and somebody who has them and forges addresses of others, where he hears
    /// nothing.
    Member,
    /// Somebody on the path: he hears all, says it again at any later time, and sends in the name of
    /// nodes what loses time and connections.
    OnPath,
}

impl Forger {
    /// All of them.
    pub const ALL: [Forger; 4] =
        [Forger::Stranger, Forger::Process, Forger::Member, Forger::OnPath];
}

impl fmt::Display for Forger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forger::Stranger => "stranger",
            Forger::Process => "process",
            Forger::Member => "member",
            Forger::OnPath => "on-path",
        })
    }
}

/// Which runs have somebody who forges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forgers {
    /// One in four, each kind as often as the others: the seed says.
    #[default]
    Drawn,
    /// None.
    None,
    /// All, and it is this one.
    Always(Forger),
}

impl fmt::Display for Forgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forgers::Drawn => f.write_str("drawn"),
            Forgers::None => f.write_str("none"),
            Forgers::Always(forger) => forger.fmt(f),
        }
    }
}

/// Nobody who forges has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown forger `{0}`; they are drawn, none, stranger, process, member and on-path")]
pub struct UnknownForger(pub String);

impl FromStr for Forgers {
    type Err = UnknownForger;

    fn from_str(name: &str) -> Result<Forgers, UnknownForger> {
        let all = Forger::ALL.into_iter().map(Forgers::Always);
        [Forgers::Drawn, Forgers::None]
            .into_iter()
            .chain(all)
            .find(|forgers| forgers.to_string() == name)
            .ok_or_else(|| UnknownForger(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        let all = Forger::ALL.into_iter().map(Forgers::Always);
        for forgers in [Forgers::Drawn, Forgers::None].into_iter().chain(all) {
            assert_eq!(forgers.to_string().parse(), Ok(forgers));
            let listed = UnknownForger(String::new()).to_string();
            assert!(listed.contains(&forgers.to_string()), "{forgers} is not listed");
        }
        assert!("nobody".parse::<Forgers>().is_err());
    }
}
