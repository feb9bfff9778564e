//! What other libraries of rdma-core need in order to load, and cannot work here: providers' calls, which
//! speak to the kernel's driver, and newer verbs that the device lacks. Each says `EOPNOTSUPP`.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::errno::set;

macro_rules! refused {
    ($($name:ident,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            set(libc::EOPNOTSUPP);
            libc::EOPNOTSUPP
        }
    )*};
}

macro_rules! refused_objects {
    ($($name:ident,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            set(libc::EOPNOTSUPP);
            ptr::null_mut()
        }
    )*};
}

macro_rules! nothing {
    ($($name:ident,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )*};
}

pub(crate) use {nothing, refused, refused_objects};

// Providers register themselves as they are loaded; their hardware is not asked for.
nothing! {
    verbs_register_driver_34,
    verbs_register_driver_57,
    verbs_register_driver_59,
    verbs_register_driver_64,
    verbs_register_driver_65,
    ibv_register_driver,
    verbs_set_ops,
    verbs_uninit_context,
    __verbs_log,
    ibv_dmabuf_heap_destroy,
    ibv_dmabuf_heap_free,
}

refused_objects! {
    verbs_open_device,
    _verbs_init_and_alloc_context,
    ibv_reg_dmabuf_mr,
    ibv_alloc_dmah,
    ibv_create_comp_cntr,
    ibv_dmabuf_heap_alloc,
    ibv_dmabuf_heap_cc_shared_init,
}

refused! {
    ibv_set_ece,
    ibv_query_ece,
    ibv_dealloc_dmah,
    ibv_destroy_comp_cntr,
    ibv_set_comp_cntr,
    ibv_set_err_comp_cntr,
    ibv_inc_comp_cntr,
    ibv_inc_err_comp_cntr,
    ibv_read_comp_cntr,
    ibv_read_err_comp_cntr,
    ibv_qp_attach_comp_cntr,
    _ibv_query_comp_cntr_caps,
    ibv_resolve_eth_l2_from_gid,
    verbs_init_cq,
    verbs_allow_disassociate_destroy,
    __ioctl_final_num_attrs,
    execute_ioctl,
    ibv_cmd_advise_mr,
    ibv_cmd_alloc_dm,
    ibv_cmd_alloc_dmah,
    ibv_cmd_alloc_mw,
    ibv_cmd_alloc_pd,
    ibv_cmd_attach_mcast,
    ibv_cmd_close_xrcd,
    ibv_cmd_create_ah,
    ibv_cmd_create_comp_cntr,
    ibv_cmd_create_counters,
    ibv_cmd_create_cq,
    ibv_cmd_create_cq_ex,
    ibv_cmd_create_cq_ex2,
    ibv_cmd_create_flow,
    ibv_cmd_create_flow_action_esp,
    ibv_cmd_create_qp,
    ibv_cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2,
    ibv_cmd_create_rwq_ind_table,
    ibv_cmd_create_srq,
    ibv_cmd_create_srq_ex,
    ibv_cmd_create_wq,
    ibv_cmd_dealloc_mw,
    ibv_cmd_dealloc_pd,
    ibv_cmd_dereg_mr,
    ibv_cmd_destroy_ah,
    ibv_cmd_destroy_comp_cntr,
    ibv_cmd_destroy_counters,
    ibv_cmd_destroy_cq,
    ibv_cmd_destroy_flow,
    ibv_cmd_destroy_flow_action,
    ibv_cmd_destroy_qp,
    ibv_cmd_destroy_rwq_ind_table,
    ibv_cmd_destroy_srq,
    ibv_cmd_destroy_wq,
    ibv_cmd_detach_mcast,
    ibv_cmd_free_dm,
    ibv_cmd_free_dmah,
    ibv_cmd_get_context,
    ibv_cmd_inc_comp_cntr,
    ibv_cmd_inc_err_comp_cntr,
    ibv_cmd_modify_cq,
    ibv_cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp,
    ibv_cmd_modify_qp_ex,
    ibv_cmd_modify_srq,
    ibv_cmd_modify_wq,
    ibv_cmd_open_qp,
    ibv_cmd_open_xrcd,
    ibv_cmd_poll_cq,
    ibv_cmd_post_recv,
    ibv_cmd_post_send,
    ibv_cmd_post_srq_recv,
    ibv_cmd_qp_attach_comp_cntr,
    ibv_cmd_query_comp_cntr_caps,
    ibv_cmd_query_context,
    ibv_cmd_query_device_any,
    ibv_cmd_query_mr,
    ibv_cmd_query_port,
    ibv_cmd_query_port_speed,
    ibv_cmd_query_qp,
    ibv_cmd_query_srq,
    ibv_cmd_read_counters,
    ibv_cmd_read_comp_cntr,
    ibv_cmd_read_err_comp_cntr,
    ibv_cmd_reg_dmabuf_mr,
    ibv_cmd_reg_dm_mr,
    ibv_cmd_reg_mr,
    ibv_cmd_reg_mr_ex,
    ibv_cmd_req_notify_cq,
    ibv_cmd_rereg_mr,
    ibv_cmd_resize_cq,
    ibv_cmd_set_comp_cntr,
    ibv_cmd_set_err_comp_cntr,
}

macro_rules! no_descriptors {
    ($($name:ident,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            set(libc::EOPNOTSUPP);
            -1
        }
    )*};
}

// No memory of the device is another's to map.
no_descriptors! {
    ibv_dm_export_dmabuf_fd,
    ibv_cmd_export_dmabuf_fd,
}

/// Data of any two WRITEs may be seen out of order: `0` says that nothing is promised.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order() -> c_int {
    0
}

/// Memory is not pinned, so that nothing has to be kept from children.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range() -> c_int {
    0
}
