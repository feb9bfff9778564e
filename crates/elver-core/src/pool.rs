//! The physical queue pairs that all VQPs share, their lanes and buffers (section 4.3).

pub(crate) mod index_vec;
pub(crate) mod lane;

use alloc::vec::Vec;

use elver_control::control_qkey;
use elver_verbs::{
    AccessFlags, AddressVector, Class, Cq, CqInit, DciInit, Device, DeviceAttr, Gid, MemoryError,
    MrInfo, Mtu, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, Sge, Srq, SrqInit,
    VerbsError,
};

use crate::Config;
use crate::datapath::wr_id::WrId;
use crate::ids::{LaneIx, PeerId, QpIx};
use crate::messaging::landing::LANDINGS_MAX;
use crate::messaging::message::{HEADER_BYTES, Header};
use crate::pool::index_vec::IndexVec;
use crate::pool::lane::{Lane, LaneKind, LaneState, PhysQp, RESERVED};
use crate::rc::META_LINKS_MAX;
use crate::rc::path::Path;
use elver_random::Rng;

/// Send slots kept for the core's own messages.
pub(crate) const SLOTS_RESERVED: u32 = 32;
/// Bytes of a buffer that look-ups read into: no cluster of a table is longer.
pub(crate) const READ_BUFFER_BYTES: u64 = 1024;
/// Receives that the UD QP holds.
pub(crate) const CONTROL_RECVS: u32 = 256;
/// Sends that the UD QP holds.
pub(crate) const CONTROL_SENDS: u32 = 128;
/// Receive buffers that are posted by one call.
const RECVS_AT_ONCE: usize = 32;
/// Most send slots for messages.
const SEND_SLOTS_MAX: u32 = 4096;
/// What the code of the shortest RNR NAK timer is (IBTA vol. 1, table 45).
pub(crate) const RNR_TIMER_MIN: u8 = 1;

/// The physical objects that all VQPs share, but for the QPs that they send on: those stand, with
/// their lanes, in [`Lanes`].
#[derive(Debug)]
pub(crate) struct Pool<M> {
    pub(crate) pd: Pd,
    /// Where everything completes, sends and receives: polling costs the same however many QPs
    /// there are. It holds an entry for all that can be outstanding.
    pub(crate) cq: Cq,
    /// Where messages arrive, over the DCT and over RC QPs.
    pub(crate) srq: Srq,
    /// What peers' DCIs send to; none on a device without DC.
    pub(crate) dct: Option<Qp>,
    pub(crate) dctn: u32,
    pub(crate) dc_key: u64,
    /// The UD QP for control.
    pub(crate) ud: Qp,
    pub(crate) ud_qpn: u32,
    /// Capabilities and limits of the device.
    pub(crate) attr: DeviceAttr,
    pub(crate) mtu: Mtu,
    /// Most bytes of a message that is copied.
    pub(crate) eager_max: u32,
    /// Most bytes of a message.
    pub(crate) max_length: u32,
    /// Most inline bytes of a user's WR.
    pub(crate) max_inline: u32,
    /// Depth of the send queues that VQPs share.
    pub(crate) depth: u32,
    /// Buffers of the node's own, in one region: receives, send slots, look-ups.
    pub(crate) memory: M,
    pub(crate) mr: MrInfo,
    pub(crate) recvs: Buffers,
    pub(crate) sends: Buffers,
    pub(crate) reads: Buffers,
}

/// Buffers of one size in the node's region.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// First byte in the memory.
    start: u64,
    /// Bytes of each.
    pub(crate) bytes: u64,
    pub(crate) count: u32,
    free: Vec<u32>,
}

impl Buffers {
    fn new(start: u64, bytes: u64, count: u32) -> Buffers {
        Buffers { start, bytes, count, free: (0..count).rev().collect() }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes * u64::from(self.count)
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    #[inline]
    pub(crate) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    pub(crate) fn available(&self) -> u32 {
        self.free.len() as u32
    }

    /// First byte of a buffer in the memory.
    #[inline]
    pub(crate) fn offset(&self, buffer: u32) -> u64 {
        self.start + self.bytes * u64::from(buffer)
    }
}

/// The QPs that VQPs send on, and their lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// First the DCIs, then RC QPs. An RC QP's index may be used again.
    pub(crate) qps: IndexVec<QpIx, PhysQp>,
    /// First `streams` of each DCI, then one of each RC QP.
    pub(crate) lanes: IndexVec<LaneIx, Lane>,
    /// DCIs.
    pub(crate) dcis: u32,
    /// Of these, the last ones, for the high class alone.
    high: u32,
    /// Streams of each.
    pub(crate) streams: u32,
    /// QPs and lanes of RC QPs that are gone.
    free: Vec<(QpIx, LaneIx)>,
}

impl Lanes {
    /// Takes in an RC QP that is connected to a peer; returns its lane.
    pub(crate) fn add_rc(&mut self, qp: Qp, depth: u32, peer: PeerId, path: Path) -> LaneIx {
        let (at, lane) = self.free.pop().unwrap_or((self.qps.end(), self.lanes.end()));
        let mut phys = PhysQp::new(qp, depth, (lane, 1));
        let entry = Lane { path: Some(path), ..Lane::new(at, LaneKind::Rc { peer }) };
        if at == self.qps.end() {
            self.qps.push(phys);
            self.lanes.push(entry);
        } else {
            // It may still stand in the list of QPs on which room was made.
            phys.dirty = self.qps[at].dirty;
            self.qps[at] = phys;
            self.lanes[lane] = entry;
        }
        lane
    }

    /// Lets go of an RC QP, with nothing and nobody on its lane.
    pub(crate) fn remove_rc(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes[lane];
        if !entry.is_left() {
            bug!("an RC QP goes while it is used");
        }
        entry.state = LaneState::Gone;
        let at = entry.qp;
        let phys = &mut self.qps[at];
        phys.depth = 0;
        phys.waiting.clear();
        self.free.push((at, lane));
    }

    /// The lane over DC for a peer. A peer always gets the same one, so that its traffic needs no
    /// change of target between WRs, and if it does not answer few others share its lane.
    pub(crate) fn dc_lane(&self, hash: u64, class: Class) -> Option<LaneIx> {
        let (first, count) = match class {
            Class::High if self.high > 0 => (self.dcis - self.high, self.high),
            _ => (0, self.dcis - self.high),
        };
        if count == 0 {
            return None;
        }
        let lanes = u64::from(count * self.streams);
        let at = ((u128::from(hash) * u128::from(lanes)) >> 64) as u32;
        let (dci, stream) = (at / self.streams, at % self.streams);
        if self.qps[QpIx(first + dci)].broken {
            return Some(self.lane_beside(first, count, dci, stream));
        }
        Some(LaneIx(first * self.streams + at))
    }

    /// The lane of a stream of the next DCI that is not broken, among `count` from `first` on; of
    /// this one if all are.
    #[cold]
    fn lane_beside(&self, first: u32, count: u32, dci: u32, stream: u32) -> LaneIx {
        let others = (0..count).map(|step| first + (dci + step) % count);
        let mut working = others.filter(|dci| !self.qps[QpIx(*dci)].broken);
        LaneIx(working.next().unwrap_or(first + dci) * self.streams + stream)
    }

    /// The class that a DCI is for.
    pub(crate) fn class_of(&self, dci: QpIx) -> Class {
        if dci.0 + self.high >= self.dcis { Class::High } else { Class::Low }
    }

    /// Tells that there may be room on a QP. The list of these is worked off once a poll.
    #[inline]
    pub(crate) fn freed(&mut self, qp: QpIx, dirty: &mut Vec<QpIx>) {
        let phys = &mut self.qps[qp];
        if !phys.dirty && !phys.waiting.is_empty() {
            phys.dirty = true;
            dirty.push(qp);
        }
    }

    /// A lane has something that waits.
    pub(crate) fn wait(&mut self, lane: LaneIx) {
        let entry = &mut self.lanes[lane];
        if !entry.waiting {
            entry.waiting = true;
            self.qps[entry.qp].waiting.push_back(lane);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let lists = |(_, lane): (LaneIx, &Lane)| (lane.ready.capacity() + lane.ops.capacity()) * 4;
        let queues: usize = self.lanes.iter().map(lists).sum();
        let waiting: usize = self.qps.iter().map(|(_, qp)| qp.waiting.capacity() * 4).sum();
        (queues + waiting + self.lanes.bytes() + self.qps.bytes()) as u64
    }
}

/// Creates the pool and its DCIs.
pub(crate) fn create<D: Device>(
    device: &mut D,
    config: &Config,
    rng: &mut Rng,
) -> Result<(Pool<D::Memory>, Lanes), VerbsError> {
    let (attr, port) = (device.query_device(), device.query_port());
    let pd = device.alloc_pd()?;
    let dcis = if attr.transports.dc { config.dc_qps } else { 0 };
    let qps = u64::from(dcis + META_LINKS_MAX) + u64::from(config.transfer.rc_qps_max);
    let depth = (config.sq_depth + RESERVED).min(attr.max_qp_wr);
    let sends = qps * u64::from(depth);
    let sends = sends + u64::from(config.transfer.leased_wrs_max);
    let receives = u64::from(config.recv_buffers + CONTROL_RECVS + CONTROL_SENDS);
    let landings = u64::from(LANDINGS_MAX);
    let cqe = u32::try_from(sends + receives + landings).unwrap_or(u32::MAX);

    let cq = device.create_cq(CqInit { cqe })?;
    let srq = device.create_srq(SrqInit { pd, max_wr: config.recv_buffers, max_sge: 1 })?;

    let body = config.recv_buffer_bytes - HEADER_BYTES as u32;
    let max_inline = config.max_inline.min(attr.max_inline_data).min(body);
    let slot = HEADER_BYTES as u64 + u64::from(max_inline.max(config.max_sge * 16));
    let slots = (dcis + config.transfer.rc_qps_max).max(1).saturating_mul(config.sq_depth);
    let slots = slots.saturating_add(SLOTS_RESERVED);
    // An odd number of cache lines, so that the beginnings of buffers lie in all sets of a cache.
    let recv_bytes = u64::from(config.recv_buffer_bytes).next_multiple_of(64) | 64;
    let recvs = Buffers::new(0, recv_bytes, config.recv_buffers);
    let slots = slots.min(SEND_SLOTS_MAX);
    let sends = Buffers::new(recvs.end(), slot.next_multiple_of(64), slots);
    let reads = 2 * config.storm.lookups_max + 64;
    let reads = Buffers::new(sends.end(), READ_BUFFER_BYTES, reads);
    let memory = device.alloc_memory(reads.end())?;
    let mr = device.reg_mr(pd, memory.clone(), None, AccessFlags::LOCAL_WRITE)?;

    let mut pool = Pool {
        pd,
        cq,
        srq,
        dct: None,
        dctn: 0,
        dc_key: rng.next_u64(),
        ud: Qp(0),
        ud_qpn: 0,
        mtu: port.active_mtu,
        eager_max: config.eager_bytes_max.min(recv_bytes as u32 - HEADER_BYTES as u32),
        max_length: port.max_msg_sz,
        max_inline,
        depth,
        attr,
        memory,
        mr,
        recvs,
        sends,
        reads,
    };
    (pool.ud, pool.ud_qpn) = pool.create_ud(device)?;
    if dcis > 0 {
        let (dct, dctn) = pool.create_dct(device)?;
        (pool.dct, pool.dctn) = (Some(dct), dctn);
    }
    pool.post_all_receives(device)?;
    let lanes = pool.create_dcis(device, config, dcis)?;
    Ok((pool, lanes))
}

impl<M: elver_verbs::Memory> Pool<M> {
    /// Bytes of a message that a receive buffer holds behind a header, and the most that is copied to one.
    #[inline]
    pub(crate) fn rooms(&self) -> (u32, u32) {
        (self.recvs.bytes as u32 - HEADER_BYTES as u32, self.eager_max)
    }

    /// The SGE of the first `length` bytes of a receive buffer.
    #[inline]
    pub(crate) fn recv_sge(&self, buffer: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.recvs.offset(buffer), length, lkey: self.mr.lkey }
    }

    /// The SGE of the first `length` bytes of a send slot.
    #[inline]
    pub(crate) fn send_sge(&self, slot: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.sends.offset(slot), length, lkey: self.mr.lkey }
    }

    /// Writes a message's header to its slot.
    #[inline(always)] // So that the header exists in registers alone.
    pub(crate) fn write_header(&mut self, slot: u32, header: &Header) -> Result<(), MemoryError> {
        self.memory.write(self.sends.offset(slot), &header.encode())
    }

    /// The SGE of the first `length` bytes of a look-up's buffer.
    #[inline]
    pub(crate) fn read_sge(&self, buffer: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.reads.offset(buffer), length, lkey: self.mr.lkey }
    }

    /// The attributes that a QP of the pool goes to RTS with, towards `dgid`.
    pub(crate) fn qp_attr(&self, config: &Config, dgid: Gid) -> QpAttr {
        QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            ah_attr: AddressVector { dgid, ..AddressVector::default() },
            path_mtu: self.mtu,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: self.attr.max_qp_init_rd_atom,
            max_dest_rd_atomic: self.attr.max_qp_rd_atom,
            min_rnr_timer: RNR_TIMER_MIN,
            ..QpAttr::default()
        }
    }

    /// Takes a DCI to RTS, from RESET.
    pub(crate) fn start_dci<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        config: &Config,
        qp: Qp,
    ) -> Result<(), VerbsError> {
        let mut attr = self.qp_attr(config, Gid::default());
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            device.advance_qp(qp, &attr)?;
        }
        Ok(())
    }

    /// Creates a DCI of so many streams, in RTS.
    pub(crate) fn create_dci<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        config: &Config,
        streams: u32,
    ) -> Result<Qp, VerbsError> {
        let log_streams = streams.ilog2() as u8;
        let cap = QpCap {
            max_send_wr: self.depth,
            max_recv_wr: 0,
            max_send_sge: config.max_sge + 1,
            max_recv_sge: 0,
            max_inline_data: self.max_inline,
        };
        let init = QpInit {
            cap,
            dci: DciInit { log_num_concurrent: log_streams, log_num_errored: log_streams },
            ..QpInit::new(QpType::Dci, self.pd, self.cq)
        };
        let qp = device.create_qp(init)?;
        if let Err(error) = self.start_dci(device, config, qp) {
            // One that does not start is of no use; why it does not is what counts.
            let _ = device.destroy_qp(qp);
            return Err(error);
        }
        Ok(qp)
    }

    /// Posts receive buffers that were read.
    pub(crate) fn post_receives<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        buffers: &[u32],
    ) -> Result<(), VerbsError> {
        for buffers in buffers.chunks(RECVS_AT_ONCE) {
            let mut sges = [Sge::default(); RECVS_AT_ONCE];
            for (sge, &buffer) in sges.iter_mut().zip(buffers) {
                *sge = self.recv_sge(buffer, self.recvs.bytes as u32);
            }
            let mut wrs = [RecvWr { wr_id: 0, sges: &[] }; RECVS_AT_ONCE];
            for ((wr, sge), &buffer) in wrs.iter_mut().zip(sges.chunks(1)).zip(buffers) {
                *wr = RecvWr { wr_id: WrId::Recv(buffer).encode(), sges: sge };
            }
            let posted = device.post_srq_recv(self.srq, &wrs[..buffers.len()]);
            posted.map_err(|(_, error)| error)?;
        }
        Ok(())
    }

    fn post_all_receives<D: Device<Memory = M>>(
        &mut self,
        device: &mut D,
    ) -> Result<(), VerbsError> {
        let buffers: Vec<u32> = core::iter::from_fn(|| self.recvs.take()).collect();
        self.post_receives(device, &buffers)
    }

    fn create_ud<D: Device>(&self, device: &mut D) -> Result<(Qp, u32), VerbsError> {
        let cap = QpCap {
            max_send_wr: CONTROL_SENDS,
            max_recv_wr: CONTROL_RECVS,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: self.max_inline,
        };
        // All nodes' devices send from the same port, and nobody else on their hosts can.
        let init =
            QpInit { cap, same_source_port: true, ..QpInit::new(QpType::Ud, self.pd, self.cq) };
        let qp = device.create_qp(init)?;
        let mut attr = QpAttr { qkey: control_qkey(self.dc_key), ..QpAttr::default() };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            device.advance_qp(qp, &attr)?;
        }
        Ok((qp, device.qp_num(qp)?))
    }

    fn create_dct<D: Device>(&self, device: &mut D) -> Result<(Qp, u32), VerbsError> {
        let init = QpInit {
            srq: Some(self.srq),
            dc_access_key: self.dc_key,
            cap: QpCap { max_send_wr: 0, max_recv_wr: 0, ..QpCap::default() },
            ..QpInit::new(QpType::Dct, self.pd, self.cq)
        };
        let qp = device.create_qp(init)?;
        let mut attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            path_mtu: self.mtu,
            min_rnr_timer: RNR_TIMER_MIN,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr] {
            attr.qp_state = state;
            device.advance_qp(qp, &attr)?;
        }
        Ok((qp, device.qp_num(qp)?))
    }

    fn create_dcis<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        config: &Config,
        dcis: u32,
    ) -> Result<Lanes, VerbsError> {
        let streams_max = self.attr.max_dci_streams.max(1);
        let streams = (1u32 << config.log_dc_streams.min(16)).min(1 << streams_max.ilog2());
        let high = if dcis > 1 { config.qos.high_dc_qps.min(dcis - 1) } else { 0 };
        let (qps, all) = (IndexVec::new(), IndexVec::new());
        let mut lanes = Lanes { qps, lanes: all, dcis, high, streams, free: Vec::new() };
        for index in 0..dcis {
            let qp = self.create_dci(device, config, streams)?;
            let phys = PhysQp::new(qp, self.depth, (LaneIx(index * streams), streams));
            let at = lanes.qps.push(phys);
            for stream in 0..streams {
                lanes.lanes.push(Lane::new(at, LaneKind::Dc { stream: stream as u16 }));
            }
        }
        Ok(lanes)
    }
}

/// Checks what no configuration may lack.
pub(crate) fn check_config(config: &Config) -> Result<(), crate::CoreError> {
    let slots = u64::from(crate::slots::SLOTS_MAX);
    let ranges: [(&'static str, u64, u64, u64); 11] = [
        ("dc_qps", u64::from(config.dc_qps), 0, 1 << 12),
        ("sq_depth", u64::from(config.sq_depth), u64::from(2 * RESERVED), 1 << 15),
        ("max_sge", u64::from(config.max_sge), 1, 32),
        ("max_vqps", u64::from(config.max_vqps), 1, slots),
        ("max_accepted", u64::from(config.max_accepted), 1, slots),
        ("max_vqp_wr", u64::from(config.max_vqp_wr), 1, 1 << 20),
        ("max_mrs", u64::from(config.max_mrs), 1, 1 << 20),
        ("max_peers", u64::from(config.max_peers), 2, slots),
        ("recv_buffers", u64::from(config.recv_buffers), 1, 1 << 20),
        ("recv_buffer_bytes", u64::from(config.recv_buffer_bytes), 512, 1 << 24),
        ("lookups_max", u64::from(config.storm.lookups_max), 1, 1 << 16),
    ];
    for (name, value, min, max) in ranges {
        if !(min..=max).contains(&value) {
            return Err(crate::CoreError::OutOfRange { name, value, min, max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_class_has_dcis_for_itself() {
        let free = Vec::new();
        let (mut qps, lanes) = (IndexVec::new(), IndexVec::new());
        for n in 0..8 {
            qps.push(PhysQp::new(Qp(n), 16, (LaneIx(4 * n), 4)));
        }
        let mut lanes = Lanes { qps, lanes, dcis: 8, high: 2, streams: 4, free };
        let mut reached = [[false; 8]; 2];
        for n in 0..1_000u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for class in [Class::High, Class::Low] {
                let lane = lanes.dc_lane(hash, class).unwrap();
                reached[class as usize][lane.0 as usize / 4] = true;
            }
        }
        assert_eq!(reached[Class::High as usize], [0, 0, 0, 0, 0, 0, 1, 1].map(|n| n == 1));
        assert_eq!(reached[Class::Low as usize], [1, 1, 1, 1, 1, 1, 0, 0].map(|n| n == 1));
        let (high, low) = (lanes.dc_lane(7, Class::High), lanes.dc_lane(7, Class::Low));
        (lanes.qps[QpIx(0)].broken, lanes.qps[QpIx(1)].broken, lanes.qps[QpIx(6)].broken) =
            (true, true, true);
        assert_eq!(
            lanes.dc_lane(7, Class::Low),
            low.map(|lane| LaneIx(lane.0 + 8)),
            "the next that works"
        );
        assert_eq!(lanes.dc_lane(7, Class::High), high.map(|lane| LaneIx(lane.0 + 4)));
        lanes.qps[QpIx(7)].broken = true;
        assert_eq!(lanes.dc_lane(7, Class::High), high, "none of the class works");
        (lanes.dcis, lanes.high, lanes.qps[QpIx(0)].broken) = (1, 0, false);
        assert_eq!(lanes.dc_lane(7, Class::High), lanes.dc_lane(7, Class::Low), "one for all");
        (lanes.dcis, lanes.high) = (0, 0);
        assert_eq!(lanes.dc_lane(7, Class::High), None, "no DC");
    }
}
