//! What a platform's owner says of his functions, in TOML.
//!
//! ```
//! let config = elver_faas::Config::parse(
//!     r#"
//!     [owners.alice]
//!     uid = 60001
//!
//!     [functions.hello]
//!     owner = "alice"
//!     code = "/srv/hello"
//!     handler = "hello.handler"
//!     "#,
//! )
//! .unwrap();
//! assert_eq!(config.functions["hello"].timeout_s, 3);
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use elver::Gid;
use serde::{Deserialize, Serialize};

use crate::gids;

/// Most INIT processes that a container may have, and destinations of a function: what a container tells of itself fits into a
/// line.
pub(crate) const PROCESSES_MAX: usize = 64;
pub(crate) const DESTINATIONS_MAX: usize = 64;

/// Most QPs of a session beside those to destinations.
pub(crate) const UNASSIGNED_MAX: u32 = 64;
/// How many there are unless a function says so, and how many sessions.
const UNASSIGNED: u32 = 2;
const SESSIONS: u32 = 4;

/// The longest time that a configuration names, a hundred years of seconds, and the most memory: what is reckoned with them
/// does not overflow.
const SECONDS_MAX: u64 = 100 * 366 * 24 * 3600;
const MEGABYTES_MAX: u64 = 1 << 40;

/// Most bytes of a function's environment, and of its handler: an order to start it fits into a line, whatever is escaped in it.
pub(crate) const ENVIRONMENT_MAX: usize = 64 << 10;
pub(crate) const HANDLER_MAX: usize = 4096;

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
    /// `transfer.leased_wrs_max`.
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
    /// The directory with its code, mounted read-only.
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

    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |what: String| Err(ConfigError::Value(what));
        let platform = &self.platform;
        if platform.runtime.is_empty() {
            return refuse("platform.runtime is empty; name an OCI runtime, as [\"crun\"]".into());
        }
        for (key, value) in [
            ("containers_max", platform.containers_max),
            ("owner_containers_max", platform.owner_containers_max),
            ("processes_max", platform.processes_max),
            ("requests_max", platform.requests_max),
        ] {
            if value == 0 {
                return refuse(format!("platform.{key} is 0, so that nothing could run"));
            }
        }
        for (key, seconds) in [
            ("keep_alive_s", platform.keep_alive_s),
            ("init_timeout_s", platform.init_timeout_s),
            ("drain_s", platform.drain_s),
        ] {
            if seconds > SECONDS_MAX {
                return refuse(format!("platform.{key} is {seconds}; at most {SECONDS_MAX}"));
            }
        }
        if platform.container_memory_mb.is_some_and(|megabytes| megabytes > MEGABYTES_MAX) {
            return refuse(format!("platform.container_memory_mb is more than {MEGABYTES_MAX}"));
        }
        if platform.container_memory_mb == Some(0) {
            return refuse("platform.container_memory_mb is 0, so that nothing could run".into());
        }
        if platform.processes_max > PROCESSES_MAX {
            return refuse(format!(
                "platform.processes_max is {}; a container has at most {PROCESSES_MAX} INIT processes",
                platform.processes_max
            ));
        }
        let program = Path::new(&platform.runtime[0]).file_name().unwrap_or_default();
        let is_engine = program == "podman" || program == "docker";
        if platform.image.is_some() && (!is_engine || platform.rootfs.is_some()) {
            return refuse(
                "platform.image is for podman and docker, and without platform.rootfs".into(),
            );
        }
        if program == "docker" && platform.rootfs.is_some() {
            return refuse(
                "docker takes no platform.rootfs; name an image as platform.image".into(),
            );
        }
        if program == "docker" && platform.user_namespace.is_some() {
            return refuse(
                "platform.user_namespace is the docker daemon's to give (its option userns-remap)"
                    .into(),
            );
        }
        if platform.user_namespace == Some(0) {
            return refuse(
                "platform.user_namespace is 0: containers' root is never the host's".into(),
            );
        }
        let mut users = BTreeMap::new();
        for (name, owner) in &self.owners {
            check_name("owners", name)?;
            if owner.uid == 0 {
                return refuse(format!("owners.{name}.uid is 0: functions never run as root"));
            }
            if Some(owner.uid) == platform.user_namespace {
                return refuse(format!("owners.{name}.uid is platform.user_namespace's"));
            }
            if let Some(other) = users.insert(owner.uid, name) {
                return refuse(format!(
                    "owners.{other} and owners.{name} share the uid {}; each owner needs one of his own",
                    owner.uid
                ));
            }
        }
        for (name, function) in &self.functions {
            check_name("functions", name)?;
            self.check_function(name, function)?;
        }
        Ok(())
    }

    fn check_function(&self, name: &str, function: &Function) -> Result<(), ConfigError> {
        let refuse = |what: String| Err(ConfigError::Value(format!("functions.{name}.{what}")));
        if !self.owners.contains_key(&function.owner) {
            return refuse(format!("owner is {:?}, of whom owners has nothing", function.owner));
        }
        if !function.code.is_absolute() {
            return refuse(format!("code is {}; give an absolute path", function.code.display()));
        }
        let is_python = matches!(function.runtime, RuntimeKind::Python | RuntimeKind::Awslambdaric);
        if is_python && !function.handler.contains('.') {
            return refuse(format!("handler is {:?}; name MODULE.FUNCTION", function.handler));
        }
        if function.timeout_s == 0 || function.concurrency_max == 0 {
            return refuse("timeout_s and concurrency_max must be at least 1".into());
        }
        if function.timeout_s > SECONDS_MAX {
            return refuse(format!("timeout_s is {}; at most {SECONDS_MAX}", function.timeout_s));
        }
        if function.memory_mb > MEGABYTES_MAX {
            return refuse(format!("memory_mb is {}; at most {MEGABYTES_MAX}", function.memory_mb));
        }
        let made_ready =
            [("sessions", function.sessions), ("unassigned_qps", function.unassigned_qps)];
        for (key, value) in made_ready {
            if let (Some(value @ 1..), false) = (value, function.runtime.forks()) {
                return refuse(format!(
                    "{key} is {value}, for processes that are forked; those of its runtime are not, and open sessions themselves"
                ));
            }
        }
        if function.unassigned_qps() > UNASSIGNED_MAX {
            let has = function.unassigned_qps();
            return refuse(format!("unassigned_qps is {has}; at most {UNASSIGNED_MAX} are kept"));
        }
        if function.handler.len() > HANDLER_MAX {
            return refuse(format!("handler has more than {HANDLER_MAX} bytes"));
        }
        if function.destinations.len() > DESTINATIONS_MAX {
            let has = function.destinations.len();
            return refuse(format!(
                "destinations has {has}; at most {DESTINATIONS_MAX} are made ready"
            ));
        }
        let has: usize =
            function.environment.iter().map(|(name, v)| name.len() + v.len() + 2).sum();
        if has > ENVIRONMENT_MAX {
            return refuse(format!(
                "environment has {has} bytes; at most {ENVIRONMENT_MAX} are taken"
            ));
        }
        for (variable, value) in &function.environment {
            if variable.contains(['=', '\0']) || variable.is_empty() || value.contains('\0') {
                return refuse(format!("environment has {variable:?}, which cannot be one"));
            }
        }
        Ok(())
    }
}

/// Names become parts of paths and of addresses.
fn check_name(table: &str, name: &str) -> Result<(), ConfigError> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(ConfigError::Value(format!(
            "{table} has {name:?}; a name has 1 to 64 letters, digits, - and _"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "[owners.a]\nuid = 60001\n[functions.f]\nowner = \"a\"\ncode = \"/f\"\nhandler = \"f.g\"\n";

    #[test]
    fn refusals_name_the_key() {
        assert!(Config::parse(GOOD).is_ok());
        for (more, said) in [
            ("surprise = 1\n", "surprise"),
            ("timeout_s = 0\n", "timeout_s"),
            ("unassigned_qps = 65\n", "unassigned_qps"),
            ("runtime = \"program\"\nsessions = 1\n", "functions.f.sessions is 1"),
            ("runtime = \"provided\"\nunassigned_qps = 2\n", "functions.f.unassigned_qps is 2"),
            ("destinations = [\"nowhere\"]\n", "\"nowhere\", which is no GID"),
            // Which others take for 10.0.0.8.
            ("destinations = [\"10.0.0.010\"]\n", "\"10.0.0.010\", which is no GID"),
            (
                "connections = \"rented\"\n",
                "unknown variant `rented`, expected `shared` or `leased`",
            ),
            ("[owners.b]\nuid = 60001\n", "share the uid 60001"),
            ("[owners.root]\nuid = 0\n", "never run as root"),
            ("[owners.\"../x\"]\nuid = 7\n", "../x"),
            ("timeout_s = 9223372036854775807\n", "timeout_s"),
            ("memory_mb = 9223372036854775807\n", "memory_mb"),
            ("[platform]\nkeep_alive_s = 9223372036854775807\n", "platform.keep_alive_s"),
            ("[platform]\ninit_timeout_s = 9223372036854775807\n", "platform.init_timeout_s"),
            (
                "[platform]\ncontainer_memory_mb = 9223372036854775807\n",
                "platform.container_memory",
            ),
            ("[platform]\nruntime = []\n", "platform.runtime"),
            ("[platform]\nimage = \"x\"\n", "platform.image"),
            ("[platform]\nruntime = [\"docker\"]\nrootfs = \"/x\"\n", "platform.rootfs"),
            ("[platform]\nruntime = [\"docker\"]\nuser_namespace = 7\n", "userns-remap"),
            ("[platform]\nuser_namespace = 0\n", "never the host's"),
            ("[platform]\nuser_namespace = 60001\n", "owners.a.uid"),
        ] {
            let error = Config::parse(&format!("{GOOD}{more}")).unwrap_err().to_string();
            assert!(error.contains(said), "{more}: {error}");
        }
        let nobody = GOOD.replace("owner = \"a\"", "owner = \"z\"");
        assert!(Config::parse(&nobody).unwrap_err().to_string().contains("functions.f.owner"));
    }

    #[test]
    fn a_runtime_has_the_names_that_it_has_at_aws_and_makes_ready_what_it_hands_over() {
        for (runtime, kind, sessions, forks) in [
            ("python", RuntimeKind::Python, 4, true),
            ("program", RuntimeKind::Program, 0, false),
            ("provided", RuntimeKind::Provided, 0, false),
            ("provided.al2023", RuntimeKind::Provided, 0, false),
        ] {
            let text = format!("{GOOD}runtime = \"{runtime}\"\ndestinations = [\"10.0.0.2\"]\n");
            let function = &Config::parse(&text).unwrap().functions["f"];
            assert_eq!((function.runtime, function.runtime.forks()), (kind, forks));
            assert_eq!((function.sessions(), function.unassigned_qps() > 0), (sessions, forks));
        }
    }

    /// It was connected to twice, and leased twice.
    #[test]
    fn a_destination_is_one_in_whichever_spelling() {
        let line =
            "destinations = [\"10.0.0.1\", \"::ffff:10.0.0.1\", \"FE80::0001\", \"::FFFF:a00:1\"]";
        let config = Config::parse(&format!("{GOOD}{line}\n")).unwrap();
        let named = config.functions["f"].destinations.iter().map(Gid::to_string);
        assert_eq!(named.collect::<Vec<_>>(), ["10.0.0.1", "fe80::1"]);
    }

    #[test]
    fn connections_are_shared_unless_they_are_leased() {
        let read = |more: &str| Config::parse(&format!("{GOOD}{more}")).unwrap();
        assert_eq!(read("").functions["f"].connections, Connections::Shared);
        for connections in [Connections::Shared, Connections::Leased] {
            let line = format!("connections = \"{}\"\n", connections.name());
            assert_eq!(read(&line).functions["f"].connections, connections);
        }
    }

    #[test]
    fn what_makes_an_order_too_long_is_refused() {
        let least: String = (0..=DESTINATIONS_MAX).map(|i| format!("\"10.0.1.{i}\",")).collect();
        let large = "x".repeat(ENVIRONMENT_MAX);
        for (more, said) in [
            (format!("destinations = [{least}]\n"), "destinations has 65"),
            (format!("environment = {{ A = \"{large}\" }}\n"), "environment has 65539"),
            ("[platform]\nprocesses_max = 65\n".into(), "platform.processes_max"),
        ] {
            let error = Config::parse(&format!("{GOOD}{more}")).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
