//! How a command ends: 0 when it did what it was asked, 1 when it failed, 2 when it was asked for
//! something that cannot be.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
pub enum Failure {
    /// It tried and failed: exit code 1.
    Failed(anyhow::Error),
    /// It cannot be done here, or not with these arguments: exit code 2.
    Unusable(String),
}

impl Failure {
    /// An argument, or a combination of them, that has no meaning.
    pub fn unusable(what: impl fmt::Display) -> Failure {
        Failure::Unusable(what.to_string())
    }

    /// Tells the user and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Failed(error) => {
                eprintln!("elver: {error:#}");
                ExitCode::from(1)
            }
            Failure::Unusable(what) => {
                eprintln!("elver: {what}");
                ExitCode::from(2)
            }
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Failed(error.into())
    }
}
