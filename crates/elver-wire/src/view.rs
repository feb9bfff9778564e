use crate::bytes::{u16_at, u24_at, u32_at, u64_at};
use crate::headers::CNP_RESERVED;
use crate::{
    Aeth, AtomicEth, BTH_LEN, DcEth, DcExtra, Deth, Headers, ICRC_LEN, Message, Opcode, Operation,
    PAYLOAD_MAX, ParseError, Psn, Qpn, Reth, Route, Tail, Transport, XrcEth,
};

/// A received packet whose headers were checked.
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    headers: Headers,
    payload: &'a [u8],
}

impl<'a> PacketView<'a> {
    /// Checks the bytes of a UDP payload, from the BTH to the ICRC. The ICRC itself is
    /// [`crate::icrc::verify`]'s.
    ///
    /// # Errors
    /// Each of [`ParseError`]'s. No bytes make it panic.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<PacketView<'a>, ParseError> {
        let got = bytes.len();
        if got < BTH_LEN + ICRC_LEN {
            return Err(ParseError::Truncated { needed: BTH_LEN + ICRC_LEN, got });
        }
        let opcode = Opcode::from_byte(bytes[0]).ok_or(ParseError::Opcode(bytes[0]))?;
        let version = bytes[1] & 0xf;
        if version != 0 {
            return Err(ParseError::Version(version));
        }
        let body = &bytes[..got - ICRC_LEN];
        let (route, at) = parse_route(opcode, body)?;
        let (message, mut header_len) = parse_message(opcode, body, at)?;
        if let Route::Dc { eth, .. } = route {
            header_len += usize::from(eth.fill);
            need(body, header_len)?;
        }
        let payload = &body[header_len..];
        let pad = usize::from(bytes[1] >> 4 & 3);
        if pad > payload.len() || !payload.len().is_multiple_of(4) {
            return Err(ParseError::Padding);
        }
        let payload = &payload[..payload.len() - pad];
        let carries = opcode.operation().is_some_and(Operation::has_payload);
        let max = if carries { PAYLOAD_MAX } else { 0 };
        if payload.len() > max {
            return Err(ParseError::Oversized { got: payload.len(), max });
        }
        let psn = Psn::from_wrapping(u24_at(bytes, 9));
        let dest_qpn = Qpn::from_wrapping(u24_at(bytes, 5));
        let mut headers = Headers::of(opcode, route, message, dest_qpn, psn);
        headers.solicited = bytes[1] & 0x80 != 0;
        headers.mig_req = bytes[1] & 0x40 != 0;
        headers.pkey = u16_at(bytes, 2);
        headers.fecn = bytes[4] & 0x80 != 0;
        headers.becn = bytes[4] & 0x40 != 0;
        headers.ack_req = bytes[8] & 0x80 != 0;
        Ok(PacketView { headers, payload })
    }

    /// Every header field.
    #[inline]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The payload, without padding and ICRC.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Checks that the headers reach to `needed`.
#[inline]
fn need(body: &[u8], needed: usize) -> Result<(), ParseError> {
    if body.len() >= needed {
        return Ok(());
    }
    Err(ParseError::Truncated { needed: needed + ICRC_LEN, got: body.len() + ICRC_LEN })
}

/// The transport's header, and where the next begins.
#[inline]
fn parse_route(opcode: Opcode, body: &[u8]) -> Result<(Route, usize), ParseError> {
    let at = BTH_LEN;
    match opcode.transport() {
        Transport::Rc | Transport::Cnp => Ok((Route::Rc, at)),
        Transport::Uc => Ok((Route::Uc, at)),
        Transport::Ud => {
            need(body, at + Deth::LEN)?;
            Ok((Route::Ud(Deth::parse(&body[at..])), at + Deth::LEN))
        }
        Transport::Xrc if opcode.operation().is_some_and(Operation::is_response) => {
            Ok((Route::Xrc(None), at))
        }
        Transport::Xrc => {
            need(body, at + XrcEth::LEN)?;
            Ok((Route::Xrc(Some(XrcEth::parse(&body[at..]))), at + XrcEth::LEN))
        }
        Transport::Dc => {
            need(body, at + DcEth::LEN)?;
            let response = opcode.operation().is_some_and(Operation::is_response);
            let (eth, flags) = DcEth::parse(&body[at..], response)?;
            let at = at + DcEth::LEN;
            let end = at + DcExtra::len_by(flags);
            need(body, end)?;
            let extra = DcExtra::parse(flags, &body[at..end])?;
            Ok((Route::Dc { eth, extra }, end))
        }
    }
}

/// The message with its headers, and where the payload begins.
#[inline]
fn parse_message(opcode: Opcode, body: &[u8], at: usize) -> Result<(Message, usize), ParseError> {
    let Some(operation) = opcode.operation() else {
        need(body, at + CNP_RESERVED)?;
        return Ok((Message::Cnp, at + CNP_RESERVED));
    };
    let end = at + operation.extended_len();
    need(body, end)?;
    let ext = &body[at..end];
    let aeth = |bytes| Aeth::parse(bytes, opcode.transport());
    let message = match operation {
        Operation::SendFirst => Message::SendFirst,
        Operation::SendMiddle => Message::SendMiddle,
        Operation::SendLast => Message::SendLast(Tail::Plain),
        Operation::SendLastImm => Message::SendLast(Tail::Imm(u32_at(ext, 0))),
        Operation::SendLastInv => Message::SendLast(Tail::Inv(u32_at(ext, 0))),
        Operation::SendOnly => Message::SendOnly(Tail::Plain),
        Operation::SendOnlyImm => Message::SendOnly(Tail::Imm(u32_at(ext, 0))),
        Operation::SendOnlyInv => Message::SendOnly(Tail::Inv(u32_at(ext, 0))),
        Operation::WriteFirst => Message::WriteFirst(Reth::parse(ext)),
        Operation::WriteMiddle => Message::WriteMiddle,
        Operation::WriteLast => Message::WriteLast(None),
        Operation::WriteLastImm => Message::WriteLast(Some(u32_at(ext, 0))),
        Operation::WriteOnly => Message::WriteOnly(Reth::parse(ext), None),
        Operation::WriteOnlyImm => {
            Message::WriteOnly(Reth::parse(ext), Some(u32_at(ext, Reth::LEN)))
        }
        Operation::ReadRequest => Message::ReadRequest(Reth::parse(ext)),
        Operation::ReadResponseFirst => Message::ReadResponseFirst(aeth(ext)?),
        Operation::ReadResponseMiddle => Message::ReadResponseMiddle,
        Operation::ReadResponseLast => Message::ReadResponseLast(aeth(ext)?),
        Operation::ReadResponseOnly => Message::ReadResponseOnly(aeth(ext)?),
        Operation::Ack => Message::Ack(aeth(ext)?),
        Operation::AtomicAck => Message::AtomicAck(aeth(ext)?, u64_at(ext, Aeth::LEN)),
        Operation::CmpSwp => Message::CmpSwp(AtomicEth::parse(ext)),
        Operation::FetchAdd => Message::FetchAdd(AtomicEth::parse(ext)),
    };
    Ok((message, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DcConnect, Msn, PACKET_MAX, Syndrome, packet_len};
    use proptest::prelude::*;

    fn tails() -> impl Strategy<Value = Tail> {
        prop_oneof![
            Just(Tail::Plain),
            any::<u32>().prop_map(Tail::Imm),
            any::<u32>().prop_map(Tail::Inv)
        ]
    }

    fn reths() -> impl Strategy<Value = Reth> {
        any::<(u64, u32, u32)>().prop_map(|(va, rkey, len)| Reth { va, rkey, len })
    }

    fn aeths() -> impl Strategy<Value = Aeth> {
        (any::<u8>(), 0u32..1 << 24).prop_filter_map("syndrome", |(byte, msn)| {
            let msn = Msn::from_wrapping(msn);
            Some(Aeth { syndrome: Syndrome::from_byte(byte).ok()?, msn })
        })
    }

    fn atomics() -> impl Strategy<Value = AtomicEth> {
        any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_or_add, compare)| AtomicEth {
            va,
            rkey,
            swap_or_add,
            compare,
        })
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::SendFirst),
            Just(Message::SendMiddle),
            tails().prop_map(Message::SendLast),
            tails().prop_map(Message::SendOnly),
            reths().prop_map(Message::WriteFirst),
            Just(Message::WriteMiddle),
            any::<Option<u32>>().prop_map(Message::WriteLast),
            (reths(), any::<Option<u32>>()).prop_map(|(reth, imm)| Message::WriteOnly(reth, imm)),
            reths().prop_map(Message::ReadRequest),
            aeths().prop_map(Message::ReadResponseFirst),
            Just(Message::ReadResponseMiddle),
            aeths().prop_map(Message::ReadResponseLast),
            aeths().prop_map(Message::ReadResponseOnly),
            aeths().prop_map(Message::Ack),
            (aeths(), any::<u64>()).prop_map(|(aeth, data)| Message::AtomicAck(aeth, data)),
            atomics().prop_map(Message::CmpSwp),
            atomics().prop_map(Message::FetchAdd),
        ]
    }

    fn extras() -> impl Strategy<Value = DcExtra> {
        prop_oneof![
            Just(DcExtra::None),
            any::<u64>().prop_map(DcExtra::Token),
            any::<(u64, u64, u8)>().prop_map(|(access_key, token, mtu)| {
                DcExtra::Connect(DcConnect { access_key, token, mtu })
            }),
        ]
    }

    fn routes() -> impl Strategy<Value = Route> {
        prop_oneof![
            Just(Route::Rc),
            Just(Route::Uc),
            any::<Option<u32>>().prop_map(|srqn| {
                Route::Xrc(srqn.map(|srqn| XrcEth { srqn: Qpn::from_wrapping(srqn) }))
            }),
            any::<(u32, u32)>()
                .prop_map(|(qkey, qpn)| Route::Ud(Deth { qkey, src_qpn: Qpn::from_wrapping(qpn) })),
            (any::<(u32, u16, u32)>(), 0u16..8, extras()).prop_map(
                |((qpn, stream, session), fours, extra)| {
                    let src_qpn = Qpn::from_wrapping(qpn);
                    Route::Dc { eth: DcEth { src_qpn, stream, session, fill: 4 * fours }, extra }
                }
            )
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_parses_to_the_same(
            route in routes(),
            message in messages(),
            (qpn, psn, pkey) in any::<(u32, u32, u16)>(),
            flags in any::<[bool; 5]>(),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (qpn, psn) = (Qpn::from_wrapping(qpn), Psn::from_wrapping(psn));
            let Ok(mut headers) = Headers::new(route, message, qpn, psn) else { return Ok(()) };
            [
                headers.ack_req,
                headers.solicited,
                headers.mig_req,
                headers.fecn,
                headers.becn,
            ] = flags;
            headers.pkey = pkey;
            let carries = headers.opcode().operation().is_some_and(Operation::has_payload);
            let payload = if carries { &payload[..] } else { &[] };
            let mut buf = [0xa5; PACKET_MAX];
            let at = headers.emit(&mut buf, payload.len());
            buf[at..at + payload.len()].copy_from_slice(payload);
            let len = packet_len(at, payload.len());
            let view = PacketView::parse(&buf[..len]).unwrap();
            prop_assert_eq!(view.headers(), &headers);
            prop_assert_eq!(view.payload(), payload);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = PacketView::parse(&bytes);
        }

        /// The view accepts nothing that the value type would refuse.
        #[test]
        fn whatever_parses_can_be_built(
            route in routes(),
            message in messages(),
            (at, byte) in (0usize..64, any::<u8>()),
        ) {
            let (qpn, psn) = (Qpn::from_wrapping(1), Psn::from_wrapping(2));
            let Ok(headers) = Headers::new(route, message, qpn, psn) else { return Ok(()) };
            let mut buf = [0; 200];
            let len = packet_len(headers.emit(&mut buf, 0), 0);
            buf[at.min(len - 1)] ^= byte;
            let Ok(view) = PacketView::parse(&buf[..len]) else { return Ok(()) };
            let parsed = view.headers();
            let mut built =
                Headers::new(parsed.route(), parsed.message(), parsed.dest_qpn, parsed.psn).unwrap();
            built.ack_req = parsed.ack_req;
            built.solicited = parsed.solicited;
            built.mig_req = parsed.mig_req;
            built.fecn = parsed.fecn;
            built.becn = parsed.becn;
            built.pkey = parsed.pkey;
            prop_assert_eq!(&built, parsed);
        }

        #[test]
        fn no_truncation_panics(message in messages(), route in routes(), cut in 0usize..200) {
            let (qpn, psn) = (Qpn::from_wrapping(1), Psn::from_wrapping(2));
            let Ok(headers) = Headers::new(route, message, qpn, psn) else { return Ok(()) };
            let mut buf = [0; 200];
            let len = packet_len(headers.emit(&mut buf, 0), 0);
            if cut < len {
                prop_assert!(PacketView::parse(&buf[..cut]).is_err());
            }
        }
    }

    fn refusal(opcode: u8, change: impl FnOnce(&mut [u8])) -> ParseError {
        let mut bytes = [0; 100];
        bytes[0] = opcode;
        change(&mut bytes);
        PacketView::parse(&bytes).unwrap_err()
    }

    #[test]
    fn each_fault_has_its_reason() {
        const RC_SEND_ONLY: u8 = 0x04;
        const RC_ACK: u8 = 0x11;
        const DC_SEND_ONLY: u8 = 0xc4;
        const DC_ACK: u8 = 0xd1;
        let errors = [
            (PacketView::parse(&[0; 15]).unwrap_err(), "truncated"),
            (
                PacketView::parse(&[0; BTH_LEN + ICRC_LEN + 4 + PAYLOAD_MAX]).unwrap_err(),
                "oversized",
            ),
            (refusal(RC_ACK, |_| ()), "oversized"),
            (refusal(RC_SEND_ONLY, |bytes| bytes[1] = 1), "version"),
            (refusal(DC_SEND_ONLY, |_| ()), "version"),
            (refusal(0x15, |_| ()), "opcode"),
            (PacketView::parse(&[0; 17]).unwrap_err(), "padding"),
            (refusal(DC_SEND_ONLY, |bytes| bytes[BTH_LEN] = 0x23), "reserved"),
            (refusal(DC_ACK, |bytes| bytes[BTH_LEN] = 0x21), "reserved"),
            (refusal(RC_ACK, |bytes| bytes[BTH_LEN] = 0x7f), "syndrome"),
            (refusal(RC_ACK, |bytes| bytes[BTH_LEN] = 0x40), "syndrome"),
        ];
        for (error, reason) in errors {
            assert_eq!(error.reason(), reason, "{error}");
        }
        let no_context = |bytes: &mut [u8]| {
            bytes[BTH_LEN] = 0x20;
            bytes[BTH_LEN + DcEth::LEN] = 0x7f;
        };
        assert_eq!(refusal(DC_ACK, no_context).reason(), "oversized", "the syndrome was taken");
    }
}
