//! The thread that answers processes that ask, and forgets those that have ended.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::direct::meeting::Meetings;
use crate::direct::shunned::Shunned;
use crate::direct::socket::{accept, listen};
use crate::direct::table::Table;
use crate::threads;

use super::Hub;

/// How long the thread sleeps that watches over peers after an error.
const REST: Duration = Duration::from_millis(10);

impl Hub {
    /// Lets processes find this one by the address of its device, and starts the thread that answers.
    pub(crate) fn open(own: IpAddr, bell: OwnedFd) -> Result<Arc<Hub>, Errno> {
        let listener = listen(own)?;
        let hub = Arc::new(Hub {
            table: Table::new()?,
            own,
            peers: Default::default(),
            meetings: Meetings::new(own),
            shunned: Shunned::default(),
            version: Default::default(),
            bell,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            refused: Default::default(),
            told: Default::default(),
        });
        let attends = hub.clone();
        threads::spawn("elver-direct", move || attends.attend(&listener))
            .map_err(|_| Errno::AGAIN)?;
        Ok(hub)
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
                match accept(listener) {
                    Ok(socket) => self.answer(socket),
                    Err(_) => std::thread::sleep(REST),
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use rustix::net::{
        SendFlags, Shutdown, SocketFlags, accept_with, bind, connect, listen, recv, send, shutdown,
    };

    use crate::direct::peer::Peer;
    use crate::direct::socket::{name_of, seqpacket};
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
}
