//! Reading a configuration.

use std::path::Path;

use super::error::ConfigError;
use super::sections::{Config, Function, Owner};

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.into(), error })?;
        Config::parse(&text)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// The owner of a function, whom [`Config::parse`] has seen to be there.
    pub fn owner_of(&self, function: &Function) -> &Owner {
        &self.owners[&function.owner]
    }
}
