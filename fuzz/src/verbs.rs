//! The bytes are a programme of verbs calls on two devices, mixed with packets: their own, lost,
//! repeated, changed and sealed again, and others. Never a panic, never more completions than WRs,
//! never an endless loop.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use elver_rnic::{Config, MAX_PACKET, Rnic, RxMeta, Time};
use elver_verbs::*;
use elver_wire::{Flow, IpId, icrc};

/// Bytes of a device's memory.
const MEMORY: usize = 16 << 10;
/// Steps of a programme.
const STEPS: usize = 400;
/// Packets that a device may send between two steps.
const BURST: usize = 20_000;
const KEY: u64 = 0x42;

#[derive(Clone)]
struct FuzzMemory(Rc<RefCell<Vec<u8>>>, u64);

impl FuzzMemory {
    fn word(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(offset, &change(old).to_ne_bytes())?;
        Ok(old)
    }
}

impl Memory for FuzzMemory {
    fn size(&self) -> u64 {
        MEMORY as u64
    }

    fn base_addr(&self) -> u64 {
        self.1
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, dst.len() as u64, self.size())?;
        dst.copy_from_slice(&self.0.borrow()[offset as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, src.len() as u64, self.size())?;
        self.0.borrow_mut()[offset as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn copy_from(&self, at: u64, src: &Self, src_at: u64, len: u64) -> Result<(), MemoryError> {
        MemoryError::check_range(src_at, len, src.size())?;
        let mut bytes = vec![0; len as usize];
        src.read(src_at, &mut bytes)?;
        self.write(at, &bytes)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.word(offset, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        self.word(offset, |old| old.wrapping_add(add))
    }
}

/// The programme's bytes, zeros behind their end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

struct Host {
    nic: Rnic<FuzzMemory>,
    pd: Pd,
    cqs: Vec<Cq>,
    srqs: Vec<Srq>,
    mrs: Vec<MrInfo>,
    mws: Vec<MwInfo>,
    ahs: Vec<Ah>,
    xrcds: Vec<Xrcd>,
    qps: Vec<(Qp, QpType)>,
    memory: FuzzMemory,
    posted: u64,
    completed: u64,
}

/// Bytes that ask for a queue pair, and beyond which they ask for something that several share.
const SHARED: u8 = 240;
/// A multicast group, and the QPN of what is sent to it.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(230, 0, 0, 1));
const TO_ALL: u32 = 0xff_ffff;

fn address(host: usize) -> IpAddr {
    [10, 0, 0, host as u8 + 1].into()
}

impl Host {
    fn new(number: usize, input: &mut Input<'_>) -> Host {
        let mut config = Config::for_address(address(number));
        config.local_copy = input.byte() & 1 == 0;
        config.max_qp = 32;
        config.max_mr = 32;
        config.max_cq = 16;
        config.max_srq = 8;
        config.max_ah = 16;
        config.max_dc_contexts = 1 + u32::from(input.byte() % 4);
        config.flow.window_min = 1;
        config.flow.window_initial = 1 + u32::from(input.byte() % 64);
        let mut nic = Rnic::new(config, number as u64).expect("a valid configuration");
        let pd = nic.alloc_pd().expect("a PD");
        let cq = nic.create_cq(CqInit { cqe: 64 }).expect("a CQ");
        let bytes = Rc::new(RefCell::new(vec![0; MEMORY]));
        let memory = FuzzMemory(bytes, 0x10_0000 * (number as u64 + 1));
        let access = AccessFlags::all().difference(AccessFlags::ZERO_BASED);
        let mr = nic.reg_mr(pd, memory.clone(), None, access).expect("an MR");
        Host {
            nic,
            pd,
            cqs: vec![cq],
            srqs: Vec::new(),
            mrs: vec![mr],
            mws: Vec::new(),
            ahs: Vec::new(),
            xrcds: Vec::new(),
            qps: Vec::new(),
            memory,
            posted: 0,
            completed: 0,
        }
    }

    fn create(&mut self, input: &mut Input<'_>) {
        match input.below(6) {
            0 => self.cqs.extend(self.nic.create_cq(CqInit { cqe: input.word() % 128 })),
            1 => {
                let (max_wr, max_sge) = (input.word() % 64, input.word() % 5);
                let init = SrqInit { pd: self.pd, max_wr, max_sge };
                self.srqs.extend(self.nic.create_srq(init));
            }
            2 => {
                let access = AccessFlags::from_bits_truncate(input.word());
                let iova = (input.byte() & 1 == 0).then(|| u64::from(input.word()) << 16);
                let made = self.nic.reg_mr(self.pd, self.memory.clone(), iova, access);
                self.mrs.extend(made);
            }
            3 => self.mws.extend(self.nic.alloc_mw(self.pd)),
            4 => {
                let dgid = Gid::from(address(input.below(3)));
                let av = AddressVector { dgid, sgid_index: input.byte() & 1, ..Default::default() };
                self.ahs.extend(self.nic.create_ah(self.pd, av));
            }
            _ => {
                let kind = input.byte();
                if kind >= SHARED {
                    return self.create_shared(kind, input);
                }
                let qp_type = QpType::ALL[usize::from(kind) % 5];
                let cq = self.cqs[input.below(self.cqs.len())];
                let init = QpInit {
                    srq: if qp_type == QpType::Dct || input.byte() & 1 == 1 {
                        self.srqs.first().copied()
                    } else {
                        None
                    },
                    cap: QpCap {
                        max_send_wr: input.word() % 32,
                        max_recv_wr: input.word() % 32,
                        max_send_sge: input.word() % 4,
                        max_recv_sge: input.word() % 4,
                        max_inline_data: input.word() % 64,
                    },
                    sq_sig_all: input.byte() & 1 == 1,
                    dc_access_key: KEY,
                    dci: DciInit {
                        log_num_concurrent: input.byte() % 3,
                        log_num_errored: input.byte() % 3,
                    },
                    ..QpInit::new(qp_type, self.pd, cq)
                };
                self.qps.extend(self.nic.create_qp(init).map(|qp| (qp, qp_type)));
            }
        }
    }

    /// XRC, and multicast.
    fn create_shared(&mut self, kind: u8, input: &mut Input<'_>) {
        let cq = self.cqs[input.below(self.cqs.len())];
        let xrcd = self.xrcds.get(input.below(self.xrcds.len().max(1))).copied();
        match (kind, xrcd) {
            (SHARED..=243, _) if self.xrcds.len() < 3 => self.xrcds.extend(self.nic.open_xrcd()),
            (..=247, Some(xrcd)) => {
                let init = SrqInit { pd: self.pd, max_wr: input.word() % 64, max_sge: 2 };
                self.srqs.extend(self.nic.create_xrc_srq(init, xrcd, cq));
            }
            (..=249, Some(xrcd)) => {
                let made = self.nic.create_xrc_target(xrcd);
                self.qps.extend(made.map(|qp| (qp, QpType::XrcRecv)));
            }
            (..=251, _) => {
                let init = QpInit::new(QpType::XrcSend, self.pd, cq);
                self.qps.extend(self.nic.create_qp(init).map(|qp| (qp, QpType::XrcSend)));
            }
            (..=253, _) => {
                let av = AddressVector { dgid: Gid::from(GROUP), ..Default::default() };
                self.ahs.extend(self.nic.create_multicast_ah(self.pd, av));
            }
            _ => {
                if let Some(&(qp, _)) = self.qps.get(input.below(self.qps.len().max(1))) {
                    // Whether it may be in a group is the device's to say.
                    let _ = self.nic.attach_multicast(qp, Gid::from(GROUP));
                }
            }
        }
    }

    fn destroy(&mut self, now: Time, input: &mut Input<'_>) {
        let kind = input.below(6);
        let at = input.byte();
        let pick = |len: usize| (len > 0).then(|| usize::from(at) % len);
        match kind {
            0 if self.cqs.len() > 1 => {
                let at = 1 + usize::from(at) % (self.cqs.len() - 1);
                if self.nic.destroy_cq(self.cqs[at]).is_ok() {
                    self.cqs.remove(at);
                }
            }
            1 => {
                if let Some(at) = pick(self.srqs.len())
                    && self.nic.destroy_srq(self.srqs[at]).is_ok()
                {
                    self.srqs.remove(at);
                }
            }
            2 => {
                if let Some(at) = pick(self.mrs.len())
                    && self.nic.dereg_mr(self.mrs[at].mr).is_ok()
                {
                    self.mrs.remove(at);
                }
            }
            3 => {
                if let Some(at) = pick(self.mws.len()) {
                    self.nic.dealloc_mw(self.mws.remove(at).mw).expect("a window goes");
                }
            }
            4 => {
                if let Some(at) = pick(self.ahs.len()) {
                    self.nic.destroy_ah(self.ahs.remove(at)).expect("an AH goes");
                }
            }
            _ => {
                if let Some(at) = pick(self.qps.len()) {
                    let _ = self.nic.detach_multicast(self.qps[at].0, Gid::from(GROUP));
                    self.nic.destroy_qp(now, self.qps.remove(at).0).expect("a QP goes");
                }
            }
        }
    }

    fn modify(&mut self, now: Time, input: &mut Input<'_>, peer_qpn: u32, peer: usize) {
        let Some(&(qp, qp_type)) = self.qps.get(input.below(self.qps.len().max(1))) else { return };
        let from = self.nic.query_qp(qp).expect("it exists").0.qp_state;
        let to = QpState::ALL[input.below(7)];
        let mut mask = QpAttrMask::STATE;
        match qp_state::transition(qp_type, from, to) {
            Some(row) => mask |= row.required,
            None => mask |= QpAttrMask::from_bits_truncate(input.word()),
        }
        if input.byte() == 7 {
            mask ^= QpAttrMask::from_bits_truncate(input.word());
        }
        let attr = QpAttr {
            qp_state: to,
            cur_qp_state: from,
            qp_access_flags: AccessFlags::from_bits_truncate(u32::from(input.byte()) | 1),
            qkey: 5,
            ah_attr: AddressVector { dgid: Gid::from(address(peer)), ..Default::default() },
            path_mtu: Mtu::ALL[input.below(5)],
            timeout: input.byte() % 12,
            retry_cnt: input.byte() % 8,
            rnr_retry: input.byte() % 8,
            max_rd_atomic: input.byte() % 5,
            max_dest_rd_atomic: input.byte() % 5,
            min_rnr_timer: input.byte() % 32,
            dest_qp_num: peer_qpn,
            ..QpAttr::default()
        };
        // Whether it is allowed is the device's to say.
        let _ = self.nic.modify_qp(now, qp, &attr, mask);
    }

    fn sges(&self, input: &mut Input<'_>) -> Vec<Sge> {
        let Some(mr) = self.mrs.get(input.below(self.mrs.len().max(1))) else { return Vec::new() };
        (0..input.below(4))
            .map(|_| Sge {
                addr: mr.addr.wrapping_add(u64::from(input.byte()) * 72),
                length: u32::from(input.byte()) * 17,
                lkey: mr.lkey ^ u32::from(input.byte() == 3),
            })
            .collect()
    }

    fn post_send(
        &mut self,
        now: Time,
        input: &mut Input<'_>,
        (peer, peer_srq): (Option<MrInfo>, u32),
        peer_qpn: u32,
    ) {
        let Some(&(qp, qp_type)) = self.qps.get(input.below(self.qps.len().max(1))) else { return };
        let remote = RemoteAddr {
            addr: peer.map_or(0, |mr| mr.addr).wrapping_add(u64::from(input.byte()) * 8),
            rkey: peer.map_or(0, |mr| mr.rkey) ^ u32::from(input.byte() == 9),
        };
        let op = match SendOpcode::ALL[input.below(10)] {
            SendOpcode::Send => SendOp::Send,
            SendOpcode::SendWithImm => SendOp::SendWithImm(1),
            SendOpcode::SendWithInv => SendOp::SendWithInv(remote.rkey),
            SendOpcode::Write => SendOp::Write(remote),
            SendOpcode::WriteWithImm => SendOp::WriteWithImm(remote, 2),
            SendOpcode::Read => SendOp::Read(remote),
            SendOpcode::CompareSwap => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            SendOpcode::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            SendOpcode::BindMw => match (self.mws.first(), self.mrs.first()) {
                (Some(mw), Some(mr)) => SendOp::BindMw(BindMw {
                    mw: mw.mw,
                    rkey: mw.rkey ^ u32::from(input.byte()),
                    mr: mr.mr,
                    addr: mr.addr,
                    length: u64::from(input.byte()) * 100,
                    access: AccessFlags::REMOTE_WRITE,
                }),
                _ => SendOp::Send,
            },
            SendOpcode::LocalInv => SendOp::LocalInv(self.mws.first().map_or(1, |mw| mw.rkey)),
        };
        let mut sges = self.sges(input);
        if matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
            && let Some(sge) = sges.first_mut()
        {
            sge.length = 8;
            sges.truncate(1);
        }
        let ah = self.ahs.get(input.below(self.ahs.len().max(1))).copied().unwrap_or(Ah(0));
        let dest = match qp_type {
            QpType::Ud => {
                let grouped = self.nic.query_ah(ah).is_ok_and(|av| av.dgid == Gid::from(GROUP));
                let remote_qpn = if grouped { TO_ALL } else { peer_qpn };
                Some(Dest::Ud { ah, remote_qpn, remote_qkey: 5 })
            }
            QpType::XrcSend => Some(Dest::Xrc { remote_srqn: peer_srq }),
            QpType::Dci => Some(Dest::Dc {
                ah,
                remote_dctn: peer_qpn,
                dc_access_key: KEY ^ u64::from(input.byte() == 1),
                stream_id: u16::from(input.byte()),
            }),
            _ => None,
        };
        let inline = [7; 80];
        let payload = if input.byte() & 3 == 3 {
            Payload::Inline(&inline[..input.below(80)])
        } else {
            Payload::Sges(&sges)
        };
        let flags = SendFlags::from_bits_truncate(input.byte());
        let wr = SendWr { wr_id: 1, op, flags, payload, dest };
        let wrs = vec![wr; 1 + input.below(4)];
        self.posted += match self.nic.post_send(now, qp, &wrs) {
            Ok(()) => wrs.len() as u64,
            Err((posted, _)) => posted as u64,
        };
    }

    fn post_recv(&mut self, now: Time, input: &mut Input<'_>) {
        let sges = self.sges(input);
        let wrs = vec![RecvWr { wr_id: 2, sges: &sges }; 1 + input.below(4)];
        let shared = self.srqs.get(input.below(self.srqs.len().max(1))).copied();
        let result = match shared {
            Some(srq) if input.byte() & 1 == 0 => self.nic.post_srq_recv(now, srq, &wrs),
            _ => match self.qps.get(input.below(self.qps.len().max(1))) {
                Some(&(qp, _)) => self.nic.post_recv(now, qp, &wrs),
                None => return,
            },
        };
        self.posted += match result {
            Ok(()) => wrs.len() as u64,
            Err((posted, _)) => posted as u64,
        };
    }

    fn poll(&mut self) {
        let mut wcs = [Wc::default(); 32];
        for cq in self.cqs.clone() {
            loop {
                let count = self.nic.poll_cq(cq, &mut wcs).expect("it exists");
                self.completed += count as u64;
                if count == 0 {
                    break;
                }
            }
        }
        assert!(self.completed <= self.posted, "more completions than WRs");
        while self.nic.poll_async_event().is_some() {}
        while self.nic.poll_cq_event().is_some() {}
    }
}

/// Delivers a packet, as `fate` says.
fn deliver(hosts: &mut [Host], now: Time, flow: Flow, mut bytes: Vec<u8>, fate: u8) {
    let times = match fate % 8 {
        0 => 0,
        1 => 2,
        2 => {
            let at = usize::from(fate) * 7 % (bytes.len() - 4);
            bytes[at] ^= 1 << (fate >> 5);
            icrc::seal(&flow, 0, &mut bytes);
            1
        }
        _ => 1,
    };
    let traffic_class = if fate == 99 { 3 } else { 2 };
    let meta = RxMeta { flow, traffic_class, hop_limit: 64, ip_id: IpId::Exact(0) };
    for (number, host) in hosts.iter_mut().enumerate() {
        if flow.dst.ip().is_multicast() {
            for _ in 0..times {
                host.nic.handle_multicast(now, &meta, &bytes);
            }
        } else if address(number) == flow.dst.ip() {
            for _ in 0..times {
                host.nic.handle_datagram(now, &meta, &bytes);
            }
        }
    }
}

/// Runs an input.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut hosts = [Host::new(0, &mut input), Host::new(1, &mut input)];
    let mut now = Time(1);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        let who = input.below(2);
        let to = input.below(2);
        let peer_mr = hosts[to].mrs.get(input.below(4)).copied();
        let peer_srq = hosts[to].srqs.last().map_or(1, |srq| srq.0);
        let peer_qp = hosts[to].qps.get(input.below(4)).map_or(1, |(qp, _)| qp.0);
        let host = &mut hosts[who];
        match input.below(9) {
            0 => host.create(&mut input),
            1 => host.destroy(now, &mut input),
            2 | 3 => host.modify(now, &mut input, peer_qp, to),
            4 | 5 => host.post_send(now, &mut input, (peer_mr, peer_srq), peer_qp),
            6 => host.post_recv(now, &mut input),
            7 => {
                if let Some(&(qp, _)) = host.qps.first() {
                    // Whether it has such a stream is the device's to say.
                    let _ = host.nic.reset_dci_stream(now, qp, u16::from(input.byte()));
                }
                now = now.saturating_add_ns(u64::from(input.word()));
            }
            _ => {
                let len = 16 + input.below(64);
                let mut raw: Vec<u8> = (0..len).map(|_| input.byte()).collect();
                raw[5..8].copy_from_slice(&peer_qp.to_be_bytes()[1..]);
                let (src, dst) = ((address(who), 4791), (address(to), 4791));
                let flow = Flow { src: src.into(), dst: dst.into() };
                icrc::seal(&flow, 0, &mut raw);
                deliver(&mut hosts, now, flow, raw, 5);
            }
        }
        let fate = input.byte();
        let mut buf = [0; MAX_PACKET];
        for who in 0..2 {
            hosts[who].nic.handle_timeout(now);
            let mut sent = 0;
            while let Some(packet) = hosts[who].nic.poll_transmit(now, &mut buf) {
                sent += 1;
                assert!(sent < BURST, "a device never stops sending");
                icrc::seal(&packet.flow, 0, &mut buf[..packet.len]);
                let fate = fate.wrapping_add((sent as u8).wrapping_mul(31));
                deliver(&mut hosts, now, packet.flow, buf[..packet.len].to_vec(), fate);
            }
            hosts[who].poll();
        }
    }
}
