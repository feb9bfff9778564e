//! DCIs and DCTs, made as libmlx5 makes them, and where a DCI's WRs go.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr;

use elver_verbs::{Ah as AhHandle, DciInit, Dest, Device as _, Qp as Handle, QpState, QpType};

use crate::engine::Engine;
use crate::errno::{code, object, of_verbs};
use crate::layout::{Ah, Context, Qp, QpEx, QpInitAttrEx};
use crate::mlx5::layout::{QpEx as DcQpEx, QpInitAttr};
use crate::owned::{OwnedQp, given};
use crate::qp::{DRIVER, type_of};
use crate::qp_ex::{self, PD};

/// `enum mlx5dv_qp_init_attr_mask`.
const CREATE_FLAGS: u64 = 1;
const DC: u64 = 1 << 1;
const DC_SEND_OPS: u64 = 1 << 2;
const STREAMS: u64 = 1 << 3;
/// `enum mlx5dv_qp_create_flags`: where the hardware may leave received bytes, and flags of features
/// that are not there.
const NO_SCATTER_TO_CQE: u32 = 1 << 3;
const SCATTER_TO_CQE: u32 = 1 << 4;
const KNOWN: u32 = 0x7f;
/// `enum mlx5dv_dc_type`.
const DCT: c_uint = 1;
const DCI: c_uint = 2;

/// What is to be made, and how it is a DC QP if it is.
enum Wanted {
    Plain(QpType),
    Dci(DciInit),
    Dct { access_key: u64 },
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_qp(
    _: *mut Context,
    init: *mut QpInitAttrEx,
    attr: *mut QpInitAttr,
) -> *mut Qp {
    object(|| {
        // SAFETY: the verbs contract: the second may be null.
        let (init, attr) = unsafe { (given(init)?, attr.as_ref()) };
        let wanted = wanted(init, attr)?;
        // SAFETY: the verbs contract.
        unsafe {
            match wanted {
                Wanted::Plain(qp_type) => qp_ex::make(init, qp_type, |_| ()),
                Wanted::Dct { access_key } => {
                    qp_ex::make(init, QpType::Dct, |init| init.dc_access_key = access_key)
                }
                Wanted::Dci(dci) => {
                    let made = qp_ex::make(init, QpType::Dci, |init| {
                        // It receives nothing, and the SRQ that programs give it stays untouched.
                        (init.dci, init.srq) = (dci, None);
                    })?;
                    let dc = &mut (*made.cast::<OwnedQp>()).dc;
                    dc.wr_set_dc_addr = Some(wr_set_dc_addr);
                    dc.wr_set_dc_addr_stream = Some(wr_set_dc_addr_stream);
                    Ok(made)
                }
            }
        }
    })
}

/// What both structures ask for together, refused as libmlx5 refuses it.
fn wanted(init: &QpInitAttrEx, attr: Option<&QpInitAttr>) -> Result<Wanted, c_int> {
    let Some(attr) = attr else {
        let of_driver = init.qp_type == DRIVER;
        return if of_driver {
            Err(libc::EINVAL)
        } else {
            Ok(Wanted::Plain(type_of(init.qp_type)?))
        };
    };
    let has = |flag| attr.comp_mask & flag != 0;
    if attr.comp_mask & !(CREATE_FLAGS | DC | DC_SEND_OPS | STREAMS) != 0
        || has(DC) != (init.qp_type == DRIVER)
    {
        return Err(libc::EINVAL);
    }
    let flags = if has(CREATE_FLAGS) { attr.create_flags } else { 0 };
    let scatters = NO_SCATTER_TO_CQE | SCATTER_TO_CQE;
    if flags & !KNOWN != 0 || flags & scatters == scatters {
        return Err(libc::EINVAL);
    }
    let is_dct = has(DC) && attr.dc_init_attr.dc_type == DCT;
    if is_dct {
        let alone = init.comp_mask == PD && attr.comp_mask & !(DC | CREATE_FLAGS) == 0;
        if !alone || flags & !scatters != 0 {
            return Err(libc::EINVAL);
        }
        return Ok(Wanted::Dct { access_key: attr.dc_init_attr.dct_access_key });
    }
    // Work that only that hardware does: keys of many pieces, signatures, copies.
    let operations = if has(DC_SEND_OPS) { attr.send_ops_flags } else { 0 };
    if flags & !scatters != 0 || operations != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if !has(DC) {
        return Ok(Wanted::Plain(type_of(init.qp_type)?));
    }
    if attr.dc_init_attr.dc_type != DCI {
        return Err(libc::EINVAL);
    }
    Ok(Wanted::Dci(if has(STREAMS) { attr.dc_init_attr.streams() } else { DciInit::default() }))
}

/// What libmlx5 adds to an extended QP.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut QpEx) -> *mut DcQpEx {
    if qp.is_null() {
        return ptr::null_mut();
    }
    const { assert!(offset_of!(OwnedQp, ex) == 0) };
    // SAFETY: the verbs contract; extended QPs of ours stand at the beginning of an `OwnedQp`.
    unsafe { &raw mut (*qp.cast::<OwnedQp>()).dc }
}

/// Says to which DCT the last WR goes.
///
/// # Safety
/// The verbs contract: between `ibv_wr_start` and its end, so that no other thread makes WRs of this QP.
unsafe fn send_to(qp: *mut DcQpEx, ah: *mut Ah, remote_dctn: u32, dc_access_key: u64, stream: u16) {
    // SAFETY: the caller's word; what libmlx5 adds stands in an `OwnedQp`.
    let (batch, ah) = unsafe {
        let owned = qp.byte_sub(offset_of!(OwnedQp, dc)).cast::<OwnedQp>();
        (&mut (*owned).batch, given(ah))
    };
    match ah {
        Ok(ah) => {
            let ah = AhHandle(ah.handle);
            batch.send_to(Dest::Dc { ah, remote_dctn, dc_access_key, stream_id: stream });
        }
        Err(error) => batch.fail(error),
    }
}

unsafe extern "C" fn wr_set_dc_addr(qp: *mut DcQpEx, ah: *mut Ah, dctn: u32, key: u64) {
    // SAFETY: the verbs contract.
    unsafe { send_to(qp, ah, dctn, key, 0) };
}

unsafe extern "C" fn wr_set_dc_addr_stream(
    qp: *mut DcQpEx,
    ah: *mut Ah,
    dctn: u32,
    key: u64,
    stream: u16,
) {
    // SAFETY: the verbs contract.
    unsafe { send_to(qp, ah, dctn, key, stream) };
}

/// Sets an errored stream of a DCI going again; one that is not errored is refused, as the hardware does.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_dci_stream_id_reset(qp: *mut Qp, stream_id: u16) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let qp = unsafe { given(qp)? };
        let handle = Handle(qp.handle);
        let mut state = Engine::of(qp)?.lock();
        let (now, made) = state.device.query_qp(handle).map_err(of_verbs)?;
        if now.qp_state != QpState::Rts {
            return Err(libc::EOPNOTSUPP);
        }
        if made.qp_type != QpType::Dci {
            return Err(libc::EINVAL);
        }
        let before = state.device.errored_streams(handle).map_err(of_verbs)?;
        state.device.reset_dci_stream(handle, stream_id).map_err(of_verbs)?;
        let after = state.device.errored_streams(handle).map_err(of_verbs)?;
        if before == after { Err(libc::EINVAL) } else { Ok(()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx5::layout::DcInitAttr;
    use crate::qp_ex::SEND_OPS;

    fn plain(qp_type: c_uint, comp_mask: u32) -> QpInitAttrEx {
        // SAFETY: null, or a number.
        let zero: QpInitAttrEx = unsafe { std::mem::zeroed() };
        QpInitAttrEx { qp_type, comp_mask, ..zero }
    }

    fn of(dc_type: c_uint, comp_mask: u64) -> QpInitAttr {
        let dc_init_attr = DcInitAttr { dc_type, dct_access_key: 0x0203 };
        QpInitAttr { comp_mask, create_flags: 0, dc_init_attr, send_ops_flags: 0 }
    }

    fn refused(init: &QpInitAttrEx, attr: &QpInitAttr) -> Option<c_int> {
        wanted(init, Some(attr)).err()
    }

    #[test]
    fn a_target_has_its_key_and_an_initiator_its_streams() {
        let target = wanted(&plain(DRIVER, PD), Some(&of(DCT, DC)));
        assert!(matches!(target, Ok(Wanted::Dct { access_key: 0x0203 })));
        // The streams are the first bytes of what would be a key.
        let initiator = wanted(&plain(DRIVER, PD | SEND_OPS), Some(&of(DCI, DC | STREAMS)));
        let expected = DciInit { log_num_concurrent: 3, log_num_errored: 2 };
        assert!(matches!(initiator, Ok(Wanted::Dci(dci)) if dci == expected));
        let initiator = wanted(&plain(DRIVER, PD | SEND_OPS), Some(&of(DCI, DC)));
        assert!(matches!(initiator, Ok(Wanted::Dci(dci)) if dci == DciInit::default()));
    }

    #[test]
    fn each_misuse_has_its_errno() {
        let (driver, rc) = (plain(DRIVER, PD | SEND_OPS), plain(2, PD));
        assert_eq!(refused(&driver, &of(0, 0)), Some(libc::EINVAL));
        assert_eq!(refused(&driver, &of(3, DC)), Some(libc::EINVAL));
        assert_eq!(refused(&driver, &of(DCI, DC | 1 << 4)), Some(libc::EINVAL));
        assert_eq!(refused(&driver, &of(DCT, DC)), Some(libc::EINVAL));
        assert_eq!(refused(&plain(DRIVER, PD), &of(DCT, DC | STREAMS)), Some(libc::EINVAL));
        assert_eq!(refused(&rc, &of(DCI, DC)), Some(libc::EINVAL));
        let scattered = QpInitAttr { create_flags: 3 << 3, ..of(DCI, DC | CREATE_FLAGS) };
        assert_eq!(refused(&driver, &scattered), Some(libc::EINVAL));
        let copies = QpInitAttr { send_ops_flags: 1 << 4, ..of(DCI, DC | DC_SEND_OPS) };
        assert_eq!(refused(&driver, &copies), Some(libc::EOPNOTSUPP));
        let signed = QpInitAttr { create_flags: 1 << 6, ..of(0, CREATE_FLAGS) };
        assert_eq!(refused(&rc, &signed), Some(libc::EOPNOTSUPP));
        assert!(wanted(&driver, None).is_err() && wanted(&rc, None).is_ok());
    }
}
