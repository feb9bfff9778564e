use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::registry::SecretError;

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// It is not TOML, or has options that there are not. The text names line and column.
    #[error("the configuration {path} is not understood: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The file that `registry.secret_file` names is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// An option's value cannot be.
    #[error("`{option} = {value}` cannot be: {why}")]
    Value {
        /// The option with its section.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        why: String,
    },
}
