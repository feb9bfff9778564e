//! Numbers of the format that no header has to itself.

/// Length of a base transport header in bytes.
pub const BTH_LEN: usize = 12;
/// Length of the invariant CRC in bytes.
pub const ICRC_LEN: usize = 4;
/// Longest payload of a packet in bytes: the largest path MTU.
pub const PAYLOAD_MAX: usize = 4096;
/// The default P_Key: full member of the default partition.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// The UDP port of RoCEv2 (IBTA annex A17.4.5.1).
pub const UDP_PORT: u16 = 4791;
