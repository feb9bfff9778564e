//! Queue pairs.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use elver_verbs::{
    Cq as CqHandle, Device as _, Mtu, Pd as PdHandle, Qp as Handle, QpAttr as Attr, QpAttrMask,
    QpCap as Cap, QpInit, QpState, QpType, Srq as SrqHandle,
};

use crate::ah::{attr as ah_attr, vector};
use crate::direct::{Run, destination};
use crate::engine::{Engine, State};
use crate::errno::{code, guard, object, of_verbs};
use crate::layout::{Pd, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr};
use crate::owned::{OwnedQp, await_acks, given};
use crate::parents::Made;
use crate::region::rights_of_qp;
use crate::service::Service;
use crate::staged::{Batch, Limits};
use crate::told::{self, Told};
use crate::wr::INLINE;
use crate::{wr, xrc};

/// `IBV_QPT_DRIVER`: what a provider has besides.
pub(crate) const DRIVER: c_uint = 0xff;
/// The inline bytes that lie in the place of an SGE.
const INLINE_OF_SGE: u32 = 16;

fn cap(cap: &QpCap) -> Cap {
    Cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) fn cap_back(cap: &Cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The transport of a number of `enum ibv_qp_type`.
pub(crate) fn type_of(qp_type: c_uint) -> Result<QpType, c_int> {
    match qp_type {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        wr::UD => Ok(QpType::Ud),
        wr::XRC_SEND => Ok(QpType::XrcSend),
        // Raw packets, and what a driver has: they are known, and not there. Targets of XRC are made elsewhere.
        8 | 10 | DRIVER => Err(libc::EOPNOTSUPP),
        _ => Err(libc::EINVAL),
    }
}

/// Makes a QP.
///
/// # Safety
/// The verbs contract of `ibv_create_qp`.
pub(crate) unsafe fn make(pd: *mut Pd, init: &mut QpInitAttr) -> Result<*mut Qp, c_int> {
    let qp_type = type_of(init.qp_type)?;
    // SAFETY: the caller's word.
    unsafe { make_of(pd, init, qp_type, |_| ()) }
}

/// Makes a QP of a type, with what a structure of another library says of it besides.
///
/// # Safety
/// As [`make`].
pub(crate) unsafe fn make_of(
    pd: *mut Pd,
    init: &mut QpInitAttr,
    qp_type: QpType,
    besides: impl FnOnce(&mut QpInit),
) -> Result<*mut Qp, c_int> {
    // SAFETY: the caller's word.
    let (mut wanted, context) = unsafe {
        let domain = given(pd)?;
        let wanted = QpInit {
            send_cq: CqHandle(given(init.send_cq)?.handle),
            // An XRC initiator receives nothing.
            recv_cq: match qp_type {
                QpType::XrcSend => CqHandle(given(init.send_cq)?.handle),
                _ => CqHandle(given(init.recv_cq)?.handle),
            },
            srq: init.srq.as_ref().map(|srq| SrqHandle(srq.handle)),
            cap: cap(&init.cap),
            sq_sig_all: init.sq_sig_all != 0,
            ..QpInit::new(qp_type, PdHandle(domain.handle), CqHandle(0))
        };
        (wanted, domain.context)
    };
    besides(&mut wanted);
    // Inline data takes the place of SGEs, as in providers, whatever is asked for: programs rely on that.
    let room = wanted.cap.max_send_sge.saturating_mul(INLINE_OF_SGE).min(INLINE as u32);
    wanted.cap.max_inline_data = wanted.cap.max_inline_data.max(room);
    let mut state = Engine::of(pd)?.lock();
    let handle = state.device.create_qp(wanted).map_err(of_verbs)?;
    let given = state.device.query_qp(handle).map_err(of_verbs)?;
    // A DCT gets its number later.
    let qp_num = state.device.qp_num(handle).unwrap_or(0);
    init.cap = cap_back(&given.1.cap);
    let limits = Limits {
        wrs: init.cap.max_send_wr as usize,
        sges: init.cap.max_send_sge as usize,
        inline: init.cap.max_inline_data as usize,
    };
    let mut owned = OwnedQp::new(Batch::new(limits));
    let qp = &mut owned.ex.qp_base;
    qp.context = context;
    qp.qp_context = init.qp_context;
    qp.pd = pd;
    qp.send_cq = init.send_cq;
    qp.recv_cq = init.recv_cq;
    qp.srq = init.srq;
    qp.handle = handle.0;
    qp.qp_num = qp_num;
    qp.qp_type = init.qp_type;
    let qp: *mut Qp = Box::into_raw(owned).cast();
    state.qps.insert(handle, Told { context, element: qp.cast() });
    state.parents.made(Made::Qp(handle), pd);
    Ok(qp)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the verbs contract.
    object(|| unsafe { make(pd, given(init)?) })
}

/// Ends a QP that nobody reaches directly any more, or one of the objects that stand for a target of XRC, which may have
/// been opened several times.
pub(crate) fn end(state: &mut State, handle: Handle, object: *mut Qp) -> Result<(), c_int> {
    if !state.xrc.is_shared(handle) {
        // A DCT has its number in RTR alone.
        let qp_num = state.device.qp_num(handle);
        state.device.destroy_qp(handle).map_err(of_verbs)?;
        state.direct.forget(handle);
        state.parents.ended(Made::Qp(handle));
        state.services.remove(&handle);
        if let Ok(qp_num) = qp_num {
            state.timed.values_mut().for_each(|timed| timed.forget(qp_num));
        }
    }
    // One that has other objects stays.
    state.direct.release(handle);
    match state.xrc.close(handle, object) {
        Some(other) => state.qps.insert(handle, other),
        None => state.qps.remove(&handle),
    };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, qp_num) = unsafe { (Handle(given(qp)?.handle), (*qp).qp_num) };
        {
            let engine = Engine::of(qp)?;
            engine.close_to_peers(handle, qp_num)?;
            let mut state = engine.lock();
            end(&mut state, handle, qp).inspect_err(|_| state.direct.release(handle))?;
            // SAFETY: the verbs contract.
            let context = unsafe { (*qp).context };
            told::forget(Told { context, element: qp.cast() });
        }
        let owned = qp.cast::<OwnedQp>();
        // SAFETY: it is ours, and events of it come no more; then nothing knows it.
        unsafe {
            let (mutex, cond) = (&raw mut (*qp).mutex, &raw mut (*qp).cond);
            let counts = [(&raw const (*qp).events_completed, &(*owned).taken_async)];
            await_acks(mutex, cond, &counts);
            drop(Box::from_raw(owned));
        }
        Ok(())
    })
}

/// Tells the peer of a QP that has changed what he may do himself, and finds him, who may do the same.
///
/// # Safety
/// `qp` is the program's, alive.
unsafe fn connect(engine: &Engine, qp: *mut OwnedQp, handle: Handle) {
    let Some(hub) = &engine.hub else { return };
    let dest = destination(&engine.lock().device, handle);
    // He may have to be asked, and answers without his device in hand.
    let peer = dest.and_then(|dest| hub.peer(dest));
    let mut state = engine.lock();
    let State { device, direct, .. } = &mut *state;
    device.count_direct_refused(0, hub.take_refused());
    let numbers = direct.tell_qp(device, handle);
    let link = peer.zip(numbers).and_then(|(peer, numbers)| direct.link(peer, numbers));
    // SAFETY: the caller's word; the lock is held.
    unsafe { (*qp).link = link };
}

/// The most that packets and hardware count, which the kernel leaves to them: more is refused by neither.
const RETRIES: u8 = 7;
/// Bits of an RNR timer: of a larger code they are what is sent, by rdma_rxe and by hardware. DLSlime has 32.
const RNR_TIMER: u8 = 0x1f;

fn state_of(code: c_uint) -> Result<QpState, c_int> {
    QpState::ALL.get(code as usize).copied().ok_or(libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    code(|| {
        let mask = QpAttrMask::from_bits(mask as u32).ok_or(libc::EINVAL)?;
        // SAFETY: the verbs contract.
        let (handle, given) = unsafe { (Handle(given(qp)?.handle), &*given(attr)?) };
        // SAFETY: as above.
        let (qp_num, qp_type) = unsafe { ((*qp).qp_num, (*qp).qp_type) };
        let mask = mask - xrc::ignored(qp_type);
        let has = |flag| mask.contains(flag);
        let mut wanted = Attr {
            en_sqd_async_notify: given.en_sqd_async_notify != 0,
            pkey_index: given.pkey_index,
            port_num: given.port_num,
            qkey: given.qkey,
            timeout: given.timeout,
            retry_cnt: given.retry_cnt.min(RETRIES),
            rnr_retry: given.rnr_retry.min(RETRIES),
            rq_psn: given.rq_psn & 0xff_ffff,
            sq_psn: given.sq_psn & 0xff_ffff,
            max_rd_atomic: given.max_rd_atomic,
            max_dest_rd_atomic: given.max_dest_rd_atomic,
            min_rnr_timer: given.min_rnr_timer & RNR_TIMER,
            dest_qp_num: given.dest_qp_num,
            cap: cap(&given.cap),
            ..Attr::default()
        };
        if has(QpAttrMask::STATE) {
            wanted.qp_state = state_of(given.qp_state)?;
        }
        if has(QpAttrMask::CUR_STATE) {
            wanted.cur_qp_state = state_of(given.cur_qp_state)?;
        }
        if has(QpAttrMask::ACCESS_FLAGS) {
            wanted.qp_access_flags = rights_of_qp(given.qp_access_flags)?;
        }
        if has(QpAttrMask::PATH_MTU) {
            let code = u8::try_from(given.path_mtu).map_err(|_| libc::EINVAL)?;
            wanted.path_mtu = Mtu::from_code(code).ok_or(libc::EINVAL)?;
        }
        let engine = Engine::of(qp)?;
        if has(QpAttrMask::AV) {
            wanted.ah_attr = vector(&given.ah_attr, engine.lock().device.address())?;
        }
        engine.close_to_peers(handle, qp_num)?;
        let mut state = engine.lock();
        let modified = state.device.modify_qp(handle, &wanted, mask).map_err(of_verbs);
        state.direct.release(handle);
        drop(state);
        // SAFETY: the verbs contract.
        unsafe { connect(engine, qp.cast(), handle) };
        modified?;
        let mut state = engine.lock();
        if has(QpAttrMask::AV) {
            state.services.insert(handle, Service::of(&given.ah_attr));
        }
        if has(QpAttrMask::STATE) {
            // SAFETY: the verbs contract.
            unsafe {
                (*qp).state = given.qp_state;
                // A DCT has it in RTR alone.
                (*qp).qp_num = state.device.qp_num(handle).unwrap_or(0);
            }
            // The device forgets its own.
            if wanted.qp_state == QpState::Reset {
                state.services.remove(&handle);
                state.timed.values_mut().for_each(|timed| timed.forget(qp_num));
            }
        }
        // To ERR, what is outstanding is flushed, and somebody may wait for that.
        state.tell();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    _: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, object) = unsafe { (Handle(given(qp)?.handle), given(qp)?) };
        let state = Engine::of(qp)?.lock();
        let (now, made) = state.device.query_qp(handle).map_err(of_verbs)?;
        let service = state.services.get(&handle).copied().unwrap_or_default();
        drop(state);
        // SAFETY: numbers may be zero.
        let mut all: QpAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        all.qp_state = now.qp_state as c_uint;
        all.cur_qp_state = now.qp_state as c_uint;
        all.path_mtu = now.path_mtu.code().into();
        all.qkey = now.qkey;
        all.rq_psn = now.rq_psn;
        all.sq_psn = now.sq_psn;
        all.dest_qp_num = now.dest_qp_num;
        all.qp_access_flags = now.qp_access_flags.bits();
        all.cap = cap_back(&made.cap);
        all.ah_attr = ah_attr(&now.ah_attr);
        service.tell(&mut all.ah_attr);
        all.pkey_index = now.pkey_index;
        all.en_sqd_async_notify = now.en_sqd_async_notify.into();
        all.sq_draining = now.sq_draining.into();
        all.max_rd_atomic = now.max_rd_atomic;
        all.max_dest_rd_atomic = now.max_dest_rd_atomic;
        all.min_rnr_timer = now.min_rnr_timer;
        all.port_num = now.port_num;
        all.timeout = now.timeout;
        all.retry_cnt = now.retry_cnt;
        all.rnr_retry = now.rnr_retry;
        object.state = all.qp_state;
        let made = QpInitAttr {
            qp_context: object.qp_context,
            send_cq: object.send_cq,
            recv_cq: object.recv_cq,
            srq: object.srq,
            cap: all.cap,
            qp_type: object.qp_type,
            sq_sig_all: made.sq_sig_all.into(),
        };
        // SAFETY: the verbs contract.
        unsafe {
            *given(attr)? = all;
            *given(init)? = made;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut Qp,
    list: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(engine) = Engine::of(qp) else {
            // SAFETY: the verbs contract.
            return unsafe { wr::refuse(list, bad, libc::ENODEV) };
        };
        let mut state = engine.lock();
        // SAFETY: the verbs contract.
        let result = unsafe {
            let handle = Handle((*qp).handle);
            let names = wr::Names::of((*qp).qp_type);
            let State { device, direct, posts, .. } = &mut *state;
            match (&(*qp.cast::<OwnedQp>()).link, posts) {
                (Some(link), None) => {
                    let mut run = Run::begin(device, &mut direct.stage, link, handle);
                    let result = wr::post_sends(list, bad, names, |wr| run.post(&wr));
                    run.end();
                    result
                }
                (_, Some(posts)) => {
                    wr::post_sends(list, bad, names, |wr| posts.post(device, handle, &wr))
                }
                (None, None) => {
                    wr::post_sends(list, bad, names, |wr| device.post_send(handle, &[wr]))
                }
            }
        };
        state.tell();
        result
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    guard(libc::EIO, || {
        let Ok(engine) = Engine::of(qp) else {
            // SAFETY: the verbs contract.
            return unsafe { wr::refuse(list, bad, libc::ENODEV) };
        };
        let mut state = engine.lock();
        // SAFETY: the verbs contract.
        let result = unsafe {
            let handle = Handle((*qp).handle);
            wr::post_recvs(list, bad, |wr| state.device.post_recv(handle, &[wr]))
        };
        // Receives posted in ERR are flushed at once.
        state.tell();
        result
    })
}
