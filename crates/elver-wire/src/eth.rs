use crate::bytes::{u16_at, u24_at, u32_at, u64_at};
use crate::{Msn, PAYLOAD_MAX, ParseError, Qpn, Syndrome, Transport};

/// RDMA extended transport header (IBTA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the DMA in bytes.
    pub len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Reth {
        Reth { va: u64_at(bytes, 0), rkey: u32_at(bytes, 8), len: u32_at(bytes, 12) }
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
    }
}

/// ACK extended transport header (IBTA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Message sequence number.
    pub msn: Msn,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) fn parse(bytes: &[u8], transport: Transport) -> Result<Aeth, ParseError> {
        let syndrome = Syndrome::from_byte(bytes[0])?;
        if !syndrome.exists_on(transport) {
            return Err(ParseError::Syndrome(bytes[0]));
        }
        Ok(Aeth { syndrome, msn: Msn::from_wrapping(u24_at(bytes, 1)) })
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        let word = u32::from(self.syndrome.to_byte()) << 24 | self.msn.get();
        out[..4].copy_from_slice(&word.to_be_bytes());
    }
}

/// Atomic extended transport header (IBTA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// What a CMP_SWP puts in, or a FETCH_ADD adds.
    pub swap_or_add: u64,
    /// What a CMP_SWP compares with.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> AtomicEth {
        AtomicEth {
            va: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            swap_or_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        }
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        out[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// Datagram extended transport header (IBTA 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// QPN of the sender.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Deth {
        Deth { qkey: u32_at(bytes, 0), src_qpn: Qpn::from_wrapping(u24_at(bytes, 5)) }
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.qkey.to_be_bytes());
        out[4..8].copy_from_slice(&self.src_qpn.get().to_be_bytes());
    }
}

/// XRC extended transport header (IBTA annex A14): of every request, and of no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Number of the shared receive queue that the request is for.
    pub srqn: Qpn,
}

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> XrcEth {
        XrcEth { srqn: Qpn::from_wrapping(u24_at(bytes, 1)) }
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.srqn.get().to_be_bytes());
    }
}

/// DC extended transport header: ours; see `docs/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcEth {
    /// QPN of the sender: the DCI of a request, the DCT of a response.
    pub src_qpn: Qpn,
    /// The initiator's stream.
    pub stream: u16,
    /// The initiator's session.
    pub session: u32,
    /// Zeros that a request has behind its headers, a multiple of 4: it is to be no shorter than its
    /// answer.
    pub fill: u16,
}

/// What may stand behind a [`DcEth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcExtra {
    /// Nothing.
    None,
    /// In a request: what opens the session.
    Connect(DcConnect),
    /// In an answer: the token by which the initiator's next requests prove where he is. In a request:
    /// that token.
    Token(u64),
}

/// The version of our DC headers, in the upper 4 bits of the first byte.
const DC_VERSION: u8 = 2;
/// Flag of the first byte: a [`DcConnect`] follows.
const DC_CONNECT: u8 = 1;
/// Flag of the first byte: a token follows.
const DC_TOKEN: u8 = 2;
/// Length of a token in bytes.
const DC_TOKEN_LEN: usize = 8;

impl DcExtra {
    /// Length in bytes.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        match self {
            DcExtra::None => 0,
            DcExtra::Connect(_) => DcConnect::LEN,
            DcExtra::Token(_) => DC_TOKEN_LEN,
        }
    }

    /// What the flags of a [`DcEth`] announce, from bytes that are at least as long.
    #[inline]
    pub(crate) fn parse(flags: u8, bytes: &[u8]) -> Result<DcExtra, ParseError> {
        Ok(match flags {
            DC_CONNECT => DcExtra::Connect(DcConnect::parse(bytes)?),
            DC_TOKEN => DcExtra::Token(u64_at(bytes, 0)),
            _ => DcExtra::None,
        })
    }

    /// Its length by the flags of a [`DcEth`].
    #[inline]
    pub(crate) const fn len_by(flags: u8) -> usize {
        match flags {
            DC_CONNECT => DcConnect::LEN,
            DC_TOKEN => DC_TOKEN_LEN,
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        match self {
            DcExtra::None => {}
            DcExtra::Connect(connect) => connect.emit(out),
            DcExtra::Token(token) => out[..DC_TOKEN_LEN].copy_from_slice(&token.to_be_bytes()),
        }
    }

    #[inline]
    const fn flags(&self) -> u8 {
        match self {
            DcExtra::None => 0,
            DcExtra::Connect(_) => DC_CONNECT,
            DcExtra::Token(_) => DC_TOKEN,
        }
    }
}

impl DcEth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// The header, and the flags that say which [`DcExtra`] follows: an answer has no connect
    /// header and no fill, and no packet has both.
    #[inline]
    pub(crate) fn parse(bytes: &[u8], response: bool) -> Result<(DcEth, u8), ParseError> {
        let first = bytes[0];
        if first >> 4 != DC_VERSION {
            return Err(ParseError::Version(first >> 4));
        }
        let flags = first & 0xf;
        let fill = u16_at(bytes, 10);
        let known = flags <= DC_TOKEN && (flags != DC_CONNECT || !response);
        if !known || (response && fill != 0) {
            return Err(ParseError::Reserved);
        }
        if !fill_fits(fill) {
            return Err(ParseError::Padding);
        }
        let eth = DcEth {
            src_qpn: Qpn::from_wrapping(u24_at(bytes, 1)),
            session: u32_at(bytes, 4),
            stream: u16_at(bytes, 8),
            fill,
        };
        Ok((eth, flags))
    }

    #[inline]
    pub(crate) fn emit(self, extra: &DcExtra, out: &mut [u8]) {
        let first = DC_VERSION << 4 | extra.flags();
        let word = u32::from(first) << 24 | self.src_qpn.get();
        out[..4].copy_from_slice(&word.to_be_bytes());
        out[4..8].copy_from_slice(&self.session.to_be_bytes());
        out[8..10].copy_from_slice(&self.stream.to_be_bytes());
        out[10..12].copy_from_slice(&self.fill.to_be_bytes());
    }
}

/// Whether a packet can have so much fill.
#[inline]
pub(crate) const fn fill_fits(fill: u16) -> bool {
    fill.is_multiple_of(4) && fill as usize <= PAYLOAD_MAX
}

/// What opens a DC session: ours; see `docs/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcConnect {
    /// The access key of the DCT.
    pub access_key: u64,
    /// The token that the target told this initiator's address last; 0 when it told none.
    pub token: u64,
    /// Path MTU of the session, as a code of `enum ibv_mtu`: 1 (256 bytes) to 5 (4,096). A target
    /// refuses other codes with a NAK, so that a newer initiator hears of it; they do parse.
    pub mtu: u8,
}

impl DcConnect {
    /// Length in bytes.
    pub const LEN: usize = 24;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<DcConnect, ParseError> {
        if bytes[17..24] != [0; 7] {
            return Err(ParseError::Reserved);
        }
        Ok(DcConnect { access_key: u64_at(bytes, 0), token: u64_at(bytes, 8), mtu: bytes[16] })
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.access_key.to_be_bytes());
        out[8..16].copy_from_slice(&self.token.to_be_bytes());
        out[16] = self.mtu;
        out[17..24].fill(0);
    }
}
