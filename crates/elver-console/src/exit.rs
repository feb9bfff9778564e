//! How a command ends: 0 when it did what it was asked, 1 when it failed, 2 when it was asked for
//! something that cannot be; what it runs for the user may have an exit code of its own.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
pub enum Failure {
    /// It tried and failed: exit code 1.
    Failed(anyhow::Error),
    /// It cannot be done here, or not with these arguments: exit code 2.
    Unusable(String),
    /// What it ran for the user failed, with this exit code.
    HandedOn {
        /// The exit code.
        code: u8,
        /// What happened.
        what: String,
    },
}

impl Failure {
    /// An argument, or a combination of them, that has no meaning.
    pub fn unusable(what: impl fmt::Display) -> Failure {
        Failure::Unusable(what.to_string())
    }

    /// What was run for the user failed: its exit code, which is not 0, and what happened.
    pub fn handed_on(code: u8, what: impl fmt::Display) -> Failure {
        Failure::HandedOn { code, what: what.to_string() }
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
            Failure::HandedOn { code, what } => {
                eprintln!("elver: {what}");
                ExitCode::from(*code)
            }
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Failed(error.into())
    }
}
