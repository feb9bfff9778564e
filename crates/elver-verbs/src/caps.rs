use alloc::string::String;

use crate::Mtu;

/// What a device can do, and its limits. The fields are those of `struct ibv_device_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The device's name, such as `soft0`.
    pub name: String,
    /// Version of the device's code.
    pub fw_ver: String,
    /// EUI-64 of the node.
    pub node_guid: u64,
    /// Largest MR in bytes.
    pub max_mr_size: u64,
    /// Most queue pairs, of all types.
    pub max_qp: u32,
    /// Most outstanding WRs on one queue of a QP.
    pub max_qp_wr: u32,
    /// Most SGEs in a WR.
    pub max_sge: u32,
    /// Most inline bytes in a send WR.
    pub max_inline_data: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most memory windows.
    pub max_mw: u32,
    /// Most address handles.
    pub max_ah: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most WRs on an SRQ.
    pub max_srq_wr: u32,
    /// Most SGEs in an SRQ's WR.
    pub max_srq_sge: u32,
    /// Most outstanding READs and atomics that a QP serves as responder.
    pub max_qp_rd_atom: u8,
    /// Most outstanding READs and atomics that a QP issues.
    pub max_qp_init_rd_atom: u8,
    /// How far atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// Number of ports, numbered from 1.
    pub phys_port_cnt: u8,
    /// The longest that the device takes to answer, as a code of 4.096 µs · 2^code.
    pub local_ca_ack_delay: u8,
    /// The transports that the device speaks.
    pub transports: TransportCaps,
    /// Most concurrent streams of a DCI; 0 where there is no DC.
    pub max_dci_streams: u32,
    /// Most errored streams that a DCI may be set to bear.
    pub max_dci_errored_streams: u32,
    /// Most initiators that a DCT serves at once.
    pub max_dc_contexts: u32,
    /// Most multicast groups that QPs can be attached to.
    pub max_mcast_grp: u32,
    /// Most QPs that can be attached to one of them.
    pub max_mcast_qp_attach: u32,
}

/// The transports of a device, each by what it lets a program do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCaps {
    /// Reliable Connection.
    pub rc: bool,
    /// Unreliable Connection.
    pub uc: bool,
    /// Unreliable Datagram.
    pub ud: bool,
    /// Extended Reliable Connection.
    pub xrc: bool,
    /// Dynamically Connected, natively: connectionless, reliable, one-sided, in order.
    pub dc: bool,
}

/// How far atomics are atomic (IBTA vol. 1, 11.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCap {
    /// No atomics.
    None,
    /// Among the QPs of this device.
    Hca,
    /// Among everything on the host.
    Glob,
}

/// A port of a device. The fields are those of `struct ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Whether the port can carry traffic.
    pub state: PortState,
    /// The largest path MTU that the device supports.
    pub max_mtu: Mtu,
    /// The largest path MTU that the port's interface carries now.
    pub active_mtu: Mtu,
    /// Length of the GID table.
    pub gid_tbl_len: u32,
    /// Length of the P_Key table.
    pub pkey_tbl_len: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Packets dropped for a wrong P_Key.
    pub bad_pkey_cntr: u32,
    /// Packets dropped for a wrong Q_Key.
    pub qkey_viol_cntr: u32,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No traffic.
    Down,
    /// Carries traffic.
    Active,
}
