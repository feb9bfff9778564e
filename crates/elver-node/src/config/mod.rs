//! A node's configuration: a TOML file, all of whose options have defaults.

mod check;
mod classes;
mod error;
mod file;
mod paths;
mod sections;

pub(crate) use check::COMPLETIONS_MAX;
pub use classes::Classes;
pub use error::ConfigError;
pub use file::{Config, DEFAULT_FILE};
pub(crate) use paths::socket_option;
pub use paths::{SOCKET_VARIABLE, capture_path, default_socket, status_path};
pub use sections::{
    DirectConfig, EngineConfig, MemoryConfig, MessagesConfig, MetaConfig, MetricsConfig,
    NodeConfig, PoolConfig, QosConfig, QuotaConfig, RegistryConfig, SocketConfig, StormConfig,
    TransferConfig,
};

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("elverd.toml"))
    }

    #[test]
    fn the_default_file_is_the_default() {
        assert_eq!(parse(DEFAULT_FILE).unwrap(), Config::default());
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_default_file_has_every_option() {
        let file: serde_json::Value = toml::from_str(DEFAULT_FILE).unwrap();
        assert_eq!(file, serde_json::to_value(Config::default()).unwrap());
    }

    #[test]
    fn the_file_among_the_contributions_is_the_default_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/elverd.toml");
        assert!(
            fs::read_to_string(path).unwrap() == DEFAULT_FILE,
            "copy crates/elver-node/src/config/default.toml to contrib/elverd.toml"
        );
    }

    #[test]
    fn unknown_options_are_named() {
        let error = parse("[engine]\nspin = 3\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("spin_us"), "{error}");
        assert!(parse("[unknown]\n").is_err());
        assert!(parse("[engine]\nspin_us = \"long\"\n").is_err());
    }

    #[test]
    fn values_that_cannot_be_are_named() {
        for (text, option) in [
            ("[socket]\nmode = \"rw\"", "socket.mode"),
            ("[socket]\ncommand_slots = 100", "socket.command_slots"),
            ("[pool]\ndc_qps = 0", "pool.dc_qps"),
            ("[qos]\nhigh_dc_qps = 8", "qos.high_dc_qps"),
            ("[messages]\neager_bytes_max = 16500", "messages.eager_bytes_max"),
            ("[meta]\nlisten = \"here\"", "meta.listen"),
            ("[meta]\nservers = [\"10.0.0.1\"]", "meta.servers"),
            ("[meta]\nttl_ms = 0", "meta.ttl_ms"),
            ("[metrics]\nlisten = \"4792\"", "metrics.listen"),
            ("[memory]\nlease_ms = 0", "memory.lease_ms"),
            // Beyond it the retries of whoever shares a queue pair with a slow page ran out.
            ("[memory]\npatience_ms = 302", "memory.patience_ms"),
            ("[pool]\nretry_cnt = 0", "memory.patience_ms"),
            ("[direct]\npatience_ms = 0", "direct.patience_ms"),
            // Shorter than what an engine may sleep.
            ("[pool]\nkeep_alive_ms = 19", "pool.keep_alive_ms"),
            ("[pool]\nkeep_alive_ms = 3600001", "pool.keep_alive_ms"),
        ] {
            match parse(text) {
                Err(ConfigError::Value { option: named, .. }) => assert_eq!(named, option),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(parse("[memory]\npatience_ms = 301").is_ok());
        assert!(parse("[pool]\nkeep_alive_ms = 0").is_ok());
        assert!(parse("[pool]\nkeep_alive_ms = 20").is_ok());
        assert!(parse("[pool]\nretry_cnt = 0\n[memory]\npatience_ms = 50").is_ok());
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::read(Path::new("/nowhere/elverd.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/elverd.toml"));
    }
}
