//! What a peer is, where those who tell of it disagree.
//!
//! A node that starts anew has another record. The registry tells of that in order, tables may have it
//! before or after, and each of them comes late. So what a peer was before is not believed again
//! ([`crate::discovery::peer::Peer::news`]), unless that one answers when it is asked: what was taken
//! for news was the late one then.

use elver_control::{Answer, ControlAddr, NodeRecord, Request};
use elver_verbs::{Device, Time};

use super::CallFor;
use crate::Core;
use crate::ids::PeerId;
use crate::rc::back_off::BackOff;

impl<D: Device> Core<D> {
    /// Takes over what a peer's record is now. If it is another one the peer has started anew, and
    /// knows nothing of our links.
    pub(crate) fn learn(&mut self, peer: PeerId, told: NodeRecord, now: Time) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is gone is told of");
        };
        let record = entry.news(told);
        if entry.gid != self.gid && entry.record != Some(record) {
            let anew = entry.hear(record);
            entry.set_record(Some(record));
            entry.back_off = BackOff::default();
            if anew {
                self.forget_regions(peer);
                self.leave_links_to(peer, Some(record), now);
            }
        }
        if told != record {
            self.ask_past(peer, now);
        }
    }

    /// Somebody tells of a peer what it was before: asks that one, once for all who do.
    pub(crate) fn ask_past(&mut self, peer: PeerId, now: Time) {
        let Some(entry) = self.peers.get(peer) else {
            return bug!("a peer that is gone is asked");
        };
        let Some(before) = entry.before.filter(|_| !entry.asked_past) else { return };
        let to =
            ControlAddr { gid: entry.gid, qpn: before.control_qpn, qkey: before.control_qkey() };
        let asked = self.call(to, Request::Meta, CallFor::Past { peer }, now).is_some();
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.asked_past = asked;
        }
    }

    /// What a peer was before has answered, or has not.
    pub(super) fn past_answered(&mut self, peer: PeerId, answer: Option<Answer>, now: Time) {
        // It may have been forgotten meanwhile, being used by nobody.
        let Some(entry) = self.peers.get_mut(peer) else { return };
        entry.asked_past = false;
        if let Some(Answer::Record(record)) = answer
            && entry.before == Some(record)
        {
            entry.before = None;
            self.stats.peers_past_again += 1;
            self.learn(peer, record, now);
        }
    }
}
