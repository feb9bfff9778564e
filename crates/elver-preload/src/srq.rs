//! Shared receive queues.

use std::ffi::{c_int, c_uint};

use elver_soft::SoftDevice;
use elver_verbs::{
    Cq as CqHandle, Device as _, Pd as PdHandle, Srq as Handle, SrqInit, VerbsError,
};

use crate::engine::Engine;
use crate::errno::{code, guard, object, of_verbs};
use crate::layout::{Context, Pd, RecvWr, Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx};
use crate::owned::{OwnedSrq, await_acks, given};
use crate::parents::Made;
use crate::told::{self, Told};
use crate::{wr, xrc};

/// `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
/// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD` and `_CQ`, and `IBV_SRQT_BASIC` and `_XRC`.
const TYPE: u32 = 1;
const PD: u32 = 2;
const XRCD: u32 = 4;
const CQ: u32 = 8;
const BASIC: c_uint = 0;
const XRC: c_uint = 1;

/// Makes an SRQ.
///
/// # Safety
/// The verbs contract of `ibv_create_srq`.
unsafe fn make(
    pd: *mut Pd,
    init: &mut SrqInitAttr,
    create: impl FnOnce(&mut SoftDevice, SrqInit) -> Result<Handle, VerbsError>,
) -> Result<*mut Srq, c_int> {
    // SAFETY: the caller's word.
    let (context, domain) = unsafe { (given(pd)?.context, (*pd).handle) };
    let wanted = SrqInit {
        pd: PdHandle(domain),
        max_wr: init.attr.max_wr,
        max_sge: init.attr.max_sge.max(1),
    };
    let mut state = Engine::of(pd)?.lock();
    let handle = create(&mut state.device, wanted).map_err(of_verbs)?;
    init.attr.max_sge = wanted.max_sge;
    let mut owned = OwnedSrq::new();
    owned.srq.context = context;
    owned.srq.srq_context = init.srq_context;
    owned.srq.pd = pd;
    owned.srq.handle = handle.0;
    let srq: *mut Srq = Box::into_raw(owned).cast();
    state.srqs.insert(handle, Told { context, element: srq.cast() });
    state.parents.made(Made::Srq(handle), pd);
    Ok(srq)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
    // SAFETY: the verbs contract.
    object(|| unsafe { make(pd, given(init)?, SoftDevice::create_srq) })
}

/// Of basic SRQs and those of XRC; those that match tags are not there.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut Context,
    init: *mut SrqInitAttrEx,
) -> *mut Srq {
    object(|| {
        // SAFETY: the verbs contract.
        let init = unsafe { given(init)? };
        let mask = init.comp_mask;
        let srq_type = if mask & TYPE == 0 { BASIC } else { init.srq_type };
        if mask & !(TYPE | PD | XRCD | CQ) != 0 || srq_type > XRC {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & PD == 0 || srq_type == XRC && mask & (XRCD | CQ) != XRCD | CQ {
            return Err(libc::EINVAL);
        }
        let (pd, xrcd, cq) = (init.pd, init.xrcd, init.cq);
        // SAFETY: it begins as `ibv_srq_init_attr` does.
        let basic = unsafe { &mut *std::ptr::from_mut(init).cast() };
        if srq_type == BASIC {
            // SAFETY: the verbs contract.
            return unsafe { make(pd, basic, SoftDevice::create_srq) };
        }
        // SAFETY: the verbs contract.
        let (domain, cq) = unsafe { (xrc::domain(xrcd)?, CqHandle(given(cq)?.handle)) };
        // SAFETY: the verbs contract.
        let made =
            unsafe { make(pd, basic, |device, wanted| device.create_xrc_srq(wanted, domain, cq)) }?;
        // SAFETY: it was just made.
        let handle = Handle(unsafe { (*made).handle });
        Engine::of(made)?.lock().xrc.add_srq(handle);
        Ok(made)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    code(|| {
        if mask & !(MAX_WR | LIMIT) != 0 || mask == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        let (handle, attr) = unsafe { (Handle(given(srq)?.handle), &*given(attr)?) };
        let mut state = Engine::of(srq)?.lock();
        let before = state.device.query_srq(handle).map_err(of_verbs)?;
        if mask & MAX_WR != 0 {
            state.device.resize_srq(handle, attr.max_wr).map_err(of_verbs)?;
        }
        if mask & LIMIT != 0
            && let Err(error) = state.device.modify_srq(handle, attr.srq_limit)
        {
            // Nothing is changed by half; what it had before fits.
            state.device.resize_srq(handle, before.max_wr).map_err(of_verbs)?;
            return Err(of_verbs(error));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(srq)? }.handle);
        let found = Engine::of(srq)?.lock().device.query_srq(handle).map_err(of_verbs)?;
        let found =
            SrqAttr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit };
        // SAFETY: the verbs contract.
        unsafe { *given(attr)? = found };
        Ok(())
    })
}

/// A number that no other SRQ of the device has: peers name one of XRC by it. Of a basic one nobody needs it;
/// programs over DC ask all the same.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut Srq, number: *mut u32) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        unsafe { *given(number)? = given(srq)?.handle };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(srq)? }.handle);
        {
            let mut state = Engine::of(srq)?.lock();
            state.device.destroy_srq(handle).map_err(of_verbs)?;
            state.xrc.remove_srq(handle);
            state.parents.ended(Made::Srq(handle));
            if let Some(told) = state.srqs.remove(&handle) {
                told::forget(told);
            }
        }
        let owned = srq.cast::<OwnedSrq>();
        // SAFETY: it is ours, and events of it come no more; then nothing knows it.
        unsafe {
            let (mutex, cond) = (&raw mut (*srq).mutex, &raw mut (*srq).cond);
            let counts = [(&raw const (*srq).events_completed, &(*owned).taken_async)];
            await_acks(mutex, cond, &counts);
            drop(Box::from_raw(owned));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(engine) = Engine::of(srq) else {
            // SAFETY: the verbs contract.
            return unsafe { wr::refuse(list, bad, libc::ENODEV) };
        };
        let mut state = engine.lock();
        // SAFETY: the verbs contract.
        unsafe {
            let handle = Handle((*srq).handle);
            wr::post_recvs(list, bad, |wr| state.device.post_srq_recv(handle, &[wr]))
        }
    })
}
