//! What a core does to know whether those that its VQPs are connected to are there.

use alloc::vec::Vec;
use core::num::NonZeroU16;

use elver_control::{ControlAddr, NodeRecord, Request};
use elver_verbs::{Device, Time};

use super::watch::{Facts, SAMPLES, Samples, Step};
use super::{Failing, Loss, NodeKey, Watched};
use crate::VqpId;
use crate::vqp::Vqp;
use crate::{ConnectError, Core};

/// Peers that are looked at in one poll, at most; the others have their turn at the next look.
const LOOKS_MAX: usize = 256;
/// VQPs that are taken in at one look, at most; those that have gone again do not count.
const NEWCOMERS_MAX: usize = 1_024;
/// VQPs that fail in one poll, at most.
const FAILS_MAX: usize = 64;

impl<D: Device> Core<D> {
    /// Looks at the peers of VQPs that are due. Whether there was anything to do.
    #[inline]
    pub(crate) fn attend_keep_alive(&mut self, now: Time) -> bool {
        self.keep_alive.is_due(now) && self.keep_alive_due(now)
    }

    #[cold]
    fn keep_alive_due(&mut self, now: Time) -> bool {
        let looks = self.keep_alive.tick(now, self.arrivals.heard.until());
        if looks {
            self.look_at_peers(now);
        }
        let busy = self.fail_lost(now) || looks;
        self.keep_alive.attended();
        busy
    }

    fn look_at_peers(&mut self, now: Time) {
        let mut enrolled = 0;
        for _ in 0..self.keep_alive.newcomers() {
            if enrolled == NEWCOMERS_MAX {
                break;
            }
            if let Some(vqp) = self.keep_alive.next_newcomer() {
                enrolled += usize::from(self.enroll(vqp));
            }
        }
        for _ in 0..LOOKS_MAX {
            let Some(key) = self.keep_alive.next_due() else { break };
            let facts = self.facts_of(key);
            match self.keep_alive.look(key, &facts, &mut self.rng) {
                Step::Rest => {}
                Step::Ask { id, ports, .. } if facts.own => {
                    let bound = self.clients.bindings(ports);
                    self.peer_answered((key.peer, self.record.control_qpn), id, true, &bound);
                }
                Step::Ask { to, id, ports, late } => {
                    self.stats.peers_asked += 1;
                    let request = Request::Alive { qkey: self.record.control_qkey(), ports };
                    self.links.control.ask_once(to, id, request);
                    if late
                        && !self.discovery.is_meta_server(key.peer)
                        && self.peers.may_refresh(key.peer, now)
                    {
                        self.refresh_node(key.peer, now);
                    }
                }
                Step::LookUp => {
                    if self.peers.may_refresh(key.peer, now) {
                        self.refresh_node(key.peer, now);
                    }
                }
                Step::GiveUp => self.give_up(key),
            }
        }
        self.keep_alive.looked();
    }

    /// A VQP was connected some time ago: from now on it is looked after, if it still is. Whether that begins.
    fn enroll(&mut self, id: VqpId) -> bool {
        // It may have gone since, or be connected no longer.
        let Some(vqp) = self.vqps.get_mut(id).filter(|vqp| vqp.newcomer) else {
            self.keep_alive.pass_over();
            return false;
        };
        vqp.newcomer = false;
        let Some(peer) = vqp.peer else { return false };
        if !vqp.phase.is_connected() || vqp.is_watched() {
            return false;
        }
        if vqp.watched == Watched::Unknown {
            let tag = self.peers.get(peer).and_then(|entry| entry.tag);
            // It has an RC QP that its peer asked for, and nothing is known of that yet.
            let Some(tag) = tag else {
                vqp.newcomer = true;
                self.keep_alive.connected(id);
                return false;
            };
            vqp.peer_tag = tag;
        }
        // Who has sent messages there is told by the peer when their receiver goes.
        let asks =
            vqp.peer_vqp.get().is_none() && vqp.peer_port.is_some() && !vqp.sq.has_sent_messages();
        vqp.watched = if asks { Watched::Port } else { Watched::Node };
        let (key, port) = (NodeKey { peer, tag: vqp.peer_tag }, vqp.watched_port());
        self.keep_alive.enroll(key, id, port);
        true
    }

    fn facts_of(&self, key: NodeKey) -> Facts {
        let Some(entry) = self.peers.get(key.peer) else {
            bug!("a peer that VQPs are connected to is gone");
            return Facts { to: None, refuted: true, own: false, samples: Samples::default() };
        };
        let of_key = |record: &NodeRecord| record.tag() == key.tag;
        let record = [entry.last, entry.before].into_iter().flatten().find(of_key);
        let to = record.map(|record| ControlAddr {
            gid: entry.gid,
            qpn: record.control_qpn,
            qkey: record.control_qkey(),
        });
        let refuted = match entry.record {
            Some(record) => record.tag() != key.tag,
            None => entry.doubted,
        };
        let mut samples = Samples::default();
        // What it has done as another says nothing of it.
        if entry.tag == Some(key.tag) {
            let counts = |vqp: &Vqp| vqp.watched_node() == Some(key) && vqp.phase.is_connected();
            let vqps = self.vqps_to(key.peer).take(SAMPLES).filter(|(_, vqp)| counts(vqp));
            for (into, (id, vqp)) in samples.iter_mut().zip(vqps) {
                // Receives of one that is bound are taken by anybody's messages.
                let received = if vqp.bound.is_some() { 0 } else { vqp.rq.head.bits() };
                *into = Some((id, vqp.sq.done.bits().wrapping_add(received)));
            }
        }
        Facts { to, refuted, own: entry.gid == self.gid, samples }
    }

    /// A peer does not answer: all VQPs fail that are connected to what it was.
    fn give_up(&mut self, key: NodeKey) {
        self.stats.peers_given_up += 1;
        let is_same = self.peers.get(key.peer).is_some_and(|entry| entry.tag == Some(key.tag));
        let loss = if is_same { Loss::Silent } else { Loss::Past };
        let lost: Vec<Failing> = self
            .vqps_to(key.peer)
            .filter(|(_, vqp)| vqp.watched_node() == Some(key))
            .map(|(id, vqp)| Failing { vqp: id, nonce: vqp.nonce, loss })
            .collect();
        self.keep_alive.fail_all(lost.into_iter());
        // What a meta server is this node does not have from look-ups.
        if is_same && !self.discovery.is_meta_server(key.peer) {
            self.doubt(key.peer);
        }
    }

    /// Fails VQPs whose peers have gone.
    fn fail_lost(&mut self, now: Time) -> bool {
        let mut busy = false;
        for _ in 0..FAILS_MAX {
            let Some(Failing { vqp: id, nonce, loss }) = self.keep_alive.next_failing() else {
                break;
            };
            busy = true;
            // It may have failed for something else meanwhile, or be connected anew.
            let Some(vqp) = self.vqps.get(id) else { continue };
            if vqp.nonce != nonce || !vqp.phase.is_connected() {
                continue;
            }
            // Its messages have a VQP of their own there by now, which may stay when the port is given up, and
            // of whose end it is told.
            if loss == Loss::Port && vqp.sq.has_sent_messages() {
                continue;
            }
            let gid = vqp.peer.map(|peer| self.peers.gid_of(peer)).unwrap_or_default();
            let cause = match loss {
                Loss::Silent => ConnectError::Silent { gid, for_ns: self.config.keep_alive_ns },
                Loss::Past | Loss::Port => ConnectError::PeerGone { gid },
            };
            self.stats.vqps_forsaken += 1;
            self.fail_for(id, cause, now);
        }
        busy
    }
}

impl Vqp {
    fn is_watched(&self) -> bool {
        matches!(self.watched, Watched::Node | Watched::Port)
    }

    /// The port whose owner is asked about for it.
    pub(crate) fn watched_port(&self) -> Option<NonZeroU16> {
        self.peer_port.filter(|_| self.watched == Watched::Port)
    }

    /// The node that it is connected to, if that is looked at for it.
    pub(crate) fn watched_node(&self) -> Option<NodeKey> {
        self.is_watched().then_some(NodeKey { peer: self.peer?, tag: self.peer_tag })
    }
}
