use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use elver_soft::Copier;
use serde::{Deserialize, Serialize};

/// Units of the core's times in the file's.
pub(super) const NS_PER_MS: u64 = 1_000_000;
pub(super) const NS_PER_US: u64 = 1_000;

/// The node and its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Address of the device.
    pub address: IpAddr,
    /// UDP port of RoCEv2.
    pub udp_port: u16,
    /// Name of the device.
    pub device: String,
}

/// The Unix socket that processes connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketConfig {
    /// Where it is; empty for the default place.
    pub path: PathBuf,
    /// Its permissions, octal.
    pub mode: String,
    /// Sessions that are made ready ahead.
    pub spare_sessions: u32,
    /// Most slots of a command ring.
    pub command_slots: u32,
    /// Most slots of a receive ring.
    pub receive_slots: u32,
    /// Most slots of a completion ring.
    pub completion_slots: u32,
}

/// The engine's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Time without work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// It yields between looks on machines of at most so many cores.
    pub yield_cores: u32,
    /// Time of silence before a session is not looked at, in microseconds.
    pub session_idle_us: u64,
    /// Time without a round after which it hangs, in milliseconds; 0 for never.
    pub hang_ms: u64,
    /// Whether the daemon ends then.
    pub hang_aborts: bool,
}

/// What users and processes may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaConfig {
    /// Sessions of a user.
    pub sessions: u32,
    /// VQPs of a user.
    pub vqps: u32,
    /// Ports of a user.
    pub ports: u32,
    /// Memory regions of a user.
    pub mrs: u32,
    /// Bytes that the node allocates for a user.
    pub bytes: u64,
    /// Send WRs of a user's leased queue pairs.
    pub leased_wrs: u32,
    /// VQPs of a session.
    pub session_vqps: u32,
    /// VQPs that senders of one node make a session hold.
    pub session_accepts_per_peer: u32,
    /// Memory regions of a session.
    pub session_mrs: u32,
    /// Completions that a session has not taken.
    pub session_completions: u32,
    /// Sessions of all users.
    pub sessions_total: u32,
    /// What runs in a namespace counts to whoever made that.
    pub by_namespace: bool,
    /// The host's root has no quota.
    pub exempt_root: bool,
}

/// The shared queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// DC QPs.
    pub dc_qps: u32,
    /// Streams of each, as a power of two.
    pub log_dc_streams: u8,
    /// Depth of a shared send queue.
    pub sq_depth: u32,
    /// Most SGEs in a WR.
    pub max_sge: u32,
    /// Most inline bytes in a WR.
    pub max_inline: u32,
    /// Most VQPs.
    pub max_vqps: u32,
    /// Most VQPs that messages make all sessions hold.
    pub max_accepted: u32,
    /// Most WRs outstanding on a VQP, in each direction.
    pub max_vqp_wr: u32,
    /// Most peers remembered.
    pub max_peers: u32,
    /// Local ACK timeout, as a code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// A VQP whose peer has gone fails within this time, in milliseconds; 0 for not.
    pub keep_alive_ms: u64,
}

/// Memory regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Most regions.
    pub max_mrs: u32,
    /// Most mappings that processes have in the node's memory: one a region that the node allocated, three a session. Seven
    /// eighths of the system's `vm.max_map_count` at most, whatever stands here.
    pub max_mappings: u32,
    /// Lease of a checked remote region, in milliseconds.
    pub lease_ms: u64,
    /// Most remote regions remembered.
    pub max_cached_mrs: u32,
    /// For how long the pages of one account's registered memory may keep others waiting, in
    /// milliseconds.
    pub patience_ms: u64,
}

/// Processes of one user that reach each other's memory themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirectConfig {
    /// Whether they may.
    pub enabled: bool,
    /// How long a deregistration waits for one that stands still meanwhile, in milliseconds.
    pub patience_ms: u64,
}

/// Two-sided messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MessagesConfig {
    /// Receive buffers.
    pub recv_buffers: u32,
    /// Bytes of each.
    pub recv_buffer_bytes: u32,
    /// Longer messages are read by the receiver.
    pub eager_bytes_max: u32,
    /// Messages held for a VQP.
    pub backlog: u32,
    /// Bytes of these, each with 128 for what it costs besides.
    pub backlog_bytes: u64,
}

/// Transfer between DC and RC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransferConfig {
    /// Most RC QPs; 0 for none.
    pub rc_qps_max: u32,
    /// Most send WRs that RC QPs of single VQPs hold, all together.
    pub leased_wrs_max: u32,
    /// Operations in a window that make a peer hot.
    pub hot_ops: u64,
    /// The window in milliseconds.
    pub window_ms: u64,
    /// Time without use before an RC QP may go, in milliseconds.
    pub idle_ms: u64,
}

/// Admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StormConfig {
    /// Look-ups at once.
    pub lookups_max: u32,
    /// Connects that wait for one.
    pub connects_waiting_max: u32,
    /// RC handshakes at once.
    pub handshakes_max: u32,
}

/// Priorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QosConfig {
    /// DC QPs of the high class.
    pub high_dc_qps: u32,
    /// The window in which the high class's load is measured, in microseconds.
    pub load_window_us: u64,
    /// Of a window, the time with WRs on their way that makes the high class loaded, in per cent.
    pub load_percent: u8,
    /// Bytes a second of the low class meanwhile.
    pub low_bytes_per_s: u64,
    /// Users and groups that may use the high class.
    pub high: Vec<String>,
    /// Those that are of it unless they say otherwise.
    pub high_by_default: Vec<String>,
}

/// Meta servers and their registries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetaConfig {
    /// Whether this node is one.
    pub serve: bool,
    /// Where its registry listens.
    pub listen: String,
    /// The registries of all, the preferred one first.
    pub servers: Vec<String>,
    /// Time to live of a silent node, in milliseconds.
    pub ttl_ms: u64,
    /// Most nodes of the cluster, and with those that have not said who they are most connections of
    /// the registry. Memory is taken by those that there are.
    pub nodes_max: u32,
    /// Whether a node may register only from its own address.
    pub verify_source: bool,
}

/// Who may be in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryConfig {
    /// The file with the cluster's secret; empty for none.
    pub secret_file: PathBuf,
}

/// Metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Where they are served; empty for nowhere.
    pub listen: String,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            udp_port: 4_791,
            device: "soft0".to_string(),
        }
    }
}

impl Default for SocketConfig {
    fn default() -> SocketConfig {
        SocketConfig {
            path: PathBuf::new(),
            mode: "0666".to_string(),
            spare_sessions: 4,
            command_slots: 4_096,
            receive_slots: 4_096,
            completion_slots: 8_192,
        }
    }
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            spin_us: 200,
            yield_cores: 2,
            session_idle_us: 1_000,
            hang_ms: 10_000,
            hang_aborts: true,
        }
    }
}

impl Default for QuotaConfig {
    fn default() -> QuotaConfig {
        QuotaConfig {
            sessions: 1_024,
            vqps: 16_384,
            ports: 4_096,
            mrs: 4_096,
            bytes: 8 << 30,
            leased_wrs: 1 << 16,
            session_vqps: 4_096,
            session_accepts_per_peer: 1_024,
            session_mrs: 1_024,
            session_completions: 65_536,
            sessions_total: 4_096,
            by_namespace: true,
            exempt_root: true,
        }
    }
}

// What the core is made with has its defaults there; here they have the file's sections and units.

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        let core = elver_core::Config::default();
        PoolConfig {
            dc_qps: core.dc_qps,
            log_dc_streams: core.log_dc_streams,
            sq_depth: core.sq_depth,
            max_sge: core.max_sge,
            max_inline: core.max_inline,
            max_vqps: core.max_vqps,
            max_accepted: core.max_accepted,
            max_vqp_wr: core.max_vqp_wr,
            max_peers: core.max_peers,
            timeout: core.timeout,
            retry_cnt: core.retry_cnt,
            rnr_retry: core.rnr_retry,
            keep_alive_ms: core.keep_alive_ns / NS_PER_MS,
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        let core = elver_core::Config::default();
        MemoryConfig {
            max_mrs: core.max_mrs,
            max_mappings: 57_000,
            lease_ms: core.mr_lease_ns / NS_PER_MS,
            max_cached_mrs: core.max_cached_mrs,
            patience_ms: Copier::PATIENCE.as_millis() as u64,
        }
    }
}

impl Default for DirectConfig {
    fn default() -> DirectConfig {
        DirectConfig { enabled: true, patience_ms: 5_000 }
    }
}

impl Default for MessagesConfig {
    fn default() -> MessagesConfig {
        let core = elver_core::Config::default();
        MessagesConfig {
            recv_buffers: core.recv_buffers,
            recv_buffer_bytes: core.recv_buffer_bytes,
            eager_bytes_max: core.eager_bytes_max,
            backlog: core.backlog,
            backlog_bytes: core.backlog_bytes,
        }
    }
}

impl Default for TransferConfig {
    fn default() -> TransferConfig {
        let core = elver_core::Config::default().transfer;
        TransferConfig {
            rc_qps_max: core.rc_qps_max,
            leased_wrs_max: core.leased_wrs_max,
            hot_ops: core.hot_ops,
            window_ms: core.window_ns / NS_PER_MS,
            idle_ms: core.idle_ns / NS_PER_MS,
        }
    }
}

impl Default for StormConfig {
    fn default() -> StormConfig {
        let elver_core::StormConfig { lookups_max, connects_waiting_max, handshakes_max } =
            elver_core::Config::default().storm;
        StormConfig { lookups_max, connects_waiting_max, handshakes_max }
    }
}

impl Default for QosConfig {
    fn default() -> QosConfig {
        let core = elver_core::Config::default().qos;
        QosConfig {
            high_dc_qps: core.high_dc_qps,
            load_window_us: core.load_window_ns / NS_PER_US,
            load_percent: core.load_percent,
            low_bytes_per_s: core.low_bytes_per_s,
            high: Vec::new(),
            high_by_default: Vec::new(),
        }
    }
}

impl Default for MetaConfig {
    fn default() -> MetaConfig {
        MetaConfig {
            serve: false,
            listen: "0.0.0.0:4790".to_string(),
            servers: Vec::new(),
            ttl_ms: 3_000,
            nodes_max: 65_536,
            verify_source: true,
        }
    }
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig { listen: "127.0.0.1:4792".to_string() }
    }
}
