//! Packets that others made, from the IP header to the ICRC: one captured from a ConnectX-4 Lx NIC,
//! three computed with scapy's RoCE layer. The masked fields (ToS, TTL, traffic class, flow label,
//! hop limit, UDP checksum, FECN and BECN) hold values other than zero somewhere among them. And the
//! DC packet that `docs/wire.md` shows.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use elver_wire::{
    DcConnect, DcEth, DcExtra, Deth, Flow, Headers, IpId, Message, PacketView, Psn, Qpn, Reth,
    Route, Tail, icrc,
};

const UDP_LEN: usize = 8;

/// A congestion notification that a ConnectX-4 Lx sent.
const CNP_CONNECTX: &str = "45c2003c718c4000401191610a0011010a001201
    000012b700280000
    8100ffff4000011800000000 00000000000000000000000000000000 82fd002a";

const UC_SEND_ONLY: &str = "45010040047840004011b4d5c0a80007c0a80007
    c00012b7002caca2
    2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3";

const RC_WRITE_ONLY_IMM: &str = "45b80048beef40003f1167e90a0900010a090002
    c12312b700340000
    0bb0ffff8012345680fffffe 7f00123456789abc0102030400000005 cafef00d 68656c6c6f000000 8a0df00d";

const UD_SEND_ONLY_V6: &str = "6b85432100281107 fd000000000000000000000000010002
    20010db80000000000000000000000fe
    c00112b70028fc38
    6400800100abcdef00000102 1111111100654321 646174616772616d b72e92d9";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// A packet taken apart: its flow, its IP identification and its UDP payload.
struct Captured {
    flow: Flow,
    ip_id: u16,
    packet: Vec<u8>,
}

impl Captured {
    fn new(hex: &str) -> Captured {
        let bytes = bytes(hex);
        let (src, dst, udp_at): (IpAddr, IpAddr, usize) = if bytes[0] >> 4 == 4 {
            let at = |from: usize| -> [u8; 4] { bytes[from..from + 4].try_into().unwrap() };
            (Ipv4Addr::from(at(12)).into(), Ipv4Addr::from(at(16)).into(), 20)
        } else {
            let at = |from: usize| -> [u8; 16] { bytes[from..from + 16].try_into().unwrap() };
            (Ipv6Addr::from(at(8)).into(), Ipv6Addr::from(at(24)).into(), 40)
        };
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let flow = Flow {
            src: SocketAddr::new(src, port(udp_at)),
            dst: SocketAddr::new(dst, port(udp_at + 2)),
        };
        let ip_id = if src.is_ipv4() { port(4) } else { 0 };
        Captured { flow, ip_id, packet: bytes[udp_at + UDP_LEN..].to_vec() }
    }

    /// Checks the ICRC both ways, and that the packet is what these headers and payload give.
    fn is(&self, headers: &Headers, payload: &[u8]) {
        let Captured { flow, ip_id, packet } = self;
        assert_eq!(icrc::verify(flow, IpId::Exact(*ip_id), packet), Ok(*ip_id));
        let found = icrc::verify(flow, IpId::Likely(0), packet).unwrap();
        assert_eq!(found, if flow.src.is_ipv4() { *ip_id } else { 0 });

        let view = PacketView::parse(packet).unwrap();
        assert_eq!(view.headers(), headers);
        assert_eq!(view.payload(), payload);

        let mut ours = vec![0xa5; packet.len()];
        assert_eq!(headers.write(flow, *ip_id, payload, &mut ours), packet.len());
        assert_eq!(&ours, packet);
    }
}

fn headers(route: Route, message: Message, dest_qpn: u32, psn: u32) -> Headers {
    Headers::new(route, message, Qpn::new(dest_qpn).unwrap(), Psn::new(psn).unwrap()).unwrap()
}

#[test]
fn congestion_notification_of_a_nic() {
    let mut expected = headers(Route::Rc, Message::Cnp, 0x118, 0);
    expected.becn = true;
    Captured::new(CNP_CONNECTX).is(&expected, &[]);
}

#[test]
fn padded_uc_send() {
    let mut expected = headers(Route::Uc, Message::SendOnly(Tail::Plain), 211, 13_571_856);
    expected.mig_req = true;
    let payload = [
        0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe,
        0x88, 0x5e, 0x50,
    ];
    Captured::new(UC_SEND_ONLY).is(&expected, &payload);
}

#[test]
fn rc_write_with_every_flag() {
    let reth = Reth { va: 0x7f00_1234_5678_9abc, rkey: 0x0102_0304, len: 5 };
    let message = Message::WriteOnly(reth, Some(0xcafe_f00d));
    let mut expected = headers(Route::Rc, message, 0x12_3456, 0xff_fffe);
    expected.solicited = true;
    expected.fecn = true;
    expected.ack_req = true;
    Captured::new(RC_WRITE_ONLY_IMM).is(&expected, b"hello");
}

#[test]
fn ud_send_over_ipv6() {
    let deth = Deth { qkey: 0x1111_1111, src_qpn: Qpn::new(0x65_4321).unwrap() };
    let message = Message::SendOnly(Tail::Plain);
    let mut expected = headers(Route::Ud(deth), message, 0xab_cdef, 0x102);
    expected.pkey = 0x8001;
    Captured::new(UD_SEND_ONLY_V6).is(&expected, b"datagram");
}

#[test]
fn the_documented_dc_packet_is_what_we_send() {
    let document = include_str!("../../../docs/wire.md");
    let shown: Vec<u8> = document
        .lines()
        .filter_map(|line| line.split_once(" ; "))
        .flat_map(|(digits, _)| bytes(digits))
        .collect();

    let src_qpn = Qpn::new(0x111).unwrap();
    let eth = DcEth { src_qpn, stream: 3, session: 0xba_d001, fill: 0 };
    let token = 0xfedc_ba98_7654_3210;
    let connect = DcConnect { access_key: 0x0123_4567_89ab_cdef, token, mtu: 5 };
    let extra = DcExtra::Connect(connect);
    let reth = Reth { va: 0x7f00_0000_1000, rkey: 0x55, len: 4 };
    let message = Message::WriteOnly(reth, None);
    let mut headers = headers(Route::Dc { eth, extra }, message, 0x222, 0xba_d001);
    headers.ack_req = true;
    let payload = [0xde, 0xad, 0xbe, 0xef];
    let mut ours = [0; 200];
    let at = headers.emit(&mut ours, payload.len());
    ours[at..at + payload.len()].copy_from_slice(&payload);
    assert_eq!(shown, ours[..at + payload.len()]);
}
