//! Packets to and from the peers of this process by lanes, past the device's link.

use std::net::IpAddr;
use std::sync::Arc;

use elver_soft::{Bypass, Carried};

use super::hub::Hub;
use super::lane::Sent;
use super::peer::Peer;
use super::table::before_looking_whether_he_sleeps;

/// A peer, and how far this process is with its lanes.
struct End {
    peer: Arc<Peer>,
    sent: Sent,
    taken: u64,
    /// What was taken that the peer was not told of.
    untold: bool,
    /// Something was sent since he was last looked at.
    rings: bool,
    /// The hub does not know it any more: what it sent before is taken.
    gone: bool,
    /// It wrote what is no packet: nothing more is taken.
    broken: bool,
}

/// The lanes of all peers.
pub(crate) struct Beside {
    hub: Arc<Hub>,
    /// The hub's list, as of this version.
    ends: Vec<End>,
    version: u64,
    /// Who was sent to last, and whose turn it is to be taken from.
    last: usize,
    turn: usize,
    any_rings: bool,
}

impl Beside {
    pub(crate) fn new(hub: Arc<Hub>) -> Beside {
        Beside { hub, ends: Vec::new(), version: 0, last: 0, turn: 0, any_rings: false }
    }

    /// Learns of peers that came and went.
    #[inline]
    fn refresh(&mut self) {
        if self.hub.version() != self.version {
            self.learn();
        }
    }

    #[cold]
    fn learn(&mut self) {
        self.version = self.hub.version();
        let known = self.hub.all();
        for end in &mut self.ends {
            end.gone = !known.iter().any(|peer| Arc::ptr_eq(peer, &end.peer));
        }
        let speaks = |end: &End| !end.broken && end.peer.lane_view.has_more(end.taken);
        self.ends.retain(|end| !end.gone || speaks(end));
        for peer in known {
            if !self.ends.iter().any(|end| Arc::ptr_eq(&end.peer, &peer)) {
                let sent = Sent::default();
                self.ends.push(End {
                    peer,
                    sent,
                    taken: 0,
                    untold: false,
                    rings: false,
                    gone: false,
                    broken: false,
                });
            }
        }
    }

    fn to(&self, address: IpAddr) -> Option<usize> {
        let is_it = |end: &End| end.peer.address == address && !end.peer.is_closed();
        if self.ends.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        self.ends.iter().position(is_it)
    }
}

impl Bypass for Beside {
    #[inline]
    fn carry(&mut self, to: IpAddr, traffic_class: u8, packet: &[u8]) -> Carried {
        self.refresh();
        let Some(at) = self.to(to) else { return Carried::ByLink };
        self.last = at;
        let End { peer, sent, rings, .. } = &mut self.ends[at];
        match peer.lane.send(sent, &peer.lane_view, traffic_class, packet) {
            Ok(()) => {
                (*rings, self.any_rings) = (true, true);
                Carried::Taken
            }
            Err(_) => Carried::Lost,
        }
    }

    #[inline]
    fn ring(&mut self) {
        if !std::mem::take(&mut self.any_rings) {
            return;
        }
        before_looking_whether_he_sleeps();
        for end in &mut self.ends {
            if std::mem::take(&mut end.rings) && end.peer.view.sleeps() {
                end.peer.ring();
            }
        }
    }

    #[inline]
    fn has_peers(&mut self) -> bool {
        self.refresh();
        !self.ends.is_empty()
    }

    #[inline]
    fn has_more(&mut self) -> bool {
        self.refresh();
        self.ends.iter().any(|end| !end.broken && end.peer.lane_view.has_more(end.taken))
    }

    #[inline]
    fn take(&mut self, buf: &mut [u8]) -> Option<(IpAddr, u8, usize)> {
        let mut looked = 0;
        while looked < self.ends.len() {
            let at = (self.turn + looked) % self.ends.len();
            let end = &mut self.ends[at];
            let taken = match end.broken {
                true => Ok(None),
                false => end.peer.lane_view.take(&mut end.taken, buf),
            };
            match taken {
                Ok(Some((length, class))) => {
                    end.untold = true;
                    self.turn = at;
                    return Some((end.peer.address, class, length));
                }
                Ok(None) if end.gone => drop(self.ends.swap_remove(at)),
                Ok(None) => looked += 1,
                Err(_) => {
                    end.peer.close();
                    end.broken = true;
                }
            }
        }
        None
    }

    #[inline]
    fn took(&mut self) {
        // Another has the first turn when there is more.
        self.turn = self.turn.wrapping_add(1) % self.ends.len().max(1);
        for end in &mut self.ends {
            if std::mem::take(&mut end.untold) {
                end.peer.lane.took(end.taken);
            }
        }
    }
}
