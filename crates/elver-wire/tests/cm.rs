//! Messages of the communication manager: what is written parses to the same, no bytes panic, and
//! Wireshark reads what we meant.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use elver_wire::cm::service_id;
use elver_wire::cm::{CmError, IpHeader, MAD_LEN, Mad, Message, QKEY, Rejected, Rep, Req, SidrRep};
use elver_wire::{
    Deth, Flow, Headers, Message as Packet, PACKET_MAX, Psn, Qpn, Route, Tail, UDP_PORT,
};
use proptest::prelude::*;

const PRIVATE: &[u8] = b"private data";

fn req(private: &[u8]) -> Req<'_> {
    Req {
        local: 0x0102_0304,
        service_id: service_id(0x0106, 7174),
        ca_guid: 0x0200_1122_3344_5566,
        qkey: 0,
        qpn: 0x12_3456,
        responder_resources: 3,
        initiator_depth: 4,
        remote_response_timeout: 20,
        transport: 0,
        flow_control: true,
        starting_psn: Psn::from_wrapping(0xab_cdef),
        local_response_timeout: 19,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_retries: 15,
        srq: true,
        local_gid: Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets(),
        remote_gid: Ipv4Addr::new(10, 9, 0, 2).to_ipv6_mapped().octets(),
        flow_label: 0x5_4321,
        packet_rate: 2,
        traffic_class: 8,
        hop_limit: 64,
        service_level: 1,
        subnet_local: true,
        ack_timeout: 18,
        private,
    }
}

fn rep(private: &[u8]) -> Rep<'_> {
    Rep {
        local: 0x1111_2222,
        remote: 0x0102_0304,
        qkey: 0,
        qpn: 0x65_4321,
        starting_psn: Psn::from_wrapping(0x01_0203),
        responder_resources: 5,
        initiator_depth: 6,
        ack_delay: 15,
        failover: 2,
        flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        ca_guid: 0x0200_aabb_ccdd_eeff,
        private,
    }
}

/// Each message, with all fields set.
fn messages(private: &[u8]) -> [Message<'_>; 9] {
    let (local, remote) = (0x0a0b_0c0d, 0x1a1b_1c1d);
    let sidr = SidrRep {
        request: local,
        status: 1,
        qpn: 0x77_8899,
        service_id: service_id(0x0111, 9),
        qkey: 0x0123_4567,
        info: &[],
        private,
    };
    [
        Message::Req(req(private)),
        Message::Mra { local, remote, of: Rejected::Rep, service_timeout: 24, private },
        Message::Rej { local, remote, of: Rejected::Req, reason: 28, info: &[1, 2], private },
        Message::Rep(rep(private)),
        Message::Rtu { local, remote, private },
        Message::Dreq { local, remote, remote_qpn: 0x12_3456, private },
        Message::Drep { local, remote, private },
        Message::SidrReq {
            request: local,
            pkey: 0xffff,
            service_id: service_id(0x0111, 9),
            private,
        },
        Message::SidrRep(sidr),
    ]
}

/// Bytes of private data that each of [`messages`] has room for (IBTA vol. 1, 12.6).
const ROOM: [usize; 9] = [92, 222, 148, 196, 224, 220, 224, 216, 136];

#[test]
fn each_message_has_the_room_that_the_specification_gives() {
    let long = [7; MAD_LEN];
    for (which, room) in ROOM.into_iter().enumerate() {
        let message = messages(&long[..room])[which];
        let mad = Mad { transaction: 0x1122_3344_5566_7788, message };
        let bytes = mad.write().unwrap();
        assert_eq!(Mad::parse(&bytes), Ok(mad));
        let message = messages(&long[..room + 1])[which];
        let refused = Mad { transaction: 1, message }.write().unwrap_err();
        assert_eq!(refused, CmError::Room { what: "private data", got: room + 1, max: room });
    }
}

#[test]
fn each_fault_has_its_reason() {
    let mad = Mad { transaction: 1, message: Message::Req(req(&[])) };
    let whole = mad.write().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = whole;
        bytes[at] = value;
        Mad::parse(&bytes).unwrap_err().reason()
    };
    assert_eq!(changed(0, 2), "version");
    assert_eq!(changed(2, 1), "version");
    assert_eq!(changed(1, 3), "class");
    assert_eq!(changed(3, 0x81), "method");
    assert_eq!(changed(17, 0x19), "attribute");
    assert_eq!(changed(24 + 50, 0x60), "reserved");
    for length in [0, 24, 255, 257] {
        let bytes = vec![1; length];
        assert_eq!(Mad::parse(&bytes), Err(CmError::Length { got: length }));
    }
    assert_eq!(IpHeader::parse(&[0; 35]), Err(CmError::IpHeader));
    assert_eq!(IpHeader::parse(&[0; 36]), Err(CmError::IpHeader));
}

proptest! {
    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), MAD_LEN), known: bool, attribute in 0x0f_u8..0x1b) {
        if known {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&[0, attribute]);
        }
        if let Ok(mad) = Mad::parse(&bytes) {
            // What was reserved on the wire is zero in what is written: the second reading agrees.
            let again = mad.write().unwrap();
            let mad = format!("{mad:?}");
            prop_assert_eq!(format!("{:?}", Mad::parse(&again).unwrap()), mad);
        }
    }

    #[test]
    fn addresses_return(src: [u8; 16], dst: [u8; 16], v4: bool, src_port: u16) {
        let address = |bytes: [u8; 16]| match v4 {
            true => IpAddr::from(*bytes.first_chunk::<4>().unwrap()),
            false => IpAddr::from(bytes),
        };
        let header = IpHeader { src_port, src: address(src), dst: address(dst) };
        prop_assert_eq!(IpHeader::parse(&header.bytes()), Ok(header));
    }
}

/// What tshark shows of each of [`messages`] but SIDR's, which it leaves undissected.
const READ: [(&str, &[(&str, &str)]); 7] = [
    (
        "REQ",
        &[
            ("infiniband.cm.req", "0x01020304"),
            ("infiniband.cm.req.serviceid", "0x0000000001061c06"),
            ("infiniband.cm.req.localcaguid", "0x0200112233445566"),
            ("infiniband.cm.req.localqpn", "0x123456"),
            ("infiniband.cm.req.responderres", "0x03"),
            ("infiniband.cm.req.initdepth", "0x04"),
            ("infiniband.cm.req.remoteresptout", "0x14"),
            ("infiniband.cm.req.transpsvctype", "0x00"),
            ("infiniband.cm.req.e2eflowctrl", "0x01"),
            ("infiniband.cm.req.startpsn", "0xabcdef"),
            ("infiniband.cm.req.localresptout", "0x13"),
            ("infiniband.cm.req.retrcount", "0x07"),
            ("infiniband.cm.req.pkey", "0xffff"),
            ("infiniband.cm.req.pppmtu", "0x03"),
            ("infiniband.cm.req.rnrretrcount", "0x06"),
            ("infiniband.cm.req.maxcmretr", "0x0f"),
            ("infiniband.cm.req.srq", "0x01"),
            ("infiniband.cm.req.prim_localgid_ipv4", "10.9.0.1"),
            ("infiniband.cm.req.prim_remotegid_ipv4", "10.9.0.2"),
            // Wireshark 4.0 takes the flow label from three bytes and the packet rate from one.
            ("infiniband.cm.req.prim_tfcclass", "0x08"),
            ("infiniband.cm.req.prim_hoplim", "0x40"),
            ("infiniband.cm.req.prim_sl", "0x01"),
            ("infiniband.cm.req.prim_subnetlocal", "0x01"),
            ("infiniband.cm.req.prim_localacktout", "0x12"),
            ("infiniband.cm.req.ip_cm.ipv", "0x04"),
            ("infiniband.cm.req.ip_cm.sport", "0x8001"),
            ("infiniband.cm.req.ip_cm.sip4", "10.9.0.1"),
            ("infiniband.cm.req.ip_cm.dip4", "10.9.0.2"),
        ],
    ),
    (
        "REP",
        &[
            ("infiniband.cm.rep", "0x11112222"),
            ("infiniband.cm.rep.remotecommid", "0x01020304"),
            ("infiniband.cm.rep.localqpn", "0x654321"),
            ("infiniband.cm.rep.startpsn", "0x010203"),
            ("infiniband.cm.rep.respres", "0x05"),
            ("infiniband.cm.rep.initdepth", "0x06"),
            ("infiniband.cm.rep.tgtackdelay", "0x0f"),
            ("infiniband.cm.rep.failoveracc", "0x02"),
            ("infiniband.cm.rep.e2eflowctrl", "0x01"),
            ("infiniband.cm.rep.rnrretrcount", "0x07"),
            ("infiniband.cm.rep.srq", "0x01"),
            ("infiniband.cm.rep.localcaguid", "0x0200aabbccddeeff"),
        ],
    ),
    (
        "REJ",
        &[
            ("infiniband.cm.rej.localcommid", "0x0a0b0c0d"),
            ("infiniband.cm.rej.remotecommid", "0x1a1b1c1d"),
            ("infiniband.cm.rej.msgrej", "0x00"),
            ("infiniband.cm.rej.rejinfolen", "0x02"),
            ("infiniband.cm.rej.reason", "0x001c"),
        ],
    ),
    (
        "RTU",
        &[
            ("infiniband.cm.rtu.localcommid", "0x0a0b0c0d"),
            ("infiniband.cm.rtu.remotecommid", "0x1a1b1c1d"),
        ],
    ),
    (
        "DREQ",
        &[
            ("infiniband.cm.dreq.localcommid", "0x0a0b0c0d"),
            ("infiniband.cm.dreq.remotecommid", "0x1a1b1c1d"),
            ("infiniband.cm.req.remoteqpneecn", "0x123456"),
        ],
    ),
    (
        "DREP",
        &[
            ("infiniband.cm.drsp.localcommid", "0x0a0b0c0d"),
            ("infiniband.cm.drsp.remotecommid", "0x1a1b1c1d"),
        ],
    ),
    ("SIDR_REQ", &[("infiniband.mad.attributeid", "0x0017"), ("infiniband.mad.mgmtclass", "0x07")]),
];

#[test]
fn wireshark_reads_what_was_meant() {
    let addresses = IpHeader {
        src_port: 0x8001,
        src: Ipv4Addr::new(10, 9, 0, 1).into(),
        dst: Ipv4Addr::new(10, 9, 0, 2).into(),
    };
    let private = [&addresses.bytes()[..], PRIVATE].concat();
    let all = messages(&private);
    let sent = [all[0], all[3], all[2], all[4], all[5], all[6], all[7]];
    let mut names: Vec<&str> =
        READ.iter().flat_map(|(_, fields)| fields.iter().map(|(name, _)| *name)).collect();
    names.dedup();
    let lines = dissect(&sent, &names);
    assert_eq!(lines.len(), READ.len());
    for (line, (what, expected)) in lines.iter().zip(READ) {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns[0], "", "{what} is malformed: {line}");
        for (name, value) in expected {
            let at = names.iter().position(|column| column == name).unwrap();
            assert_eq!(columns[at + 1], *value, "{name} of {what}");
        }
    }
}

/// What tshark reads in each message, as a datagram to QP 1: whether it is malformed, then these fields.
fn dissect(sent: &[Message<'_>], names: &[&str]) -> Vec<String> {
    let flow = Flow {
        src: SocketAddr::new(Ipv4Addr::new(10, 9, 0, 1).into(), UDP_PORT),
        dst: SocketAddr::new(Ipv4Addr::new(10, 9, 0, 2).into(), UDP_PORT),
    };
    let qp1 = Qpn::from_wrapping(1);
    let route = Route::Ud(Deth { qkey: QKEY, src_qpn: qp1 });
    let mut file = Vec::new();
    // LINKTYPE_RAW: packets begin with their IP header.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(u32::to_le_bytes(word));
    }
    for (index, message) in sent.iter().enumerate() {
        let mad = Mad { transaction: 7, message: *message }.write().unwrap();
        let psn = Psn::from_wrapping(index as u32);
        let headers = Headers::new(route, Packet::SendOnly(Tail::Plain), qp1, psn).unwrap();
        let mut packet = vec![0; PACKET_MAX];
        let len = headers.write(&flow, 0, &mad, &mut packet);
        packet.truncate(len);
        let udp_len = 8 + len as u16;
        let mut datagram = vec![0x45, 0];
        datagram.extend((20 + udp_len).to_be_bytes());
        datagram.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        datagram.extend([UDP_PORT, UDP_PORT, udp_len, 0].map(u16::to_be_bytes).concat());
        datagram.extend(packet);
        let len = datagram.len() as u32;
        for word in [index as u32, 0, len, len] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(datagram);
    }
    let mut command = Command::new("tshark");
    command.args(["-r", "-", "-n", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    for name in ["_ws.malformed"].iter().chain(names) {
        command.args(["-e", name]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tshark = command.spawn().expect("this test needs tshark: apt-get install tshark");
    // The whole of it fits the pipe.
    tshark.stdin.take().unwrap().write_all(&file).unwrap();
    let output = tshark.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
}
