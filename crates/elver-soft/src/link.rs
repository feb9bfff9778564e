//! What packets travel over: the kernel's UDP, or Ethernet frames. One of the two, chosen when the
//! device is opened; the choice is a branch that is always taken the same way.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use elver_memory::SoftMemory;
use elver_rnic::{DropReason, Rnic, RxMeta, Time};
use elver_wire::{Flow, IpId};
use rustix::event::PollFlags;

use crate::SoftError;
use crate::bypass::Bypass;
use crate::capture::{Capture, Direction};
use crate::frames::{FrameCounters, FrameLink, FramePort};
use crate::inlet::Inlet;
use crate::intake::Look;
use crate::transmit::{Send, Transmitter};
use crate::udp::{HOP_LIMIT_HIDDEN, UdpIo};

/// What a device's packets travel over.
#[derive(Clone, Debug, Default)]
pub enum Link {
    /// A UDP socket on an address of this host.
    #[default]
    Udp,
    /// Ethernet frames over a socket: the device has MAC and IP addresses of its own.
    Frames(FrameLink),
}

/// A link at work.
pub(crate) enum Port {
    Udp(Box<UdpPort>),
    Frames(Box<FramePort>),
}

impl Port {
    /// What to wait for; nothing where nothing will come.
    pub(crate) fn poll_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Port::Udp(port) => Some((port.io.as_fd(), PollFlags::IN)),
            Port::Frames(port) => port.poll_fd(),
        }
    }

    /// Whether packets wait for room in the socket.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            Port::Udp(port) => port.transmitter.is_waiting(),
            Port::Frames(port) => port.is_waiting(),
        }
    }

    /// Receives what is there, at most a few messages; returns how many.
    #[inline]
    pub(crate) fn receive(&mut self) -> usize {
        match self {
            // An error is an ICMP answer to an earlier send: the transport's own timers deal with
            // it.
            Port::Udp(port) => port.io.receive().unwrap_or(0),
            Port::Frames(port) => port.receive(),
        }
    }

    /// What the last receive found.
    #[inline]
    pub(crate) fn look(&self) -> Look {
        match self {
            Port::Udp(port) => port.io.look,
            Port::Frames(port) => port.look,
        }
    }

    /// As much as may wait, in bytes, by what a receive says of that. Of frames that is for whoever sends them.
    pub(crate) fn waiting_max(&self) -> Result<Option<usize>, SoftError> {
        match self {
            Port::Udp(port) => port.io.waiting_max().map(Some),
            Port::Frames(_) => Ok(None),
        }
    }

    /// Gives what arrived to the RNIC.
    #[inline]
    pub(crate) fn take(&mut self, count: usize, mut inlet: Inlet<'_>) {
        match self {
            Port::Udp(port) => port.take(count, &mut inlet),
            Port::Frames(port) => port.take(&mut inlet),
        }
    }

    /// Sends what there is to send; true if anything left or waits.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        rnic: &mut Rnic<SoftMemory>,
        capture: &mut Option<Box<Capture>>,
        what: Send,
    ) -> bool {
        match self {
            Port::Udp(port) => port.transmitter.run(now, rnic, &mut port.io, capture, what),
            Port::Frames(port) => port.transmit(now, rnic, capture),
        }
    }

    /// Another way than the link, if there is one, and the address of this device there.
    #[inline]
    pub(crate) fn bypass(&mut self) -> Option<(&mut Box<dyn Bypass>, IpAddr)> {
        match self {
            Port::Udp(port) => {
                let UdpPort { transmitter, address, .. } = &mut **port;
                transmitter.bypass.as_mut().map(|bypass| (bypass, *address))
            }
            Port::Frames(_) => None,
        }
    }

    /// When [`Port::handle_timeout`] has something to do.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Port::Udp(_) => None,
            Port::Frames(port) => port.host().poll_timeout(),
        }
    }

    /// Does what is due by the clock; true if something waits to be sent for it.
    #[inline]
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        match self {
            Port::Udp(_) => false,
            Port::Frames(port) => port.handle_timeout(now),
        }
    }

    /// What a frame link has done and seen.
    pub(crate) fn frame_counters(&self) -> Option<&FrameCounters> {
        match self {
            Port::Udp(_) => None,
            Port::Frames(port) => Some(&port.host().counters),
        }
    }
}

/// A UDP socket with what waits to be sent over it.
pub(crate) struct UdpPort {
    pub(crate) io: UdpIo,
    pub(crate) transmitter: Transmitter,
    pub(crate) address: IpAddr,
}

/// Bytes of a train beyond which answers to what came before leave before it is taken: it takes
/// longer than a system call.
const LONG_TRAIN: usize = 8 << 10;

impl UdpPort {
    /// Whether what was received there takes long to take.
    #[inline]
    fn is_long(&self, index: usize) -> bool {
        self.io.received(index).is_some_and(|(_, bytes)| bytes.len() > LONG_TRAIN)
    }

    fn take(&mut self, count: usize, inlet: &mut Inlet<'_>) {
        for index in 0..count {
            if inlet.rnic.wants_to_transmit() && self.is_long(index) {
                let (now, capture) = (inlet.now, &mut *inlet.capture);
                self.transmitter.run(now, inlet.rnic, &mut self.io, capture, Send::Urgent);
            }
            let Some((received, bytes)) = self.io.received(index) else {
                break;
            };
            if received.cut {
                inlet.rnic.count_drop(DropReason::Driver);
                continue;
            }
            let port = inlet.rnic.config().udp_port;
            let flow = Flow { src: received.from, dst: SocketAddr::new(self.address, port) };
            let size = if received.packet == 0 { bytes.len() } else { received.packet };
            for (id, packet) in bytes.chunks(size.max(1)).enumerate() {
                if inlet.loses() {
                    continue;
                }
                if let Some(capture) = inlet.capture {
                    let (class, id) = (received.traffic_class, id as u16);
                    capture.packet(Direction::In, &flow, class, id, packet);
                }
                let meta = RxMeta {
                    flow,
                    traffic_class: received.traffic_class,
                    hop_limit: HOP_LIMIT_HIDDEN,
                    ip_id: IpId::Likely(id as u16),
                };
                inlet.give(&meta, packet);
            }
        }
    }
}
