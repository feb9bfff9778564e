use core::hash::Hasher;

use elver_kv::{DESCRIPTOR_BYTES, Descriptor, Layout, LayoutError, TableId};
use elver_verbs::Gid;
use siphasher::sip::SipHasher24;
use thiserror::Error;

/// Bytes of an encoded [`NodeRecord`].
pub const NODE_RECORD_BYTES: usize = 22;
/// Bytes of an encoded [`MetaServer`].
pub const META_SERVER_BYTES: usize = 16 + NODE_RECORD_BYTES + DESCRIPTOR_BYTES;
/// Bytes of a value in ValidMR: address, length, access flags.
pub const MR_VALUE_BYTES: usize = 20;
/// Version of the record's format, below 8.
const VERSION: u8 = 1;
/// Bits below it that the size of ValidMR has.
const LOG_BITS: u32 = 5;
/// Address of a ValidMR table's first byte at its node.
pub const MRS_ADDR: u64 = 0;

/// What others must know of a node to reach it: the value that meta servers keep under its GID.
///
/// ```text
///   0  DCT number                          3
///   3  QPN of the UD QP for control        3
///   6  DC access key                       8
///   14 rkey of the node's ValidMR table    4
///   18 version (1), 3 bits, and entries    1
///      that ValidMR is made for, as a
///      power of two, 5 bits
///   19 lease, flight, room: see Terms      3
/// ```
///
/// The Q_Key of the UD QP follows from the DC access key, so that only who has the record can ask
/// anything there: see [`NodeRecord::control_qkey`].
///
/// All of it is in the one READ of a look-up, and few bytes are what makes that one fast: KRCORE's
/// DCT metadata has 12. So what else there is to know of ValidMR follows from these, see
/// [`NodeRecord::mrs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// DCT number; 0, which is no QP's, if the node's device has no DC: see [`NodeRecord::has_dc`].
    pub dctn: u32,
    /// DC access key.
    pub dc_key: u64,
    /// QPN of the UD QP that takes control messages.
    pub control_qpn: u32,
    /// What opens the node's table of valid MRs.
    pub mrs_rkey: u32,
    /// Entries that this table is made for, as a power of two, up to 31.
    pub log_mrs_max: u8,
    /// What others may rely on when they talk to it.
    pub terms: Terms,
}

/// What two nodes must agree on, as the one that is talked to says it: nodes of a cluster may be
/// configured differently, also while a configuration is changed from host to host.
///
/// Each is a byte on the way, with a mantissa of three bits: 0, or (8 + m) · 2^e units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    lease: u8,
    flight: u8,
    room: u8,
}

/// Nanoseconds that the codes of times count.
const TIME_UNIT_NS: u64 = 1_000;

impl Terms {
    /// Terms of a node: for how long what its ValidMR table tells may be taken for true, for how long
    /// after it was posted a WR may be on its way as this node is configured, both in nanoseconds, and
    /// bytes of a message that its receive buffers hold behind a header. The times are rounded up, by
    /// an eighth at most, the bytes down.
    pub fn new(lease_ns: u64, flight_ns: u64, room_bytes: u32) -> Terms {
        let time = |ns: u64| code_above(ns.div_ceil(TIME_UNIT_NS));
        let room = code_above(u64::from(room_bytes));
        let room = room - u8::from(room > 0 && value(room) > u64::from(room_bytes));
        Terms { lease: time(lease_ns), flight: time(flight_ns), room }
    }

    /// For how long, from when it was asked, peers may take for true what ValidMR tells, in
    /// nanoseconds.
    #[inline]
    pub fn lease_ns(&self) -> u64 {
        value(self.lease) * TIME_UNIT_NS
    }

    /// For how long the node waits for WRs that were posted before a lease ended, in nanoseconds.
    #[inline]
    pub fn flight_ns(&self) -> u64 {
        value(self.flight) * TIME_UNIT_NS
    }

    /// Bytes of a message that are copied into its receive buffers; longer ones it reads.
    #[inline]
    pub fn room_bytes(&self) -> u32 {
        u32::try_from(value(self.room)).unwrap_or(u32::MAX)
    }

    /// For how long after it took a region out of ValidMR the node keeps it registered, in nanoseconds:
    /// for the lease, or as long as the answer of a look-up may take for the WR that waits for it, and
    /// then for what was posted at the end of that.
    #[inline]
    pub fn wait_ns(&self) -> u64 {
        self.lease_ns().max(self.flight_ns()).saturating_add(self.flight_ns())
    }

    /// Until when a peer whose WRs may be on their way for `flight_ns` may post such, counted from when
    /// it asked for the region: under a lease, and the WR that waited for the answer.
    #[inline]
    pub fn post_ns(&self, flight_ns: u64) -> (u64, u64) {
        // A peer that is far more patient than this node could never post. It may for as long as this
        // node itself, and what arrives too late is refused by the key.
        let last = self.wait_ns().saturating_sub(flight_ns).max(self.flight_ns());
        (self.lease_ns().min(last), last)
    }
}

/// The code of the least value that is no smaller; of the largest if there is none.
fn code_above(wanted: u64) -> u8 {
    (0..=u8::MAX).find(|code| value(*code) >= wanted).unwrap_or(u8::MAX)
}

/// What a code stands for.
#[inline]
fn value(code: u8) -> u64 {
    if code == 0 { 0 } else { (8 + u64::from(code & 7)) << (code >> 3) }
}

/// A meta server as its readers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetaServer {
    /// Its GID.
    pub gid: Gid,
    /// Its own record.
    pub record: NodeRecord,
    /// The table of all nodes' records, by GID.
    pub nodes: Descriptor,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Another number of bytes.
    #[error("a record has {expected} bytes, not {given}")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes of a record.
        expected: usize,
    },
    /// ValidMR cannot be made for so many entries.
    #[error("of ValidMR: {0}")]
    Layout(#[from] LayoutError),
    /// Another version of the format.
    #[error("record of version {given}; this node knows version {VERSION} alone")]
    Version {
        /// The version that it names.
        given: u8,
    },
    /// A table's descriptor is none.
    #[error(transparent)]
    Descriptor(#[from] elver_kv::DescriptorError),
}

impl NodeRecord {
    /// The record as bytes.
    pub fn encode(&self) -> [u8; NODE_RECORD_BYTES] {
        let mut bytes = [0; NODE_RECORD_BYTES];
        bytes[..3].copy_from_slice(&self.dctn.to_le_bytes()[..3]);
        bytes[3..6].copy_from_slice(&self.control_qpn.to_le_bytes()[..3]);
        bytes[6..14].copy_from_slice(&self.dc_key.to_le_bytes());
        bytes[14..18].copy_from_slice(&self.mrs_rkey.to_le_bytes());
        bytes[18] = VERSION << LOG_BITS | self.log_mrs_max;
        let Terms { lease, flight, room } = self.terms;
        bytes[19..].copy_from_slice(&[lease, flight, room]);
        bytes
    }

    /// The record that `bytes` encode, checked.
    ///
    /// # Errors
    ///
    /// A [`RecordError`]: another length or version, or a field that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<NodeRecord, RecordError> {
        let (given, expected) = (bytes.len(), NODE_RECORD_BYTES);
        let length = RecordError::Length { given, expected };
        let bytes: &[u8; NODE_RECORD_BYTES] = bytes.try_into().map_err(|_| length)?;
        let (version, log_mrs_max) = (bytes[18] >> LOG_BITS, bytes[18] & ((1 << LOG_BITS) - 1));
        if version != VERSION {
            return Err(RecordError::Version { given: version });
        }
        let qpn = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], 0]);
        let word = |at: usize| qpn(at) | u32::from(bytes[at + 3]) << 24;
        let record = NodeRecord {
            dctn: qpn(0),
            dc_key: u64::from(word(6)) | u64::from(word(10)) << 32,
            control_qpn: qpn(3),
            mrs_rkey: word(14),
            log_mrs_max,
            terms: Terms { lease: bytes[19], flight: bytes[20], room: bytes[21] },
        };
        mrs_layout(record.log_mrs_max)?;
        Ok(record)
    }

    /// Whether the node is reached over DC.
    pub fn has_dc(&self) -> bool {
        self.dctn != 0
    }

    /// The Q_Key of the UD QP for control: a secret of those who have the record, of 31 bits. Its top
    /// bit is that of privileged Q_Keys, and is 0 (IBTA vol. 1, 10.2.5). It stands in every packet to
    /// that QP, so it is a hash of the DC access key, from which nobody gets that.
    pub fn control_qkey(&self) -> u32 {
        control_qkey(self.dc_key)
    }

    /// Tells this record from another of the same node's, but once in 65,536 times: messages have it,
    /// so that who knows another one notices.
    pub fn tag(&self) -> u16 {
        hash_of(self.dc_key, b"record tag") as u16
    }

    /// The node's table of valid MRs. Its first byte has address 0, and what tells it from others
    /// comes from the DC access key, which is as random and also another each time that the node
    /// starts.
    ///
    /// # Errors
    ///
    /// A [`RecordError`] if no table is of the size that the record says.
    pub fn mrs(&self) -> Result<Descriptor, RecordError> {
        let (layout, id) = (mrs_layout(self.log_mrs_max)?, mrs_id(self.dc_key));
        Ok(Descriptor::new(MRS_ADDR, self.mrs_rkey, layout, id)?)
    }
}

impl MetaServer {
    /// The meta server as bytes.
    pub fn encode(&self) -> [u8; META_SERVER_BYTES] {
        let mut bytes = [0; META_SERVER_BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..16 + NODE_RECORD_BYTES].copy_from_slice(&self.record.encode());
        bytes[16 + NODE_RECORD_BYTES..].copy_from_slice(&self.nodes.encode());
        bytes
    }

    /// The meta server that `bytes` encode, checked.
    ///
    /// # Errors
    ///
    /// A [`RecordError`]: another length or version, or a field that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<MetaServer, RecordError> {
        let (gid, rest) = split(bytes, META_SERVER_BYTES, 16)?;
        let (record, nodes) = rest.split_at(NODE_RECORD_BYTES);
        let mut octets = [0; 16];
        octets.copy_from_slice(gid);
        Ok(MetaServer {
            gid: Gid(octets),
            record: NodeRecord::decode(record)?,
            nodes: Descriptor::decode(nodes)?,
        })
    }
}

/// The geometry of a ValidMR table made for 2^`log_max` entries.
///
/// # Errors
///
/// A [`LayoutError`] if no table is made for so many.
pub fn mrs_layout(log_max: u8) -> Result<Layout, LayoutError> {
    let max = 1u32.checked_shl(log_max.into()).unwrap_or(u32::MAX);
    Layout::for_capacity(max, 4, MR_VALUE_BYTES)
}

/// The Q_Key of the control QP of the node with this DC access key.
pub fn control_qkey(dc_key: u64) -> u32 {
    hash_of(dc_key, b"control Q_Key") as u32 >> 1
}

/// What may be told to who does not have the DC access key.
fn hash_of(dc_key: u64, what: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(dc_key, u64::from_le_bytes(*b"of elver"));
    hasher.write(what);
    hasher.finish()
}

/// What tells the ValidMR table of the node with this DC access key from others.
pub fn mrs_id(dc_key: u64) -> TableId {
    TableId { seed: dc_key, incarnation: (dc_key ^ dc_key >> 32) as u32 }
}

fn split(bytes: &[u8], expected: usize, at: usize) -> Result<(&[u8], &[u8]), RecordError> {
    if bytes.len() != expected {
        return Err(RecordError::Length { given: bytes.len(), expected });
    }
    Ok(bytes.split_at(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> NodeRecord {
        NodeRecord {
            dctn: 0x12_3456,
            dc_key: 0xfedc_ba98_7654_3210,
            control_qpn: 0xab_cdef,
            mrs_rkey: 0x8123_4567,
            log_mrs_max: 7,
            terms: Terms::new(1_000_000_000, 402_653_184, 16_624),
        }
    }

    fn nodes() -> Descriptor {
        record().mrs().unwrap()
    }

    #[test]
    fn records_survive_the_round_trip() {
        let server = MetaServer { gid: Gid([7; 16]), record: record(), nodes: nodes() };
        assert_eq!(MetaServer::decode(&server.encode()), Ok(server));
        let short = NodeRecord::decode(&record().encode()[1..]);
        assert_eq!(short, Err(RecordError::Length { given: 21, expected: 22 }));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut other = record().encode();
        other[18] ^= 0x40;
        assert_eq!(NodeRecord::decode(&other), Err(RecordError::Version { given: 3 }));
        let server = MetaServer { gid: Gid([7; 16]), record: record(), nodes: nodes() };
        let mut bytes = server.encode();
        bytes[50] ^= 1;
        assert!(matches!(MetaServer::decode(&bytes), Err(RecordError::Descriptor(_))));
    }

    #[test]
    fn the_control_qkey_tells_nothing_and_is_not_privileged() {
        let qkeys: alloc::collections::BTreeSet<u32> =
            (0..1_000u64).map(|n| NodeRecord { dc_key: n, ..record() }.control_qkey()).collect();
        assert!(qkeys.len() > 995, "neighbours have nothing in common");
        assert!(qkeys.iter().all(|qkey| qkey >> 31 == 0));
    }

    #[test]
    fn terms_are_told_to_an_eighth_and_on_the_safe_side() {
        let terms = record().terms;
        assert_eq!((terms.lease_ns(), terms.flight_ns()), (1_048_576_000, 425_984_000));
        assert_eq!(terms.room_bytes(), 16_384);
        assert_eq!(Terms::new(0, 0, 0), Terms::default());
        assert_eq!(Terms::default().wait_ns(), 0);
        for n in 0..50 {
            let ns = 1_700 << n;
            let terms = Terms::new(ns, ns, u32::try_from(ns).unwrap_or(u32::MAX));
            if n < 34 {
                assert!((ns..=ns + ns / 8 + 8_000).contains(&terms.lease_ns()), "{ns}");
            }
            let room = u64::from(terms.room_bytes());
            assert!(room <= ns && (room >= ns - ns / 8 || ns > u64::from(u32::MAX)), "{ns}");
        }
    }

    /// Whatever the two are configured with, what is posted under a lease has arrived when the owner's
    /// wait is over, unless the peer's WRs alone may take longer than that.
    #[test]
    fn what_is_posted_in_time_arrives_in_time() {
        let times = [0, 1_000, 70_000, 5_000_000, 400_000_000, 1_000_000_000, 60_000_000_000];
        for lease in times {
            for flight in times {
                let terms = Terms::new(lease, flight, 0);
                for theirs in times {
                    let (until, last) = terms.post_ns(theirs);
                    assert!(until <= last && until <= terms.lease_ns());
                    if theirs <= flight {
                        assert!(last + theirs <= terms.wait_ns() && last >= terms.flight_ns());
                        assert_eq!(until, terms.lease_ns(), "nothing is cut where both are alike");
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_that_starts_anew_has_another_table() {
        let [one, other] = [1, 2].map(|n| NodeRecord { dc_key: record().dc_key + n, ..record() });
        let [one, other] = [one, other].map(|record| *record.mrs().unwrap().id());
        assert!(one.seed != other.seed && one.incarnation != other.incarnation);
    }
}
