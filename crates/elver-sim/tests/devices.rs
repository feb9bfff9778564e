//! Devices in virtual time: what the verbs promise holds under faults, and a seed replays.

use elver_sim::{Config, Fault, FaultPlan, Rates, SimDevice, SimMemory, SimNet};
use elver_verbs::*;

const BYTES: u64 = 64 * 1024;
const ACCESS_KEY: u64 = 0x1234_5678_9abc_def0;
/// No test needs more virtual time.
const LIMIT: Time = Time(60_000_000_000);

/// A device with a QP that sends and one that receives.
struct End {
    device: SimDevice,
    cq: Cq,
    sender: Qp,
    target: Qp,
    ah: Option<Ah>,
    memory: SimMemory,
    mr: MrInfo,
}

impl End {
    fn open(net: &SimNet, host: usize, transport: QpType) -> End {
        let mut device = net.device(host, Config::default()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { cqe: 256 }).unwrap();
        let memory = device.alloc_memory(BYTES).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let mr = device.reg_mr(pd, memory.clone(), None, access).unwrap();
        let sender = device.create_qp(QpInit::new(transport, pd, cq)).unwrap();
        let target = if transport == QpType::Dci {
            let srq = device.create_srq(SrqInit { pd, max_wr: 8, max_sge: 1 }).unwrap();
            let init = QpInit {
                srq: Some(srq),
                dc_access_key: ACCESS_KEY,
                ..QpInit::new(QpType::Dct, pd, cq)
            };
            device.create_qp(init).unwrap()
        } else {
            sender
        };
        let to = AddressVector { dgid: net.gid(1 - host), ..AddressVector::default() };
        let ah = (transport == QpType::Dci).then(|| device.create_ah(pd, to).unwrap());
        End { device, cq, sender, target, ah, memory, mr }
    }

    fn connect(&mut self, gid: Gid, peer: u32) {
        let attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_WRITE,
            ah_attr: AddressVector { dgid: gid, ..AddressVector::default() },
            dest_qp_num: peer,
            min_rnr_timer: 1,
            timeout: 8,
            ..QpAttr::default()
        };
        for qp_state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { qp_state, ..attr };
            self.device.advance_qp(self.sender, &attr).unwrap();
            if self.target != self.sender && qp_state != QpState::Rts {
                self.device.advance_qp(self.target, &attr).unwrap();
            }
        }
    }
}

/// Two hosts; the first one sends.
struct Pair {
    net: SimNet,
    ends: [End; 2],
    completions: Vec<Wc>,
}

impl Pair {
    fn open(transport: QpType, rates: Rates, seed: u64) -> Pair {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let plan = FaultPlan { rates, ..FaultPlan::default() };
        let net = SimNet::new(addresses, &plan, seed);
        let mut ends = [0, 1].map(|host| End::open(&net, host, transport));
        for host in [0, 1] {
            let peer = &ends[1 - host];
            // A DCT has a number from RTR on, and a DCI needs no peer's.
            let qpn = peer.device.qp_num(peer.sender).unwrap();
            ends[host].connect(net.gid(1 - host), qpn);
        }
        Pair { net, ends, completions: Vec::new() }
    }

    fn write(&mut self, wr_id: u64, at: u64, len: u32) {
        let [us, peer] = &mut self.ends;
        let sges = [Sge { addr: us.mr.addr + at, length: len, lkey: us.mr.lkey }];
        let dest = us.ah.map(|ah| Dest::Dc {
            ah,
            remote_dctn: peer.device.qp_num(peer.target).unwrap(),
            dc_access_key: ACCESS_KEY,
            stream_id: 0,
        });
        let wr = SendWr {
            wr_id,
            op: SendOp::Write(RemoteAddr { addr: peer.mr.addr + at, rkey: peer.mr.rkey }),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest,
        };
        us.device.post_send(us.sender, &[wr]).unwrap();
    }

    /// Runs until so many WRs have completed; false if nothing is due before that.
    fn run(&mut self, count: usize) -> bool {
        while self.completions.len() < count {
            let wakes = self.ends.iter().filter_map(|end| end.device.wake_at());
            let Some(next) = wakes.chain(self.net.next_arrival()).min() else { return false };
            assert!(next < LIMIT, "no end before {next:?}");
            self.net.advance(next);
            for end in &mut self.ends {
                end.device.progress();
                let mut wcs = [Wc::default(); 16];
                let taken = end.device.poll_cq(end.cq, &mut wcs).unwrap();
                self.completions.extend(&wcs[..taken]);
            }
        }
        true
    }

    /// Writes all of the first host's memory to the second's, in pieces.
    fn write_all(&mut self) {
        let content: Vec<u8> = (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
        self.ends[0].memory.write(0, &content).unwrap();
        const PIECE: u32 = 2_048;
        let pieces = BYTES / u64::from(PIECE);
        for piece in 0..pieces {
            self.write(piece, piece * u64::from(PIECE), PIECE);
        }
        assert!(self.run(pieces as usize));
        for (wc, id) in self.completions.iter().zip(0..) {
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
        assert_eq!(*self.ends[1].memory.view(), content);
    }
}

const LOSSY: Rates = Rates {
    loss: 50_000,
    duplicate: 20_000,
    reorder: 50_000,
    corrupt: 20_000,
    truncate: 0,
    replay: 0,
    garbage: 10_000,
    ecn_mark: 0,
    jitter_ns: 0,
};

#[test]
fn writes_arrive_under_loss() {
    for transport in [QpType::Rc, QpType::Dci] {
        for seed in 0..20 {
            let mut pair = Pair::open(transport, LOSSY, seed);
            pair.write_all();
        }
    }
}

#[test]
fn a_seed_replays() {
    let play = |seed| {
        let mut pair = Pair::open(QpType::Dci, LOSSY, seed);
        pair.write_all();
        (pair.net.trace_hash(), pair.net.now(), pair.net.packets(), pair.net.faults())
    };
    assert_eq!(play(7), play(7));
    assert_ne!(play(7).0, play(8).0);
}

#[test]
fn the_timing_is_the_papers() {
    let mut pair = Pair::open(QpType::Rc, Rates::default(), 1);
    pair.write(0, 0, 8);
    assert!(pair.run(1));
    let took = pair.net.now().0;
    assert!((2_000..2_400).contains(&took), "a WRITE of 8 bytes took {took} ns");
}

#[test]
fn a_stalled_engine_does_nothing_and_then_goes_on() {
    let mut pair = Pair::open(QpType::Rc, Rates::default(), 1);
    let until = Time(5_000_000);
    pair.net.stall(1, until);
    pair.write(0, 0, 8);
    assert!(pair.run(1));
    assert!(pair.net.now() >= until);
    assert_eq!(pair.completions[0].status, WcStatus::Success);
    assert_eq!(pair.net.faults()[&Fault::SlowEngine], 1);
}

/// It says that it is past what had arrived when it said so last, though it is never at the end of what arrives.
#[test]
fn one_that_takes_few_packets_at_a_look_says_how_far_it_is() {
    let mut pair = Pair::open(QpType::Uc, Rates::default(), 1);
    pair.ends[1].device.take_at_once(2);
    assert_eq!(pair.ends[1].device.intake(), Intake::Behind, "it has not looked");
    let arrive = |pair: &mut Pair, packets: u64| {
        for at in 0..packets {
            pair.write(at, 0, 8);
            pair.ends[0].device.progress();
        }
        let until = pair.net.now().saturating_add_ns(1_000_000);
        pair.net.advance(until);
    };
    let look = |pair: &mut Pair| {
        pair.ends[1].device.progress();
        pair.ends[1].device.intake()
    };
    arrive(&mut pair, 3);
    assert_eq!(look(&mut pair), Intake::Past, "nothing had waited before");
    arrive(&mut pair, 3);
    // The one that waited then, and one of those that came.
    assert_eq!(look(&mut pair), Intake::Past);
    arrive(&mut pair, 3);
    // Two waited then, and three came.
    assert_eq!(look(&mut pair), Intake::Past);
    assert_eq!(look(&mut pair), Intake::Behind);
    assert_eq!(look(&mut pair), Intake::Empty);
}

#[test]
fn healing_ends_partitions_and_stalls() {
    let mut pair = Pair::open(QpType::Rc, Rates::default(), 1);
    pair.net.partition(0, 1, LIMIT);
    pair.net.stall(1, LIMIT);
    pair.write(0, 0, 8);
    pair.net.heal();
    assert!(pair.run(1));
    assert_eq!(pair.completions[0].status, WcStatus::Success);
}

#[test]
fn a_crashed_device_is_cut_off_and_another_takes_its_place() {
    let mut pair = Pair::open(QpType::Rc, Rates::default(), 1);
    let before = pair.ends[1].memory.base_addr();
    pair.net.crash(1);
    pair.write(0, 0, 8);
    assert!(pair.run(1));
    assert_eq!(pair.completions[0].status, WcStatus::RetryExcErr);
    let end = End::open(&pair.net, 1, QpType::Rc);
    assert_ne!(end.memory.base_addr(), before, "an address came again");
    // The old one's end must not take the new one's place with it.
    pair.ends[1] = end;
    assert!(pair.ends[1].device.wake_at().is_none());
    pair.ends[1].device.progress();
    assert_eq!(pair.ends[1].device.host(), 1);
}
