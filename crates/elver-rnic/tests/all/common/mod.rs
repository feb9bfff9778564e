//! Two or more devices on a wire that a test controls, packet by packet.

pub mod dc;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use elver_rnic::{Config, Errand, MAX_PACKET, Rnic, RxMeta, Time};
use elver_verbs::*;
use elver_wire::{Flow, IpId, icrc};

/// Memory of a test: a shared vector at an address of its own.
#[derive(Clone)]
pub struct VecMemory {
    base: u64,
    bytes: Rc<RefCell<Vec<u8>>>,
    gone: Rc<Cell<bool>>,
    late: Rc<Cell<bool>>,
    payer: Rc<Cell<u64>>,
    /// Accesses after which it is not at hand; 0 is never.
    soon: Rc<Cell<u32>>,
}

impl VecMemory {
    pub fn new(base: u64, len: usize) -> VecMemory {
        let bytes = Rc::new(RefCell::new(vec![0; len]));
        let (gone, late, payer) = (Rc::default(), Rc::default(), Rc::default());
        VecMemory { base, bytes, gone, late, payer, soon: Rc::default() }
    }

    /// From now on it is not at hand: only errands reach it.
    pub fn recede(&self) {
        self.late.set(true);
    }

    /// Whose it is.
    pub fn belongs_to(&self, payer: u64) {
        self.payer.set(payer);
    }

    /// The same, after so many accesses.
    pub fn recede_after(&self, accesses: u32) {
        self.late.set(false);
        self.soon.set(accesses);
    }

    /// It is at hand again.
    pub fn come_back(&self) {
        self.late.set(false);
    }

    /// Does an errand to it; whether that went well.
    pub fn run_errand(errand: &mut Errand<VecMemory>) -> bool {
        let Errand { memory, offset, bytes, writes, .. } = errand;
        let late = memory.late.replace(false);
        let done = match writes {
            true => memory.write(*offset, bytes),
            false => memory.read(*offset, bytes),
        };
        memory.late.set(late);
        done.is_ok()
    }

    /// From now on no device can use it, as if its process had unmapped it.
    pub fn vanish(&self) {
        self.gone.set(true);
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len, self.size())?;
        let late = self.late.get();
        if self.soon.get() > 0 {
            self.soon.set(self.soon.get() - 1);
            self.late.set(self.soon.get() == 0);
        }
        match (self.gone.get(), late) {
            (true, _) => Err(MemoryError::Gone { offset, len }),
            (false, true) => Err(MemoryError::Later),
            (false, false) => Ok(()),
        }
    }

    pub fn fill(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at..at + len].to_vec()
    }

    fn word(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        self.check(offset, 8)?;
        let mut bytes = self.bytes.borrow_mut();
        let at = offset as usize;
        let old = u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&change(old).to_ne_bytes());
        Ok(old)
    }
}

impl Memory for VecMemory {
    fn size(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn base_addr(&self) -> u64 {
        self.base
    }

    fn payer(&self) -> u64 {
        self.payer.get()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, dst.len() as u64)?;
        dst.copy_from_slice(&self.bytes.borrow()[offset as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, src.len() as u64)?;
        self.bytes.borrow_mut()[offset as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn copy_from(&self, at: u64, src: &Self, src_at: u64, len: u64) -> Result<(), MemoryError> {
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

/// A packet on the wire.
#[derive(Clone)]
pub struct Packet {
    pub flow: Flow,
    pub traffic_class: u8,
    pub bytes: Vec<u8>,
}

/// One device with a PD, a CQ and a registered region.
pub struct Host {
    pub nic: Rnic<VecMemory>,
    pub pd: Pd,
    pub cq: Cq,
    pub memory: VecMemory,
    pub mr: MrInfo,
}

pub const ALL_ACCESS: AccessFlags = AccessFlags::all().difference(AccessFlags::ZERO_BASED);
pub const REGION: usize = 1 << 20;

impl Host {
    pub fn new(config: Config, seed: u64) -> Host {
        let mut nic = Rnic::new(config, seed).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(CqInit { cqe: 4096 }).unwrap();
        let memory = VecMemory::new(0x1000_0000 * (seed + 1), REGION);
        let mr = nic.reg_mr(pd, memory.clone(), None, ALL_ACCESS).unwrap();
        Host { nic, pd, cq, memory, mr }
    }

    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr + at, length, lkey: self.mr.lkey }
    }

    pub fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr + at, rkey: self.mr.rkey }
    }

    pub fn poll(&mut self) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 64];
        let mut all = Vec::new();
        loop {
            let count = self.nic.poll_cq(self.cq, &mut wcs).unwrap();
            all.extend_from_slice(&wcs[..count]);
            if count == 0 {
                return all;
            }
        }
    }

    pub fn create_qp(&mut self, qp_type: QpType) -> Qp {
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(qp_type, self.pd, self.cq) };
        self.nic.create_qp(init).unwrap()
    }

    /// A QP in INIT; connected ones with every access.
    pub fn init_qp(&mut self, qp: Qp, qp_type: QpType) {
        let attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: ALL_ACCESS,
            qkey: 0x1111,
            ..QpAttr::default()
        };
        let extra = match qp_type {
            QpType::Ud => QpAttrMask::QKEY,
            QpType::Dci => QpAttrMask::empty(),
            _ => QpAttrMask::ACCESS_FLAGS,
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | extra;
        self.nic.modify_qp(Time::ZERO, qp, &attr, mask).unwrap();
    }

    /// Brings a QP to RTS, with `change` applied to the attributes of RTR and RTS.
    pub fn connect(
        &mut self,
        qp: Qp,
        qp_type: QpType,
        peer: IpAddr,
        dest_qp_num: u32,
        change: impl Fn(&mut QpAttr),
    ) {
        self.init_qp(qp, qp_type);
        let mut attr = QpAttr {
            qp_state: QpState::Rtr,
            ah_attr: AddressVector { dgid: Gid::from(peer), ..AddressVector::default() },
            path_mtu: Mtu::Mtu1024,
            dest_qp_num,
            rq_psn: 0xff_fff0,
            sq_psn: 0xff_fff0,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        change(&mut attr);
        for state in [QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            let from = if state == QpState::Rtr { QpState::Init } else { QpState::Rtr };
            let Some(row) = qp_state::transition(qp_type, from, state) else {
                return;
            };
            let mask = QpAttrMask::STATE | row.required;
            self.nic.modify_qp(Time::ZERO, qp, &attr, mask).unwrap();
        }
    }

    pub fn post(&mut self, now: Time, qp: Qp, op: SendOp, sges: &[Sge], dest: Option<Dest>) {
        let payload = Payload::Sges(sges);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::empty(), payload, dest };
        self.nic.post_send(now, qp, &[wr]).unwrap();
    }
}

/// Two hosts and the wire between them.
pub struct Net {
    pub now: Time,
    looked: Time,
    pub hosts: Vec<Host>,
    pub wire: VecDeque<Packet>,
}

pub fn address(host: usize) -> IpAddr {
    format!("10.0.0.{}", host + 1).parse().unwrap()
}

impl Net {
    pub fn new(count: usize) -> Net {
        Net::with_config(count, |_| {})
    }

    pub fn with_config(count: usize, change: impl Fn(&mut Config)) -> Net {
        let hosts = (0..count).map(|host| {
            let mut config = Config::for_address(address(host));
            change(&mut config);
            Host::new(config, host as u64)
        });
        Net {
            now: Time(1_000_000),
            looked: Time::ZERO,
            hosts: hosts.collect(),
            wire: VecDeque::new(),
        }
    }

    /// Connects a pair of QPs of hosts 0 and 1.
    pub fn connect(&mut self, qp_type: QpType, change: impl Fn(&mut QpAttr)) -> (Qp, Qp) {
        self.connect_hosts([0, 1], qp_type, change)
    }

    /// The same between two others.
    pub fn connect_hosts(
        &mut self,
        [first, second]: [usize; 2],
        qp_type: QpType,
        change: impl Fn(&mut QpAttr),
    ) -> (Qp, Qp) {
        let a = self.hosts[first].create_qp(qp_type);
        let b = self.hosts[second].create_qp(qp_type);
        let a_num = self.hosts[first].nic.qp_num(a).unwrap();
        let b_num = self.hosts[second].nic.qp_num(b).unwrap();
        self.hosts[first].connect(a, qp_type, address(second), b_num, &change);
        self.hosts[second].connect(b, qp_type, address(first), a_num, &change);
        (a, b)
    }

    /// Lets the devices know that nothing was on its way since they last looked, again and again as
    /// time passes.
    pub fn look(&mut self) {
        const STEP_NS: u64 = 100_000_000;
        for host in &mut self.hosts {
            let steps = self.now.ns_since(self.looked) / STEP_NS;
            for step in 1..=steps.min(1_000) {
                host.nic.caught_up(self.looked.saturating_add_ns(step * STEP_NS));
            }
            host.nic.caught_up(self.now);
        }
        self.looked = self.now;
    }

    /// Puts on the wire what the hosts want to send; false when they had nothing.
    pub fn transmit(&mut self) -> bool {
        let before = self.wire.len();
        if before == 0 {
            self.look();
        }
        for host in 0..self.hosts.len() {
            while self.transmit_one(host) {}
        }
        self.wire.len() > before
    }

    /// Puts on the wire what one host wants to send next.
    pub fn transmit_one(&mut self, host: usize) -> bool {
        let mut buf = [0; MAX_PACKET];
        let sent = self.hosts[host].nic.poll_transmit(self.now, &mut buf);
        let Some(sent) = sent else { return false };
        let bytes = &mut buf[..sent.len];
        icrc::seal(&sent.flow, 0, bytes);
        let (flow, traffic_class) = (sent.flow, sent.traffic_class);
        self.wire.push_back(Packet { flow, traffic_class, bytes: bytes.to_vec() });
        true
    }

    pub fn deliver(&mut self, packet: &Packet) {
        let meta = RxMeta {
            flow: packet.flow,
            traffic_class: packet.traffic_class,
            hop_limit: 64,
            ip_id: IpId::Exact(0),
        };
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if packet.flow.dst.ip().is_multicast() {
                host.nic.handle_multicast(self.now, &meta, &packet.bytes);
            } else if address(index) == packet.flow.dst.ip() {
                host.nic.handle_datagram(self.now, &meta, &packet.bytes);
            }
        }
    }

    /// Exchanges packets until there are none, each through `fault`, which says how often it
    /// arrives; then lets time pass to the next timer. Ends when nothing is due within a second.
    pub fn run(&mut self, mut fault: impl FnMut(&Packet) -> usize) {
        let end = self.now.saturating_add_ns(1_000_000_000);
        for _ in 0..200_000 {
            self.transmit();
            while let Some(packet) = self.wire.pop_front() {
                self.now = self.now.saturating_add_ns(200);
                for _ in 0..fault(&packet) {
                    self.deliver(&packet);
                }
            }
            if self.transmit() {
                continue;
            }
            let due = self.hosts.iter().filter_map(|host| host.nic.poll_timeout()).min();
            match due {
                Some(due) if due <= end => self.now = self.now.max(due),
                _ => return,
            }
            for host in &mut self.hosts {
                host.nic.handle_timeout(self.now);
            }
        }
        panic!("the devices never come to rest");
    }

    pub fn run_clean(&mut self) {
        self.run(|_| 1);
    }
}
