//! How a command ends: 0 when it did what it was asked, 1 when it failed, 2 when it was asked for
//! something that cannot be; what it runs for the user may have an exit code of its own, and where that cannot be run
//! it is 127 or 126, as shells and env(1) have it.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::plain::plain;

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

    /// A program of the user's cannot be run: 127 if it is not there, else 126.
    pub fn not_run(reason: io::ErrorKind, what: impl fmt::Display) -> Failure {
        let code = if reason == io::ErrorKind::NotFound { 127 } else { 126 };
        Failure::handed_on(code, what)
    }

    /// Tells the user and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let (code, what) = match self {
            Failure::Failed(error) => (1, format!("{error:#}")),
            Failure::Unusable(what) => (2, what.clone()),
            Failure::HandedOn { code, what } => (*code, what.clone()),
        };
        eprintln!("elver: {}", plain(&what));
        ExitCode::from(code)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Failed(error.into())
    }
}
