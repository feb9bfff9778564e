//! The structures of `infiniband/mlx5dv.h`, of rdma-core 44, that DC needs. As in [`crate::layout`], parts that this
//! library does not look at are arrays under the name of the first field among them.
#![allow(missing_docs)]

use std::ffi::c_uint;

use elver_verbs::DciInit;

use crate::layout::{Ah, Layout, structures};

structures! {
    DciStreamsCaps "mlx5dv_dci_streams_caps" {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }
    DcInitAttr "mlx5dv_dc_init_attr" {
        dc_type: c_uint,
        // In a union with `dci_streams`, which are its first bytes.
        dct_access_key: u64,
    }
    QpInitAttr "mlx5dv_qp_init_attr" {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: DcInitAttr,
        send_ops_flags: u64,
    }
    QpEx "mlx5dv_qp_ex" {
        comp_mask: u64,
        wr_set_dc_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u64)>,
        wr_mr_interleaved: [usize; 8],
        wr_set_dc_addr_stream: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u64, u16)>,
        wr_memcpy: [usize; 2],
    }
    CqInitAttr "mlx5dv_cq_init_attr" {
        comp_mask: u64,
        cqe_comp_res_format: u8,
        flags: u32,
        cqe_size: u16,
    }
    ContextAttr "mlx5dv_context_attr" {
        flags: u32,
        comp_mask: u64,
    }
    Context "mlx5dv_context" {
        version: u8,
        flags: u64,
        comp_mask: u64,
        cqe_comp_caps: [u32; 2],
        sw_parsing_caps: [u32; 2],
        striding_rq_caps: [u32; 5],
        tunnel_offloads_caps: u32,
        max_dynamic_bfregs: u32,
        max_clock_info_update_nsec: u64,
        flow_action_flags: u32,
        dc_odp_caps: u32,
        hca_core_clock: usize,
        num_lag_ports: u8,
        sig_caps: [u64; 2],
        dci_streams_caps: DciStreamsCaps,
        max_wr_memcpy_length: usize,
        crypto_caps: [u32; 3],
    }
}

impl DcInitAttr {
    /// A DCI's streams (`mlx5dv_dci_streams`), which stand where a DCT's key does.
    pub(crate) fn streams(&self) -> DciInit {
        let [log_num_concurrent, log_num_errored, ..] = self.dct_access_key.to_ne_bytes();
        DciInit { log_num_concurrent, log_num_errored }
    }
}
