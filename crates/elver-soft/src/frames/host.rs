//! A station on an Ethernet link, without IO: frames in, frames out, the time. It answers for our
//! addresses, asks for those of others, and hands on what is RoCEv2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use elver_rnic::{MAX_PACKET, RxMeta, Time, Transmit};
use elver_wire::{IpId, icrc};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol};

use crate::frames::arp::Arp;
use crate::frames::config::{FrameLink, LocalAddress};
use crate::frames::counters::{FrameCounters, FrameDrop};
use crate::frames::ethernet::{self, FRAME_MIN, Mac};
use crate::frames::icmp::{self, Icmp};
use crate::frames::ip::{self, HEADROOM, Packet};
use crate::frames::neighbour::{Due, Neighbours, Told};
use crate::frames::queue::{Held, Outbox};

/// A buffer of this size holds any frame with a packet of the RNIC's in it.
pub(crate) const FRAME_BUFFER: usize = HEADROOM + MAX_PACKET + FRAME_MIN;

pub(crate) struct Host {
    mac: Mac,
    addresses: Vec<LocalAddress>,
    gateways: Vec<IpAddr>,
    udp_port: u16,
    /// Longest frame in bytes.
    frame_max: usize,
    /// Multicast groups whose datagrams are taken.
    groups: Vec<IpAddr>,
    neighbours: Neighbours,
    held: Held,
    pub(crate) outbox: Outbox,
    pub(crate) counters: FrameCounters,
}

impl Host {
    /// A station that is described by a link that was validated.
    pub(crate) fn new(link: &FrameLink, udp_port: u16) -> Host {
        Host {
            mac: link.station(),
            addresses: link.addresses.clone(),
            gateways: link.gateways.clone(),
            udp_port,
            frame_max: ethernet::HEADER_LEN + link.mtu as usize,
            groups: Vec::new(),
            neighbours: Neighbours::new(link.neighbours_max),
            held: Held::new(link.queue_bytes_max),
            outbox: Outbox::new(link.queue_bytes_max),
            counters: FrameCounters::default(),
        }
    }

    /// Takes datagrams of a multicast group from now on.
    pub(crate) fn join(&mut self, group: IpAddr) {
        if !self.is_joined(group) {
            self.groups.push(group);
        }
    }

    /// Takes them no more.
    pub(crate) fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|joined| *joined != group);
    }

    fn is_joined(&self, group: IpAddr) -> bool {
        self.groups.contains(&group)
    }

    /// How a packet comes back that the RNIC wrote and [`Host::enclose`] sealed, if it is for a group of ours.
    #[inline]
    pub(crate) fn hears(&self, packet: &Transmit) -> Option<RxMeta> {
        if self.groups.is_empty() || !self.is_joined(packet.flow.dst.ip()) {
            return None;
        }
        Some(RxMeta {
            flow: packet.flow,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            ip_id: IpId::Exact(ip::IP_ID),
        })
    }

    /// Longest frame in bytes.
    pub(crate) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Tells all stations our addresses, so that nobody sends to a MAC address that one of them had
    /// before (RFC 5227, section 2.3; RFC 4861, 7.2.6).
    pub(crate) fn announce(&mut self) {
        for index in 0..self.addresses.len() {
            let frame = match self.addresses[index].ip {
                IpAddr::V4(own) => self.arp(true, own, Mac::default()).frame(Mac::BROADCAST),
                IpAddr::V6(own) => {
                    let all = Ipv6Addr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]);
                    icmp::advertise((Mac::of_group(all.into()), self.mac), own, all, false)
                }
            };
            self.emit(frame);
        }
    }

    /// Takes a frame. What is RoCEv2 is returned; all else is done with.
    #[inline]
    pub(crate) fn handle_frame<'a>(
        &mut self,
        now: Time,
        frame: &'a [u8],
    ) -> Option<(RxMeta, &'a [u8])> {
        self.counters.frame_rx += 1;
        match self.take(now, frame) {
            Ok(datagram) => datagram,
            Err(reason) => {
                self.counters.dropped(reason);
                None
            }
        }
    }

    fn take<'a>(
        &mut self,
        now: Time,
        frame: &'a [u8],
    ) -> Result<Option<(RxMeta, &'a [u8])>, FrameDrop> {
        if frame.len() > self.frame_max {
            return Err(FrameDrop::Oversized);
        }
        let frame = EthernetFrame::new_checked(frame).map_err(|_| FrameDrop::Truncated)?;
        let (to, from) = (Mac::from(frame.dst_addr()), Mac::from(frame.src_addr()));
        if to != self.mac && to.is_unicast() {
            return Err(FrameDrop::NotOurs);
        }
        if !from.is_unicast() || from == self.mac {
            return Err(FrameDrop::Source);
        }
        let packet = match frame.ethertype() {
            EthernetProtocol::Ipv4 => ip::parse_v4(frame.payload())?,
            EthernetProtocol::Ipv6 => ip::parse_v6(frame.payload())?,
            EthernetProtocol::Arp => {
                let arp = Arp::parse(frame.payload())?;
                return self.handle_arp(now, &arp).map(|()| None);
            }
            EthernetProtocol::Unknown(_) => return Err(FrameDrop::Protocol),
        };
        match packet.protocol {
            IpProtocol::Udp if to == self.mac && self.has(packet.dst) => {
                self.datagram(&packet).map(Some)
            }
            IpProtocol::Udp if self.is_joined(packet.dst) && to == Mac::of_group(packet.dst) => {
                self.datagram(&packet).map(Some)
            }
            IpProtocol::Icmp | IpProtocol::Icmpv6 => {
                self.handle_icmp(now, (to, from), &packet).map(|()| None)
            }
            IpProtocol::Udp => Err(FrameDrop::NotOurs),
            _ => Err(FrameDrop::Protocol),
        }
    }

    /// What a UDP packet to us carries, if it is RoCEv2.
    #[inline]
    fn datagram<'a>(&self, packet: &Packet<'a>) -> Result<(RxMeta, &'a [u8]), FrameDrop> {
        let (flow, payload) = ip::parse_udp(packet)?;
        if flow.dst.port() != self.udp_port {
            return Err(FrameDrop::Port);
        }
        // RoCEv2 has DF set (IBTA annex A17.4.5.2), and the ICRC covers it.
        if !packet.dont_fragment {
            return Err(FrameDrop::Fragment);
        }
        let meta = RxMeta {
            flow,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            ip_id: IpId::Exact(packet.id),
        };
        Ok((meta, payload))
    }

    fn handle_arp(&mut self, now: Time, arp: &Arp) -> Result<(), FrameDrop> {
        if !arp.sender_mac.is_unicast() {
            return Err(FrameDrop::Neighbour);
        }
        let asked = arp.request && self.has(arp.target.into());
        self.learn(now, arp.sender.into(), arp.sender_mac, asked);
        if asked {
            self.counters.frame_neighbour_answered += 1;
            let answer = Arp {
                request: false,
                sender: arp.target,
                sender_mac: self.mac,
                target: arp.sender,
                target_mac: arp.sender_mac,
            };
            self.emit(answer.frame(arp.sender_mac));
        }
        Ok(())
    }

    fn handle_icmp(
        &mut self,
        now: Time,
        (to, from): (Mac, Mac),
        packet: &Packet<'_>,
    ) -> Result<(), FrameDrop> {
        let ours = self.has(packet.dst);
        if !ours && !packet.dst.is_multicast() {
            return Err(FrameDrop::NotOurs);
        }
        let message = match (packet.src, packet.protocol) {
            (IpAddr::V4(_), IpProtocol::Icmp) => icmp::parse_v4(packet)?,
            (IpAddr::V6(_), IpProtocol::Icmpv6) => icmp::parse_v6(packet)?,
            _ => return Err(FrameDrop::Protocol),
        };
        match message {
            Icmp::EchoRequest { ident, sequence, data } => {
                // Nothing is answered that went to many, or says that it comes from many.
                if !ours || to != self.mac || !is_station(packet.src) {
                    return Err(FrameDrop::NotOurs);
                }
                let reply = icmp::echo_reply((from, self.mac), packet, (ident, sequence), data);
                self.counters.frame_echo_answered += 1;
                self.emit(reply);
            }
            Icmp::Solicit { target, mac } => self.handle_solicit(now, from, packet, target, mac)?,
            Icmp::Advert { target, mac, solicited, overrides } => {
                let ip = IpAddr::V6(target);
                let held = self.neighbours.held(ip);
                // Without an address it confirms the one that is known; one that does not override
                // only fills a gap (RFC 4861, 7.2.5).
                let told = match (mac, held) {
                    (Some(mac), None) => Some(mac),
                    (Some(mac), Some(held)) => (overrides || mac == held).then_some(mac),
                    (None, held) => held.filter(|_| solicited),
                };
                if let Some(mac) = told {
                    self.learn(now, ip, mac, false);
                }
            }
        }
        Ok(())
    }

    /// Answers whoever asks for one of our addresses (RFC 4861, 7.2.3 and 7.2.4).
    fn handle_solicit(
        &mut self,
        now: Time,
        from: Mac,
        packet: &Packet<'_>,
        target: Ipv6Addr,
        mac: Option<Mac>,
    ) -> Result<(), FrameDrop> {
        let IpAddr::V6(asker) = packet.src else {
            return Err(FrameDrop::Neighbour);
        };
        if !self.has(target.into()) {
            return Err(FrameDrop::NotOurs);
        }
        self.counters.frame_neighbour_answered += 1;
        if asker.is_unspecified() {
            // Somebody is about to take the address, and must hear that it is in use.
            self.counters.frame_address_conflict += 1;
            let all = Ipv6Addr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]);
            self.emit(icmp::advertise((Mac::of_group(all.into()), self.mac), target, all, false));
            return Ok(());
        }
        if let Some(mac) = mac {
            self.learn(now, asker.into(), mac, true);
        }
        self.emit(icmp::advertise((mac.unwrap_or(from), self.mac), target, asker, true));
        Ok(())
    }

    /// Takes down what a neighbour told of itself, and lets go what waited for it.
    fn learn(&mut self, now: Time, ip: IpAddr, mac: Mac, asked: bool) {
        if self.has(ip) {
            self.counters.frame_address_conflict += u64::from(mac != self.mac);
            return;
        }
        if !is_station(ip) || self.next_hop(ip) != Some(ip) {
            return;
        }
        let told = if asked { Told::Asking } else { Told::Answering };
        let (waited, evicted) = self.neighbours.learn(now, ip, mac, told);
        self.forget(evicted);
        if waited {
            self.held.release(ip, mac, &mut self.outbox);
        }
    }

    fn forget(&mut self, evicted: Option<IpAddr>) {
        if let Some(ip) = evicted {
            self.counters.frame_neighbour_evicted += 1;
            self.counters.frame_drop_unresolved += self.held.give_up(ip);
        }
    }

    /// Makes a frame of what the RNIC wrote at [`HEADROOM`] of `buffer`. Returns where in the
    /// buffer it stands if it can leave now; otherwise it waits for its neighbour, or is dropped.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`FRAME_BUFFER`].
    #[inline]
    pub(crate) fn enclose(
        &mut self,
        now: Time,
        packet: &Transmit,
        buffer: &mut [u8],
    ) -> Option<std::ops::Range<usize>> {
        let Transmit { len, flow, traffic_class, hop_limit, .. } = packet;
        icrc::seal(flow, ip::IP_ID, &mut buffer[HEADROOM..HEADROOM + len]);
        let start = HEADROOM - ip::headers_len(flow.src.is_ipv4());
        let unpadded = HEADROOM + len;
        let end = unpadded.max(start + FRAME_MIN);
        if flow.dst.ip().is_multicast() {
            let macs = (Mac::of_group(flow.dst.ip()), self.mac);
            ip::write_headers(&mut buffer[start..unpadded], macs, flow, *traffic_class, *hop_limit);
            buffer[unpadded..end].fill(0);
            return Some(start..end);
        }
        let Some(next_hop) = self.next_hop(flow.dst.ip()) else {
            self.counters.frame_drop_no_route += 1;
            return None;
        };
        let found = self.neighbours.look_up(now, next_hop);
        let macs = (found.mac.unwrap_or_default(), self.mac);
        ip::write_headers(&mut buffer[start..unpadded], macs, flow, *traffic_class, *hop_limit);
        buffer[unpadded..end].fill(0);
        if found.ask {
            self.forget(found.evicted);
            self.ask(next_hop);
        }
        if found.mac.is_some() {
            return Some(start..end);
        }
        if !self.held.push(next_hop, &buffer[start..end]) {
            self.counters.frame_drop_queue += 1;
        }
        None
    }

    /// When [`Host::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.neighbours.poll_timeout()
    }

    /// Asks again for neighbours that did not answer, and gives up those that never do.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        while let Some(due) = self.neighbours.poll_due(now) {
            match due {
                Due::Ask(ip) => self.ask(ip),
                Due::Failed(ip) => {
                    self.counters.frame_neighbour_failed += 1;
                    self.counters.frame_drop_unresolved += self.held.give_up(ip);
                }
            }
        }
    }

    /// Asks for the MAC address of a neighbour.
    fn ask(&mut self, ip: IpAddr) {
        let Some(own) = self.source_for(ip) else { return };
        let frame = match (own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                Arp { target: ip, ..self.arp(true, own, Mac::default()) }.frame(Mac::BROADCAST)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => icmp::solicit(own, self.mac, ip),
            _ => return,
        };
        self.counters.frame_neighbour_asked += 1;
        self.emit(frame);
    }

    /// An ARP message in which we speak of ourselves.
    fn arp(&self, request: bool, own: Ipv4Addr, target_mac: Mac) -> Arp {
        Arp { request, sender: own, sender_mac: self.mac, target: own, target_mac }
    }

    /// Sends a frame as soon as there is room.
    fn emit(&mut self, frame: Vec<u8>) {
        if !self.outbox.push(frame) {
            self.counters.frame_drop_queue += 1;
        }
    }

    #[inline]
    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|local| local.ip == ip)
    }

    /// Which station of the link packets to `ip` go to.
    #[inline]
    fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        if self.addresses.iter().any(|local| local.contains(ip)) || is_link_local(ip) {
            return (!self.has(ip)).then_some(ip);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.is_ipv4())
    }

    /// Which of our addresses speaks to a station of the link.
    fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let near = self.addresses.iter().find(|local| local.contains(ip));
        let any = || self.addresses.iter().find(|local| local.ip.is_ipv4() == ip.is_ipv4());
        near.or_else(any).map(|local| local.ip)
    }
}

/// Whether an address can be one station's.
fn is_station(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
