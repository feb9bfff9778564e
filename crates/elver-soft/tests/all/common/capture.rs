//! What tshark, and the exact ICRC, say of a recording of Ethernet frames.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use elver_wire::{Flow, IpId, PacketView, icrc};

/// How many of each kind were recorded.
#[derive(Debug, Default)]
pub struct Packets {
    pub roce: usize,
    pub neighbour: usize,
    pub echo: usize,
}

const FIELDS: [&str; 18] = [
    "_ws.malformed",
    "ip.checksum.status",
    "udp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
    "ip.src",
    "ip.dst",
    "ipv6.src",
    "ipv6.dst",
    "udp.srcport",
    "udp.dstport",
    "ip.id",
    "ip.flags.df",
    "udp.payload",
    "arp.opcode",
    "icmp.type",
    "icmpv6.type",
    "infiniband.bth.opcode",
];
/// What tshark calls a checksum that is right, and one that is not there.
const GOOD: &str = "1";

/// Checks every packet of a recording: checksums by tshark, the ICRC of each with the IPv4
/// identification that stands in it.
pub fn check(file: &Path) -> Packets {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"]);
    for protocol in ["ip.check_checksum", "udp.check_checksum"] {
        command.args(["-o", &format!("{protocol}:TRUE")]);
    }
    command.args(["-E", "separator=/t", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output().expect("this test needs tshark: apt-get install tshark");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed, {}: {complaint}", output.status);
    let mut packets = Packets::default();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let field = |name: &str| columns[FIELDS.iter().position(|field| *field == name).unwrap()];
        assert_eq!(field("_ws.malformed"), "", "{line}");
        for status in FIELDS.iter().filter(|name| name.ends_with(".status")) {
            assert!(["", GOOD].contains(&field(status)), "{status}: {line}");
        }
        if field("udp.dstport") == "4791" {
            check_icrc(&field, line);
            packets.roce += 1;
        } else if !field("arp.opcode").is_empty() || ["135", "136"].contains(&field("icmpv6.type"))
        {
            packets.neighbour += 1;
        } else if !field("icmp.type").is_empty() || ["128", "129"].contains(&field("icmpv6.type")) {
            packets.echo += 1;
        }
    }
    packets
}

fn check_icrc<'a>(field: &impl Fn(&str) -> &'a str, line: &str) {
    assert_eq!(field("udp.checksum.status"), GOOD, "{line}");
    assert_ne!(field("infiniband.bth.opcode"), "", "{line}");
    let v4 = !field("ip.src").is_empty();
    let [src, dst] = if v4 { ["ip.src", "ip.dst"] } else { ["ipv6.src", "ipv6.dst"] };
    let at = |ip: &str, port: &str| {
        let ip: IpAddr = field(ip).parse().unwrap();
        SocketAddr::new(ip, field(port).parse().unwrap())
    };
    let flow = Flow { src: at(src, "udp.srcport"), dst: at(dst, "udp.dstport") };
    let hex = field("udp.payload").replace(':', "");
    let packet: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    let id = if v4 {
        assert!(["1", "True"].contains(&field("ip.flags.df")), "no DF: {line}");
        u16::from_str_radix(field("ip.id").trim_start_matches("0x"), 16).unwrap()
    } else {
        0
    };
    PacketView::parse(&packet).unwrap();
    assert_eq!(icrc::verify(&flow, IpId::Exact(id), &packet), Ok(id), "{line}");
}
