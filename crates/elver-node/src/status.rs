//! How a node is: what `elver status` shows and the metrics are made of.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use elver_core::{Class, Core, Histogram, Via, VqpInfo, VqpState, WrKind};
use elver_portal::connect_stream;
use elver_verbs::Device;
use serde::{Deserialize, Serialize};

use crate::asking::{told, trusted, unheard};
use crate::config::{SOCKET_VARIABLE, status_path};

/// How long a node may take to tell.
const WAIT: Duration = Duration::from_secs(5);

/// VQPs that are listed; more are only counted.
pub(crate) const VQPS_LISTED_MAX: usize = 1_024;
/// Peers that are listed; more are only counted.
const PEERS_LISTED_MAX: usize = 1_024;

/// How a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The node's address: its GID as an IP address.
    pub address: Option<IpAddr>,
    /// The registries that the node is to register at, as they are configured.
    pub registries: Vec<SocketAddr>,
    /// The meta servers as last heard of, the preferred one first.
    pub meta_servers: Vec<IpAddr>,
    /// Meta servers that have this node in their table.
    pub registered: u32,
    /// Registries that do not take this node, or do not answer.
    pub refusals: Vec<RefusalStatus>,
    /// Bytes that connections take: pool, peers, caches.
    pub connection_bytes: u64,
    /// VQPs in all: the sum of what the sessions have.
    pub vqps_total: u64,
    /// VQPs besides, that nobody has any longer and that wait for what of theirs is on its way.
    pub vqps_going: u64,
    /// Peers in all.
    pub peers_total: u64,
    /// Sessions.
    pub sessions: Vec<SessionStatus>,
    /// What each user has.
    pub users: Vec<UserStatus>,
    /// VQPs, the first 1,024.
    pub vqps: Vec<VqpStatus>,
    /// Peers, the first 1,024.
    pub peers: Vec<PeerStatus>,
    /// How long send WRs took, by what they do; of a sample, one in 512 or fewer.
    pub latencies: Vec<LatencyStatus>,
    /// Counters of the core.
    pub core: BTreeMap<String, u64>,
    /// Counters of the engine.
    pub engine: BTreeMap<String, u64>,
    /// Counters of the device.
    pub device: BTreeMap<String, u64>,
    /// Counters of its registry, if it is a meta server.
    pub registry: BTreeMap<String, u64>,
}

impl Status {
    /// Asks the node whose processes find it at `socket` how it is.
    ///
    /// # Errors
    /// No node tells its status there, or not within 5 s, or what it tells is not understood, or the socket is
    /// another user's below `/tmp`; the text says which, and what to do.
    pub fn fetch(socket: &Path) -> io::Result<Status> {
        let path = status_path(socket);
        let mut stream = connect_stream(&path, WAIT).map_err(|error| {
            if error.kind() == io::ErrorKind::TimedOut {
                return unheard(error, "the node does not let this process in", &path, WAIT);
            }
            let path = path.display();
            let what = format!(
                "no node tells its status at {path}; start `elverd`, or name its socket with \
                 --socket or in {SOCKET_VARIABLE}"
            );
            told(error, &what)
        })?;
        trusted(&path, &stream)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut text = String::new();
        stream
            .read_to_string(&mut text)
            .map_err(|error| unheard(error, "the node did not tell its status", &path, WAIT))?;
        serde_json::from_str(&text)
            .map_err(|error| told(error.into(), "the node's status is not understood"))
    }

    /// Whether somebody whom this user trusts tells him a status there.
    pub fn is_told_at(socket: &Path) -> bool {
        let path = status_path(socket);
        connect_stream(&path, WAIT).is_ok_and(|stream| trusted(&path, &stream).is_ok())
    }
}

/// A registry that does not take a node, or does not answer it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// Where it is.
    pub registry: SocketAddr,
    /// Why, and what to do.
    pub reason: String,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its client at the core.
    pub client: u32,
    /// Its process; 0 if it runs in a PID namespace that the node does not see.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// VQPs that it created, and those that messages to it made.
    pub vqps: u32,
    /// Its memory regions.
    pub mrs: u32,
    /// Bytes of these that the node allocated.
    pub bytes: u64,
    /// Whether it did something a moment ago.
    pub active: bool,
    /// READs that its process did itself in memory of others of its user, as it says.
    #[serde(default)]
    pub direct_reads: u64,
    /// WRITEs that it did so.
    #[serde(default)]
    pub direct_writes: u64,
    /// Bytes of both.
    #[serde(default)]
    pub direct_bytes: u64,
    /// Regions that it reaches so now.
    #[serde(default)]
    pub regions_reached: u32,
}

/// An account: a user, or a container that root keeps apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user; for a container the one who made it.
    pub uid: u32,
    /// The namespace whose processes have an account of their own; 0 for none.
    #[serde(default)]
    pub space: u64,
    /// Whether it is the host's root.
    #[serde(default)]
    pub trusted: bool,
    /// Sessions.
    pub sessions: u32,
    /// VQPs that count on it: those that they created, and those back to senders that they were told of.
    pub vqps: u32,
    /// Ports that these are bound to.
    #[serde(default)]
    pub ports: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of these that the node allocated.
    pub bytes: u64,
    /// Send WRs of its leased queue pairs.
    #[serde(default)]
    pub leased_wrs: u32,
    /// WRs that were taken from its sessions.
    #[serde(default)]
    pub wrs: u64,
}

/// A VQP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VqpStatus {
    /// Its id.
    pub vqp: u32,
    /// Its client at the core.
    pub client: u32,
    /// `idle`, `connecting`, `connected` or `error`.
    pub state: String,
    /// The port that it is bound to.
    pub bound: Option<u16>,
    /// Address of its peer.
    pub peer: Option<IpAddr>,
    /// The port there.
    pub port: Option<u16>,
    /// What backs it: `rc`, `dc` or `leased`.
    pub via: Option<String>,
    /// `high` or `low`.
    pub class: String,
    /// WRs posted and not completed.
    pub outstanding: u32,
    /// Send WRs that were posted to it since it was made, modulo 2^32.
    #[serde(default)]
    pub sends: u32,
    /// Of these, the ones that have ended, signalled or not.
    #[serde(default)]
    pub sends_done: u32,
    /// Receives that were posted to it since it was made, modulo 2^32.
    #[serde(default)]
    pub receives: u32,
    /// Of these, the ones that have ended: that took messages, or were flushed.
    #[serde(default)]
    pub receives_done: u32,
    /// Times that it moved between DC and RC, or to another RC QP.
    pub transfers: u32,
    /// Which way its READs and WRITEs take: `direct` if its process does those itself for which it can, else `engine`.
    #[serde(default)]
    pub way: String,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its address.
    pub address: IpAddr,
    /// VQPs connected to it.
    pub vqps: u32,
    /// RC QPs to it.
    pub rc_qps: u32,
    /// Operations posted to it.
    pub ops: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// How long send WRs of a kind took, from when the node took them from a session until they had ended in their turn.
/// Times are known to an eighth of themselves, and told as at most that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// `send`, `write`, `read` or `atomic`.
    pub op: String,
    /// WRs that were followed.
    pub samples: u64,
    /// Half of them took at most so long, in nanoseconds.
    pub p50_ns: u64,
    /// 99 in a hundred.
    pub p99_ns: u64,
    /// 999 in a thousand.
    pub p999_ns: u64,
    /// All of them.
    pub max_ns: u64,
}

impl Status {
    /// What a core tells of itself.
    pub(crate) fn of<D: Device>(core: &Core<D>) -> Status {
        let stats = core.stats();
        let peer = |peer: elver_core::PeerInfo| PeerStatus {
            address: peer.gid.to_ip(),
            vqps: peer.vqps,
            rc_qps: peer.rc_qps,
            ops: peer.ops,
            bytes: peer.bytes,
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            address: Some(core.gid().to_ip()),
            connection_bytes: core.connection_bytes(),
            vqps_total: stats.vqps - u64::from(core.vqps_going()),
            vqps_going: core.vqps_going().into(),
            peers_total: stats.peers,
            vqps: core.vqps().take(VQPS_LISTED_MAX).map(|vqp| VqpStatus::of(&vqp)).collect(),
            peers: core.peers().take(PEERS_LISTED_MAX).map(peer).collect(),
            latencies: core.latencies().filter_map(LatencyStatus::of).collect(),
            core: stats.iter().map(|(name, value)| (name.to_string(), value)).collect(),
            ..Status::default()
        }
    }
}

impl LatencyStatus {
    /// None if none was followed.
    fn of((kind, histogram): (WrKind, &Histogram)) -> Option<LatencyStatus> {
        (histogram.count() > 0).then(|| LatencyStatus {
            op: kind.name().to_string(),
            samples: histogram.count(),
            p50_ns: histogram.at_most_ns(500),
            p99_ns: histogram.at_most_ns(990),
            p999_ns: histogram.at_most_ns(999),
            max_ns: histogram.max_ns(),
        })
    }
}

impl VqpStatus {
    fn of(info: &VqpInfo) -> VqpStatus {
        let state = match info.state {
            VqpState::Idle => "idle",
            VqpState::Connecting => "connecting",
            VqpState::Connected => "connected",
            VqpState::Error => "error",
        };
        let via = info.via.map(|via| match via {
            Via::Rc => "rc",
            Via::DcCached | Via::DcLookup => "dc",
            Via::Leased => "leased",
        });
        let class = match info.class {
            Class::High => "high",
            Class::Low => "low",
        };
        VqpStatus {
            vqp: info.vqp.0,
            client: info.client.0,
            state: state.to_string(),
            bound: info.bound,
            peer: info.peer.map(|(gid, _)| gid.to_ip()),
            port: info.peer.map(|(_, port)| port),
            via: via.map(str::to_string),
            class: class.to_string(),
            outstanding: info.outstanding,
            sends: info.sends,
            sends_done: info.sends_done,
            receives: info.receives,
            receives_done: info.receives_done,
            transfers: info.transfers,
            way: "engine".to_string(),
        }
    }
}
