//! What librdmacm has libibverbs copy from the kernel's forms to its own.

use crate::cm::abi::{self, PathRec, SaPathRec};
use crate::layout::{AhAttr, Gid, GlobalRoute, QpAttr};
use crate::owned::given;

fn vector(from: &abi::AhAttr) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(from.grh.dgid),
        flow_label: from.grh.flow_label,
        sgid_index: from.grh.sgid_index,
        hop_limit: from.grh.hop_limit,
        traffic_class: from.grh.traffic_class,
    };
    AhAttr {
        grh,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut AhAttr, from: *mut abi::AhAttr) {
    // SAFETY: the verbs contract.
    if let (Ok(to), Ok(from)) = unsafe { (given(to), given(from)) } {
        *to = vector(from);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut QpAttr, from: *mut abi::QpAttr) {
    // SAFETY: the verbs contract.
    let (Ok(to), Ok(from)) = (unsafe { (given(to), given(from)) }) else { return };
    // The state stays as the caller has it, as in rdma-core.
    to.cur_qp_state = from.cur_qp_state;
    to.path_mtu = from.path_mtu;
    to.path_mig_state = from.path_mig_state;
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = from.dest_qp_num;
    to.qp_access_flags = from.qp_access_flags;
    to.cap.max_send_wr = from.max_send_wr;
    to.cap.max_recv_wr = from.max_recv_wr;
    to.cap.max_send_sge = from.max_send_sge;
    to.cap.max_recv_sge = from.max_recv_sge;
    to.cap.max_inline_data = from.max_inline_data;
    to.ah_attr = vector(&from.ah_attr);
    to.alt_ah_attr = vector(&from.alt_ah_attr);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify;
    to.sq_draining = from.sq_draining;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
}

macro_rules! copied {
    ($to:ident, $from:ident) => {{
        $to.dlid = $from.dlid;
        $to.slid = $from.slid;
        $to.flow_label = $from.flow_label;
        $to.hop_limit = $from.hop_limit;
        $to.traffic_class = $from.traffic_class;
        $to.numb_path = $from.numb_path;
        $to.pkey = $from.pkey;
        $to.sl = $from.sl;
        $to.mtu_selector = $from.mtu_selector;
        $to.rate_selector = $from.rate_selector;
        $to.rate = $from.rate;
        $to.packet_life_time_selector = $from.packet_life_time_selector;
        $to.packet_life_time = $from.packet_life_time;
        $to.preference = $from.preference;
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut SaPathRec, from: *mut PathRec) {
    // SAFETY: the verbs contract.
    let (Ok(to), Ok(from)) = (unsafe { (given(to), given(from)) }) else { return };
    copied!(to, from);
    (to.dgid, to.sgid) = (Gid(from.dgid), Gid(from.sgid));
    to.raw_traffic = from.raw_traffic as i32;
    to.reversible = from.reversible as i32;
    to.mtu = from.mtu as u8;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut PathRec, from: *mut SaPathRec) {
    // SAFETY: the verbs contract.
    let (Ok(to), Ok(from)) = (unsafe { (given(to), given(from)) }) else { return };
    copied!(to, from);
    (to.dgid, to.sgid) = (from.dgid.0, from.sgid.0);
    to.raw_traffic = from.raw_traffic as u32;
    to.reversible = from.reversible as u32;
    to.mtu = from.mtu.into();
}
