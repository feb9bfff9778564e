//! The processes that this one reaches directly, and those that reach it: how they find each other.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with,
};
use rustix::process::{Resource, getrlimit};

use crate::fork::{Unshared, close_in_child};
use crate::threads;

use super::meeting::{Meetings, Vain};
use super::peer::{Own, Peer, Refusal};
use super::shunned::Shunned;
use super::table::Table;

/// The name of a process's socket, before the address of its device.
const NAME: &str = "elver-direct";
/// Processes that one reaches and is reached by, where it may have enough descriptors.
const PEERS: usize = 1 << 10;
/// Each costs three: of the process, a socket and what wakes it. The program keeps half of what it may have.
const LIMIT_A_PEER: u64 = 6;
/// Processes that wait to be answered.
const BACKLOG: c_int = 128;
/// How long one of them waits for a word of the other, unless the variable says otherwise, in milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_VARIABLE: &str = "ELVER_DIRECT_PATIENCE_MS";
/// How long the thread sleeps that watches over peers after an error.
const REST: Duration = Duration::from_millis(10);

type Met = Result<Arc<Peer>, Refusal>;
/// Takes one among the peers that are known.
type Admit<'a> = &'a mut dyn FnMut(Peer) -> Met;

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

fn name_of(address: IpAddr) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{NAME}/{address}").as_bytes())
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn patience() -> Duration {
    static WANTED: LazyLock<Duration> = LazyLock::new(|| {
        let told = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
        // None would be to wait without end.
        told.filter(|ms| *ms > 0).map_or(PATIENCE, Duration::from_millis)
    });
    *WANTED
}

fn be_patient(socket: &OwnedFd) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(patience()))?;
    set_socket_timeout(socket, Timeout::Send, Some(patience()))
}

/// How many peers this process may have, with the descriptors that it may have.
fn most_peers() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let most = limit.map_or(PEERS as u64, |limit| limit / LIMIT_A_PEER);
    PEERS.min(most as usize)
}

impl Hub {
    /// Lets processes find this one by the address of its device, and starts the thread that answers.
    pub(crate) fn open(own: IpAddr, bell: OwnedFd) -> Result<Arc<Hub>, Errno> {
        let listener = seqpacket()?;
        bind(&listener, &name_of(own)?)?;
        listen(&listener, BACKLOG)?;
        let hub = Arc::new(Hub {
            table: Table::new()?,
            own,
            peers: Mutex::default(),
            meetings: Meetings::new(own),
            shunned: Shunned::default(),
            version: AtomicU64::new(0),
            bell,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            refused: Default::default(),
            told: Default::default(),
        });
        close_in_child(listener.as_raw_fd());
        let attends = hub.clone();
        threads::spawn("elver-direct", move || attends.attend(&listener))
            .map_err(|_| Errno::AGAIN)?;
        Ok(hub)
    }

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

    /// The process with a device, if it can be reached directly.
    pub(crate) fn peer(&self, address: IpAddr) -> Option<Arc<Peer>> {
        if address == self.own {
            return None;
        }
        let known = || self.known(address);
        if let Some(known) = known() {
            return Some(known);
        }
        if self.shunned.has(address) {
            return None;
        }
        let until = Instant::now() + patience();
        let meeting = match self.meetings.ask(address, until, known) {
            Ok(meeting) => meeting,
            Err(Some(known)) => return Some(known),
            Err(None) => return self.counted(Err(Refusal::Silent)),
        };
        // Another thread may have asked before.
        if self.shunned.has(address) {
            return None;
        }
        let socket = match self.reach(address) {
            Ok(socket) => socket,
            // It has too many that ask, or this process too many descriptors.
            Err(Errno::AGAIN | Errno::MFILE | Errno::NFILE) => {
                self.shunned.add(address);
                return self.counted(Err(Refusal::Silent));
            }
            // Nobody there: an older Elver, another host, or one that was told not to.
            Err(_) => return None,
        };
        // Who has no place for one more does not ask.
        let has_room = self.peers().len() < most_peers();
        let met = match has_room {
            true => self.met(|admit| Peer::ask(socket, &self.own(), admit)),
            false => Err(Refusal::Full),
        };
        let met = match met {
            Err(Refusal::Crossed) => {
                let until = Instant::now() + patience();
                meeting.await_asker(until, known).map_err(|vain| match vain {
                    Vain::Ended => Refusal::Gone,
                    Vain::Late => Refusal::Silent,
                })
            }
            met => met,
        };
        if matches!(met, Err(Refusal::Silent | Refusal::Full)) {
            self.shunned.add(address);
        }
        self.counted(met).filter(|peer| peer.address == address)
    }

    fn reach(&self, address: IpAddr) -> Result<Unshared, Errno> {
        let socket = Unshared::of(seqpacket)?;
        be_patient(&socket)?;
        connect(&socket, &name_of(address)?)?;
        Ok(socket)
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

    /// Meets one. Where that comes to nothing although it was admitted, it is to hear of that: it may take this process for met.
    fn met(&self, meet: impl FnOnce(Admit<'_>) -> Met) -> Met {
        let mut admitted = None;
        let met = meet(&mut |peer| {
            let peer = self.admit(peer)?;
            admitted = Some(peer.clone());
            Ok(peer)
        });
        if let (Err(_), Some(peer)) = (&met, admitted) {
            let _ = shutdown(&peer.socket, Shutdown::Both);
            self.dismiss(&peer);
        }
        met
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

    /// Answers processes that ask, and forgets those that have ended.
    fn attend(&self, listener: &OwnedFd) {
        loop {
            let peers = self.peers().clone();
            let mut all =
                vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            for peer in &peers {
                all.push(PollFd::new(&peer.identity.pidfd, PollFlags::IN));
                all.push(PollFd::new(&peer.socket, PollFlags::HUP));
            }
            if poll(&mut all, None).is_err() {
                std::thread::sleep(REST);
                continue;
            }
            let asked = !all[0].revents().is_empty();
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            let ended =
                |at: usize| all[2 + 2 * at..][..2].iter().any(|fd| !fd.revents().is_empty());
            for (_, peer) in peers.iter().enumerate().filter(|(at, _)| ended(*at)) {
                self.dismiss(peer);
            }
            if asked {
                match Unshared::of(|| accept_with(listener, SocketFlags::CLOEXEC)) {
                    Ok(socket) => self.answer(socket),
                    Err(_) => std::thread::sleep(REST),
                }
            }
        }
    }

    fn answer(&self, socket: Unshared) {
        if be_patient(&socket).is_ok() {
            let known = |address| self.known(address).is_some();
            let asker = Cell::new(None);
            let begin = |address| {
                asker.set(Some(address));
                self.meetings.answer(address, || known(address))
            };
            let met = self.met(|admit| Peer::answer(socket, &self.own(), begin, admit));
            // One that this one asks as well: it would be waited for once more for each QP.
            if matches!(met, Err(Refusal::Silent | Refusal::Full))
                && let Some(address) = asker.get()
            {
                self.shunned.add(address);
            }
            if !matches!(met, Err(Refusal::Crossed)) {
                self.counted(met);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::net::{SendFlags, recv, send};

    use crate::direct::lane::Lane;
    use crate::direct::peer::{CROSSED, greet};
    use crate::direct::table::MAGIC;

    use super::*;

    /// The hubs of two devices, which have found each other.
    pub(crate) fn two(block: u8) -> (Arc<Hub>, Arc<Hub>, Arc<Peer>) {
        let process = std::process::id();
        let address =
            |end: u8| IpAddr::from([127, block, (process >> 7) as u8, (process << 1) as u8 | end]);
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (first, second) =
            (Hub::open(address(0), bell()).unwrap(), Hub::open(address(1), bell()).unwrap());
        // One that got no core in time is asked again a while later.
        let begun = Instant::now();
        let peer = loop {
            if let Some(peer) = first.peer(address(1)) {
                break peer;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "they do not find each other");
            std::thread::yield_now();
        };
        for hub in [&first, &second] {
            hub.take_refused();
        }
        assert_eq!(peer.address, address(1));
        (first, second, peer)
    }

    /// One that says nothing, too little or something else is not let in, and keeps no other out.
    #[test]
    fn strangers_are_turned_away() {
        let (first, second, _) = two(203);
        let before = second.peers().len();
        for words in [&b""[..], b"hello", &[0; 32], &[0xff; 33]] {
            let socket = seqpacket().unwrap();
            connect(&socket, &name_of(second.own).unwrap()).unwrap();
            if !words.is_empty() {
                send(&socket, words, SendFlags::NOSIGNAL).unwrap();
            }
            // Until it hangs up.
            let mut answer = [0; 64];
            assert_eq!(recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap().0, 0);
        }
        // They are counted after that.
        let (mut counted, begun) = (0, Instant::now());
        while counted < 4 && begun.elapsed() < Duration::from_secs(30) {
            counted += second.take_refused();
            std::thread::yield_now();
        }
        assert_eq!((second.peers().len(), counted), (before, 4));
        assert!(second.peer(first.own).is_some());
    }

    /// Another process may have its address at once.
    #[test]
    fn who_ends_while_each_asks_the_other_is_not_shunned() {
        let process = std::process::id();
        let at =
            |end: u8| IpAddr::from([127, 240, (process >> 7) as u8, (process << 1) as u8 | end]);
        let (dies, own) = (at(0), at(1));
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let hub = Hub::open(own, bell()).unwrap();
        let (table, bell) = (Table::new().unwrap(), bell());
        let listener = seqpacket().unwrap();
        bind(&listener, &name_of(dies).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let begun = Instant::now();
        loop {
            let took = std::thread::scope(|scope| {
                let begun = Instant::now();
                let asks = scope.spawn(|| hub.peer(dies).is_none());
                let asked = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
                let socket = seqpacket().unwrap();
                connect(&socket, &name_of(own).unwrap()).unwrap();
                let (_lane, file) = Lane::new().unwrap();
                greet(&socket, &Own { table: &table, address: dies, bell: &bell }, file).unwrap();
                // It answers, and hears no more.
                recv(&socket, &mut [0; 64], rustix::net::RecvFlags::empty()).unwrap();
                drop(socket);
                let _ = send(&asked, CROSSED, SendFlags::NOSIGNAL);
                assert!(asks.join().unwrap());
                begun.elapsed()
            });
            // Where that took as long as one waits for a word, it was silent.
            if took < patience() {
                assert!(!hub.shunned.has(dies));
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "{took:?}");
            while hub.shunned.has(dies) {
                std::thread::yield_now();
            }
        }
    }

    /// Both ends are told, once, and what the other version says besides its own does not matter.
    #[test]
    fn another_version_is_refused_with_a_word() {
        let (first, second, _) = two(219);
        let magic = |version: &[u8; 8]| u64::from_be_bytes(*version).to_ne_bytes();
        for more in [&b""[..], &[7; 24], &[7; 60]] {
            let socket = seqpacket().unwrap();
            connect(&socket, &name_of(second.own).unwrap()).unwrap();
            let greeting = [&magic(b"ELVERd01")[..], more].concat();
            send(&socket, &greeting, SendFlags::NOSIGNAL).unwrap();
            let mut answer = [0; 64];
            let len = recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap().0;
            assert_eq!(answer[..len], MAGIC.to_ne_bytes());
        }
        let (mut counted, begun) = (0, Instant::now());
        while counted < 3 && begun.elapsed() < Duration::from_secs(30) {
            counted += second.take_refused();
            std::thread::yield_now();
        }
        assert_eq!(counted, 3);
        assert!(second.told.load(Ordering::Relaxed));

        // One that asks is answered by another version.
        let other =
            IpAddr::from([127, 239, (std::process::id() >> 8) as u8, std::process::id() as u8]);
        let listener = seqpacket().unwrap();
        bind(&listener, &name_of(other).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
                send(&socket, &magic(b"ELVERd17"), SendFlags::NOSIGNAL).unwrap();
                let mut greeting = [0; 64];
                recv(&socket, &mut greeting, rustix::net::RecvFlags::empty()).unwrap();
            });
            assert!(first.peer(other).is_none());
        });
        assert!(first.told.load(Ordering::Relaxed) && first.take_refused() == 1);
    }

    /// One that has its address now is met, though the thread that watches over peers is busy with another one.
    #[test]
    fn one_that_has_ended_is_not_taken_for_who_has_its_address_now() {
        let (first, second, mut peer) = two(220);
        let begun = Instant::now();
        for _ in 0..4 {
            let [stranger, _silent] = [(); 2].map(|()| {
                let socket = seqpacket().unwrap();
                connect(&socket, &name_of(first.own).unwrap()).unwrap();
                socket
            });
            // Who waited for it in vain may have hung up.
            let _ = send(&stranger, b"hello", SendFlags::NOSIGNAL);
            let _ = recv(&stranger, &mut [0; 8], rustix::net::RecvFlags::empty());
            // The other one is awaited now, for a while; and the peer's process ends.
            let ended = second.peers().last().unwrap().clone();
            shutdown(&ended.socket, Shutdown::Both).unwrap();
            let again = loop {
                if let Some(again) = first.peer(second.own) {
                    break again;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "they do not find each other");
                std::thread::yield_now();
            };
            assert!(!Arc::ptr_eq(&again, &peer) && !again.has_ended());
            peer = again;
        }
    }

    /// From two threads of each at once.
    #[test]
    fn who_ask_each_other_meet_once() {
        let (first, second, _) = two(206);
        for round in 0..200 {
            // Both forget the other, as if it had ended.
            for hub in [&first, &second] {
                hub.peers().clear();
            }
            let found = std::thread::scope(|scope| {
                let asks = [(&first, &second), (&second, &first)];
                let all = [asks, asks].concat();
                let all = all.into_iter().map(|(one, other)| scope.spawn(|| one.peer(other.own)));
                let all: Vec<_> = all.collect();
                all.into_iter().map(|asks| asks.join().unwrap().is_some()).collect::<Vec<_>>()
            });
            // One that got no core in time met nobody.
            let met = [first.peers().len(), second.peers().len()];
            if found.contains(&false) {
                return;
            }
            assert_eq!(met, [1, 1], "round {round}");
        }
    }

    /// A process that is stopped, or does not want to, holds up a program once.
    #[test]
    fn who_does_not_answer_is_not_asked_again_at_once() {
        let (first, _, _) = two(204);
        let silent =
            IpAddr::from([127, 205, (std::process::id() >> 8) as u8, std::process::id() as u8]);
        let listener = seqpacket().unwrap();
        bind(&listener, &name_of(silent).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        assert!(first.peer(silent).is_none());
        assert_eq!(first.take_refused(), 1);
        for _ in 0..100 {
            assert!(first.peer(silent).is_none());
        }
        assert_eq!(first.take_refused(), 0);
    }
}
