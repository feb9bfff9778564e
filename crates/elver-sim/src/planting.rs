//! What the simulations share of planting bugs: their names, and when one strikes.

use thiserror::Error;

use crate::rng::Rng;

/// Declares the bugs that a simulation can plant, each with the name that the command line has for it.
#[macro_export]
macro_rules! canaries {
    (
        $simulation:literal;
        $($(#[doc = $doc:literal])+ $canary:ident = $name:literal,)+
    ) => {
        /// A bug to plant in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Canary {
            $($(#[doc = $doc])+ $canary,)+
        }

        impl Canary {
            /// Every canary.
            pub const ALL: &[Canary] = &[$(Canary::$canary,)+];
        }

        impl ::core::fmt::Display for Canary {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(match self {
                    $(Canary::$canary => $name,)+
                })
            }
        }

        impl ::core::str::FromStr for Canary {
            type Err = $crate::UnknownCanary;

            fn from_str(name: &str) -> ::core::result::Result<Canary, $crate::UnknownCanary> {
                match name {
                    $($name => Ok(Canary::$canary),)+
                    _ => Err($crate::UnknownCanary { name: name.into(), simulation: $simulation }),
                }
            }
        }
    };
}

/// No canary has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown canary `{name}`; `elver sim {simulation} --list-canaries` lists them")]
pub struct UnknownCanary {
    /// What was asked for.
    pub name: String,
    /// Of which simulation.
    pub simulation: &'static str,
}

/// A bug that can be planted.
pub trait Plantable: Copy + PartialEq {
    /// Strikes in a hundred chances: often enough for a short run, seldom enough to look like a bug.
    fn percent(self) -> u32;
}

/// Plants a run's bug.
#[derive(Debug)]
pub struct Planter<C> {
    canary: Option<C>,
    rng: Rng,
    strikes: u64,
}

impl<C: Plantable> Planter<C> {
    /// Of a run with this bug, if with any.
    pub fn new(canary: Option<C>, rng: Rng) -> Planter<C> {
        Planter { canary, rng, strikes: 0 }
    }

    /// Whether the run's bug is this one.
    pub fn plants(&self, canary: C) -> bool {
        self.canary == Some(canary)
    }

    /// Whether the run has no bug.
    pub fn plants_nothing(&self) -> bool {
        self.canary.is_none()
    }

    /// Whether the run's bug is this one, and strikes now.
    pub fn strikes(&mut self, canary: C) -> bool {
        let struck = self.plants(canary) && self.rng.percent(canary.percent());
        self.strikes += u64::from(struck);
        struck
    }

    /// How often it struck.
    pub fn struck(&self) -> u64 {
        self.strikes
    }

    /// Where it strikes.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod planted {
        canaries! {
            "none";
            /// One that never strikes.
            Never = "never",
            /// One that always does.
            Always = "always",
        }
    }
    use planted::Canary;

    impl Plantable for Canary {
        fn percent(self) -> u32 {
            match self {
                Canary::Never => 0,
                Canary::Always => 100,
            }
        }
    }

    #[test]
    fn names_return() {
        for canary in Canary::ALL {
            assert_eq!(canary.to_string().parse(), Ok(*canary));
        }
        let told = "sometimes".parse::<Canary>().unwrap_err().to_string();
        assert!(told.contains("`sometimes`") && told.contains("elver sim none"), "{told}");
    }

    #[test]
    fn one_strikes_where_it_is_planted() {
        let rng = || Rng::new(1);
        let mut planter = Planter::new(Some(Canary::Always), rng());
        assert!(planter.strikes(Canary::Always) && !planter.strikes(Canary::Never));
        assert_eq!(planter.struck(), 1);
        assert!(!Planter::new(Some(Canary::Never), rng()).strikes(Canary::Never));
        let mut planter = Planter::new(None, rng());
        assert!(planter.plants_nothing() && !planter.strikes(Canary::Always));
    }
}
