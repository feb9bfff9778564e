//! Processes of this host that end without a word, as SIGKILL has them. Each has a name for as long as it is there, in the
//! abstract namespace of Unix sockets, which is the network namespace's. The kernel says whose it is, and when that one
//! has ended.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, geteuid};

use crate::fork::Unshared;
use crate::identity::{credentials, pidfd_of};

/// A process's name, before the address of its device.
const NAME: &str = "elver-rdma_cm-process";
/// Processes that are watched.
const PEERS: usize = 1 << 10;
/// Processes that wait to be let go, and of them those that are at once.
const BACKLOG: i32 = 1 << 10;
const ASKED: usize = 64;

/// Who is watched, and what others watch this process by.
pub(crate) struct Ends {
    /// None if somebody has the name: then peers learn of this process's end by their QPs.
    name: Option<Unshared>,
    /// Readable when somebody has ended or has asked who this process is.
    any: OwnedFd,
    peers: HashMap<IpAddr, Watched>,
    /// Processes that were watched.
    count: u64,
}

/// A process that is watched.
struct Watched {
    process: OwnedFd,
    /// Which it is, of all that have been: another may come to have its address.
    number: Watch,
    /// Ids that are connected with it.
    users: u32,
}

/// What lets go of a process that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch(u64);

fn name_of(address: IpAddr) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{NAME}/{address}").as_bytes())
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn named(own: IpAddr, any: &OwnedFd) -> Result<Unshared, Errno> {
    let address = name_of(own)?;
    Unshared::of(|| {
        let name = seqpacket()?;
        bind(&name, &address)?;
        listen(&name, BACKLOG)?;
        epoll::add(any, &name, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(name)
    })
}

/// The process that has a device; readable when it has ended. Who is of another user could have taken the name of one that
/// is not, to end its connections.
fn find(address: IpAddr) -> Result<OwnedFd, Errno> {
    let socket = seqpacket()?;
    connect(&socket, &name_of(address)?)?;
    let (pid, user) = credentials(&socket)?;
    if user != geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    pidfd_of(&socket, Pid::from_raw(pid))
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

impl Ends {
    /// Gives this process the name of its device's address.
    pub(crate) fn new(own: IpAddr) -> Result<Ends, Errno> {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let name = named(own, &any).ok();
        Ok(Ends { name, any, peers: HashMap::new(), count: 0 })
    }

    /// What becomes readable when [`Ends::take`] has something to do.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }

    /// Watches the process that has a device, if it is one of this host and user, for one more id.
    pub(crate) fn watch(&mut self, peer: IpAddr) -> Option<Watch> {
        if let Some(watched) = self.peers.get_mut(&peer) {
            watched.users += 1;
            return Some(watched.number);
        }
        if self.peers.len() >= PEERS {
            return None;
        }
        let process = find(peer).ok()?;
        let event = epoll::EventData::new_u64(0);
        epoll::add(&self.any, &process, event, epoll::EventFlags::IN).ok()?;
        self.count += 1;
        let number = Watch(self.count);
        self.peers.insert(peer, Watched { process, number, users: 1 });
        Some(number)
    }

    /// Watches it for one id less, and with the last one no more.
    pub(crate) fn unwatch(&mut self, peer: IpAddr, watch: Watch) {
        let Some(watched) = self.peers.get_mut(&peer).filter(|one| one.number == watch) else {
            // It has ended since.
            return;
        };
        watched.users -= 1;
        if watched.users == 0 {
            self.remove(peer);
        }
    }

    fn remove(&mut self, peer: IpAddr) {
        if let Some(Watched { process, .. }) = self.peers.remove(&peer) {
            // A child of `fork` has the descriptor too, and would keep it here.
            let _ = epoll::delete(&self.any, &process);
        }
    }

    /// Whether the process that had a device when it was watched has ended: another may have its address by now.
    pub(crate) fn has_ended(&mut self, peer: IpAddr) -> bool {
        let ended = self.peers.get(&peer).is_some_and(|watched| is_readable(&watched.process));
        if ended {
            self.remove(peer);
        }
        ended
    }

    /// Those that have ended since; and lets go who asked.
    pub(crate) fn take(&mut self) -> Vec<IpAddr> {
        if let Some(name) = &self.name {
            let asked = (0..ASKED).map(|_| accept_with(name, SocketFlags::CLOEXEC).map(drop));
            let refused = asked.filter_map(Result::err).next();
            if refused.is_some_and(|error| !matches!(error, Errno::AGAIN | Errno::CONNABORTED)) {
                // Descriptors have run out: as many as the backlog has room for may still ask.
                let _ = epoll::delete(&self.any, name);
            }
        }
        let all: Vec<IpAddr> = self.peers.keys().copied().collect();
        all.into_iter().filter(|peer| self.has_ended(*peer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(end: u8) -> IpAddr {
        let process = std::process::id();
        IpAddr::from([127, 206, (process >> 7) as u8, (process << 1) as u8 | end])
    }

    /// More than a backlog has room for.
    #[test]
    fn who_asks_is_let_go_and_the_next_may_ask() {
        let mut ends = Ends::new(address(0)).unwrap();
        for _ in 0..2 * BACKLOG as usize / ASKED {
            for _ in 0..ASKED {
                find(address(0)).unwrap();
            }
            assert!(is_readable(&ends.any));
            assert!(ends.take().is_empty());
        }
        assert!(!is_readable(&ends.any));
    }

    #[test]
    fn who_is_there_is_watched_and_who_is_not_is_not() {
        let mut ends = Ends::new(address(1)).unwrap();
        let first = ends.watch(address(1)).unwrap();
        assert_eq!(ends.watch([192, 0, 2, 1].into()), None);
        assert_eq!(ends.peers.keys().copied().collect::<Vec<_>>(), [address(1)]);
        assert!(!ends.has_ended(address(1)));
        // As long as anybody is connected with it.
        assert_eq!(ends.watch(address(1)), Some(first));
        ends.unwatch(address(1), first);
        assert_eq!(ends.peers.len(), 1);
        ends.unwatch(address(1), first);
        assert!(ends.peers.is_empty());
        // Who comes to have the address is another one.
        let second = ends.watch(address(1)).unwrap();
        ends.unwatch(address(1), first);
        assert!(second != first && ends.peers.len() == 1);
        // The name is this one's, and a second goes without.
        assert!(Ends::new(address(1)).unwrap().name.is_none());
        // It is free again.
        drop(ends);
        assert!(find(address(1)).is_err());
        assert!(Ends::new(address(1)).unwrap().name.is_some());
    }
}
