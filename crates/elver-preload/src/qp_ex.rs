//! Extended QPs: send WRs that are made call by call, and posted together (`ibv_wr_start`(3)).

use std::ffi::{c_int, c_void};
use std::ptr;

use elver_verbs::{
    Ah as AhHandle, Dest, Device as _, Qp as Handle, QpInit, QpType, RemoteAddr, SendFlags, SendOp,
    SendOpcode, Sge as Piece,
};

use crate::direct::Run;
use crate::engine::{Engine, State};
use crate::errno::{guard, object, of_post};
use crate::layout::{Ah, Context, DataBuf, Mw, MwBindInfo, Qp, QpEx, QpInitAttrEx, Sge};
use crate::mw::posted_bind_of;
use crate::owned::{OwnedQp, given};
use crate::qp::{self, type_of};
use crate::wr::Names;
use crate::xrc::{self, XRC_RECV};

/// `IBV_QP_INIT_ATTR_PD`, `_XRCD`, `_CREATE_FLAGS` and `_SEND_OPS_FLAGS`: what is looked at.
pub(crate) const PD: u32 = 1;
const XRCD: u32 = 1 << 1;
const CREATE_FLAGS: u32 = 1 << 2;
pub(crate) const SEND_OPS: u32 = 1 << 6;
/// `enum ibv_qp_create_send_ops_flags`.
const OPERATIONS: [(u64, SendOpcode); 10] = [
    (1, SendOpcode::Write),
    (1 << 1, SendOpcode::WriteWithImm),
    (1 << 2, SendOpcode::Send),
    (1 << 3, SendOpcode::SendWithImm),
    (1 << 4, SendOpcode::Read),
    (1 << 5, SendOpcode::CompareSwap),
    (1 << 6, SendOpcode::FetchAdd),
    (1 << 7, SendOpcode::LocalInv),
    (1 << 8, SendOpcode::BindMw),
    (1 << 9, SendOpcode::SendWithInv),
];

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut Context,
    init: *mut QpInitAttrEx,
) -> *mut Qp {
    object(|| {
        // SAFETY: the verbs contract.
        let init = unsafe { given(init)? };
        if init.qp_type == XRC_RECV {
            if init.comp_mask & !(XRCD | PD) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if init.comp_mask & XRCD == 0 {
                return Err(libc::EINVAL);
            }
            // It needs no PD, and has the one that is named all the same: librdmacm takes its own from the QP.
            let pd = if init.comp_mask & PD == 0 { ptr::null_mut() } else { init.pd };
            // SAFETY: the verbs contract.
            return unsafe { xrc::make_target(context, init, pd) };
        }
        let qp_type = type_of(init.qp_type)?;
        // SAFETY: the verbs contract.
        unsafe { make(init, qp_type, |_| ()) }
    })
}

/// Makes a QP of a type, with what a structure of another library says of it besides.
///
/// # Safety
/// The verbs contract of `ibv_create_qp_ex`.
pub(crate) unsafe fn make(
    init: &mut QpInitAttrEx,
    qp_type: QpType,
    besides: impl FnOnce(&mut QpInit),
) -> Result<*mut Qp, c_int> {
    if init.comp_mask & PD == 0 {
        return Err(libc::EINVAL);
    }
    let has_flags = init.comp_mask & CREATE_FLAGS != 0 && init.create_flags != 0;
    if init.comp_mask & !(PD | CREATE_FLAGS | SEND_OPS) != 0 || has_flags {
        return Err(libc::EOPNOTSUPP);
    }
    let wanted = if init.comp_mask & SEND_OPS == 0 { 0 } else { init.send_ops_flags };
    let offered = |flag: &&(u64, SendOpcode)| qp_type.supports(flag.1);
    let can = OPERATIONS.iter().filter(offered).fold(0, |all, flag| all | flag.0);
    if wanted & !can != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let pd = init.pd;
    // SAFETY: it begins as `ibv_qp_init_attr` does; the rest is the caller's word.
    let made = unsafe { qp::make_of(pd, &mut *ptr::from_mut(init).cast(), qp_type, besides)? };
    if init.comp_mask & SEND_OPS != 0 {
        // SAFETY: it was just made.
        let owned = unsafe { &mut *made.cast::<OwnedQp>() };
        owned.is_extended = true;
        offer(&mut owned.ex, wanted, Names::of(init.qp_type));
    }
    Ok(made)
}

/// Puts in the calls for what was asked for; others stay null, as in other providers.
fn offer(qp: &mut QpEx, wanted: u64, names: Names) {
    let has = |opcode| OPERATIONS.iter().any(|(flag, of)| *of == opcode && wanted & flag != 0);
    macro_rules! offer {
        ($($field:ident: $opcode:ident,)*) => {
            $(if has(SendOpcode::$opcode) {
                qp.$field = Some($field);
            })*
        };
    }
    offer! {
        wr_rdma_write: Write,
        wr_rdma_write_imm: WriteWithImm,
        wr_send: Send,
        wr_send_imm: SendWithImm,
        wr_rdma_read: Read,
        wr_atomic_cmp_swp: CompareSwap,
        wr_atomic_fetch_add: FetchAdd,
        wr_local_inv: LocalInv,
        wr_bind_mw: BindMw,
        wr_send_inv: SendWithInv,
    }
    match names {
        Names::Nothing => {}
        Names::Handle => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        Names::Queue => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
    }
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    // SAFETY: the verbs contract.
    match unsafe { given(qp.cast::<OwnedQp>()) } {
        Ok(owned) if owned.is_extended => &mut owned.ex,
        _ => ptr::null_mut(),
    }
}

/// # Safety
/// The verbs contract: between `ibv_wr_start` and its end, so that no other thread makes WRs of this QP.
unsafe fn owned<'a>(qp: *mut QpEx) -> &'a mut OwnedQp {
    // SAFETY: extended QPs of ours stand at the beginning of an `OwnedQp`.
    unsafe { &mut *qp.cast() }
}

/// Begins a WR with the id and the flags that the program has put into the QP.
///
/// # Safety
/// As [`owned`].
unsafe fn begin(qp: *mut QpEx, op: SendOp) {
    guard((), || {
        // SAFETY: the caller's word.
        let owned = unsafe { owned(qp) };
        let flags = SendFlags::from_bits_truncate(owned.ex.wr_flags as u8);
        owned.batch.begin(owned.ex.wr_id, flags, op);
    });
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $of:ty),*) => $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut QpEx $(, $arg: $of)*) {
            // SAFETY: the verbs contract.
            unsafe { begin(qp, $op) };
        }
    )*};
}

operations! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendWithImm(u32::from_be(imm));
    wr_send_inv(rkey: u32) => SendOp::SendWithInv(rkey);
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write(RemoteAddr { addr, rkey });
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =>
        SendOp::WriteWithImm(RemoteAddr { addr, rkey }, u32::from_be(imm));
    wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read(RemoteAddr { addr, rkey });
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        SendOp::CompareSwap { remote: RemoteAddr { addr, rkey }, compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) =>
        SendOp::FetchAdd { remote: RemoteAddr { addr, rkey }, add };
    wr_local_inv(rkey: u32) => SendOp::LocalInv(rkey);
}

unsafe extern "C" fn wr_bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, info: *const MwBindInfo) {
    // SAFETY: the verbs contract.
    unsafe {
        match given(info.cast_mut()).and_then(|info| posted_bind_of(mw, rkey, info)) {
            Ok(bind) => begin(qp, SendOp::BindMw(bind)),
            Err(error) => owned(qp).batch.fail(error),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut QpEx, ah: *mut Ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the verbs contract.
    unsafe {
        match given(ah) {
            Ok(ah) => {
                let ah = AhHandle(ah.handle);
                owned(qp).batch.send_to(Dest::Ud { ah, remote_qpn, remote_qkey });
            }
            Err(error) => owned(qp).batch.fail(error),
        }
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut QpEx, remote_srqn: u32) {
    // SAFETY: the verbs contract.
    unsafe { owned(qp).batch.send_to(Dest::Xrc { remote_srqn }) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    guard((), || {
        let sge = Piece { addr, length, lkey };
        // SAFETY: the verbs contract.
        unsafe { owned(qp) }.batch.gather(1, std::iter::once(sge));
    });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    guard((), || {
        // SAFETY: the verbs contract.
        let batch = &mut unsafe { owned(qp) }.batch;
        if list.is_null() && count > 0 {
            return batch.fail(libc::EINVAL);
        }
        batch.gather(
            count,
            (0..count).map(|at| {
                // SAFETY: the verbs contract: the list has `count` entries.
                let sge = unsafe { list.add(at).read_unaligned() };
                Piece { addr: sge.addr, length: sge.length, lkey: sge.lkey }
            }),
        );
    });
}

/// # Safety
/// As [`owned`]; the program's bytes can be read.
unsafe fn carry(qp: *mut QpEx, addr: *const c_void, length: usize) {
    guard((), || {
        // SAFETY: the caller's word.
        let batch = &mut unsafe { owned(qp) }.batch;
        if length > batch.inline_room() {
            return batch.fail(libc::ENOMEM);
        }
        if length == 0 {
            return batch.carry(&[]);
        }
        if addr.is_null() {
            return batch.fail(libc::EINVAL);
        }
        // SAFETY: the caller's word; nobody changes them meanwhile, by the verbs contract.
        batch.carry(unsafe { std::slice::from_raw_parts(addr.cast(), length) });
    });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: the verbs contract.
    unsafe { carry(qp, addr, length) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // Each buffer that there is room for has a byte at least, or is the last that is looked at.
    for at in 0..count {
        // SAFETY: the verbs contract: the list has `count` entries.
        unsafe {
            if list.is_null() || owned(qp).batch.error().is_some() {
                return owned(qp).batch.fail(libc::EINVAL);
            }
            let DataBuf { addr, length } = list.add(at).read_unaligned();
            carry(qp, addr, length);
        }
    }
}

unsafe extern "C" fn wr_start(qp: *mut QpEx) {
    // SAFETY: the verbs contract. Others may be at it, so that only the turn is looked at before it came.
    unsafe {
        (*qp.cast::<OwnedQp>()).turn.begin();
        owned(qp).batch.clear();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    // SAFETY: the verbs contract.
    let owned = unsafe { owned(qp) };
    let result = guard(libc::EIO, || post(owned).err().unwrap_or(0));
    owned.turn.end();
    result
}

unsafe extern "C" fn wr_abort(qp: *mut QpEx) {
    // SAFETY: the verbs contract.
    let owned = unsafe { owned(qp) };
    owned.batch.clear();
    owned.turn.end();
}

/// Posts all, or none.
fn post(owned: &mut OwnedQp) -> Result<(), c_int> {
    if let Some(error) = owned.batch.error() {
        return Err(error);
    }
    let handle = Handle(owned.ex.qp_base.handle);
    let mut state = Engine::of(&raw const owned.ex.qp_base)?.lock();
    let refused = |(_, error)| of_post(error);
    state.device.check_sends(handle, owned.batch.wrs()).map_err(refused)?;
    let State { device, direct, posts, .. } = &mut *state;
    match (&owned.link, posts) {
        (Some(link), None) => {
            let mut run = Run::begin(device, &mut direct.stage, link, handle);
            let posted = owned.batch.wrs().try_for_each(|wr| run.post(&wr));
            run.end();
            posted.map_err(refused)?;
        }
        (_, Some(posts)) => {
            let mut wrs = owned.batch.wrs();
            wrs.try_for_each(|wr| posts.post(device, handle, &wr)).map_err(refused)?;
        }
        (None, None) => device.post_sends(handle, owned.batch.wrs()).map_err(refused)?,
    }
    state.tell();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_there() {
        // SAFETY: no function, null, or a number.
        let mut qp: QpEx = unsafe { std::mem::zeroed() };
        offer(&mut qp, 1 << 2, Names::Handle);
        assert!(qp.wr_send.is_some() && qp.wr_set_ud_addr.is_some() && qp.wr_complete.is_some());
        assert!(qp.wr_send_imm.is_none() && qp.wr_rdma_write.is_none() && qp.wr_bind_mw.is_none());
    }
}
