//! What connections go over, as the platform says.

use std::env::VarError;

use elver::{ConnectOptions, Policy};

use crate::error::Error;

/// What connections go over.
const CONNECTIONS: &str = "ELVER_CONNECTIONS";

/// How the function's configuration has its connections made; without a platform's word they share what the node has.
pub(crate) fn connect_options() -> Result<ConnectOptions, Error> {
    read(std::env::var(CONNECTIONS))
}

fn read(told: Result<String, VarError>) -> Result<ConnectOptions, Error> {
    let policy = match told.as_deref() {
        Ok("leased") => Policy::Leased,
        Ok("shared") | Err(VarError::NotPresent) => Policy::Shared,
        Ok(other) => return Err(Error::Connections(other.into())),
        Err(VarError::NotUnicode(other)) => {
            return Err(Error::Connections(other.to_string_lossy().into_owned()));
        }
    };
    Ok(ConnectOptions { policy, ..ConnectOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_go_over_is_shared_or_leased_or_told() {
        let policy = |text: &str| read(Ok(text.into())).map(|options| options.policy);
        assert_eq!(policy("leased").unwrap(), Policy::Leased);
        assert_eq!(policy("shared").unwrap(), Policy::Shared);
        assert_eq!(read(Err(VarError::NotPresent)).unwrap().policy, Policy::Shared);
        for wrong in ["", "Leased", "rented"] {
            let said = policy(wrong).unwrap_err().to_string();
            assert_eq!(said, format!("ELVER_CONNECTIONS is {wrong:?}; it is shared or leased"));
        }
    }
}
