//! Memory windows.

use std::ffi::{c_int, c_uint};

use elver_verbs::{
    AccessFlags, BindMw, Device as _, Mr as MrHandle, Mw as Handle, Payload, Pd as PdHandle,
    Qp as QpHandle, SendFlags, SendOp, SendWr,
};

use crate::engine::Engine;
use crate::errno::{code, object, of_post, of_verbs};
use crate::layout::{Mw, MwBind, MwBindInfo, Pd, Qp};
use crate::owned::given;
use crate::parents::Made;
use crate::told::Told;

/// `IBV_MW_TYPE_1` and `_2`.
const TYPE_1: c_uint = 1;
const TYPE_2: c_uint = 2;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut Pd, mw_type: c_uint) -> *mut Mw {
    object(|| {
        // SAFETY: the verbs contract.
        let (context, domain) = unsafe { (given(pd)?.context, PdHandle((*pd).handle)) };
        let mut state = Engine::of(pd)?.lock();
        let info = match mw_type {
            TYPE_1 => state.device.alloc_mw_type_1(domain),
            TYPE_2 => state.device.alloc_mw(domain),
            _ => return Err(libc::EINVAL),
        };
        let info = info.map_err(of_verbs)?;
        let mw = Mw { context, pd, rkey: info.rkey, handle: info.mw.0, r#type: mw_type };
        let window = Box::into_raw(Box::new(mw));
        state.mws.insert(info.mw, Told { context, element: window.cast() });
        state.parents.made(Made::Mw(info.mw), pd);
        Ok(window)
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(mw)? }.handle);
        let mut state = Engine::of(mw)?.lock();
        state.device.dealloc_mw(handle).map_err(of_verbs)?;
        state.mws.remove(&handle);
        state.parents.ended(Made::Mw(handle));
        // SAFETY: it is ours.
        drop(unsafe { Box::from_raw(mw) });
        Ok(())
    })
}

/// The device's form of a bind.
///
/// # Safety
/// The verbs contract of `ibv_post_send`.
unsafe fn bind_of(mw: *mut Mw, rkey: u32, info: &MwBindInfo) -> Result<BindMw, c_int> {
    // A window's owner does not reach his memory through it, so that his own rights say nothing.
    let rights = info.mw_access_flags & !AccessFlags::LOCAL_WRITE.bits();
    let access = AccessFlags::from_bits(rights).ok_or(libc::EINVAL)?;
    // SAFETY: the caller's word.
    let (mw, mr) = unsafe { (given(mw)?, info.mr.as_ref()) };
    if mr.is_none() && (info.addr != 0 || info.length != 0) {
        return Err(libc::EINVAL);
    }
    let mr = MrHandle(mr.map_or(0, |mr| mr.handle));
    Ok(BindMw { mw: Handle(mw.handle), rkey, mr, addr: info.addr, length: info.length, access })
}

/// The same of a WR, which binds windows of type 2 alone: those of type 1 have a call of their own.
///
/// # Safety
/// The verbs contract of `ibv_post_send`.
pub(crate) unsafe fn posted_bind_of(
    mw: *mut Mw,
    rkey: u32,
    info: &MwBindInfo,
) -> Result<BindMw, c_int> {
    // SAFETY: the caller's word.
    unsafe {
        if given(mw)?.r#type != TYPE_2 {
            return Err(libc::EINVAL);
        }
        bind_of(mw, rkey, info)
    }
}

/// Binds a window of type 1: its next rkey is drawn here, and stands in it when this returns.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (qp, window, bind) = unsafe { (given(qp)?, given(mw)?, given(bind)?) };
        if window.r#type != TYPE_1 {
            return Err(libc::EINVAL);
        }
        let rkey = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
        // SAFETY: as above.
        let op = SendOp::BindMw(unsafe { bind_of(mw, rkey, &bind.bind_info)? });
        let flags = SendFlags::from_bits_truncate(bind.send_flags as u8);
        let wr = SendWr { wr_id: bind.wr_id, op, flags, payload: Payload::Sges(&[]), dest: None };
        let mut state = Engine::of(qp)?.lock();
        let posted = state.device.post_send(QpHandle(qp.handle), &[wr]);
        posted.map_err(|(_, error)| of_post(error))?;
        state.tell();
        window.rkey = rkey;
        Ok(())
    })
}
