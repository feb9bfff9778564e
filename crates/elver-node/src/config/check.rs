//! What options may be, and what the rooms below are made with.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use super::sections::{NS_PER_MS, NS_PER_US};
use super::{Classes, Config, ConfigError, capture_path};
use crate::registry::Secret;

/// Slots of a ring.
const SLOTS: RangeInclusive<u64> = 32..=65_536;
/// Completions of all shared queue pairs together. Beside them a device has room for messages that are
/// written to receives ([`elver_core::LANDINGS_MAX`]).
pub(crate) const COMPLETIONS_MAX: u64 = 1 << 20;
/// Of these for queue pairs to meta servers, for what the node itself puts into each queue pair, and
/// for control messages.
const QPS_ASIDE: u64 = 8;
const WRS_ASIDE: u64 = 16;
const RECEIVES_ASIDE: u64 = 4_096;
/// A header and the least of a message.
const RECV_BUFFER_BYTES_MIN: u64 = 512;
/// Bytes of a message's header in a receive buffer, and a little more.
const MESSAGE_HEADER_BYTES: u64 = 256;

/// The shortest time in which a peer may be taken for dead.
const KEEP_ALIVE_MS_MIN: u64 = 20;
/// The shortest time after which an engine may be taken for one that hangs.
const HANG_MS_MIN: u64 = 100;
/// The longest path of a Unix socket.
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Config {
    /// Whether all values can be.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let pool = &self.pool;
        for (option, value, allowed) in [
            ("socket.spare_sessions", u64::from(self.socket.spare_sessions), 0..=64),
            ("engine.spin_us", self.engine.spin_us, 0..=10_000_000),
            ("engine.session_idle_us", self.engine.session_idle_us, 1..=10_000_000),
            ("engine.hang_ms", self.engine.hang_ms, 0..=3_600_000),
            (
                "quota.session_accepts_per_peer",
                u64::from(self.quota.session_accepts_per_peer),
                1..=1 << 20,
            ),
            ("quota.session_completions", u64::from(self.quota.session_completions), 1..=1 << 24),
            ("pool.dc_qps", u64::from(pool.dc_qps), 1..=1_024),
            ("pool.log_dc_streams", u64::from(pool.log_dc_streams), 0..=10),
            ("pool.sq_depth", u64::from(pool.sq_depth), 32..=16_384),
            ("pool.max_sge", u64::from(pool.max_sge), 1..=16),
            ("pool.max_inline", u64::from(pool.max_inline), 0..=512),
            ("pool.max_vqps", u64::from(pool.max_vqps), 1..=1 << 20),
            ("pool.max_accepted", u64::from(pool.max_accepted), 1..=1 << 20),
            ("pool.max_vqp_wr", u64::from(pool.max_vqp_wr), 1..=16_384),
            ("pool.max_peers", u64::from(pool.max_peers), 2..=1 << 20),
            ("pool.timeout", u64::from(pool.timeout), 1..=31),
            ("pool.retry_cnt", u64::from(pool.retry_cnt), 0..=7),
            ("pool.rnr_retry", u64::from(pool.rnr_retry), 0..=7),
            ("pool.keep_alive_ms", pool.keep_alive_ms, 0..=3_600_000),
            ("memory.max_mrs", u64::from(self.memory.max_mrs), 1..=1 << 20),
            ("memory.max_mappings", u64::from(self.memory.max_mappings), 64..=1 << 30),
            ("memory.lease_ms", self.memory.lease_ms, 1..=3_600_000),
            ("memory.patience_ms", self.memory.patience_ms, 1..=3_600_000),
            ("direct.patience_ms", self.direct.patience_ms, 1..=60_000),
            ("messages.recv_buffers", u64::from(self.messages.recv_buffers), 1..=65_536),
            (
                "messages.recv_buffer_bytes",
                u64::from(self.messages.recv_buffer_bytes),
                RECV_BUFFER_BYTES_MIN..=1 << 24,
            ),
            (
                "messages.eager_bytes_max",
                u64::from(self.messages.eager_bytes_max),
                0..=u64::from(self.messages.recv_buffer_bytes).saturating_sub(MESSAGE_HEADER_BYTES),
            ),
            // Or a message is refused though its sender has waited until nothing is held.
            (
                "messages.backlog_bytes",
                self.messages.backlog_bytes,
                elver_core::Config::HELD_MESSAGE_BYTES + u64::from(self.messages.eager_bytes_max)
                    ..=1 << 40,
            ),
            ("transfer.window_ms", self.transfer.window_ms, 1..=3_600_000),
            ("storm.lookups_max", u64::from(self.storm.lookups_max), 1..=65_536),
            ("storm.handshakes_max", u64::from(self.storm.handshakes_max), 1..=65_536),
            (
                "qos.high_dc_qps",
                u64::from(self.qos.high_dc_qps),
                0..=u64::from(pool.dc_qps).saturating_sub(1),
            ),
            ("qos.load_window_us", self.qos.load_window_us, 1..=10_000_000),
            ("qos.load_percent", u64::from(self.qos.load_percent), 0..=100),
            ("meta.ttl_ms", self.meta.ttl_ms, 10..=3_600_000),
            ("meta.nodes_max", u64::from(self.meta.nodes_max), 1..=1 << 20),
        ] {
            range(option, value, allowed)?;
        }
        for (option, slots) in [
            ("socket.command_slots", self.socket.command_slots),
            ("socket.receive_slots", self.socket.receive_slots),
            ("socket.completion_slots", self.socket.completion_slots),
        ] {
            range(option, u64::from(slots), SLOTS)?;
            if !slots.is_power_of_two() {
                return Err(value(option, slots, "it must be a power of two"));
            }
        }
        self.node_can_be()?;
        self.socket_fits()?;
        self.hang_fits()?;
        self.keep_alive_fits()?;
        self.fits_one_queue()?;
        self.patience_fits()?;
        self.socket_mode()?;
        self.meta_listen()?;
        self.meta_servers_differ()?;
        self.metrics_listen()?;
        Ok(())
    }

    /// Whether a device can have the address and the port.
    fn node_can_be(&self) -> Result<(), ConfigError> {
        range("node.udp_port", u64::from(self.node.udp_port), 1..=u64::from(u16::MAX))?;
        let address = self.node.address;
        let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.is_unspecified() || address.is_multicast() || is_broadcast {
            let why = "it must be an address of one interface of this host: it is the node's name";
            return Err(value("node.address", format!("\"{address}\""), why));
        }
        Ok(())
    }

    /// Whether the paths of the three sockets are as short as such may be.
    fn socket_fits(&self) -> Result<(), ConfigError> {
        let path = &self.socket.path;
        let (len, longest) = (path.as_os_str().len(), capture_path(path).as_os_str().len());
        let most = SOCKET_PATH_BYTES_MAX - (longest - len);
        if len <= most {
            return Ok(());
        }
        let why = format!("it is too long: it has {len} bytes, and {most} can be");
        Err(value("socket.path", format!("{path:?}"), why))
    }

    /// Whether an engine that only sleeps, or waits for its turn, is not taken for one that hangs.
    fn hang_fits(&self) -> Result<(), ConfigError> {
        let given = self.engine.hang_ms;
        if given == 0 || given >= HANG_MS_MIN {
            return Ok(());
        }
        let why = format!(
            "an engine that only sleeps would be taken for one that hangs; it must be 0, for never, or \
             at least {HANG_MS_MIN}"
        );
        Err(value("engine.hang_ms", given, why))
    }

    /// Whether a node registers once at each.
    fn meta_servers_differ(&self) -> Result<(), ConfigError> {
        let servers = self.meta_servers()?;
        match servers.iter().enumerate().find(|(at, one)| servers[..*at].contains(one)) {
            None => Ok(()),
            Some((_, twice)) => {
                let all = format!("{:?}", self.meta.servers);
                Err(value("meta.servers", all, format!("{twice} is there twice")))
            }
        }
    }

    /// Whether all shared queue pairs together fit the one queue of completions.
    fn fits_one_queue(&self) -> Result<(), ConfigError> {
        let rc_qps = self.transfer.rc_qps_max;
        let qps = u64::from(self.pool.dc_qps) + u64::from(rc_qps) + QPS_ASIDE;
        let wrs = qps * (u64::from(self.pool.sq_depth) + WRS_ASIDE)
            + u64::from(self.transfer.leased_wrs_max)
            + u64::from(self.messages.recv_buffers)
            + RECEIVES_ASIDE;
        if wrs <= COMPLETIONS_MAX {
            return Ok(());
        }
        let why = format!(
            "it and `pool.dc_qps`, times `pool.sq_depth`, with `transfer.leased_wrs_max` and \
             `messages.recv_buffers` come to {wrs} WRs, and {COMPLETIONS_MAX} can be"
        );
        Err(value("transfer.rc_qps_max", rc_qps, why))
    }

    /// Whether a peer that is there, and is asked whether it is, has the time to answer: engines sleep, and
    /// systems let others run.
    fn keep_alive_fits(&self) -> Result<(), ConfigError> {
        let given = self.pool.keep_alive_ms;
        if given == 0 || given >= KEEP_ALIVE_MS_MIN {
            return Ok(());
        }
        let why = format!(
            "a peer that is slow would be taken for dead; it must be 0, for never, or at least \
             {KEEP_ALIVE_MS_MIN}"
        );
        Err(value("pool.keep_alive_ms", given, why))
    }

    /// Whether who shares a queue pair with a slow page outlives the wait for it: his retries are
    /// counted meanwhile, by a configuration that the nodes of a cluster should share.
    fn patience_fits(&self) -> Result<(), ConfigError> {
        let timeout_ns = 4_096_u64 << self.pool.timeout.min(31);
        let retries_ns = timeout_ns.saturating_mul(u64::from(self.pool.retry_cnt) + 1);
        let most_ms = retries_ns / 4 * 3 / NS_PER_MS;
        if self.memory.patience_ms <= most_ms {
            return Ok(());
        }
        let why = format!(
            "others on the same queue pair wait as long, and `pool.timeout` and `pool.retry_cnt` let \
             them wait for {} ms: at most three quarters of that, {most_ms}",
            retries_ns / NS_PER_MS
        );
        Err(value("memory.patience_ms", self.memory.patience_ms, why))
    }

    /// Permissions of the socket.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be.
    pub fn socket_mode(&self) -> Result<u32, ConfigError> {
        let mode = &self.socket.mode;
        let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o777);
        let why = "it must be an octal number of at most 0777, in quotes";
        bits.ok_or_else(|| value("socket.mode", format!("{mode:?}"), why))
    }

    /// Where the registry listens, if this node is a meta server.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be.
    pub fn meta_listen(&self) -> Result<SocketAddr, ConfigError> {
        let mut listen = address("meta.listen", &self.meta.listen)?;
        if listen.ip().is_unspecified() {
            listen.set_ip(self.node.address);
        }
        Ok(listen)
    }

    /// The registries of the meta servers.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be.
    pub fn meta_servers(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        self.meta.servers.iter().map(|text| address("meta.servers", text)).collect()
    }

    /// The cluster's secret, read from its file, if it has one.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Secret`] if the file cannot be read, or others could read it.
    pub fn secret(&self) -> Result<Option<Secret>, ConfigError> {
        let path = &self.registry.secret_file;
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        Ok(Some(Secret::read(path)?))
    }

    /// Which users' VQPs may be of the high class, with their names looked up.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be: there is no such user.
    pub fn classes(&self) -> Result<Classes, ConfigError> {
        Classes::of(&self.qos)
    }

    /// Where metrics are served, if they are.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] names the option, its value, and why it cannot be.
    pub fn metrics_listen(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let text = &self.metrics.listen;
        if text.is_empty() { Ok(None) } else { address("metrics.listen", text).map(Some) }
    }

    /// What the node's core is made with.
    pub fn core(&self) -> elver_core::Config {
        elver_core::Config {
            dc_qps: self.pool.dc_qps,
            log_dc_streams: self.pool.log_dc_streams,
            sq_depth: self.pool.sq_depth,
            max_sge: self.pool.max_sge,
            max_inline: self.pool.max_inline,
            max_vqps: self.pool.max_vqps,
            max_accepted: self.pool.max_accepted,
            max_vqp_wr: self.pool.max_vqp_wr,
            max_mrs: self.memory.max_mrs,
            mr_lease_ns: self.memory.lease_ms * NS_PER_MS,
            max_cached_mrs: self.memory.max_cached_mrs,
            max_peers: self.pool.max_peers,
            recv_buffers: self.messages.recv_buffers,
            recv_buffer_bytes: self.messages.recv_buffer_bytes,
            eager_bytes_max: self.messages.eager_bytes_max,
            backlog: self.messages.backlog,
            backlog_bytes: self.messages.backlog_bytes,
            timeout: self.pool.timeout,
            retry_cnt: self.pool.retry_cnt,
            rnr_retry: self.pool.rnr_retry,
            keep_alive_ns: self.pool.keep_alive_ms * NS_PER_MS,
            transfer: elver_core::TransferConfig {
                rc_qps_max: self.transfer.rc_qps_max,
                leased_wrs_max: self.transfer.leased_wrs_max,
                hot_ops: self.transfer.hot_ops,
                window_ns: self.transfer.window_ms * NS_PER_MS,
                idle_ns: self.transfer.idle_ms.saturating_mul(NS_PER_MS),
            },
            storm: elver_core::StormConfig {
                lookups_max: self.storm.lookups_max,
                connects_waiting_max: self.storm.connects_waiting_max,
                handshakes_max: self.storm.handshakes_max,
            },
            qos: elver_core::QosConfig {
                high_dc_qps: self.qos.high_dc_qps,
                load_window_ns: self.qos.load_window_us.saturating_mul(NS_PER_US),
                load_percent: self.qos.load_percent,
                low_bytes_per_s: self.qos.low_bytes_per_s,
            },
        }
    }
}

fn range(
    option: &'static str,
    given: u64,
    allowed: RangeInclusive<u64>,
) -> Result<(), ConfigError> {
    if allowed.contains(&given) {
        return Ok(());
    }
    let why = format!("it must lie in {}..={}", allowed.start(), allowed.end());
    Err(value(option, given, why))
}

fn address(option: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let why = "it must be an address with a port, as in 10.0.0.1:4790";
    text.parse().map_err(|_| value(option, format!("{text:?}"), why))
}

fn value(option: &'static str, value: impl Display, why: impl Display) -> ConfigError {
    ConfigError::Value { option, value: value.to_string(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_core() {
        assert!(Config::default().check().is_ok());
        assert_eq!(Config::default().core(), elver_core::Config::default());
    }

    #[test]
    fn what_no_node_can_be_made_with_is_refused() {
        let plain = "[meta]\nservers = [\"10.0.0.1:4790\", \"10.0.0.2:4790\"]\n";
        let check = |more: &str| {
            let config: Config = toml::from_str(&format!("{more}\n{plain}")).unwrap();
            config.check().map_err(|error| error.to_string())
        };
        let path = |len: usize| format!("socket.path = \"/{}\"", "x".repeat(len - 1));
        let held = |bytes: u32| format!("messages.backlog_bytes = {bytes}");
        for right in ["", "engine.hang_ms = 0", "engine.hang_ms = 100", &path(99), &held(16_512)] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for (wrong, option) in [
            ("node.address = \"0.0.0.0\"", "node.address"),
            ("node.address = \"::\"", "node.address"),
            ("node.address = \"224.0.0.1\"", "node.address"),
            ("node.address = \"255.255.255.255\"", "node.address"),
            ("node.udp_port = 0", "node.udp_port"),
            ("engine.hang_ms = 1", "engine.hang_ms"),
            ("engine.hang_ms = 99", "engine.hang_ms"),
            (&path(100), "socket.path"),
            (&held(16_511), "messages.backlog_bytes"),
        ] {
            let refused = check(wrong).unwrap_err();
            assert!(refused.starts_with(&format!("`{option} = ")), "{wrong}: {refused}");
        }
        let mut twice = Config::default();
        twice.meta.servers = ["10.0.0.1:4790", "10.0.0.1:4790"].map(String::from).to_vec();
        let refused = twice.check().unwrap_err().to_string();
        assert!(refused.contains("10.0.0.1:4790 is there twice"), "{refused}");
    }

    #[test]
    fn a_registry_without_an_address_listens_at_the_nodes() {
        let mut config = Config::default();
        config.node.address = "127.0.0.7".parse().unwrap();
        assert_eq!(config.meta_listen().unwrap(), "127.0.0.7:4790".parse().unwrap());
        config.meta.listen = "127.0.0.8:0".to_string();
        assert_eq!(config.meta_listen().unwrap(), "127.0.0.8:0".parse().unwrap());
    }
}
