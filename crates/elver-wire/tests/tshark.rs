//! Wireshark's InfiniBand dissector reads every packet type that we emit, and reads what we meant
//! and nothing else, over IPv4 and IPv6. Of our DC packets it reads the BTH and leaves the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;

use elver_wire::{
    Aeth, AtomicEth, BTH_LEN, Credits, DcConnect, DcEth, DcExtra, Deth, Flow, Headers, ICRC_LEN,
    Message, Msn, NakCode, Opcode, Operation, PACKET_MAX, PAYLOAD_MAX, Psn, Qpn, Reth, RnrTimer,
    Route, Syndrome, Tail, Transport, UDP_PORT, XrcEth,
};

#[test]
fn every_standard_packet_reads_as_meant() {
    for flow in flows() {
        let mut sent = standard(&flow);
        let all: BTreeSet<Opcode> = (0..=0xff)
            .filter_map(Opcode::from_byte)
            .filter(|opcode| !matches!(opcode.transport(), Transport::Dc | Transport::Xrc))
            .collect();
        assert_eq!(sent.iter().map(|sent| sent.headers.opcode()).collect::<BTreeSet<_>>(), all);
        let big = header(Route::Rc, Message::SendFirst);
        sent.push(Sent::new(&flow, big, &[0x77; PAYLOAD_MAX]));

        for (sent, read) in sent.iter().zip(dissect(&flow, &sent)) {
            assert_eq!(read, standard_fields(sent), "{:?}", sent.headers);
        }
    }
}

/// It knows the opcodes of XRC, and shows nothing of XRCETH.
#[test]
fn xrc_opcodes_are_known() {
    for flow in flows() {
        let srqn = Qpn::new(0x12_3456).unwrap();
        let mut sent = on_route(&flow, Route::Xrc(Some(XrcEth { srqn })));
        sent.extend(on_route(&flow, Route::Xrc(None)));
        let all = (0xa0..=0xbf).filter_map(Opcode::from_byte).collect::<BTreeSet<_>>();
        assert_eq!(sent.iter().map(|sent| sent.headers.opcode()).collect::<BTreeSet<_>>(), all);
        for (sent, mut read) in sent.iter().zip(dissect(&flow, &sent)) {
            let meant = bth_fields(sent);
            read.retain(|name, _| meant.contains_key(name));
            assert_eq!(read, meant, "{:?}", sent.headers);
        }
    }
}

#[test]
fn dc_opcodes_are_not_claimed() {
    for flow in flows() {
        let src_qpn = Qpn::new(0x65_4321).unwrap();
        let eth = DcEth { src_qpn, stream: 3, session: 0x0bad_cafe, fill: 0 };
        let connect = DcConnect { access_key: 0x0123_4567_89ab_cdef, token: 7, mtu: 5 };
        let mut sent = on_route(&flow, Route::Dc { eth, extra: DcExtra::Connect(connect) });
        sent.extend(on_route(&flow, Route::Dc { eth, extra: DcExtra::None }));
        sent.extend(on_route(&flow, Route::Dc { eth, extra: DcExtra::Token(9) }));
        for (sent, read) in sent.iter().zip(dissect(&flow, &sent)) {
            assert_eq!(read, unclaimed_fields(sent), "{:?}", sent.headers);
        }
    }
}

/// What Wireshark shows of our own headers with the script in contrib/.
#[test]
fn the_script_reads_every_dc_packet_as_meant() {
    for flow in flows() {
        let src_qpn = Qpn::new(0x65_4321).unwrap();
        let eth = DcEth { src_qpn, stream: 3, session: 0x0bad_cafe, fill: 0 };
        let connect = DcConnect { access_key: 0x0123_4567_89ab_cdef, token: 7, mtu: 5 };
        let mut sent = on_route(&flow, Route::Dc { eth, extra: DcExtra::Connect(connect) });
        sent.extend(on_route(
            &flow,
            Route::Dc { eth: DcEth { fill: 8, ..eth }, extra: DcExtra::None },
        ));
        sent.extend(on_route(&flow, Route::Dc { eth, extra: DcExtra::None }));
        sent.extend(on_route(&flow, Route::Dc { eth, extra: DcExtra::Token(9) }));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/wireshark/elver.lua");
        let read = tshark(&flow, &sent, &["-X", &format!("lua_script:{script}")], &OURS);
        for (sent, line) in sent.iter().zip(read) {
            let values = line.split('\t').skip(1).map(str::to_string);
            let read: BTreeMap<&str, String> =
                OURS.into_iter().zip(values).filter(|(_, value)| !value.is_empty()).collect();
            assert_eq!(read, our_fields(sent), "{:?}", sent.headers);
        }
    }
}

/// The fields of the script's that it shows.
const OURS: [&str; 18] = [
    "elver.dc.operation",
    "elver.dc.dest_qpn",
    "elver.dc.src_qpn",
    "elver.dc.session",
    "elver.dc.stream",
    "elver.dc.fill",
    "elver.dc.access_key",
    "elver.dc.token",
    "elver.dc.mtu",
    "elver.dc.syndrome",
    "elver.dc.msn",
    "elver.dc.va",
    "elver.dc.rkey",
    "elver.dc.length",
    "elver.dc.compare",
    "elver.dc.original",
    "elver.dc.word",
    "elver.dc.payload",
];

/// What the script should show of a DC packet, as tshark writes it.
fn our_fields(sent: &Sent) -> BTreeMap<&'static str, String> {
    let Route::Dc { eth, extra } = sent.headers.route() else { panic!("{:?}", sent.headers) };
    let mut fields = BTreeMap::from([
        ("elver.dc.operation", (sent.headers.opcode().to_byte() & 0x1f).to_string()),
        ("elver.dc.dest_qpn", format!("{:#08x}", sent.headers.dest_qpn.get())),
        ("elver.dc.src_qpn", format!("{:#08x}", eth.src_qpn.get())),
        ("elver.dc.session", format!("{:#010x}", eth.session)),
        ("elver.dc.stream", eth.stream.to_string()),
        ("elver.dc.fill", eth.fill.to_string()),
    ]);
    let mut tell = |name, value: String| {
        fields.insert(name, value);
    };
    match extra {
        DcExtra::None => {}
        DcExtra::Token(token) => tell("elver.dc.token", format!("{token:#018x}")),
        DcExtra::Connect(connect) => {
            tell("elver.dc.access_key", format!("{:#018x}", connect.access_key));
            tell("elver.dc.token", format!("{:#018x}", connect.token));
            tell("elver.dc.mtu", connect.mtu.to_string());
        }
    }
    let message = sent.headers.message();
    if let Some(Aeth { syndrome, msn }) = message.aeth() {
        tell("elver.dc.syndrome", format!("{:#04x}", syndrome.to_byte()));
        tell("elver.dc.msn", msn.get().to_string());
    }
    if let Message::WriteFirst(reth) | Message::WriteOnly(reth, _) | Message::ReadRequest(reth) =
        message
    {
        tell("elver.dc.va", format!("{:#018x}", reth.va));
        tell("elver.dc.rkey", format!("{:#010x}", reth.rkey));
        tell("elver.dc.length", reth.len.to_string());
    }
    if let Message::CmpSwp(atomic) | Message::FetchAdd(atomic) = message {
        tell("elver.dc.va", format!("{:#018x}", atomic.va));
        tell("elver.dc.rkey", format!("{:#010x}", atomic.rkey));
        tell("elver.dc.compare", format!("{:#018x}", atomic.compare));
    }
    match message {
        Message::AtomicAck(_, original) => {
            tell("elver.dc.original", format!("{original:#018x}"));
        }
        Message::SendLast(Tail::Imm(word) | Tail::Inv(word))
        | Message::SendOnly(Tail::Imm(word) | Tail::Inv(word))
        | Message::WriteLast(Some(word))
        | Message::WriteOnly(_, Some(word)) => tell("elver.dc.word", format!("{word:#010x}")),
        _ => {}
    }
    if !sent.payload.is_empty() {
        let payload = sent.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        tell("elver.dc.payload", payload);
    }
    fields
}

/// A packet as it leaves, and what it was made of.
struct Sent {
    headers: Headers,
    payload: Vec<u8>,
    bytes: Vec<u8>,
}

impl Sent {
    fn new(flow: &Flow, headers: Headers, payload: &[u8]) -> Sent {
        let mut bytes = vec![0xa5; PACKET_MAX];
        let len = headers.write(flow, IP_ID, payload, &mut bytes);
        bytes.truncate(len);
        Sent { headers, payload: payload.to_vec(), bytes }
    }
}

const IP_ID: u16 = 0x1234;
const QPN: u32 = 0x12_3456;
const PSN: u32 = 0xfe_dcba;
const RETH: Reth = Reth { va: 0x0123_4567_89ab_cdef, rkey: 0x8765_4321, len: 0x0102_0304 };
const ATOMIC: AtomicEth = AtomicEth {
    va: 0xfedc_ba98_7654_3210,
    rkey: 0x1357_9bdf,
    swap_or_add: 0x1122_3344_5566_7788,
    compare: 0x99aa_bbcc_ddee_ff00,
};
const WORD: u32 = 0xcafe_f00d;
const ORIGINAL: u64 = 0x0f1e_2d3c_4b5a_6978;

fn flows() -> [Flow; 2] {
    let flow = |src: &str, dst: &str| Flow {
        src: SocketAddr::new(src.parse().unwrap(), 0xc123),
        dst: SocketAddr::new(dst.parse().unwrap(), UDP_PORT),
    };
    [flow("10.9.0.1", "10.9.0.2"), flow("fd00::1", "fd00::2")]
}

/// Every message there is, each syndrome among them.
fn messages() -> Vec<Message> {
    let aeth = |syndrome| Aeth { syndrome, msn: Msn::from_wrapping(0xab_cdef) };
    let ack = aeth(Syndrome::Ack(Credits::UNCOUNTED));
    let mut messages = vec![
        Message::SendFirst,
        Message::SendMiddle,
        Message::SendLast(Tail::Plain),
        Message::SendLast(Tail::Imm(WORD)),
        Message::SendLast(Tail::Inv(WORD)),
        Message::SendOnly(Tail::Plain),
        Message::SendOnly(Tail::Imm(WORD)),
        Message::SendOnly(Tail::Inv(WORD)),
        Message::WriteFirst(RETH),
        Message::WriteMiddle,
        Message::WriteLast(None),
        Message::WriteLast(Some(WORD)),
        Message::WriteOnly(RETH, None),
        Message::WriteOnly(RETH, Some(WORD)),
        Message::ReadRequest(RETH),
        Message::ReadResponseFirst(ack),
        Message::ReadResponseMiddle,
        Message::ReadResponseLast(ack),
        Message::ReadResponseOnly(ack),
        Message::AtomicAck(ack, ORIGINAL),
        Message::CmpSwp(ATOMIC),
        Message::FetchAdd(ATOMIC),
        Message::Ack(ack),
        Message::Ack(aeth(Syndrome::RnrNak(RnrTimer::new(14).unwrap()))),
    ];
    let naks = [
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperation,
        NakCode::InvalidRdRequest,
        NakCode::DcNoContext,
        NakCode::DcProve,
    ];
    messages.extend(naks.map(|code| Message::Ack(aeth(Syndrome::Nak(code)))));
    messages
}

fn header(route: Route, message: Message) -> Headers {
    Headers::new(route, message, Qpn::new(QPN).unwrap(), Psn::new(PSN).unwrap()).unwrap()
}

/// Each message that the route has, with payloads of every padding, and flags that differ from
/// packet to packet.
fn on_route(flow: &Flow, route: Route) -> Vec<Sent> {
    let (qpn, psn) = (Qpn::new(QPN).unwrap(), Psn::new(PSN).unwrap());
    let mut sent = Vec::new();
    for message in messages() {
        let Ok(mut headers) = Headers::new(route, message, qpn, psn) else { continue };
        let turn = sent.len();
        headers.solicited = turn & 1 != 0;
        headers.ack_req = turn & 2 != 0;
        headers.mig_req = turn & 4 != 0;
        headers.fecn = turn & 8 != 0;
        headers.becn = turn & 16 != 0;
        headers.pkey = if turn & 1 != 0 { 0xffff } else { 0x8001 };
        let len = if headers.opcode().operation().is_some_and(Operation::has_payload) {
            41 + turn % 4
        } else {
            0
        };
        let payload: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
        sent.push(Sent::new(flow, headers, &payload));
    }
    sent
}

fn standard(flow: &Flow) -> Vec<Sent> {
    let deth = Deth { qkey: 0x1111_1111, src_qpn: Qpn::new(0x65_4321).unwrap() };
    let mut sent: Vec<Sent> = [Route::Rc, Route::Uc, Route::Ud(deth)]
        .into_iter()
        .flat_map(|route| on_route(flow, route))
        .collect();
    let mut cnp = header(Route::Rc, Message::Cnp);
    cnp.becn = true;
    sent.push(Sent::new(flow, cnp, &[]));
    sent
}

/// What a field of the dissector holds.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a packet by the dissector's names; absent ones are left out.
type Fields = BTreeMap<&'static str, Value>;

const NUMBERS: [&str; 24] = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.syndrome.opcode",
    "infiniband.aeth.syndrome.credit_count",
    "infiniband.aeth.syndrome.timer",
    "infiniband.aeth.syndrome.error_code",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.invariant.crc",
];

/// What follows a BTH whose opcode the dissector does not know.
const UNCLAIMED: &str = "infiniband.vendor";

const BYTES: [&str; 5] = [
    // The byte of the BTH that holds FECN and BECN, which the dissector does not name.
    "infiniband.reserved",
    "infiniband.immdt",
    "infiniband.ieth",
    UNCLAIMED,
    // The payload with its padding.
    "data.data",
];

/// What tshark reads in each packet.
fn dissect(flow: &Flow, sent: &[Sent]) -> Vec<Fields> {
    let names: Vec<&str> = NUMBERS.iter().chain(&BYTES).copied().collect();
    // RPC over RDMA would take our payloads for its own.
    let lines = tshark(flow, sent, &["--disable-protocol", "rpcordma"], &names);
    lines.iter().map(|line| fields(line)).collect()
}

/// What tshark writes of each packet: first whether it is malformed, then these fields.
fn tshark(flow: &Flow, sent: &[Sent], arguments: &[&str], names: &[&str]) -> Vec<String> {
    let file = pcap(flow, sent);
    let mut command = Command::new("tshark");
    command.args(["-r", "-", "-n", "-T", "fields"]).args(arguments);
    command.args(["-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=,"]);
    for name in ["_ws.malformed"].iter().chain(names) {
        command.args(["-e", name]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tshark = command.spawn().unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => panic!("this test needs tshark: apt-get install tshark"),
        _ => panic!("cannot start tshark: {error}"),
    });
    let mut input = tshark.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        // Beside the reading, so that neither pipe fills up. If tshark gives up early, its own
        // message below says more than the broken pipe.
        scope.spawn(move || input.write_all(&file));
        tshark.wait_with_output().unwrap()
    });
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed, {}: {complaint}", output.status);
    assert!(!complaint.contains("Lua"), "the script is wrong: {complaint}");
    let text = String::from_utf8(output.stdout).unwrap();
    let read: Vec<String> = text.lines().map(str::to_string).collect();
    assert_eq!(read.len(), sent.len(), "one line for each packet: {complaint}");
    read
}

fn fields(line: &str) -> Fields {
    let mut columns = line.split('\t');
    assert_eq!(columns.next(), Some(""), "malformed: {line}");
    let numbers = NUMBERS.iter().map(|name| (*name, number as fn(&str) -> Value));
    let bytes = BYTES.iter().map(|name| (*name, bytes as fn(&str) -> Value));
    numbers
        .chain(bytes)
        .zip(columns)
        .filter(|(_, text)| !text.is_empty())
        .map(|((name, read), text)| (name, read(occurrence(name, text))))
        .collect()
}

/// Of a field that occurs more than once, the one that we mean: what is unclaimed stands below a
/// heading that repeats its first bytes; otherwise the first, as the BTH comes first.
fn occurrence<'a>(name: &str, text: &'a str) -> &'a str {
    let mut all = text.split(',');
    let one = if name == UNCLAIMED { all.next_back() } else { all.next() };
    one.unwrap_or(text)
}

/// Booleans are 0 and 1 up to Wireshark 4.0, and words after it.
fn number(text: &str) -> Value {
    Value::Number(match (text, text.strip_prefix("0x")) {
        ("True", _) => 1,
        ("False", _) => 0,
        (_, Some(digits)) => u64::from_str_radix(digits, 16).unwrap(),
        (digits, None) => digits.parse().unwrap(),
    })
}

fn bytes(text: &str) -> Value {
    let digits = text.replace(':', "");
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    Value::Bytes((0..digits.len()).step_by(2).map(pair).collect())
}

/// The fields of a BTH.
fn bth_fields(Sent { headers, payload, .. }: &Sent) -> Fields {
    let congestion = u8::from(headers.fecn) << 7 | u8::from(headers.becn) << 6;
    let padding = payload.len().next_multiple_of(4) - payload.len();
    let number = |name, value: u32| (name, Value::Number(value.into()));
    Fields::from([
        number("infiniband.bth.opcode", headers.opcode().to_byte().into()),
        number("infiniband.bth.se", headers.solicited.into()),
        number("infiniband.bth.m", headers.mig_req.into()),
        number("infiniband.bth.padcnt", padding as u32),
        number("infiniband.bth.tver", 0),
        number("infiniband.bth.p_key", headers.pkey.into()),
        ("infiniband.reserved", Value::Bytes(vec![congestion])),
        number("infiniband.bth.destqp", headers.dest_qpn.get()),
        number("infiniband.bth.a", headers.ack_req.into()),
        number("infiniband.bth.psn", headers.psn.get()),
    ])
}

/// The fields of a packet whose opcode the dissector does not know.
fn unclaimed_fields(sent: &Sent) -> Fields {
    let mut fields = bth_fields(sent);
    fields.insert(UNCLAIMED, Value::Bytes(sent.bytes[BTH_LEN..].to_vec()));
    fields
}

/// The fields of a packet of the specification's.
fn standard_fields(sent: &Sent) -> Fields {
    // Wireshark 4.0 does not know congestion notifications beyond their BTH.
    if sent.headers.message() == Message::Cnp {
        return unclaimed_fields(sent);
    }
    let mut fields = bth_fields(sent);
    let mut number = |name, value: u64| {
        fields.insert(name, Value::Number(value));
    };
    if let Route::Ud(deth) = sent.headers.route() {
        number("infiniband.deth.q_key", deth.qkey.into());
        number("infiniband.deth.srcqp", deth.src_qpn.get().into());
    }
    let message = sent.headers.message();
    if let Message::WriteFirst(reth) | Message::WriteOnly(reth, _) | Message::ReadRequest(reth) =
        message
    {
        number("infiniband.reth.va", reth.va);
        number("infiniband.reth.r_key", reth.rkey.into());
        number("infiniband.reth.dmalen", reth.len.into());
    }
    if let Message::CmpSwp(eth) | Message::FetchAdd(eth) = message {
        number("infiniband.reth.va", eth.va);
        number("infiniband.reth.r_key", eth.rkey.into());
        number("infiniband.atomiceth.swapdt", eth.swap_or_add);
        number("infiniband.atomiceth.cmpdt", eth.compare);
    }
    if let Some(Aeth { syndrome, msn }) = message.aeth() {
        let byte = u64::from(syndrome.to_byte());
        let detail = match syndrome {
            Syndrome::Ack { .. } => "infiniband.aeth.syndrome.credit_count",
            Syndrome::RnrNak(_) => "infiniband.aeth.syndrome.timer",
            Syndrome::Nak(_) => "infiniband.aeth.syndrome.error_code",
        };
        number("infiniband.aeth.syndrome", byte);
        number("infiniband.aeth.syndrome.opcode", byte >> 5);
        number(detail, byte & 0x1f);
        number("infiniband.aeth.msn", msn.get().into());
    }
    if let Message::AtomicAck(_, original) = message {
        number("infiniband.atomicacketh.origremdt", original);
    }
    let (packet, icrc) = sent.bytes.split_at(sent.bytes.len() - ICRC_LEN);
    number("infiniband.invariant.crc", u32::from_be_bytes(icrc.try_into().unwrap()).into());

    let mut bytes = |name, value: &[u8]| {
        fields.insert(name, Value::Bytes(value.to_vec()));
    };
    match message {
        Message::SendLast(Tail::Imm(word))
        | Message::SendOnly(Tail::Imm(word))
        | Message::WriteLast(Some(word))
        | Message::WriteOnly(_, Some(word)) => bytes("infiniband.immdt", &word.to_be_bytes()),
        Message::SendLast(Tail::Inv(word)) | Message::SendOnly(Tail::Inv(word)) => {
            bytes("infiniband.ieth", &word.to_be_bytes());
        }
        _ => {}
    }
    let body = &packet[sent.headers.header_len()..];
    if !body.is_empty() {
        bytes("data.data", body);
    }
    fields
}

/// LINKTYPE_RAW: packets begin with their IP header.
const LINKTYPE_RAW: u32 = 101;

fn pcap(flow: &Flow, sent: &[Sent]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, LINKTYPE_RAW] {
        file.extend(u32::to_le_bytes(word));
    }
    for (index, packet) in sent.iter().enumerate() {
        let datagram = datagram(flow, &packet.bytes);
        let len = datagram.len() as u32;
        for word in [index as u32, 0, len, len] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(datagram);
    }
    file
}

/// IP and UDP in front of a packet, without checksums.
fn datagram(flow: &Flow, packet: &[u8]) -> Vec<u8> {
    let udp_len = (8 + packet.len()) as u16;
    let mut bytes = Vec::new();
    match (flow.src.ip(), flow.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes.extend([0x45, 0]);
            bytes.extend((20 + udp_len).to_be_bytes());
            bytes.extend(IP_ID.to_be_bytes());
            bytes.extend([0x40, 0, 64, 17, 0, 0]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        _ => panic!("a flow has one IP version: {flow:?}"),
    }
    bytes.extend(flow.src.port().to_be_bytes());
    bytes.extend(flow.dst.port().to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(packet);
    bytes
}
