use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use elver_verbs::{Mtu, VerbsError};

/// Longest message in bytes (IBTA vol. 1, 9.7.4.1.1).
pub const MAX_MESSAGE: u32 = 1 << 31;
/// READs and atomics that a DCT serves at once for each initiator, whatever the device's own limit
/// is: nobody tells an initiator of a target's limit, so it is a constant of DC on the wire.
pub const DC_RD_ATOMIC: u8 = 128;

/// What a software RNIC is made with. Every limit is here, with a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The device's name.
    pub name: String,
    /// EUI-64 of the node.
    pub node_guid: u64,
    /// The GID table: our addresses, by `sgid_index`. At least one.
    pub addresses: Vec<IpAddr>,
    /// UDP port of RoCEv2, for both directions.
    pub udp_port: u16,
    /// The largest path MTU that the interface carries.
    pub active_mtu: Mtu,
    /// Whether QPs of this device that are connected to each other copy from MR to MR without
    /// packets.
    pub local_copy: bool,
    /// Bytes that are copied within the device in one step, so that the rest of its work goes on: a longer READ or WRITE
    /// between two of its QPs takes several steps, a longer SEND goes in packets.
    pub local_step_bytes: u32,
    /// Most queue pairs of all types, up to 2^20.
    pub max_qp: u32,
    /// Most WRs on a send or a receive queue, up to 2^15.
    pub max_qp_wr: u32,
    /// Most SGEs in a WR, up to 64.
    pub max_sge: u32,
    /// Most inline bytes in a WR, up to 4,096.
    pub max_inline_data: u32,
    /// Most completion queues, up to 2^20.
    pub max_cq: u32,
    /// Most entries of a CQ, up to 2^22.
    pub max_cqe: u32,
    /// Most memory regions and windows together, up to 2^20.
    pub max_mr: u32,
    /// Largest memory region in bytes.
    pub max_mr_size: u64,
    /// Most protection domains, up to 2^20.
    pub max_pd: u32,
    /// Most address handles, up to 2^20.
    pub max_ah: u32,
    /// Most shared receive queues, up to 2^20.
    pub max_srq: u32,
    /// Most WRs on an SRQ, up to 2^20.
    pub max_srq_wr: u32,
    /// Most multicast groups, up to 2^12. Over UDP each costs a socket.
    pub max_mcast_grp: u32,
    /// Most QPs of a multicast group, up to 2^12: each datagram to the group is looked at for each of them.
    pub max_mcast_qp_attach: u32,
    /// Most READs and atomics outstanding on a QP, in each role, up to 128. As a responder an RC QP
    /// keeps 24 bytes for each that was agreed, and 56 for each that waits for its answer.
    pub max_rd_atomic: u8,
    /// Most streams of a DCI, as a power of two, up to 10.
    pub log_max_dci_streams: u8,
    /// Most initiators that a DCT serves at once. Each costs about 300 bytes, and up to
    /// [`DC_RD_ATOMIC`] times 80 if it READs in long trains.
    pub max_dc_contexts: u32,
    /// How long an initiator must have been silent before a DCT may forget it to make room for
    /// another, in nanoseconds. Initiators rely on it: see `docs/wire.md`. All nodes of a network
    /// must agree on it.
    pub dc_context_idle_ns: u64,
    /// How long a DCT tells an address the same token, in nanoseconds; it is believed for as long
    /// again. With it an initiator proves that he receives where he says. At least 1 ms.
    pub dc_token_ns: u64,
    /// Wrong keys (access keys of DCTs, rkeys, Q_Keys) that a source may present at once before it is
    /// not listened to for a while, up to 2^20.
    pub bad_keys_burst: u32,
    /// Wrong keys a second that are forgiven, up to 2^20.
    pub bad_keys_per_s: u32,
    /// Most packets in flight on a QP, up to 2^22.
    pub max_packets_in_flight: u32,
    /// Most remote addresses that the device keeps a congestion window for. One that no address
    /// handle, QP or DC stream uses gives way to a new one.
    pub max_paths: u32,
    /// Most asynchronous events that wait to be taken; older ones give way, and are counted.
    pub max_async_events: u32,
    /// A READ longer than this goes out as several requests of this many bytes; a multiple of
    /// 4,096.
    pub read_request_bytes: u32,
    /// When nothing was heard for this long, the oldest unacknowledged packet is sent again, ahead
    /// of the QP's own timeout and outside of its retry count; then after twice as long, and so on.
    /// In nanoseconds; 0 never.
    pub tail_probe_ns: u64,
    /// How the network and the peers' socket buffers are spared.
    pub flow: FlowConfig,
}

/// Congestion windows and pacing; see [`crate::Rnic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Packets in flight towards one address, at first.
    pub window_initial: u32,
    /// The window is never cut below this.
    pub window_min: u32,
    /// The window never grows beyond this.
    pub window_max: u32,
    /// The shortest time between two cuts of a window, in nanoseconds.
    pub cut_interval_ns: u64,
    /// Bytes per second of UC and UD traffic, which no acknowledgement slows, towards one address.
    pub unacked_bytes_per_s: u64,
    /// Bytes of UC and UD traffic that may leave at once.
    pub unacked_burst_bytes: u64,
    /// The shortest time between two CNPs to one address, in nanoseconds.
    pub cnp_interval_ns: u64,
}

impl Default for FlowConfig {
    fn default() -> FlowConfig {
        FlowConfig {
            window_initial: 256,
            window_min: 32,
            window_max: 256,
            cut_interval_ns: 100_000,
            unacked_bytes_per_s: 2_500_000_000,
            unacked_burst_bytes: 512 * 1024,
            cnp_interval_ns: 50_000,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: String::from("soft0"),
            node_guid: 0,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            udp_port: elver_wire::UDP_PORT,
            active_mtu: Mtu::Mtu4096,
            local_copy: true,
            local_step_bytes: 4 << 20,
            max_qp: 16_384,
            max_qp_wr: 16_384,
            max_sge: 32,
            max_inline_data: 512,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_mr: 131_072,
            max_mr_size: 1 << 40,
            max_pd: 4_096,
            max_ah: 1 << 18,
            max_srq: 4_096,
            max_srq_wr: 65_536,
            max_mcast_grp: 64,
            max_mcast_qp_attach: 64,
            max_rd_atomic: DC_RD_ATOMIC,
            log_max_dci_streams: 6,
            max_dc_contexts: 1 << 17,
            dc_context_idle_ns: 4_000_000_000,
            dc_token_ns: 3_600_000_000_000,
            bad_keys_burst: 1_000,
            bad_keys_per_s: 10,
            max_packets_in_flight: 1024,
            max_paths: 1 << 17,
            max_async_events: 1024,
            read_request_bytes: 64 * 1024,
            tail_probe_ns: 500_000,
            flow: FlowConfig::default(),
        }
    }
}

impl Config {
    /// The default configuration for a device of one address.
    pub fn for_address(address: IpAddr) -> Config {
        Config { addresses: vec![address], ..Config::default() }
    }

    /// Checks every limit against what the device can bear.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] names the first limit that cannot be, with its value and what it may be;
    /// [`VerbsError::InvalidArgument`] if `read_request_bytes` is no multiple of 4,096.
    pub fn validate(&self) -> Result<(), VerbsError> {
        let table = 1 << 20;
        let ranges: [(&'static str, u64, u64, u64); 28] = [
            ("addresses", self.addresses.len() as u64, 1, 255),
            ("udp_port", u64::from(self.udp_port), 1, 65_535),
            ("local_step_bytes", u64::from(self.local_step_bytes), 1, 1 << 31),
            ("max_qp", u64::from(self.max_qp), 1, table),
            ("max_qp_wr", u64::from(self.max_qp_wr), 1, 1 << 15),
            ("max_sge", u64::from(self.max_sge), 1, 64),
            ("max_inline_data", u64::from(self.max_inline_data), 0, 4096),
            ("max_cq", u64::from(self.max_cq), 1, table),
            ("max_cqe", u64::from(self.max_cqe), 1, 1 << 22),
            ("max_mr", u64::from(self.max_mr), 1, table),
            ("max_mr_size", self.max_mr_size, 1, 1 << 60),
            ("max_pd", u64::from(self.max_pd), 1, table),
            ("max_ah", u64::from(self.max_ah), 1, table),
            ("max_srq", u64::from(self.max_srq), 1, table),
            ("max_srq_wr", u64::from(self.max_srq_wr), 1, 1 << 20),
            ("max_mcast_grp", u64::from(self.max_mcast_grp), 1, 1 << 12),
            ("max_mcast_qp_attach", u64::from(self.max_mcast_qp_attach), 1, 1 << 12),
            ("max_rd_atomic", u64::from(self.max_rd_atomic), 1, DC_RD_ATOMIC.into()),
            ("log_max_dci_streams", u64::from(self.log_max_dci_streams), 0, 10),
            ("dc_token_ns", self.dc_token_ns, 1_000_000, u64::MAX),
            ("bad_keys_burst", u64::from(self.bad_keys_burst), 1, table),
            ("bad_keys_per_s", u64::from(self.bad_keys_per_s), 1, table),
            ("max_packets_in_flight", u64::from(self.max_packets_in_flight), 1, 1 << 22),
            ("max_paths", u64::from(self.max_paths), 1, table),
            ("max_async_events", u64::from(self.max_async_events), 1, 1 << 20),
            ("read_request_bytes", u64::from(self.read_request_bytes), 4096, 1 << 30),
            ("flow.window_min", u64::from(self.flow.window_min), 1, 1 << 22),
            (
                "flow.window_max",
                u64::from(self.flow.window_max),
                u64::from(self.flow.window_min),
                1 << 22,
            ),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(VerbsError::OutOfRange { name, value, min, max });
            }
        }
        if !self.read_request_bytes.is_multiple_of(4096) {
            return Err(VerbsError::InvalidArgument {
                what: "read_request_bytes must be a multiple of 4096",
            });
        }
        Ok(())
    }
}
