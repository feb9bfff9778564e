//! A host: a thread whose network is the host's. What it starts and opens is there.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

use crate::netns::{VETH_MTU, ip, set_up, unshare};

type Job = Box<dyn FnOnce() + Send>;

/// A host. Processes that it started and that asked for it end with it.
pub struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// The network of this process.
    pub fn here() -> Result<Host> {
        Host::with(|| Ok(()))
    }

    /// A namespace of its own; and the id of its thread, which names the namespace to others.
    fn apart() -> Result<(Host, i32)> {
        let host = Host::with(unshare)?;
        let thread = host.run(|| rustix::thread::gettid().as_raw_nonzero().get())?;
        Ok((host, thread))
    }

    fn with(first: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Host> {
        let (jobs, queue) = channel::<Job>();
        let (begun_tx, begun) = sync_channel(1);
        let thread = thread::Builder::new().name("host".into()).spawn(move || {
            let result = first();
            let failed = result.is_err();
            let _ = begun_tx.send(result);
            if failed {
                return;
            }
            for job in queue {
                job();
            }
        })?;
        begun.recv().context("the host's thread ended")??;
        Ok(Host { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs something on this host and waits for it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (done_tx, done) = sync_channel(1);
        let job = move || {
            // A panic is the job's: the host serves others.
            let result = std::panic::catch_unwind(AssertUnwindSafe(job));
            let _ = done_tx.send(result);
        };
        let gone = || anyhow!("the host's thread ended");
        self.jobs.as_ref().ok_or_else(gone)?.send(Box::new(job)).map_err(|_| gone())?;
        match done.recv().map_err(|_| gone())? {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A bridge that hosts are attached to, in a namespace of its own.
pub struct Hub(Host);

impl Hub {
    pub fn new() -> Result<Hub> {
        let (host, _) = Host::apart()?;
        host.run(|| {
            ip(&["link", "add", "elver", "mtu", VETH_MTU, "type", "bridge"], &[])?;
            ip(&["link", "set", "elver", "up"], &[])
        })??;
        Ok(Hub(host))
    }

    /// A new host in a namespace of its own, with this address on the bridge.
    pub fn attach(&self, index: usize, address: IpAddr) -> Result<Host> {
        let (host, thread) = Host::apart()?;
        self.0.run(move || {
            let port = format!("port{index}");
            let thread = thread.to_string();
            ip(
                &["link", "add", &port, "mtu", VETH_MTU, "type", "veth"],
                &["peer", "name", "eth0", "mtu", VETH_MTU, "netns", &thread],
            )?;
            ip(&["link", "set", &port, "master", "elver", "up"], &[])
        })??;
        host.run(move || set_up("eth0", address))??;
        Ok(host)
    }
}
