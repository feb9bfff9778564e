//! Two devices, with a wire between them.

use anyhow::Result;
use elver_rnic::Time;
use elver_verbs::{Payload, Qp, QpType, SendFlags, SendWr};

use crate::host::{Host, OUTSTANDING_MAX};
use crate::pipe::Pipe;
use crate::sides::{initiator_side, target_side};
use crate::step::{Operation, Step};

/// Virtual time between two rounds.
const ROUND_NS: u64 = 10_000;

/// WRs of `bytes` bytes, `batch` at a time, each with a completion.
pub(crate) fn exchange(
    qp_type: QpType,
    operation: Operation,
    bytes: u32,
    batch: u32,
) -> Result<Step> {
    let (mut a, mut b) = (Host::new(1)?, Host::new(2)?);
    let qp_a = a.create_qp(qp_type, None)?;
    let qp_b = match qp_type {
        QpType::Dci => b.create_dct()?,
        _ => b.create_qp(qp_type, None)?,
    };
    let peer_b = b.peer(qp_b)?;
    a.connect(qp_a, qp_type, peer_b)?;
    if qp_type != QpType::Dci {
        b.connect(qp_b, qp_type, a.peer(qp_a)?)?;
    }
    let dest = a.dest(qp_type, peer_b)?;
    let op = operation.towards(b.remote());
    let sges = [a.sge(bytes)];
    let receives = if operation == Operation::Send { batch } else { 0 };
    // A UD receive begins with 40 bytes for the GRH.
    let receive_bytes = bytes + 40;
    let (mut to_b, mut to_a) = (Pipe::new(), Pipe::new());
    let mut now = Time(1_000_000);
    Ok(Box::new(move || {
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::empty(), payload, dest };
        let wrs = [wr; OUTSTANDING_MAX as usize];
        target_side(|| b.post_receives(now, qp_b, receives, receive_bytes));
        initiator_side(|| a.nic.post_send(now, qp_a, &wrs[..batch as usize]))
            .expect("the send queue has room");
        let mut completed = 0;
        let mut received = 0;
        while completed < batch || received < receives {
            initiator_side(|| {
                a.timers(now);
                to_b.fill(&mut a.nic, now);
            });
            received += target_side(|| {
                b.timers(now);
                to_b.drain(&mut b.nic, now);
                to_a.fill(&mut b.nic, now);
                b.completions()
            });
            completed += initiator_side(|| {
                to_a.drain(&mut a.nic, now);
                a.completions()
            });
            now = now.saturating_add_ns(ROUND_NS);
        }
    }))
}

/// Creates a QP on each of two devices and connects them; both are destroyed outside of the count.
pub(crate) fn connect() -> Result<Step> {
    let (mut a, mut b) = (Host::new(1)?, Host::new(2)?);
    Ok(Box::new(move || {
        let pair = initiator_side(|| -> Result<(Qp, Qp)> {
            let qp_a = a.create_qp(QpType::Rc, None)?;
            let qp_b = b.create_qp(QpType::Rc, None)?;
            a.connect(qp_a, QpType::Rc, b.peer(qp_b)?)?;
            b.connect(qp_b, QpType::Rc, a.peer(qp_a)?)?;
            Ok((qp_a, qp_b))
        });
        let (qp_a, qp_b) = pair.expect("nothing stands against it");
        a.nic.destroy_qp(Time::ZERO, qp_a).expect("it is there");
        b.nic.destroy_qp(Time::ZERO, qp_b).expect("it is there");
    }))
}

impl Host {
    fn timers(&mut self, now: Time) {
        if self.nic.poll_timeout().is_some_and(|due| due <= now) {
            self.nic.handle_timeout(now);
        }
    }
}
