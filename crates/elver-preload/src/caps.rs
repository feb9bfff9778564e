//! What device and port say of themselves.

use std::ffi::{CString, c_int, c_uint};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use elver_verbs::{AtomicCap, Device as _, PortState};
use libc::timespec;

use crate::device::write;
use crate::dm::DM_MAX;
use crate::engine::Engine;
use crate::errno::{code, minus_one, of_verbs};
use crate::gid_index;
use crate::layout::{Context, DeviceAttr, DeviceAttrEx, Gid, GidEntry, PortAttr, ValuesEx};
use crate::link_layer;
use crate::moderation::MOST;
use crate::odp;
use crate::owned::given;
use crate::timed::Stamp;
use crate::told::owned;
use crate::vendor;

/// `IBV_GID_TYPE_SYSFS_ROCE_V2` of `ibv_query_gid_type`, and `IBV_GID_TYPE_ROCE_V2`.
const SYSFS_ROCE_V2: c_uint = 1;
/// `IBV_GID_TYPE_SYSFS_IB_ROCE_V1`; of an InfiniBand port, and of an empty entry.
const SYSFS_IB: c_uint = 0;
const ROCE_V2: u32 = 2;
/// `IBV_GID_TYPE_IB`.
const IB: u32 = 0;
/// The default P_Key, a full member's.
const PKEY: u16 = 0xffff;
/// `IBV_LINK_LAYER_INFINIBAND` and `IBV_LINK_LAYER_ETHERNET`.
const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`: RoCE has no addresses but those.
const GRH_REQUIRED: u8 = 1;
/// Four lanes of 25 Gb/s, about what memory moves; and the same in 100 Mb/s. A socket has no rate, and from one that is told
/// as slow UCX concludes that who copies everything once more loses nothing.
const FOUR_LANES: u8 = 2;
const ENHANCED_DATA_RATE: u8 = 32;
const PORT_SPEED: u64 = 1000;
/// `IBV_PORT_CM_SUP`: peers connect by rdma_cm, as rdma_rxe says too.
pub(crate) const PORT_CAN: u32 = 1 << 16;
/// Time stamps are in nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;
/// `enum ibv_device_cap_flags`: counters of wrong P_Keys and Q_Keys, `IBV_QP_CUR_STATE`, RNR NAKs, SRQs
/// that change their size, windows of type 1, XRC, and windows of type 2 that are their QP's alone (2B).
const CAN: c_uint = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 20 | 1 << 24;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    code(|| {
        // It never changes, so that what a child of `fork` inherited answers as well.
        // SAFETY: the verbs contract: null, or a context of ours.
        let found = &unsafe { owned(given(context)?) }.attr;
        let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: integers may be zero.
        let mut all: DeviceAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        write(&mut all.fw_ver, &found.fw_ver);
        all.node_guid = found.node_guid.to_be();
        all.sys_image_guid = found.node_guid.to_be();
        all.max_mr_size = found.max_mr_size;
        (all.vendor_id, all.vendor_part_id) = vendor::ids();
        all.device_cap_flags = CAN;
        all.max_mw = int(found.max_mw);
        all.page_size_cap = 0xffff_f000;
        all.max_qp = int(found.max_qp);
        all.max_qp_wr = int(found.max_qp_wr);
        all.max_sge = int(found.max_sge);
        all.max_sge_rd = int(found.max_sge);
        all.max_cq = int(found.max_cq);
        all.max_cqe = int(found.max_cqe);
        all.max_mr = int(found.max_mr);
        all.max_pd = int(found.max_pd);
        all.max_qp_rd_atom = found.max_qp_rd_atom.into();
        all.max_res_rd_atom = c_int::from(found.max_qp_rd_atom).saturating_mul(all.max_qp);
        all.max_qp_init_rd_atom = found.max_qp_init_rd_atom.into();
        all.atomic_cap = match found.atomic_cap {
            AtomicCap::None => 0,
            // Devices say the former, and programs ask for that and nothing else, as UCX does.
            AtomicCap::Hca | AtomicCap::Glob => 1,
        };
        all.max_ah = int(found.max_ah);
        all.max_srq = int(found.max_srq);
        all.max_srq_wr = int(found.max_srq_wr);
        all.max_srq_sge = int(found.max_srq_sge);
        all.max_mcast_grp = int(found.max_mcast_grp);
        all.max_mcast_qp_attach = int(found.max_mcast_qp_attach);
        all.max_total_mcast_qp_attach =
            all.max_mcast_grp.saturating_mul(all.max_mcast_qp_attach).min(all.max_qp);
        all.max_pkeys = 1;
        all.local_ca_ack_delay = found.local_ca_ack_delay;
        all.phys_port_cnt = 1;
        // SAFETY: the verbs contract.
        unsafe { *given(attr)? = all };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input: *const u32,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the verbs contract: a mask, if anything.
        let asked = unsafe { input.as_ref() }.copied().unwrap_or(0);
        if asked != 0 || size < size_of::<DeviceAttr>() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: integers may be zero.
        let mut all: DeviceAttrEx = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: it is ours to write.
        match unsafe { ibv_query_device(context, &mut all.orig_attr) } {
            0 => {}
            error => return Err(error),
        }
        all.device_cap_flags_ex = all.orig_attr.device_cap_flags.into();
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = CLOCK_KHZ;
        all.max_dm_size = DM_MAX as u64;
        all.odp_caps = odp::caps();
        all.xrc_odp_caps = odp::xrc_caps();
        all.cq_mod_caps = MOST;
        all.phys_port_cnt_ex = 1;
        let known = size.min(size_of::<DeviceAttrEx>());
        // SAFETY: the program says that it has `size` bytes there.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    })
}

/// The clock of time stamps, now: all of it in nanoseconds, as other providers give their raw one.
pub(crate) unsafe extern "C" fn query_rt_values(_: *mut Context, values: *mut ValuesEx) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let values = unsafe { given(values)? };
        if values.comp_mask & !RAW_CLOCK != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        values.raw_clock = timespec { tv_sec: 0, tv_nsec: Stamp::now().raw as i64 };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    size: usize,
) -> c_int {
    code(|| {
        if port != 1 || attr.is_null() {
            return Err(libc::EINVAL);
        }
        let mut state = Engine::of(context)?.lock();
        // By now it may have gone down.
        state.tell();
        let found = state.device.query_port();
        // SAFETY: integers may be zero.
        let mut all: PortAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        let active = found.state == PortState::Active && state.port_on_demand() != Some(false);
        all.lid = link_layer::lid_at(state.device.address());
        drop(state);
        all.state = if active { 4 } else { 1 };
        all.phys_state = if active { 5 } else { 3 };
        all.max_mtu = found.max_mtu.code().into();
        all.active_mtu = found.active_mtu.code().into();
        all.gid_tbl_len = gid_index::table_len() as c_int;
        all.max_msg_sz = found.max_msg_sz;
        all.bad_pkey_cntr = found.bad_pkey_cntr;
        all.qkey_viol_cntr = found.qkey_viol_cntr;
        all.port_cap_flags = PORT_CAN;
        all.pkey_tbl_len = 1;
        all.max_vl_num = 1;
        all.active_width = FOUR_LANES;
        all.active_speed = ENHANCED_DATA_RATE;
        (all.link_layer, all.flags) = match link_layer::is_infiniband() {
            true => (INFINIBAND, 0),
            false => (ETHERNET, GRH_REQUIRED),
        };
        let known = size.min(size_of::<PortAttr>());
        // SAFETY: the program says that it has `size` bytes there; what is newer than this is 0.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    })
}

/// In units of 100 Mb/s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut Context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    code(|| {
        if port != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        unsafe {
            given(context)?;
            *given(speed)? = PORT_SPEED;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // The function behind the header's macro knows the structure up to `flags`.
    // SAFETY: the verbs contract.
    unsafe { query_port(context, port, attr, offset_of!(PortAttr, port_cap_flags2)) }
}

fn gid(context: *mut Context, port: u32, index: u32) -> Result<Gid, c_int> {
    if port != 1 {
        return Err(libc::EINVAL);
    }
    let engine = Engine::of(context)?;
    gid_index::is_ours(index)?;
    let gid = engine.lock().device.query_gid(0).map_err(of_verbs)?;
    Ok(Gid(gid.0))
}

/// What calls that are older than empty entries say of one.
fn or_empty<T>(found: Result<T, c_int>, empty: T) -> Result<T, c_int> {
    if found.as_ref().is_err_and(|error| *error == libc::ENODATA) { Ok(empty) } else { found }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    to: *mut Gid,
) -> c_int {
    minus_one(|| {
        let index = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        let gid = or_empty(gid(context, port.into(), index), Gid([0; 16]))?;
        // SAFETY: the verbs contract. A `union ibv_gid` of the program's may be less aligned.
        unsafe { to.write_unaligned(gid) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut Context,
    port: u8,
    index: c_uint,
    to: *mut c_uint,
) -> c_int {
    minus_one(|| {
        let found = gid(context, port.into(), index)
            .map(|_| if link_layer::is_infiniband() { SYSFS_IB } else { SYSFS_ROCE_V2 });
        let found = or_empty(found, SYSFS_IB)?;
        // SAFETY: the verbs contract.
        unsafe { *to = found };
        Ok(())
    })
}

fn gid_entry(context: *mut Context, port: u32, index: u32) -> Result<GidEntry, c_int> {
    let gid = gid(context, port, index)?;
    let name = Engine::of(context)?.lock().device.interface();
    let name = name.and_then(|name| CString::new(name).ok());
    // SAFETY: a name that ends; 0 is what it is without an interface.
    let ndev_ifindex = name.map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    let gid_type = if link_layer::is_infiniband() { IB } else { ROCE_V2 };
    Ok(GidEntry { gid, gid_index: index, port_num: port, gid_type, ndev_ifindex })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        if flags != 0 || size < size_of::<GidEntry>() {
            return Err(libc::EINVAL);
        }
        let found = gid_entry(context, port, index)?;
        // SAFETY: the verbs contract.
        unsafe { entry.write(found) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let result = code(|| {
        if flags != 0 || size != size_of::<GidEntry>() {
            return Err(libc::EINVAL);
        }
        // Empty entries are not told.
        let found = gid_entry(context, 1, gid_index::own().into())?;
        if most < 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: there is room for one, the verbs contract.
        unsafe { entries.write(found) };
        count = 1;
        Ok(())
    });
    if result == 0 { count } else { -(result as isize) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _: *mut Context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    minus_one(|| {
        if port != 1 || index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        unsafe { *to = PKEY.to_be() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_: *mut Context, port: u8, pkey: u16) -> c_int {
    if port == 1 && pkey == PKEY.to_be() { 0 } else { -1 }
}
