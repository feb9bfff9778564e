//! What a configuration has in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use elver::Gid;
use serde::{Deserialize, Serialize};

use crate::gids;

/// How many there are unless a function says so, and how many sessions.
const UNASSIGNED: u32 = 2;
const SESSIONS: u32 = 4;

/// The whole configuration. Keys that it does not know are refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where and in what containers run.
    #[serde(default)]
    pub platform: Platform,
    /// Whose functions there are, by name.
    pub owners: BTreeMap<String, Owner>,
    /// The functions, by name.
    pub functions: BTreeMap<String, Function>,
}

/// Where and in what containers run, and how many of everything there may be.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Platform {
    /// The command of an OCI runtime (`["crun"]`, `["runc"]`), or of an engine (`["podman"]`, `["docker"]`), with its
    /// global options.
    pub runtime: Vec<String>,
    /// A directory with the containers' root file system; without it, the host's own `/usr` is
    /// mounted into an otherwise empty one, read-only.
    pub rootfs: Option<PathBuf>,
    /// An image that an engine knows, instead of a root file system.
    pub image: Option<String>,
    /// Gives containers a user namespace: the user of the host, with no other use, who is root in it. An owner's user is
    /// himself there.
    pub user_namespace: Option<u32>,
    /// The Python in the container.
    pub python: PathBuf,
    /// The program `elver-init`; without it, the one beside the running program.
    pub init: Option<PathBuf>,
    /// The module `elver` for Python, as elver-python builds it; without it, the one beside the running
    /// program, and without that handlers have no RDMA from the platform.
    pub module: Option<PathBuf>,
    /// The socket of the host's node, which containers get; without it they have no RDMA.
    pub node_socket: Option<PathBuf>,
    /// Devices of the host that containers get, each at its own path and with its own mode, as `/dev/infiniband/uverbs0` for
    /// functions that use libibverbs themselves.
    pub devices: Vec<PathBuf>,
    /// Where sockets and containers' states are; without it `$XDG_RUNTIME_DIR/elver/faas`.
    pub state: Option<PathBuf>,
    /// Most containers at once.
    pub containers_max: usize,
    /// Most containers of one owner at once.
    pub owner_containers_max: usize,
    /// Most INIT processes in one container.
    pub processes_max: usize,
    /// Most memory of all that runs in a container, files in memory among it, in MB: its cgroup's limit, as is then the
    /// number of its processes. It takes a host whose cgroups the runtime can use; without it each process has its own limit.
    pub container_memory_mb: Option<u64>,
    /// Most requests that wait for a container or run, over all functions.
    pub requests_max: usize,
    /// How long a container, or an INIT process, without requests is kept, in seconds.
    pub keep_alive_s: u64,
    /// How long requests that it has may take once the orchestrator is told to end, in seconds.
    pub drain_s: u64,
    /// How long a container and its runtime may take until the first request is taken, in seconds.
    pub init_timeout_s: u64,
}

/// Whose functions they are: he alone is in a container with them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The user of the host that his functions run as, who is to have no other use. His node's
    /// quotas count for this one.
    pub uid: u32,
    /// The host's users who may invoke his functions beside himself, root and the orchestrator's.
    #[serde(default)]
    pub callers: Vec<u32>,
}

/// How a function's program speaks with us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// `def handler(event, context)` in Python, which our bootstrap imports and forks.
    #[default]
    Python,
    /// The unmodified awslambdaric of the function's code or the root file system, forked where it
    /// asks `/restore/next`.
    Awslambdaric,
    /// A program of the library elver-handler, in Rust or C, which is forked.
    Native,
    /// Any program that asks the Lambda Runtime API for its invocations; it is not forked.
    Program,
    /// The same, found as AWS's `provided.al2023` finds it: `bootstrap` in the code's directory, whatever the handler is
    /// called.
    #[serde(alias = "provided.al2023")]
    Provided,
}

impl RuntimeKind {
    /// Whether a process of it that has started can be forked for a request.
    pub fn forks(self) -> bool {
        !matches!(self, RuntimeKind::Program | RuntimeKind::Provided)
    }
}

/// What a function's connections go over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// Queue pairs of the node's, which all VQPs to a peer share: KRCORE's way.
    #[default]
    Shared,
    /// An RC queue pair for each connection alone: Swift's way. The node has so many as fit into its
    /// `transfer.leased_wrs_max`, and one owner his share of them.
    Leased,
}

impl Connections {
    /// As a configuration and a process's environment name it.
    pub fn name(self) -> &'static str {
        match self {
            Connections::Shared => "shared",
            Connections::Leased => "leased",
        }
    }
}

/// A function.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Whose it is: a name of `owners`.
    pub owner: String,
    /// The directory with its code, mounted read-only. It may be anybody's, and those that it is in must be such that root and
    /// the orchestrator's user alone can replace it, or what is on the way to it.
    pub code: PathBuf,
    /// `module.function` in Python; for a program, its file in the code's directory; for `provided` whatever its
    /// `bootstrap` is to find in `_HANDLER`.
    pub handler: String,
    /// How its program speaks with us.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// The nodes that it connects to, which its INIT process makes ready ahead: GIDs, each once, in whichever spelling.
    #[serde(default, deserialize_with = "gids::each_once")]
    pub destinations: Vec<Gid>,
    /// Sessions that its INIT process keeps ready for children, each with a connection to each
    /// destination and 32 KB of memory; more while fewer than half are free, at most one for each request
    /// that may run. With 0 a child opens a session of its own. Without it 4, or none where nothing is forked.
    pub sessions: Option<u32>,
    /// QPs that each session has beside those to the destinations, and which go nowhere yet: a child that asks for
    /// another node connects one, which stays connected there for the children after it. Without it 2, or none for a
    /// function without destinations, or whose runtime is not forked.
    pub unassigned_qps: Option<u32>,
    /// What the connections go over that it has without connecting them itself, those to destinations and the others.
    #[serde(default)]
    pub connections: Connections,
    /// Variables of its environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// How long a request may take from when it is taken, in seconds.
    #[serde(default = "timeout_s")]
    pub timeout_s: u64,
    /// Most requests at once; what comes beyond is refused.
    #[serde(default = "concurrency_max")]
    pub concurrency_max: usize,
    /// Most memory that each of its processes may map, in MB.
    #[serde(default = "memory_mb")]
    pub memory_mb: u64,
    /// Most processes and threads that its owner's user may have in containers.
    #[serde(default = "processes_max")]
    pub processes_max: u64,
}

impl Function {
    /// Sessions that are kept ready for its children.
    pub fn sessions(&self) -> u32 {
        let usual = if self.runtime.forks() { SESSIONS } else { 0 };
        self.sessions.unwrap_or(usual)
    }

    /// QPs of each of its sessions that go nowhere yet.
    pub fn unassigned_qps(&self) -> u32 {
        let has_none = self.destinations.is_empty() || !self.runtime.forks();
        self.unassigned_qps.unwrap_or(if has_none { 0 } else { UNASSIGNED })
    }
}

fn timeout_s() -> u64 {
    3
}

fn concurrency_max() -> usize {
    100
}

fn memory_mb() -> u64 {
    512
}

fn processes_max() -> u64 {
    256
}

impl Default for Platform {
    fn default() -> Platform {
        Platform {
            runtime: vec!["crun".into()],
            rootfs: None,
            image: None,
            user_namespace: None,
            python: "/usr/bin/python3".into(),
            init: None,
            module: None,
            node_socket: None,
            devices: Vec::new(),
            state: None,
            containers_max: 16,
            owner_containers_max: 8,
            processes_max: 8,
            container_memory_mb: None,
            requests_max: 1024,
            keep_alive_s: 600,
            drain_s: 10,
            init_timeout_s: 10,
        }
    }
}
