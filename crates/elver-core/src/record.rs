use core::hash::Hasher;

use elver_kv::{DESCRIPTOR_BYTES, Descriptor, Layout, LayoutError, TableId};
use elver_verbs::Gid;
use siphasher::sip::SipHasher24;
use thiserror::Error;

use crate::mr_store::MR_VALUE_BYTES;

/// Bytes of an encoded [`NodeRecord`].
pub const NODE_RECORD_BYTES: usize = 22;
/// Bytes of an encoded [`MetaServer`].
pub const META_SERVER_BYTES: usize = 16 + NODE_RECORD_BYTES + DESCRIPTOR_BYTES;
/// Address of a ValidMR table's first byte at its node.
pub(crate) const MRS_ADDR: u64 = 0;

/// What others must know of a node to reach it: the value that meta servers keep under its GID.
///
/// ```text
///   0  DCT number                          3
///   3  QPN of the UD QP for control        3
///   6  DC access key                       8
///   14 rkey of the node's ValidMR table    4
///   18 entries that ValidMR is made for    4
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
    /// DCT number.
    pub dctn: u32,
    /// DC access key.
    pub dc_key: u64,
    /// QPN of the UD QP that takes control messages.
    pub control_qpn: u32,
    /// What opens the node's table of valid MRs.
    pub mrs_rkey: u32,
    /// Entries that this table is made for.
    pub mrs_max: u32,
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
        bytes[18..].copy_from_slice(&self.mrs_max.to_le_bytes());
        bytes
    }

    /// The record that `bytes` encode, checked.
    pub fn decode(bytes: &[u8]) -> Result<NodeRecord, RecordError> {
        let (given, expected) = (bytes.len(), NODE_RECORD_BYTES);
        let length = RecordError::Length { given, expected };
        let bytes: &[u8; NODE_RECORD_BYTES] = bytes.try_into().map_err(|_| length)?;
        let qpn = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], 0]);
        let word = |at: usize| qpn(at) | u32::from(bytes[at + 3]) << 24;
        let record = NodeRecord {
            dctn: qpn(0),
            dc_key: u64::from(word(6)) | u64::from(word(10)) << 32,
            control_qpn: qpn(3),
            mrs_rkey: word(14),
            mrs_max: word(18),
        };
        mrs_layout(record.mrs_max)?;
        Ok(record)
    }

    /// The Q_Key of the UD QP for control: a secret of those who have the record, of 31 bits. Its top
    /// bit is that of privileged Q_Keys, and is 0 (IBTA vol. 1, 10.2.5). It stands in every packet to
    /// that QP, so it is a hash of the DC access key, from which nobody gets that.
    pub fn control_qkey(&self) -> u32 {
        control_qkey(self.dc_key)
    }

    /// Tells this record from another of the same node's, but once in 65,536 times: messages have it,
    /// so that who knows another one notices.
    pub(crate) fn tag(&self) -> u16 {
        hash_of(self.dc_key, b"record tag") as u16
    }

    /// The node's table of valid MRs. Its first byte has address 0, and what tells it from others
    /// comes from the DC access key, which is as random and also another each time that the node
    /// starts.
    pub fn mrs(&self) -> Result<Descriptor, RecordError> {
        let (layout, id) = (mrs_layout(self.mrs_max)?, mrs_id(self.dc_key));
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

/// The geometry of a ValidMR table made for `max` entries.
pub(crate) fn mrs_layout(max: u32) -> Result<Layout, LayoutError> {
    Layout::for_capacity(max, 4, MR_VALUE_BYTES)
}

/// The Q_Key of the control QP of the node with this DC access key.
pub(crate) fn control_qkey(dc_key: u64) -> u32 {
    hash_of(dc_key, b"control Q_Key") as u32 >> 1
}

/// What may be told to who does not have the DC access key.
fn hash_of(dc_key: u64, what: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(dc_key, u64::from_le_bytes(*b"of elver"));
    hasher.write(what);
    hasher.finish()
}

/// What tells the ValidMR table of the node with this DC access key from others.
pub(crate) fn mrs_id(dc_key: u64) -> TableId {
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
            mrs_max: 100,
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
        let none = NodeRecord { mrs_max: 0, ..record() };
        assert!(matches!(NodeRecord::decode(&none.encode()), Err(RecordError::Layout(_))));
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
    fn a_node_that_starts_anew_has_another_table() {
        let [one, other] = [1, 2].map(|n| NodeRecord { dc_key: record().dc_key + n, ..record() });
        let [one, other] = [one, other].map(|record| *record.mrs().unwrap().id());
        assert!(one.seed != other.seed && one.incarnation != other.incarnation);
    }
}
