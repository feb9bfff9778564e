//! The reserved fields of our DC headers: a packet in which any bit of them is set is refused, so
//! that a later version may give them a meaning.

use elver_wire::{
    BTH_LEN, DcConnect, DcEth, DcExtra, Headers, Message, PACKET_MAX, PacketView, ParseError, Psn,
    Qpn, Route, Tail, packet_len,
};

/// Where DcConnect begins.
const CONNECT_AT: usize = BTH_LEN + DcEth::LEN;

/// A DC packet that connects.
fn packet() -> Vec<u8> {
    let qpn = Qpn::from_wrapping(0x65_4321);
    let eth = DcEth { src_qpn: qpn, stream: 0xffff, session: u32::MAX, fill: 0 };
    let connect = DcConnect { access_key: u64::MAX, token: u64::MAX, mtu: 5 };
    let extra = DcExtra::Connect(connect);
    let message = Message::SendOnly(Tail::Plain);
    let headers =
        Headers::new(Route::Dc { eth, extra }, message, qpn, Psn::from_wrapping(1)).unwrap();
    let mut bytes = vec![0; PACKET_MAX];
    let len = packet_len(headers.emit(&mut bytes, 0), 0);
    bytes.truncate(len);
    bytes
}

fn parse_with(at: usize, bit: u8) -> Option<ParseError> {
    let mut bytes = packet();
    bytes[at] ^= 1 << bit;
    PacketView::parse(&bytes).err()
}

#[test]
fn every_reserved_bit_is_looked_at() {
    assert!(PacketView::parse(&packet()).is_ok());
    for bit in 1..4 {
        assert_eq!(parse_with(BTH_LEN, bit), Some(ParseError::Reserved), "flag {bit}");
    }
    for at in CONNECT_AT + 17..CONNECT_AT + DcConnect::LEN {
        for bit in 0..8 {
            assert_eq!(parse_with(at, bit), Some(ParseError::Reserved), "byte {at}, bit {bit}");
        }
    }
}

/// Fill that is not there, or that is no multiple of 4.
#[test]
fn fill_is_checked() {
    for at in BTH_LEN + 10..CONNECT_AT {
        for bit in 0..8 {
            assert!(parse_with(at, bit).is_some(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn every_other_bit_is_a_value_or_the_version() {
    for at in BTH_LEN + 1..BTH_LEN + 10 {
        for bit in 0..8 {
            assert_eq!(parse_with(at, bit), None, "byte {at}, bit {bit}");
        }
    }
    for at in CONNECT_AT..CONNECT_AT + 17 {
        for bit in 0..8 {
            assert_eq!(parse_with(at, bit), None, "byte {at}, bit {bit}");
        }
    }
    for bit in 4..8 {
        assert_eq!(parse_with(BTH_LEN, bit), Some(ParseError::Version(2 ^ 1 << (bit - 4))));
    }
}
