//! RC QPs between two nodes, from the handshake over UD to their end (sections 4.2 and 4.3).
//!
//! ```text
//!   asks:      Asking ──Accepted──► Ready ──► Leaving ──► Closing ──Closed──► gone
//!   is asked:  Listening ──first packet──► Ready ──► Leaving ──► gone, answers Closed
//! ```
//!
//! Either side may close a link. It first takes its own VQPs off and lets their work end, then asks
//! the other to do the same; the answer says that nothing of either side is under way any more.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{
    AsyncEvent, Device, Payload, Qp, QpCap, QpInit, QpState, QpType, RemoteAddr, SendFlags, SendOp,
    SendWr, Time, VerbsError, Wc, WcStatus,
};

use crate::control::{
    Answer, Control, ControlAddr, ControlConfig, RcEnd, Refusal, Request, Served, Ticket,
};
use crate::lane::{LaneKind, RESERVED};
use crate::peer::{PeerLookup, Waiter};
use crate::rc::{LinkState, Purpose, RcLink, RcPool};
use crate::ring::NONE;
use crate::slots::{SLOTS_MAX, Slots};
use crate::ud::Ud;
use crate::wr_id::WrId;
use crate::{Class, Config, ConnectError, Core, NodeRecord, Via, VqpState};

/// How often what has no moment of its own is looked after, in nanoseconds.
const SWEEP_NS: u64 = 50_000_000;
/// A link that a peer asked for and never used is closed after this long, and a connect that waits
/// for a link is given up.
const SILENCE_NS: u64 = 4_000_000_000;
/// Marks the completion of a greeting among those of the UD QP; the rest is the lane.
const GREETING: u32 = 1 << 31;
/// Answers kept for requests that come again.
const REPLIES_MAX: usize = 4_096;

/// A node's RC QPs, and what it needs to agree on them with others.
#[derive(Debug)]
pub(crate) struct Links<M> {
    pub(crate) control: Control,
    pub(crate) ud: Ud<M>,
    pub(crate) rc: RcPool,
    calls: Slots<CallFor>,
    /// Connects that wait for a link.
    waiters: Vec<LinkWaiter>,
    /// Peers to which a link must be made as soon as there is room.
    wanted: VecDeque<(u32, Class)>,
    /// Peers that became hot.
    pub(crate) hot: VecDeque<(u32, Class)>,
    /// Links whose VQPs leave.
    leaving: Vec<u32>,
    /// Links of single VQPs that are not needed any longer.
    pub(crate) ended_leases: Vec<u32>,
    /// VQPs that move, in no order; see [`Core::transfer`].
    pub(crate) moving: Vec<u32>,
    sweep: Option<Time>,
}

/// What a request of ours is for.
#[derive(Clone, Copy, Debug)]
enum CallFor {
    Connect { link: u32 },
    Close { link: u32 },
    Meta { peer: u32 },
}

/// A VQP whose `qconnect` waits for a link.
#[derive(Clone, Copy, Debug)]
struct LinkWaiter {
    vqp: u32,
    attempt: u32,
    peer: u32,
    class: Class,
    until: Time,
}

impl<M: elver_verbs::Memory> Links<M> {
    pub(crate) fn new(config: &Config, ud: Ud<M>) -> Links<M> {
        let handshakes = config.storm.handshakes_max as usize;
        let control = Control::new(ControlConfig {
            calls_max: handshakes,
            waiting_max: config.storm.connects_waiting_max as usize,
            serving_max: handshakes,
            replies_max: REPLIES_MAX,
        });
        Links {
            control,
            ud,
            rc: RcPool::new(config.transfer.clone()),
            calls: Slots::new(SLOTS_MAX),
            waiters: Vec::new(),
            wanted: VecDeque::new(),
            hot: VecDeque::new(),
            leaving: Vec::new(),
            ended_leases: Vec::new(),
            moving: Vec::new(),
            sweep: None,
        }
    }

    /// When something is due next.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.sweep.into_iter().chain(self.control.poll_timeout()).min()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rc.bytes() + self.calls.bytes()
    }
}

impl<D: Device> Core<D> {
    /// Does what links need: once a poll. Returns whether anything happened.
    pub(crate) fn attend_links(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(event) = self.device.poll_async_event() {
            match event {
                AsyncEvent::CommEst(qp) => self.link_heard(qp, now),
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpReqErr(qp)
                | AsyncEvent::QpAccessErr(qp) => self.link_errored(qp, now),
                _ => {}
            }
            busy = true;
        }
        if self.links.control.poll_timeout().is_some_and(|due| due <= now) {
            self.links.control.handle_timeout(&mut self.rng, now);
        }
        while let Some((peer, class)) = self.links.hot.pop_front() {
            self.warm_link(peer, class, now);
        }
        while let Some(done) = self.links.control.poll_done() {
            self.call_ended(done.token, done.answer, now);
            busy = true;
        }
        for link in core::mem::take(&mut self.links.ended_leases) {
            self.end_lease(link, now);
        }
        if !self.links.moving.is_empty() {
            busy |= self.switch_moving(now);
        }
        if !self.links.leaving.is_empty() {
            self.close_left(now);
        }
        if self.links.sweep.is_some_and(|due| due <= now) {
            self.sweep_links(now);
        }
        while self.links.ud.can_send()
            && let Some((to, message)) = self.links.control.poll_transmit()
        {
            self.links.ud.send(&mut self.device, to, &message);
            busy = true;
        }
        busy
    }

    /// A completion of the UD QP's.
    pub(crate) fn complete_control(&mut self, slot: u32, wc: &Wc, now: Time) {
        if slot & GREETING != 0 {
            return self.greeted(slot & !GREETING, wc.status, now);
        }
        let Some(datagram) = self.links.ud.complete(&mut self.device, slot, wc) else { return };
        let (from, qpn) = (datagram.from, datagram.from_qpn);
        let control = &mut self.links.control;
        if let Some(served) =
            control.handle_datagram(from, qpn, datagram.bytes(), &mut self.rng, now)
        {
            self.serve(served, now);
        }
    }

    /// Whether no meta server can be asked yet, but one can as soon as the link to it is there.
    pub(crate) fn awaits_meta_link(&self) -> bool {
        let asks = |link: &RcLink| {
            link.purpose == Purpose::Meta
                && matches!(link.state, LinkState::Asking | LinkState::Listening)
        };
        self.pool.dct.is_none()
            && self.links.rc.matching(asks).next().is_some()
            && self
                .lookups
                .servers
                .iter()
                .all(|(peer, _)| self.op_lane(*peer, Class::Low).is_none())
    }

    /// A peer became hot: it gets a link in the background, if it has none and there is room. If
    /// there is none the link that was used longest ago makes it, for the next time.
    fn warm_link(&mut self, peer: u32, class: Class, now: Time) {
        let own = self.peers.get(peer).is_none_or(|entry| entry.gid == self.gid);
        if own || self.links.rc.find(peer, class).is_some() {
            return;
        }
        if self.links.rc.has_room(Purpose::Pool, self.config.sq_depth) {
            self.ask_link(peer, class, Purpose::Pool, now);
        } else {
            self.make_room(now);
        }
    }

    /// A connect goes on when there is a link to its peer.
    pub(crate) fn await_link(&mut self, vqp: u32, attempt: u32, peer: u32, now: Time) {
        let class = self.vqps.get(vqp).map_or(Class::Low, |vqp| vqp.class);
        let until = now.saturating_add_ns(SILENCE_NS);
        self.links.waiters.push(LinkWaiter { vqp, attempt, peer, class, until });
        self.need_link(peer, class, now);
        self.sweep_soon(now);
    }

    /// A link to a peer is needed: now, or as soon as there is room.
    pub(crate) fn need_link(&mut self, peer: u32, class: Class, now: Time) {
        if self.links.rc.find(peer, class).is_some() || self.links.wanted.contains(&(peer, class)) {
            return;
        }
        if self.control_addr(peer).is_none() {
            let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
            return self.waiters_fail(peer, class, &ConnectError::Unreachable { gid }, now);
        }
        if self.ask_link(peer, class, Purpose::Pool, now).is_none() {
            self.links.wanted.push_back((peer, class));
            self.make_room(now);
            self.sweep_soon(now);
        }
    }

    /// A connect goes on with an RC QP of its own.
    pub(crate) fn lease_link(&mut self, id: u32, peer: u32, now: Time) {
        let class = self.vqps.get(id).map_or(Class::Low, |vqp| vqp.class);
        let link = self.ask_link(peer, class, Purpose::Leased(Some(id)), now);
        match (link, self.vqps.get_mut(id)) {
            (Some(link), Some(vqp)) => vqp.lease = link,
            _ => self.connect_ended(id, peer, Err(ConnectError::Busy { waiting: 0 }), now),
        }
    }

    /// A VQP's own link works, or will not come.
    fn lease_ended(&mut self, id: u32, link: u32, found: Result<u32, ConnectError>, now: Time) {
        let entry = self.vqps.get_mut(id).filter(|vqp| vqp.lease == link);
        let Some(vqp) = entry.filter(|vqp| vqp.state == VqpState::Connecting) else {
            return self.end_lease(link, now);
        };
        if found.is_err() {
            vqp.lease = 0;
        }
        let peer = self.links.rc.get(link).map_or(NONE, |link| link.peer);
        let found = found.map(|lane| (Via::Leased, Some(lane)));
        self.connect_ended(id, peer, found, now);
    }

    /// The link of a VQP alone is not needed any longer.
    fn end_lease(&mut self, link: u32, now: Time) {
        match self.links.rc.get(link).map(|link| link.state) {
            Some(LinkState::Ready) => self.leave(link, None, now),
            Some(LinkState::Asking) => self.drop_link(link, now),
            _ => {}
        }
    }

    /// Asks a peer for its record (the RPC that KRCORE compares its meta server with), once for all
    /// who wait.
    pub(crate) fn ask_meta(&mut self, peer: u32, waiter: Waiter, now: Time) {
        let to = self.control_addr(peer);
        let Some(entry) = self.peers.get_mut(peer) else { return };
        entry.waiting.push(waiter);
        if entry.lookup != PeerLookup::None {
            return;
        }
        entry.lookup = PeerLookup::Asked;
        let asked = to.is_some_and(|to| self.call(to, Request::Meta, CallFor::Meta { peer }, now));
        if !asked {
            self.node_found(peer, Err(ConnectError::Busy { waiting: self.lookups.waiting }), now);
        }
    }

    /// Where a peer takes control messages, if that is known.
    pub(crate) fn control_addr(&self, peer: u32) -> Option<ControlAddr> {
        let entry = self.peers.get(peer)?;
        let qpn = entry.record.map(|record| record.control_qpn).or(entry.control_qpn)?;
        Some(ControlAddr { gid: entry.gid, qpn })
    }

    fn call(&mut self, to: ControlAddr, request: Request, what: CallFor, now: Time) -> bool {
        let Some(token) = self.links.calls.insert(&mut self.rng, |_| what) else { return false };
        let made = self.links.control.call(to, request, token.into(), &mut self.rng, now);
        if made.is_none() {
            self.links.calls.remove(token);
        }
        made.is_some()
    }

    /// Makes our end of a link and asks the peer for the other. None if there is no room, or nobody
    /// to ask.
    fn ask_link(&mut self, peer: u32, class: Class, purpose: Purpose, now: Time) -> Option<u32> {
        let to = self.control_addr(peer)?;
        let link = self.make_link(peer, class, purpose, LinkState::Asking, now).ok()?;
        let end = self.link_end(link)?;
        let leased = matches!(purpose, Purpose::Leased(_));
        let request = Request::RcConnect { end, class, leased, record: self.record };
        if !self.call(to, request, CallFor::Connect { link }, now) {
            self.drop_link(link, now);
            return None;
        }
        self.stats.links_asked += 1;
        Some(link)
    }

    /// Makes an RC QP, in INIT.
    fn make_link(
        &mut self,
        peer: u32,
        class: Class,
        purpose: Purpose,
        state: LinkState,
        now: Time,
    ) -> Result<u32, VerbsError> {
        let depth = match purpose {
            Purpose::Pool | Purpose::Meta => self.config.sq_depth,
            Purpose::Leased(Some(vqp)) => {
                let wrs = self.vqps.get(vqp).map_or(0, |vqp| vqp.sq.max());
                (wrs + RESERVED).min(self.config.sq_depth)
            }
            // Nothing is sent on it.
            Purpose::Leased(None) => 1,
        };
        let no_room = VerbsError::InvalidArgument { what: "no room for an RC QP" };
        if !self.links.rc.has_room(purpose, depth) {
            return Err(no_room);
        }
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: 0,
            max_send_sge: self.config.max_sge + 1,
            max_recv_sge: 0,
            max_inline_data: self.pool.max_inline,
        };
        let init = QpInit {
            cap,
            srq: Some(self.pool.srq),
            ..QpInit::new(QpType::Rc, self.pool.pd, self.pool.cq)
        };
        let qp = self.device.create_qp(init)?;
        let mut attr = self.pool.qp_attr(&self.config, Default::default());
        attr.qp_state = QpState::Init;
        let made = self.device.advance_qp(qp, &attr).and_then(|()| self.device.qp_num(qp));
        let qpn = match made {
            Ok(qpn) => qpn,
            Err(error) => {
                self.device.destroy_qp(qp)?;
                return Err(error);
            }
        };
        let link = RcLink {
            qp,
            qpn,
            psn: self.rng.next_u32() >> 8,
            peer_qpn: 0,
            peer,
            class,
            purpose,
            state,
            lane: NONE,
            depth,
            since: now,
        };
        let id = self.links.rc.insert(link, &mut self.rng);
        let id = id.ok_or(no_room)?;
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.pins += 1;
        }
        Ok(id)
    }

    /// Our end of a link, as the peer must know it.
    fn link_end(&self, link: u32) -> Option<RcEnd> {
        let link = self.links.rc.get(link)?;
        Some(RcEnd { qpn: link.qpn, psn: link.psn, mtu: self.pool.mtu })
    }

    /// Takes a link's QP to `state`, with what the peer said of its end.
    fn connect_link(&mut self, link: u32, end: RcEnd, until: QpState) -> Result<(), VerbsError> {
        let gone = VerbsError::InvalidArgument { what: "the RC QP is gone" };
        let entry = self.links.rc.get_mut(link).ok_or(gone.clone())?;
        entry.peer_qpn = end.qpn;
        let (qp, psn) = (entry.qp, entry.psn);
        let gid = self.peers.get(entry.peer).ok_or(gone)?.gid;
        let mut attr = self.pool.qp_attr(&self.config, gid);
        attr.path_mtu = self.pool.mtu.min(end.mtu);
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

    /// A request of ours has ended.
    fn call_ended(&mut self, token: u64, answer: Option<Answer>, now: Time) {
        let Some(what) = self.links.calls.remove(token as u32) else { return };
        match what {
            CallFor::Connect { link } => self.link_answered(link, answer, now),
            CallFor::Close { link } => self.drop_link(link, now),
            CallFor::Meta { peer } => {
                let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
                let found = match answer {
                    Some(Answer::Record(record)) => Ok(record),
                    _ => Err(ConnectError::Unreachable { gid }),
                };
                self.node_found(peer, found, now);
            }
        }
    }

    fn link_answered(&mut self, id: u32, answer: Option<Answer>, now: Time) {
        let Some(link) = self.links.rc.get(id) else {
            return;
        };
        let (peer, class) = (link.peer, link.class);
        if let Some(Answer::Accepted(end)) = answer
            && link.state == LinkState::Asking
        {
            if self.connect_link(id, end, QpState::Rts).is_ok() {
                return self.link_ready(id, now);
            }
            // The peer has an end that nobody will use.
            return self.ask_close(id, now);
        }
        let purpose = link.purpose;
        self.stats.links_failed += 1;
        let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
        let error = match answer {
            // The peer's own request brings the link.
            Some(Answer::Refused(Refusal::Crossed)) => return self.drop_link(id, now),
            Some(Answer::Refused(Refusal::NoRoom)) => ConnectError::Busy { waiting: 0 },
            _ => ConnectError::Unreachable { gid },
        };
        match purpose {
            Purpose::Leased(Some(vqp)) => self.lease_ended(vqp, id, Err(error), now),
            Purpose::Leased(None) => {}
            Purpose::Pool | Purpose::Meta => self.waiters_fail(peer, class, &error, now),
        }
        self.drop_link(id, now);
    }

    /// A link works: those that wait for it go on, and VQPs of its class move to it.
    fn link_ready(&mut self, id: u32, now: Time) {
        let Some(link) = self.links.rc.get_mut(id) else { return };
        link.state = LinkState::Ready;
        let (peer, class, purpose) = (link.peer, link.class, link.purpose);
        let (qp, depth) = (link.qp, link.depth);
        if purpose == Purpose::Leased(None) {
            return;
        }
        let lane = self.lanes.add_rc(qp, depth, peer);
        let Some(link) = self.links.rc.get_mut(id) else { return };
        link.lane = lane;
        self.stats.links_made += 1;
        if let Purpose::Leased(Some(vqp)) = purpose {
            self.greet(id);
            return self.lease_ended(vqp, id, Ok(lane), now);
        }
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.rc[class as usize] = Some(lane);
        }
        self.greet(id);
        let (ready, rest) = core::mem::take(&mut self.links.waiters)
            .into_iter()
            .partition(|waiter: &LinkWaiter| (waiter.peer, waiter.class) == (peer, class));
        self.links.waiters = rest;
        for waiter in ready as Vec<LinkWaiter> {
            self.link_found(waiter.vqp, waiter.attempt, peer, Ok(()), now);
        }
        self.gather(peer, class, now);
        self.start_lookups(now);
    }

    /// Makes a first packet go over a link, a WRITE of nothing: the peer uses its end only then.
    fn greet(&mut self, id: u32) {
        let Some(link) = self.links.rc.get(id) else { return };
        let wr = SendWr {
            wr_id: WrId::Control(GREETING | link.lane).encode(),
            op: SendOp::Write(RemoteAddr { addr: 0, rkey: 0 }),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[]),
            dest: None,
        };
        if self.device.post_send(link.qp, &[wr]).is_err() {
            self.stats.device_refusals += 1;
            return;
        }
        let lane = &mut self.lanes.lanes[link.lane as usize];
        lane.uncompleted += 1;
        self.lanes.qps[lane.qp as usize].posted += 1;
    }

    fn greeted(&mut self, lane: u32, status: WcStatus, now: Time) {
        self.account(lane, 1);
        if let LaneKind::Rc { peer } = self.lanes.lanes[lane as usize].kind
            && status != WcStatus::Success
        {
            self.lane_failed(lane, status, peer);
        }
        self.try_restart(lane, now);
    }

    /// The first packet came over an RC QP in RTR: the peer has finished the handshake.
    fn link_heard(&mut self, qp: Qp, now: Time) {
        let found = self.links.rc.by_qp(qp);
        let Some((id, link)) = found.filter(|(_, link)| link.state == LinkState::Listening) else {
            return;
        };
        let psn = link.psn;
        let mut attr = self.pool.qp_attr(&self.config, Default::default());
        (attr.qp_state, attr.sq_psn) = (QpState::Rts, psn);
        match self.device.advance_qp(qp, &attr) {
            Ok(()) => self.link_ready(id, now),
            Err(_) => self.stats.device_refusals += 1,
        }
    }

    /// A link's QP went to its error state, perhaps with nothing of ours on it.
    fn link_errored(&mut self, qp: Qp, now: Time) {
        if let Some((id, link)) = self.links.rc.by_qp(qp)
            && matches!(link.state, LinkState::Ready | LinkState::Listening)
        {
            self.leave(id, None, now);
        }
    }

    /// Answers a request of another node's.
    fn serve(&mut self, served: Served, now: Time) {
        let Served { ticket, request } = served;
        match request {
            Request::Meta => {
                let answer = Answer::Record(self.record);
                self.links.control.answer(ticket, answer, now);
            }
            Request::RcConnect { end, class, leased, record } => {
                let answer = match self.serve_connect(ticket, end, class, leased, record, now) {
                    Ok(end) => Answer::Accepted(end),
                    Err(refusal) => Answer::Refused(refusal),
                };
                self.links.control.answer(ticket, answer, now);
            }
            Request::RcClose { qpn, peer_qpn } => self.serve_close(ticket, qpn, peer_qpn, now),
        }
    }

    fn serve_connect(
        &mut self,
        ticket: Ticket,
        end: RcEnd,
        class: Class,
        leased: bool,
        record: NodeRecord,
        now: Time,
    ) -> Result<RcEnd, Refusal> {
        let purpose = if leased { Purpose::Leased(None) } else { Purpose::Pool };
        let peer = self.peer_of(ticket.from.gid).ok_or(Refusal::NoRoom)?;
        // Of two requests that cross, the one of the lower GID goes first.
        let asking = self.links.rc.find(peer, class);
        let crossed = asking.is_some_and(|(_, link)| link.state == LinkState::Asking);
        if !leased && crossed && self.gid < ticket.from.gid {
            return Err(Refusal::Crossed);
        }
        if !self.links.rc.has_room(purpose, 0) {
            self.make_room(now);
            return Err(Refusal::NoRoom);
        }
        self.learn(peer, record, now);
        let made = self.make_link(peer, class, purpose, LinkState::Listening, now);
        let link = made.map_err(|_| Refusal::Device)?;
        if self.connect_link(link, end, QpState::Rtr).is_err() {
            self.drop_link(link, now);
            return Err(Refusal::Device);
        }
        self.sweep_soon(now);
        self.link_end(link).ok_or(Refusal::Device)
    }

    fn serve_close(&mut self, ticket: Ticket, qpn: u32, peer_qpn: u32, now: Time) {
        let found = self.links.rc.by_qpn(qpn).filter(|id| {
            let link = self.links.rc.get(*id);
            let peer = link.and_then(|link| self.peers.get(link.peer));
            link.is_some_and(|link| link.peer_qpn == peer_qpn)
                && peer.is_some_and(|peer| peer.gid == ticket.from.gid)
        });
        let state = found.and_then(|id| self.links.rc.get(id)).map(|link| link.state);
        match (found, state) {
            (Some(id), Some(LinkState::Ready | LinkState::Listening)) => {
                self.leave(id, Some(ticket), now);
            }
            (Some(id), Some(LinkState::Leaving(None))) => {
                if let Some(link) = self.links.rc.get_mut(id) {
                    link.state = LinkState::Leaving(Some(ticket));
                }
            }
            // Nothing of ours is on it, and the answer to our own request ends it.
            _ => self.links.control.answer(ticket, Answer::Closed, now),
        }
    }

    /// Has the link that was used longest ago closed, if none is being closed and one may be.
    fn make_room(&mut self, now: Time) {
        if self.links.rc.ending() > 0 {
            return;
        }
        let peers = &self.peers;
        // Without DC, a VQP has nowhere to go.
        let dc = self.pool.dct.is_some();
        let lanes = &self.lanes.lanes;
        let used = |link: &RcLink| {
            let lane = lanes.get(link.lane as usize);
            let free = dc || lane.is_none_or(|lane| lane.vqps == 0);
            let heat = peers.get(link.peer).map(|peer| peer.heat[link.class as usize].last());
            free.then(|| link.since.max(heat.unwrap_or_default()))
        };
        if let Some(victim) = self.links.rc.victim(now, used) {
            self.stats.links_reclaimed += 1;
            self.leave(victim, None, now);
        }
    }

    /// Takes the VQPs off a link and closes it when they and their work are gone.
    pub(crate) fn leave(&mut self, id: u32, ticket: Option<Ticket>, now: Time) {
        let Some(link) = self.links.rc.get_mut(id) else { return };
        link.state = LinkState::Leaving(ticket);
        let (peer, class, lane) = (link.peer, link.class, link.lane);
        if let Some(entry) = self.peers.get_mut(peer)
            && entry.rc[class as usize] == Some(lane)
        {
            entry.rc[class as usize] = None;
        }
        self.links.leaving.push(id);
        if lane != NONE {
            self.scatter(lane, now);
        }
        self.close_left(now);
    }

    /// Closes the links that everything has left.
    fn close_left(&mut self, now: Time) {
        let leaving = core::mem::take(&mut self.links.leaving);
        for id in leaving {
            let Some(link) = self.links.rc.get(id) else { continue };
            let lane = self.lanes.lanes.get(link.lane as usize);
            if lane.is_some_and(|lane| !lane.is_left()) {
                self.links.leaving.push(id);
                continue;
            }
            match link.state {
                LinkState::Leaving(Some(ticket)) => {
                    self.drop_link(id, now);
                    self.links.control.answer(ticket, Answer::Closed, now);
                }
                _ => self.ask_close(id, now),
            }
        }
    }

    /// Asks the peer to leave a link that nothing of ours is on.
    fn ask_close(&mut self, id: u32, now: Time) {
        let Some(link) = self.links.rc.get_mut(id) else { return };
        link.state = LinkState::Closing;
        let request = Request::RcClose { qpn: link.peer_qpn, peer_qpn: link.qpn };
        let peer = link.peer;
        let to = self.control_addr(peer);
        let asked = to.is_some_and(|to| self.call(to, request, CallFor::Close { link: id }, now));
        if !asked {
            self.drop_link(id, now);
        }
    }

    /// Destroys a link's QP. Nothing of ours is on it.
    pub(crate) fn drop_link(&mut self, id: u32, now: Time) {
        let Some(link) = self.links.rc.remove(id) else { return };
        if self.device.destroy_qp(link.qp).is_err() {
            self.stats.device_refusals += 1;
        }
        if link.lane != NONE {
            self.lanes.remove_rc(link.lane);
        }
        self.unpin(link.peer);
        if !self.links.wanted.is_empty() {
            self.sweep_at(now);
        }
    }

    /// An RC QP went to its error state, and all that was on it has come back: it goes, and the peer
    /// is told.
    pub(crate) fn link_broken(&mut self, lane: u32, now: Time) {
        let found = self.links.rc.iter().find(|(_, link)| link.lane == lane);
        let Some(id) = found.map(|(id, _)| id) else { return };
        let waits = matches!(
            self.links.rc.get(id).map(|link| link.state),
            Some(LinkState::Leaving(_) | LinkState::Closing)
        );
        if !waits {
            self.leave(id, None, now);
        }
    }

    /// A peer went away, or is another now: nobody takes the links to it any longer.
    pub(crate) fn leave_links_to(&mut self, peer: u32, now: Time) {
        let to = |link: &RcLink| {
            link.peer == peer && matches!(link.state, LinkState::Ready | LinkState::Listening)
        };
        let links: Vec<u32> = self.links.rc.matching(to).collect();
        for id in links {
            self.leave(id, None, now);
        }
    }

    /// Takes over what a peer's record is now. If it is another one the peer has started anew, and
    /// knows nothing of our links.
    pub(crate) fn learn(&mut self, peer: u32, record: NodeRecord, now: Time) {
        let Some(entry) = self.peers.get_mut(peer) else { return };
        let known = entry.record;
        if entry.gid != self.gid && known != Some(record) {
            entry.set_record(Some(record));
            if known.is_some() {
                self.leave_links_to(peer, now);
            }
        }
    }

    /// No link to a peer comes: who waits for one fails.
    fn waiters_fail(&mut self, peer: u32, class: Class, error: &ConnectError, now: Time) {
        let (failed, rest) = core::mem::take(&mut self.links.waiters)
            .into_iter()
            .partition(|waiter: &LinkWaiter| (waiter.peer, waiter.class) == (peer, class));
        self.links.waiters = rest;
        for waiter in failed as Vec<LinkWaiter> {
            self.link_found(waiter.vqp, waiter.attempt, peer, Err(error.clone()), now);
        }
        self.fail_laneless(peer, class, now);
    }

    fn sweep_soon(&mut self, now: Time) {
        self.links.sweep.get_or_insert(now.saturating_add_ns(SWEEP_NS));
    }

    fn sweep_at(&mut self, now: Time) {
        self.links.sweep = Some(now);
    }

    /// Looks after what has no moment of its own: links that are wanted, that meta servers lack, or
    /// that nobody uses, and connects that wait for too long.
    pub(crate) fn sweep_links(&mut self, now: Time) {
        self.links.sweep = None;
        for _ in 0..self.links.wanted.len() {
            let Some((peer, class)) = self.links.wanted.pop_front() else { break };
            let waits = |waiter: &LinkWaiter| (waiter.peer, waiter.class) == (peer, class);
            if self.links.waiters.iter().any(waits) || self.is_laneless(peer, class) {
                self.need_link(peer, class, now);
            }
        }
        let dc = self.pool.dct.is_some();
        let mut missing = false;
        for index in 0..self.lookups.servers.len() {
            let (peer, _) = self.lookups.servers[index];
            let own = self.peers.get(peer).is_none_or(|entry| entry.gid == self.gid);
            if !(own && dc) && self.links.rc.find(peer, Class::Low).is_none() {
                self.ask_link(peer, Class::Low, Purpose::Meta, now);
                missing = true;
            }
        }
        let silent = |link: &RcLink| {
            link.state == LinkState::Listening && now.ns_since(link.since) >= SILENCE_NS
        };
        let silent: Vec<u32> = self.links.rc.matching(silent).collect();
        for id in silent {
            self.leave(id, None, now);
        }
        let (late, rest) = core::mem::take(&mut self.links.waiters)
            .into_iter()
            .partition(|waiter: &LinkWaiter| waiter.until <= now);
        self.links.waiters = rest;
        for LinkWaiter { vqp, attempt, peer, .. } in late as Vec<LinkWaiter> {
            let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
            self.link_found(vqp, attempt, peer, Err(ConnectError::Unreachable { gid }), now);
        }
        let listening = |link: &RcLink| link.state == LinkState::Listening;
        let listening = self.links.rc.matching(listening).next().is_some();
        let waiting = !self.links.waiters.is_empty() || !self.links.wanted.is_empty();
        if missing || listening || waiting {
            self.sweep_soon(now);
        }
    }
}
