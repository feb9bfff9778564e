//! The packets of a message.

use elver_verbs::SendOp;
use elver_wire::{Message, Reth, Tail};

use crate::send_queue::SendWqe;

/// The packet of a SEND or a WRITE by its place in the message.
#[inline]
pub(super) fn data_message(wqe: &SendWqe, first: bool, last: bool) -> Message {
    let (tail, imm) = match wqe.op {
        SendOp::SendWithImm(imm) => (Tail::Imm(imm), None),
        SendOp::SendWithInv(rkey) => (Tail::Inv(rkey), None),
        SendOp::WriteWithImm(_, imm) => (Tail::Plain, Some(imm)),
        _ => (Tail::Plain, None),
    };
    match wqe.op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, len: wqe.length };
            match (first, last) {
                (true, true) => Message::WriteOnly(reth, imm),
                (true, false) => Message::WriteFirst(reth),
                (false, false) => Message::WriteMiddle,
                (false, true) => Message::WriteLast(imm),
            }
        }
        _ => match (first, last) {
            (true, true) => Message::SendOnly(tail),
            (true, false) => Message::SendFirst,
            (false, false) => Message::SendMiddle,
            (false, true) => Message::SendLast(tail),
        },
    }
}
