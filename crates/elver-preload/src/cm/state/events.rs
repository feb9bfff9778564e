//! What the communication manager has to do and to tell: what arrived, what time asks for, and what happened, for whose ids
//! there are channels.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use elver_cm::{Answer, Event, Id, Request, Service, reason};
use elver_soft::SoftDevice;
use elver_verbs::{Device as _, Gid, Time};
use elver_wire::cm::{IpHeader, Mad, Message};

use super::{Cm, CmId, Kind, Link, to};
use crate::cm::abi::{self, ConnParam, EventResp, Plain};
use crate::cm::address::is_local;

impl Cm {
    /// Ends what is connected with processes that have ended, once all is heard that they said before.
    pub(crate) fn end_orphans(&mut self, device: &mut SoftDevice, now: Time) {
        let mut ended = self.ends.take();
        device.progress();
        self.hear(device, now, &mut ended);
        for peer in ended {
            self.manager.gone(now, peer);
        }
    }

    /// Takes what arrived on QP 1.
    pub(crate) fn arrived(&mut self, device: &mut SoftDevice, now: Time) {
        self.hear(device, now, &mut Vec::new());
    }

    fn hear(&mut self, device: &mut SoftDevice, now: Time, ended: &mut Vec<IpAddr>) {
        for (peer, bytes) in self.carrier.take(device) {
            // Who asks may be another one, that has the address by now.
            if asks(&bytes) {
                let known = ended.iter().position(|one| *one == peer);
                if known.map(|at| ended.swap_remove(at)).is_some() || self.ends.has_ended(peer) {
                    self.manager.gone(now, peer);
                }
            }
            self.manager.receive(now, peer, &bytes);
        }
    }

    /// Does what time asks for, sends what is to be sent, and tells channels of what happened.
    pub(crate) fn step(&mut self, device: &mut SoftDevice, now: Time) {
        if self.manager.due().is_some_and(|due| due <= now) {
            self.manager.advance(now);
        }
        while let Some(event) = self.manager.poll_event() {
            self.happened(now, event);
        }
        while let Some((peer, bytes)) = self.manager.poll_transmit() {
            self.carrier.send(device, peer, &bytes);
        }
        while let Some(id) = self.manager.poll_changed() {
            let Some(keeper) = &mut self.keeper else { continue };
            match self.manager.parting(id) {
                Some((peer, mad)) => keeper.keep(id.0, peer, &mad),
                None => keeper.forget(id.0),
            }
        }
    }

    fn happened(&mut self, now: Time, event: Event) {
        match event {
            Event::Request(connection, request) => self.requested(connection, request),
            Event::ServiceRequest { id, peer, service, private } => {
                self.asked(id, peer, service, &private);
            }
            Event::Answered(connection, answer) => self.answered(connection, &answer),
            Event::Established(connection) => {
                self.tell_of(connection, Kind::Established, 0, |_| ());
            }
            Event::Rejected { id, reason, private } => {
                self.tell_of(id, Kind::Rejected, i32::from(reason), |resp| {
                    conn(resp, |param| put(param, &private));
                });
                // Taken back by who asked: what the program has not been told of counts no more.
                self.forget_request(now, id);
            }
            Event::Unreachable(connection) | Event::Expired(connection) => {
                self.tell_of(connection, Kind::Unreachable, -libc::ETIMEDOUT, |_| ());
                self.forget_request(now, connection);
            }
            Event::Disconnected(connection) => {
                self.tell_of(connection, Kind::Disconnected, 0, |_| ());
                if let Some(id) = self.of(connection) {
                    id.has_ended = true;
                }
            }
            // Of what never was a connection there is nothing that could be over (`cma_ib_handler` of the kernel's).
            Event::Released(connection) => {
                if self.of(connection).is_some_and(|id| id.has_ended) {
                    self.tell_of(connection, Kind::TimewaitExit, 0, |_| ());
                }
            }
            Event::Service { id, status, qpn, qkey, private } => {
                let gid = self.by_connection.get(&id).and_then(|id| self.ids.get(id)?.peer);
                let kind = if status == 0 { Kind::Established } else { Kind::Unreachable };
                self.tell_of(id, kind, i32::from(status), |resp| {
                    resp.param.qp_num = qpn;
                    resp.param.qkey = qkey;
                    resp.param.ah_attr = to(gid.map(Gid::from).unwrap_or_default(), 0);
                    let len = private.len().min(abi::PRIVATE);
                    resp.param.private_data[..len].copy_from_slice(&private[..len]);
                    resp.param.private_data_len = len as u8;
                });
            }
        }
    }

    /// The id of a connection.
    fn of(&mut self, connection: Id) -> Option<&mut CmId> {
        self.ids.get_mut(self.by_connection.get(&connection)?)
    }

    fn tell_of(
        &mut self,
        connection: Id,
        kind: Kind,
        status: c_int,
        set: impl FnOnce(&mut EventResp),
    ) {
        if let Some(id) = self.by_connection.get(&connection) {
            self.tell(*id, kind, status, set);
        }
    }

    /// A request that expired before its event was taken leaves nothing behind.
    fn forget_request(&mut self, now: Time, connection: Id) {
        let Some(id) = self.by_connection.get(&connection).copied() else { return };
        let Some(channel) = self.ids.get(&id).and_then(|id| self.channels.get_mut(&id.channel))
        else {
            return;
        };
        let dropped = channel.extract(|event| event.made == Some(id)).len();
        if dropped > 0 {
            self.destroy(now, id);
        }
    }

    /// Who listens, and the addresses that the peer names: it must, though anybody's requests may be heard.
    fn listener(&self, peer: IpAddr, service: Service, private: &[u8]) -> Option<(u32, IpHeader)> {
        let listener = *self.listeners.get(&service)?;
        let header = IpHeader::parse(private).ok()?;
        is_credible(self.address, peer, &header).then_some((listener, header))
    }

    fn requested(&mut self, connection: Id, request: Request) {
        let heard = self.listener(request.peer, request.service, &request.private);
        let Some((listener, header)) = heard else {
            return self.turn_away(connection, reason::INVALID_SERVICE_ID);
        };
        // Each message but its last packet has exactly the MTU that both ends are told here.
        if !(1..=self.mtu).contains(&request.path_mtu) {
            return self.turn_away(connection, reason::INVALID_PATH_MTU);
        }
        let Some(of) = self.ids.get(&listener) else { return };
        let mut made = CmId::new(0, of.channel, of.port_space, of.qp_type);
        made.src = of.src.map(|src| SocketAddr::new(header.dst, src.port()));
        made.dst = Some(SocketAddr::new(header.src, header.src_port));
        made.peer = Some(request.peer);
        made.has_device = true;
        made.has_route = true;
        made.tos = request.traffic_class;
        made.link = Link {
            peer_qpn: request.qpn,
            rq_psn: self.rng.next_u32() & 0xff_ffff,
            sq_psn: request.starting_psn.get(),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            path_mtu: request.path_mtu,
            ack_timeout: request.ack_timeout,
            known: true,
        };
        let Ok(id) = self.insert(made) else {
            return self.turn_away(connection, reason::NO_RESOURCES);
        };
        self.connect(id, connection);
        self.watch(id);
        self.queue(listener, Some(id), Kind::ConnectRequest, 0, |resp| {
            conn(resp, |param| {
                put(param, &request.private[IpHeader::LEN..]);
                param.qp_num = request.qpn;
                param.srq = request.srq.into();
                param.responder_resources = request.initiator_depth;
                param.initiator_depth = request.responder_resources;
                param.flow_control = request.flow_control.into();
                param.retry_count = request.retry_count;
                param.rnr_retry_count = request.rnr_retry_count;
            });
        });
    }

    fn asked(&mut self, connection: Id, peer: IpAddr, service: Service, private: &[u8]) {
        let Some((listener, header)) = self.listener(peer, service, private) else {
            return self.turn_away(connection, reason::INVALID_SERVICE_ID);
        };
        let Some(of) = self.ids.get(&listener) else { return };
        let mut made = CmId::new(0, of.channel, of.port_space, of.qp_type);
        made.src = of.src.map(|src| SocketAddr::new(header.dst, src.port()));
        made.dst = Some(SocketAddr::new(header.src, header.src_port));
        made.peer = Some(peer);
        made.has_device = true;
        made.has_route = true;
        let Ok(id) = self.insert(made) else {
            return self.turn_away(connection, reason::NO_RESOURCES);
        };
        self.connect(id, connection);
        self.queue(listener, Some(id), Kind::ConnectRequest, 0, |resp| {
            let own = &private[IpHeader::LEN..];
            resp.param.private_data[..own.len()].copy_from_slice(own);
            resp.param.private_data_len = own.len() as u8;
        });
    }

    /// Watches for the end of an id's peer, as long as there is the id.
    fn watch(&mut self, id: u32) {
        if let Some(id) = self.ids.get_mut(&id)
            && let Some(peer) = id.peer
            && id.watch.is_none()
        {
            id.watch = self.ends.watch(peer);
        }
    }

    /// Refuses what no listener is to hear of.
    fn turn_away(&mut self, connection: Id, reason: u16) {
        // It is a request that nobody has answered.
        let _ = self.manager.turn_away(connection, reason);
    }

    fn answered(&mut self, connection: Id, answer: &Answer) {
        let Some(id) = self.by_connection.get(&connection).copied() else { return };
        if let Some(held) = self.ids.get_mut(&id) {
            held.link.peer_qpn = answer.qpn;
            held.link.sq_psn = answer.starting_psn.get();
            held.link.responder_resources = answer.initiator_depth;
            held.link.initiator_depth = answer.responder_resources;
            held.link.rnr_retry_count = answer.rnr_retry_count;
            held.link.known = true;
        }
        self.watch(id);
        self.tell(id, Kind::ConnectResponse, 0, |resp| {
            conn(resp, |param| {
                put(param, &answer.private);
                param.qp_num = answer.qpn;
                param.srq = answer.srq.into();
                param.responder_resources = answer.initiator_depth;
                param.initiator_depth = answer.responder_resources;
                param.flow_control = answer.flow_control.into();
                param.rnr_retry_count = answer.rnr_retry_count;
            });
        });
    }
}

/// Whether a peer may be who it says it is, and ask where it says it asks: an address of this host is one that only this
/// host's processes have, and what is of no other host is not reached from one (`validate_ipv4_net_dev` of the kernel's).
/// Linux takes no packets from other hosts that come from one of its own addresses.
fn is_credible(own: IpAddr, peer: IpAddr, header: &IpHeader) -> bool {
    let (src, dst) = (header.src.to_canonical(), header.dst.to_canonical());
    let is_nobody = |address: IpAddr| {
        address.is_unspecified()
            || address.is_multicast()
            || matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0)
    };
    let is_own = |address: IpAddr| address == own || is_local(address);
    if is_nobody(src) || is_nobody(dst) || !is_own(dst) {
        return false;
    }
    let needs_local = dst.is_loopback() || is_own(src);
    !needs_local || is_own(peer)
}

/// Whether a message begins something.
fn asks(bytes: &[u8]) -> bool {
    let message = Mad::parse(bytes).map(|mad| mad.message);
    matches!(message, Ok(Message::Req(_) | Message::SidrReq { .. }))
}

/// Fills in the connection's form of what goes with an event.
fn conn(resp: &mut EventResp, set: impl FnOnce(&mut ConnParam)) {
    let mut param = ConnParam::zero();
    set(&mut param);
    // SAFETY: the two forms begin at one place, this one is no larger and no more aligned, and both are
    // numbers.
    unsafe { (&raw mut resp.param).cast::<ConnParam>().write(param) };
}

fn put(param: &mut ConnParam, private: &[u8]) {
    let len = private.len().min(abi::PRIVATE - 1);
    param.private_data[..len].copy_from_slice(&private[..len]);
    param.private_data_len = len as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_its_own_processes() {
        let credible = |peer: &str, src: &str, dst: &str| {
            let [own, peer, src, dst] =
                ["127.208.0.1", peer, src, dst].map(|text| text.parse().unwrap());
            is_credible(own, peer, &IpHeader { src_port: 1, src, dst })
        };
        let (here, stranger) = ("127.208.0.2", "203.0.113.66");
        assert!(credible(here, "127.0.0.1", "127.0.0.1"));
        assert!(credible(here, "127.208.0.2", "127.208.0.1"));
        assert!(credible("::1", "::1", "::1"));
        // A device that both versions reach, of a listener at one address.
        assert!(credible(here, "::ffff:127.0.0.1", "::ffff:127.0.0.1"));
        for dst in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "203.0.113.1", "224.0.0.1", "0.0.0.0"] {
            assert!(!credible(stranger, "203.0.113.66", dst), "{dst}");
        }
        let never = ["0.0.0.0", "0.1.2.3", "255.255.255.255", "230.0.0.1", "::", "ff02::1"];
        for src in never {
            assert!(!credible(here, src, "127.0.0.1"), "{src}");
        }
        // Who is not of this host says that he is.
        for src in ["127.0.0.1", "127.208.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!credible(stranger, src, "127.208.0.1"), "{src}");
        }
    }
}
