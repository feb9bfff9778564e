//! Which runs have suspends.

use std::fmt;
use std::str::FromStr;

use elver_sim::Rng;
use thiserror::Error;

/// In a run that has suspends, so many in a hundred of the harness's actions are some.
const PERCENT: u32 = 4;

/// Which runs have suspends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspends {
    /// One in four: the seed says.
    #[default]
    Drawn,
    /// None: what seeds did before there were any.
    None,
    /// All.
    Always,
}

impl Suspends {
    const ALL: [Suspends; 3] = [Suspends::Drawn, Suspends::None, Suspends::Always];

    /// How many in a hundred actions are suspends in a run.
    pub(crate) fn percent(self, root: &Rng) -> u32 {
        match self {
            Suspends::Drawn => root.split("suspends").pick(&[0, 0, 0, PERCENT]),
            Suspends::None => 0,
            Suspends::Always => PERCENT,
        }
    }
}

impl fmt::Display for Suspends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Suspends::Drawn => "drawn",
            Suspends::None => "none",
            Suspends::Always => "always",
        })
    }
}

/// No runs with suspends have such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown suspends `{0}`; they are drawn, none and always")]
pub struct UnknownSuspends(pub String);

impl FromStr for Suspends {
    type Err = UnknownSuspends;

    fn from_str(name: &str) -> Result<Suspends, UnknownSuspends> {
        let mut all = Suspends::ALL.into_iter();
        all.find(|suspends| suspends.to_string() == name)
            .ok_or_else(|| UnknownSuspends(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        for suspends in Suspends::ALL {
            assert_eq!(suspends.to_string().parse(), Ok(suspends));
            let listed = UnknownSuspends(String::new()).to_string();
            assert!(listed.contains(&suspends.to_string()), "{suspends} is not listed");
        }
        assert!("never".parse::<Suspends>().is_err());
    }
}
