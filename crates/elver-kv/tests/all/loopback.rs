//! A table read over RC by one device from another, through sockets, while a thread writes it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elver_kv::{Descriptor, Layout, Lookup, LookupError, Step, Table, TableId, Value};
use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::*;

const WAIT: Duration = Duration::from_secs(60);
const KEYS: u32 = 200;
const LOOKUPS: u32 = 10_000;

/// A device with an RC QP and one region.
struct End {
    address: IpAddr,
    device: SoftDevice,
    cq: Cq,
    qp: Qp,
    memory: SoftMemory,
    mr: MrInfo,
}

impl End {
    fn open(host: u8, bytes: u64, access: AccessFlags) -> End {
        let address = IpAddr::from([127, 0, 77, host]);
        let mut device = SoftDevice::open(SoftConfig::for_address(address)).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { cqe: 16 }).unwrap();
        let memory = device.alloc_memory(bytes).unwrap();
        let mr = device.reg_mr(pd, memory.clone(), None, access).unwrap();
        let qp = device.create_qp(QpInit::new(QpType::Rc, pd, cq)).unwrap();
        End { address, device, cq, qp, memory, mr }
    }

    fn connect(&mut self, peer: &End) {
        let dgid = Gid::from(peer.address);
        let mut attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ,
            ah_attr: AddressVector { dgid, ..AddressVector::default() },
            path_mtu: self.device.query_port().active_mtu,
            dest_qp_num: peer.device.qp_num(peer.qp).unwrap(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.qp_state = state;
            self.device.advance_qp(self.qp, &attr).unwrap();
        }
    }
}

/// The two ends, driven by the test's thread.
struct Pair {
    client: End,
    server: End,
}

impl Pair {
    fn open(bytes: u64) -> Pair {
        let mut client = End::open(1, 1024, AccessFlags::LOCAL_WRITE);
        let mut server = End::open(2, bytes, AccessFlags::REMOTE_READ);
        client.connect(&server);
        server.connect(&client);
        Pair { client, server }
    }

    fn read(&mut self, read: elver_kv::Read) -> Vec<u8> {
        let client = &mut self.client;
        let sges = [Sge { addr: client.mr.addr, length: read.len, lkey: client.mr.lkey }];
        let (op, payload) = (SendOp::Read(read.remote), Payload::Sges(&sges));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
        client.device.post_send(client.qp, &[wr]).unwrap();
        let end = Instant::now() + WAIT;
        let mut wc = [Wc::default()];
        while client.device.poll_cq(client.cq, &mut wc).unwrap() == 0 {
            assert!(Instant::now() < end, "a READ without a completion");
            self.server.device.progress();
        }
        assert_eq!(wc[0].status, WcStatus::Success);
        let mut bytes = vec![0; read.len as usize];
        client.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    /// Looks a key up until the writer lets it; the value and the READs that it took.
    fn find(&mut self, descriptor: &Descriptor, n: u32) -> (Option<Value>, u32) {
        let mut lookup = Lookup::new(descriptor, &key(n)).unwrap();
        let end = Instant::now() + WAIT;
        for reads in 1.. {
            let bytes = self.read(lookup.read());
            match lookup.feed(&bytes) {
                Ok(Step::Done(value)) => return (value, reads),
                Ok(Step::Read(_)) => {}
                // The writer was put to sleep in the middle of a change.
                Err(LookupError::Unstable { .. }) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < end, "key {n} is never consistent");
        }
        unreachable!()
    }
}

/// A GID.
fn key(n: u32) -> [u8; 16] {
    (0xfe80_u128 << 112 | u128::from(n)).to_be_bytes()
}

/// A value as long as a DCT's number and access key, in which every piece tells its age.
fn value(age: u32) -> Vec<u8> {
    age.to_le_bytes().repeat(3)
}

fn age(value: &Value) -> u32 {
    let age = u32::from_le_bytes(value[..4].try_into().unwrap());
    assert_eq!(value[..], self::value(age)[..], "a torn value");
    age
}

/// Writes until told to stop: every key gets older, and every third is removed now and then.
fn write(table: &mut Table<SoftMemory>, stop: &AtomicBool) -> u32 {
    for round in 1.. {
        for n in 0..KEYS {
            if n % 3 == 0 && round % 2 == 0 {
                table.remove(&key(n)).unwrap();
            } else {
                table.put(&key(n), &value(round)).unwrap();
            }
            if stop.load(Ordering::Relaxed) {
                return round;
            }
        }
    }
    unreachable!()
}

#[test]
fn reads_over_rc_while_the_writer_writes() {
    let layout = Layout::for_capacity(KEYS, 16, 12).unwrap();
    let mut pair = Pair::open(layout.table_bytes());
    let id = TableId { seed: 11, incarnation: 12 };
    let mut table = Table::create(pair.server.memory.clone(), layout, id).unwrap();
    for n in 0..KEYS {
        table.insert(&key(n), &value(0)).unwrap();
    }
    let mr = pair.server.mr;
    let sent = table.descriptor(mr.addr, mr.rkey).unwrap().encode();
    let descriptor = Descriptor::decode(&sent).unwrap();

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mut table, &stop));
        let (mut ages, mut reads) = ([0; KEYS as usize], 0);
        // A reader that fails must let the writer go, or the scope would wait for it forever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in (0..KEYS).cycle().take(LOOKUPS as usize) {
                let (found, took) = pair.find(&descriptor, n);
                reads += took;
                match found {
                    Some(value) => {
                        let age = age(&value);
                        let seen = &mut ages[n as usize];
                        assert!(age >= *seen, "key {n} was {seen}, and is {age} again");
                        *seen = age;
                    }
                    None => assert_eq!(n % 3, 0, "key {n} is never removed"),
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let rounds = writer.join().unwrap();
        println!("{LOOKUPS} look-ups, {reads} READs, {rounds} rounds of the writer");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });

    for n in 0..KEYS {
        let (found, reads) = pair.find(&descriptor, n);
        assert_eq!(found, table.get(&key(n)).unwrap());
        assert!(reads <= 2, "{reads} READs");
    }
    assert_eq!(pair.find(&descriptor, KEYS).0, None);
}
