//! Extended CQs: completions that are looked at one by one, each field by a call (`ibv_create_cq_ex`(3)).

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr;

use elver_verbs::{Cq as Handle, Device as _, Wc as Done};

use crate::cq::{self, form, immediate};
use crate::engine::Engine;
use crate::errno::{guard, object};
use crate::layout::{Context, CqEx, CqInitAttrEx, PollCqAttr};
use crate::link_layer;
use crate::owned::{OwnedCq, Turn, given};
use crate::parents::Made;
use crate::timed::{Stamp, Timed};
use crate::vain::rest;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
const FLAGS: u32 = 1;
const PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`, and `_WALLCLOCK`.
const RAW: u64 = 1 << 7;
const WALL: u64 = 1 << 11;
/// What completions can tell, from `IBV_WC_EX_WITH_BYTE_LEN` to `_DLID_PATH_BITS`, and when: there are no
/// VLANs, flows or tags.
const TOLD: u64 = 0x7f | RAW | WALL;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    init: *mut CqInitAttrEx,
) -> *mut CqEx {
    object(|| {
        // SAFETY: the verbs contract.
        let init = unsafe { given(init)? };
        let flags = if init.comp_mask & FLAGS == 0 { 0 } else { init.flags };
        if init.comp_mask & !(FLAGS | PD) != 0
            || flags & !SINGLE_THREADED != 0
            || init.wc_flags & !TOLD != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        if init.comp_mask & PD != 0 && init.parent_domain.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract.
        let made = unsafe {
            cq::make(context, init.cqe, init.cq_context, init.channel, init.comp_vector)?
        };
        let made = made.cast::<OwnedCq>();
        // SAFETY: it was just made.
        let ex = unsafe { &mut (*made).ex };
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_vendor_err);
        let asked = |flag: u64| init.wc_flags & flag != 0;
        ex.read_byte_len = asked(1).then_some(read_byte_len);
        ex.read_imm_data = asked(1 << 1).then_some(read_imm_data);
        ex.read_qp_num = asked(1 << 2).then_some(read_qp_num);
        ex.read_src_qp = asked(1 << 3).then_some(read_src_qp);
        ex.read_slid = asked(1 << 4).then_some(read_slid);
        ex.read_sl = asked(1 << 5).then_some(read_nothing);
        ex.read_dlid_path_bits = asked(1 << 6).then_some(read_nothing);
        ex.read_wc_flags = Some(read_wc_flags);
        ex.read_completion_ts = asked(RAW).then_some(read_raw);
        ex.read_completion_wallclock_ns = asked(WALL).then_some(read_wall);
        let mut state = Engine::of(context)?.lock();
        if asked(RAW | WALL) {
            let timed = Timed::new(ex.cqe as usize);
            state.timed.insert(Handle(ex.handle), timed);
        }
        if init.comp_mask & PD != 0 {
            state.parents.made(Made::Cq(Handle(ex.handle)), init.parent_domain);
        }
        Ok(ptr::from_mut(ex))
    })
}

/// Takes the next completion; there may be none.
///
/// # Safety
/// The verbs contract: the CQ is this thread's to poll.
unsafe fn advance(cq: *mut CqEx) -> c_int {
    guard(libc::EIO, || {
        let Ok(engine) = Engine::of(cq) else { return libc::ENODEV };
        // SAFETY: the caller's word.
        let handle = Handle(unsafe { (*cq).handle });
        let mut state = engine.drive();
        let found = match state.timed.contains_key(&handle) {
            true => Ok(state.poll_timed(handle)),
            false => {
                let mut done = [Done::default()];
                let polled = state.device.poll_cq(handle, &mut done);
                polled.map(|count| (count > 0).then_some((done[0], Stamp::default())))
            }
        };
        state.tell();
        drop(state);
        rest(matches!(found, Ok(Some(_))));
        match found {
            Ok(None) => libc::ENOENT,
            Ok(Some((done, stamp))) => {
                // SAFETY: extended CQs of ours stand at the beginning of an `OwnedCq`.
                let owned = unsafe { &mut *cq.cast::<OwnedCq>() };
                (owned.done, owned.stamp) = (done, stamp);
                owned.ex.status = done.status as c_uint;
                owned.ex.wr_id = done.wr_id;
                0
            }
            Err(_) => libc::EINVAL,
        }
    })
}

/// Whose turn it is at this CQ.
///
/// # Safety
/// The verbs contract.
unsafe fn turn<'a>(cq: *mut CqEx) -> &'a Turn {
    const { assert!(offset_of!(OwnedCq, ex) == 0) };
    // SAFETY: extended CQs of ours stand at the beginning of an `OwnedCq`.
    unsafe { &(*cq.cast::<OwnedCq>()).turn }
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    // SAFETY: the verbs contract.
    unsafe {
        if attr.as_ref().is_none_or(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        turn(cq).begin();
        let result = advance(cq);
        if result != 0 {
            turn(cq).end();
        }
        result
    }
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: the verbs contract: between `ibv_start_poll` and `ibv_end_poll`.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    // SAFETY: the verbs contract.
    unsafe { turn(cq) }.end();
}

macro_rules! fields {
    ($($name:ident: $of:ty = |$done:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut CqEx) -> $of {
            // SAFETY: the verbs contract; extended CQs of ours stand at the beginning of an `OwnedCq`.
            let $done = unsafe { &(*cq.cast::<OwnedCq>()).done };
            $value
        }
    )*};
}

fields! {
    read_opcode: c_uint = |done| form(done.opcode);
    read_vendor_err: u32 = |done| done.vendor_err;
    read_byte_len: u32 = |done| done.byte_len;
    read_imm_data: u32 = |done| immediate(done);
    read_qp_num: u32 = |done| done.qp_num;
    read_src_qp: u32 = |done| done.src_qp;
    read_wc_flags: c_uint = |done| done.flags.bits();
}

/// When it was seen, in nanoseconds of the clock that `ibv_query_rt_values_ex` reads.
unsafe extern "C" fn read_raw(cq: *mut CqEx) -> u64 {
    // SAFETY: as in `fields!`.
    unsafe { (*cq.cast::<OwnedCq>()).stamp.raw }
}

/// The same, since 1970.
unsafe extern "C" fn read_wall(cq: *mut CqEx) -> u64 {
    // SAFETY: as in `fields!`.
    unsafe { (*cq.cast::<OwnedCq>()).stamp.wall }
}

unsafe extern "C" fn read_slid(cq: *mut CqEx) -> u32 {
    // SAFETY: as in `fields!`.
    link_layer::lid_of(unsafe { &(*cq.cast::<OwnedCq>()).done.src_gid }).into()
}

unsafe extern "C" fn read_nothing(_: *mut CqEx) -> u8 {
    0
}
