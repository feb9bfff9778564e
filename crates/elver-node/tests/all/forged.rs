//! Clients that write what they like into their shared memory, against a node that serves others.

use crate::common::{Client, engine_counter, free_address, gid, wait_for};
use crate::config;
use elver_node::{Node, NodeThread};
use elver_portal::{Layout, Message, Received, Socket};
use elver_soft::SoftMemory;
use elver_verbs::{RemoteAddr, WcStatus};

/// Words of the layout (see [`Layout`]).
const HEADS: [u64; 3] = [32, 48, 64];
const COMMANDS: u64 = 80;
const SLOT_WORDS: u64 = 8;
const SLOTS: u64 = 64;

/// A generator of numbers, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x1234_5679);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A session as its raw memory.
struct Raw {
    socket: Socket,
    memory: SoftMemory,
    words: u64,
}

impl Raw {
    fn connect(node: &NodeThread) -> Raw {
        let socket = node.connect().unwrap();
        let slots = SLOTS as u32;
        let layout = Layout { command_slots: slots, receive_slots: slots, completion_slots: slots };
        socket.send(&Message::Hello { layout, first: None }, None).unwrap();
        let (layout, file) = wait_for("the welcome", || match socket.receive(true).unwrap() {
            Received::Message(Message::Welcome(welcome), Some(file)) => {
                Some((welcome.layout, file))
            }
            Received::Nothing => None,
            other => panic!("{other:?}"),
        });
        let bytes = layout.ring_bytes() as u64;
        Raw { socket, memory: SoftMemory::map_file(file, bytes).unwrap(), words: bytes / 8 }
    }

    fn write(&self, word: u64, value: u64) {
        self.memory.write_u64(word * 8, value).unwrap();
    }

    /// Puts an entry into the first lap of the command ring, slot by slot.
    fn entry(&self, at: u64, kind: u64, slots: u64, id: u64, payload: &[u64]) {
        for (number, words) in payload.chunks(7).enumerate() {
            let slot = COMMANDS + (at + number as u64) % SLOTS * SLOT_WORDS;
            for (index, word) in words.iter().enumerate() {
                self.write(slot + 1 + index as u64, *word);
            }
            if number > 0 {
                self.write(slot, 1);
            }
        }
        self.write(COMMANDS + at % SLOTS * SLOT_WORDS, 1 | kind << 16 | slots << 24 | id << 32);
    }

    fn wake(&self) {
        // It may have been ended already.
        let _ = self.socket.wake();
    }

    fn has_ended(&self) -> bool {
        loop {
            match self.socket.receive(true) {
                Ok(Received::Nothing) => return false,
                Ok(Received::Closed) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }

    fn ends(&self) {
        wait_for("the session to be ended", || self.has_ended().then_some(()));
    }
}

/// A client that behaves, and must notice nothing.
struct Witness {
    client: Client,
    region: crate::common::Region,
    vqp: u32,
}

impl Witness {
    fn new(node: &NodeThread, address: &str) -> Witness {
        let mut client = Client::over(node.connect().unwrap()).unwrap();
        let (region, vqp) = (client.alloc(64).unwrap(), client.create());
        client.qconnect(vqp, gid(address), 0).unwrap();
        Witness { client, region, vqp }
    }

    fn works(&mut self) {
        let remote = RemoteAddr { addr: self.region.addr, rkey: self.region.rkey };
        self.client.read(self.vqp, &self.region, 8, 8, remote);
        assert_eq!(self.client.completion().status, WcStatus::Success);
    }
}

fn start() -> (NodeThread, Witness) {
    let address = free_address();
    let node = Node::embedded(config(&address)).unwrap().spawn().unwrap();
    let witness = Witness::new(&node, &address);
    (node, witness)
}

#[test]
fn each_violation_ends_its_session_and_is_counted() {
    let (node, mut witness) = start();
    type Violate = fn(&Raw);
    let violations: [(&str, Violate); 5] = [
        ("violations_slots", |raw| raw.entry(0, 1, 0, 1, &[0; 7])),
        ("violations_slots", |raw| raw.entry(0, 1, 17, 1, &[0; 7])),
        ("violations_torn", |raw| raw.entry(0, 1, 2, 1, &[0; 7])),
        ("violations_kind", |raw| raw.entry(0, 99, 1, 1, &[0; 7])),
        ("violations_field", |raw| raw.entry(0, 1, 1, 1, &[0, u64::MAX, 0])),
    ];
    for (counter, violate) in violations {
        let before = engine_counter(&node.status().unwrap(), counter);
        let raw = Raw::connect(&node);
        violate(&raw);
        raw.wake();
        raw.ends();
        assert_eq!(engine_counter(&node.status().unwrap(), counter), before + 1, "{counter}");
        witness.works();
    }
    // A head ahead of all that was ever told: noticed when the ring seems full.
    let raw = Raw::connect(&node);
    raw.write(HEADS[2], 1 << 40);
    for at in 0..SLOTS {
        // Refused in two slots: the answers need more than the ring has.
        raw.entry(at, 9, 1, at, &[u64::from(u32::MAX), 0, 0, 0, 0, 0, 0]);
    }
    raw.wake();
    raw.ends();
    assert_eq!(engine_counter(&node.status().unwrap(), "violations_head"), 1);
    witness.works();
}

/// A client that is newer than its node, by a minor version: it loses its session over a command that
/// the node cannot know, unless that is refused alone.
#[test]
fn a_command_of_a_later_version_is_refused_and_the_session_goes_on() {
    let (node, mut witness) = start();
    let raw = Raw::connect(&node);
    raw.entry(0, 63, 2, 7, &[u64::MAX; 14]);
    raw.entry(2, 10, 1, 8, &[0; 7]);
    raw.wake();
    // The ring of completions: what a refusal and an answer begin with.
    let completions = COMMANDS + 2 * SLOTS * SLOT_WORDS;
    let header = |slot: u64| raw.memory.read_u64((completions + slot * SLOT_WORDS) * 8).unwrap();
    let first = wait_for("the refusal", || Some(header(0)).filter(|header| *header != 0));
    let (kind, slots, request) = (first >> 16 & 0xff, first >> 24 & 0xff, first >> 32);
    assert_eq!((kind, request), (137, 7));
    let second = wait_for("the answer", || Some(header(slots)).filter(|header| *header != 0));
    assert_eq!((second >> 16 & 0xff, second >> 32), (130, 8));
    let counter = |name| engine_counter(&node.status().unwrap(), name);
    assert_eq!((counter("violations_kind"), counter("commands_refused")), (0, 1));
    witness.works();
}

/// Commands of all kinds with any fields; only lengths are kept from being merely large.
#[test]
fn any_command_with_any_fields_is_answered_or_ends_its_session() {
    let (node, mut witness) = start();
    for seed in 0..150 {
        let mut random = Random(seed);
        let raw = Raw::connect(&node);
        let mut at = 0;
        while at < SLOTS && !raw.has_ended() {
            let kinds = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 64, 65];
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            let mut payload: Vec<u64> = (0..7)
                .map(|_| match random.below(4) {
                    0 => 0,
                    1 => random.below(16),
                    2 => random.next() >> 32,
                    _ => random.next(),
                })
                .collect();
            if kind == 6 || kind == 7 {
                payload[0] = [0, 1, 4_096, 1 << 46, u64::MAX][random.below(5) as usize];
                payload[2] = random.below(64);
            }
            raw.entry(at, kind, 1, random.below(4), &payload);
            raw.wake();
            at += 1;
        }
        witness.works();
    }
    wait_for("all to be gone", || (node.status()?.sessions.len() == 1).then_some(()));
    witness.works();
}

/// Any bytes anywhere, changed while the node looks.
#[test]
fn any_bytes_harm_only_who_wrote_them() {
    let (node, mut witness) = start();
    for seed in 0..100 {
        let mut random = Random(seed);
        let raw = Raw::connect(&node);
        for _ in 0..400 {
            let word = match random.below(4) {
                0 => HEADS[random.below(3) as usize],
                1 => COMMANDS + random.below(3 * SLOTS) * SLOT_WORDS,
                _ => random.below(raw.words),
            };
            let value = match random.below(3) {
                0 => random.below(4),
                1 => 1 | random.below(256) << 16 | random.below(4) << 24 | random.below(8) << 32,
                _ => random.next(),
            };
            // An allocation of any size is another test's: kind 6 gets none here.
            let kind = value >> 16 & 0xff;
            if kind != 6 {
                raw.write(word, value);
            }
            if random.below(16) == 0 {
                raw.wake();
            }
        }
        witness.works();
    }
    wait_for("all to be gone", || (node.status()?.sessions.len() == 1).then_some(()));
    witness.works();
}

#[test]
fn nonsense_on_the_socket_ends_the_session() {
    let (node, mut witness) = start();
    for seed in 0..50 {
        let mut random = Random(seed);
        let socket = node.connect().unwrap();
        let bytes: Vec<u8> =
            (0..=random.below(600)).map(|_| (random.next() >> 8) as u8 & 0x7f).collect();
        rustix::net::send(&socket, &bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        wait_for("the session to be ended", || match socket.receive(true) {
            Ok(Received::Closed) | Err(_) => Some(()),
            _ => None,
        });
    }
    witness.works();
    assert_eq!(node.status().unwrap().sessions.len(), 1);
}
