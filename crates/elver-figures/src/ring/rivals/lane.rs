//! How a sender and a receiver meet: places go through notices, since nothing of it is measured. The receiver connects, so that completions of WRITE_WITH_IMM come to its own VQP.

use anyhow::Result;
use elver::{
    AccessFlags, Gid, Mr, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Session, Vqp,
    VqpOptions,
};
use elver_testbed::apart::Notice;

use super::super::stage::{told, wait, words};
use super::layout::Layout;

/// What the two ends know of each other.
pub(crate) struct Meeting {
    sender: Notice,
    receiver: Notice,
}

impl Meeting {
    pub(crate) fn new() -> Result<Meeting> {
        Ok(Meeting { sender: Notice::new()?, receiver: Notice::new()? })
    }
}

/// An end's VQP, its memory, and where the other's is.
pub(crate) struct Lane {
    pub(super) session: Session,
    pub(super) vqp: Vqp,
    pub(super) memory: Mr,
    pub(super) peer: RemoteAddr,
    pub(super) layout: Layout,
    /// What the port was bound with.
    _bound: Option<(Vqp, Mr)>,
}

/// WRs of either queue.
pub(super) const QUEUE: u32 = 128;

impl Lane {
    /// The sender's end, at a port of its own.
    pub(crate) fn sender(
        session: &Session,
        layout: Layout,
        port: u16,
        meeting: &Meeting,
    ) -> Result<Lane> {
        let memory = memory(session, &layout)?;
        let bound = session.create_vqp(VqpOptions::default())?;
        bound.qbind(port)?;
        let hello = session.alloc(64, AccessFlags::LOCAL_WRITE)?;
        bound.post_recv(&[RecvWr { wr_id: 0, sges: &[hello.sge(0, 64)] }])?;
        meeting.sender.tell(words(memory.remote(0)))?;
        let peer = wait(session, || told(&meeting.receiver))?;
        let vqp = wait(session, || Ok(bound.qpop_msgs()?.pop().map(|message| message.source)))?;
        let _bound = Some((bound, hello));
        Ok(Lane { session: session.clone(), vqp, memory, peer, layout, _bound })
    }

    /// The receiver's.
    pub(crate) fn receiver(
        session: &Session,
        layout: Layout,
        gid: Gid,
        port: u16,
        meeting: &Meeting,
    ) -> Result<Lane> {
        let memory = memory(session, &layout)?;
        meeting.receiver.tell(words(memory.remote(0)))?;
        let peer = wait(session, || told(&meeting.sender))?;
        let options =
            VqpOptions { max_send_wr: QUEUE, max_recv_wr: QUEUE, ..VqpOptions::default() };
        let vqp = session.create_vqp(options)?;
        vqp.qconnect(gid, port)?;
        for wr_id in 0..QUEUE {
            vqp.post_recv(&[RecvWr { wr_id: wr_id.into(), sges: &[] }])?;
        }
        let (op, payload) = (SendOp::Send, Payload::Inline(b"hello"));
        vqp.post_send(&[SendWr { wr_id: 0, op, flags: SendFlags::empty(), payload, dest: None }])?;
        Ok(Lane { session: session.clone(), vqp, memory, peer, layout, _bound: None })
    }

    /// A place in the other end's memory.
    pub(super) fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.peer.addr + offset, ..self.peer }
    }
}

fn memory(session: &Session, layout: &Layout) -> Result<Mr> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    Ok(session.alloc_apart(layout.bytes(), access)?)
}
