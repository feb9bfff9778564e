//! Which runs have lapses.

use std::fmt;
use std::str::FromStr;

use elver_sim::Rng;
use thiserror::Error;

/// In a run that has lapses, so many in a hundred of the harness's actions are some.
const PERCENT: u32 = 4;

/// Which runs have lapses, and DC targets that remember initiators for a short time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lapses {
    /// One in eight: the seed says.
    #[default]
    Drawn,
    /// None: what seeds did before there were any.
    None,
    /// All.
    Always,
}

impl Lapses {
    const ALL: [Lapses; 3] = [Lapses::Drawn, Lapses::None, Lapses::Always];

    /// How many in a hundred actions are lapses in a run.
    pub(crate) fn percent(self, root: &Rng) -> u32 {
        match self {
            Lapses::Drawn if root.split("lapses").below(8) > 0 => 0,
            Lapses::None => 0,
            Lapses::Drawn | Lapses::Always => PERCENT,
        }
    }
}

impl fmt::Display for Lapses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lapses::Drawn => "drawn",
            Lapses::None => "none",
            Lapses::Always => "always",
        })
    }
}

/// No runs with lapses have such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown lapses `{0}`; they are drawn, none and always")]
pub struct UnknownLapses(pub String);

impl FromStr for Lapses {
    type Err = UnknownLapses;

    fn from_str(name: &str) -> Result<Lapses, UnknownLapses> {
        let mut all = Lapses::ALL.into_iter();
        all.find(|lapses| lapses.to_string() == name).ok_or_else(|| UnknownLapses(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        for lapses in Lapses::ALL {
            assert_eq!(lapses.to_string().parse(), Ok(lapses));
            let listed = UnknownLapses(String::new()).to_string();
            assert!(listed.contains(&lapses.to_string()), "{lapses} is not listed");
        }
        assert!("never".parse::<Lapses>().is_err());
    }
}
