use super::CmError;
use crate::Psn;
use crate::bytes::{u16_at, u24_at, u32_at, u64_at};

/// Attributes (IBTA vol. 1, table 111).
const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// What a MAD says (IBTA vol. 1, 12.6). `local` is the sender's number of the connection, `remote` the
/// receiver's. Private data that was parsed has all of the message's room: its length is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Asks for a connection.
    Req(Req<'a>),
    /// The receiver of a REQ or REP needs longer.
    Mra {
        /// The sender's number.
        local: u32,
        /// The receiver's number.
        remote: u32,
        /// What is answered.
        of: Rejected,
        /// How long it needs: 4.096 µs · 2^this.
        service_timeout: u8,
        /// At most 222 bytes.
        private: &'a [u8],
    },
    /// No connection is made.
    Rej {
        /// The sender's number, 0 if it has none.
        local: u32,
        /// The receiver's number.
        remote: u32,
        /// What is refused.
        of: Rejected,
        /// Why (IBTA vol. 1, table 107).
        reason: u16,
        /// What is wrong in detail, at most 72 bytes.
        info: &'a [u8],
        /// At most 148 bytes.
        private: &'a [u8],
    },
    /// Agrees to a REQ.
    Rep(Rep<'a>),
    /// The connection is ready for use.
    Rtu {
        /// The sender's number.
        local: u32,
        /// The receiver's number.
        remote: u32,
        /// At most 224 bytes.
        private: &'a [u8],
    },
    /// Ends a connection.
    Dreq {
        /// The sender's number.
        local: u32,
        /// The receiver's number.
        remote: u32,
        /// The receiver's QP.
        remote_qpn: u32,
        /// At most 220 bytes.
        private: &'a [u8],
    },
    /// Agrees to the end.
    Drep {
        /// The sender's number.
        local: u32,
        /// The receiver's number.
        remote: u32,
        /// At most 224 bytes.
        private: &'a [u8],
    },
    /// Asks for the UD QP of a service.
    SidrReq {
        /// The sender's number of its question.
        request: u32,
        /// The partition.
        pkey: u16,
        /// Which service.
        service_id: u64,
        /// At most 216 bytes.
        private: &'a [u8],
    },
    /// Tells of the UD QP of a service.
    SidrRep(SidrRep<'a>),
}

/// Which message a REJ refuses, or an MRA answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// None that arrived, or another.
    Other,
}

/// Asks for a connection; its alternate path is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req<'a> {
    /// The sender's number of the connection.
    pub local: u32,
    /// Which service is asked.
    pub service_id: u64,
    /// The sender's GUID.
    pub ca_guid: u64,
    /// Q_Key, of datagrams only.
    pub qkey: u32,
    /// The sender's QP, 24 bits.
    pub qpn: u32,
    /// READs and atomics that the sender would serve at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender would have outstanding.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer: 4.096 µs · 2^this.
    pub remote_response_timeout: u8,
    /// 0 for RC, 1 for UC, 3 for XRC and the like.
    pub transport: u8,
    /// Whether the sender counts credits.
    pub flow_control: bool,
    /// First PSN that who receives this sends on the connection (IBTA vol. 1, 12.7, "Starting PSN").
    pub starting_psn: Psn,
    /// How long the sender may take to answer: 4.096 µs · 2^this.
    pub local_response_timeout: u8,
    /// Retries of the QP.
    pub retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// Code of the path's MTU, 1 to 5.
    pub path_mtu: u8,
    /// RNR retries of the QP.
    pub rnr_retry_count: u8,
    /// How often a message of this exchange is sent again, 4 bits.
    pub max_retries: u8,
    /// Whether the sender's QP has an SRQ.
    pub srq: bool,
    /// The sender's GID.
    pub local_gid: [u8; 16],
    /// The receiver's GID.
    pub remote_gid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// Code of the path's rate.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ends are of one subnet.
    pub subnet_local: bool,
    /// ACK timeout of the QP: 4.096 µs · 2^this.
    pub ack_timeout: u8,
    /// At most 92 bytes.
    pub private: &'a [u8],
}

/// Agrees to a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep<'a> {
    /// The sender's number of the connection.
    pub local: u32,
    /// The receiver's number.
    pub remote: u32,
    /// Q_Key, of datagrams only.
    pub qkey: u32,
    /// The sender's QP, 24 bits.
    pub qpn: u32,
    /// First PSN that who receives this sends on the connection (IBTA vol. 1, 12.7, "Starting PSN").
    pub starting_psn: Psn,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender has outstanding.
    pub initiator_depth: u8,
    /// Longest delay of its ACKs: 4.096 µs · 2^this.
    pub ack_delay: u8,
    /// What became of the alternate path, 2 bits.
    pub failover: u8,
    /// Whether the sender counts credits.
    pub flow_control: bool,
    /// RNR retries of the QP.
    pub rnr_retry_count: u8,
    /// Whether the sender's QP has an SRQ.
    pub srq: bool,
    /// The sender's GUID.
    pub ca_guid: u64,
    /// At most 196 bytes.
    pub private: &'a [u8],
}

/// Tells of the UD QP of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep<'a> {
    /// The receiver's number of its question.
    pub request: u32,
    /// 0 if there is one (IBTA vol. 1, table 121).
    pub status: u8,
    /// The QP, 24 bits.
    pub qpn: u32,
    /// The service.
    pub service_id: u64,
    /// The QP's Q_Key.
    pub qkey: u32,
    /// Details of a refusal, at most 72 bytes.
    pub info: &'a [u8],
    /// At most 136 bytes.
    pub private: &'a [u8],
}

impl Rejected {
    fn from_bits(bits: u8) -> Result<Rejected, CmError> {
        match bits {
            0 => Ok(Rejected::Req),
            1 => Ok(Rejected::Rep),
            2 => Ok(Rejected::Other),
            value => Err(CmError::Reserved { field: "the message that is answered", value }),
        }
    }

    fn bits(self) -> u8 {
        match self {
            Rejected::Req => 0,
            Rejected::Rep => 1,
            Rejected::Other => 2,
        }
    }
}

/// The bytes of a message behind the header of its MAD.
struct Body<'b>(&'b mut [u8]);

impl Body<'_> {
    fn u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// 24 bits, and a byte behind them.
    fn u24(&mut self, at: usize, value: u32, low: u8) {
        self.u32(at, value << 8 | u32::from(low));
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }

    /// Puts bytes where there is room until `end`.
    fn part(
        &mut self,
        what: &'static str,
        at: usize,
        end: usize,
        bytes: &[u8],
    ) -> Result<(), CmError> {
        let (got, max) = (bytes.len(), end - at);
        if got > max {
            return Err(CmError::Room { what, got, max });
        }
        self.0[at..at + got].copy_from_slice(bytes);
        Ok(())
    }

    /// Puts private data, which is the rest.
    fn private(&mut self, at: usize, bytes: &[u8]) -> Result<(), CmError> {
        self.part("private data", at, self.0.len(), bytes)
    }
}

impl<'a> Message<'a> {
    pub(super) fn attribute(&self) -> u16 {
        match self {
            Message::Req(_) => REQ,
            Message::Mra { .. } => MRA,
            Message::Rej { .. } => REJ,
            Message::Rep(_) => REP,
            Message::Rtu { .. } => RTU,
            Message::Dreq { .. } => DREQ,
            Message::Drep { .. } => DREP,
            Message::SidrReq { .. } => SIDR_REQ,
            Message::SidrRep(_) => SIDR_REP,
        }
    }

    /// Reads the 232 bytes behind the header, which the caller has checked the length of.
    pub(super) fn parse(attribute: u16, body: &'a [u8]) -> Result<Message<'a>, CmError> {
        let (local, remote) = (u32_at(body, 0), u32_at(body, 4));
        Ok(match attribute {
            REQ => Message::Req(Req::parse(body)?),
            MRA => Message::Mra {
                local,
                remote,
                of: Rejected::from_bits(body[8] >> 6)?,
                service_timeout: body[9] >> 3,
                private: &body[10..],
            },
            REJ => {
                let len = usize::from(body[9] >> 1);
                if len > 72 {
                    let field = "the length of a refusal's information";
                    return Err(CmError::Reserved { field, value: len as u8 });
                }
                Message::Rej {
                    local,
                    remote,
                    of: Rejected::from_bits(body[8] >> 6)?,
                    reason: u16_at(body, 10),
                    info: &body[12..12 + len],
                    private: &body[84..],
                }
            }
            REP => Message::Rep(Rep {
                local,
                remote,
                qkey: u32_at(body, 8),
                qpn: u24_at(body, 12),
                starting_psn: Psn::from_wrapping(u24_at(body, 20)),
                responder_resources: body[24],
                initiator_depth: body[25],
                ack_delay: body[26] >> 3,
                failover: body[26] >> 1 & 3,
                flow_control: body[26] & 1 != 0,
                rnr_retry_count: body[27] >> 5,
                srq: body[27] & 0x10 != 0,
                ca_guid: u64_at(body, 28),
                private: &body[36..],
            }),
            RTU => Message::Rtu { local, remote, private: &body[8..] },
            DREQ => {
                Message::Dreq { local, remote, remote_qpn: u24_at(body, 8), private: &body[12..] }
            }
            DREP => Message::Drep { local, remote, private: &body[8..] },
            SIDR_REQ => Message::SidrReq {
                request: local,
                pkey: u16_at(body, 4),
                service_id: u64_at(body, 8),
                private: &body[16..],
            },
            SIDR_REP => {
                let len = usize::from(body[5]);
                if len > 72 {
                    let field = "the length of a reply's information";
                    return Err(CmError::Reserved { field, value: body[5] });
                }
                Message::SidrRep(SidrRep {
                    request: local,
                    status: body[4],
                    qpn: u24_at(body, 8),
                    service_id: u64_at(body, 12),
                    qkey: u32_at(body, 20),
                    info: &body[24..24 + len],
                    private: &body[96..],
                })
            }
            other => return Err(CmError::Attribute(other)),
        })
    }

    /// Writes the bytes behind the header.
    pub(super) fn write(&self, body: &mut [u8]) -> Result<(), CmError> {
        let mut body = Body(body);
        let mut ids = |local, remote| {
            body.u32(0, local);
            body.u32(4, remote);
        };
        match *self {
            Message::Req(ref req) => req.write(&mut body),
            Message::Mra { local, remote, of, service_timeout, private } => {
                ids(local, remote);
                body.0[8] = of.bits() << 6;
                body.0[9] = service_timeout << 3;
                body.private(10, private)
            }
            Message::Rej { local, remote, of, reason, info, private } => {
                ids(local, remote);
                body.0[8] = of.bits() << 6;
                body.0[9] = (info.len() as u8) << 1;
                body.u16(10, reason);
                body.part("information", 12, 84, info)?;
                body.private(84, private)
            }
            Message::Rep(ref rep) => {
                ids(rep.local, rep.remote);
                body.u32(8, rep.qkey);
                body.u24(12, rep.qpn, 0);
                body.u24(20, rep.starting_psn.get(), 0);
                body.0[24] = rep.responder_resources;
                body.0[25] = rep.initiator_depth;
                body.0[26] =
                    rep.ack_delay << 3 | (rep.failover & 3) << 1 | u8::from(rep.flow_control);
                body.0[27] = rep.rnr_retry_count << 5 | u8::from(rep.srq) << 4;
                body.u64(28, rep.ca_guid);
                body.private(36, rep.private)
            }
            Message::Rtu { local, remote, private } | Message::Drep { local, remote, private } => {
                ids(local, remote);
                body.private(8, private)
            }
            Message::Dreq { local, remote, remote_qpn, private } => {
                ids(local, remote);
                body.u24(8, remote_qpn, 0);
                body.private(12, private)
            }
            Message::SidrReq { request, pkey, service_id, private } => {
                body.u32(0, request);
                body.u16(4, pkey);
                body.u64(8, service_id);
                body.private(16, private)
            }
            Message::SidrRep(ref rep) => {
                body.u32(0, rep.request);
                body.0[4] = rep.status;
                body.0[5] = rep.info.len() as u8;
                body.u24(8, rep.qpn, 0);
                body.u64(12, rep.service_id);
                body.u32(20, rep.qkey);
                body.part("information", 24, 96, rep.info)?;
                body.private(96, rep.private)
            }
        }
    }
}

impl<'a> Req<'a> {
    fn parse(body: &'a [u8]) -> Result<Req<'a>, CmError> {
        let path_mtu = body[50] >> 4;
        if !(1..=5).contains(&path_mtu) {
            return Err(CmError::Reserved { field: "the path's MTU", value: path_mtu });
        }
        let gid = |at: usize| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&body[at..at + 16]);
            gid
        };
        Ok(Req {
            local: u32_at(body, 0),
            service_id: u64_at(body, 8),
            ca_guid: u64_at(body, 16),
            qkey: u32_at(body, 28),
            qpn: u24_at(body, 32),
            responder_resources: body[35],
            initiator_depth: body[39],
            remote_response_timeout: body[43] >> 3,
            transport: body[43] >> 1 & 3,
            flow_control: body[43] & 1 != 0,
            starting_psn: Psn::from_wrapping(u24_at(body, 44)),
            local_response_timeout: body[47] >> 3,
            retry_count: body[47] & 7,
            pkey: u16_at(body, 48),
            path_mtu,
            rnr_retry_count: body[50] & 7,
            max_retries: body[51] >> 4,
            srq: body[51] & 8 != 0,
            local_gid: gid(56),
            remote_gid: gid(72),
            flow_label: u32_at(body, 88) >> 12,
            packet_rate: body[91] & 0x3f,
            traffic_class: body[92],
            hop_limit: body[93],
            service_level: body[94] >> 4,
            subnet_local: body[94] & 8 != 0,
            ack_timeout: body[95] >> 3,
            private: &body[140..],
        })
    }

    fn write(&self, body: &mut Body<'_>) -> Result<(), CmError> {
        /// Lids of a path that is not InfiniBand's own.
        const PERMISSIVE: u16 = 0xffff;
        body.u32(0, self.local);
        body.u64(8, self.service_id);
        body.u64(16, self.ca_guid);
        body.u32(28, self.qkey);
        body.u24(32, self.qpn, self.responder_resources);
        body.u24(36, 0, self.initiator_depth);
        let low = self.remote_response_timeout << 3 | (self.transport & 3) << 1;
        body.u24(40, 0, low | u8::from(self.flow_control));
        let low = self.local_response_timeout << 3 | (self.retry_count & 7);
        body.u24(44, self.starting_psn.get(), low);
        body.u16(48, self.pkey);
        body.0[50] = self.path_mtu << 4 | (self.rnr_retry_count & 7);
        body.0[51] = self.max_retries << 4 | u8::from(self.srq) << 3;
        body.u16(52, PERMISSIVE);
        body.u16(54, PERMISSIVE);
        body.0[56..72].copy_from_slice(&self.local_gid);
        body.0[72..88].copy_from_slice(&self.remote_gid);
        body.u32(88, self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        body.0[92] = self.traffic_class;
        body.0[93] = self.hop_limit;
        body.0[94] = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        body.0[95] = self.ack_timeout << 3;
        body.private(140, self.private)
    }
}
