//! What librdmacm writes to `/dev/infiniband/rdma_cm`, and what it is answered: `rdma/rdma_user_cm.h`,
//! whose names these are. `tests/layout.rs` compares each with the installed header.
#![allow(missing_docs)]

use libc::{sockaddr_in6, sockaddr_storage};

use crate::layout::{Gid, Layout, structures};

/// `RDMA_MAX_PRIVATE_DATA`.
pub const PRIVATE: usize = 256;

structures! {
    Header "rdma_ucm_cmd_hdr" {
        cmd: u32,
        r#in: u16,
        out: u16,
    }
    CreateId "rdma_ucm_create_id" {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }
    CreateIdResp "rdma_ucm_create_id_resp" {
        id: u32,
    }
    DestroyId "rdma_ucm_destroy_id" {
        response: u64,
        id: u32,
        reserved: u32,
    }
    DestroyIdResp "rdma_ucm_destroy_id_resp" {
        events_reported: u32,
    }
    BindIp "rdma_ucm_bind_ip" {
        response: u64,
        addr: sockaddr_in6,
        id: u32,
    }
    Bind "rdma_ucm_bind" {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: sockaddr_storage,
    }
    ResolveIp "rdma_ucm_resolve_ip" {
        src_addr: sockaddr_in6,
        dst_addr: sockaddr_in6,
        id: u32,
        timeout_ms: u32,
    }
    ResolveAddr "rdma_ucm_resolve_addr" {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: sockaddr_storage,
        dst_addr: sockaddr_storage,
    }
    ResolveRoute "rdma_ucm_resolve_route" {
        id: u32,
        timeout_ms: u32,
    }
    Query "rdma_ucm_query" {
        response: u64,
        id: u32,
        option: u32,
    }
    PathRec "ib_user_path_rec" {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: u16,
        slid: u16,
        raw_traffic: u32,
        flow_label: u32,
        reversible: u32,
        mtu: u32,
        pkey: u16,
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
    SaPathRec "ibv_sa_path_rec" {
        dgid: Gid,
        sgid: Gid,
        dlid: u16,
        slid: u16,
        raw_traffic: i32,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: i32,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
    QueryRouteResp "rdma_ucm_query_route_resp" {
        node_guid: u64,
        ib_route: [PathRec; 2],
        src_addr: sockaddr_in6,
        dst_addr: sockaddr_in6,
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }
    QueryAddrResp "rdma_ucm_query_addr_resp" {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        src_size: u16,
        dst_size: u16,
        src_addr: sockaddr_storage,
        dst_addr: sockaddr_storage,
        ibdev_index: u32,
        reserved1: u32,
    }
    ConnParam "rdma_ucm_conn_param" {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; PRIVATE],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    GlobalRoute "ib_uverbs_global_route" {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }
    AhAttr "ib_uverbs_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }
    UdParam "rdma_ucm_ud_param" {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; PRIVATE],
        private_data_len: u8,
        reserved: [u8; 7],
    }
    Ece "rdma_ucm_ece" {
        vendor_id: u32,
        attr_mod: u32,
    }
    Connect "rdma_ucm_connect" {
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }
    Listen "rdma_ucm_listen" {
        id: u32,
        backlog: u32,
    }
    Accept "rdma_ucm_accept" {
        uid: u64,
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }
    Reject "rdma_ucm_reject" {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE],
    }
    Disconnect "rdma_ucm_disconnect" {
        id: u32,
    }
    InitQpAttr "rdma_ucm_init_qp_attr" {
        response: u64,
        id: u32,
        qp_state: u32,
    }
    QpAttr "ib_uverbs_qp_attr" {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 5],
    }
    Notify "rdma_ucm_notify" {
        id: u32,
        event: u32,
    }
    GetEvent "rdma_ucm_get_event" {
        response: u64,
    }
    EventResp "rdma_ucm_event_resp" {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
        // The larger of its two forms.
        param: UdParam,
        reserved: u32,
        ece: Ece,
    }
    JoinIp "rdma_ucm_join_ip_mcast" {
        response: u64,
        uid: u64,
        addr: sockaddr_in6,
        id: u32,
    }
    Join "rdma_ucm_join_mcast" {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: sockaddr_storage,
    }
    SetOption "rdma_ucm_set_option" {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }
    MigrateId "rdma_ucm_migrate_id" {
        response: u64,
        id: u32,
        fd: u32,
    }
    MigrateResp "rdma_ucm_migrate_resp" {
        events_reported: u32,
    }
}

/// What is plain numbers, so that any bytes are one.
///
/// # Safety
/// The type has no padding that matters and no bytes that it may not hold.
pub(crate) unsafe trait Plain: Sized {
    /// One of zeros.
    fn zero() -> Self {
        // SAFETY: the trait's promise.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: numbers and arrays of them.
            unsafe impl Plain for $name {}
        )*
    };
}

plain! {
    Header, CreateId, CreateIdResp, DestroyId, DestroyIdResp, BindIp, Bind, ResolveIp, ResolveAddr,
    ResolveRoute, Query, QueryRouteResp, QueryAddrResp, ConnParam, UdParam, Connect, Listen, Accept,
    Reject, Disconnect, InitQpAttr, QpAttr, Notify, GetEvent, EventResp, SetOption, MigrateId,
    MigrateResp, JoinIp, Join, sockaddr_in6, sockaddr_storage, u8, u32, AhAttr, PathRec,
}
