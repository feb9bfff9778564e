//! What a configuration may say.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::error::ConfigError;
use super::sections::{Config, Function, RuntimeKind};

/// Most INIT processes that a container may have, and destinations of a function: what a container tells of itself fits into a
/// line.
pub(crate) const PROCESSES_MAX: usize = 64;
pub(crate) const DESTINATIONS_MAX: usize = 64;

/// Most QPs of a session beside those to destinations.
pub(crate) const UNASSIGNED_MAX: u32 = 64;

/// The longest time that a configuration names, a hundred years of seconds, and the most memory: what is reckoned with them
/// does not overflow.
const SECONDS_MAX: u64 = 100 * 366 * 24 * 3600;
const MEGABYTES_MAX: u64 = 1 << 40;

/// Most bytes of a function's environment, and of its handler: an order to start it fits into a line, whatever is escaped in it.
pub(crate) const ENVIRONMENT_MAX: usize = 64 << 10;
pub(crate) const HANDLER_MAX: usize = 4096;

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
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
        if let Some(other) = platform.devices.iter().find(|device| !is_device_path(device)) {
            return refuse(format!(
                "platform.devices has {}; a device is a path below /dev",
                other.display()
            ));
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

/// It becomes a file of the container's own `/dev`, and of nothing else there.
fn is_device_path(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.next() == Some(Component::Normal("dev".as_ref()))
        && parts.clone().next().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
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
