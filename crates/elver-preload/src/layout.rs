//! The public structures of libibverbs, as a compiler lays them out that reads `infiniband/verbs.h` of
//! rdma-core 44. The names of fields are the header's, whose manual pages say what they mean; parts
//! that this library leaves at zero are arrays under the name of the first field among them.
//! `tests/layout.rs` compares each with the installed header.
#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

/// `union ibv_gid`: its bytes, aligned as the words that the union has too.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

/// `wr` of `ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union WrUnion {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: UdDest,
}

/// Where a READ or WRITE goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// What an atomic does, and where.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UdDest {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `bind_mw` of `ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BindMwWr {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

/// A structure's name in C, its size, and each field's name in C and offset.
pub type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! structures {
    ($($name:ident $c:literal { $($field:ident: $of:ty,)* })*) => {
        $(
            #[doc = concat!("`struct ", $c, "`.")]
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $name {
                $(pub $field: $of,)*
            }
        )*

        /// All structures of this file.
        pub fn layouts() -> Vec<Layout> {
            vec![$((
                $c,
                size_of::<$name>(),
                vec![$((stringify!($field).trim_start_matches("r#"), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

pub(crate) use structures;

structures! {
    Sge "ibv_sge" {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    DeviceAttr "ibv_device_attr" {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_int,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    PortAttr "ibv_port_attr" {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    QpCap "ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    GlobalRoute "ibv_global_route" {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    AhAttr "ibv_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    QpAttr "ibv_qp_attr" {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
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
        rate_limit: u32,
    }
    QpInitAttr "ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    RecvWr "ibv_recv_wr" {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }
    SendWr "ibv_send_wr" {
        wr_id: u64,
        next: *mut SendWr,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: WrUnion,
        qp_type: u32,
        bind_mw: BindMwWr,
    }
    Wc "ibv_wc" {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    Mr "ibv_mr" {
        context: *mut Context,
        pd: *mut Pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    Pd "ibv_pd" {
        context: *mut Context,
        handle: u32,
    }
    Cq "ibv_cq" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    Qp "ibv_qp" {
        context: *mut Context,
        qp_context: *mut c_void,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    Srq "ibv_srq" {
        context: *mut Context,
        srq_context: *mut c_void,
        pd: *mut Pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    Ah "ibv_ah" {
        context: *mut Context,
        pd: *mut Pd,
        handle: u32,
    }
    CompChannel "ibv_comp_channel" {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }
    AsyncEvent "ibv_async_event" {
        element: *mut c_void,
        event_type: c_uint,
    }
    GidEntry "ibv_gid_entry" {
        gid: Gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    SrqAttr "ibv_srq_attr" {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    SrqInitAttr "ibv_srq_init_attr" {
        srq_context: *mut c_void,
        attr: SrqAttr,
    }
    Grh "ibv_grh" {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: Gid,
        dgid: Gid,
    }
    Device "ibv_device" {
        _ops: [usize; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    ContextOps "ibv_context_ops" {
        _compat_query_device: [usize; 7],
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
        _compat_create_cq: usize,
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
        _compat_cq_event: [usize; 7],
        post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_qp: [usize; 4],
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_ah: [usize; 5],
    }
    Context "ibv_context" {
        device: *mut Device,
        ops: ContextOps,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    VerbsContext "verbs_context" {
        query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_uint, u32, *mut Sge, u32) -> c_int>,
        alloc_null_mr: [usize; 5],
        reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
        alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
        free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
        modify_flow_action_esp: [usize; 4],
        alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
        modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
        post_srq_ops: [usize; 6],
        query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
        r#priv: usize,
        query_device_ex: Option<unsafe extern "C" fn(*mut Context, *const u32, *mut DeviceAttrEx, usize) -> c_int>,
        ibv_destroy_flow: [usize; 4],
        open_qp: Option<unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp>,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
        open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
        close_xrcd: [Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>; 2],
        sz: usize,
        context: Context,
    }
    ModifyCqAttr "ibv_modify_cq_attr" {
        attr_mask: u32,
        moderate: [u16; 2],
    }
    DeviceAttrEx "ibv_device_attr_ex" {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: [u64; 3],
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: [u32; 2],
        rss_caps: [u64; 4],
        max_wq_type_rq: u32,
        packet_pacing_caps: [u32; 3],
        raw_packet_caps: u32,
        tm_caps: [u32; 5],
        cq_mod_caps: [u16; 2],
        max_dm_size: u64,
        pci_atomic_caps: [u16; 3],
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }    Mw "ibv_mw" {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }
    MwBindInfo "ibv_mw_bind_info" {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
    MwBind "ibv_mw_bind" {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: MwBindInfo,
    }
    QpEx "ibv_qp_ex" {
        qp_base: Qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_tso: usize,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_atomic_write: usize,
    }
    DataBuf "ibv_data_buf" {
        addr: *mut c_void,
        length: usize,
    }
    CqEx "ibv_cq_ex" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
        read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
        read_cvlan: [usize; 3],
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    }
    PollCqAttr "ibv_poll_cq_attr" {
        comp_mask: u32,
    }
    CqInitAttrEx "ibv_cq_init_attr_ex" {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }
    QpInitAttrEx "ibv_qp_init_attr_ex" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: [u64; 3],
        source_qpn: u32,
        send_ops_flags: u64,
    }
    SrqInitAttrEx "ibv_srq_init_attr_ex" {
        srq_context: *mut c_void,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        cq: *mut Cq,
        tm_cap: [u32; 2],
    }
    Xrcd "ibv_xrcd" {
        context: *mut Context,
    }
    XrcdInitAttr "ibv_xrcd_init_attr" {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }
    QpOpenAttr "ibv_qp_open_attr" {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut Xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
    ParentDomainInitAttr "ibv_parent_domain_init_attr" {
        pd: *mut Pd,
        td: *mut Td,
        comp_mask: u32,
        alloc: usize,
        free: usize,
        pd_context: *mut c_void,
    }
    Td "ibv_td" {
        context: *mut Context,
    }
    TdInitAttr "ibv_td_init_attr" {
        comp_mask: u32,
    }
    Dm "ibv_dm" {
        context: *mut Context,
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }
    AllocDmAttr "ibv_alloc_dm_attr" {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }
    ValuesEx "ibv_values_ex" {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
}
