//! Two connected devices, driven by the test's own thread.

pub mod capture;

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::*;

pub const REGION: u64 = 4 << 20;

pub struct End {
    pub device: SoftDevice,
    pub pd: Pd,
    pub cq: Cq,
    pub memory: SoftMemory,
    pub mr: MrInfo,
    pub qp: Qp,
}

impl End {
    pub fn open(config: SoftConfig, qp_type: QpType) -> End {
        let mut device = SoftDevice::open(config).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { cqe: 1024 }).unwrap();
        let memory = device.alloc_memory(REGION).unwrap();
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mr = device.reg_mr(pd, memory.clone(), None, access).unwrap();
        let init = QpInit { sq_sig_all: true, ..QpInit::new(qp_type, pd, cq) };
        let qp = device.create_qp(init).unwrap();
        End { device, pd, cq, memory, mr, qp }
    }

    pub fn connect(&mut self, peer: IpAddr, dest_qp_num: u32) {
        let qp_type = self.device.query_qp(self.qp).unwrap().1.qp_type;
        let mut attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            ah_attr: AddressVector { dgid: Gid::from(peer), ..AddressVector::default() },
            path_mtu: self.device.query_port().active_mtu,
            dest_qp_num,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            // Half a second: beside others of these tests a peer may not get its turn for long.
            timeout: 17,
            ..QpAttr::default()
        };
        let mut from = QpState::Reset;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = to;
            let row = qp_state::transition(qp_type, from, to).unwrap();
            self.device.modify_qp(self.qp, &attr, row.required | QpAttrMask::STATE).unwrap();
            from = to;
        }
    }

    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr + at, length, lkey: self.mr.lkey }
    }

    pub fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr + at, rkey: self.mr.rkey }
    }

    pub fn post(&mut self, op: SendOp, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 1, op, flags, payload, dest: None };
        self.device.post_send(self.qp, &[wr]).unwrap();
    }
}

/// Waits until the kernel's network of this thread has an address that was just given to it: it can
/// be bound, and for IPv6 the kernel listens to who asks for it. That the kernel does some time
/// later, and a neighbour that asked in vain asks again after a second only, when RC has given up.
pub fn await_address(address: IpAddr) {
    let listens = || match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => {
            let [.., a, b, c] = v6.octets();
            let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
            std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap().contains(&group)
        }
    };
    let end = Instant::now() + Duration::from_secs(60);
    while UdpSocket::bind((address, 0)).is_err() || !listens() {
        assert!(Instant::now() < end, "{address} never became usable");
        std::thread::yield_now();
    }
}

/// A connected pair on 127.0.N.1 and 127.0.N.2.
pub fn pair(n: u8, qp_type: QpType, change: impl Fn(&mut SoftConfig)) -> (End, End) {
    let [a_ip, b_ip] = [1, 2].map(|host| IpAddr::from([127, 0, n, host]));
    let open = |ip| {
        let mut config = SoftConfig::for_address(ip);
        change(&mut config);
        End::open(config, qp_type)
    };
    let (mut a, mut b) = (open(a_ip), open(b_ip));
    let a_num = a.device.qp_num(a.qp).unwrap();
    let b_num = b.device.qp_num(b.qp).unwrap();
    a.connect(b_ip, b_num);
    b.connect(a_ip, a_num);
    (a, b)
}

/// Drives both until `a` has `count` completions.
pub fn complete(a: &mut End, b: &mut End, count: usize) -> Vec<Wc> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut wcs = [Wc::default(); 16];
    let mut all = Vec::new();
    while all.len() < count {
        assert!(Instant::now() < end, "{} of {count} completions", all.len());
        let found = a.device.poll_cq(a.cq, &mut wcs).unwrap();
        all.extend_from_slice(&wcs[..found]);
        b.device.progress();
    }
    all
}

/// A file of this test's.
pub fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("elver-{}-{name}", std::process::id()))
}
