//! Work requests, from libibverbs' form to the device's.

use std::ffi::{c_int, c_uint};
use std::ptr;

use elver_verbs::{
    Ah, Dest, Payload, PostError, RecvWr as Recv, RemoteAddr, SendFlags, SendOp, SendWr as Send,
    Sge as Piece,
};

use crate::errno::of_post;
use crate::layout::{RecvWr, SendWr, Sge};
use crate::mw::bind_of;
use crate::owned::given;

/// SGEs and inline bytes of a WR: what the device offers ([`elver_soft::SoftConfig`]) fits.
const SGES: usize = 32;
pub(crate) const INLINE: usize = 512;
/// `IBV_SEND_INLINE`.
const INLINE_FLAG: u32 = 8;

/// `IBV_QPT_UD` and `IBV_QPT_XRC_SEND`.
pub(crate) const UD: c_uint = 4;
pub(crate) const XRC_SEND: c_uint = 9;

/// `IBV_MW_TYPE_2`.
const MW_TYPE_2: u32 = 2;

/// What a send WR names besides what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Nothing,
    /// An address handle and a QP.
    Handle,
    /// A shared receive queue.
    Queue,
}

impl Names {
    /// By `enum ibv_qp_type`.
    pub(crate) fn of(qp_type: c_uint) -> Names {
        match qp_type {
            UD => Names::Handle,
            XRC_SEND => Names::Queue,
            _ => Names::Nothing,
        }
    }
}

type Posted = Result<(), (usize, PostError)>;

/// The SGEs of a WR, copied.
///
/// # Safety
/// `list` has `count` entries.
unsafe fn pieces(
    list: *const Sge,
    count: c_int,
    to: &mut [Piece; SGES],
) -> Result<&[Piece], c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count <= SGES).ok_or(libc::EINVAL)?;
    if list.is_null() && count > 0 {
        return Err(libc::EINVAL);
    }
    for (at, piece) in to[..count].iter_mut().enumerate() {
        // SAFETY: the caller's word. It may lie anywhere: programs have it in packed structures (libiscsi's descriptors).
        let sge = unsafe { list.add(at).read_unaligned() };
        *piece = Piece { addr: sge.addr, length: sge.length, lkey: sge.lkey };
    }
    Ok(&to[..count])
}

/// The bytes that a WR carries itself.
///
/// # Safety
/// The program's SGEs lie in its memory; of inline data nobody checks a key.
unsafe fn gather<'a>(pieces: &[Piece], to: &'a mut [u8; INLINE]) -> Result<&'a [u8], c_int> {
    let mut len = 0;
    for piece in pieces {
        let end = len + piece.length as usize;
        let room = to.get_mut(len..end).ok_or(libc::EINVAL)?;
        let from: *const u8 = ptr::with_exposed_provenance(piece.addr as usize);
        // SAFETY: the caller's word; the room was measured.
        unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len()) };
        len = end;
    }
    Ok(&to[..len])
}

/// Names the first of a list as the one that failed, of which none was posted.
///
/// # Safety
/// `bad` can be written, if it is not null.
#[cold]
pub(crate) unsafe fn refuse<T>(list: *mut T, bad: *mut *mut T, error: c_int) -> c_int {
    // SAFETY: the caller's word.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = list;
    }
    error
}

/// Posts a list of send WRs; `post` posts one.
///
/// # Safety
/// The verbs contract of `ibv_post_send`.
pub(crate) unsafe fn post_sends(
    mut list: *mut SendWr,
    bad: *mut *mut SendWr,
    names: Names,
    mut post: impl FnMut(Send<'_>) -> Posted,
) -> c_int {
    while !list.is_null() {
        // SAFETY: the verbs contract.
        let wr = unsafe { &*list };
        // SAFETY: as above.
        if let Err(error) = unsafe { post_send(wr, names, &mut post) } {
            // SAFETY: as above.
            if let Some(bad) = unsafe { bad.as_mut() } {
                *bad = list;
            }
            return error;
        }
        list = wr.next;
    }
    0
}

/// # Safety
/// As [`post_sends`].
unsafe fn post_send(
    wr: &SendWr,
    names: Names,
    post: &mut impl FnMut(Send<'_>) -> Posted,
) -> Result<(), c_int> {
    let mut room = [Piece::default(); SGES];
    // SAFETY: the verbs contract.
    let pieces = unsafe { pieces(wr.sg_list, wr.num_sge, &mut room)? };
    let mut bytes = [0; INLINE];
    let payload = if wr.send_flags & INLINE_FLAG != 0 {
        // SAFETY: the verbs contract.
        Payload::Inline(unsafe { gather(pieces, &mut bytes)? })
    } else {
        Payload::Sges(pieces)
    };
    let imm = u32::from_be(wr.imm_data);
    // SAFETY: the opcode says which member the program wrote; all are numbers of any value.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = RemoteAddr { addr: rdma.remote_addr, rkey: rdma.rkey };
    let word = RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey };
    let op = match wr.opcode {
        0 => SendOp::Write(remote),
        1 => SendOp::WriteWithImm(remote, imm),
        2 => SendOp::Send,
        3 => SendOp::SendWithImm(imm),
        4 => SendOp::Read(remote),
        5 => SendOp::CompareSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap },
        6 => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        7 => SendOp::LocalInv(wr.imm_data),
        8 => {
            // SAFETY: the verbs contract.
            unsafe {
                // Windows of type 1 have a call of their own.
                if given(wr.bind_mw.mw)?.r#type != MW_TYPE_2 {
                    return Err(libc::EINVAL);
                }
                SendOp::BindMw(bind_of(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?)
            }
        }
        9 => SendOp::SendWithInv(wr.imm_data),
        _ => return Err(libc::EINVAL),
    };
    let dest = match names {
        Names::Nothing => None,
        // SAFETY: the verbs contract: an XRC initiator's WRs have this member, a number.
        Names::Queue => Some(Dest::Xrc { remote_srqn: wr.qp_type }),
        Names::Handle => {
            // SAFETY: a UD QP's WRs have this member.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: the verbs contract.
            let ah = Ah(unsafe { (*ud.ah).handle });
            Some(Dest::Ud { ah, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey })
        }
    };
    // The first three flags are numbered alike.
    let flags = SendFlags::from_bits_truncate(wr.send_flags as u8);
    let wr = Send { wr_id: wr.wr_id, op, flags, payload, dest };
    post(wr).map_err(|(_, error)| of_post(error))
}

/// Posts a list of receive WRs; `post` posts one.
///
/// # Safety
/// The verbs contract of `ibv_post_recv`.
pub(crate) unsafe fn post_recvs(
    mut list: *mut RecvWr,
    bad: *mut *mut RecvWr,
    mut post: impl FnMut(Recv<'_>) -> Posted,
) -> c_int {
    let mut room = [Piece::default(); SGES];
    while !list.is_null() {
        // SAFETY: the verbs contract.
        let wr = unsafe { &*list };
        // SAFETY: as above.
        let posted = unsafe { pieces(wr.sg_list, wr.num_sge, &mut room) }.and_then(|sges| {
            post(Recv { wr_id: wr.wr_id, sges }).map_err(|(_, error)| of_post(error))
        });
        if let Err(error) = posted {
            // SAFETY: as above.
            if let Some(bad) = unsafe { bad.as_mut() } {
                *bad = list;
            }
            return error;
        }
        list = wr.next;
    }
    0
}
