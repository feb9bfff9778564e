//! The structures of `infiniband/verbs.h` that setting a connection up takes, as rdma-core has laid them out since its
//! beginning. The names of fields are the header's; what is left at zero is an array.

use std::ffi::{c_int, c_void};

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut c_void,
    pub(super) recv_cq: *mut c_void,
    pub(super) srq: *mut c_void,
    pub(super) cap: Cap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Gid(pub(super) [u8; 16]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AhAttr {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: Cap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// As `ibv_query_port` fills it; the end is of newer libraries.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) rest: [u64; 4],
}

#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u32; 19],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) rest: [u32; 9],
}

/// The parts of these that are read.
#[repr(C)]
pub(super) struct Mr {
    pub(super) pointers: [*mut c_void; 3],
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct Qp {
    pub(super) pointers: [*mut c_void; 6],
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

pub(super) type PollCq = unsafe extern "C" fn(cq: *mut c_void, count: c_int, wc: *mut Wc) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(qp: *mut c_void, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int;

/// A context, up to the last operation that is called: pointers in the order of `struct ibv_context_ops`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut c_void,
    pub(super) before_poll_cq: [*mut c_void; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) before_post_send: [*mut c_void; 13],
    pub(super) post_send: Option<PostSend>,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As a C compiler says of `infiniband/verbs.h`; elver-preload's tests compare more of them with the header itself.
    #[test]
    fn structures_are_laid_out_as_in_c() {
        assert_eq!((size_of::<QpInitAttr>(), size_of::<QpAttr>()), (64, 144));
        assert_eq!((size_of::<SendWr>(), size_of::<Wc>(), size_of::<AhAttr>()), (128, 48, 32));
        assert_eq!((offset_of!(QpAttr, ah_attr), offset_of!(QpAttr, timeout)), (56, 130));
        assert_eq!((offset_of!(SendWr, opcode), offset_of!(SendWr, remote_addr)), (28, 40));
        assert_eq!((offset_of!(PortAttr, active_mtu), offset_of!(PortAttr, lid)), (8, 34));
        assert_eq!((offset_of!(Mr, lkey), offset_of!(Qp, qp_num)), (36, 52));
        assert_eq!((offset_of!(Context, poll_cq), offset_of!(Context, post_send)), (96, 208));
    }
}
