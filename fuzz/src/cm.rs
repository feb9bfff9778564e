//! The communication manager: what any bytes are as a management datagram, and what a manager makes of its consumer's
//! calls and of a peer's and a stranger's messages, genuine, changed, repeated and out of order. It may refuse, and
//! must do nothing else: it keeps its bounds, says no more than one message to each that comes, and holds nothing for
//! ever.

use std::net::{IpAddr, Ipv4Addr};

use elver_cm::{Answer, Config, Event, Id, Manager, Offer, Service, reason, sidr};
use elver_random::Rng;
use elver_verbs::Time;
use elver_wire::Psn;
use elver_wire::cm::{IpHeader, MAD_LEN, Mad, Message};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66));
const SERVICE: u64 = 7;
const UD_SERVICE: u64 = 8;
const CONNECTIONS: usize = 6;
const BACKLOG: u32 = 2;
/// Messages that are kept to come, or to come again.
const KEPT: usize = 32;
/// Timers that a manager without news may have run off until it rests: connections, and their retries.
const TIMERS_MAX: usize = CONNECTIONS * 64;

/// Takes numbers from the input; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn one_of<'b, T>(&mut self, all: &'b [T]) -> Option<&'b T> {
        let at = usize::from(self.byte());
        (!all.is_empty()).then(|| &all[at % all.len()])
    }
}

/// Runs the script that the bytes are.
pub fn run(bytes: &[u8]) {
    understand(bytes);
    let mut world = World::new();
    let mut script = Script(bytes);
    while !script.is_over() {
        world.step(&mut script);
    }
    world.rest();
}

/// What is understood says the same when it is written again.
fn understand(bytes: &[u8]) {
    let mut whole = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    whole[..len].copy_from_slice(&bytes[..len]);
    let _ = Mad::parse(bytes);
    let _ = IpHeader::parse(bytes);
    if let Ok(mad) = Mad::parse(&whole) {
        let written = mad.write().expect("what was parsed has no more than its room");
        assert_eq!(Mad::parse(&written), Ok(mad));
    }
}

/// A manager, a peer's, and what was said between them.
struct World {
    now: Time,
    ours: Manager,
    theirs: Manager,
    /// Messages of the peer's, and of ours.
    to_us: Vec<[u8; MAD_LEN]>,
    to_them: Vec<[u8; MAD_LEN]>,
    ids: [Vec<Id>; 2],
}

impl World {
    fn new() -> World {
        let config = Config { max_connections: CONNECTIONS, retries: 3, ..Config::default() };
        let [mut ours, mut theirs] = [1, 2].map(|seed: u64| Manager::new(config, Rng::new(seed)));
        for manager in [&mut ours, &mut theirs] {
            for service in [SERVICE, UD_SERVICE] {
                manager.listen(Service::everywhere(service), BACKLOG).expect("nobody listens yet");
            }
        }
        let (to_us, to_them, ids) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        World { now: Time::ZERO, ours, theirs, to_us, to_them, ids }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let kind = script.byte();
        match kind % 8 {
            0 | 1 => self.hear(script),
            2 => {
                if let Some(mad) = script.one_of(&self.to_them) {
                    self.theirs.receive(self.now, US, mad);
                }
            }
            3 | 4 => self.consume(script, usize::from(kind % 8 == 4)),
            5 => self.raw(script),
            6 => self.now = self.now.saturating_add_ns(u64::from(script.byte()) * 10_000_000),
            _ => {
                let due = self.ours.due().into_iter().chain(self.theirs.due()).min();
                self.now = self.now.max(due.unwrap_or(self.now));
            }
        }
        self.ours.advance(self.now);
        self.theirs.advance(self.now);
        self.collect();
    }

    /// A message of the peer's comes to us, or comes again, as it was or changed, from it or from another.
    fn hear(&mut self, script: &mut Script<'_>) {
        let how = script.byte();
        let Some(mut mad) = script.one_of(&self.to_us).copied() else { return };
        for _ in 0..how % 4 {
            mad[usize::from(script.byte())] ^= script.byte();
        }
        let from = if how & 0x80 == 0 { PEER } else { STRANGER };
        self.receive(from, &mad);
    }

    /// Bytes of the input's come to us, in a datagram of the right kind or in none.
    fn raw(&mut self, script: &mut Script<'_>) {
        let how = script.byte();
        let mut mad = [0; MAD_LEN];
        let len = usize::from(script.byte()).min(script.0.len());
        for byte in &mut mad[16..16 + len.min(MAD_LEN - 16)] {
            *byte = script.byte();
        }
        if how & 1 == 0 {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16] = 0;
        }
        let len = if how & 2 == 0 { MAD_LEN } else { usize::from(how) };
        self.receive(STRANGER, &mad[..len]);
    }

    /// What comes is answered with one message at most, to whom it came from.
    fn receive(&mut self, from: IpAddr, bytes: &[u8]) {
        self.ours.receive(self.now, from, bytes);
        let mut answers = 0;
        while let Some((to, mad)) = self.ours.poll_transmit() {
            assert_eq!(to, from, "who asks is answered, and nobody else");
            answers += 1;
            self.keep_ours(to, mad);
        }
        assert!(answers <= 1, "{answers} messages for one");
    }

    /// A call of a consumer's: ours, or the peer's.
    fn consume(&mut self, script: &mut Script<'_>, end: usize) {
        let peer = [PEER, US][end];
        let manager = [&mut self.ours, &mut self.theirs].into_iter().nth(end).expect("two");
        let call = script.byte();
        // Any call may be refused, by the state that its connection is in.
        if let Some(&id) = script.one_of(&self.ids[end]).filter(|_| call % 8 > 1) {
            let _ = match call % 8 {
                2 => manager.accept(self.now, id, &answer()),
                3 => manager.ready(id, &[1]),
                4 => manager.reject(self.now, id, reason::CONSUMER, &[2]),
                5 => manager.disconnect(self.now, id),
                6 => manager.reply(self.now, id, sidr::VALID, 5, 6, &[3]),
                _ if call & 0x80 != 0 => manager.heard(id),
                _ => {
                    manager.let_go(self.now, id);
                    Ok(())
                }
            };
            return;
        }
        let made = match call % 8 {
            0 => manager.connect(self.now, &offer(peer)),
            1 => manager.ask(self.now, peer, UD_SERVICE, &[4]),
            _ => return,
        };
        self.ids[end].extend(made);
    }

    /// Takes what both have said and told.
    fn collect(&mut self) {
        while let Some((to, mad)) = self.ours.poll_transmit() {
            self.keep_ours(to, mad);
        }
        while let Some((_, mad)) = self.theirs.poll_transmit() {
            keep(&mut self.to_us, mad);
        }
        for (manager, ids) in [&mut self.ours, &mut self.theirs].into_iter().zip(&mut self.ids) {
            while let Some(event) = manager.poll_event() {
                match event {
                    Event::Request(id, _) | Event::ServiceRequest { id, .. } => {
                        // The other half waits for its answer in the backlog.
                        if id.0 & 1 == 0 {
                            manager.taken(id);
                        }
                        ids.push(id);
                    }
                    Event::Released(id) => {
                        ids.retain(|known| *known != id);
                        manager.let_go(self.now, id);
                    }
                    _ => {}
                }
            }
            assert!(manager.len() <= CONNECTIONS, "{} connections", manager.len());
        }
    }

    fn keep_ours(&mut self, to: IpAddr, mad: [u8; MAD_LEN]) {
        let said = Mad::parse(&mad).expect("what a manager says is a message");
        // A stranger has begun nothing that it could not be told the end of.
        let is_end = matches!(said.message, Message::Rej { .. } | Message::Drep { .. });
        if to == PEER || is_end {
            keep(&mut self.to_them, mad);
        }
    }

    /// When the consumers have let go of all, and all timers have run off, nothing is left.
    fn rest(&mut self) {
        for (manager, ids) in [&mut self.ours, &mut self.theirs].into_iter().zip(&mut self.ids) {
            for id in ids.drain(..) {
                manager.let_go(self.now, id);
            }
        }
        for _ in 0..TIMERS_MAX {
            let due = self.ours.due().into_iter().chain(self.theirs.due()).min();
            let Some(due) = due else { break };
            self.now = self.now.max(due);
            self.ours.advance(self.now);
            self.theirs.advance(self.now);
            self.collect();
            // Of a request that nobody answered its consumer has heard by now.
            for (manager, ids) in [&mut self.ours, &mut self.theirs].into_iter().zip(&mut self.ids)
            {
                for id in ids.drain(..) {
                    manager.let_go(self.now, id);
                }
            }
        }
        assert!(self.ours.is_empty(), "{:?}", self.ours);
        assert_eq!(self.ours.due(), None);
    }
}

fn keep(kept: &mut Vec<[u8; MAD_LEN]>, mad: [u8; MAD_LEN]) {
    if kept.len() == KEPT {
        kept.remove(0);
    }
    kept.push(mad);
}

fn offer(peer: IpAddr) -> Offer {
    Offer {
        peer,
        service_id: SERVICE,
        qpn: 0x111,
        transport: 0,
        responder_resources: 1,
        initiator_depth: 1,
        starting_psn: Psn::from_wrapping(7),
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        flow_control: true,
        path_mtu: 3,
        local_gid: [1; 16],
        remote_gid: [2; 16],
        traffic_class: 0,
        ack_timeout: 14,
        private: vec![1, 2, 3],
    }
}

fn answer() -> Answer {
    Answer {
        qpn: 0x222,
        starting_psn: Psn::from_wrapping(9),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        flow_control: true,
        private: vec![4, 5],
    }
}
