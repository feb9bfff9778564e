//! The sending half: packets from the RNIC into trains, trains to the socket.

use std::net::IpAddr;

use elver_rnic::{MAX_PACKET, Rnic, Time, Transmit};
use elver_wire::{Flow, icrc};

use crate::bypass::{Bypass, Carried};
use crate::capture::{Capture, Direction};
use crate::udp::{Sent, TRAIN_BYTES, TRAIN_PACKETS, TRAINS, Train, UdpIo};
use elver_memory::SoftMemory;

/// Bytes of the send buffer: a few full trains, and room for the packet that is being written.
const BUFFER: usize = 4 * TRAIN_BYTES + MAX_PACKET;
/// Packets that go past the link at once.
const CARRIED_MAX: u32 = 256;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    All,
    /// All but what gives way ([`Rnic::gives_way`]).
    Urgent,
}

pub(crate) struct Transmitter {
    buffer: Vec<u8>,
    trains: Vec<Train>,
    /// Trains at the front that were sent already.
    sent: usize,
    source: IpAddr,
    /// Trains that the kernel refused for good.
    pub(crate) lost: u64,
    /// System calls that sent something.
    pub(crate) calls: u64,
    /// Another way to some.
    pub(crate) bypass: Option<Box<dyn Bypass>>,
}

/// Whether a packet belongs to what is acknowledged, and sent again: not to UC or UD (IBTA vol. 1, table 38).
fn is_acknowledged(opcode: u8) -> bool {
    !matches!(opcode >> 5, 1 | 3)
}

impl Transmitter {
    pub(crate) fn new(source: IpAddr) -> Transmitter {
        Transmitter {
            buffer: vec![0; BUFFER],
            trains: Vec::with_capacity(TRAINS),
            sent: 0,
            source,
            lost: 0,
            calls: 0,
            bypass: None,
        }
    }

    /// Whether trains wait for room in the socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.trains.is_empty()
    }

    /// Sends what the RNIC has to send, up to one buffer full or one short turn; true if anything left
    /// or waits.
    pub(crate) fn run(
        &mut self,
        now: Time,
        rnic: &mut Rnic<SoftMemory>,
        io: &mut UdpIo,
        capture: &mut Option<Box<Capture>>,
        what: Send,
    ) -> bool {
        if self.trains.is_empty() {
            let carried = self.load(now, rnic, io.gso, what);
            if self.trains.is_empty() {
                return carried;
            }
            if let Some(capture) = capture {
                self.record(rnic.config().udp_port, capture);
            }
        }
        self.send(rnic.config().udp_port, io);
        true
    }

    /// Fills the buffer with sealed packets, train by train, but for those that go past the link. Whether
    /// there were some.
    fn load(&mut self, now: Time, rnic: &mut Rnic<SoftMemory>, gso: bool, what: Send) -> bool {
        let mut carried = 0;
        self.fill(now, rnic, gso, what, &mut carried);
        if carried > 0
            && let Some(bypass) = &mut self.bypass
        {
            bypass.ring();
        }
        carried > 0
    }

    fn fill(
        &mut self,
        now: Time,
        rnic: &mut Rnic<SoftMemory>,
        gso: bool,
        what: Send,
        carried: &mut u32,
    ) {
        let train_packets = if gso { TRAIN_PACKETS } else { 1 };
        let mut at = 0;
        let mut open = false;
        let mut packets = 0;
        while at + MAX_PACKET <= BUFFER {
            if what == Send::Urgent && rnic.gives_way() {
                return;
            }
            let room = &mut self.buffer[at..];
            let Some(packet) = rnic.poll_transmit(now, room) else {
                return;
            };
            // Of what nobody acknowledges nothing may be lost for want of room: a socket has more.
            if let Some(bypass) = self.bypass.as_mut().filter(|_| is_acknowledged(room[0])) {
                let (to, class) = (packet.flow.dst.ip(), packet.traffic_class);
                let became = bypass.carry(to, class, &room[..packet.len]);
                if became != Carried::ByLink {
                    self.lost += u64::from(became == Carried::Lost);
                    *carried += 1;
                    open = false;
                    if packet.ends_piece || *carried == CARRIED_MAX {
                        return;
                    }
                    continue;
                }
            }
            let joins = open
                && self.trains.last().is_some_and(|train| {
                    train.to == packet.flow.dst
                        && train.traffic_class == packet.traffic_class
                        && packet.len <= train.packet
                        && packets < train_packets
                        && train.len + packet.len <= TRAIN_BYTES
                });
            if !joins {
                packets = 0;
                self.trains.push(Train {
                    start: at,
                    len: 0,
                    packet: packet.len,
                    to: packet.flow.dst,
                    traffic_class: packet.traffic_class,
                });
            }
            icrc::seal(&packet.flow, packets as u16, &mut room[..packet.len]);
            open = self.append(&packet);
            packets += 1;
            at += packet.len;
            if packet.ends_piece {
                return;
            }
            if self.trains.len() == TRAINS && (!open || packets == train_packets) {
                return;
            }
        }
    }

    /// Counts a packet to the last train; false when it is shorter than the others and so ends it.
    fn append(&mut self, packet: &Transmit) -> bool {
        let Some(train) = self.trains.last_mut() else {
            return false;
        };
        train.len += packet.len;
        packet.len == train.packet
    }

    fn send(&mut self, port: u16, io: &mut UdpIo) {
        while self.sent < self.trains.len() {
            match io.send(&self.buffer, &self.trains[self.sent..]) {
                Sent::Trains(0) => return,
                Sent::Trains(count) => {
                    self.calls += 1;
                    self.sent += count;
                }
                Sent::NoSegmentation => {
                    io.gso = false;
                    self.cut(port);
                }
                Sent::Lost => {
                    self.lost += 1;
                    self.sent += 1;
                }
            }
        }
        self.trains.clear();
        self.sent = 0;
    }

    /// Cuts the trains that wait into single packets, each sealed for the ID 0 that it leaves with.
    fn cut(&mut self, port: u16) {
        let waiting: Vec<Train> = self.trains.drain(self.sent..).collect();
        for train in waiting {
            for start in (train.start..train.start + train.len).step_by(train.packet) {
                let len = train.packet.min(train.start + train.len - start);
                let flow = Flow { src: (self.source, port).into(), dst: train.to };
                icrc::seal(&flow, 0, &mut self.buffer[start..start + len]);
                self.trains.push(Train { start, len, packet: len, ..train });
            }
        }
    }

    fn record(&self, port: u16, capture: &mut Capture) {
        for train in &self.trains {
            let flow = Flow { src: (self.source, port).into(), dst: train.to };
            let bytes = &self.buffer[train.start..train.start + train.len];
            for (id, packet) in bytes.chunks(train.packet).enumerate() {
                capture.packet(Direction::Out, &flow, train.traffic_class, id as u16, packet);
            }
        }
    }
}
