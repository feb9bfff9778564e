//! Shared receive queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use elver_verbs::{Device as _, Pd as PdHandle, Srq as Handle, SrqInit};

use crate::context::{self, Told};
use crate::engine::Engine;
use crate::errno::{code, guard, object, of_verbs};
use crate::layout::{Pd, RecvWr, Srq, SrqAttr, SrqInitAttr};
use crate::wr;

/// `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
    object(|| {
        // SAFETY: the verbs contract.
        let (init, context, domain) = unsafe { (&mut *init, (*pd).context, (*pd).handle) };
        let wanted = SrqInit {
            pd: PdHandle(domain),
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge.max(1),
        };
        let mut state = Engine::get()?.lock();
        let handle = state.device.create_srq(wanted).map_err(of_verbs)?;
        init.attr.max_sge = wanted.max_sge;
        // SAFETY: zero is a fresh mutex and condition on Linux, null, or a number.
        let mut srq: Box<Srq> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        srq.context = context;
        srq.srq_context = init.srq_context;
        srq.pd = pd;
        srq.handle = handle.0;
        let srq = Box::into_raw(srq);
        state.srqs.insert(handle, Told { context, element: srq.cast() });
        Ok(srq)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    code(|| {
        if mask & MAX_WR != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & LIMIT == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        let (handle, limit) = unsafe { (Handle((*srq).handle), (*attr).srq_limit) };
        Engine::get()?.lock().device.modify_srq(handle, limit).map_err(of_verbs)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { (*srq).handle });
        let found = Engine::get()?.lock().device.query_srq(handle).map_err(of_verbs)?;
        let found =
            SrqAttr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit };
        // SAFETY: the verbs contract.
        unsafe { *attr = found };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { (*srq).handle });
        let mut state = Engine::get()?.lock();
        state.device.destroy_srq(handle).map_err(of_verbs)?;
        if let Some(told) = state.srqs.remove(&handle) {
            context::forget(told);
        }
        // SAFETY: it is ours, and nothing knows it any more.
        drop(unsafe { Box::from_raw(srq) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(engine) = Engine::get() else { return libc::ENODEV };
        let mut state = engine.drive();
        // SAFETY: the verbs contract.
        unsafe {
            let handle = Handle((*srq).handle);
            wr::post_recvs(list, bad, |wr| state.device.post_srq_recv(handle, &[wr]))
        }
    })
}
