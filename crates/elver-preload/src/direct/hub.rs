//! The processes that this one reaches directly, and those that reach it: all that are known.

mod asking;
pub(super) mod watch;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::meeting::Meetings;
use super::peer::{Own, Peer, Refusal};
use super::shunned::Shunned;
use super::table::Table;

/// Processes that one reaches and is reached by, where it may have enough descriptors.
const PEERS: usize = 1 << 10;
/// Each costs three: of the process, a socket and what wakes it. The program keeps half of what it may have.
const LIMIT_A_PEER: u64 = 6;

/// What stands between this process and others.
pub(crate) struct Hub {
    pub(crate) table: Table,
    own: IpAddr,
    peers: Mutex<Vec<Arc<Peer>>>,
    meetings: Meetings,
    shunned: Shunned,
    /// Rises with each change of the list.
    version: AtomicU64,
    /// Makes the thread look at the list again.
    wake: OwnedFd,
    /// Wakes who drives the device.
    bell: OwnedFd,
    /// Processes of this host that packets go to, since [`Hub::take_refused`].
    refused: AtomicU64,
    /// Somebody was told that a process has another version.
    told: AtomicBool,
}

/// How many peers this process may have, with the descriptors that it may have.
fn most_peers() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let most = limit.map_or(PEERS as u64, |limit| limit / LIMIT_A_PEER);
    PEERS.min(most as usize)
}

impl Hub {
    pub(crate) fn peers(&self) -> MutexGuard<'_, Vec<Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with [`Hub::all`].
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// All that are known.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.peers().clone()
    }

    fn own(&self) -> Own<'_> {
        Own { table: &self.table, address: self.own, bell: &self.bell }
    }

    /// How many processes were met that are reached by packets all the same, since this was called last.
    pub(crate) fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// A peer that was met, and is reached directly. One that has ended, and was not noticed yet, may have had the address before.
    fn known(&self, address: IpAddr) -> Option<Arc<Peer>> {
        let is_it = |peer: &&Arc<Peer>| {
            if peer.address != address || peer.is_closed() {
                return false;
            }
            let ended = peer.has_ended();
            if ended {
                // Packets go to who has it now.
                peer.close();
            }
            !ended
        };
        self.peers().iter().find(is_it).cloned()
    }

    fn dismiss(&self, peer: &Arc<Peer>) {
        peer.close();
        self.peers().retain(|other| !Arc::ptr_eq(other, peer));
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn admit(&self, peer: Peer) -> Result<Arc<Peer>, Refusal> {
        let (peer, most) = (Arc::new(peer), most_peers());
        let mut peers = self.peers();
        if peers.len() >= most {
            return Err(Refusal::Full);
        }
        peers.push(peer.clone());
        drop(peers);
        self.version.fetch_add(1, Ordering::AcqRel);
        // It fails only when it was rung often enough already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(peer)
    }

    fn counted(&self, met: Result<Arc<Peer>, Refusal>) -> Option<Arc<Peer>> {
        met.inspect_err(|refusal| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            if let Refusal::Version(other) = refusal
                && !self.told.swap(true, Ordering::Relaxed)
            {
                eprintln!("elver: {other}");
            }
        })
        .ok()
    }
}
