//! Takes requests, or has their senders looked up first.

use alloc::vec::Vec;

use elver_control::{ControlAddr, Request};
use elver_verbs::{Device, Gid, Time};

use super::Held;
use crate::Core;
use crate::ids::PeerId;

impl<D: Device> Core<D> {
    /// A request came: it is served, or waits until its sender is known.
    pub(crate) fn take_request(
        &mut self,
        (gid, qpn): (Gid, u32),
        id: u64,
        request: Request,
        now: Time,
    ) {
        match self.asker(gid, qpn, &request, now) {
            Some(from) => {
                if let Some(served) = self.links.control.handle_request(from, id, request) {
                    self.serve(served, now);
                }
            }
            None => self.hold_stranger(Held { gid, qpn, id, request }, now),
        }
    }

    /// Where the node that sends from this address takes its answers, if it is one that is known.
    fn asker(&mut self, gid: Gid, qpn: u32, request: &Request, now: Time) -> Option<ControlAddr> {
        if let Some(record) = self.served_record(gid)
            && let Some(peer) = self.peer_of(gid)
        {
            self.learn(peer, record, now);
        }
        let peer = self.peers.find(&gid)?;
        // Of a link that there is, one that is said to be gone may ask too.
        let of_link = matches!(request, Request::RcClose { .. } | Request::RcFate { .. });
        let known = of_link || self.peers.get(peer)?.record.is_some();
        self.peers.control_addr(peer).filter(|addr| known && addr.qpn == qpn)
    }

    fn hold_stranger(&mut self, request: Held, now: Time) {
        if self.links.strangers.holds(&request) {
            return;
        }
        self.stats.control_strangers += 1;
        let known = self.peers.find(&request.gid);
        let looked_up = self.links.strangers.has_room(request.gid)
            && match known {
                Some(peer) => self.peers.may_refresh(peer, now),
                None => self.links.strangers.spend(now),
            };
        let peer = if looked_up { self.peer_of(request.gid) } else { None };
        let Some(peer) = peer else {
            self.stats.control_denied += 1;
            return;
        };
        self.links.strangers.held.push(request);
        self.look_up_asker(peer, now);
    }

    /// The look-up of a node has ended: its requests are served if it is who they said, and nothing
    /// of them is left if not.
    pub(crate) fn serve_strangers(&mut self, peer: PeerId, now: Time) {
        let Some(gid) = self.peers.get(peer).map(|entry| entry.gid) else {
            return bug!("a peer that was looked up is gone");
        };
        let held = &mut self.links.strangers.held;
        let found: Vec<Held> = held.extract_if(.., |held| held.gid == gid).collect();
        let asked = !found.is_empty();
        for Held { qpn, id, request, .. } in found {
            match self.asker(gid, qpn, &request, now) {
                Some(from) => {
                    if let Some(served) = self.links.control.handle_request(from, id, request) {
                        self.serve(served, now);
                    }
                }
                None => self.stats.control_denied += 1,
            }
        }
        if asked && let Some(Some(ah)) = self.peers.forget_stranger(peer) {
            // It fails only if it is no handle, and then there is nothing to free.
            let _ = self.device.destroy_ah(ah);
        }
    }
}
