//! The control path: how long it takes to have a connection.

use std::time::Instant;

use anyhow::Result;
use elver_verbs::{
    AccessFlags, AddressVector, CqInit, Device, Mtu, Qp, QpAttr, QpAttrMask, QpInit, QpState,
    QpType, qp_state,
};

/// Pairs that are made and connected for one figure.
const PAIRS: u32 = 200;

/// Microseconds to create two RC QPs and bring both to RTS, connected to each other: the median of
/// many pairs. PD and CQ are there already, as they are in a program that connects often.
///
/// # Errors
///
/// What the device refuses.
pub fn connect_by_hand<D: Device>(device: &mut D) -> Result<f64> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(CqInit { cqe: 16 })?;
    let gid = device.query_gid(0)?;
    let mut times = Vec::new();
    let mut qps = Vec::new();
    for _ in 0..PAIRS {
        let start = Instant::now();
        let a = device.create_qp(QpInit::new(QpType::Rc, pd, cq))?;
        let b = device.create_qp(QpInit::new(QpType::Rc, pd, cq))?;
        let (a_num, b_num) = (device.qp_num(a)?, device.qp_num(b)?);
        let attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ,
            ah_attr: AddressVector { dgid: gid, ..AddressVector::default() },
            path_mtu: Mtu::Mtu4096,
            ..QpAttr::default()
        };
        bring_up(device, a, &QpAttr { dest_qp_num: b_num, ..attr })?;
        bring_up(device, b, &QpAttr { dest_qp_num: a_num, ..attr })?;
        times.push(start.elapsed().as_nanos() as u64);
        qps.extend([a, b]);
    }
    for qp in qps {
        device.destroy_qp(qp)?;
    }
    device.destroy_cq(cq)?;
    device.dealloc_pd(pd)?;
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / 1e3)
}

fn bring_up<D: Device>(device: &mut D, qp: Qp, attr: &QpAttr) -> Result<()> {
    let steps = [
        (QpState::Reset, QpState::Init),
        (QpState::Init, QpState::Rtr),
        (QpState::Rtr, QpState::Rts),
    ];
    for (from, to) in steps {
        if let Some(row) = qp_state::transition(QpType::Rc, from, to) {
            let attr = QpAttr { qp_state: to, ..*attr };
            device.modify_qp(qp, &attr, row.required | QpAttrMask::STATE)?;
        }
    }
    Ok(())
}
