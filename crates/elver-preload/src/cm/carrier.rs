//! QP 1 of the device: carries the communication manager's messages.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::IpAddr;

use elver_soft::{SoftDevice, SoftMemory};
use elver_verbs::Memory as _;
use elver_verbs::{
    AccessFlags, AddressVector, Ah, Cq, CqInit, Dest, Device as _, Gid, Payload, Pd, Qp, QpAttr,
    QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc,
    WcOpcode, WcStatus,
};
use elver_wire::cm::{MAD_LEN, QKEY};

use crate::errno::of_verbs;

/// Messages that may arrive before they are looked at; further ones are lost, and come again.
const RECEIVES: usize = 256;
/// A message and the header that says where it is from.
const GRH: usize = 40;
const SLOT: usize = GRH + MAD_LEN;
/// Peers whose address handles are kept.
const HANDLES: usize = 256;
const HOP_LIMIT: u8 = 64;

pub(crate) struct Carrier {
    pd: Pd,
    pub(crate) cq: Cq,
    qp: Qp,
    memory: SoftMemory,
    base: u64,
    lkey: u32,
    handles: BTreeMap<IpAddr, Ah>,
}

impl Carrier {
    pub(crate) fn new(device: &mut SoftDevice) -> Result<Carrier, c_int> {
        let pd = device.alloc_pd().map_err(of_verbs)?;
        let cq = device.create_cq(CqInit { cqe: 4 * RECEIVES as u32 }).map_err(of_verbs)?;
        let cap = QpCap {
            max_send_wr: RECEIVES as u32,
            max_recv_wr: RECEIVES as u32,
            max_inline_data: MAD_LEN as u32,
            ..QpCap::default()
        };
        let init = QpInit { cap, general_services: true, ..QpInit::new(QpType::Ud, pd, cq) };
        let qp = device.create_qp(init).map_err(of_verbs)?;
        let attr = QpAttr { qp_state: QpState::Init, qkey: QKEY, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        device.modify_qp(qp, &attr, mask).map_err(of_verbs)?;
        let attr = QpAttr { qp_state: QpState::Rtr, ..attr };
        device.modify_qp(qp, &attr, QpAttrMask::STATE).map_err(of_verbs)?;
        let attr = QpAttr { qp_state: QpState::Rts, ..attr };
        let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        device.modify_qp(qp, &attr, mask).map_err(of_verbs)?;
        let memory = SoftMemory::alloc((RECEIVES * SLOT) as u64).map_err(|_| libc::ENOMEM)?;
        let base = memory.as_ptr() as u64;
        let region = device
            .reg_mr(pd, memory.clone(), Some(base), AccessFlags::LOCAL_WRITE)
            .map_err(of_verbs)?;
        let lkey = region.lkey;
        let mut made = Carrier { pd, cq, qp, memory, base, lkey, handles: BTreeMap::new() };
        for slot in 0..RECEIVES {
            made.post(device, slot as u64);
        }
        device.req_notify_cq(cq, false).map_err(of_verbs)?;
        Ok(made)
    }

    fn post(&mut self, device: &mut SoftDevice, slot: u64) {
        let addr = self.base + slot * SLOT as u64;
        let sges = [Sge { addr, length: SLOT as u32, lkey: self.lkey }];
        // There is room: the slot was just given back.
        let _ = device.post_recv(self.qp, &[RecvWr { wr_id: slot, sges: &sges }]);
    }

    /// Takes what arrived: who sent it, and its bytes. It must be from QP 1.
    pub(crate) fn take(&mut self, device: &mut SoftDevice) -> Vec<(IpAddr, Vec<u8>)> {
        let mut taken = Vec::new();
        // Armed first: what comes after the last look rings again.
        let _ = device.req_notify_cq(self.cq, false);
        loop {
            let mut wcs = [Wc::default(); 16];
            let count = device.take_completions(self.cq, &mut wcs).unwrap_or(0);
            for wc in &wcs[..count] {
                if wc.opcode != WcOpcode::Recv {
                    continue;
                }
                let length = (wc.byte_len as usize).clamp(GRH, SLOT) - GRH;
                let mut slot = vec![0; GRH + length];
                let read = self.memory.read(wc.wr_id * SLOT as u64, &mut slot);
                if read.is_ok() && wc.status == WcStatus::Success && wc.src_qp == 1 {
                    taken.push((sender(&slot), slot.split_off(GRH)));
                }
                self.post(device, wc.wr_id);
            }
            if count < wcs.len() {
                return taken;
            }
        }
    }

    /// Sends a message; what finds no room is lost, and is sent again when it is missed.
    pub(crate) fn send(&mut self, device: &mut SoftDevice, peer: IpAddr, mad: &[u8; MAD_LEN]) {
        let Some(ah) = self.handle(device, peer) else { return };
        let dest = Dest::Ud { ah, remote_qpn: 1, remote_qkey: QKEY };
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(mad),
            dest: Some(dest),
        };
        let _ = device.post_send(self.qp, &[wr]);
    }

    fn handle(&mut self, device: &mut SoftDevice, peer: IpAddr) -> Option<Ah> {
        if let Some(ah) = self.handles.get(&peer) {
            return Some(*ah);
        }
        if self.handles.len() >= HANDLES
            && let Some((_, ah)) = self.handles.pop_first()
        {
            let _ = device.destroy_ah(ah);
        }
        let vector = AddressVector {
            dgid: Gid::from(peer),
            hop_limit: HOP_LIMIT,
            ..AddressVector::default()
        };
        let ah = device.create_ah(self.pd, vector).ok()?;
        self.handles.insert(peer, ah);
        Some(ah)
    }
}

/// Where a datagram is from: its GRH ends with an IPv4 header, or is an IPv6 header (IBTA vol. 1,
/// A17.4.5.2).
fn sender(slot: &[u8]) -> IpAddr {
    let v6: [u8; 16] =
        slot.get(8..).and_then(|rest| rest.first_chunk().copied()).unwrap_or_default();
    let v4: [u8; 4] =
        slot.get(32..).and_then(|rest| rest.first_chunk().copied()).unwrap_or_default();
    if slot.first().is_some_and(|byte| byte >> 4 == 6) { v6.into() } else { v4.into() }
}
