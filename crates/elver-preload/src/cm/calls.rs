//! The commands that librdmacm writes.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use elver_cm::{Answer, Offer, RATE, Refused, Service, sidr};
use elver_soft::are_on_two_interfaces;
use elver_verbs::{Gid, Time};
use elver_wire::Psn;
use elver_wire::cm::IpHeader;

use crate::cm::abi::{
    self, Accept, Bind, BindIp, Connect, CreateId, CreateIdResp, DestroyId, DestroyIdResp,
    Disconnect, InitQpAttr, Listen, MigrateId, MigrateResp, Notify, PathRec, Plain, Query,
    QueryAddrResp, QueryRouteResp, Reject, ResolveAddr, ResolveIp, ResolveRoute, SetOption,
};
use crate::cm::bound::Bound;
use crate::cm::command::{Command, UDP_QKEY, given};
use crate::cm::state::{Cm, CmId, Kind, UC, service_of, to};
use crate::cm::{address, ports};
use crate::device::node_guid;

const UD: u8 = 4;
const COMM_EST: u32 = 4;
/// Requests that wait for a program that names no number, and at most.
const BACKLOG: u32 = 1024;
const PKEY: u16 = 0xffff;
/// How long a port of this host that nobody listens on is asked for, and how often: programs stop
/// listening and begin again, and a look in a table is faster than a kernel's ways to resolve an address.
const LISTENERS_COME: u64 = 1_000_000_000;
const LOOK_AGAIN: u64 = 20_000_000;
/// Code of 0.64 ms. The kernel tells 0, which is 655 ms.
const MIN_RNR_TIMER: u8 = 12;

fn errno(refused: Refused) -> c_int {
    match refused {
        Refused::Unknown(_) | Refused::State(_) | Refused::Message(_) => libc::EINVAL,
        Refused::Full(_) => libc::ENOMEM,
        Refused::Taken(_) => libc::EADDRINUSE,
    }
}

impl Cm {
    /// Does a command, but for those that take an event.
    pub(crate) fn call(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        match command.number {
            0 => self.create(command),
            1 => self.destroy_id(command),
            2 => {
                let bind: BindIp = command.whole()?;
                let at = given(&bind.addr)?;
                self.bind(bind.id, at)
            }
            3 => {
                let resolve: ResolveIp = command.whole()?;
                let src = address::of(&resolve.src_addr);
                let dst = given(&resolve.dst_addr)?;
                self.resolve(resolve.id, src, dst)
            }
            4 => self.resolve_route(command.whole()?),
            5 => self.query_route(command),
            6 => self.ask_for(command),
            7 => self.listen(command.whole()?),
            8 => self.accept(command),
            9 => self.reject(command),
            10 => self.disconnect(command),
            11 => self.init_qp_attr(command),
            14 => self.set_option(command.whole()?),
            15 => {
                let Notify { id, event } = command.whole()?;
                let connection = self.connection(id)?;
                if event != COMM_EST {
                    return Err(libc::EINVAL);
                }
                self.manager.heard(connection).map_err(errno)
            }
            16 => self.join_ip(command),
            17 => self.leave(command),
            18 => {
                let migrate: MigrateId = command.whole()?;
                let events_reported = self.migrate(migrate.id, command.channel)?;
                command.answer(migrate.response, MigrateResp { events_reported })
            }
            19 => self.query(command),
            20 => {
                let bind: Bind = command.whole()?;
                let at = given(&bind.addr)?;
                self.bind(bind.id, at)
            }
            21 => {
                let resolve: ResolveAddr = command.whole()?;
                let src = address::of(&resolve.src_addr).filter(|_| resolve.src_size > 0);
                let dst = given(&resolve.dst_addr)?;
                self.resolve(resolve.id, src, dst)
            }
            22 => self.join_any(command),
            // GET_OPTION, which the kernel lacks too, and what is newer.
            _ => Err(libc::ENOSYS),
        }
    }

    fn create(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let create: CreateId = command.whole()?;
        if command.room < size_of::<CreateIdResp>() {
            return Err(libc::ENOSPC);
        }
        // What a port space carries, as the kernel has it.
        let qp_type = match create.ps {
            0x0106 => 2,
            0x0111 | 0x0002 => UD,
            0x013f => create.qp_type,
            _ => return Err(libc::EINVAL),
        };
        let qp_type = if create.ps == 0x0106 && create.qp_type == UC { UC } else { qp_type };
        let id = CmId::new(create.uid, command.channel, create.ps, qp_type);
        let id = self.insert(id)?;
        command.answer(create.response, CreateIdResp { id })
    }

    fn destroy_id(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let destroy: DestroyId = command.whole()?;
        let reported = self.destroy(command.now, destroy.id).ok_or(libc::ENOENT)?;
        command.answer(destroy.response, DestroyIdResp { events_reported: reported })
    }

    fn bind(&mut self, id: u32, at: SocketAddr) -> Result<(), c_int> {
        let anywhere = self.rng.next_u32();
        let device = self.address;
        // IPv4's may be written as IPv6's, and is told as it is written.
        let ip = at.ip().to_canonical();
        let held = self.id(id)?;
        if held.src.is_some() {
            return Err(libc::EINVAL);
        }
        let (port_space, shares) = (held.port_space, held.reuses_port);
        // Those of connections that were asked for have their listener's port, and hold none.
        let holds = |other: &CmId| {
            let lets = shares && other.reuses_port && other.service.is_none();
            !lets && !other.claims.is_empty()
        };
        let bound = Bound::new(ip, held.own_family_only);
        if at.port() != 0 && self.is_taken(port_space, at.port(), bound, holds) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let id = self.id(id)?;
        let wild = bound.is_any();
        if !wild && !address::is_local(ip) {
            return Err(libc::ENODEV);
        }
        let mut at = at;
        if at.port() == 0 {
            let port = if id.reuses_port {
                let (port, held) = ports::hold_any_shared(id.port_space, bound, anywhere)?;
                id.claims.extend(held);
                port
            } else {
                let (port, held) = ports::hold_any(id.port_space, bound, anywhere)?;
                id.claims.push(held);
                port
            };
            at.set_port(port);
            id.holds_port = true;
        } else if !id.reuses_port {
            id.claims.push(ports::hold(id.port_space, at.port(), bound).ok_or(libc::EADDRINUSE)?);
            id.holds_port = true;
        } else if ports::is_held_alone(id.port_space, at.port(), bound) {
            return Err(libc::EADDRINUSE);
        }
        if id.is_datagrams() {
            // Others that share the port may have told of it already.
            id.claims.extend(ports::publish_bound(id.port_space, at.port(), bound, device));
        }
        id.src = Some(at);
        // To the kernel loopback is all addresses (`cma_any_addr`), and another interface's have no device: programs ask so for
        // addresses that others can reach. A device on loopback is had at any, and datagrams' memory is registered at once.
        let is_elsewhere = ip.is_loopback() || are_on_two_interfaces(ip, device);
        id.has_device = !wild && (device.is_loopback() || id.is_datagrams() || !is_elsewhere);
        Ok(())
    }

    fn resolve(&mut self, id: u32, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), c_int> {
        let own = self.address;
        let held = self.id(id)?;
        if held.dst.is_some() || held.service.is_some() {
            return Err(libc::EINVAL);
        }
        let is_datagrams = held.is_datagrams();
        // Who names an address alone is found by nobody, unless others send datagrams to it.
        let from = src.filter(|src| held.src.is_none() && src.port() == 0 && !is_datagrams);
        if let Some(src) = src
            && held.src.is_none()
            && from.is_none()
        {
            self.bind(id, src)?;
        }
        let from = from.map(|src| src.ip()).filter(|ip| !ip.to_canonical().is_unspecified());
        if from.is_some_and(|ip| !address::is_local(ip.to_canonical())) {
            return Err(libc::ENODEV);
        }
        let anywhere = self.rng.next_u32();
        let held = self.ids.get_mut(&id).ok_or(libc::ENOENT)?;
        let dst = match dst.ip().to_canonical() {
            ip if ip.is_unspecified() => {
                SocketAddr::new(if ip.is_ipv4() { [127, 0, 0, 1].into() } else { own }, dst.port())
            }
            _ => dst,
        };
        // IPv4's may be written as IPv6's.
        let to = dst.ip().to_canonical();
        let here = address::is_local(to);
        let is_out_of_reach = own.is_loopback() || own.is_ipv4() != to.is_ipv4();
        if !here && is_out_of_reach && !to.is_multicast() {
            // Nobody beyond this host can answer to the address that the device has, or the device cannot send there.
            self.tell(id, Kind::AddrError, -libc::ENETUNREACH, |_| ());
            return Ok(());
        }
        if held.bound().is_none_or(|bound| bound.is_any()) {
            let source = if here { address::source(to) } else { own };
            let ip = from.unwrap_or(address::written_as(dst.ip(), source));
            let port = match held.src {
                Some(src) => src.port(),
                None => {
                    let port = self.drawn.draw(held.port_space, anywhere)?;
                    held.is_from_drawn = true;
                    port
                }
            };
            held.src = Some(SocketAddr::new(ip, port));
        }
        held.peer =
            if here { ports::find_bound(held.port_space, dst).or(Some(to)) } else { Some(to) };
        held.dst = Some(dst);
        held.has_device = true;
        self.tell(id, Kind::AddrResolved, 0, |_| ());
        Ok(())
    }

    fn resolve_route(&mut self, resolve: ResolveRoute) -> Result<(), c_int> {
        let id = self.id(resolve.id)?;
        if id.dst.is_none() || id.has_route {
            return Err(libc::EINVAL);
        }
        id.has_route = true;
        self.tell(resolve.id, Kind::RouteResolved, 0, |_| ());
        Ok(())
    }

    /// The path of an id, as far as it is known.
    fn path(&mut self, id: u32) -> Result<(PathRec, bool), c_int> {
        let (gid, mtu) = (self.gid, self.mtu);
        let id = self.id(id)?;
        let mut path = PathRec::zero();
        if id.has_device {
            path.sgid = gid.0;
            path.pkey = PKEY.to_be();
        }
        path.dgid = id.peer.map(|peer| Gid::from(peer).0).unwrap_or_default();
        path.reversible = 1;
        path.mtu = mtu.into();
        path.mtu_selector = 2;
        path.rate_selector = 2;
        path.rate = RATE;
        path.packet_life_time_selector = 2;
        path.packet_life_time = id.ack_timeout.saturating_sub(1);
        path.hop_limit = 64;
        path.traffic_class = id.tos;
        path.numb_path = 1;
        Ok((path, id.has_route))
    }

    fn query_route(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let query: Query = command.read(12)?;
        let (path, routed) = self.path(query.id)?;
        let id = self.id(query.id)?;
        let mut resp = QueryRouteResp::zero();
        resp.src_addr = address::written(id.src).0;
        resp.dst_addr = address::written(id.dst).0;
        if id.has_device {
            resp.node_guid = node_guid().to_be();
            resp.port_num = 1;
            resp.ib_route[0] = path;
            resp.num_paths = routed.into();
        }
        resp.ibdev_index = u32::MAX;
        command.answer(query.response, resp)
    }

    fn query(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let query: Query = command.whole()?;
        let id = self.id(query.id)?;
        // `RDMA_USER_CM_QUERY_ADDR`. The others are for addresses of AF_IB, which are refused.
        if query.option != 0 {
            return Err(libc::ENOSYS);
        }
        let mut resp = QueryAddrResp::zero();
        let (src, src_len) = address::stored(id.src);
        let (dst, dst_len) = address::stored(id.dst);
        (resp.src_addr, resp.src_size) = (src, src_len as u16);
        (resp.dst_addr, resp.dst_size) = (dst, dst_len as u16);
        if id.has_device {
            resp.node_guid = node_guid().to_be();
            resp.port_num = 1;
            resp.pkey = PKEY.to_be();
        }
        resp.ibdev_index = u32::MAX;
        command.answer(query.response, resp)
    }

    /// CONNECT.
    fn ask_for(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let connect: Connect = command.read(std::mem::offset_of!(Connect, ece))?;
        let asks = self.waiting.iter().any(|(.., other)| other.id == connect.id);
        if asks || !self.id(connect.id)?.has_route {
            return Err(libc::EINVAL);
        }
        self.try_connect(command.now, command.now.saturating_add_ns(LISTENERS_COME), connect)
    }

    /// Looks again for those who may listen by now.
    pub(crate) fn look_again(&mut self, now: Time) {
        let (due, later) = self.waiting.drain(..).partition(|(again, ..)| *again <= now);
        self.waiting = later;
        let due: Vec<(Time, Time, Connect)> = due;
        for (_, until, connect) in due {
            let id = connect.id;
            if let Err(error) = self.try_connect(now, until, connect) {
                self.tell(id, Kind::Unreachable, -error, |_| ());
            }
        }
    }

    /// Asks the peer.
    fn try_connect(&mut self, now: Time, until: Time, connect: Connect) -> Result<(), c_int> {
        let param = &connect.conn_param;
        let own = &param.private_data[..usize::from(param.private_data_len)];
        let psn = self.rng.next_u32() & 0xff_ffff;
        let (gid, mtu) = (self.gid, self.mtu);
        let id = self.id(connect.id)?;
        let (Some(src), Some(dst), None) = (id.src, id.dst, id.connection) else {
            return Err(libc::EINVAL);
        };
        // Whoever listens may have come since the address was resolved.
        let Some(peer) = find_peer(id, dst) else {
            if now < until {
                let again = now.saturating_add_ns(LOOK_AGAIN);
                self.waiting.push((again, until, connect));
                return Ok(());
            }
            // As this host's own manager would refuse it.
            let (kind, status) = if id.is_datagrams() {
                (Kind::Unreachable, i32::from(sidr::UNSUPPORTED))
            } else {
                (Kind::Rejected, i32::from(elver_cm::reason::INVALID_SERVICE_ID))
            };
            self.tell(connect.id, kind, status, |_| ());
            return Ok(());
        };
        let header = IpHeader { src_port: src.port(), src: src.ip(), dst: dst.ip() };
        let private = [&header.bytes()[..], own].concat();
        let service = service_of(id.port_space, dst);
        id.peer = Some(peer);
        // Of two interfaces of this host, as loopback and another, each has an MTU.
        let mtu = elver_soft::path_mtu_of(peer).map_or(mtu, |peers| mtu.min(peers.code()));
        if id.is_datagrams() {
            let asked = self.manager.ask(now, peer, service, &private).map_err(errno)?;
            self.connect(connect.id, asked);
            return Ok(());
        }
        id.link.rq_psn = psn;
        id.link.path_mtu = mtu;
        id.link.ack_timeout = id.ack_timeout;
        id.link.retry_count = param.retry_count.min(7);
        id.link.responder_resources = param.responder_resources;
        id.link.initiator_depth = param.initiator_depth;
        let offer = Offer {
            peer,
            service_id: service,
            qpn: param.qp_num,
            transport: u8::from(id.qp_type == UC),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            starting_psn: Psn::from_wrapping(psn),
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq != 0,
            flow_control: param.flow_control != 0,
            path_mtu: mtu,
            local_gid: gid.0,
            remote_gid: Gid::from(peer).0,
            traffic_class: id.tos,
            ack_timeout: id.ack_timeout,
            private,
        };
        let asked = self.manager.connect(now, &offer).map_err(errno)?;
        self.connect(connect.id, asked);
        Ok(())
    }

    fn listen(&mut self, listen: Listen) -> Result<(), c_int> {
        let device = self.address;
        if self.id(listen.id)?.src.is_none() {
            self.bind(listen.id, SocketAddr::new([0, 0, 0, 0].into(), 0))?;
        }
        let id = self.id(listen.id)?;
        let (Some(at), Some(bound), None, None) = (id.src, id.bound(), id.service, id.dst) else {
            return Err(libc::EINVAL);
        };
        let (port_space, holds_port) = (id.port_space, id.holds_port);
        let port = at.port();
        if self.is_taken(port_space, port, bound, |other| other.service.is_some()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let service = Service { id: service_of(port_space, at), address: bound.service_address() };
        // Who listens has the port alone, though others may have bound to it (`rdma_listen` of the kernel's).
        let held = if holds_port {
            None
        } else {
            Some(ports::hold_shared(port_space, port, bound).ok_or(libc::EADDRINUSE)?)
        };
        let told = ports::publish(port_space, port, bound, device).ok_or(libc::EADDRINUSE)?;
        let backlog =
            if (1..=BACKLOG).contains(&listen.backlog) { listen.backlog } else { BACKLOG };
        self.manager.listen(service, backlog).map_err(errno)?;
        self.listens(listen.id, service);
        let id = self.id(listen.id)?;
        id.holds_port = true;
        id.claims.extend(held.into_iter().flatten());
        id.claims.push(told);
        Ok(())
    }

    fn accept(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let accept: Accept = command.read(std::mem::offset_of!(Accept, ece))?;
        let connection = self.connection(accept.id)?;
        let id = self.id(accept.id)?;
        let param = &accept.conn_param;
        let private = &param.private_data[..usize::from(param.private_data_len)];
        if param.valid == 0 && !id.is_datagrams() {
            // The QP is ready for what the peer agreed to.
            return self.manager.ready(connection, &[]).map_err(errno);
        }
        let before = std::mem::replace(&mut id.uid, accept.uid);
        let done = if id.is_datagrams() {
            let qkey = if param.qkey == 0 { UDP_QKEY } else { param.qkey };
            let (now, qpn) = (command.now, param.qp_num);
            self.manager.reply(now, connection, sidr::VALID, qpn, qkey, private)
        } else {
            id.link.responder_resources = param.responder_resources;
            id.link.initiator_depth = param.initiator_depth;
            let answer = Answer {
                qpn: param.qp_num,
                starting_psn: Psn::from_wrapping(id.link.rq_psn),
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                rnr_retry_count: param.rnr_retry_count.min(7),
                srq: param.srq != 0,
                flow_control: param.flow_control != 0,
                private: private.to_vec(),
            };
            self.manager.accept(command.now, connection, &answer)
        };
        if done.is_err() {
            self.id(accept.id)?.uid = before;
        }
        if let Err(Refused::Message(_)) = done {
            // Who cannot be accepted so is refused (`rdma_accept` of the kernel's).
            self.refuse(command.now, accept.id, elver_cm::reason::CONSUMER, &[])?;
        }
        done.map_err(errno)
    }

    fn reject(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let reject: Reject = command.whole()?;
        let private = &reject.private_data[..usize::from(reject.private_data_len)];
        let reason =
            if reject.reason == 0 { elver_cm::reason::CONSUMER } else { u16::from(reject.reason) };
        self.refuse(command.now, reject.id, reason, private)
    }

    fn refuse(&mut self, now: Time, id: u32, reason: u16, private: &[u8]) -> Result<(), c_int> {
        let connection = self.connection(id)?;
        let done = if self.id(id)?.is_datagrams() {
            self.manager.reply(now, connection, sidr::REJECTED, 0, 0, private)
        } else {
            self.manager.reject(now, connection, reason, private)
        };
        done.map_err(errno)
    }

    /// Ends a connection. What is none yet, or none any more, is left as it is (`rdma_disconnect` of the kernel's).
    fn disconnect(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let Disconnect { id } = command.whole()?;
        if self.waiting.iter().any(|(.., connect)| connect.id == id) {
            return Ok(());
        }
        let connection = self.connection(id)?;
        match self.manager.disconnect(command.now, connection) {
            Err(Refused::State(_)) => Ok(()),
            done => done.map_err(errno),
        }
    }

    /// What a QP is to be moved with (`ib_cm_init_qp_attr` of the kernel's).
    fn init_qp_attr(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        const STATE: u32 = 1;
        const ACCESS: u32 = 1 << 3;
        const PKEY_INDEX: u32 = 1 << 4;
        const PORT: u32 = 1 << 5;
        const QKEY: u32 = 1 << 6;
        const RTR: u32 = 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
        const RTR_OF_RC: u32 = 1 << 15 | 1 << 17;
        const RTS: u32 = 1 << 16;
        const RTS_OF_RC: u32 = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13;
        const RIGHTS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
        let init: InitQpAttr = command.whole()?;
        let id = self.id(init.id)?;
        let mut attr = abi::QpAttr::zero();
        attr.qp_state = init.qp_state;
        attr.port_num = 1;
        let reliable = id.qp_type != UC;
        let link = id.link;
        attr.qp_attr_mask = match init.qp_state {
            // INIT
            1 if id.is_datagrams() => {
                attr.qkey = UDP_QKEY;
                STATE | PKEY_INDEX | PORT | QKEY
            }
            1 => {
                attr.qp_access_flags = if id.connection.is_some() { RIGHTS } else { 0 };
                STATE | ACCESS | PKEY_INDEX | PORT
            }
            // RTR
            2 if id.is_datagrams() => STATE,
            2 => {
                let (true, Some(peer)) = (link.known, id.peer) else { return Err(libc::EINVAL) };
                attr.ah_attr = to(Gid::from(peer), id.tos);
                attr.path_mtu = link.path_mtu.into();
                attr.dest_qp_num = link.peer_qpn;
                attr.rq_psn = link.rq_psn;
                attr.max_dest_rd_atomic = link.responder_resources;
                attr.min_rnr_timer = MIN_RNR_TIMER;
                STATE | RTR | if reliable { RTR_OF_RC } else { 0 }
            }
            // RTS
            3 if id.is_datagrams() => STATE | RTS,
            3 => {
                attr.sq_psn = link.sq_psn;
                attr.timeout = link.ack_timeout;
                attr.retry_cnt = link.retry_count;
                attr.rnr_retry = link.rnr_retry_count;
                attr.max_rd_atomic = link.initiator_depth;
                STATE | RTS | if reliable { RTS_OF_RC } else { 0 }
            }
            _ => return Err(libc::EINVAL),
        };
        command.answer(init.response, attr)
    }

    fn set_option(&mut self, option: SetOption) -> Result<(), c_int> {
        let id = self.id(option.id)?;
        let from: *const u8 = std::ptr::with_exposed_provenance(option.optval as usize);
        let length = option.optlen as usize;
        let number = || {
            // SAFETY: the contract of the write: so many bytes are there.
            (length == 4 && !from.is_null())
                .then(|| unsafe { from.cast::<c_int>().read_unaligned() })
        };
        let byte = || {
            // SAFETY: as above.
            (length == 1 && !from.is_null()).then(|| unsafe { from.read() })
        };
        match (option.level, option.optname) {
            (0, 0) => id.tos = byte().ok_or(libc::EINVAL)?,
            (0, 1) => id.reuses_port = number().ok_or(libc::EINVAL)? != 0,
            (0, 2) => id.own_family_only = Some(number().ok_or(libc::EINVAL)? != 0),
            (0, 3) => {
                let timeout = byte().filter(|timeout| *timeout < 32).ok_or(libc::EINVAL)?;
                id.ack_timeout = timeout;
            }
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }
}

/// Where the device is that a program means by an address; none if it is this host's, and nobody listens.
fn find_peer(id: &CmId, dst: SocketAddr) -> Option<IpAddr> {
    let to = dst.ip().to_canonical();
    if address::is_local(to) { ports::find(id.port_space, dst) } else { Some(to) }
}
