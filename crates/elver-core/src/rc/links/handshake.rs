//! The handshake: from a request, ours or the peer's, to a link that takes WRs.

use elver_control::{Answer, ControlAddr, RcEnd, Refusal, Request, Served, Shortage, Ticket};
use elver_verbs::{
    Class, Device, Payload, Qp, QpState, RemoteAddr, SendFlags, SendOp, SendWr, Time, VerbsError,
    WcStatus,
};

use crate::datapath::recovery::Verdict;
use crate::datapath::wr_id::WrId;
use crate::ids::{LaneIx, LinkId};
use crate::pool::lane::LaneKind;
use crate::rc::link::{LinkState, PeerEnd, Purpose};
use crate::rc::links::{CallFor, GREETING};
use crate::rc::path::Path;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// Takes a link's QP to `state`, with what the peer said of its end.
    fn connect_link(&mut self, link: LinkId, end: RcEnd, until: QpState) -> Result<(), VerbsError> {
        let gone = VerbsError::InvalidArgument { what: "the RC QP is gone" };
        let entry = self.links.rc.get_mut(link).ok_or(gone.clone())?;
        let mtu = self.pool.mtu.min(end.mtu);
        entry.peer_end = Some(PeerEnd { qpn: end.qpn, rd_atomic: end.rd_atomic, mtu });
        let (qp, psn) = (entry.qp, entry.psn);
        let gid = self.peers.get(entry.peer).ok_or(gone)?.gid;
        let mut attr = self.pool.qp_attr(&self.config, gid);
        attr.path_mtu = mtu;
        attr.max_rd_atomic = attr.max_rd_atomic.min(end.rd_atomic);
        (attr.dest_qp_num, attr.rq_psn, attr.sq_psn) = (end.qpn, end.psn, psn);
        for state in [QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            self.device.advance_qp(qp, &attr)?;
            if state == until {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn link_answered(
        &mut self,
        id: LinkId,
        qpn: u32,
        to: ControlAddr,
        answer: Option<Answer>,
        now: Time,
    ) {
        let Some(link) = self.links.rc.get(id) else {
            // Nobody needs it any longer: the peer's end goes too.
            if let Some(Answer::Accepted(end)) = answer {
                let request = Request::RcClose { qpn: end.qpn, peer_qpn: qpn };
                self.call(to, request, CallFor::Close { link: id }, now);
            }
            return;
        };
        match answer {
            Some(Answer::Accepted(end)) if link.state == LinkState::Asking => {
                if self.connect_link(id, end, QpState::Rts).is_ok() {
                    self.link_ready(id, now);
                } else {
                    // The peer has an end that nobody will use.
                    self.ask_close(id, now);
                }
            }
            Some(Answer::Refused(refusal)) => self.link_failed(id, Some(refusal), now),
            Some(_) => self.link_failed(id, None, now),
            None => {
                let peer = link.peer;
                self.doubt(peer);
                self.link_failed(id, None, now);
            }
        }
    }

    /// A link that a peer was asked for does not come: it refused, or did not answer.
    fn link_failed(&mut self, id: LinkId, refusal: Option<Refusal>, now: Time) {
        let Some(link) = self.links.rc.get(id) else { return bug!("a link that is gone fails") };
        let (peer, class, purpose) = (link.peer, link.class, link.purpose);
        self.stats.links_failed += 1;
        let gid = self.peers.gid_of(peer);
        let error = match refusal {
            // The peer's own request brings the link.
            Some(Refusal::Crossed) => {
                if purpose == Purpose::Meta {
                    self.links.await_meta_link(now);
                }
                return self.drop_link(id, now);
            }
            // It has as many of ours as one may have, and some of them go: then, or by and by, the next one is asked for,
            // and not before. A node that asks itself is refused as fast as it asks.
            Some(Refusal::Short { of: Shortage::Share, .. })
                if purpose == Purpose::Pool && self.links.rc.is_one_ending(peer) =>
            {
                self.drop_link(id, now);
                return self.start_lookups(now);
            }
            Some(Refusal::Short { of, used, limit }) => {
                ConnectError::NoRcQp { gid, here: false, of, used, limit }
            }
            None => ConnectError::Unreachable { gid },
        };
        match purpose {
            Purpose::Leased(Some(vqp)) => self.lease_ended(vqp, id, Err(error), now),
            Purpose::Reader | Purpose::Leased(None) => {}
            Purpose::Pool | Purpose::Meta => self.waiters_fail(peer, class, &error, now),
        }
        self.drop_link(id, now);
        // Look-ups that waited for a link to a meta server do not any longer.
        self.start_lookups(now);
    }

    /// A link works: those that wait for it go on, and VQPs of its class move to it.
    fn link_ready(&mut self, id: LinkId, now: Time) {
        let Some(link) = self.links.rc.get_mut(id) else {
            return bug!("a link that is gone works");
        };
        let Some(PeerEnd { mtu, .. }) = link.peer_end else {
            return bug!("a link works that is not connected");
        };
        link.state = LinkState::Ready;
        let (peer, class, purpose) = (link.peer, link.class, link.purpose);
        let (qp, depth) = (link.qp, link.depth);
        let path = Path::new(link.psn, mtu, self.config.max_sge);
        if purpose.only_serves() {
            return;
        }
        let lane = self.lanes.add_rc(qp, depth, peer, path);
        self.links.rc.set_lane(id, lane);
        self.stats.links_made += 1;
        if let Purpose::Leased(Some(vqp)) = purpose {
            self.greet(id);
            return self.lease_ended(vqp, id, Ok(lane), now);
        }
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.rc[class as usize] = Some(lane);
        }
        self.greet(id);
        self.waiters_go_on(peer, class, now);
        self.move_onto_link(peer, class);
        self.start_lookups(now);
    }

    /// Makes a first packet go over a link, a WRITE of nothing: the peer uses its end only then.
    fn greet(&mut self, id: LinkId) {
        let Some(link) = self.links.rc.get(id) else { return bug!("a link that is gone greets") };
        let Some(lane) = link.lane else { return bug!("a link that has no lane greets") };
        let wr = SendWr {
            wr_id: WrId::Control(GREETING | lane.0).encode(),
            op: SendOp::Write(RemoteAddr { addr: 0, rkey: 0 }),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[]),
            dest: None,
        };
        if self.device.post_send(link.qp, &[wr]).is_err() {
            self.stats.device_refusals += 1;
            return;
        }
        let lane = &mut self.lanes.lanes[lane];
        lane.uncompleted += 1;
        match &mut lane.path {
            Some(path) => path.advance(1),
            None => bug!("a link's lane is none of an RC QP"),
        }
        self.lanes.qps[lane.qp].posted += 1;
    }

    pub(super) fn greeted(&mut self, lane: LaneIx, status: WcStatus, now: Time) {
        if let LaneKind::Rc { peer } = self.lanes.lanes[lane].kind
            && status != WcStatus::Success
            && self.lane_failed(lane, status, (peer, None), now) == Verdict::Unsure
        {
            return self.hold_flushed(lane, WrId::Control(GREETING | lane.0), 1);
        }
        self.account(lane, 1);
        self.try_restart(lane, now);
    }

    /// The first packet came over an RC QP in RTR: the peer has finished the handshake.
    pub(super) fn link_heard(&mut self, qp: Qp, now: Time) {
        let found = self.links.rc.by_qp(qp);
        let Some((id, link)) = found.filter(|(_, link)| link.state == LinkState::Listening) else {
            return;
        };
        let Some(PeerEnd { rd_atomic: served, .. }) = link.peer_end else {
            return bug!("a link is heard that is not connected");
        };
        let psn = link.psn;
        let mut attr = self.pool.qp_attr(&self.config, Default::default());
        (attr.qp_state, attr.sq_psn) = (QpState::Rts, psn);
        attr.max_rd_atomic = attr.max_rd_atomic.min(served);
        match self.device.advance_qp(qp, &attr) {
            Ok(()) => self.link_ready(id, now),
            // A bad request of the peer's came right behind.
            Err(_) if self.is_errored(qp) => self.link_errored(qp, now),
            Err(_) => self.stats.device_refusals += 1,
        }
    }

    fn is_errored(&self, qp: Qp) -> bool {
        self.device.query_qp(qp).is_ok_and(|(attr, _)| attr.qp_state == QpState::Err)
    }

    /// A link's QP went to its error state, perhaps with nothing of ours on it.
    pub(crate) fn link_errored(&mut self, qp: Qp, now: Time) {
        // Other QPs fail too, and a link may be gone when its device tells.
        let Some((id, link)) = self.links.rc.by_qp(qp) else { return };
        let used = matches!(link.state, LinkState::Ready | LinkState::Listening);
        self.ask_fate(id, now);
        if used {
            self.leave(id, None, now);
        }
    }

    /// Answers a request of another node's, which is known.
    pub(crate) fn serve(&mut self, served: Served, now: Time) {
        let Served { ticket, request } = served;
        match request {
            Request::Meta => {
                let answer = Answer::Record(self.record);
                self.links.control.answer(ticket, answer, now);
            }
            Request::RcConnect { end, class, leased } => {
                let answer = match self.serve_connect(ticket, end, class, leased, now) {
                    Ok(end) => Answer::Accepted(end),
                    Err(Refusal::Short { of: Shortage::Pool, .. })
                        if self.hold_request(served, now) =>
                    {
                        return;
                    }
                    Err(refusal) => Answer::Refused(refusal),
                };
                self.links.control.answer(ticket, answer, now);
            }
            Request::Alive { .. } => {
                bug!("who asks whether this node is there is answered at once")
            }
            Request::RcClose { qpn, peer_qpn } => self.serve_close(ticket, qpn, peer_qpn, now),
            Request::RcFate { qpn, peer_qpn, psn } => {
                match self.link_between(ticket, qpn, peer_qpn) {
                    Some((id, link)) if link.state == LinkState::Asking => {
                        self.link_failed(id, None, now);
                        self.links.control.answer(ticket, Answer::Fate(None), now);
                    }
                    _ => self.serve_fate(ticket, (qpn, peer_qpn), psn, now),
                }
            }
        }
    }

    fn serve_connect(
        &mut self,
        ticket: Ticket,
        end: RcEnd,
        class: Class,
        leased: bool,
        now: Time,
    ) -> Result<RcEnd, Refusal> {
        let short = |(of, used, limit)| Refusal::Short { of, used, limit };
        let peers = (Shortage::Peers, self.peers.slots.len(), self.config.max_peers);
        let peer = self.peer_of(ticket.from.gid).ok_or(short(peers))?;
        let (looked_up_at, looks_up_at) = match class {
            Class::Low => (self.is_looked_up_at_by(peer), self.looks_up_over_rc_at(peer)),
            Class::High => (false, false),
        };
        let purpose = match leased {
            true => Purpose::Leased(None),
            false if looked_up_at => Purpose::Reader,
            false => Purpose::Pool,
        };
        // Of two requests that cross, the one of the lower GID goes first; a node's to itself do not, nor do those
        // to meta servers, which send nothing over their ends.
        let crosses = purpose == Purpose::Pool && !looks_up_at && self.gid != ticket.from.gid;
        let asking = self.links.rc.find(peer, class);
        let asking = asking.filter(|(_, link)| crosses && link.state == LinkState::Asking);
        let crossed = asking.map(|(id, link)| (id, link.purpose));
        if crossed.is_some() && self.gid < ticket.from.gid {
            return Err(Refusal::Crossed);
        }
        if let Some((used, limit)) = self.links.rc.share_used(peer, purpose) {
            return Err(Refusal::Short { of: Shortage::Share, used, limit });
        }
        let mut shortage = self.links.rc.shortage(purpose, 0);
        if let (Some(_), Some((own, Purpose::Pool))) = (shortage, crossed) {
            // The peer refuses ours, whose place its takes.
            self.drop_link(own, now);
            shortage = self.links.rc.shortage(purpose, 0);
        }
        if let Some(shortage) = shortage {
            return Err(short(shortage));
        }
        let made = self.make_link(peer, ticket.from, class, purpose, LinkState::Listening, now);
        let link = made.map_err(short)?;
        let connected = self.connect_link(link, end, QpState::Rtr).is_ok();
        let Some(own) = self.link_end(link).filter(|_| connected) else {
            self.drop_link(link, now);
            return Err(short((Shortage::Device, self.links.rc.len(), self.pool.attr.max_qp)));
        };
        self.links.sweep_soon(now);
        Ok(own)
    }

    fn serve_close(&mut self, ticket: Ticket, qpn: u32, peer_qpn: u32, now: Time) {
        let found = self.link_between(ticket, qpn, peer_qpn);
        match found.map(|(id, link)| (id, link.state)) {
            Some((id, LinkState::Ready | LinkState::Listening)) => {
                self.leave(id, Some(ticket), now);
            }
            Some((id, LinkState::Leaving(None))) => {
                self.links.rc.set_leaving(id, Some(ticket));
            }
            // The peer gave up the end that it made; its answer, which is under way, means nothing.
            Some((id, LinkState::Asking)) => {
                self.link_failed(id, None, now);
                self.links.control.answer(ticket, Answer::Closed, now);
            }
            // Nothing of ours is on it, and the answer to our own request ends it.
            _ => self.links.control.answer(ticket, Answer::Closed, now),
        }
    }
}
