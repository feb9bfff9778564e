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
/// Messages that may wait to leave.
const SENDS: usize = 256;
/// Peers whose address handles are kept: a message looks its handle up when it leaves, and of so many handles the one that is
/// unused longest is no message's that waits.
const HANDLES: usize = 2 * SENDS;
const HOP_LIMIT: u8 = 64;

pub(crate) struct Carrier {
    pd: Pd,
    pub(crate) cq: Cq,
    qp: Qp,
    memory: SoftMemory,
    base: u64,
    lkey: u32,
    /// Address handles, and the number of the last message by each.
    handles: BTreeMap<IpAddr, (Ah, u64)>,
    /// Messages that were to be sent.
    sends: u64,
    /// Messages that arrived while others were sent.
    arrived: Vec<(IpAddr, Vec<u8>)>,
}

impl Carrier {
    pub(crate) fn new(device: &mut SoftDevice) -> Result<Carrier, c_int> {
        let pd = device.alloc_pd().map_err(of_verbs)?;
        let cq = device.create_cq(CqInit { cqe: 4 * RECEIVES as u32 }).map_err(of_verbs)?;
        let cap = QpCap {
            max_send_wr: SENDS as u32,
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
        let mut made = Carrier {
            pd,
            cq,
            qp,
            memory,
            base,
            lkey,
            handles: BTreeMap::new(),
            sends: 0,
            arrived: Vec::new(),
        };
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
        // Armed first: what comes after the last look rings again.
        let _ = device.req_notify_cq(self.cq, false);
        self.drain(device);
        std::mem::take(&mut self.arrived)
    }

    /// Takes completions. Sends have one only if they failed, which stops the QP: it goes on, and what is missed is sent again.
    fn drain(&mut self, device: &mut SoftDevice) {
        let mut has_failed = false;
        loop {
            let mut wcs = [Wc::default(); 16];
            let count = device.take_completions(self.cq, &mut wcs).unwrap_or(0);
            for wc in &wcs[..count] {
                if wc.opcode != WcOpcode::Recv {
                    has_failed = true;
                    continue;
                }
                let length = (wc.byte_len as usize).clamp(GRH, SLOT) - GRH;
                let mut slot = vec![0; GRH + length];
                let read = self.memory.read(wc.wr_id * SLOT as u64, &mut slot);
                if read.is_ok() && wc.status == WcStatus::Success && wc.src_qp == 1 {
                    self.arrived.push((sender(&slot), slot.split_off(GRH)));
                }
                self.post(device, wc.wr_id);
            }
            if count < wcs.len() {
                break;
            }
        }
        if has_failed {
            let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
            let _ = device.modify_qp(self.qp, &attr, QpAttrMask::STATE);
        }
    }

    /// Sends a message; what finds no room is lost, and is sent again when it is missed.
    pub(crate) fn send(&mut self, device: &mut SoftDevice, peer: IpAddr, mad: &[u8; MAD_LEN]) {
        self.sends += 1;
        // Failures and what arrives must not fill the CQ, however many messages a step sends.
        if self.sends.is_multiple_of(SENDS as u64) {
            self.drain(device);
        }
        let known = self.handles.get(&peer).map(|(ah, _)| *ah);
        let Some(ah) = known.or_else(|| self.create_handle(device, peer)) else { return };
        let dest = Dest::Ud { ah, remote_qpn: 1, remote_qkey: QKEY };
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            payload: Payload::Inline(mad),
            dest: Some(dest),
        };
        if device.post_send(self.qp, &[wr]).is_err() {
            if known.is_none() {
                let _ = device.destroy_ah(ah);
            }
            return;
        }
        self.handles.insert(peer, (ah, self.sends));
        if self.handles.len() > HANDLES {
            self.destroy_oldest_handle(device);
        }
    }

    fn create_handle(&self, device: &mut SoftDevice, peer: IpAddr) -> Option<Ah> {
        let vector = AddressVector {
            dgid: Gid::from(peer),
            hop_limit: HOP_LIMIT,
            ..AddressVector::default()
        };
        device.create_ah(self.pd, vector).ok()
    }

    fn destroy_oldest_handle(&mut self, device: &mut SoftDevice) {
        let oldest = self.handles.iter().min_by_key(|(_, (_, last))| *last);
        let Some(peer) = oldest.map(|(peer, _)| *peer) else { return };
        if let Some((ah, _)) = self.handles.remove(&peer) {
            let _ = device.destroy_ah(ah);
        }
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use elver_soft::SoftConfig;

    use super::*;

    /// An address of this process's own, of a group's.
    fn address(group: u8, end: u8) -> IpAddr {
        IpAddr::from([127, 207, (std::process::id() % 16) as u8 | group << 4, end])
    }

    fn end(address: IpAddr) -> (SoftDevice, Carrier) {
        let mut device = SoftDevice::open(SoftConfig::for_address(address)).unwrap();
        let carrier = Carrier::new(&mut device).unwrap();
        (device, carrier)
    }

    /// Sends a message until it has come, as the communication manager does.
    fn arrives(from: &mut (SoftDevice, Carrier), to: &mut (SoftDevice, Carrier)) {
        let begun = Instant::now();
        let message = [0xaa; MAD_LEN];
        loop {
            from.1.send(&mut from.0, to.0.address(), &message);
            let _ = (from.0.progress(), to.0.progress());
            let _ = from.1.take(&mut from.0);
            let all = to.1.take(&mut to.0);
            if all.iter().any(|(peer, bytes)| *peer == from.0.address() && bytes[..] == message) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing arrives");
        }
    }

    #[test]
    fn a_step_may_speak_to_more_peers_than_have_handles() {
        let [mut from, mut to] = [0, 1].map(|number| end(address(1, number)));
        let peers = || (0..2 * HANDLES as u16).rev();
        // Each time all handles give way, to smaller addresses each.
        for peer in peers().chain(peers()) {
            let [high, low] = peer.to_be_bytes();
            from.1.send(&mut from.0, [127, 207, high, low].into(), &[0; MAD_LEN]);
        }
        assert_eq!(from.1.handles.len(), HANDLES);
        from.0.progress();
        assert_eq!(from.0.query_qp(from.1.qp).unwrap().0.qp_state, QpState::Rts);
        arrives(&mut from, &mut to);
    }

    #[test]
    fn a_step_may_send_more_than_a_cq_has_room_for() {
        let [mut from, mut to] = [0, 1].map(|number| end(address(2, number)));
        for _ in 0..3_000 {
            from.1.send(&mut from.0, to.0.address(), &[0; MAD_LEN]);
        }
        arrives(&mut from, &mut to);
        arrives(&mut to, &mut from);
    }

    #[test]
    fn what_fails_stops_nothing() {
        let [mut from, mut to] = [0, 1].map(|number| end(address(3, number)));
        for _ in 0..3 {
            // The first leaves at once; the others wait, and find no handle.
            for _ in 0..3 {
                from.1.send(&mut from.0, to.0.address(), &[0; MAD_LEN]);
            }
            let (ah, _) = from.1.handles.remove(&to.0.address()).unwrap();
            from.0.destroy_ah(ah).unwrap();
            from.0.progress();
            assert_eq!(from.0.query_qp(from.1.qp).unwrap().0.qp_state, QpState::Sqe);
            // However much is flushed meanwhile.
            for _ in 0..3_000 {
                from.1.send(&mut from.0, to.0.address(), &[0; MAD_LEN]);
            }
            arrives(&mut from, &mut to);
        }
    }
}
