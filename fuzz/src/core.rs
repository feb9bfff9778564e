//! A peer that sends what it likes to a core, over UD, DC and RC: never a panic, and the core still
//! serves its own client.

use std::cell::RefCell;
use std::net::IpAddr;

use elver_core::{ClientId, ClientLimits, Config, Core, NodeRecord, VqpId, VqpInit};
use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::*;

/// Bytes of a message's header.
const HEADER_BYTES: usize = 32;
const PORT: u16 = 7;

struct Attacker {
    device: SoftDevice,
    cq: Cq,
    ud: Qp,
    dci: Qp,
    ah: Ah,
    memory: SoftMemory,
    mr: MrInfo,
}

struct Victim {
    core: Core<SoftDevice>,
    client: ClientId,
    vqp: VqpId,
    sge: Sge,
    now: u64,
}

thread_local! {
    static WORLD: RefCell<Option<(Victim, Attacker)>> = const { RefCell::new(None) };
}

/// Runs an input.
pub fn run(bytes: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let (victim, attacker) = world.get_or_insert_with(|| {
            let victim = Victim::new();
            let attacker = Attacker::new(victim.core.gid());
            (victim.knowing(&attacker), attacker)
        });
        let mut rest = bytes;
        while let [kind, len, tail @ ..] = rest {
            let (message, tail) = tail.split_at(tail.len().min(usize::from(*len)));
            rest = tail;
            attacker.send(victim, *kind, message);
            victim.poll();
            attacker.poll();
        }
        victim.check();
    });
}

impl Victim {
    fn new() -> Victim {
        let config = Config {
            dc_qps: 2,
            log_dc_streams: 2,
            sq_depth: 64,
            max_mrs: 16,
            max_vqps: 64,
            max_peers: 16,
            recv_buffers: 64,
            recv_buffer_bytes: 1024,
            timeout: 1,
            retry_cnt: 1,
            ..Config::default()
        };
        let mut core = Core::new(device(1), config, 1, Time(1)).expect("a core");
        let client = core.client_open(ClientLimits::default()).expect("a client");
        let vqp = core.vqp_create(client, VqpInit::default()).expect("a VQP");
        core.qbind(client, vqp, PORT).expect("a port");
        let memory = core.device().alloc_memory(4096).expect("memory");
        let mr = core.reg_mr(client, memory, None, AccessFlags::LOCAL_WRITE).expect("a region");
        let sge = Sge { addr: mr.addr, length: 4096, lkey: mr.lkey };
        Victim { core, client, vqp, sge, now: 1 }
    }

    /// Makes it a meta server that has the attacker in its table, for it answers nobody else.
    fn knowing(mut self, attacker: &Attacker) -> Victim {
        let now = Time(self.now);
        let server = self.core.serve_meta(16).expect("a table");
        self.core.set_meta_servers(&[server], now);
        let gid = attacker.device.query_gid(0).expect("a GID");
        let control_qpn = attacker.device.qp_num(attacker.ud).expect("a QPN");
        let record = NodeRecord { control_qpn, ..self.core.record() };
        self.core.meta_put(gid, record).expect("room in the table");
        self
    }

    fn poll(&mut self) {
        for _ in 0..3 {
            self.now += 1_000_000;
            self.core.poll(Time(self.now));
        }
        let blank = elver_core::Completion { vqp: self.vqp, source: None, wc: Wc::default() };
        let mut into = [blank; 16];
        while self.core.poll_completions(self.client, &mut into) > 0 {}
        while self.core.poll_event().is_some() {}
        // VQPs that were accepted go, or there would soon be no room for another.
        let accepted: Vec<VqpId> =
            self.core.vqps().map(|info| info.vqp).filter(|vqp| *vqp != self.vqp).collect();
        for vqp in accepted {
            let _ = self.core.vqp_destroy(self.client, vqp, Time(self.now));
        }
        let wr = RecvWr { wr_id: 1, sges: &[self.sge] };
        let _ = self.core.post_recv(self.client, self.vqp, &[wr], Time(self.now));
    }

    fn check(&self) {
        let stats = self.core.stats();
        assert_eq!((stats.completions_unknown, stats.device_refusals), (0, 0), "{stats:?}");
    }
}

impl Attacker {
    fn new(victim: Gid) -> Attacker {
        let mut device = device(2);
        let pd = device.alloc_pd().expect("a PD");
        let cq = device.create_cq(CqInit { cqe: 4096 }).expect("a CQ");
        let memory = device.alloc_memory(4096).expect("memory");
        let mr = device.reg_mr(pd, memory.clone(), None, AccessFlags::LOCAL_WRITE).expect("an MR");
        let ah = AddressVector { dgid: victim, ..AddressVector::default() };
        let ah = device.create_ah(pd, ah).expect("an AH");
        let mut make = |qp_type| {
            let qp = device.create_qp(QpInit::new(qp_type, pd, cq)).expect("a QP");
            let mtu = device.query_port().active_mtu;
            let mut attr = QpAttr { path_mtu: mtu, timeout: 1, retry_cnt: 1, ..QpAttr::default() };
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                attr.qp_state = state;
                device.advance_qp(qp, &attr).expect("a transition");
            }
            qp
        };
        let (ud, dci) = (make(QpType::Ud), make(QpType::Dci));
        Attacker { device, cq, ud, dci, ah, memory, mr }
    }

    /// Sends a message, whose first bytes are made right where `kind` says so: chance does not hit
    /// them.
    fn send(&mut self, victim: &Victim, kind: u8, message: &[u8]) {
        let record = victim.core.record();
        let mut bytes = message.to_vec();
        let over_dc = kind & 1 != 0;
        if kind & 2 != 0 && over_dc {
            bytes.resize(bytes.len().max(HEADER_BYTES), 0);
            bytes[..3].copy_from_slice(b"EM\x04");
            bytes[3] = bytes[3] & 0x80 | (bytes[3] % 12 + 1);
            if bytes[3] & 0x80 == 0 {
                bytes[16..20].fill(0);
            }
            if kind & 4 != 0 {
                bytes[2] |= 0x80;
                bytes[8..12].copy_from_slice(&u32::from(PORT).to_le_bytes());
            }
            if kind & 8 != 0 {
                let length = (bytes.len() - HEADER_BYTES) as u32;
                bytes[20..24].copy_from_slice(&length.to_le_bytes());
            }
        } else if kind & 2 != 0 && bytes.len() >= 8 {
            bytes[..5].copy_from_slice(b"ElvC\x04");
            if kind & 4 != 0 {
                bytes.resize(28, 0);
                bytes[5..8].copy_from_slice(&[1, 0, 0]);
            }
        }
        bytes.truncate(2048);
        self.memory.write(0, &bytes).expect("in range");
        let sge = Sge { addr: self.mr.addr, length: bytes.len() as u32, lkey: self.mr.lkey };
        let (qp, dest) = if over_dc {
            let dest = Dest::Dc {
                ah: self.ah,
                remote_dctn: record.dctn,
                dc_access_key: record.dc_key,
                stream_id: 0,
            };
            (self.dci, dest)
        } else {
            let (remote_qpn, remote_qkey) = (record.control_qpn, record.control_qkey());
            (self.ud, Dest::Ud { ah: self.ah, remote_qpn, remote_qkey })
        };
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[sge]),
            dest: Some(dest),
        };
        let _ = self.device.post_send(qp, &[wr]);
    }

    fn poll(&mut self) {
        let mut wcs = [Wc::default(); 16];
        while self.device.poll_cq(self.cq, &mut wcs).expect("a CQ") > 0 {}
        while self.device.poll_async_event().is_some() {}
        let (attr, _) = self.device.query_qp(self.dci).expect("the DCI");
        if attr.qp_state == QpState::Err {
            let mtu = self.device.query_port().active_mtu;
            let mut attr = QpAttr { path_mtu: mtu, timeout: 1, retry_cnt: 1, ..QpAttr::default() };
            for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
                attr.qp_state = state;
                self.device.advance_qp(self.dci, &attr).expect("a transition");
            }
        }
    }
}

fn device(host: u8) -> SoftDevice {
    let mut config = SoftConfig::for_address(IpAddr::from([127, 0, 200, host]));
    config.rnic.udp_port = 29_200;
    config.publish = false;
    SoftDevice::open(config).expect("a device")
}
