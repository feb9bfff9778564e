//! Which queue pairs are lent, by what the device and its provider say of them.

use std::ffi::CStr;

use super::posting;
use super::verbs::{self, Attributes, CAP, Limits, Qp, RC, RTS, STATE};
use crate::real;

/// Providers whose queues a child shares with its parent.
const SHAREABLE: &str = "librxe-rdmav";
/// What [`super`] stands before, so that nothing that is lent goes while a child has it.
const GUARDED: [&CStr; 3] = [c"ibv_destroy_qp", c"ibv_close_device", c"ibv_modify_qp"];

/// A call's refusal: what errno says, and in words.
pub(crate) type Refusal = (i32, &'static CStr);

/// What an open queue pair that can be lent was made with; why it cannot be lent.
///
/// # Safety
/// An open queue pair of libibverbs.
pub(crate) unsafe fn can_be_lent(qp: *mut Qp) -> Result<Limits, Refusal> {
    if !GUARDED.iter().all(|name| verbs::is_own(real::first(name))) {
        return Err((
            libc::EOPNOTSUPP,
            c"the program calls libibverbs' ibv_destroy_qp: libelver_fastverbs has to be linked before libibverbs, or preloaded",
        ));
    }
    // SAFETY: by the caller's promise.
    let (named, providers) = unsafe { (&*qp, posting::providers((*qp).context)) };
    let library = providers.and_then(|own| verbs::library_of(own.post_send));
    if !library.is_some_and(|name| name.starts_with(SHAREABLE)) {
        return Err((
            libc::EOPNOTSUPP,
            c"the device's queues are memory of the process's own, of which a child gets a copy: rxe's can be shared",
        ));
    }
    if named.qp_type != RC {
        return Err((libc::EOPNOTSUPP, c"only RC queue pairs are lent"));
    }
    if !named.srq.is_null() {
        return Err((libc::EOPNOTSUPP, c"the queue pair has a shared receive queue"));
    }
    // SAFETY: an open queue pair.
    let extended = unsafe { real::ibv_qp_to_qp_ex(qp.cast()) };
    if extended.is_some_and(|extended| !extended.is_null()) {
        return Err((libc::EOPNOTSUPP, c"the queue pair was made for ibv_wr_start and its like"));
    }
    is_connected(qp)
}

/// What a connected queue pair was made with; a refusal if it is not in RTS, as the device says.
pub(crate) fn is_connected(qp: *mut Qp) -> Result<Limits, Refusal> {
    let (mut attributes, mut made) = (Attributes([0; 64]), Attributes([0; 64]));
    // SAFETY: an open queue pair; both are longer than libibverbs' own.
    let asked = unsafe {
        let [attributes, made] = [&raw mut attributes, &raw mut made];
        real::ibv_query_qp(qp.cast(), attributes.cast(), STATE | CAP, made.cast())
    };
    match asked == Some(0) && attributes.state() == RTS {
        true => Ok(made.limits()),
        false => Err((libc::ENOTCONN, c"the queue pair is not connected: its state is not RTS")),
    }
}
