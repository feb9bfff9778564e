//! Who is asked, and who asks.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::direct::meeting::Vain;
use crate::direct::peer::{Peer, Refusal};
use crate::direct::socket::{patience, reach};
use crate::fork::Unshared;

use super::{Hub, most_peers};

type Met = Result<Arc<Peer>, Refusal>;
/// Takes one among the peers that are known.
type Admit<'a> = &'a mut dyn FnMut(Peer) -> Met;

impl Hub {
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
        let socket = match reach(address) {
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

    /// Answers one that asks.
    pub(super) fn answer(&self, socket: Unshared) {
        let known = |address| self.known(address).is_some();
        let mut meeting = None;
        let begin = |address| {
            meeting = self.meetings.answer(address, || known(address));
            meeting.is_some()
        };
        let met = self.met(|admit| Peer::answer(socket, &self.own(), begin, admit));
        // One that this one asks as well: it would be waited for once more for each QP. Who waits for the meeting to be over sees it.
        if matches!(met, Err(Refusal::Silent | Refusal::Full))
            && let Some(meeting) = &meeting
        {
            self.shunned.add(meeting.address());
        }
        drop(meeting);
        if !matches!(met, Err(Refusal::Crossed)) {
            self.counted(met);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{SendFlags, SocketFlags, accept_with, bind, connect, listen, recv, send};

    use crate::direct::hub::watch::tests::two;
    use crate::direct::lane::Lane;
    use crate::direct::peer::{CROSSED, Own, greet};
    use crate::direct::socket::{name_of, seqpacket};
    use crate::direct::table::Table;

    use super::*;

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

    /// Who waits to ask it looks as soon as the meeting is over.
    #[test]
    fn who_is_silent_is_shunned_before_the_meeting_is_over() {
        let (hub, _, _) = two(241);
        let silent =
            IpAddr::from([127, 242, (std::process::id() >> 8) as u8, std::process::id() as u8]);
        let (table, bell) = (Table::new().unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let socket = seqpacket().unwrap();
        connect(&socket, &name_of(hub.own).unwrap()).unwrap();
        let own = Own { table: &table, address: silent, bell: &bell };
        greet(&socket, &own, Lane::new().unwrap().1).unwrap();
        let heard = || recv(&socket, &mut [0; 64], rustix::net::RecvFlags::empty()).unwrap().0;
        assert!(heard() > 0);
        // It goes no further than to hang up.
        let peers = hub.peers();
        assert_eq!(heard(), 0);
        let asks = || hub.meetings.ask(silent, Instant::now(), || None::<()>);
        assert!(asks().is_err());
        drop(peers);
        while asks().is_err() {
            std::thread::yield_now();
        }
        assert!(hub.shunned.has(silent));
    }
}
