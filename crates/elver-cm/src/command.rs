//! What the consumer asks for.

use alloc::vec::Vec;
use core::net::IpAddr;

use elver_verbs::Time;
use elver_wire::PKEY_DEFAULT;
use elver_wire::cm::{Message, Rejected, Rep, Req, SidrRep};

use crate::connection::{State, nanoseconds};
use crate::event::{Answer, Event, Id, Offer, Refused, Service};
use crate::manager::{Listener, Manager};
use crate::{reason, sidr};

const HOP_LIMIT: u8 = 64;
/// Services that are remembered when nobody listens for them any more.
const LATELY: usize = 64;

/// Nobody offers the service that is asked for.
pub(crate) fn unsupported(request: u32, service_id: u64) -> Message<'static> {
    Message::SidrRep(SidrRep {
        request,
        status: sidr::UNSUPPORTED,
        qpn: 0,
        service_id,
        qkey: 0,
        info: &[],
        private: &[],
    })
}

impl Manager {
    /// Listens for a service; at most `backlog` requests wait for the consumer to take them.
    ///
    /// # Errors
    /// [`Refused::Taken`] if somebody does already.
    pub fn listen(&mut self, at: Service, backlog: u32) -> Result<(), Refused> {
        if self.listeners.contains_key(&at) {
            return Err(Refused::Taken(at.id));
        }
        self.listeners.insert(at, Listener { backlog, waiting: 0 });
        Ok(())
    }

    /// Listens no more; requests that nobody took are refused, and those that come soon after go unanswered.
    pub fn unlisten(&mut self, now: Time, at: Service) {
        let waiting: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, one)| one.waits && one.listener == Some(at))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.let_go(now, Id(id));
        }
        if self.listeners.remove(&at).is_some() {
            self.lately.truncate(LATELY - 1);
            self.lately.push_front((at, now.saturating_add_ns(self.config.lately_ns)));
        }
    }

    /// The consumer has taken a request: it outlives its listener, whose backlog has room for another.
    pub fn taken(&mut self, id: Id) {
        self.leave_backlog(id.0);
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`Refused::Full`], and [`Refused::Message`] if the private data is too long.
    pub fn connect(&mut self, now: Time, offer: &Offer) -> Result<Id, Refused> {
        let id = self.insert(State::ReqSent, offer.peer)?;
        let (timeout, retries) = (self.config.response_timeout, self.config.retries);
        if let Some(connection) = self.find(id, None) {
            connection.own_qpn = offer.qpn;
        }
        let req = Req {
            local: id,
            service_id: offer.service_id,
            ca_guid: self.config.ca_guid,
            qkey: 0,
            qpn: offer.qpn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            remote_response_timeout: timeout,
            transport: offer.transport,
            flow_control: offer.flow_control,
            starting_psn: offer.starting_psn,
            local_response_timeout: timeout,
            retry_count: offer.retry_count,
            pkey: PKEY_DEFAULT,
            path_mtu: offer.path_mtu,
            rnr_retry_count: offer.rnr_retry_count,
            max_retries: retries,
            srq: offer.srq,
            local_gid: offer.local_gid,
            remote_gid: offer.remote_gid,
            flow_label: 0,
            packet_rate: crate::RATE,
            traffic_class: offer.traffic_class,
            hop_limit: HOP_LIMIT,
            service_level: 0,
            subnet_local: false,
            ack_timeout: offer.ack_timeout,
            private: &offer.private,
        };
        if let Err(error) = self.tell(id, Message::Req(req)) {
            self.forget(id);
            return Err(error.into());
        }
        self.await_answer(id, now, retries, nanoseconds(timeout));
        Ok(Id(id))
    }

    /// Agrees to a request.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::State`], and [`Refused::Message`].
    pub fn accept(&mut self, now: Time, id: Id, answer: &Answer) -> Result<(), Refused> {
        let ca_guid = self.config.ca_guid;
        let connection = self.require(id)?;
        if connection.state != State::Requested {
            return Err(Refused::State(id));
        }
        connection.own_qpn = answer.qpn;
        // As many retries, and as patient, as the peer asked for when it asked.
        let (retries, patience) = (connection.left, connection.patience);
        let rep = Rep {
            local: id.0,
            remote: connection.remote.unwrap_or_default(),
            qkey: 0,
            qpn: answer.qpn,
            starting_psn: answer.starting_psn,
            responder_resources: answer.responder_resources,
            initiator_depth: answer.initiator_depth,
            ack_delay: 0,
            failover: 1,
            flow_control: answer.flow_control,
            rnr_retry_count: answer.rnr_retry_count,
            srq: answer.srq,
            ca_guid,
            private: &answer.private,
        };
        self.tell(id.0, Message::Rep(rep))?;
        self.enter(id.0, State::RepSent);
        self.await_answer(id.0, now, retries, patience);
        Ok(())
    }

    /// Tells the peer, which agreed, that we have what we need.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::State`], and [`Refused::Message`].
    pub fn ready(&mut self, id: Id, private: &[u8]) -> Result<(), Refused> {
        let connection = self.require(id)?;
        if connection.state != State::Answered {
            return Err(Refused::State(id));
        }
        let remote = connection.remote.unwrap_or_default();
        self.tell(id.0, Message::Rtu { local: id.0, remote, private })?;
        self.enter(id.0, State::Established);
        Ok(())
    }

    /// Refuses a request, also after it was agreed to, or what answered ours.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::State`], and [`Refused::Message`].
    pub fn reject(
        &mut self,
        now: Time,
        id: Id,
        reason: u16,
        private: &[u8],
    ) -> Result<(), Refused> {
        let connection = self.require(id)?;
        let of = match connection.state {
            State::Requested => Rejected::Req,
            State::Answered => Rejected::Rep,
            State::RepSent => Rejected::Other,
            _ => return Err(Refused::State(id)),
        };
        let remote = connection.remote.unwrap_or_default();
        let rej = Message::Rej { local: id.0, remote, of, reason, info: &[], private };
        self.tell(id.0, rej)?;
        self.linger(id.0, now);
        Ok(())
    }

    /// Ends a connection. One that has ended already is left as it is.
    ///
    /// # Errors
    /// [`Refused::Unknown`], and [`Refused::State`] if there is none yet.
    pub fn disconnect(&mut self, now: Time, id: Id) -> Result<(), Refused> {
        let (timeout, retries) = (self.config.response_timeout, self.config.retries);
        let connection = self.require(id)?;
        match connection.state {
            State::Established | State::RepSent => {}
            State::DreqSent | State::TimeWait | State::Closed => return Ok(()),
            _ => return Err(Refused::State(id)),
        }
        let remote = connection.remote.unwrap_or_default();
        let remote_qpn = connection.peer_qpn;
        self.tell(id.0, Message::Dreq { local: id.0, remote, remote_qpn, private: &[] })?;
        self.enter(id.0, State::DreqSent);
        self.await_answer(id.0, now, retries, nanoseconds(timeout));
        Ok(())
    }

    /// The QP of a connection that we agreed to has received: the peer has what it needs, whatever
    /// became of its RTU (IBTA vol. 1, 12.9.6).
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub fn heard(&mut self, id: Id) -> Result<(), Refused> {
        if self.require(id)?.state == State::RepSent {
            self.enter(id.0, State::Established);
            self.wake_at(id.0, None);
            self.report(id.0, Event::Established(id));
        }
        Ok(())
    }

    /// Lets go of a connection, whatever state it is in: there are no more events of it. What the peer
    /// waits for it is told.
    pub fn let_go(&mut self, now: Time, id: Id) {
        let Ok(connection) = self.require(id) else { return };
        let (state, remote) = (connection.state, connection.remote);
        match state {
            State::Requested | State::Answered | State::RepSent => {
                // It has no private data that could be too long.
                let _ = self.reject(now, id, reason::CONSUMER, &[]);
            }
            State::Established => {
                let _ = self.disconnect(now, id);
            }
            State::ReqSent => {
                let info = self.config.ca_guid.to_be_bytes();
                let rej = Message::Rej {
                    local: id.0,
                    remote: remote.unwrap_or_default(),
                    of: Rejected::Req,
                    reason: reason::TIMEOUT,
                    info: &info,
                    private: &[],
                };
                let _ = self.tell(id.0, rej);
                self.end(id.0);
            }
            State::SidrRequested => {
                let _ = self.reply(now, id, sidr::REJECTED, 0, 0, &[]);
            }
            State::SidrSent => self.end(id.0),
            State::DreqSent | State::TimeWait | State::Closed | State::SidrReplied => {}
        }
        let Some(connection) = self.find(id.0, None) else { return };
        connection.detached = true;
        if connection.state == State::Closed {
            self.forget(id.0);
        }
        self.fade(id.0);
    }

    /// Refuses a peer's request and forgets it: one that comes again is a new one, and nobody fills the table by what is
    /// refused at once. A question for a UD service is told [`sidr::UNSUPPORTED`], whatever the reason.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::State`], and [`Refused::Message`].
    pub fn turn_away(&mut self, id: Id, reason: u16) -> Result<(), Refused> {
        let connection = self.require(id)?;
        let (state, remote) = (connection.state, connection.remote.unwrap_or_default());
        let service = connection.listener.map_or(0, |at| at.id);
        let message = match state {
            State::Requested => {
                let of = Rejected::Req;
                Message::Rej { local: 0, remote, of, reason, info: &[], private: &[] }
            }
            State::SidrRequested => unsupported(remote, service),
            _ => return Err(Refused::State(id)),
        };
        self.tell(id.0, message)?;
        self.forget(id.0);
        Ok(())
    }

    /// The peer at an address is gone for good, and says no more: what is connected to it ends, as if it had said so.
    /// What only waits for its first word goes on waiting.
    pub fn gone(&mut self, now: Time, peer: IpAddr) {
        let with: Vec<(u32, State)> = self
            .connections
            .iter()
            .filter(|(_, one)| one.peer == peer)
            .map(|(id, one)| (*id, one.state))
            .collect();
        for (id, state) in with {
            let event = match state {
                State::Established | State::DreqSent => Event::Disconnected(Id(id)),
                State::Requested | State::Answered | State::RepSent => {
                    Event::Rejected { id: Id(id), reason: reason::CONSUMER, private: Vec::new() }
                }
                _ => continue,
            };
            self.counters.orphaned += 1;
            self.report(id, event);
            self.linger(id, now);
        }
    }

    /// Asks for the UD QP of a service.
    ///
    /// # Errors
    /// [`Refused::Full`], and [`Refused::Message`].
    pub fn ask(
        &mut self,
        now: Time,
        peer: IpAddr,
        service_id: u64,
        private: &[u8],
    ) -> Result<Id, Refused> {
        let id = self.insert(State::SidrSent, peer)?;
        let (timeout, retries) = (self.config.response_timeout, self.config.retries);
        let request = Message::SidrReq { request: id, pkey: PKEY_DEFAULT, service_id, private };
        if let Err(error) = self.tell(id, request) {
            self.forget(id);
            return Err(error.into());
        }
        self.await_answer(id, now, retries, nanoseconds(timeout));
        Ok(Id(id))
    }

    /// Answers a question for a UD service.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::State`], and [`Refused::Message`].
    pub fn reply(
        &mut self,
        now: Time,
        id: Id,
        status: u8,
        qpn: u32,
        qkey: u32,
        private: &[u8],
    ) -> Result<(), Refused> {
        let connection = self.require(id)?;
        if connection.state != State::SidrRequested {
            return Err(Refused::State(id));
        }
        let request = connection.remote.unwrap_or_default();
        let service_id = connection.listener.map_or(0, |at| at.id);
        let reply = SidrRep { request, status, qpn, service_id, qkey, info: &[], private };
        self.tell(id.0, Message::SidrRep(reply))?;
        self.enter(id.0, State::SidrReplied);
        // As long as the peer asks again because the answer was lost, if it is as patient as we are.
        let asks = u64::from(self.config.retries) + 1;
        let ends = now.saturating_add_ns(asks * nanoseconds(self.config.response_timeout));
        self.wake_at(id.0, Some(ends));
        Ok(())
    }
}
