//! Completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use elver_verbs::{Cq as Handle, CqInit, Device as _, VerbsError, Wc as Done, WcFlags, WcOpcode};

use crate::channel::CqObject;
use crate::engine::{Engine, State};
use crate::errno::{code, guard, object, of_verbs};
use crate::layout::{CompChannel, Context, Cq, ModifyCqAttr, Wc};
use crate::link_layer;
use crate::owned::{OwnedCq, await_acks, given};
use crate::parents::Made;
use crate::timed::Timed;
use crate::told::{self, Told};
use crate::vain::rest;

/// `IBV_CQ_ATTR_MODERATE`.
const MODERATE: u32 = 1;
/// Completions taken from the device at once.
const BATCH: usize = 32;

/// Makes a CQ.
///
/// # Safety
/// The verbs contract of `ibv_create_cq`.
pub(crate) unsafe fn make(
    context: *mut Context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: u32,
) -> Result<*mut Cq, c_int> {
    let entries = c_int::try_from(cqe).map_err(|_| libc::EINVAL)?;
    if cqe == 0 || comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    let mut state = Engine::of(context)?.lock();
    let handle = state.device.create_cq(CqInit { cqe }).map_err(of_verbs)?;
    let mut owned = OwnedCq::new();
    owned.ex.context = context;
    owned.ex.channel = channel;
    owned.ex.cq_context = cq_context;
    owned.ex.handle = handle.0;
    owned.ex.cqe = entries;
    let cq: *mut Cq = Box::into_raw(owned).cast();
    cq.expose_provenance();
    // SAFETY: the caller's word; it changes under the lock alone.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.refcnt += 1;
    }
    let told = Told { context, element: cq.cast() };
    state.cqs.insert(handle, CqObject { told, channel });
    Ok(cq)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: c_int,
) -> *mut Cq {
    // What is negative is too much.
    // SAFETY: the verbs contract.
    object(|| unsafe { make(context, cqe as u32, cq_context, channel, comp_vector as u32) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (handle, channel) = unsafe { (Handle(given(cq)?.handle), (*cq).channel) };
        {
            let mut state = Engine::of(cq)?.lock();
            state.device.destroy_cq(handle).map_err(of_verbs)?;
            state.timed.remove(&handle);
            state.moderated.forget(handle);
            state.parents.ended(Made::Cq(handle));
            if let Some(object) = state.cqs.remove(&handle) {
                object.forget();
                told::forget(object.told);
            }
        }
        let owned = cq.cast::<OwnedCq>();
        // SAFETY: it is ours, and events of it come no more; the lock is free for who takes their channel.
        unsafe {
            let (mutex, cond) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
            let counts = [
                (&raw const (*cq).comp_events_completed, &(*owned).taken),
                (&raw const (*cq).async_events_completed, &(*owned).taken_async),
            ];
            await_acks(mutex, cond, &counts);
        }
        let _state = Engine::of(cq)?.lock();
        // SAFETY: the channel stays until this count is 0, and nothing knows the CQ any more.
        unsafe {
            if let Some(channel) = channel.as_mut() {
                channel.refcnt -= 1;
            }
            drop(Box::from_raw(owned));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    code(|| {
        let entries = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        // SAFETY: the verbs contract.
        let cq = unsafe { given(cq)? };
        let handle = Handle(cq.handle);
        let mut state = Engine::of(cq)?.lock();
        if state.timed.get(&handle).is_some_and(|timed| !timed.fits(entries as usize)) {
            return Err(libc::EINVAL);
        }
        state.device.resize_cq(handle, entries).map_err(of_verbs)?;
        if let Some(timed) = state.timed.get_mut(&handle) {
            timed.resize(entries as usize);
        }
        cq.cqe = cqe;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut Cq, attr: *mut ModifyCqAttr) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let (cq, attr) = unsafe { (given(cq)?, given(attr)?) };
        if attr.attr_mask & !MODERATE != 0 {
            return Err(libc::EINVAL);
        }
        let handle = Handle(cq.handle);
        let mut state = Engine::of(cq)?.lock();
        if !state.cqs.contains_key(&handle) {
            return Err(libc::EINVAL);
        }
        if attr.attr_mask == MODERATE {
            // Who stamps its completions counts them.
            let timed = state.timed.entry(handle);
            let seen = timed.or_insert_with(|| Timed::new(cq.cqe as usize)).seen();
            state.moderated.set(handle, seen, attr.moderate);
            state.tell();
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    code(|| {
        let engine = Engine::of(cq)?;
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(cq)? }.handle);
        let mut state = engine.lock();
        state.asked(handle);
        state.device.req_notify_cq(handle, solicited_only != 0).map_err(of_verbs)?;
        state.tell();
        drop(state);
        engine.watch();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut Cq, most: c_int, to: *mut Wc) -> c_int {
    guard(-1, || {
        let (Ok(engine), Ok(most)) = (Engine::of(cq), usize::try_from(most)) else { return -1 };
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { (*cq).handle });
        let mut state = engine.drive();
        let take = if most == 1 { take::<1> } else { take::<BATCH> };
        // SAFETY: the verbs contract: the program has room for `most`.
        let taken = unsafe { take(&mut state, handle, most, to) };
        let Ok(taken) = taken else { return -1 };
        state.tell();
        drop(state);
        rest(taken > 0);
        taken as c_int
    })
}

/// Takes completions, so many at a time. Room for many costs more to make ready than an empty look at a CQ.
///
/// # Safety
/// The program has room for `most`.
unsafe fn take<const ROOM: usize>(
    state: &mut State,
    cq: Handle,
    most: usize,
    to: *mut Wc,
) -> Result<usize, VerbsError> {
    let mut done = [Done::default(); ROOM];
    let mut taken = 0;
    while taken < most {
        let room = (most - taken).min(ROOM);
        let count = state.poll(cq, &mut done[..room])?;
        for (at, wc) in done[..count].iter().enumerate() {
            // SAFETY: the caller's word.
            unsafe { put(wc, to.add(taken + at)) };
        }
        taken += count;
        if count < room {
            break;
        }
    }
    Ok(taken)
}

/// `enum ibv_wc_opcode`.
pub(crate) fn form(opcode: WcOpcode) -> c_uint {
    match opcode {
        WcOpcode::Send => 0,
        WcOpcode::RdmaWrite => 1,
        WcOpcode::RdmaRead => 2,
        WcOpcode::CompSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::BindMw => 5,
        WcOpcode::LocalInv => 6,
        WcOpcode::Recv => 128,
        WcOpcode::RecvRdmaWithImm => 129,
    }
}

/// An immediate, in the network's order; or the key of a region that was invalidated, a number.
pub(crate) fn immediate(wc: &Done) -> u32 {
    if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm_data.to_be() } else { wc.imm_data }
}

/// Writes a completion in libibverbs' form.
///
/// # Safety
/// `to` can be written.
unsafe fn put(wc: &Done, to: *mut Wc) {
    let wc = Wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: form(wc.opcode),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: immediate(wc),
        qp_num: wc.qp_num,
        src_qp: wc.src_qp,
        wc_flags: wc.flags.bits(),
        pkey_index: 0,
        slid: link_layer::lid_of(&wc.src_gid),
        sl: 0,
        dlid_path_bits: 0,
    };
    // SAFETY: the caller's word.
    unsafe { ptr::write(to, wc) };
}
