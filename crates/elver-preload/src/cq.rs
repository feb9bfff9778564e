//! Completion queues.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use elver_verbs::{Cq as Handle, CqInit, Device as _, Wc as Done, WcFlags, WcOpcode};

use crate::channel::CqObject;
use crate::context::{self, Told};
use crate::engine::Engine;
use crate::errno::{code, guard, object, of_verbs};
use crate::layout::{CompChannel, Context, Cq, Wc};

/// Completions taken from the device at once.
const BATCH: usize = 32;
/// Polls in a row that find nothing before a thread lets others run: some ten microseconds.
const EMPTY_POLLS: u32 = 32;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: c_int,
) -> *mut Cq {
    object(|| {
        if cqe < 1 || comp_vector != 0 {
            return Err(libc::EINVAL);
        }
        let mut state = Engine::get()?.lock();
        let handle = state.device.create_cq(CqInit { cqe: cqe as u32 }).map_err(of_verbs)?;
        // SAFETY: zero is a fresh mutex and condition on Linux, null, or a number.
        let mut cq: Box<Cq> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        cq.context = context;
        cq.channel = channel;
        cq.cq_context = cq_context;
        cq.handle = handle.0;
        cq.cqe = cqe;
        let cq = Box::into_raw(cq);
        cq.expose_provenance();
        if !channel.is_null() {
            // SAFETY: the verbs contract; it changes under the lock alone.
            unsafe { (*channel).refcnt += 1 };
        }
        let told = Told { context, element: cq.cast() };
        state.cqs.insert(handle, CqObject { told, channel });
        Ok(cq)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    code(|| {
        let mut state = Engine::get()?.lock();
        // SAFETY: the verbs contract.
        let (handle, channel) = unsafe { (Handle((*cq).handle), (*cq).channel) };
        state.device.destroy_cq(handle).map_err(of_verbs)?;
        if let Some(object) = state.cqs.remove(&handle) {
            object.forget();
            context::forget(object.told);
        }
        if !channel.is_null() {
            // SAFETY: it stays until this count is 0.
            unsafe { (*channel).refcnt -= 1 };
        }
        // SAFETY: it is ours, and nothing knows it any more.
        drop(unsafe { Box::from_raw(cq) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(_: *mut Cq, _: c_int) -> c_int {
    libc::EOPNOTSUPP
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    code(|| {
        let engine = Engine::get()?;
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { (*cq).handle });
        let mut state = engine.lock();
        state.device.req_notify_cq(handle, solicited_only != 0).map_err(of_verbs)?;
        state.tell();
        drop(state);
        engine.watch();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut Cq, most: c_int, to: *mut Wc) -> c_int {
    guard(-1, || {
        let (Ok(engine), Ok(most)) = (Engine::get(), usize::try_from(most)) else { return -1 };
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { (*cq).handle });
        let mut state = engine.drive();
        let mut done = [Done::default(); BATCH];
        let mut taken = 0;
        while taken < most {
            let room = (most - taken).min(BATCH);
            let Ok(count) = state.device.poll_cq(handle, &mut done[..room]) else { return -1 };
            for (at, wc) in done[..count].iter().enumerate() {
                // SAFETY: the program has room for `most`.
                unsafe { put(wc, to.add(taken + at)) };
            }
            taken += count;
            if count < room {
                break;
            }
        }
        state.tell();
        drop(state);
        rest(taken > 0);
        taken as c_int
    })
}

/// Lets others run, once a thread has polled for long in vain: the one that it waits for may need this core.
fn rest(found: bool) {
    thread_local! {
        static EMPTY: Cell<u32> = const { Cell::new(0) };
    }
    EMPTY.with(|empty| {
        empty.set(if found { 0 } else { empty.get().saturating_add(1) });
        if empty.get() > EMPTY_POLLS {
            std::thread::yield_now();
        }
    });
}

/// Writes a completion in libibverbs' form.
///
/// # Safety
/// `to` can be written.
unsafe fn put(wc: &Done, to: *mut Wc) {
    let opcode = match wc.opcode {
        WcOpcode::Send => 0,
        WcOpcode::RdmaWrite => 1,
        WcOpcode::RdmaRead => 2,
        WcOpcode::CompSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::BindMw => 5,
        WcOpcode::LocalInv => 6,
        WcOpcode::Recv => 128,
        WcOpcode::RecvRdmaWithImm => 129,
    };
    // An immediate is in the network's order; the key of a region that was invalidated is a number.
    let imm_data =
        if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm_data.to_be() } else { wc.imm_data };
    let wc = Wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qp_num,
        src_qp: wc.src_qp,
        wc_flags: wc.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    // SAFETY: the caller's word.
    unsafe { ptr::write(to, wc) };
}
