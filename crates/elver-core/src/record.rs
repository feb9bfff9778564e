use elver_kv::{DESCRIPTOR_BYTES, Descriptor};
use elver_verbs::Gid;
use thiserror::Error;

/// Bytes of an encoded [`NodeRecord`].
pub const NODE_RECORD_BYTES: usize = 16 + DESCRIPTOR_BYTES;
/// Bytes of an encoded [`MetaServer`].
pub const META_SERVER_BYTES: usize = 16 + NODE_RECORD_BYTES + DESCRIPTOR_BYTES;

/// What others must know of a node to reach it: the value that meta servers keep under its GID.
///
/// ```text
///   0  DCT number                              4
///   4  DC access key                           8   these 12 bytes are KRCORE's DCT metadata
///   12 QPN of the UD QP for control            4
///   16 descriptor of the node's ValidMR table  40
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// DCT number.
    pub dctn: u32,
    /// DC access key.
    pub dc_key: u64,
    /// QPN of the UD QP that takes control messages.
    pub control_qpn: u32,
    /// The node's table of valid MRs.
    pub mrs: Descriptor,
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
    /// A number wider than its 24 bits.
    #[error("QPN {given:#x} is wider than 24 bits")]
    Qpn {
        /// The number as given.
        given: u32,
    },
    /// A table's descriptor is none.
    #[error(transparent)]
    Descriptor(#[from] elver_kv::DescriptorError),
}

impl NodeRecord {
    /// The record as bytes.
    pub fn encode(&self) -> [u8; NODE_RECORD_BYTES] {
        let mut bytes = [0; NODE_RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.dctn.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.dc_key.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.control_qpn.to_le_bytes());
        bytes[16..].copy_from_slice(&self.mrs.encode());
        bytes
    }

    /// The record that `bytes` encode, checked.
    pub fn decode(bytes: &[u8]) -> Result<NodeRecord, RecordError> {
        let (head, mrs) = split(bytes, NODE_RECORD_BYTES, 16)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (dctn, control_qpn) = (word(0), word(12));
        if let Some(given) =
            [dctn, control_qpn].into_iter().find(|qpn| !elver_verbs::qpn_valid(*qpn))
        {
            return Err(RecordError::Qpn { given });
        }
        let dc_key = u64::from(word(4)) | u64::from(word(8)) << 32;
        Ok(NodeRecord { dctn, dc_key, control_qpn, mrs: Descriptor::decode(mrs)? })
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

fn split(bytes: &[u8], expected: usize, at: usize) -> Result<(&[u8], &[u8]), RecordError> {
    if bytes.len() != expected {
        return Err(RecordError::Length { given: bytes.len(), expected });
    }
    Ok(bytes.split_at(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_kv::{Layout, TableId};

    fn record() -> NodeRecord {
        let layout = Layout::for_capacity(100, 4, 20).unwrap();
        let id = TableId { seed: 0x1122_3344_5566_7788, incarnation: 9 };
        let mrs = Descriptor::new(0x7000_0000, 0xabcd, layout, id).unwrap();
        NodeRecord { dctn: 0x12_3456, dc_key: 0xfedc_ba98_7654_3210, control_qpn: 17, mrs }
    }

    #[test]
    fn records_survive_the_round_trip() {
        let server = MetaServer { gid: Gid([7; 16]), record: record(), nodes: record().mrs };
        assert_eq!(MetaServer::decode(&server.encode()), Ok(server));
        let short = NodeRecord::decode(&record().encode()[1..]);
        assert_eq!(short, Err(RecordError::Length { given: 55, expected: 56 }));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bytes = record().encode();
        bytes[3] = 1;
        assert_eq!(NodeRecord::decode(&bytes), Err(RecordError::Qpn { given: 0x0112_3456 }));
        let mut bytes = record().encode();
        bytes[20] ^= 1;
        assert!(matches!(NodeRecord::decode(&bytes), Err(RecordError::Descriptor(_))));
    }
}
