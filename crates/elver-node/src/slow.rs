//! The slow threads: the registry that a meta server keeps, and the node's own registration. They
//! sleep nearly always, and speak to the engine through its inlet.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::Gid;

use crate::NodeError;
use crate::clock::now;
use crate::config::Config;
use crate::engine::{Notice, Outlet};
use crate::pulse::Proof;
use crate::registry::{
    News, NodeTable, Registry, RegistryClient, RegistryClientConfig, RegistryConfig,
    RegistryCounters, RegistryServer, Secret,
};
use crate::worker::Worker;

/// The longest wait of a slow thread.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Time until it is waited again where the system has no memory for that.
const AGAIN: Duration = Duration::from_millis(10);
/// Reports that may wait to be read; those beyond are lost.
const REPORTS_MAX: usize = 64;

/// What a registry has seen, as its thread last wrote it.
pub(crate) type RegistryView = Arc<Mutex<RegistryCounters>>;

/// What a meta server's registry is made with.
pub(crate) struct MetaRole {
    pub(crate) listener: TcpListener,
    pub(crate) server: MetaServer,
    pub(crate) registry: RegistryConfig,
}

/// The slow threads of a node. They end when it is dropped; the node leaves the cluster first.
pub(crate) struct Slow {
    client: Option<Worker>,
    server: Option<Worker>,
    registry_address: Option<SocketAddr>,
    registries: Vec<SocketAddr>,
    view: Option<RegistryView>,
    reports: Option<Receiver<String>>,
}

impl Slow {
    pub(crate) fn start(
        config: &Config,
        gid: Gid,
        record: NodeRecord,
        secret: Option<Secret>,
        role: Option<MetaRole>,
        proof: Proof,
    ) -> Result<Slow, NodeError> {
        let system = |reason| NodeError::System { call: "starting the registry", reason };
        let mut servers = config.meta_servers()?;
        let outlet = proof.outlet.clone();
        let (mut registry_address, mut view) = (None, None);
        let mut server = None;
        let (sender, receiver) = sync_channel(REPORTS_MAX);
        if let Some(role) = role {
            let address = role.listener.local_addr().map_err(system)?;
            registry_address = Some(address);
            if servers.is_empty() {
                servers.push(address);
            }
            let seen = view.insert(RegistryView::default()).clone();
            server = Some(serve(role, outlet.clone(), seen, sender.clone()).map_err(system)?);
        }
        let (mut client, mut reports) = (None, None);
        if !servers.is_empty() {
            let mut settings = RegistryClientConfig::for_servers(servers.clone());
            settings.source = Some(config.node.address);
            settings.secret = secret;
            settings.seed = gid
                .0
                .iter()
                .fold(record.dc_key, |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
            reports = Some(receiver);
            let mut member = RegistryClient::new(settings, now());
            member.register(gid, record);
            member.prove_by(proof);
            client = Some(keep(member, outlet, sender).map_err(system)?);
        }
        Ok(Slow { client, server, registry_address, registries: servers, view, reports })
    }

    /// The registries that the node is to register at.
    pub(crate) fn registries(&self) -> &[SocketAddr] {
        &self.registries
    }

    /// What its registry has seen, if it is a meta server.
    pub(crate) fn registry_view(&self) -> Option<RegistryView> {
        self.view.clone()
    }

    /// What the operator should hear, once.
    pub(crate) fn take_reports(&mut self) -> Option<Receiver<String>> {
        self.reports.take()
    }

    pub(crate) fn registry_address(&self) -> Option<SocketAddr> {
        self.registry_address
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // The node leaves while its own registry can still hear it.
        self.client = None;
        self.server = None;
    }
}

/// The thread that keeps the registry.
fn serve(
    role: MetaRole,
    outlet: Outlet,
    seen: RegistryView,
    reports: SyncSender<String>,
) -> io::Result<Worker> {
    Worker::start("elver-registry", move |stop, wake| {
        let table = EngineTable { server: role.server, outlet };
        // Nobody may want to hear.
        let over = |why: io::Error| {
            let _ = reports.try_send(format!(
                "the registry of this meta server has ended, and no node registers here until it is started anew: {why}"
            ));
        };
        let made = RegistryServer::new(role.listener, role.registry, table, wake.as_fd(), now());
        let mut server = match made {
            Ok(server) => server,
            Err(why) => return over(why),
        };
        while !stop.load(Ordering::Relaxed) {
            if let Err(why) = server.wait(now(), WAIT_MAX) {
                return over(why);
            }
            server.poll(now());
            // Who panicked while it looked has left it whole.
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = *server.counters();
        }
    })
}

/// The thread that keeps this node registered.
fn keep(
    mut client: RegistryClient,
    outlet: Outlet,
    reports: SyncSender<String>,
) -> io::Result<Worker> {
    Worker::start("elver-member", move |stop, wake| {
        keep_registered(&mut client, stop, wake, &outlet, &reports);
        client.leave();
    })
}

fn keep_registered(
    registry: &mut impl Registry,
    stop: &AtomicBool,
    wake: &OwnedFd,
    outlet: &Outlet,
    reports: &SyncSender<String>,
) {
    let mut known = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        registry.poll(now());
        while let Some(news) = registry.poll_news() {
            if let News::Refused { servers, .. } = &news {
                for one in servers.iter().filter(|one| !known.contains(*one)) {
                    let (address, reason) = one;
                    // Nobody may want to hear.
                    let _ = reports.try_send(format!("cannot register at {address}: {reason}"));
                }
                known.clone_from(servers);
            }
            if outlet.tell(news).is_err() {
                return;
            }
        }
        if registry.wait(WAIT_MAX, Some(wake.as_fd())).is_err() {
            // The system has no memory for it now. A node that gave up would leave its cluster for that.
            std::thread::sleep(AGAIN);
        }
    }
}

/// The table of nodes, which the engine writes.
struct EngineTable {
    server: MetaServer,
    outlet: Outlet,
}

impl NodeTable for EngineTable {
    fn server(&self) -> MetaServer {
        self.server
    }

    fn put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), String> {
        self.outlet.ask(|answer| Notice::Put { gid, record, answer }).unwrap_or_else(|| {
            Err("the meta server's engine does not answer; it is busy or ending".to_string())
        })
    }

    fn remove(&mut self, gid: Gid) {
        // An engine that is ending takes its table with it.
        let _ = self.outlet.send(Notice::Remove { gid });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use elver_verbs::Time;

    use super::*;
    use crate::engine::channel;
    use crate::registry::samples::{gid, record};

    /// A registry that has much to tell.
    struct Talks<'a> {
        left: u32,
        polls: u32,
        stop: &'a AtomicBool,
    }

    impl Registry for Talks<'_> {
        fn register(&mut self, _: Gid, _: NodeRecord) {}

        fn wait(&mut self, _: Duration, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
            self.stop.store(self.polls == 3, Ordering::Relaxed);
            // As where the system has no memory for a moment: the node left its cluster.
            if self.polls == 1 { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        }

        fn poll(&mut self, _: Time) {
            self.polls += 1;
        }

        fn poll_news(&mut self) -> Option<News> {
            self.left = self.left.checked_sub(1)?;
            Some(News::Node { gid: gid(self.left as u8), record: Some(record(self.left)) })
        }

        fn leave(&mut self) {}
    }

    /// Its thread waited for the engine, sent no heartbeat, and the registry took the node for dead.
    #[test]
    fn a_node_that_nobody_drives_is_kept_registered_whatever_there_is_to_hear() {
        let (outlet, mut inlet) = channel().unwrap();
        let (wake, stop) = (
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap(),
            AtomicBool::new(false),
        );
        let (reports, _receiver) = sync_channel(1);
        let mut registry = Talks { left: 2_000, polls: 0, stop: &stop };
        keep_registered(&mut registry, &stop, &wake, &outlet, &reports);
        assert_eq!((registry.left, registry.polls), (0, 3));
        // Of each node the last is told.
        let mut told = 0;
        while let Some(notice) = inlet.next() {
            let Notice::News(News::Node { gid: of, record: Some(last) }) = notice else {
                panic!("something else")
            };
            let number = of.0[15];
            assert!(of == gid(number) && last == record(u32::from(number)));
            told += 1;
        }
        assert_eq!(told, 256);
    }
}
