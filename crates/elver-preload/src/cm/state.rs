//! What the communication manager of this process knows: event channels, their ids, and the connections
//! behind these.

mod events;

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use elver_cm::{Config, Id, Manager, Service};
use elver_farewell::{Farewells, KEEPER};
use elver_random::Rng;
use elver_soft::SoftDevice;
use elver_verbs::{Cq, Device as _, Gid, Time};
use elver_wire::cm::service_id;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::cm::abi::{self, EventResp, Plain};
use crate::cm::bound::Bound;
use crate::cm::carrier::Carrier;
use crate::cm::drawn::Drawn;
use crate::cm::ends::{Ends, Watch};
use crate::cm::parting::{Closing, Parting, Partings};
use crate::cm::ports::Claim;
use crate::device::node_guid;
use crate::fork::close_in_child;
use crate::gid_index;
use crate::rung::Rung;

/// `IBV_QPT_UD`.
const UD: u8 = 4;
/// `IBV_QPT_UC`.
pub(crate) const UC: u8 = 3;
/// Ids that a process may have.
const IDS: usize = 1 << 16;
const HOP_LIMIT: u8 = 64;
/// ACK timeout of QPs unless a program asks for another: 67 ms.
const ACK_TIMEOUT: u8 = 14;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
}

/// An event that a program has not taken.
pub(crate) struct Queued {
    /// The id whose events are counted.
    of: u32,
    /// The id that a connection request made.
    made: Option<u32>,
    /// The group that it tells of, whose events are counted then.
    group: Option<u32>,
    resp: EventResp,
}

/// What waits at an event channel.
pub(crate) type Events = Rung<Queued>;

/// What the QP of a connection is made ready with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) peer_qpn: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) path_mtu: u8,
    pub(crate) ack_timeout: u8,
    /// Whether the peer's side of it is known.
    pub(crate) known: bool,
}

/// An id of rdma_cm's.
pub(crate) struct CmId {
    pub(crate) uid: u64,
    pub(crate) channel: RawFd,
    pub(crate) port_space: u16,
    pub(crate) qp_type: u8,
    /// Events that were taken.
    pub(crate) reported: u32,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) dst: Option<SocketAddr>,
    /// Where the peer's device is.
    pub(crate) peer: Option<IpAddr>,
    /// That process, if its end is watched for.
    watch: Option<Watch>,
    /// Whether it is the device's: it is bound to an address that the device may have, or has a peer.
    pub(crate) has_device: bool,
    pub(crate) has_route: bool,
    pub(crate) reuses_port: bool,
    /// Whether it leaves its port to addresses of the other family, where it was told.
    pub(crate) own_family_only: Option<bool>,
    pub(crate) tos: u8,
    pub(crate) ack_timeout: u8,
    /// Its port is one of those that connections are from.
    pub(crate) is_from_drawn: bool,
    /// It alone has its port, and shares it with none that reuse it.
    pub(crate) holds_port: bool,
    /// What holds its port, and what tells others of it.
    pub(crate) claims: Vec<Claim>,
    pub(crate) service: Option<Service>,
    pub(crate) connection: Option<Id>,
    /// Its connection was there, and has ended.
    pub(crate) has_ended: bool,
    pub(crate) link: Link,
}

impl CmId {
    pub(crate) fn new(uid: u64, channel: RawFd, port_space: u16, qp_type: u8) -> CmId {
        CmId {
            uid,
            channel,
            port_space,
            qp_type,
            reported: 0,
            src: None,
            dst: None,
            peer: None,
            watch: None,
            has_device: false,
            has_route: false,
            reuses_port: false,
            own_family_only: None,
            tos: 0,
            ack_timeout: ACK_TIMEOUT,
            is_from_drawn: false,
            holds_port: false,
            claims: Vec::new(),
            service: None,
            connection: None,
            has_ended: false,
            link: Link::default(),
        }
    }

    pub(crate) fn is_datagrams(&self) -> bool {
        self.qp_type == UD
    }

    /// What it has of its port, if it has one.
    pub(crate) fn bound(&self) -> Option<Bound> {
        self.src.map(|src| Bound::new(src.ip(), self.own_family_only))
    }
}

/// A group that an id has joined.
pub(crate) struct Joined {
    pub(crate) id: u32,
    pub(crate) uid: u64,
    /// Events that were taken.
    pub(crate) reported: u32,
}

/// The communication manager of this process.
pub(crate) struct Cm {
    carrier: Carrier,
    ends: Ends,
    pub(crate) manager: Manager,
    /// Who speaks for this process when it is killed.
    keeper: Option<Farewells>,
    channels: HashMap<RawFd, Events>,
    partings: Partings,
    pub(crate) ids: HashMap<u32, CmId>,
    by_connection: HashMap<Id, u32>,
    listeners: HashMap<Service, u32>,
    pub(crate) drawn: Drawn,
    next: u32,
    /// Multicast groups.
    pub(crate) joined: HashMap<u32, Joined>,
    pub(crate) next_join: u32,
    /// Connections to ports of this host that nobody listens on yet: when to look again, and until when.
    pub(crate) waiting: Vec<(Time, Time, abi::Connect)>,
    pub(crate) rng: Rng,
    pub(crate) address: IpAddr,
    pub(crate) gid: Gid,
    pub(crate) mtu: u8,
}

impl Cm {
    pub(crate) fn new(device: &mut SoftDevice) -> Result<Cm, c_int> {
        let carrier = Carrier::new(device)?;
        let mut seed = [0; 32];
        getrandom(&mut seed, GetRandomFlags::empty()).map_err(|error| error.raw_os_error())?;
        let mut rng = Rng::new(seed);
        let config = Config { ca_guid: node_guid(), ..Config::default() };
        let manager = Manager::new(config, rng.fork());
        let gid = device.query_gid(0).map_err(|_| libc::ENODEV)?;
        let mtu = device.query_port().active_mtu.code();
        let ends = Ends::new(device.address()).map_err(|error| error.raw_os_error())?;
        Ok(Cm {
            carrier,
            ends,
            manager,
            keeper: keeper(device.address()),
            channels: HashMap::new(),
            partings: Partings::default(),
            ids: HashMap::new(),
            by_connection: HashMap::new(),
            listeners: HashMap::new(),
            drawn: Drawn::default(),
            next: 0,
            joined: HashMap::new(),
            next_join: 0,
            waiting: Vec::new(),
            rng,
            address: device.address(),
            gid,
            mtu,
        })
    }

    /// The CQ of QP 1.
    pub(crate) fn cq(&self) -> Cq {
        self.carrier.cq
    }

    /// What becomes readable when [`Cm::end_orphans`] has something to do.
    pub(crate) fn ends_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }

    /// When there is something to do, if nothing happens before.
    pub(crate) fn due(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|(again, ..)| *again);
        self.manager.due().into_iter().chain(waiting).min()
    }

    pub(crate) fn open(&mut self, program: RawFd, events: Events) {
        self.partings.forget(program);
        self.channels.insert(program, events);
    }

    /// Whether a channel is there: another thread may have closed it just now.
    pub(crate) fn has(&self, channel: RawFd) -> bool {
        self.channels.contains_key(&channel)
    }

    /// Ends a channel that a program closes, and all that it had. What is left goes by [`Cm::part`], when the program's descriptor has:
    /// who waits by that would hear that nobody rings any more.
    pub(crate) fn close(&mut self, now: Time, channel: RawFd) -> Option<Closing> {
        self.end_ids(now, channel);
        self.channels.remove(&channel).map(|events| Closing::new(events.into_bell()))
    }

    /// Lets go of a channel whose descriptor is closed.
    pub(crate) fn part(&mut self, channel: RawFd, closing: Closing, nonblocking: bool) {
        self.partings.add(channel, closing, nonblocking);
    }

    /// How a channel that is none any more has ended.
    pub(crate) fn parting(&self, channel: RawFd) -> Option<Parting> {
        self.partings.of(channel)
    }

    /// Lets go of what nobody sleeps by any more.
    pub(crate) fn sweep(&mut self) {
        self.partings.sweep();
    }

    /// Has those sleep by no bell any more, who slept on as their channel was closed, whose ends are such descriptors.
    pub(crate) fn wake_sleepers(&mut self, are: impl Fn(RawFd) -> bool) {
        self.partings.close(are);
    }

    fn end_ids(&mut self, now: Time, channel: RawFd) {
        let of = |id: &CmId| id.channel == channel;
        let ids: Vec<u32> = self.ids.iter().filter(|(_, id)| of(id)).map(|(id, _)| *id).collect();
        for id in ids {
            self.destroy(now, id);
        }
    }

    /// Ends what all channels have: the process ends, and its other threads may wait by their descriptors.
    pub(crate) fn end_all(&mut self, now: Time) {
        let channels: Vec<RawFd> = self.channels.keys().copied().collect();
        for channel in channels {
            self.end_ids(now, channel);
        }
    }

    pub(crate) fn insert(&mut self, id: CmId) -> Result<u32, c_int> {
        if self.ids.len() >= IDS {
            return Err(libc::ENOMEM);
        }
        while self.ids.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.ids.insert(number, id);
        Ok(number)
    }

    pub(crate) fn id(&mut self, id: u32) -> Result<&mut CmId, c_int> {
        self.ids.get_mut(&id).ok_or(libc::ENOENT)
    }

    /// Whether an id is one of some others that have a port at all addresses, or at one where it is wanted at all.
    pub(crate) fn is_taken(
        &self,
        port_space: u16,
        port: u16,
        wanted: Bound,
        of: impl Fn(&CmId) -> bool,
    ) -> bool {
        let has = |id: &CmId| {
            let is_there = id.src.is_some_and(|src| src.port() == port);
            is_there && id.bound().is_some_and(|held| held.shuts_out(&wanted))
        };
        self.ids.values().any(|id| id.port_space == port_space && has(id) && of(id))
    }

    /// Whether the program has an id of datagrams with an address.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.ids.values().any(|id| id.is_datagrams() && id.has_device)
    }

    /// An id's connection, and where it is kept.
    pub(crate) fn connection(&mut self, id: u32) -> Result<Id, c_int> {
        self.id(id)?.connection.ok_or(libc::EINVAL)
    }

    pub(crate) fn connect(&mut self, id: u32, connection: Id) {
        if let Some(held) = self.ids.get_mut(&id) {
            held.connection = Some(connection);
            self.by_connection.insert(connection, id);
        }
    }

    pub(crate) fn listens(&mut self, id: u32, service: Service) {
        if let Some(held) = self.ids.get_mut(&id) {
            held.service = Some(service);
            self.listeners.insert(service, id);
        }
    }

    /// Destroys an id; how many of its events were taken.
    pub(crate) fn destroy(&mut self, now: Time, id: u32) -> Option<u32> {
        let gone = self.ids.remove(&id)?;
        if let (Some(peer), Some(watch)) = (gone.peer, gone.watch) {
            self.ends.unwatch(peer, watch);
        }
        if let Some(src) = gone.src
            && gone.is_from_drawn
        {
            self.drawn.give_back(gone.port_space, src.port());
        }
        self.waiting.retain(|(.., connect)| connect.id != id);
        self.joined.retain(|_, joined| joined.id != id);
        if let Some(service) = gone.service {
            self.listeners.remove(&service);
            self.manager.unlisten(now, service);
        }
        if let Some(connection) = gone.connection {
            self.by_connection.remove(&connection);
            self.manager.let_go(now, connection);
        }
        let channel = self.channels.get_mut(&gone.channel);
        let dropped = channel.map(|events| events.extract(|event| event.of == id));
        // Requests that nobody took are refused.
        for made in dropped.into_iter().flatten().filter_map(|event| event.made) {
            self.destroy(now, made);
        }
        Some(gone.reported)
    }

    /// Moves an id and its events to another channel; how many of them were taken. Who takes a request there finds its id
    /// there too: librdmacm has it at its listener's.
    pub(crate) fn migrate(&mut self, id: u32, to: RawFd) -> Result<u32, c_int> {
        if !self.channels.contains_key(&to) {
            return Err(libc::EINVAL);
        }
        let held = self.ids.get_mut(&id).ok_or(libc::ENOENT)?;
        let from = std::mem::replace(&mut held.channel, to);
        let reported = held.reported;
        if from != to
            && let Some(channel) = self.channels.get_mut(&from)
        {
            let moved = channel.extract(|event| event.of == id);
            for made in moved.iter().filter_map(|event| event.made) {
                if let Some(made) = self.ids.get_mut(&made) {
                    made.channel = to;
                }
            }
            if let Some(channel) = self.channels.get_mut(&to) {
                moved.into_iter().for_each(|event| channel.push(event));
            }
        }
        Ok(reported)
    }

    /// Takes a channel's oldest event, by a ring that was taken or by the next.
    pub(crate) fn next(&mut self, channel: RawFd, ring: Option<u64>) -> Result<EventResp, c_int> {
        let channel = self.channels.get_mut(&channel).ok_or(libc::EBADF)?;
        let event = match ring {
            Some(ring) => channel.pop(ring),
            None => channel.next(),
        };
        let mut event = event.ok_or(libc::EAGAIN)?;
        // A group's events are its id's too: librdmacm counts both, and waits for both.
        if let Some(joined) = event.group.and_then(|group| self.joined.get_mut(&group)) {
            joined.reported += 1;
        }
        if let Some(id) = self.ids.get_mut(&event.of) {
            id.reported += 1;
            if event.group.is_none() {
                event.resp.uid = id.uid;
            }
        }
        if let Some(connection) = event.made.and_then(|made| self.ids.get(&made)?.connection) {
            self.manager.taken(connection);
        }
        Ok(event.resp)
    }

    /// Tells an id of something, with what goes with it.
    pub(crate) fn tell(
        &mut self,
        id: u32,
        kind: Kind,
        status: c_int,
        set: impl FnOnce(&mut EventResp),
    ) {
        self.queue(id, None, kind, status, set);
    }

    fn queue(
        &mut self,
        of: u32,
        made: Option<u32>,
        kind: Kind,
        status: c_int,
        set: impl FnOnce(&mut EventResp),
    ) {
        let Some(id) = self.ids.get(&of) else { return };
        let Some(channel) = self.channels.get_mut(&id.channel) else { return };
        // A connection that the program has not accepted has no name for it yet (as in the kernel).
        if id.uid == 0 {
            return;
        }
        let mut resp = EventResp::zero();
        resp.uid = id.uid;
        resp.id = made.unwrap_or(of);
        resp.event = kind as u32;
        resp.status = status as u32;
        set(&mut resp);
        channel.push(Queued { of, made, group: None, resp });
    }

    /// Tells an id of a group that it joined.
    pub(crate) fn tell_group(&mut self, group: u32, kind: Kind, set: impl FnOnce(&mut EventResp)) {
        let Some(joined) = self.joined.get(&group) else { return };
        let Some(id) = self.ids.get(&joined.id) else { return };
        let Some(channel) = self.channels.get_mut(&id.channel) else { return };
        let mut resp = EventResp::zero();
        (resp.uid, resp.id, resp.event) = (joined.uid, group, kind as u32);
        set(&mut resp);
        channel.push(Queued { of: joined.id, made: None, group: Some(group), resp });
    }

    /// Forgets what an id was to be told of a group.
    pub(crate) fn forget_group(&mut self, id: u32, group: u32) {
        let Some(id) = self.ids.get(&id) else { return };
        let Some(channel) = self.channels.get_mut(&id.channel) else { return };
        channel.extract(|event| event.group == Some(group));
    }
}

/// Has the keeper that `elver run` started watch over this process. Where there is none, peers on other hosts notice its end
/// by their QPs' retries.
fn keeper(own: IpAddr) -> Option<Farewells> {
    let name = std::env::var(KEEPER).ok()?;
    let keeper = Farewells::new(&name, own).ok()?;
    keeper.fds().iter().for_each(|fd| close_in_child(fd.as_raw_fd()));
    Some(keeper)
}

/// The service of a port.
pub(crate) fn service_of(port_space: u16, at: SocketAddr) -> u64 {
    service_id(port_space, at.port())
}

/// How packets get to a GID.
pub(crate) fn to(gid: Gid, traffic_class: u8) -> abi::AhAttr {
    let mut attr = abi::AhAttr::zero();
    attr.grh.dgid = gid.0;
    attr.grh.sgid_index = gid_index::own();
    attr.grh.hop_limit = HOP_LIMIT;
    attr.grh.traffic_class = traffic_class;
    attr.is_global = 1;
    attr.port_num = 1;
    attr
}
