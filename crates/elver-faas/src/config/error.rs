//! Why a configuration is refused.

use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is no TOML, lacks a key, or has one that is unknown.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value has no meaning.
    #[error("{0}")]
    Value(String),
}
