//! A table read over RC in virtual time, under every fault of the network, while it is written
//! between any two packets.

use elver_kv::{Layout, Lookup, Step, Table, TableId, Value};
use elver_sim::{Config, FaultPlan, Rng, SimDevice, SimMemory, SimNet};
use elver_verbs::*;

const SEEDS: u64 = 40;
const KEYS: u64 = 60;
const LOOKUPS: u64 = 120;
/// What a READ may take at most, with all its retries, in nanoseconds.
const READ_NS_MAX: u64 = 10_000_000_000;

/// A device with an RC QP and one region.
struct End {
    device: SimDevice,
    cq: Cq,
    qp: Qp,
    memory: SimMemory,
    mr: MrInfo,
}

impl End {
    fn open(net: &SimNet, host: usize, bytes: u64, access: AccessFlags) -> End {
        let mut device = net.device(host, Config::default()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { cqe: 16 }).unwrap();
        let memory = device.alloc_memory(bytes).unwrap();
        let mr = device.reg_mr(pd, memory.clone(), None, access).unwrap();
        let qp = device.create_qp(QpInit::new(QpType::Rc, pd, cq)).unwrap();
        End { device, cq, qp, memory, mr }
    }

    fn connect(&mut self, dgid: Gid, dest_qp_num: u32) {
        let mut attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ,
            ah_attr: AddressVector { dgid, ..AddressVector::default() },
            dest_qp_num,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            // No bound: only the answer may end a READ.
            timeout: 0,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            self.device.advance_qp(self.qp, &attr).unwrap();
        }
    }
}

struct World {
    net: SimNet,
    client: End,
    server: End,
    table: Table<SimMemory>,
    /// Every value that a key had, oldest first, and since when; none while it was out.
    history: Vec<Vec<(Time, Option<u64>)>>,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> World {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let mut rng = Rng::new(seed).split("look-ups");
        let net = SimNet::new(addresses, &FaultPlan::generate(&mut rng), seed);
        let layout = Layout::for_capacity(KEYS as u32, 16, 12).unwrap();
        let mut client = End::open(&net, 0, 1_024, AccessFlags::LOCAL_WRITE);
        let mut server = End::open(&net, 1, layout.table_bytes(), AccessFlags::REMOTE_READ);
        let qpn = |end: &End| end.device.qp_num(end.qp).unwrap();
        let (ours, theirs) = (qpn(&client), qpn(&server));
        client.connect(net.gid(1), theirs);
        server.connect(net.gid(0), ours);
        let id = TableId { seed, incarnation: 1 };
        let table = Table::create(server.memory.clone(), layout, id).unwrap();
        let history = vec![vec![(Time::ZERO, None)]; KEYS as usize];
        World { net, client, server, table, history, rng }
    }

    /// The writer changes some key.
    fn change(&mut self) {
        let n = self.rng.below(KEYS);
        let now = self.net.now();
        let past = &mut self.history[n as usize];
        let is_in = past.last().is_some_and(|(_, value)| value.is_some());
        if is_in && self.rng.percent(40) {
            self.table.remove(&key(n)).unwrap();
            past.push((now, None));
        } else {
            let mark = self.rng.next_u64();
            self.table.put(&key(n), &value(mark)).unwrap();
            past.push((now, Some(mark)));
        }
    }

    fn read(&mut self, read: elver_kv::Read) -> Vec<u8> {
        let client = &mut self.client;
        let sges = [Sge { addr: client.mr.addr, length: read.len, lkey: client.mr.lkey }];
        let (op, payload) = (SendOp::Read(read.remote), Payload::Sges(&sges));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
        client.device.post_send(client.qp, &[wr]).unwrap();
        let limit = self.net.now().saturating_add_ns(READ_NS_MAX);
        loop {
            let ends = [&self.client, &self.server];
            let wakes = ends.into_iter().filter_map(|end| end.device.wake_at());
            let next = wakes.chain(self.net.next_arrival()).min().expect("a READ is lost");
            assert!(next < limit, "a READ without a completion");
            self.net.advance(next);
            if self.rng.percent(20) {
                self.change();
            }
            self.server.device.progress();
            let mut wc = [Wc::default()];
            if self.client.device.poll_cq(self.client.cq, &mut wc).unwrap() == 1 {
                assert_eq!(wc[0].status, WcStatus::Success);
                let mut bytes = vec![0; read.len as usize];
                self.client.memory.read(0, &mut bytes).unwrap();
                return bytes;
            }
        }
    }

    /// Looks a key up; it must get what the table held at some moment of the look-up.
    fn look_up(&mut self, n: u64) {
        let mr = self.server.mr;
        let descriptor = self.table.descriptor(mr.addr, mr.rkey).unwrap();
        let mut lookup = Lookup::new(&descriptor, &key(n)).unwrap();
        let since = self.net.now();
        let found = loop {
            let bytes = self.read(lookup.read());
            if let Step::Done(value) = lookup.feed(&bytes).unwrap() {
                break value.as_ref().map(mark);
            }
        };
        let past = &self.history[n as usize];
        let first = past.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
        let held = past[first..].iter().any(|(_, value)| *value == found);
        assert!(held, "key {n} gave {found:x?}, but was {:x?}", &past[first..]);
    }
}

fn key(n: u64) -> [u8; 16] {
    (0xfe80_u128 << 112 | u128::from(n)).to_be_bytes()
}

fn value(mark: u64) -> [u8; 12] {
    let mut value = [0; 12];
    value[..8].copy_from_slice(&mark.to_le_bytes());
    value[8..].copy_from_slice(&mark.to_le_bytes()[..4]);
    value
}

fn mark(value: &Value) -> u64 {
    let mark = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value[..], self::value(mark)[..], "a torn value");
    mark
}

#[test]
fn look_ups_give_what_the_table_held_under_faults() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..KEYS {
            world.change();
        }
        for _ in 0..LOOKUPS {
            let n = world.rng.below(KEYS);
            world.look_up(n);
        }
    }
}
