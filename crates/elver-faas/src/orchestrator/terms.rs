//! What the configuration comes to, for the schedule, for a container and for an INIT process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::limits::Limits;
use crate::bundle::Bundle;
use crate::config::{Config, Function, Platform, RuntimeKind};
use crate::protocol::{Order, Spawn};
use crate::schedule::{FunctionTerms, ProcessId, RequestId, Terms};
use crate::state;

/// Most bytes of a file that a function writes.
const FILE_MAX: u64 = 64 << 20;

pub(super) fn schedule(config: &Config, limits: Limits) -> Terms {
    let platform = &config.platform;
    let processes_max = processes_max(platform.processes_max, limits);
    // Each has a connection while it is at work, and a program that has none waits for one by another.
    let container_requests_max = limits.container.saturating_sub(processes_max).max(1);
    Terms {
        container_requests_max,
        containers_max: platform.containers_max,
        owner_containers_max: platform.owner_containers_max,
        processes_max,
        requests_max: platform.requests_max,
        keep_alive: Duration::from_secs(platform.keep_alive_s),
        init_timeout: Duration::from_secs(platform.init_timeout_s),
    }
}

/// INIT processes of a container, of so many that there may be: each keeps room for one connection that may come, beside one by
/// which it may wait. One more would never be heard while the others are idle.
fn processes_max(configured: usize, limits: Limits) -> usize {
    let most = (limits.container / 2).max(1);
    if configured > most {
        eprintln!(
            "a container has {most} INIT processes at most, and not the {configured} of platform.processes_max: it may have {} \
             connections, by how many files this process may have open (ulimit -n) and by platform.containers_max",
            limits.container
        );
    }
    configured.min(most)
}

pub(super) fn functions(config: &Config) -> BTreeMap<String, FunctionTerms> {
    let terms = |function: &Function| FunctionTerms {
        owner: function.owner.clone(),
        forks: function.runtime.forks(),
        first_is_child: function.runtime == RuntimeKind::Awslambdaric,
        destinations: function.destinations.iter().copied().collect(),
        timeout: Duration::from_secs(function.timeout_s),
        concurrency_max: function.concurrency_max,
    };
    config.functions.iter().map(|(name, function)| (name.clone(), terms(function))).collect()
}

/// Numbers begin above all that an earlier orchestrator gave, whose children may still be at work: with the
/// time, at 64 numbers a millisecond.
pub(super) fn first_number(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_millis() as u64 * 64
}

/// By what a container of an owner's is made, where programs have been replaced so many times.
pub(super) fn container(config: &Config, replaced: u64, owner: &str) -> Option<state::Terms> {
    let Config { platform, owners, functions } = config;
    let Platform { runtime, rootfs, image, user_namespace, python, devices, .. } = platform;
    let functions: BTreeMap<_, _> =
        functions.iter().filter(|(_, function)| function.owner == owner).collect();
    let place = (rootfs, image, user_namespace, python, devices, platform.container_memory_mb);
    let (node, uid) = (&platform.node_socket, owners.get(owner)?.uid);
    Some(state::Terms {
        owner: owner.into(),
        runtime: runtime.clone(),
        programs: replaced,
        configuration: format!("{place:?} {node:?} {uid} {functions:?}"),
    })
}

/// What a container's [`Bundle`] borrows.
pub(super) struct Places {
    pub(super) directory: PathBuf,
    pub(super) sockets: PathBuf,
    pub(super) programs: PathBuf,
}

/// A container of an owner's, who is there.
pub(super) fn bundle<'a>(
    config: &'a Config,
    places: &'a Places,
    node: Option<(&'a Path, &'static str)>,
    owner: &str,
) -> Bundle<'a> {
    let functions = config.functions.iter().filter(|(_, f)| f.owner == owner);
    let platform = &config.platform;
    Bundle {
        directory: &places.directory,
        rootfs: platform.rootfs.as_deref(),
        image: platform.image.as_deref(),
        uid: config.owners[owner].uid,
        user_namespace: platform.user_namespace,
        sockets: &places.sockets,
        programs: &places.programs,
        node,
        devices: &platform.devices,
        code: functions.clone().map(|(name, f)| (name.as_str(), f.code.as_path())).collect(),
        processes_max: functions.map(|(_, f)| f.processes_max).max().unwrap_or(1),
        memory_max: platform.container_memory_mb.map(|memory| memory << 20),
        file_max: FILE_MAX,
    }
}

/// The order to start an INIT process of a function.
pub(super) fn spawn(config: &Config, process: ProcessId, first: RequestId, name: &str) -> Order {
    let function = &config.functions[name];
    Order::Spawn(Spawn {
        process,
        first,
        function: name.into(),
        runtime: function.runtime,
        handler: function.handler.clone(),
        python: config.platform.python.clone(),
        destinations: function.destinations.clone(),
        sessions: function.sessions(),
        sessions_max: u32::try_from(function.concurrency_max).unwrap_or(u32::MAX),
        unassigned_qps: function.unassigned_qps(),
        connections: function.connections,
        environment: function.environment.clone(),
        memory_max: function.memory_mb << 20,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ninth of a container that could have eight connections was never heard.
    #[test]
    fn each_process_of_a_container_has_its_connections() {
        for files in [64, 1024, 4096, 20_000, 1 << 16] {
            for containers_max in [1, 16, 256, 1024] {
                for processes_max in [1, 8, 64] {
                    let text = format!(
                        "[platform]\ncontainers_max = {containers_max}\nprocesses_max = {processes_max}\n[owners]\n[functions]\n"
                    );
                    let config = Config::parse(&text).unwrap();
                    let limits = Limits::of(files, containers_max);
                    let terms = schedule(&config, limits);
                    let (most, processes) = (limits.container, terms.processes_max);
                    assert!(most >= 2 * processes, "{files} {text} {limits:?}");
                    assert!(most >= terms.container_requests_max + processes, "{files} {text}");
                    assert!(processes == processes_max || processes == most / 2, "{files} {text}");
                }
            }
        }
    }

    /// An INIT process that shares queue pairs would be taken over otherwise for a function that leases them, and go on so.
    #[test]
    fn a_container_is_made_otherwise_when_a_function_has_other_connections() {
        let made = |lines: &str| {
            let text = format!(
                "[owners.a]\nuid = 2001\n[owners.b]\nuid = 2002\n[functions.f]\nowner = \"a\"\ncode = \"/srv/f\"\n\
                 handler = \"f\"\nruntime = \"native\"\n{lines}"
            );
            let config = Config::parse(&text).unwrap();
            ["a", "b"].map(|owner| container(&config, 0, owner).unwrap())
        };
        let [shared, others] = made("connections = \"shared\"\n");
        assert_eq!(made(""), [shared.clone(), others.clone()]);
        let [leased, others_then] = made("connections = \"leased\"\n");
        assert_eq!(others_then, others);
        assert_ne!(leased, shared);
        let [reaches, _] = made("connections = \"leased\"\ndestinations = [\"10.0.0.1\"]\n");
        assert_ne!(reaches, leased);
    }
}
