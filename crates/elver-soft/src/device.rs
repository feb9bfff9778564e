mod config;
mod driving;
mod opening;
mod verbs;
mod waiting;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use elver_memory::SoftMemory;
use elver_rnic::{Config, Counters, MAX_PACKET, Rnic, Time};

pub use self::opening::path_mtu_of;
use self::opening::{no_address, open_frames, open_udp, seed};
use crate::SoftError;
use crate::bypass::Bypass;
use crate::capture::tap::Tap;
use crate::capture::{Capture, FileCapture, LinkType};
use crate::clock::now;
use crate::errands::Errands;
use crate::faults::FaultState;
use crate::frames::FrameCounters;
use crate::groups::Groups;
use crate::intake::Taken;
use crate::link::{Link, Port};
use crate::publish::{PUBLISH_INTERVAL_NS, Publisher};

pub use self::config::SoftConfig;

/// The software RNIC in real time, over a UDP socket or a frame link.
///
/// Its caller drives it: [`elver_verbs::Device::poll_cq`] makes progress when it finds no completion, and
/// [`elver_verbs::Device::progress`] does so at any time. To let a thread drive it, give it to
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
    /// The sum of what was published.
    published_sum: u64,
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
    taken: Taken,
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
        let taken = Taken::new(port.waiting_max()?);
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
            published_sum: 0,
            faults: FaultState::new(config.faults, now()).map(Box::new),
            polls: 0,
            held: 0,
            posts: 0,
            empty: 0,
            looked_at: Time::ZERO,
            beside: Vec::new(),
            taken,
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

    /// What becomes readable, besides [`SoftDevice::as_fd`], when a datagram to a multicast group is there. None
    /// before a QP was attached to one, and where they come the same way as all packets.
    pub fn groups_fd(&self) -> Option<BorrowedFd<'_>> {
        self.groups.as_deref().map(Groups::as_fd)
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

    /// Tells other processes what it has counted by now, and has in its file what was recorded: for who ends without
    /// dropping it. It does so from time to time by itself.
    pub fn publish(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.write();
        }
        self.published_sum = self.counted();
        if let Some(publisher) = &mut self.publisher {
            let frames = self.port.frame_counters().into_iter().flat_map(FrameCounters::iter);
            publisher.update(self.rnic.counters().iter().chain(frames).map(|(_, value)| value));
        }
    }

    /// The same, for who lets it rest: at once, if it has not done so for a while. When it is to do so otherwise, if it has counted anything
    /// since.
    pub fn publish_in_time(&mut self, now: Time) -> Option<Time> {
        if self.counted() == self.published_sum {
            return None;
        }
        let due = self.published_at.saturating_add_ns(PUBLISH_INTERVAL_NS);
        if due > now {
            return Some(due);
        }
        self.published_at = now;
        self.publish();
        None
    }

    /// What changes with each counter of the RNIC's.
    fn counted(&self) -> u64 {
        self.rnic.counters().iter().fold(0, |sum, (_, value)| sum.wrapping_add(value))
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        self.publish();
    }
}
