//! Whose packets these are. Of a packet the queue pair can be told, and of that the VQPs that send
//! on it to the packet's peer: one where it has a queue pair for itself, else those that share it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use elver_soft::record::{Direction, LinkType};
use elver_wire::{Opcode, Transport};
use rustc_hash::FxHashMap;

/// VQPs that the engine looks at for their names at a time.
pub(crate) const NAMES_MAX: usize = 4_096;
/// VQPs that are named with a packet; more are only counted.
const NAMED_MAX: usize = 4;
/// Longest name of a packet's, in bytes.
const TEXT_BYTES: usize = 160;

const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;

/// A VQP that sends on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VqpName {
    pub(crate) vqp: u32,
    /// The process, if it has one.
    pub(crate) pid: Option<i32>,
    pub(crate) peer: IpAddr,
    /// The port there, 0 for none.
    pub(crate) port: u16,
    /// The queue pair that it sends on.
    pub(crate) qpn: u32,
    /// Of an RC QP, the peer's end.
    pub(crate) peer_qpn: Option<u32>,
}

/// Names as they are now, and as they were before: a packet waits a while until it is written.
#[derive(Debug, Default)]
pub(super) struct Names {
    now: Known,
    before: Known,
}

#[derive(Debug, Default)]
struct Known {
    /// By queue pair and peer, what is said of them.
    texts: FxHashMap<(u32, IpAddr), String>,
    /// Of RC QPs the own end, by the peer's.
    own_ends: FxHashMap<(IpAddr, u32), u32>,
}

impl Names {
    /// Takes in who there is now.
    pub(super) fn learn(&mut self, names: &[VqpName]) {
        self.before = std::mem::replace(&mut self.now, Known::of(names));
    }

    /// What is known of the VQPs of a packet; empty if nothing is.
    pub(super) fn of(&self, link: LinkType, direction: Direction, packet: &[u8]) -> &str {
        let Some(seen) = Seen::parse(link, direction, packet) else { return "" };
        let found = [&self.now, &self.before].into_iter().find_map(|known| known.text(&seen));
        found.map_or("", String::as_str)
    }
}

impl Known {
    fn of(names: &[VqpName]) -> Known {
        let mut known = Known::default();
        let mut groups = FxHashMap::<(u32, IpAddr), Vec<&VqpName>>::default();
        for name in names {
            groups.entry((name.qpn, name.peer)).or_default().push(name);
            if let Some(peer_qpn) = name.peer_qpn {
                known.own_ends.insert((name.peer, peer_qpn), name.qpn);
            }
        }
        known.texts = groups.into_iter().map(|(key, names)| (key, told(&names))).collect();
        known
    }

    fn text(&self, seen: &Seen) -> Option<&String> {
        let qpn = match seen.end {
            End::Own(qpn) => qpn,
            End::Peers(qpn) => *self.own_ends.get(&(seen.peer, qpn))?,
        };
        self.texts.get(&(qpn, seen.peer))
    }
}

/// What is said of the VQPs that share a queue pair to a peer.
fn told(names: &[&VqpName]) -> String {
    let mut text = String::with_capacity(TEXT_BYTES);
    text.push_str(if names.len() == 1 { "VQP " } else { "VQPs " });
    for (at, name) in names.iter().take(NAMED_MAX).enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{:#x}", if at == 0 { "" } else { ", " }, name.vqp);
        let _ = match (name.pid, name.port) {
            (Some(pid), 0) => write!(text, " (pid {pid})"),
            (Some(pid), port) => write!(text, " (pid {pid}, to port {port})"),
            (None, 0) => Ok(()),
            (None, port) => write!(text, " (to port {port})"),
        };
    }
    if names.len() > NAMED_MAX {
        let _ = write!(text, " and {} more", names.len() - NAMED_MAX);
    }
    text
}

/// Whose a packet is, as far as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    peer: IpAddr,
    end: End,
}

/// A queue pair that a packet names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This node's.
    Own(u32),
    /// The peer's end of an RC connection.
    Peers(u32),
}

impl Seen {
    /// Reads the headers of a packet that the device itself has sent or will check.
    fn parse(link: LinkType, direction: Direction, packet: &[u8]) -> Option<Seen> {
        let ip = match link {
            LinkType::Ip => packet,
            LinkType::Ethernet => packet.get(ETHERNET_BYTES..)?,
        };
        let (src, dst, udp): (IpAddr, IpAddr, &[u8]) = match ip.first()? >> 4 {
            4 => {
                let address = |at: usize| Some(Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?));
                let len = usize::from(ip[0] & 15) * 4;
                (address(12)?.into(), address(16)?.into(), ip.get(len..)?)
            }
            6 => {
                let address = |at: usize| Some(Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?));
                (address(8)?.into(), address(24)?.into(), ip.get(IPV6_BYTES..)?)
            }
            _ => return None,
        };
        let peer = if direction == Direction::In { src } else { dst }.to_canonical();
        let roce = udp.get(UDP_BYTES..)?;
        let number = |at: usize| {
            let [a, b, c] = *roce.get(at..)?.first_chunk()?;
            Some(u32::from_be_bytes([0, a, b, c]))
        };
        let opcode = Opcode::from_byte(*roce.first()?)?;
        let operation = opcode.operation()?;
        // BTH: the destination's QPN. DcEth, behind the BTH: the source's.
        let (destination, source) = (number(5)?, || number(13));
        let end = match (opcode.transport(), direction) {
            (Transport::Rc, Direction::In) => End::Own(destination),
            (Transport::Rc, Direction::Out) => End::Peers(destination),
            (Transport::Dc, Direction::In) if operation.is_response() => End::Own(destination),
            (Transport::Dc, Direction::Out) if !operation.is_response() => End::Own(source()?),
            // The targets of DC and of datagrams are everybody's.
            _ => return None,
        };
        Some(Seen { peer, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 0x0a_0b0c;
    const PEERS: u32 = 0x0d_0e0f;

    /// A packet over IPv4 between 10.0.0.1, this node, and 10.0.0.2.
    fn packet(opcode: u8, direction: Direction, destination: u32, source: u32) -> Vec<u8> {
        let (here, there) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let (src, dst) = if direction == Direction::In { (there, here) } else { (here, there) };
        let mut bytes = vec![0x45; 12];
        bytes.extend(src);
        bytes.extend(dst);
        bytes.extend([0; 8]);
        bytes.extend([opcode, 0, 0xff, 0xff]);
        bytes.extend(destination.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(source.to_be_bytes());
        bytes
    }

    fn name(vqp: u32, peer_qpn: Option<u32>) -> VqpName {
        let peer = IpAddr::from([10, 0, 0, 2]);
        VqpName { vqp, pid: Some(77), peer, port: 7, qpn: OWN, peer_qpn }
    }

    #[test]
    fn packets_of_all_kinds_find_their_vqps() {
        use Direction::{In, Out};
        let mut rc = Names::default();
        rc.learn(&[name(0x11, Some(PEERS))]);
        let mut dc = Names::default();
        dc.learn(&[name(0x11, None), name(0x12, None)]);
        let one = "VQP 0x11 (pid 77, to port 7)";
        let two = "VQPs 0x11 (pid 77, to port 7), 0x12 (pid 77, to port 7)";
        // SEND_ONLY and ACKNOWLEDGE of RC, of UD, of DC.
        for (names, opcode, direction, destination, source, expected) in [
            (&rc, 0x04, Out, PEERS, 0, one),
            (&rc, 0x04, In, OWN, 0, one),
            (&rc, 0x11, Out, PEERS, 0, one),
            (&rc, 0x11, In, OWN, 0, one),
            (&rc, 0x04, In, PEERS, 0, ""),
            (&rc, 0x64, In, OWN, 0, ""),
            (&dc, 0xc4, Out, PEERS, OWN, two),
            (&dc, 0xc4, In, OWN, PEERS, ""),
            (&dc, 0xd1, In, OWN, PEERS, two),
            (&dc, 0xd1, Out, PEERS, OWN, ""),
        ] {
            let packet = packet(opcode, direction, destination, source);
            let found = names.of(LinkType::Ip, direction, &packet);
            assert_eq!(found, expected, "{opcode:#x} {direction:?}");
            let frame = [&[0; ETHERNET_BYTES][..], &packet].concat();
            assert_eq!(names.of(LinkType::Ethernet, direction, &frame), expected);
            for len in 0..packet.len() {
                // What is cut short is nobody's, or the same's.
                let found = names.of(LinkType::Ip, direction, &packet[..len]);
                assert!(found.is_empty() || found == expected);
            }
        }
    }

    #[test]
    fn a_name_outlives_its_vqp_for_a_while() {
        let mut names = Names::default();
        let many: Vec<VqpName> = (1..=9).map(|vqp| name(vqp, None)).collect();
        names.learn(&many);
        let packet = packet(0xc4, Direction::Out, PEERS, OWN);
        let of = |names: &Names| names.of(LinkType::Ip, Direction::Out, &packet).to_string();
        assert!(of(&names).ends_with("and 5 more"), "{}", of(&names));
        names.learn(&[]);
        assert!(of(&names).starts_with("VQPs 0x1 "), "{}", of(&names));
        names.learn(&[]);
        assert_eq!(of(&names), "");
    }
}
