//! What is encoded decodes, and what is none is refused.

use super::*;
use crate::record::Terms;
use alloc::vec::Vec;
use proptest::prelude::*;

pub(crate) fn end(qpn: u32) -> RcEnd {
    RcEnd { qpn, psn: 0xab_cdef, mtu: Mtu::Mtu4096, rd_atomic: 16 }
}

pub(crate) fn record(n: u32) -> NodeRecord {
    NodeRecord {
        dctn: n,
        dc_key: u64::from(n),
        control_qpn: n,
        mrs_rkey: n,
        log_mrs_max: 7,
        terms: Terms::default(),
    }
}

fn bodies() -> Vec<ControlBody> {
    let connect =
        |class, leased| ControlBody::Request(Request::RcConnect { end: end(7), class, leased });
    let mut all: Vec<ControlBody> = [
        Answer::Accepted(end(9)),
        Answer::Closed,
        Answer::Fate(Some(0xff_fffe)),
        Answer::Fate(None),
        Answer::Record(record(2)),
        Answer::Busy { retry_after_us: u32::MAX },
        Answer::Refused(Refusal::Crossed),
        Answer::Refused(Refusal::Short { of: Shortage::Pool, used: 32, limit: 33 }),
        Answer::Refused(Refusal::Short { of: Shortage::Leased, used: 0, limit: u32::MAX }),
        Answer::Refused(Refusal::Short { of: Shortage::Share, used: 8, limit: 8 }),
        Answer::Refused(Refusal::Short { of: Shortage::Peers, used: 9, limit: 9 }),
        Answer::Refused(Refusal::Short { of: Shortage::Device, used: 1, limit: 2 }),
        Answer::Working,
        Answer::Alive { turns: true, bound: numbers([0, 1, 2, 3, 4, 5, 0xff00, 0xffff]) },
    ]
    .map(ControlBody::Answer)
    .into();
    all.extend([connect(Class::Low, false), connect(Class::High, true)]);
    let close = Request::RcClose { qpn: 0xff_ffff, peer_qpn: 2 };
    let fate = Request::RcFate { qpn: 3, peer_qpn: 0xff_ffff, psn: PSN_MASK };
    let ports = numbers([0xffff, 7, 0, 0, 0, 0, 0, 1]);
    let alive = Request::Alive { qkey: 0x7fff_fffe, ports };
    all.extend([close, fate, Request::Meta, alive].map(ControlBody::Request));
    all
}

fn numbers(all: [u16; PORTS_ASKED]) -> [Option<NonZeroU16>; PORTS_ASKED] {
    all.map(NonZeroU16::new)
}

fn encoded(body: ControlBody) -> Vec<u8> {
    let mut bytes = [0xaa; CONTROL_BYTES_MAX];
    let message = ControlMessage { id: 0x0102_0304_0506_0708, body };
    let len = message.encode(&mut bytes);
    bytes[..len].to_vec()
}

#[test]
fn messages_survive_the_round_trip() {
    for body in bodies() {
        let message = ControlMessage::decode(&encoded(body)).unwrap();
        assert_eq!(message.body, body);
        assert_eq!(message.id, 0x0102_0304_0506_0708);
    }
}

#[test]
fn every_other_length_is_refused() {
    for body in bodies() {
        let mut bytes = encoded(body);
        for len in 0..bytes.len() {
            let cut = ControlMessage::decode(&bytes[..len]);
            assert!(matches!(cut, Err(ControlError::Length { .. })), "{body:?} cut to {len}");
        }
        bytes.push(0);
        let long = ControlMessage::decode(&bytes);
        assert!(matches!(long, Err(ControlError::Length { .. })), "{body:?}");
    }
}

#[test]
fn fields_that_never_hold_it_are_named() {
    let kind = |body: &ControlBody| ControlMessage { id: 0, body: *body }.kind();
    let find = |wanted| bodies().into_iter().find(|body| kind(body) == wanted).unwrap();
    let connect = encoded(find(1));
    let field = |at: usize, value: u8| {
        let mut bytes = connect.clone();
        bytes[at] = value;
        ControlMessage::decode(&bytes).unwrap_err()
    };
    assert_eq!(field(0, 0), ControlError::Magic);
    assert_eq!(field(4, 1), ControlError::Version { given: 1 });
    assert_eq!(field(5, 6), ControlError::Kind { given: 6 });
    assert_eq!(field(6, 1), ControlError::Field { name: "reserved", given: 1 });
    assert_eq!(field(19, 1), ControlError::Field { name: "qpn", given: 0x0100_0007 });
    assert_eq!(field(24, 6), ControlError::Field { name: "mtu", given: 6 });
    assert_eq!(field(25, 0), ControlError::Field { name: "rd_atomic", given: 0 });
    assert_eq!(field(25, 129), ControlError::Field { name: "rd_atomic", given: 129 });
    assert_eq!(field(26, 2), ControlError::Field { name: "class", given: 2 });
    assert_eq!(field(27, 2), ControlError::Field { name: "leased", given: 2 });
    let told = encoded(find(0x83));
    let mut bytes = told.clone();
    bytes[34..38].fill(0);
    assert!(matches!(ControlMessage::decode(&bytes), Err(ControlError::Record(_))));
    let refused = encoded(ControlBody::Answer(Answer::Refused(Refusal::Crossed)));
    let field = |at: usize, value: u8| {
        let mut bytes = refused.clone();
        bytes[at] = value;
        ControlMessage::decode(&bytes).unwrap_err()
    };
    assert_eq!(field(16, 0), ControlError::Field { name: "refusal", given: 0 });
    assert_eq!(field(17, 1), ControlError::Field { name: "reserved", given: 1 });
    assert_eq!(field(20, 3), ControlError::Field { name: "reserved", given: 3 });
}

#[test]
fn who_asks_whether_a_node_is_there_sends_as_much_as_he_is_sent() {
    let alive = |body: &&ControlBody| matches!(body, ControlBody::Request(Request::Alive { .. }));
    let answer = |body: &&ControlBody| matches!(body, ControlBody::Answer(Answer::Alive { .. }));
    let all = bodies();
    let [asked, told] =
        [encoded(*all.iter().find(alive).unwrap()), encoded(*all.iter().find(answer).unwrap())];
    assert_eq!(asked.len(), told.len());
    let mut bytes = told;
    bytes[17] = 1;
    let refused = ControlMessage::decode(&bytes).unwrap_err();
    assert_eq!(refused, ControlError::Field { name: "turns", given: 0x101 });
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same(
        which in 0..bodies().len(),
        at in 6..CONTROL_BYTES_MAX,
        value: u8,
    ) {
        let mut bytes = encoded(bodies()[which]);
        let at = at.min(bytes.len() - 1);
        bytes[at] = value;
        if let Ok(message) = ControlMessage::decode(&bytes) {
            let mut again = [0; CONTROL_BYTES_MAX];
            let len = message.encode(&mut again);
            prop_assert_eq!(&again[..len], &bytes[..]);
        }
    }
}
