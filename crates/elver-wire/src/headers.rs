use thiserror::Error;

use crate::eth::fill_fits;
use crate::icrc::{self, Flow};
use crate::{
    Aeth, AtomicEth, BTH_LEN, DcConnect, DcEth, DcExtra, Deth, ICRC_LEN, Opcode, Operation,
    PAYLOAD_MAX, PKEY_DEFAULT, Psn, Qpn, Reth, Syndrome, Transport, XrcEth,
};

/// Longest headers in front of a payload: those of a DC WRITE_ONLY_WITH_IMM that connects. Atomics
/// have longer ones, and no payload.
pub const HEADERS_MAX: usize = BTH_LEN + DcEth::LEN + DcConnect::LEN + Reth::LEN + 4;
/// Longest packet in bytes, from the BTH to the ICRC.
pub const PACKET_MAX: usize = HEADERS_MAX + PAYLOAD_MAX + ICRC_LEN;

/// Length of a packet from the BTH to the ICRC, with its padding.
#[inline]
pub const fn packet_len(header_len: usize, payload_len: usize) -> usize {
    header_len + payload_len.next_multiple_of(4) + ICRC_LEN
}

/// The transport of a packet, with the header of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud(Deth),
    /// Extended Reliable Connection: a request with its header, or a response, which has none.
    Xrc(Option<XrcEth>),
    /// Dynamically Connected.
    Dc {
        /// Who, which stream, which session.
        eth: DcEth,
        /// What opens the session, or a token.
        extra: DcExtra,
    },
}

/// What the last packet of a SEND carries besides the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Imm(u32),
    /// An rkey to invalidate.
    Inv(u32),
}

/// What a packet is, with the headers that it needs.
#[allow(missing_docs, reason = "the names are the specification's: IBTA 9.2.1, table 38")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    SendFirst,
    SendMiddle,
    SendLast(Tail),
    SendOnly(Tail),
    WriteFirst(Reth),
    WriteMiddle,
    WriteLast(Option<u32>),
    WriteOnly(Reth, Option<u32>),
    ReadRequest(Reth),
    ReadResponseFirst(Aeth),
    ReadResponseMiddle,
    ReadResponseLast(Aeth),
    ReadResponseOnly(Aeth),
    Ack(Aeth),
    AtomicAck(Aeth, u64),
    CmpSwp(AtomicEth),
    FetchAdd(AtomicEth),
    Cnp,
}

/// A combination that no packet can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The transport has no such message.
    #[error("{transport:?} has no {operation:?}")]
    NoSuchMessage {
        /// The transport.
        transport: Transport,
        /// The operation.
        operation: Operation,
    },
    /// A response cannot open a session and has no fill; fill is a multiple of 4, up to 4,096.
    #[error("a DC {operation:?} has no {extra:?} or no {fill} bytes of fill")]
    Extra {
        /// The operation.
        operation: Operation,
        /// What was to stand behind the DcEth.
        extra: DcExtra,
        /// Bytes of fill.
        fill: u16,
    },
    /// An XRC request names a shared receive queue, and no response does.
    #[error("an XRC {operation:?} has an XRCETH if it is a request, and only then")]
    XrcEth {
        /// The operation.
        operation: Operation,
    },
    /// The transport has no such syndrome.
    #[error("{transport:?} has no {syndrome:?}: it is of DC alone")]
    NoSuchSyndrome {
        /// The transport.
        transport: Transport,
        /// The syndrome.
        syndrome: Syndrome,
    },
    /// A CNP has no header between the BTH and its reserved bytes.
    #[error("a CNP goes by `Route::Rc`, not by {0:?}")]
    CnpRoute(Transport),
}

/// The headers of a packet, from the BTH to before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    opcode: Opcode,
    route: Route,
    message: Message,
    /// QPN that the packet goes to.
    pub dest_qpn: Qpn,
    /// Packet sequence number.
    pub psn: Psn,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// Migration state; 0 on RoCEv2 as rdma_rxe sends it.
    pub mig_req: bool,
    /// Forward congestion; not covered by the ICRC.
    pub fecn: bool,
    /// Backward congestion; not covered by the ICRC.
    pub becn: bool,
    /// Partition key.
    pub pkey: u16,
}

impl Message {
    /// The operation without its headers; none for a CNP.
    #[inline]
    pub const fn operation(&self) -> Option<Operation> {
        Some(match self {
            Message::SendFirst => Operation::SendFirst,
            Message::SendMiddle => Operation::SendMiddle,
            Message::SendLast(Tail::Plain) => Operation::SendLast,
            Message::SendLast(Tail::Imm(_)) => Operation::SendLastImm,
            Message::SendLast(Tail::Inv(_)) => Operation::SendLastInv,
            Message::SendOnly(Tail::Plain) => Operation::SendOnly,
            Message::SendOnly(Tail::Imm(_)) => Operation::SendOnlyImm,
            Message::SendOnly(Tail::Inv(_)) => Operation::SendOnlyInv,
            Message::WriteFirst(_) => Operation::WriteFirst,
            Message::WriteMiddle => Operation::WriteMiddle,
            Message::WriteLast(None) => Operation::WriteLast,
            Message::WriteLast(Some(_)) => Operation::WriteLastImm,
            Message::WriteOnly(_, None) => Operation::WriteOnly,
            Message::WriteOnly(_, Some(_)) => Operation::WriteOnlyImm,
            Message::ReadRequest(_) => Operation::ReadRequest,
            Message::ReadResponseFirst(_) => Operation::ReadResponseFirst,
            Message::ReadResponseMiddle => Operation::ReadResponseMiddle,
            Message::ReadResponseLast(_) => Operation::ReadResponseLast,
            Message::ReadResponseOnly(_) => Operation::ReadResponseOnly,
            Message::Ack(_) => Operation::Ack,
            Message::AtomicAck(..) => Operation::AtomicAck,
            Message::CmpSwp(_) => Operation::CmpSwp,
            Message::FetchAdd(_) => Operation::FetchAdd,
            Message::Cnp => return None,
        })
    }

    /// Whether a responder sends it.
    #[inline]
    pub const fn is_response(&self) -> bool {
        match self.operation() {
            Some(operation) => operation.is_response(),
            None => false,
        }
    }

    /// The ACK extended transport header, if it has one.
    #[inline]
    pub const fn aeth(&self) -> Option<Aeth> {
        match self {
            Message::ReadResponseFirst(aeth)
            | Message::ReadResponseLast(aeth)
            | Message::ReadResponseOnly(aeth)
            | Message::Ack(aeth)
            | Message::AtomicAck(aeth, _) => Some(*aeth),
            _ => None,
        }
    }
}

impl Route {
    /// The transport.
    #[inline]
    pub const fn transport(&self) -> Transport {
        match self {
            Route::Rc => Transport::Rc,
            Route::Uc => Transport::Uc,
            Route::Ud(_) => Transport::Ud,
            Route::Xrc(_) => Transport::Xrc,
            Route::Dc { .. } => Transport::Dc,
        }
    }

    #[inline]
    const fn header_len(&self) -> usize {
        match self {
            Route::Rc | Route::Uc | Route::Xrc(None) => 0,
            Route::Ud(_) => Deth::LEN,
            Route::Xrc(Some(_)) => XrcEth::LEN,
            Route::Dc { eth, extra } => DcEth::LEN + extra.len() + eth.fill as usize,
        }
    }
}

/// Reserved bytes that a CNP carries in place of a payload (IBTA annex A17.9.3).
pub(crate) const CNP_RESERVED: usize = 16;

impl Headers {
    /// The headers of a message on a transport, with default flags. A CNP goes by [`Route::Rc`].
    ///
    /// # Errors
    /// Each of [`WireError`]'s, for a combination that no packet can have.
    // Out of line it copies both enums whole, which costs more than all the rest of a packet's
    // headers; inlined, the message is known and the checks vanish.
    #[inline(always)]
    pub fn new(
        route: Route,
        message: Message,
        dest_qpn: Qpn,
        psn: Psn,
    ) -> Result<Headers, WireError> {
        let transport = route.transport();
        let Some(operation) = message.operation() else {
            return match route {
                Route::Rc => Ok(Headers::of(Opcode::CNP, route, message, dest_qpn, psn)),
                _ => Err(WireError::CnpRoute(transport)),
            };
        };
        let opcode = Opcode::new(transport, operation)
            .ok_or(WireError::NoSuchMessage { transport, operation })?;
        if let Some(Aeth { syndrome, .. }) = message.aeth()
            && !syndrome.exists_on(transport)
        {
            return Err(WireError::NoSuchSyndrome { transport, syndrome });
        }
        if let Route::Dc { eth, extra } = route {
            let fill = eth.fill;
            let fits = match extra {
                DcExtra::None | DcExtra::Token(_) => true,
                DcExtra::Connect(_) => !operation.is_response(),
            };
            if !fits || !fill_fits(fill) || (fill > 0 && operation.is_response()) {
                return Err(WireError::Extra { operation, extra, fill });
            }
        }
        if let Route::Xrc(eth) = route
            && eth.is_some() == operation.is_response()
        {
            return Err(WireError::XrcEth { operation });
        }
        Ok(Headers::of(opcode, route, message, dest_qpn, psn))
    }

    /// The headers of parts that are known to fit each other.
    #[inline]
    pub(crate) const fn of(
        opcode: Opcode,
        route: Route,
        message: Message,
        dest_qpn: Qpn,
        psn: Psn,
    ) -> Headers {
        Headers {
            opcode,
            route,
            message,
            dest_qpn,
            psn,
            ack_req: false,
            solicited: false,
            mig_req: false,
            fecn: false,
            becn: false,
            pkey: PKEY_DEFAULT,
        }
    }

    /// The opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The transport and its header.
    #[inline]
    pub const fn route(&self) -> Route {
        self.route
    }

    /// What the packet is.
    #[inline]
    pub const fn message(&self) -> Message {
        self.message
    }

    /// Length in bytes, from the BTH to before the payload; fill counts.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self.opcode.operation() {
            Some(operation) => BTH_LEN + self.route.header_len() + operation.extended_len(),
            None => BTH_LEN + CNP_RESERVED,
        }
    }

    /// Writes a whole packet to the start of `buf`: headers, payload, and the ICRC for its way. Returns its length. For who
    /// makes a packet at a time; who makes trains of them writes headers alone ([`Headers::emit`]).
    ///
    /// # Panics
    /// If `buf` is shorter than the packet.
    pub fn write(&self, flow: &Flow, ip_id: u16, payload: &[u8], buf: &mut [u8]) -> usize {
        let at = self.emit(buf, payload.len());
        buf[at..at + payload.len()].copy_from_slice(payload);
        let len = packet_len(at, payload.len());
        icrc::seal(flow, ip_id, &mut buf[..len]);
        len
    }

    /// Writes the headers to the start of `buf` and zeroes the padding behind the payload, whose
    /// `payload_len` bytes the caller puts at the place returned; then
    /// [`seal`](crate::icrc::seal) closes the packet.
    ///
    /// # Panics
    /// If `buf` is shorter than [`packet_len`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8], payload_len: usize) -> usize {
        let header_len = self.header_len();
        let buf = &mut buf[..packet_len(header_len, payload_len)];
        let pad = payload_len.wrapping_neg() & 3;
        let flags = (self.solicited as u8) << 7 | (self.mig_req as u8) << 6 | (pad as u8) << 4;
        buf[0] = self.opcode.to_byte();
        buf[1] = flags;
        buf[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        let congestion = (self.fecn as u32) << 31 | (self.becn as u32) << 30;
        buf[4..8].copy_from_slice(&(congestion | self.dest_qpn.get()).to_be_bytes());
        let ack_req = (self.ack_req as u32) << 31;
        buf[8..12].copy_from_slice(&(ack_req | self.psn.get()).to_be_bytes());

        let mut at = BTH_LEN;
        match self.route {
            Route::Rc | Route::Uc | Route::Xrc(None) => {}
            Route::Xrc(Some(eth)) => {
                eth.emit(&mut buf[at..]);
                at += XrcEth::LEN;
            }
            Route::Ud(deth) => {
                deth.emit(&mut buf[at..]);
                at += Deth::LEN;
            }
            Route::Dc { eth, extra } => {
                eth.emit(&extra, &mut buf[at..]);
                at += DcEth::LEN;
                extra.emit(&mut buf[at..]);
                at += extra.len();
                if eth.fill > 0 {
                    buf[header_len - usize::from(eth.fill)..header_len].fill(0);
                }
            }
        }
        match self.message {
            Message::SendFirst
            | Message::SendMiddle
            | Message::SendLast(Tail::Plain)
            | Message::SendOnly(Tail::Plain)
            | Message::WriteMiddle
            | Message::WriteLast(None)
            | Message::ReadResponseMiddle => {}
            Message::SendLast(Tail::Imm(word) | Tail::Inv(word))
            | Message::SendOnly(Tail::Imm(word) | Tail::Inv(word))
            | Message::WriteLast(Some(word)) => put_word(buf, at, word),
            Message::WriteFirst(reth) | Message::ReadRequest(reth) => reth.emit(&mut buf[at..]),
            Message::WriteOnly(reth, imm) => {
                reth.emit(&mut buf[at..]);
                if let Some(imm) = imm {
                    put_word(buf, at + Reth::LEN, imm);
                }
            }
            Message::ReadResponseFirst(aeth)
            | Message::ReadResponseLast(aeth)
            | Message::ReadResponseOnly(aeth)
            | Message::Ack(aeth) => aeth.emit(&mut buf[at..]),
            Message::AtomicAck(aeth, original) => {
                aeth.emit(&mut buf[at..]);
                let at = at + Aeth::LEN;
                buf[at..at + 8].copy_from_slice(&original.to_be_bytes());
            }
            Message::CmpSwp(eth) | Message::FetchAdd(eth) => eth.emit(&mut buf[at..]),
            Message::Cnp => buf[at..at + CNP_RESERVED].fill(0),
        }
        let end = header_len + payload_len;
        buf[end..end + pad].fill(0);
        header_len
    }
}

#[inline]
fn put_word(buf: &mut [u8], at: usize, word: u32) {
    buf[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Credits, Msn, NakCode};

    #[test]
    fn nonsense_cannot_be_built() {
        let (qpn, psn) = (Qpn::from_wrapping(5), Psn::from_wrapping(6));
        let reth = Reth { va: 0, rkey: 0, len: 0 };
        let deth = Deth { qkey: 0, src_qpn: qpn };
        assert!(Headers::new(Route::Uc, Message::ReadRequest(reth), qpn, psn).is_err());
        assert!(Headers::new(Route::Ud(deth), Message::SendFirst, qpn, psn).is_err());
        assert!(Headers::new(Route::Uc, Message::SendOnly(Tail::Inv(1)), qpn, psn).is_err());
        let eth = DcEth { src_qpn: qpn, stream: 0, session: 0, fill: 0 };
        let extra = DcExtra::Connect(DcConnect { access_key: 1, token: 2, mtu: 5 });
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNCOUNTED), msn: Msn::default() };
        let ack = Message::Ack(aeth);
        assert!(Headers::new(Route::Dc { eth, extra }, ack, qpn, psn).is_err());
        let (none, token) = (DcExtra::None, DcExtra::Token(5));
        let filled = DcEth { fill: 4, ..eth };
        assert!(Headers::new(Route::Dc { eth: filled, extra: none }, ack, qpn, psn).is_err());
        assert!(Headers::new(Route::Dc { eth, extra: token }, ack, qpn, psn).is_ok());
        let send = Message::SendOnly(Tail::Plain);
        assert!(Headers::new(Route::Dc { eth, extra: token }, send, qpn, psn).is_ok());
        assert!(Headers::new(Route::Dc { eth: filled, extra: none }, send, qpn, psn).is_ok());
        for fill in [3, 4100] {
            let eth = DcEth { fill, ..eth };
            assert!(Headers::new(Route::Dc { eth, extra: none }, send, qpn, psn).is_err());
        }
        let xrc = XrcEth { srqn: Qpn::from_wrapping(7) };
        assert!(Headers::new(Route::Xrc(Some(xrc)), send, qpn, psn).is_ok());
        assert!(Headers::new(Route::Xrc(None), send, qpn, psn).is_err());
        assert!(Headers::new(Route::Xrc(None), ack, qpn, psn).is_ok());
        assert!(Headers::new(Route::Xrc(Some(xrc)), ack, qpn, psn).is_err());
        let syndrome = Syndrome::Nak(NakCode::DcNoContext);
        let no_context = Message::Ack(Aeth { syndrome, msn: Msn::default() });
        assert!(Headers::new(Route::Dc { eth, extra: none }, no_context, qpn, psn).is_ok());
        assert_eq!(
            Headers::new(Route::Rc, no_context, qpn, psn),
            Err(WireError::NoSuchSyndrome { transport: Transport::Rc, syndrome })
        );
        assert_eq!(
            Headers::new(Route::Ud(deth), Message::Cnp, qpn, psn),
            Err(WireError::CnpRoute(Transport::Ud))
        );
    }

    #[test]
    fn longest_headers() {
        let (qpn, psn) = (Qpn::from_wrapping(5), Psn::from_wrapping(6));
        let eth = DcEth { src_qpn: qpn, stream: 0, session: 0, fill: 0 };
        let extra = DcExtra::Connect(DcConnect { access_key: 1, token: 2, mtu: 5 });
        let lengths = |payload: bool| {
            Operation::ALL.iter().filter(move |operation| operation.has_payload() == payload).map(
                |operation| {
                    let opcode = Opcode::new(Transport::Dc, *operation).unwrap();
                    let route = Route::Dc { eth, extra };
                    Headers::of(opcode, route, Message::SendMiddle, qpn, psn).header_len()
                },
            )
        };
        assert_eq!(lengths(true).max(), Some(HEADERS_MAX));
        assert!(packet_len(lengths(false).max().unwrap(), 0) < PACKET_MAX);
    }
}
