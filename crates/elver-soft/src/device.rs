use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use elver_memory::SoftMemory;
use elver_rnic::{Config, Counters, MAX_PACKET, MrChange, Rnic, RxMeta, Seed, Time};
use elver_verbs::{
    AccessFlags, AddressVector, Ah, Cq, Device, Gid, Mr, MrInfo, Mtu, MwInfo, Pd, PostError, Qp,
    QpAttr, QpMade, SendFlags, SendOp, SendWr, Srq, SrqInit, VerbsError, Wc, Xrcd,
};
use elver_wire::{Flow, HEADERS_MAX, ICRC_LEN, IpId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::SoftError;
use crate::bypass::Bypass;
use crate::capture::tap::Tap;
use crate::capture::{Capture, FileCapture, LinkType};
use crate::clock::now;
use crate::errands::Errands;
use crate::faults::{FaultState, Faults};
use crate::frames::{FrameCounters, FrameLink, FramePort};
use crate::groups::Groups;
use crate::inlet::{Inlet, hand};
use crate::interface::Interface;
use crate::link::{Link, Port, UdpPort};
use crate::publish::Publisher;
use crate::transmit::{Send, Transmitter};
use crate::udp::{HOP_LIMIT_HIDDEN, UdpIo};

/// ECT(0) (RFC 3168): what packets carry unless a QP asks for another traffic class.
const TRAFFIC_CLASS: u8 = 0b10;
/// Polls that found completions before one of them drives the device all the same.
const POLLS_PER_PROGRESS: u32 = 64;
/// Posts after which packets leave even if nobody polls.
const POSTS_PER_FLUSH: u32 = 16;
/// Empty looks at the socket before one at the clock.
const EMPTY_PER_CLOCK: u32 = 8;
/// Packets that came past the link and are taken at once.
const BESIDE_MAX: u32 = 64;
/// Time between two looks at the link while all comes past it. Looks at what comes past it say nothing of time: who
/// lets others run between them, or polls once a millisecond, would leave the link until its socket overflows.
const LINK_INTERVAL_NS: u64 = 5_000;
/// Looks at the link in vain before it is looked at so seldom.
const LINK_QUIET: u32 = 16;
/// Looks at the socket in a row that found something before what gives way is sent all the same.
const HELD_MAX: u32 = 4;
/// How often the counters are published.
const PUBLISH_INTERVAL_NS: u64 = 50_000_000;

/// How a soft device is opened.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// The RNIC itself. Its first address is the one that a UDP socket is bound to; a frame link
    /// brings its own addresses, and these are overwritten. The path MTU and the GUID are taken
    /// from the interface or the frame link.
    pub rnic: Config,
    /// What packets travel over.
    pub link: Link,
    /// Whether trains leave in one piece where the kernel can cut them (UDP GSO).
    pub gso: bool,
    /// Whether trains arrive in one piece where the kernel can join them (UDP GRO).
    pub gro: bool,
    /// Receive buffer of the socket in bytes. Beyond the system's limit it needs CAP_NET_ADMIN.
    pub rcvbuf: usize,
    /// Send buffer of the socket in bytes, likewise.
    pub sndbuf: usize,
    /// A pcapng file that every packet is written to.
    pub capture: Option<PathBuf>,
    /// Most bytes of the capture file; what comes later is not recorded.
    pub capture_bytes_max: u64,
    /// Whether other processes can read the counters.
    pub publish: bool,
    /// What befalls the packets that arrive, to see how it is borne.
    pub faults: Faults,
}

impl SoftConfig {
    /// The default configuration for an address of this host.
    pub fn for_address(address: IpAddr) -> SoftConfig {
        SoftConfig {
            rnic: Config::for_address(address),
            link: Link::Udp,
            gso: true,
            gro: true,
            rcvbuf: 8 << 20,
            sndbuf: 4 << 20,
            capture: None,
            capture_bytes_max: 1 << 30,
            publish: true,
            faults: Faults::default(),
        }
    }

    /// The default configuration for a station of an Ethernet link.
    pub fn for_frames(link: FrameLink) -> SoftConfig {
        let address = link.addresses.first().map_or(IpAddr::from([0; 4]), |first| first.ip);
        SoftConfig { link: Link::Frames(link), ..SoftConfig::for_address(address) }
    }
}

/// The software RNIC in real time, over a UDP socket or a frame link.
///
/// Its caller drives it: [`Device::poll_cq`] makes progress when it finds no completion, and
/// [`Device::progress`] does so at any time. To let a thread drive it, give it to
/// [`crate::SoftThread`] or call [`crate::drive`] on a thread of your own. QPs of one device copy
/// from MR to MR; such traffic makes no system call.
pub struct SoftDevice {
    rnic: Rnic<SoftMemory>,
    port: Port,
    address: IpAddr,
    capture: Option<Box<Capture>>,
    link_type: LinkType,
    publisher: Option<Publisher>,
    published_at: Time,
    faults: Option<Box<FaultState>>,
    polls: u32,
    posts: u32,
    /// Looks at the socket that what gives way was held for and that found something, in a row.
    held: u32,
    /// Looks at the socket that found nothing.
    empty: u32,
    /// When the clock was looked at last.
    looked_at: Time,
    errands: Errands,
    /// For what comes past the link; empty where nothing does.
    beside: Vec<u8>,
    /// Looks at the link in vain, in a row, and when the last of them was.
    quiet: u32,
    link_looked_at: Time,
    /// The index of the interface of a UDP socket.
    interface: u32,
    /// The sockets of multicast groups, once there was one.
    groups: Option<Box<Groups>>,
}

impl SoftDevice {
    /// Opens a device on an address of this host, or on a frame link.
    ///
    /// # Errors
    ///
    /// [`SoftError::Config`] if the RNIC's limits cannot be; otherwise what of the socket, the interface, the
    /// frame link or the capture file is not to be had: the error names it, and what helps.
    pub fn open(config: SoftConfig) -> Result<SoftDevice, SoftError> {
        let (port, rnic, interface, link_type) = match &config.link {
            Link::Udp => {
                let (port, rnic, interface) = open_udp(&config)?;
                (Port::Udp(Box::new(port)), rnic, interface, LinkType::Ip)
            }
            Link::Frames(link) => {
                let (port, rnic) = open_frames(&config, link)?;
                (Port::Frames(Box::new(port)), rnic, 0, LinkType::Ethernet)
            }
        };
        let Some(&address) = rnic.addresses.first() else {
            return Err(no_address());
        };
        let capture = match &config.capture {
            None => None,
            Some(path) => {
                let refused = |reason| SoftError::Capture { path: path.clone(), reason };
                let most = config.capture_bytes_max;
                let file = FileCapture::create(path, most, link_type, &rnic.name);
                Some(Box::new(Capture::File(file.map_err(refused)?)))
            }
        };
        let name = rnic.name.clone();
        let rnic = Rnic::new(rnic, seed()?)?;
        let publisher = if config.publish {
            let frames = port.frame_counters().into_iter().flat_map(FrameCounters::iter);
            let names = rnic.counters().iter().chain(frames).map(|(name, _)| name);
            Publisher::open(&name, &address.to_string(), names).ok()
        } else {
            None
        };
        Ok(SoftDevice {
            rnic,
            port,
            address,
            capture,
            link_type,
            publisher,
            published_at: Time::ZERO,
            faults: FaultState::new(config.faults, now()).map(Box::new),
            polls: 0,
            held: 0,
            posts: 0,
            empty: 0,
            looked_at: Time::ZERO,
            beside: Vec::new(),
            quiet: 0,
            link_looked_at: Time::ZERO,
            errands: Errands::new()
                .map_err(|reason| SoftError::System { call: "eventfd", reason })?,
            interface,
            groups: None,
        })
    }

    /// The first of its addresses: the one that a UDP socket is bound to.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The name of the network interface that has its address; none over a frame link.
    pub fn interface(&self) -> Option<String> {
        crate::interface::name_of(self.address).ok().flatten()
    }

    /// What it has done and seen.
    pub fn counters(&self) -> &Counters {
        self.rnic.counters()
    }

    /// Bytes that wait for memory of processes which is not at hand.
    pub fn waiting_bytes(&self) -> u64 {
        self.rnic.waiting_bytes()
    }

    /// What the RNIC was made with, as the interface changed it.
    pub fn config(&self) -> &Config {
        self.rnic.config()
    }

    /// As [`Rnic::rereg_mr`].
    ///
    /// # Errors
    /// As there.
    pub fn rereg_mr(&mut self, mr: Mr, change: MrChange<SoftMemory>) -> Result<(), VerbsError> {
        self.rnic.rereg_mr(mr, change)
    }

    /// As [`Rnic::alloc_mw_type_1`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc_mw_type_1(&mut self, pd: Pd) -> Result<MwInfo, VerbsError> {
        self.rnic.alloc_mw_type_1(pd)
    }

    /// As [`Rnic::open_xrcd`].
    ///
    /// # Errors
    /// As there.
    pub fn open_xrcd(&mut self) -> Result<Xrcd, VerbsError> {
        self.rnic.open_xrcd()
    }

    /// As [`Rnic::close_xrcd`].
    ///
    /// # Errors
    /// As there.
    pub fn close_xrcd(&mut self, xrcd: Xrcd) -> Result<(), VerbsError> {
        self.rnic.close_xrcd(xrcd)
    }

    /// As [`Rnic::create_xrc_srq`].
    ///
    /// # Errors
    /// As there.
    pub fn create_xrc_srq(&mut self, init: SrqInit, xrcd: Xrcd, cq: Cq) -> Result<Srq, VerbsError> {
        self.rnic.create_xrc_srq(init, xrcd, cq)
    }

    /// As [`Rnic::create_xrc_target`].
    ///
    /// # Errors
    /// As there.
    pub fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<Qp, VerbsError> {
        self.rnic.create_xrc_target(xrcd)
    }

    /// As [`Rnic::create_multicast_ah`].
    ///
    /// # Errors
    /// As there.
    pub fn create_multicast_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.rnic.create_multicast_ah(pd, av)
    }

    /// As [`Rnic::attach_multicast`]; and what is sent to the group is brought from now on.
    ///
    /// # Errors
    /// As there; [`SoftError::System`], [`SoftError::Option`] or [`SoftError::Bind`] if the group cannot be joined.
    pub fn attach_multicast(&mut self, qp: Qp, group: Gid) -> Result<(), SoftError> {
        if !self.rnic.attach_multicast(qp, group)? {
            return Ok(());
        }
        let joined = self.join(group.to_ip());
        if joined.is_err() {
            self.rnic.detach_multicast(qp, group)?;
        }
        joined
    }

    /// Has the datagrams of a group brought.
    fn join(&mut self, group: IpAddr) -> Result<(), SoftError> {
        if let Port::Frames(port) = &mut self.port {
            port.host_mut().join(group);
            return Ok(());
        }
        let groups = match &mut self.groups {
            Some(groups) => groups,
            none => none.insert(Box::new(Groups::new()?)),
        };
        groups.join(SocketAddr::new(group, self.rnic.config().udp_port), self.interface)
    }

    /// As [`Rnic::detach_multicast`].
    ///
    /// # Errors
    /// As there.
    pub fn detach_multicast(&mut self, qp: Qp, group: Gid) -> Result<(), VerbsError> {
        if self.rnic.detach_multicast(qp, group)? {
            if let Port::Frames(port) = &mut self.port {
                port.host_mut().leave(group.to_ip());
            }
            if let Some(groups) = &mut self.groups {
                groups.leave(group.to_ip());
            }
        }
        Ok(())
    }

    /// What becomes readable, besides [`SoftDevice::as_fd`], when a datagram to a multicast group is there. None
    /// before a QP was attached to one, and where they come the same way as all packets.
    pub fn groups_fd(&self) -> Option<BorrowedFd<'_>> {
        self.groups.as_deref().map(Groups::as_fd)
    }

    /// As [`Rnic::resize_cq`].
    ///
    /// # Errors
    /// As there.
    pub fn resize_cq(&mut self, cq: Cq, cqe: u32) -> Result<(), VerbsError> {
        self.rnic.resize_cq(cq, cqe)
    }

    /// As [`Rnic::resize_srq`].
    ///
    /// # Errors
    /// As there.
    pub fn resize_srq(&mut self, srq: Srq, max_wr: u32) -> Result<(), VerbsError> {
        self.rnic.resize_srq(srq, max_wr)
    }

    /// Takes completions that are there, as [`Device::poll_cq`], without driving the device.
    ///
    /// # Errors
    /// An unknown CQ.
    pub fn take_completions(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        self.rnic.poll_cq(cq, wcs)
    }

    /// As [`Rnic::errored_streams`].
    ///
    /// # Errors
    /// As there.
    pub fn errored_streams(&self, qp: Qp) -> Result<u32, VerbsError> {
        self.rnic.errored_streams(qp)
    }

    /// As [`Rnic::check_sends`].
    ///
    /// # Errors
    /// As there.
    pub fn check_sends<'a>(
        &self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        self.rnic.check_sends(qp, wrs)
    }

    /// Gives the device another way to some others; only one on a UDP socket takes it.
    pub fn set_bypass(&mut self, bypass: Box<dyn Bypass>) {
        if let Port::Udp(port) = &mut self.port {
            port.transmitter.bypass = Some(bypass);
            self.beside = vec![0; MAX_PACKET];
        }
    }

    /// Pulls the cable, or puts it back: while it is out, nothing leaves and nothing arrives, and queue pairs know it by
    /// their retries alone. Only of a device on a UDP socket.
    pub fn set_link(&mut self, up: bool) {
        if let Port::Udp(port) = &mut self.port {
            port.io.down = !up;
            self.faults.get_or_insert_with(|| Box::new(FaultState::none())).down = !up;
        }
    }

    /// Whether something came past the link, which [`SoftDevice::as_fd`] does not tell of.
    pub fn has_beside(&mut self) -> bool {
        self.port.bypass().is_some_and(|(bypass, _)| bypass.has_more())
    }

    /// Takes what came past the link. Whether there was something.
    #[inline]
    fn take_beside(&mut self) -> bool {
        let SoftDevice { rnic, port, beside, .. } = self;
        let Some((bypass, address)) = port.bypass() else { return false };
        if !bypass.has_more() {
            return false;
        }
        let (now, udp_port) = (now(), rnic.config().udp_port);
        for _ in 0..BESIDE_MAX {
            let Some((from, traffic_class, len)) = bypass.take(beside) else { break };
            let flow = Flow { src: (from, udp_port).into(), dst: (address, udp_port).into() };
            let (hop_limit, ip_id) = (HOP_LIMIT_HIDDEN, IpId::Likely(0));
            let meta = RxMeta { flow, traffic_class, hop_limit, ip_id };
            rnic.handle_unsealed(now, &meta, &beside[..len]);
        }
        bypass.took();
        self.transmit(now);
        true
    }

    /// As [`Rnic::check_direct`].
    #[inline]
    pub fn check_direct(
        &mut self,
        qp: Qp,
        wr: &SendWr<'_>,
        ahead: usize,
        piece: impl FnMut(&SoftMemory, u64, u32) -> bool,
    ) -> Option<u32> {
        self.rnic.check_direct(qp, wr, ahead, piece)
    }

    /// As [`Rnic::end_direct`].
    #[inline]
    pub fn end_direct(&mut self, qp: Qp, wr_id: u64, op: &SendOp, flags: SendFlags, length: u32) {
        self.rnic.end_direct(qp, wr_id, op, flags, length);
    }

    /// As [`Rnic::count_direct_refused`].
    pub fn count_direct_refused(&mut self, wrs: u64, peers: u64) {
        self.rnic.count_direct_refused(wrs, peers);
    }

    /// As [`Rnic::failures`].
    #[inline]
    pub fn failures(&self) -> u64 {
        self.rnic.failures()
    }

    /// Gives what goes over the link from now on to a tap, or to nobody. It takes the place of a
    /// file, or of another tap. What QPs of this device send each other does not go over the link.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.capture = tap.map(|tap| Box::new(Capture::Tap(tap)));
    }

    /// What recorded packets begin with.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    /// What a frame link has done and seen, where there is one.
    pub fn frame_counters(&self) -> Option<&FrameCounters> {
        self.port.frame_counters()
    }

    /// Whether trains leave in one piece: the kernel segments them.
    pub fn segments(&self) -> bool {
        matches!(&self.port, Port::Udp(port) if port.io.gso)
    }

    /// Whether trains arrive in one piece: the kernel joins them.
    pub fn joins(&self) -> bool {
        matches!(&self.port, Port::Udp(port) if port.io.gro)
    }

    /// Trains or frames that the kernel refused to send for another reason than want of room.
    pub fn sends_lost(&self) -> u64 {
        match &self.port {
            Port::Udp(port) => port.transmitter.lost,
            Port::Frames(port) => port.host().counters.frame_drop_refused,
        }
    }

    /// What becomes readable when a packet is there, for who watches many devices at once; timers are
    /// not told that way. None where no packet will come.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.poll_fd().map(|(fd, _)| fd)
    }

    /// When a timer is due, for who sleeps on [`SoftDevice::as_fd`] himself; none if none
    /// runs.
    pub fn due(&self) -> Option<Time> {
        let due = [self.rnic.poll_timeout(), self.port.poll_timeout(), self.late_due()];
        due.into_iter().flatten().min()
    }

    /// Sleeps until a packet arrives, a timer is due or `at_most` has passed.
    ///
    /// # Errors
    ///
    /// [`SoftError::System`] if the system does not wait so long, or at all. A signal ends the wait, and is no
    /// error.
    pub fn wait(&mut self, at_most: Duration) -> Result<(), SoftError> {
        self.wait_beside(at_most, None)
    }

    /// As [`SoftDevice::wait`], and until `wake` is readable.
    ///
    /// # Errors
    ///
    /// As [`SoftDevice::wait`].
    pub fn wait_beside(
        &mut self,
        at_most: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), SoftError> {
        let mut wait = at_most;
        if let Some(due) = self.due() {
            wait = wait.min(Duration::from_nanos(due.ns_since(now())));
        }
        if self.rnic.has_errands() {
            return Ok(());
        }
        if let Some((_, look)) = self.errands.bell() {
            wait = wait.min(look);
        }
        let timeout = Timespec::try_from(wait).map_err(|_| SoftError::System {
            call: "ppoll",
            reason: std::io::ErrorKind::InvalidInput.into(),
        })?;
        let bell = self.errands.bell();
        let link = self.port.poll_fd().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        let others = [wake, bell.map(|(fd, _)| fd), self.groups_fd()]
            .map(|fd| fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let mut all: Vec<PollFd<'_>> = [link].into_iter().chain(others).flatten().collect();
        let polled = poll(&mut all, Some(&timeout));
        if bell.is_some() {
            self.errands.hush();
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(SoftError::System { call: "ppoll", reason: error.into() }),
        }
    }

    #[inline]
    fn now(&self) -> Time {
        now()
    }

    /// Gives what arrived to the RNIC.
    fn take(&mut self, now: Time, count: usize) {
        let SoftDevice { rnic, port, capture, faults, .. } = self;
        port.take(count, Inlet { now, rnic, capture, faults });
    }

    /// Takes what came before and was to be taken later. Whether there was something.
    #[cold]
    fn take_late(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, faults, .. } = self;
        let Some(faults) = faults else { return false };
        let mut any = false;
        while let Some((meta, packet)) = faults.take_due(now) {
            hand(rnic, now, &meta, &packet);
            any = true;
        }
        any && {
            self.transmit(now);
            true
        }
    }

    /// Takes what came for multicast groups. Whether there was something.
    #[cold]
    fn take_groups(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, groups, capture, faults, .. } = self;
        let inlet = &mut Inlet { now, rnic, capture, faults };
        groups.as_mut().is_some_and(|groups| groups.take(inlet))
    }

    /// When a packet that came before is to be taken.
    fn late_due(&self) -> Option<Time> {
        self.faults.as_ref().and_then(|faults| faults.due())
    }

    /// Sends what there is to send.
    fn transmit(&mut self, now: Time) -> bool {
        let SoftDevice { rnic, port, capture, .. } = self;
        port.transmit(now, rnic, capture, Send::All)
    }

    /// Sends what does not give way.
    fn transmit_urgent(&mut self, now: Time) {
        let SoftDevice { rnic, port, capture, .. } = self;
        port.transmit(now, rnic, capture, Send::Urgent);
    }

    fn drive(&mut self) -> bool {
        let late = self.faults.is_some() && self.take_late();
        let taken = self.groups.is_some() && self.take_groups();
        let acted = self.look_around() || late || taken;
        if self.rnic.has_errands() || self.errands.any() {
            self.run_errands() | acted
        } else {
            acted
        }
    }

    /// Has copies made that could have to wait.
    #[cold]
    fn run_errands(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, errands, .. } = self;
        errands.run(now, rnic) && {
            self.transmit(now);
            true
        }
    }

    fn look_around(&mut self) -> bool {
        self.posts = 0;
        self.polls = 0;
        if self.beside.is_empty()
            || !self.port.bypass().is_some_and(|(bypass, _)| bypass.has_peers())
        {
            return self.look_at_link();
        }
        let beside = self.take_beside();
        // A look at the socket costs more than all else: one where nothing has come for long is rare.
        let waits = self.port.is_waiting() || self.rnic.wants_to_transmit();
        if self.quiet >= LINK_QUIET && !waits {
            let now = now();
            if now.ns_since(self.link_looked_at) < LINK_INTERVAL_NS {
                return beside;
            }
            self.link_looked_at = now;
        }
        let acted = self.look_at_link();
        self.quiet = if acted { 0 } else { self.quiet.saturating_add(1) };
        acted | beside
    }

    fn look_at_link(&mut self) -> bool {
        let sends = self.port.is_waiting() || self.rnic.wants_to_transmit();
        let holds = self.rnic.gives_way() && self.held < HELD_MAX;
        let mut sent = sends && !holds && self.transmit(now());
        let count = self.port.receive();
        if count == 0 {
            self.held = 0;
            sent |= holds && self.transmit(now());
            // Looking at the clock costs a good part of an empty look at the socket.
            self.empty = self.empty.wrapping_add(1);
            if self.empty.is_multiple_of(EMPTY_PER_CLOCK) {
                // What came before the clock was last looked at is taken: the socket was asked
                // since, and is empty.
                if self.late_due().is_none() {
                    self.rnic.caught_up(self.looked_at);
                }
                self.looked_at = now();
                return self.attend(self.looked_at) || sent;
            }
            return sent;
        }
        let now = now();
        self.looked_at = now;
        self.take(now, count);
        if holds {
            self.held += 1;
            self.transmit_urgent(now);
        } else {
            self.held = 0;
            self.transmit(now);
        }
        self.attend(now);
        true
    }

    /// Does what is due by the clock.
    fn attend(&mut self, now: Time) -> bool {
        if now.ns_since(self.published_at) >= PUBLISH_INTERVAL_NS {
            self.published_at = now;
            self.publish();
        }
        let asks = self.port.handle_timeout(now);
        if self.rnic.poll_timeout().is_none_or(|due| due > now) {
            return asks && self.transmit(now);
        }
        self.rnic.handle_timeout(now);
        self.transmit(now)
    }

    /// Tells other processes what it has counted by now: who ends without dropping it.
    pub fn publish(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            let frames = self.port.frame_counters().into_iter().flat_map(FrameCounters::iter);
            publisher.update(self.rnic.counters().iter().chain(frames).map(|(_, value)| value));
        }
    }

    /// Lets posted packets leave at once when the device is idle, and in trains when posts come
    /// faster than polls.
    #[inline]
    fn posted(&mut self, now: Time) {
        if self.posts.is_multiple_of(POSTS_PER_FLUSH) {
            self.transmit(now);
        }
        self.posts += 1;
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        self.publish();
    }
}

/// Binds a UDP socket to the first address, and fits the RNIC to its interface, whose index it tells.
fn open_udp(config: &SoftConfig) -> Result<(UdpPort, Config, u32), SoftError> {
    let mut rnic = config.rnic.clone();
    let Some(&address) = rnic.addresses.first() else {
        return Err(no_address());
    };
    let bound = SocketAddr::new(address, rnic.udp_port);
    let (rcvbuf, sndbuf) = (config.rcvbuf, config.sndbuf);
    let io = UdpIo::bind(bound, rcvbuf, sndbuf, config.gso, config.gro, TRAFFIC_CLASS)?;
    let interface = Interface::of(address, io.as_fd())?;
    rnic.active_mtu = rnic.active_mtu.min(path_mtu(&interface.name, interface.mtu, address)?);
    if rnic.node_guid == 0 {
        rnic.node_guid = interface.eui64(address);
    }
    if address.is_ipv6() {
        io.multicast_over(interface.index)?;
    }
    let transmitter = Transmitter::new(address);
    Ok((UdpPort { io, transmitter, address }, rnic, interface.index))
}

/// Opens a frame link, and fits the RNIC to it.
fn open_frames(config: &SoftConfig, link: &FrameLink) -> Result<(FramePort, Config), SoftError> {
    link.validate()?;
    let mut rnic = config.rnic.clone();
    rnic.addresses = link.addresses.iter().map(|local| local.ip).collect();
    for &address in &rnic.addresses {
        rnic.active_mtu = rnic.active_mtu.min(path_mtu("of frames", link.mtu, address)?);
    }
    if rnic.node_guid == 0 {
        rnic.node_guid = link.station().eui64();
    }
    let port = FramePort::open(link.clone(), rnic.udp_port, config.rcvbuf, config.sndbuf)?;
    Ok((port, rnic))
}

fn no_address() -> SoftError {
    let what = "a device needs an address; set Config::addresses";
    VerbsError::InvalidArgument { what }.into()
}

/// The largest path MTU that an interface carries.
fn path_mtu(interface: &str, mtu: u32, address: IpAddr) -> Result<Mtu, SoftError> {
    let ip = if address.is_ipv4() { 20 } else { 40 };
    let overhead = (ip + 8 + HEADERS_MAX + ICRC_LEN) as u32;
    Mtu::at_most(mtu.saturating_sub(overhead)).ok_or_else(|| SoftError::Mtu {
        interface: interface.to_string(),
        mtu,
        needed: Mtu::Mtu256.bytes() + overhead,
    })
}

/// A seed from the operating system's generator.
fn seed() -> Result<Seed, SoftError> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| SoftError::System { call: "getrandom", reason: error.into() })?;
    Ok(bytes.into())
}

/// Whether memory can be registered with such rights.
fn can_open(memory: &SoftMemory, access: AccessFlags) -> Result<(), VerbsError> {
    if access.contains(AccessFlags::REMOTE_ATOMIC) && memory.is_foreign() {
        let what = "remote atomics on memory that another process registered; \
                    let the process allocate the memory at the node instead";
        return Err(VerbsError::Unsupported { what });
    }
    Ok(())
}

impl Device for SoftDevice {
    type Memory = SoftMemory;

    elver_rnic::calls_of_rnic!(rnic, now);

    fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpMade), VerbsError> {
        self.rnic.query_qp(qp)
    }

    fn alloc_memory(&mut self, len: u64) -> Result<SoftMemory, VerbsError> {
        SoftMemory::alloc(len).map_err(|_| VerbsError::OutOfRange {
            name: "memory that can be mapped, in bytes",
            value: len,
            min: 0,
            max: self.rnic.config().max_mr_size,
        })
    }

    fn reg_mr(
        &mut self,
        pd: Pd,
        memory: SoftMemory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        can_open(&memory, access)?;
        self.rnic.reg_mr(pd, memory, iova, access)
    }

    fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: SoftMemory,
        part: (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        can_open(&memory, access)?;
        self.rnic.reg_mr_part(pd, memory, part, iova, access)
    }

    fn write_region(
        &mut self,
        mr: Mr,
        offset: u64,
        bytes: &[u8],
        cq: Cq,
        wr_id: u64,
    ) -> Result<bool, VerbsError> {
        self.rnic.write_region(mr, offset, bytes, cq, wr_id)
    }

    #[inline]
    fn poll_cq(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        let count = self.rnic.poll_cq(cq, wcs)?;
        if count > 0 {
            self.polls += 1;
            if self.polls >= POLLS_PER_PROGRESS {
                self.drive();
            }
            return Ok(count);
        }
        if !self.drive() {
            return Ok(0);
        }
        self.rnic.poll_cq(cq, wcs)
    }

    #[inline]
    fn post_send(&mut self, qp: Qp, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        let now = now();
        let result = self.rnic.post_send(now, qp, wrs);
        self.posted(now);
        result
    }

    #[inline]
    fn post_sends<'a>(
        &mut self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let now = now();
        let result = self.rnic.post_sends(now, qp, wrs);
        self.posted(now);
        result
    }

    fn progress(&mut self) -> bool {
        self.drive()
    }
}
