//! XRC: domains, the numbers of shared receive queues, and targets, which may be opened several times.
//!
//! A domain is of this process: peers name its queues, and other processes' devices have their own.

use std::ffi::{c_int, c_uint};
use std::os::fd::BorrowedFd;

use elver_verbs::{Qp as Handle, QpAttrMask, Xrcd as Domain};

use crate::engine::{Engine, State};
use crate::errno::{code, object, of_verbs};
use crate::layout::{Context, Pd, Qp, QpInitAttrEx, QpOpenAttr, Xrcd as XrcdBase, XrcdInitAttr};
use crate::owned::{OwnedQp, given};
use crate::staged::{Batch, Limits};
use crate::told::Told;
use crate::wr::XRC_SEND;
use crate::xrc_table::{File, Wanted};

/// `IBV_QPT_XRC_RECV`.
pub(crate) const XRC_RECV: c_uint = 10;
/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`, and the first that means nothing.
const FD: u32 = 1;
const OFLAGS: u32 = 2;
const XRCD_END: u32 = 4;
/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD`, `_CONTEXT` and `_TYPE`, and the first that means nothing.
const NUM: u32 = 1;
const XRCD: u32 = 2;
const CONTEXT: u32 = 4;
const TYPE: u32 = 8;
const OPEN_END: u32 = 16;

/// A domain, as a program has it.
#[repr(C)]
struct OwnedXrcd {
    base: XrcdBase,
    domain: Domain,
    file: Option<File>,
}

/// Attributes that an end of XRC has no use for, and that the kernel passes over.
pub(crate) fn ignored(qp_type: c_uint) -> QpAttrMask {
    match qp_type {
        XRC_SEND => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        XRC_RECV => QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY,
        _ => QpAttrMask::empty(),
    }
}

/// The domain that a program names.
///
/// # Safety
/// If it is not null, it came from `ibv_open_xrcd` and is not closed.
pub(crate) unsafe fn domain(xrcd: *mut XrcdBase) -> Result<Domain, c_int> {
    // SAFETY: the caller's word.
    Ok(unsafe { given(xrcd.cast::<OwnedXrcd>())? }.domain)
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut Context,
    init: *mut XrcdInitAttr,
) -> *mut XrcdBase {
    object(|| {
        // SAFETY: the verbs contract.
        let init = unsafe { given(init)? };
        if init.comp_mask >= XRCD_END {
            return Err(libc::EOPNOTSUPP);
        }
        if init.comp_mask != FD | OFLAGS {
            return Err(libc::EINVAL);
        }
        let file = match init.fd {
            -1 => None,
            fd if fd < 0 => return Err(libc::EBADF),
            fd => {
                // SAFETY: the verbs contract: it is open, or `fstat` says that it is not.
                let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
                let stat = stat.map_err(|error| error.raw_os_error())?;
                Some((stat.st_dev, stat.st_ino))
            }
        };
        let mut state = Engine::of(context)?.lock();
        let State { device, xrc, .. } = &mut *state;
        let wanted = Wanted {
            exclusive: init.oflags & libc::O_EXCL != 0,
            create: init.oflags & libc::O_CREAT != 0,
        };
        let domain = xrc.open_domain(file, wanted, || device.open_xrcd().map_err(of_verbs))?;
        let owned = OwnedXrcd { base: XrcdBase { context }, domain, file };
        let owned = Box::into_raw(Box::new(owned));
        xrc.opened(Told { context, element: owned.cast() }, domain, file);
        Ok(owned.cast())
    })
}

/// An object at this address stands for a domain no more.
pub(crate) fn close(
    state: &mut State,
    element: usize,
    domain: Domain,
    file: Option<File>,
) -> Result<(), c_int> {
    let State { device, xrc, .. } = state;
    xrc.close_domain(file, || device.close_xrcd(domain).map_err(of_verbs))?;
    xrc.closed(element);
    Ok(())
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut XrcdBase) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (domain, file, context) = unsafe {
            let owned = given(xrcd.cast::<OwnedXrcd>())?;
            (owned.domain, owned.file, owned.base.context)
        };
        let mut state = Engine::of(context)?.lock();
        close(&mut state, xrcd.addr(), domain, file)?;
        // SAFETY: it is ours.
        drop(unsafe { Box::from_raw(xrcd.cast::<OwnedXrcd>()) });
        Ok(())
    })
}

/// Makes a target, with the PD that the program takes for its own.
///
/// # Safety
/// The verbs contract of `ibv_create_qp_ex`.
pub(crate) unsafe fn make_target(
    context: *mut Context,
    init: &mut QpInitAttrEx,
    pd: *mut Pd,
) -> Result<*mut Qp, c_int> {
    // SAFETY: the caller's word.
    let domain = unsafe { domain(init.xrcd)? };
    let mut state = Engine::of(context)?.lock();
    let handle = state.device.create_xrc_target(domain).map_err(of_verbs)?;
    state.xrc.add_target(handle, domain);
    init.cap.max_recv_wr = 0;
    init.cap.max_send_wr = 0;
    let made = stand_for(&mut state, context, handle)?;
    // SAFETY: it was just made.
    unsafe { ((*made).qp_context, (*made).pd) = (init.qp_context, pd) };
    Ok(made)
}

/// Another object for a target that somebody made in the domain.
pub(crate) unsafe extern "C" fn open_qp(context: *mut Context, attr: *mut QpOpenAttr) -> *mut Qp {
    object(|| {
        // SAFETY: the verbs contract.
        let attr = unsafe { given(attr)? };
        if attr.comp_mask >= OPEN_END {
            return Err(libc::EOPNOTSUPP);
        }
        let needed = NUM | XRCD | TYPE;
        if attr.comp_mask & needed != needed || attr.qp_type != XRC_RECV {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        let domain = unsafe { domain(attr.xrcd)? };
        let mut state = Engine::of(context)?.lock();
        // A target's number is its handle.
        let handle = Handle(attr.qp_num);
        if !state.xrc.has_target(handle, domain) {
            return Err(libc::EINVAL);
        }
        let opened = stand_for(&mut state, context, handle)?;
        if attr.comp_mask & CONTEXT != 0 {
            // SAFETY: it was just made.
            unsafe { (*opened).qp_context = attr.qp_context };
        }
        Ok(opened)
    })
}

/// An object for a target.
fn stand_for(state: &mut State, context: *mut Context, handle: Handle) -> Result<*mut Qp, c_int> {
    let (attr, _) = elver_verbs::Device::query_qp(&state.device, handle).map_err(of_verbs)?;
    let mut owned = OwnedQp::new(Batch::new(Limits::default()));
    let qp = &mut owned.ex.qp_base;
    qp.context = context;
    qp.handle = handle.0;
    qp.qp_num = elver_verbs::Device::qp_num(&state.device, handle).map_err(of_verbs)?;
    qp.qp_type = XRC_RECV;
    qp.state = attr.qp_state as c_uint;
    let qp: *mut Qp = Box::into_raw(owned).cast();
    let told = Told { context, element: qp.cast() };
    state.xrc.add_object(handle, told);
    state.qps.entry(handle).or_insert(told);
    Ok(qp)
}
