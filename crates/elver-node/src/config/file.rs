//! The file as a whole.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::sections::{
    DirectConfig, EngineConfig, MemoryConfig, MessagesConfig, MetaConfig, MetricsConfig,
    NodeConfig, PoolConfig, QosConfig, QuotaConfig, RegistryConfig, SocketConfig, StormConfig,
    TransferConfig,
};

/// The commented file with all options and their defaults.
pub const DEFAULT_FILE: &str = include_str!("default.toml");

/// A file longer than this is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a node is made with. [`DEFAULT_FILE`] says what each option means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The node and its device.
    pub node: NodeConfig,
    /// The Unix socket that processes connect to.
    pub socket: SocketConfig,
    /// The engine's thread.
    pub engine: EngineConfig,
    /// What users and processes may have.
    pub quota: QuotaConfig,
    /// The shared queue pairs.
    pub pool: PoolConfig,
    /// Memory regions.
    pub memory: MemoryConfig,
    /// Processes of one user that reach each other's memory themselves.
    pub direct: DirectConfig,
    /// Two-sided messages.
    pub messages: MessagesConfig,
    /// Transfer between DC and RC.
    pub transfer: TransferConfig,
    /// Admission.
    pub storm: StormConfig,
    /// Priorities.
    pub qos: QosConfig,
    /// Meta servers and their registries.
    pub meta: MetaConfig,
    /// Who may be in the cluster.
    pub registry: RegistryConfig,
    /// Metrics.
    pub metrics: MetricsConfig,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`] if it cannot be read or is too long; what [`Config::parse`] says.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let refused = |reason| ConfigError::Read { path: path.to_path_buf(), reason };
        let size = fs::metadata(path).map_err(refused)?.len();
        if size > FILE_BYTES_MAX {
            return Err(refused(io::Error::other(format!("it has {size} bytes"))));
        }
        let text = fs::read_to_string(path).map_err(refused)?;
        Config::parse(&text, path)
    }

    /// Takes and checks the text of a file; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Syntax`] if it is no TOML, or has an option that there is not; what [`Config::check`]
    /// finds.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            path: path.to_path_buf(),
            reason: error.to_string().trim_end().to_string(),
        })?;
        config.check()?;
        Ok(config)
    }
}
