//! What `elver launch` tells each process.

use std::env;
use std::str::FromStr;

use crate::{Address, Error};

/// The rank, from 0 on.
pub const RANK_VARIABLE: &str = "ELVER_RANK";
/// How many ranks there are.
pub const SIZE_VARIABLE: &str = "ELVER_SIZE";
/// Where the ranks find each other, `[GID]:PORT`.
pub const RENDEZVOUS_VARIABLE: &str = "ELVER_RENDEZVOUS";
/// Which group it is: 32 hexadecimal digits.
pub const TOKEN_VARIABLE: &str = "ELVER_TOKEN";

/// One of the processes of a group, as its environment has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its rank.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// Where they find each other.
    pub rendezvous: Address,
    /// Which group it is.
    pub token: u128,
}

impl Launched {
    /// What the environment of this process says.
    ///
    /// # Errors
    /// [`Error::NotLaunched`] if it says nothing, [`Error::Environment`] if it makes no sense.
    pub fn from_env() -> Result<Launched, Error> {
        Launched::of(|name| env::var(name).ok())
    }

    fn of(read: impl Fn(&'static str) -> Option<String>) -> Result<Launched, Error> {
        let text = |name| read(name).ok_or(Error::NotLaunched { name });
        let size: u32 = parse(SIZE_VARIABLE, text(SIZE_VARIABLE)?, "a number of ranks")?;
        let rank: u32 = parse(RANK_VARIABLE, text(RANK_VARIABLE)?, "a rank")?;
        if rank >= size {
            let (name, value) = (RANK_VARIABLE, rank.to_string());
            return Err(Error::Environment { name, value, must: "less than ELVER_SIZE" });
        }
        let rendezvous = text(RENDEZVOUS_VARIABLE)?;
        let rendezvous = parse(RENDEZVOUS_VARIABLE, rendezvous, "[GID]:PORT")?;
        let value = text(TOKEN_VARIABLE)?;
        let token = match u128::from_str_radix(&value, 16) {
            Ok(token) if value.len() == 32 => token,
            _ => {
                let (name, must) = (TOKEN_VARIABLE, "32 hexadecimal digits");
                return Err(Error::Environment { name, value, must });
            }
        };
        Ok(Launched { rank, size, rendezvous, token })
    }

    /// What the environment of such a process has.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        let Launched { rank, size, rendezvous, token } = self;
        [
            (RANK_VARIABLE, rank.to_string()),
            (SIZE_VARIABLE, size.to_string()),
            (RENDEZVOUS_VARIABLE, rendezvous.to_string()),
            (TOKEN_VARIABLE, format!("{token:032x}")),
        ]
    }
}

fn parse<T: FromStr>(name: &'static str, value: String, must: &'static str) -> Result<T, Error> {
    value.parse().map_err(|_| Error::Environment { name, value, must })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: Option<&str>) -> Result<Launched, Error> {
        let rendezvous = Address { gid: elver::Gid([7; 16]), port: 9 };
        let launched = Launched { rank: 2, size: 3, rendezvous, token: 5 };
        let variables = launched.variables();
        let read = |asked: &'static str| match value {
            value if asked == name => value.map(str::to_string),
            _ => variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.clone()),
        };
        let all = Launched::of(|asked| {
            variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.clone())
        });
        assert_eq!(all.unwrap(), launched);
        Launched::of(read)
    }

    #[test]
    fn what_is_wrong_is_named() {
        for name in [RANK_VARIABLE, SIZE_VARIABLE, RENDEZVOUS_VARIABLE, TOKEN_VARIABLE] {
            let missing = with(name, None).unwrap_err().to_string();
            assert!(missing.contains(name) && missing.contains("elver launch"), "{missing}");
            let wrong = with(name, Some("nonsense")).unwrap_err().to_string();
            assert!(wrong.contains(name) && wrong.contains("nonsense"), "{wrong}");
        }
        assert!(with(RANK_VARIABLE, Some("3")).unwrap_err().to_string().contains("ELVER_SIZE"));
        assert!(with(TOKEN_VARIABLE, Some("5")).is_err());
    }
}
