//! What libmlx5 says of a device, and contexts that it opens.

use std::ffi::c_int;
use std::ptr;

use elver_verbs::Device as _;

use crate::context::ibv_open_device;
use crate::engine::Engine;
use crate::errno::{code, object};
use crate::layout::{Context as VerbsContext, Device};
use crate::mlx5::layout::{Context, ContextAttr, DciStreamsCaps};
use crate::odp;

/// `enum mlx5dv_context_comp_mask`.
const DC_ODP_CAPS: u64 = 1 << 7;
const DCI_STREAMS: u64 = 1 << 11;

/// Whether libmlx5's calls for DC are there: of our device they are.
#[unsafe(no_mangle)]
extern "C" fn mlx5dv_is_supported(device: *mut Device) -> bool {
    ptr::eq(device, crate::device::device())
}

/// A context, as any other of this device. There is no firmware to command (`MLX5DV_CONTEXT_FLAGS_DEVX`).
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_open_device(
    device: *mut Device,
    attr: *mut ContextAttr,
) -> *mut VerbsContext {
    object(|| {
        // SAFETY: the verbs contract: null, or attributes.
        let attr = unsafe { attr.as_ref() };
        if !mlx5dv_is_supported(device) || attr.is_some_and(|attr| attr.flags != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(libc::EINVAL);
        }
        // If it is null its reason stands in errno.
        // SAFETY: the verbs contract.
        Ok(unsafe { ibv_open_device(device) })
    })
}

/// Says of what was asked for by `comp_mask` what is there, and by `comp_mask` which of it that is. Nothing but
/// what was asked for is written: the structure grows from release to release.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_query_device(context: *mut VerbsContext, attr: *mut Context) -> c_int {
    code(|| {
        let streams = Engine::of(context)?.lock().device.query_device().max_dci_streams;
        if attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract; the caller's structure may be shorter than ours, and fields are
        // written one by one.
        unsafe {
            let asked = (*attr).comp_mask;
            (*attr).version = 0;
            (*attr).flags = 0;
            (*attr).comp_mask = asked & (DC_ODP_CAPS | DCI_STREAMS);
            if asked & DC_ODP_CAPS != 0 {
                (*attr).dc_odp_caps = odp::caps()[1] as u32;
            }
            if asked & DCI_STREAMS != 0 {
                let log = streams.checked_ilog2().unwrap_or(0) as u8;
                (*attr).dci_streams_caps =
                    DciStreamsCaps { max_log_num_concurent: log, max_log_num_errored: log };
            }
        }
        Ok(())
    })
}
