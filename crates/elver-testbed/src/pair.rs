//! Two ends on one machine: two threads, each pinned to a core, on two loopback addresses or in
//! two network namespaces that are joined by a veth.
//!
//! The namespaces have no names: each lives as long as its thread, so that nothing is left behind
//! however the process ends.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use elver_console::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::Serialize;

use crate::netns::{VETH_MTU, ip, reach_hosts, set_up, stand_for_hosts, unshare};
use crate::seat::pin;

/// The two ends' addresses on loopback.
const LOOPBACK: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];
/// The two ends' addresses on the veth.
const VETH: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2))];
/// Addresses that the server's end has beside its own, for a second node there.
const BESIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)), IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3))];
/// First of the addresses that the server's end has for many hosts, a /24 of them.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 4, 1), Ipv4Addr::new(10, 9, 4, 1)];
/// How long one end waits for the other to be ready.
pub(crate) const READY_WAIT: Duration = Duration::from_secs(60);

/// How long the server waits for a connection before it looks whether the client is still there.
const ACCEPT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Where two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Two QPs of one device: copies from MR to MR.
    Process,
    /// Two devices on two loopback addresses: packets through real sockets.
    Loopback,
    /// Two devices in two network namespaces joined by a veth: packets between hosts. Needs root.
    Netns,
    /// Against a server elsewhere.
    #[value(skip)]
    Remote,
}

/// Where an end stands.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its address.
    pub own: IpAddr,
    /// The other end's.
    pub peer: IpAddr,
    /// A second address of the server's end.
    pub beside: IpAddr,
    /// And the first of many.
    pub hosts: Ipv4Addr,
}

/// The client, as the server sees it.
pub struct Client {
    pub(crate) ready: SyncSender<()>,
    pub(crate) gone: Arc<AtomicBool>,
    /// Closed when it is gone.
    pub(crate) ended: Receiver<Infallible>,
}

impl Client {
    /// Lets the client begin.
    pub fn begin(&self) {
        // It may have given up already.
        let _ = self.ready.try_send(());
    }

    /// Whether the client has ended: nothing more will come from it.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Waits until it is.
    pub fn wait_gone(&self) {
        // Nothing is ever sent: it closes.
        let _ = self.ended.recv();
    }

    /// Accepts the client's connection; fails if it ended without one.
    ///
    /// # Errors
    ///
    /// The client ended without connecting; or what the system says.
    pub fn accept(&self, listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
        listener.set_nonblocking(true)?;
        while !self.is_gone() {
            match listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(false)?;
                    return Ok((stream, peer));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(listener, PollFlags::IN)];
                    poll(&mut fds, Some(&ACCEPT_WAIT))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(anyhow!("the client ended before it connected"))
    }
}

/// Tells that a thread has ended, however it did: by a flag, and by what is closed behind it.
pub(crate) struct Ends {
    pub(crate) gone: Arc<AtomicBool>,
    pub(crate) _ended: SyncSender<Infallible>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Runs `server`, which lets the client begin, and `client`.
///
/// # Errors
///
/// What failed at either end; [`Failure::Unusable`] for who is not root, between namespaces.
pub fn run<S: Send, C: Send>(
    placement: Placement,
    server: impl FnOnce(End, &Client) -> Result<S> + Send,
    client: impl FnOnce(End) -> Result<C> + Send,
) -> Result<(S, C), Failure> {
    let netns = placement == Placement::Netns;
    if netns && !rustix::process::geteuid().is_root() {
        return Err(Failure::unusable(
            "network namespaces need root: run it with sudo, or take `--placement loopback`",
        ));
    }
    let addresses = if netns { VETH } else { LOOPBACK };
    let (beside, hosts) = (BESIDE[usize::from(netns)], HOSTS[usize::from(netns)]);
    let (here, there) = (
        End { own: addresses[0], peer: addresses[1], beside, hosts },
        End { own: addresses[1], peer: addresses[0], beside, hosts },
    );
    let (joined, join) = sync_channel(1);
    let (ready, begin) = sync_channel(1);
    let (done_tx, done_rx) = sync_channel::<()>(1);
    let gone = Arc::new(AtomicBool::new(false));
    let client_gone = gone.clone();
    let (_ended, ended) = sync_channel(1);
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            pin(1);
            if netns {
                enter_and_offer(&joined)?;
            }
            let client = Client { ready, gone: client_gone, ended };
            let result = server(there, &client);
            drop(client);
            // The namespace must outlive the client's part in it.
            let _ = done_rx.recv_timeout(READY_WAIT);
            result
        });
        let asking = scope.spawn(move || {
            let _ends = Ends { gone, _ended };
            pin(0);
            if netns {
                enter_and_join(&join)?;
            }
            wait_for(&begin)?;
            let result = client(here);
            // The server may have ended first.
            let _ = done_tx.try_send(());
            result
        });
        let asked = asking.join().map_err(|_| anyhow!("the client's thread panicked"))?;
        let served = serving.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        match (served, asked) {
            (Ok(served), Ok(asked)) => Ok((served, asked)),
            (Ok(_), Err(error)) => Err(error.context("client").into()),
            (Err(error), Ok(_)) => Err(error.context("server").into()),
            // A client that got no server to speak with says nothing of why.
            (Err(server), Err(client)) => {
                Err(server.context(format!("client: {client:#}; server")).into())
            }
        }
    })
}

fn wait_for(begin: &Receiver<()>) -> Result<()> {
    begin.recv_timeout(READY_WAIT).map_err(|_| anyhow!("the server did not get ready"))
}

/// Gives the server's end the addresses from [`End::hosts`] on.
///
/// # Errors
///
/// `ip` cannot be run, or refuses.
pub fn stand_for(placement: Placement, end: End) -> Result<()> {
    match placement {
        Placement::Netns => stand_for_hosts(end.hosts, "elver1"),
        // All of the loopback is there.
        _ => Ok(()),
    }
}

/// The server's side: makes its namespace, names its thread to the client and sets up the end of
/// the veth that the client puts there.
fn enter_and_offer(joined: &SyncSender<Offer>) -> Result<()> {
    unshare()?;
    let (placed, place) = sync_channel(1);
    joined
        .send(Offer { thread: rustix::thread::gettid().as_raw_nonzero().get(), placed })
        .map_err(|_| anyhow!("the client's thread is gone"))?;
    place.recv_timeout(READY_WAIT).map_err(|_| anyhow!("the client made no veth"))?;
    set_up("elver1", VETH[1])?;
    ip(&["address", "add", &format!("{}/24", BESIDE[1]), "dev", "elver1"], &[])
}

struct Offer {
    thread: i32,
    placed: SyncSender<()>,
}

/// The client's side: makes its namespace and a veth to the server's.
fn enter_and_join(join: &Receiver<Offer>) -> Result<()> {
    unshare()?;
    let offer =
        join.recv_timeout(READY_WAIT).map_err(|_| anyhow!("the server made no namespace"))?;
    let thread = offer.thread.to_string();
    ip(
        &["link", "add", "elver0", "mtu", VETH_MTU, "type", "veth"],
        &["peer", "name", "elver1", "mtu", VETH_MTU, "netns", &thread],
    )?;
    set_up("elver0", VETH[0])?;
    reach_hosts(HOSTS[1], VETH[1])?;
    offer.placed.send(()).map_err(|_| anyhow!("the server's thread is gone"))
}
