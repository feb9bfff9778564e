//! Two QPs of one device: WRs run from MR to MR, without packets.

use anyhow::Result;
use elver_rnic::Time;
use elver_verbs::{Payload, QpType, SendFlags, SendWr};

use crate::host::{Host, OUTSTANDING_MAX};
use crate::sides::initiator_side;
use crate::step::{Operation, Step};

/// WRs of `bytes` bytes, `batch` at a time, each with a completion.
pub(crate) fn exchange(
    qp_type: QpType,
    operation: Operation,
    bytes: u32,
    batch: u32,
) -> Result<Step> {
    let mut host = Host::new(1)?;
    let qp = host.create_qp(qp_type, None)?;
    let other = match qp_type {
        QpType::Dci => host.create_dct()?,
        _ => host.create_qp(qp_type, None)?,
    };
    let peer = host.peer(other)?;
    host.connect(qp, qp_type, peer)?;
    if qp_type != QpType::Dci {
        host.connect(other, qp_type, host.peer(qp)?)?;
    }
    let dest = host.dest(qp_type, peer)?;
    let op = operation.towards(host.remote());
    let sges = [host.sge(bytes)];
    let now = Time(1_000_000);
    Ok(Box::new(move || {
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::empty(), payload, dest };
        let wrs = [wr; OUTSTANDING_MAX as usize];
        let mut completed = 0;
        initiator_side(|| {
            host.nic.post_send(now, qp, &wrs[..batch as usize]).expect("the queue has room");
            while completed < batch {
                completed += host.completions();
            }
        });
    }))
}
