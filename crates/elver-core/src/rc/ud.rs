//! The UD QP's buffers and addresses: what carries [`elver_control::Control`]'s datagrams.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use elver_control::{CONTROL_BYTES_MAX, ControlAddr, ControlMessage};
use elver_verbs::{
    AccessFlags, AddressVector, Ah, Dest, Device, Gid, Memory, MrInfo, Payload, Pd, Qp, RecvWr,
    SendFlags, SendOp, SendWr, Sge, VerbsError, Wc, WcStatus,
};

use crate::datapath::wr_id::WrId;
use crate::pool::create::{CONTROL_RECVS, CONTROL_SENDS};

/// Bytes in front of every received datagram (IBTA vol. 1, annex A17.4.5.2).
const GRH_BYTES: usize = 40;
const RECV_BYTES: usize = (GRH_BYTES + CONTROL_BYTES_MAX).next_multiple_of(64);
const SEND_BYTES: usize = CONTROL_BYTES_MAX.next_multiple_of(64);
/// Addresses kept. More than sends outstanding at once, so that none that is in use is destroyed.
const ADDRESSES_MAX: usize = 2 * CONTROL_SENDS as usize;

/// A control datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: Gid,
    pub(crate) from_qpn: u32,
    bytes: [u8; CONTROL_BYTES_MAX],
    len: usize,
}

impl Datagram {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Buffers and addresses of a UD QP that somebody else has made.
///
/// The slots that [`WrId::Control`] names are receives first, then sends.
#[derive(Debug)]
pub(crate) struct Ud<M> {
    qp: Qp,
    pd: Pd,
    memory: M,
    mr: MrInfo,
    /// Slots of sends that are not under way.
    free: Vec<u32>,
    addresses: BTreeMap<Gid, (Ah, u64)>,
    stamp: u64,
}

impl<M: Memory> Ud<M> {
    /// Registers the buffers and posts the receives.
    pub(crate) fn new<D: Device<Memory = M>>(
        device: &mut D,
        pd: Pd,
        qp: Qp,
    ) -> Result<Ud<M>, VerbsError> {
        let bytes = CONTROL_RECVS as usize * RECV_BYTES + CONTROL_SENDS as usize * SEND_BYTES;
        let memory = device.alloc_memory(bytes as u64)?;
        let mr = device.reg_mr(pd, memory.clone(), None, AccessFlags::LOCAL_WRITE)?;
        let free = (CONTROL_RECVS..CONTROL_RECVS + CONTROL_SENDS).rev().collect();
        let ud = Ud { qp, pd, memory, mr, free, addresses: BTreeMap::new(), stamp: 0 };
        for slot in 0..CONTROL_RECVS {
            ud.post_recv(device, slot)?;
        }
        Ok(ud)
    }

    /// Whether a message can be sent now; if not, one can after a send completes.
    pub(crate) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Addresses that it keeps.
    pub(crate) fn addresses(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// Sends a message, for which a slot is free. Returns whether the device took it; one that it refuses is
    /// lost, as UD may lose it.
    pub(crate) fn send<D: Device<Memory = M>>(
        &mut self,
        device: &mut D,
        to: ControlAddr,
        message: &ControlMessage,
    ) -> bool {
        let Ok(ah) = self.address(device, to.gid) else { return false };
        let Some(slot) = self.free.pop() else {
            bug!("no send is free that was");
            return false;
        };
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = message.encode(&mut bytes);
        let offset = offset(slot);
        let sges = [Sge { addr: self.mr.addr + offset, length: len as u32, lkey: self.mr.lkey }];
        let dest = Dest::Ud { ah, remote_qpn: to.qpn, remote_qkey: to.qkey };
        let wr = SendWr {
            wr_id: WrId::Control(slot).encode(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: Some(dest),
        };
        let written = self.memory.write(offset, &bytes[..len]).is_ok();
        let taken = written && device.post_send(self.qp, &[wr]).is_ok();
        if !taken {
            self.free.push(slot);
        }
        taken
    }

    /// Takes a completion of the UD QP's: a datagram, if it is of one that came.
    pub(crate) fn complete<D: Device<Memory = M>>(
        &mut self,
        device: &mut D,
        slot: u32,
        wc: &Wc,
    ) -> Option<Datagram> {
        if slot >= CONTROL_RECVS {
            self.free.push(slot);
            return None;
        }
        let datagram = self.datagram(slot, wc);
        // A receive that cannot be posted again leaves one less; the device itself is failing.
        let _ = self.post_recv(device, slot);
        datagram
    }

    fn datagram(&self, slot: u32, wc: &Wc) -> Option<Datagram> {
        let len = (wc.byte_len as usize).checked_sub(GRH_BYTES)?;
        if wc.status != WcStatus::Success || len > CONTROL_BYTES_MAX {
            return None;
        }
        let mut grh = [0; GRH_BYTES];
        let mut bytes = [0; CONTROL_BYTES_MAX];
        self.memory.read(offset(slot), &mut grh).ok()?;
        self.memory.read(offset(slot) + GRH_BYTES as u64, &mut bytes[..len]).ok()?;
        Some(Datagram { from: source(&grh), from_qpn: wc.src_qp, bytes, len })
    }

    fn post_recv<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        slot: u32,
    ) -> Result<(), VerbsError> {
        let (addr, length) = (self.mr.addr + offset(slot), RECV_BYTES as u32);
        let sges = [Sge { addr, length, lkey: self.mr.lkey }];
        let wr = RecvWr { wr_id: WrId::Control(slot).encode(), sges: &sges };
        Ok(device.post_recv(self.qp, &[wr]).map_err(|(_, error)| error)?)
    }

    /// The address handle of a GID; the one that was used longest ago gives way to a new one.
    fn address<D: Device>(&mut self, device: &mut D, gid: Gid) -> Result<Ah, VerbsError> {
        self.stamp += 1;
        if let Some((ah, used)) = self.addresses.get_mut(&gid) {
            *used = self.stamp;
            return Ok(*ah);
        }
        if self.addresses.len() >= ADDRESSES_MAX {
            let oldest = self.addresses.iter().min_by_key(|(_, (_, used))| *used);
            if let Some((&gid, &(ah, _))) = oldest {
                self.addresses.remove(&gid);
                device.destroy_ah(ah)?;
            }
        }
        let ah = device.create_ah(self.pd, AddressVector { dgid: gid, ..Default::default() })?;
        self.addresses.insert(gid, (ah, self.stamp));
        Ok(ah)
    }
}

/// First byte of a slot.
fn offset(slot: u32) -> u64 {
    let (recvs, sends) = (slot.min(CONTROL_RECVS), slot.saturating_sub(CONTROL_RECVS));
    u64::from(recvs) * RECV_BYTES as u64 + u64::from(sends) * SEND_BYTES as u64
}

/// Who sent a datagram with these first 40 bytes. An IPv4 header stands in the last 20 of them and
/// is known by its checksum, for those in front of it may hold anything.
fn source(grh: &[u8; GRH_BYTES]) -> Gid {
    let mut gid = [0; 16];
    let v4 = &grh[20..];
    if v4[0] == 0x45 && sums_to_zero(v4) {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&v4[12..16]);
    } else {
        gid.copy_from_slice(&grh[8..24]);
    }
    Gid(gid)
}

/// Whether a header holds its own Internet checksum (RFC 1071).
fn sums_to_zero(header: &[u8]) -> bool {
    let pairs = header.chunks_exact(2);
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_read_from_either_header() {
        let mut grh = [0xee; GRH_BYTES];
        let v4 = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0,
            199,
        ];
        grh[20..].copy_from_slice(&v4);
        assert_eq!(source(&grh), Gid::from(core::net::Ipv4Addr::new(192, 168, 0, 1)));
        grh[39] ^= 1;
        let v6: [u8; 16] = grh[8..24].try_into().unwrap();
        assert_eq!(source(&grh), Gid(v6), "no IPv4 header, whatever its first byte says");
    }

    #[test]
    fn slots_do_not_overlap() {
        assert_eq!(offset(1) - offset(0), RECV_BYTES as u64);
        assert_eq!(offset(CONTROL_RECVS) - offset(CONTROL_RECVS - 1), RECV_BYTES as u64);
        assert_eq!(offset(CONTROL_RECVS + 1) - offset(CONTROL_RECVS), SEND_BYTES as u64);
    }
}
