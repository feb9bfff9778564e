//! What peers say.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use elver_verbs::Time;
use elver_wire::cm::{IpHeader, Mad, Message, Rejected, Rep, Req, SidrRep};

use crate::command::unsupported;
use crate::connection::{Connection, State, nanoseconds};
use crate::event::{Answer, Event, Id, Request, Service};
use crate::manager::Manager;
use crate::reason;

/// How long the consumer may take after a peer asked again: 68.7 s, as rdma_cm says.
const SERVICE_TIMEOUT: u8 = 24;
/// The longest that a peer may have us wait between two messages: 17.2 s.
const PATIENCE_MAX: u8 = 22;
/// The shortest, 1.05 ms, as Linux has it: nobody has us send a row of answers before one can be answered.
const PATIENCE_MIN: u8 = 8;

/// How a received message is answered: under its own transaction, at its sender's.
struct Asked {
    peer: IpAddr,
    transaction: u64,
}

/// What a peer asks for: a service, at the address that its rdma_cm names (IBTA vol. 1, annex A11).
struct Wanted {
    service_id: u64,
    address: Option<IpAddr>,
}

impl Wanted {
    /// An address of IPv4 may be written as one of IPv6, which means the same.
    fn new(service_id: u64, private: &[u8]) -> Wanted {
        let header = IpHeader::parse(private).ok();
        Wanted { service_id, address: header.map(|header| header.dst.to_canonical()) }
    }

    /// Who may hear it: who listens at that address alone, before who does at those of its family, before who does at
    /// all.
    fn whose(&self) -> impl Iterator<Item = Service> {
        let id = self.service_id;
        let named = self.address.into_iter().flat_map(|address| [address, any_of(address)]);
        named
            .map(move |address| Service { id, address: Some(address) })
            .chain([Service::everywhere(id)])
    }
}

/// Any address of the family of this one.
fn any_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Manager {
    /// Takes a received MAD, and the address that it came from.
    pub fn receive(&mut self, now: Time, peer: IpAddr, bytes: &[u8]) {
        let Ok(Mad { transaction, message }) = Mad::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let asked = Asked { peer, transaction };
        match message {
            Message::Req(req) => self.requested(now, &asked, &req),
            Message::Mra { remote, service_timeout, .. } => {
                self.delayed(now, peer, remote, service_timeout);
            }
            Message::Rej { local, remote, reason, private, .. } => {
                self.rejected(now, peer, local, remote, reason, private);
            }
            Message::Rep(rep) => self.answered(&asked, &rep),
            Message::Rtu { local, remote, .. } => self.told_ready(peer, local, remote),
            Message::Dreq { local, remote, remote_qpn, .. } => {
                self.told_end(now, &asked, local, remote, remote_qpn);
            }
            Message::Drep { local, remote, .. } => self.ended(now, peer, local, remote),
            Message::SidrReq { request, service_id, private, .. } => {
                self.asked(now, &asked, request, service_id, private);
            }
            Message::SidrRep(reply) => self.replied(peer, &reply),
        }
    }

    /// Refuses what has no connection. Without private data there is room for all of it.
    fn refuse(&mut self, asked: &Asked, of: Rejected, local: u32, remote: u32, reason: u16) {
        let rej = Message::Rej { local, remote, of, reason, info: &[], private: &[] };
        let _ = self.say(asked.peer, asked.transaction, rej);
    }

    /// Whose request it is, if that listener takes one more; a place in its backlog is taken.
    fn take_place(&mut self, wanted: &Wanted) -> Result<Service, u16> {
        let heard = wanted.whose().find(|at| self.listeners.contains_key(at));
        let Some((at, listener)) = heard.and_then(|at| Some((at, self.listeners.get_mut(&at)?)))
        else {
            self.counters.unheard += 1;
            return Err(reason::INVALID_SERVICE_ID);
        };
        if listener.waiting >= listener.backlog {
            self.counters.crowded += 1;
            return Err(reason::NO_RESOURCES);
        }
        listener.waiting += 1;
        Ok(at)
    }

    /// Whether somebody listened for a service lately, and nobody does now. Programs stop listening between two
    /// connections (perftest), and their peers take a refusal for the end.
    fn was_heard(&mut self, now: Time, wanted: &Wanted) -> bool {
        let is_it =
            |(left, until): &(Service, Time)| *until > now && wanted.whose().any(|at| at == *left);
        let is_heard = wanted.whose().any(|at| self.listeners.contains_key(&at));
        let was = !is_heard && self.lately.iter().any(is_it);
        self.counters.unheard += u64::from(was);
        was
    }

    /// A connection that a peer begins, in a place that was taken for it.
    fn begin(
        &mut self,
        now: Time,
        asked: &Asked,
        remote: u32,
        at: Service,
        state: State,
    ) -> Option<u32> {
        let key = (asked.peer, remote, state == State::SidrRequested);
        let Ok(id) = self.insert(state, asked.peer) else {
            if let Some(listener) = self.listeners.get_mut(&at) {
                listener.waiting -= 1;
            }
            return None;
        };
        self.by_peer.insert(key, id);
        if let Some(connection) = self.find(id, None) {
            connection.remote = Some(remote);
            connection.listener = Some(at);
            connection.waits = true;
            connection.begun = Some(key);
            connection.transaction = asked.transaction;
        }
        let expires = now.saturating_add_ns(self.config.request_ns);
        self.wake_at(id, Some(expires));
        Some(id)
    }

    fn requested(&mut self, now: Time, asked: &Asked, req: &Req<'_>) {
        let known = self.by_peer.get(&(asked.peer, req.local, false)).copied();
        if let Some(id) = known {
            return self.requested_again(id, asked, req);
        }
        let wanted = Wanted::new(req.service_id, req.private);
        if self.was_heard(now, &wanted) {
            return;
        }
        let place = match req.transport {
            0 | 1 => self.take_place(&wanted),
            _ => Err(reason::INVALID_TRANSPORT),
        };
        let at = match place {
            Ok(at) => at,
            Err(reason) => return self.refuse(asked, Rejected::Req, 0, req.local, reason),
        };
        let begun = self.begin(now, asked, req.local, at, State::Requested);
        let Some(id) = begun else {
            return self.refuse(asked, Rejected::Req, 0, req.local, reason::NO_RESOURCES);
        };
        if let Some(connection) = self.find(id, None) {
            connection.peer_qpn = req.qpn;
            connection.left = req.max_retries;
            connection.patience =
                nanoseconds(req.local_response_timeout.clamp(PATIENCE_MIN, PATIENCE_MAX));
        }
        let request = Request {
            peer: asked.peer,
            service: at,
            qpn: req.qpn,
            transport: req.transport,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            starting_psn: req.starting_psn,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            flow_control: req.flow_control,
            path_mtu: req.path_mtu,
            peer_gid: req.local_gid,
            own_gid: req.remote_gid,
            traffic_class: req.traffic_class,
            ack_timeout: req.ack_timeout,
            private: req.private.into(),
        };
        self.report(id, Event::Request(Id(id), request));
    }

    /// The peer has not seen what we answered, or we have not yet.
    fn requested_again(&mut self, id: u32, asked: &Asked, req: &Req<'_>) {
        self.counters.duplicates += 1;
        let Some(connection) = self.find(id, None) else { return };
        match connection.state {
            State::Requested => {
                let mra = Message::Mra {
                    local: id,
                    remote: req.local,
                    of: Rejected::Req,
                    service_timeout: SERVICE_TIMEOUT,
                    private: &[],
                };
                let _ = self.say(asked.peer, asked.transaction, mra);
            }
            State::RepSent => self.repeat(id),
            State::TimeWait if connection.refused() => self.repeat(id),
            State::TimeWait => {
                self.refuse(asked, Rejected::Req, 0, req.local, reason::STALE_CONNECTION);
            }
            _ => {}
        }
    }

    fn delayed(&mut self, now: Time, peer: IpAddr, id: u32, service_timeout: u8) {
        let waiting = |state| matches!(state, State::ReqSent | State::RepSent);
        let Some(connection) = self.find(id, Some(peer)).filter(|found| waiting(found.state))
        else {
            self.counters.unexpected += 1;
            return;
        };
        // Nobody has us wait for ever: to be waited for takes one of the times that we would have asked again.
        let Some(left) = connection.left.checked_sub(1) else { return };
        connection.left = left;
        let longer = nanoseconds(service_timeout.min(SERVICE_TIMEOUT)) + connection.patience;
        self.wake_at(id, Some(now.saturating_add_ns(longer)));
    }

    fn rejected(
        &mut self,
        now: Time,
        peer: IpAddr,
        local: u32,
        remote: u32,
        reason: u16,
        private: &[u8],
    ) {
        // Who takes back its request may not have learnt our number.
        let id = if remote != 0 {
            Some(remote)
        } else {
            self.by_peer.get(&(peer, local, false)).copied()
        };
        let takes = |state| {
            matches!(
                state,
                State::ReqSent
                    | State::Requested
                    | State::Answered
                    | State::RepSent
                    | State::Established
                    | State::DreqSent
            )
        };
        let found = id.and_then(|id| self.find(id, Some(peer)).filter(|found| takes(found.state)));
        // Who tells its number must tell the right one.
        let fits = |found: &&mut Connection| {
            local == 0 || found.remote.is_none_or(|remote| remote == local)
        };
        let state = found.filter(fits).map(|found| found.state);
        let (Some(state), Some(id)) = (state, id) else {
            self.counters.unexpected += 1;
            return;
        };
        let event = match state {
            // It knows the connection no more: what we asked for has happened.
            State::DreqSent => Event::Disconnected(Id(id)),
            _ => Event::Rejected { id: Id(id), reason, private: private.into() },
        };
        self.report(id, event);
        if state == State::Requested {
            // We have said nothing that could be answered late.
            self.end(id);
            self.release_peer(id);
        } else {
            self.linger(id, now);
        }
    }

    fn answered(&mut self, asked: &Asked, rep: &Rep<'_>) {
        let id = rep.remote;
        let Some(connection) = self.find(id, Some(asked.peer)) else {
            self.counters.unexpected += 1;
            let reason = reason::INVALID_COMMUNICATION_ID;
            return self.refuse(asked, Rejected::Rep, id, rep.local, reason);
        };
        match connection.state {
            State::ReqSent => {
                connection.remote = Some(rep.local);
                connection.peer_qpn = rep.qpn;
                let answer = Answer {
                    qpn: rep.qpn,
                    starting_psn: rep.starting_psn,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    rnr_retry_count: rep.rnr_retry_count,
                    srq: rep.srq,
                    flow_control: rep.flow_control,
                    private: rep.private.into(),
                };
                self.enter(id, State::Answered);
                // Its consumer decides in no time that would have to be bounded here: the peer does.
                self.wake_at(id, None);
                self.report(id, Event::Answered(Id(id), answer));
            }
            State::Established if connection.remote == Some(rep.local) => {
                // The RTU was lost.
                self.counters.duplicates += 1;
                self.repeat(id);
            }
            State::Answered if connection.remote == Some(rep.local) => {
                self.counters.duplicates += 1;
                let mra = Message::Mra {
                    local: id,
                    remote: rep.local,
                    of: Rejected::Rep,
                    service_timeout: SERVICE_TIMEOUT,
                    private: &[],
                };
                let _ = self.say(asked.peer, asked.transaction, mra);
            }
            State::TimeWait if connection.refused() => {
                // The refusal was lost.
                self.counters.duplicates += 1;
                self.repeat(id);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// A connection that a message names by both numbers.
    fn named(&mut self, peer: IpAddr, local: u32, remote: u32) -> Option<State> {
        let found = self.find(remote, Some(peer)).filter(|found| found.remote == Some(local));
        let state = found.map(|found| found.state);
        if state.is_none() {
            self.counters.unexpected += 1;
        }
        state
    }

    fn told_ready(&mut self, peer: IpAddr, local: u32, id: u32) {
        match self.named(peer, local, id) {
            Some(State::RepSent) => {
                self.enter(id, State::Established);
                self.wake_at(id, None);
                self.report(id, Event::Established(Id(id)));
            }
            Some(_) => self.counters.duplicates += 1,
            None => {}
        }
    }

    fn told_end(&mut self, now: Time, asked: &Asked, local: u32, id: u32, qpn: u32) {
        let drep = Message::Drep { local: id, remote: local, private: &[] };
        let Some(state) = self.named(asked.peer, local, id) else {
            // It has ended long ago, and the peer is to stop asking.
            let _ = self.say(asked.peer, asked.transaction, drep);
            return;
        };
        if self.find(id, None).is_none_or(|found| found.own_qpn != qpn) {
            self.counters.unexpected += 1;
            return;
        }
        match state {
            State::Established | State::RepSent | State::DreqSent => {
                let _ = self.say(asked.peer, asked.transaction, drep);
                self.report(id, Event::Disconnected(Id(id)));
                self.linger(id, now);
            }
            State::TimeWait | State::Closed => {
                self.counters.duplicates += 1;
                let _ = self.say(asked.peer, asked.transaction, drep);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn ended(&mut self, now: Time, peer: IpAddr, local: u32, id: u32) {
        match self.named(peer, local, id) {
            Some(State::DreqSent) => {
                self.report(id, Event::Disconnected(Id(id)));
                self.linger(id, now);
            }
            Some(_) => self.counters.duplicates += 1,
            None => {}
        }
    }

    fn asked(&mut self, now: Time, asked: &Asked, request: u32, service_id: u64, private: &[u8]) {
        if let Some(id) = self.by_peer.get(&(asked.peer, request, true)).copied() {
            self.counters.duplicates += 1;
            // Nothing was sent as long as the consumer has not answered.
            return self.repeat(id);
        }
        let wanted = Wanted::new(service_id, private);
        if self.was_heard(now, &wanted) {
            return;
        }
        let place = self.take_place(&wanted).ok();
        let begun = place.and_then(|at| {
            let id = self.begin(now, asked, request, at, State::SidrRequested)?;
            Some((id, at))
        });
        let Some((id, service)) = begun else {
            let _ = self.say(asked.peer, asked.transaction, unsupported(request, service_id));
            return;
        };
        let private = private.into();
        let peer = asked.peer;
        self.report(id, Event::ServiceRequest { id: Id(id), peer, service, private });
    }

    fn replied(&mut self, peer: IpAddr, reply: &SidrRep<'_>) {
        let id = reply.request;
        let waits = self.find(id, Some(peer)).is_some_and(|one| one.state == State::SidrSent);
        if !waits {
            self.counters.unexpected += 1;
            return;
        }
        let event = Event::Service {
            id: Id(id),
            status: reply.status,
            qpn: reply.qpn,
            qkey: reply.qkey,
            private: reply.private.into(),
        };
        self.report(id, event);
        self.end(id);
    }
}
