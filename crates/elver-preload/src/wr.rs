//! Work requests, from libibverbs' form to the device's.

use std::ffi::{c_int, c_uint};
use std::ptr;

use elver_verbs::{
    Ah, Dest, Payload, PostError, RecvWr as Recv, RemoteAddr, SendFlags, SendOp, SendWr as Send,
    Sge as Piece,
};

use crate::errno::of_post;
use crate::layout::{RecvWr, SendWr, Sge};
use crate::mw::posted_bind_of;
use crate::owned::given;

/// SGEs and inline bytes of a WR: what the device offers ([`elver_soft::SoftConfig`]) fits.
const SGES: usize = 32;
pub(crate) const INLINE: usize = 512;
/// `IBV_SEND_INLINE`.
const INLINE_FLAG: u32 = 8;

/// `IBV_QPT_UD` and `IBV_QPT_XRC_SEND`.
pub(crate) const UD: c_uint = 4;
pub(crate) const XRC_SEND: c_uint = 9;

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

/// A field of a WR, which may lie anywhere: programs write no more of one than its operation has (those of Java, by DiSNI, 72
/// bytes), in buffers of their own.
macro_rules! field {
    ($wr:expr, $($field:tt)+) => {
        (&raw const (*$wr).$($field)+).read_unaligned()
    };
}

/// Names the one of a list that failed.
///
/// # Safety
/// `bad` can be written, if it is not null.
#[cold]
pub(crate) unsafe fn refuse<T>(failed: *mut T, bad: *mut *mut T, error: c_int) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller's word.
        unsafe { bad.write_unaligned(failed) };
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
        unsafe {
            if let Err(error) = post_send(list, names, &mut post) {
                return refuse(list, bad, error);
            }
            list = field!(list, next);
        }
    }
    0
}

/// # Safety
/// As [`post_sends`], of one.
unsafe fn post_send(
    wr: *const SendWr,
    names: Names,
    post: &mut impl FnMut(Send<'_>) -> Posted,
) -> Result<(), c_int> {
    let mut room = [Piece::default(); SGES];
    // SAFETY: the verbs contract.
    let (pieces, send_flags) = unsafe {
        let pieces = pieces(field!(wr, sg_list), field!(wr, num_sge), &mut room)?;
        (pieces, field!(wr, send_flags))
    };
    let mut bytes = [0; INLINE];
    let payload = if send_flags & INLINE_FLAG != 0 {
        // SAFETY: the verbs contract.
        Payload::Inline(unsafe { gather(pieces, &mut bytes)? })
    } else {
        Payload::Sges(pieces)
    };
    // SAFETY: the verbs contract: the opcode says which members the program wrote, and the type of the QP.
    let (wr_id, op, dest) = unsafe { (field!(wr, wr_id), op(wr)?, dest(wr, names)?) };
    // The first three flags are numbered alike.
    let flags = SendFlags::from_bits_truncate(send_flags as u8);
    let wr = Send { wr_id, op, flags, payload, dest };
    post(wr).map_err(|(_, error)| of_post(error))
}

/// What a WR does.
///
/// # Safety
/// As [`post_sends`], of one.
unsafe fn op(wr: *const SendWr) -> Result<SendOp, c_int> {
    // SAFETY: the caller's word: what an opcode has the program wrote.
    unsafe {
        let given = || field!(wr, imm_data);
        let remote =
            || RemoteAddr { addr: field!(wr, wr.rdma.remote_addr), rkey: field!(wr, wr.rdma.rkey) };
        let word = || RemoteAddr {
            addr: field!(wr, wr.atomic.remote_addr),
            rkey: field!(wr, wr.atomic.rkey),
        };
        let operand = || field!(wr, wr.atomic.compare_add);
        Ok(match field!(wr, opcode) {
            0 => SendOp::Write(remote()),
            1 => SendOp::WriteWithImm(remote(), u32::from_be(given())),
            2 => SendOp::Send,
            3 => SendOp::SendWithImm(u32::from_be(given())),
            4 => SendOp::Read(remote()),
            5 => {
                let swap = field!(wr, wr.atomic.swap);
                SendOp::CompareSwap { remote: word(), compare: operand(), swap }
            }
            6 => SendOp::FetchAdd { remote: word(), add: operand() },
            7 => SendOp::LocalInv(given()),
            8 => {
                let (window, info) = (field!(wr, bind_mw.mw), field!(wr, bind_mw.bind_info));
                SendOp::BindMw(posted_bind_of(window, field!(wr, bind_mw.rkey), &info)?)
            }
            9 => SendOp::SendWithInv(given()),
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Where a WR goes, of a QP whose WRs say so.
///
/// # Safety
/// As [`post_sends`], of one.
unsafe fn dest(wr: *const SendWr, names: Names) -> Result<Option<Dest>, c_int> {
    // SAFETY: the caller's word: WRs of such a QP have the member.
    unsafe {
        Ok(match names {
            Names::Nothing => None,
            Names::Queue => Some(Dest::Xrc { remote_srqn: field!(wr, qp_type) }),
            Names::Handle => {
                let ah = Ah(given(field!(wr, wr.ud.ah))?.handle);
                let remote_qpn = field!(wr, wr.ud.remote_qpn);
                Some(Dest::Ud { ah, remote_qpn, remote_qkey: field!(wr, wr.ud.remote_qkey) })
            }
        })
    }
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
        unsafe {
            let posted = pieces(field!(list, sg_list), field!(list, num_sge), &mut room);
            let wr_id = field!(list, wr_id);
            let posted = posted
                .and_then(|sges| post(Recv { wr_id, sges }).map_err(|(_, error)| of_post(error)));
            if let Err(error) = posted {
                return refuse(list, bad, error);
            }
            list = field!(list, next);
        }
    }
    0
}
