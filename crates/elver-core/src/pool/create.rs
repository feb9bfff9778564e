//! Makes the pool: sizes, buffers, and the queue pairs that are there from the start.

use alloc::vec::Vec;

use elver_control::control_qkey;
use elver_random::Rng;
use elver_verbs::{
    AccessFlags, CqInit, DciInit, Device, Gid, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SrqInit,
    VerbsError,
};

use crate::messaging::landing::LANDINGS_MAX;
use crate::messaging::message::HEADER_BYTES;
use crate::pool::buffers::{Buffers, SLOTS_RESERVED};
use crate::pool::lane::RESERVED;
use crate::pool::lanes::Lanes;
use crate::pool::{Pool, RNR_TIMER_MIN};
use crate::rc::pool::META_LINKS_MAX;
use crate::slots::SLOTS_MAX;
use crate::{Config, CoreError};

/// Bytes of a buffer that look-ups read into: no cluster of a table is longer.
pub(crate) const READ_BUFFER_BYTES: u64 = 1024;
/// Receives that the UD QP holds.
pub(crate) const CONTROL_RECVS: u32 = 256;
/// Sends that the UD QP holds.
pub(crate) const CONTROL_SENDS: u32 = 128;
/// Most send slots for messages.
const SEND_SLOTS_MAX: u32 = 4096;

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
        Lanes::of_dcis((dcis, high), streams, self.depth, || {
            self.create_dci(device, config, streams)
        })
    }
}

/// Checks what no configuration may lack.
pub(crate) fn check_config(config: &Config) -> Result<(), CoreError> {
    let slots = u64::from(SLOTS_MAX);
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
            return Err(CoreError::OutOfRange { name, value, min, max });
        }
    }
    Ok(())
}
