use crate::bytes::{u16_at, u24_at, u32_at, u64_at};
use crate::{Msn, ParseError, Qpn, Syndrome, Transport};

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

/// DC extended transport header: ours; see `docs/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcEth {
    /// QPN of the sender: the DCI of a request, the DCT of a response.
    pub src_qpn: Qpn,
    /// The initiator's stream.
    pub stream: u16,
    /// The initiator's session.
    pub session: u32,
}

/// The version of our DC headers, in the upper 4 bits of the first byte.
const DC_VERSION: u8 = 1;
/// Flag of the first byte: a [`DcConnect`] follows.
const DC_CONNECT: u8 = 1;

impl DcEth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// The header, and whether a [`DcConnect`] follows.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<(DcEth, bool), ParseError> {
        let first = bytes[0];
        if first >> 4 != DC_VERSION {
            return Err(ParseError::Version(first >> 4));
        }
        if first & 0xf & !DC_CONNECT != 0 || bytes[10] != 0 || bytes[11] != 0 {
            return Err(ParseError::Reserved);
        }
        let eth = DcEth {
            src_qpn: Qpn::from_wrapping(u24_at(bytes, 1)),
            session: u32_at(bytes, 4),
            stream: u16_at(bytes, 8),
        };
        Ok((eth, first & DC_CONNECT != 0))
    }

    #[inline]
    pub(crate) fn emit(self, connect: bool, out: &mut [u8]) {
        let first = DC_VERSION << 4 | if connect { DC_CONNECT } else { 0 };
        let word = u32::from(first) << 24 | self.src_qpn.get();
        out[..4].copy_from_slice(&word.to_be_bytes());
        out[4..8].copy_from_slice(&self.session.to_be_bytes());
        out[8..10].copy_from_slice(&self.stream.to_be_bytes());
        out[10..12].copy_from_slice(&[0, 0]);
    }
}

/// What opens a DC session: ours; see `docs/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcConnect {
    /// The access key of the DCT.
    pub access_key: u64,
    /// Path MTU of the session, as a code of `enum ibv_mtu`: 1 (256 bytes) to 5 (4,096). A target
    /// refuses other codes with a NAK, so that a newer initiator hears of it; they do parse.
    pub mtu: u8,
}

impl DcConnect {
    /// Length in bytes.
    pub const LEN: usize = 16;

    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<DcConnect, ParseError> {
        if bytes[9..16] != [0; 7] {
            return Err(ParseError::Reserved);
        }
        Ok(DcConnect { access_key: u64_at(bytes, 0), mtu: bytes[8] })
    }

    #[inline]
    pub(crate) fn emit(self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.access_key.to_be_bytes());
        out[8] = self.mtu;
        out[9..16].fill(0);
    }
}
