//! Two managers and the network between them, in virtual time: what is lost, repeated and reordered, and
//! what strangers forge.

use std::net::{IpAddr, Ipv4Addr};

use elver_cm::{Answer, Config, Event, Id, Manager, Offer, Refused, Service, reason, sidr};
use elver_random::Rng;
use elver_verbs::Time;
use elver_wire::Psn;
use elver_wire::cm::{IpHeader, MAD_LEN, Mad, Message, Rejected, service_id};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66));
const SERVICE: u64 = service_id(0x0106, 7174);
/// Whoever is named.
const HERE: Service = Service::everywhere(SERVICE);
const MS: u64 = 1_000_000;

fn manager(seed: u64) -> Manager {
    Manager::new(Config { ca_guid: seed, ..Config::default() }, Rng::new(seed))
}

fn offer(private: &[u8]) -> Offer {
    Offer {
        peer: SERVER,
        service_id: SERVICE,
        qpn: 0x111,
        transport: 0,
        responder_resources: 1,
        initiator_depth: 2,
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
        private: private.to_vec(),
    }
}

fn answer(private: &[u8]) -> Answer {
    Answer {
        qpn: 0x222,
        starting_psn: Psn::from_wrapping(9),
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        flow_control: true,
        private: private.to_vec(),
    }
}

/// What the network does to messages, in a thousand.
#[derive(Clone, Copy)]
struct Faults {
    lost: u32,
    repeated: u32,
    /// The longest that a message is under way, in nanoseconds.
    delay: u64,
}

const NONE: Faults = Faults { lost: 0, repeated: 0, delay: 0 };

/// The client, the server and what is under way between them.
struct World {
    now: Time,
    ends: [Manager; 2],
    under_way: Vec<(Time, IpAddr, IpAddr, [u8; MAD_LEN])>,
    faults: Faults,
    rng: Rng,
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let ends = [manager(2 * seed + 1), manager(2 * seed + 2)];
        let under_way = Vec::new();
        World { now: Time::ZERO, ends, under_way, faults, rng: Rng::new(seed) }
    }

    fn client(&mut self) -> &mut Manager {
        &mut self.ends[0]
    }

    fn server(&mut self) -> &mut Manager {
        &mut self.ends[1]
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        self.rng.next_u32() % 1000 < thousandths
    }

    /// Hands what managers say to the network.
    fn collect(&mut self) {
        for (end, from) in [CLIENT, SERVER].into_iter().enumerate() {
            while let Some((to, bytes)) = self.ends[end].poll_transmit() {
                let copies = 1 + u32::from(self.chance(self.faults.repeated));
                for _ in 0..copies {
                    if !self.chance(self.faults.lost) {
                        let delay = self.rng.next_u64() % (self.faults.delay + 1);
                        self.under_way.push((self.now.saturating_add_ns(delay), from, to, bytes));
                    }
                }
            }
        }
    }

    /// Does what comes next: the arrival of a message, or a timer. Says whether there was anything.
    fn step(&mut self) -> bool {
        self.collect();
        let arrival = (0..self.under_way.len()).min_by_key(|at| self.under_way[*at].0);
        let arrives = arrival.map(|at| self.under_way[at].0);
        let due = self.ends.iter().filter_map(Manager::due).min();
        let Some(next) = arrives.into_iter().chain(due).min() else { return false };
        self.now = self.now.max(next);
        if let Some(at) = arrival
            && arrives == Some(next)
        {
            let (_, from, to, bytes) = self.under_way.remove(at);
            let end = if to == CLIENT { 0 } else { 1 };
            self.ends[end].receive(self.now, from, &bytes);
        } else {
            for end in &mut self.ends {
                end.advance(self.now);
            }
        }
        true
    }

    /// Goes on until the client's or the server's next event (0 or 1).
    fn event(&mut self, end: usize) -> Event {
        loop {
            if let Some(event) = self.ends[end].poll_event() {
                return event;
            }
            assert!(self.step(), "nothing is under way, and no event came");
        }
    }

    /// The same, of what goes on.
    fn event_but_released(&mut self, end: usize) -> Event {
        loop {
            match self.event(end) {
                Event::Released(_) => {}
                event => return event,
            }
        }
    }

    /// A connection, as the client and the server know it.
    fn connected(&mut self) -> (Id, Id) {
        let (now, asked) = (self.now, offer(b"ask"));
        let ours = self.client().connect(now, &asked).unwrap();
        let Event::Request(theirs, request) = self.event(1) else {
            panic!("a request comes first")
        };
        assert!(request.private.starts_with(b"ask\0") && request.qpn == 0x111);
        let now = self.now;
        self.server().accept(now, theirs, &answer(b"agree")).unwrap();
        let Event::Answered(id, agreed) = self.event(0) else { panic!("an answer comes") };
        assert!(id == ours && agreed.private.starts_with(b"agree\0") && agreed.qpn == 0x222);
        self.client().ready(ours, &[]).unwrap();
        assert_eq!(self.event(1), Event::Established(theirs));
        (ours, theirs)
    }
}

#[test]
fn connections_are_made_and_ended_whatever_the_network_does() {
    let faults = Faults { lost: 250, repeated: 150, delay: 700 * MS };
    for seed in 0..300 {
        println!("seed {seed}");
        let mut world = World::new(seed, faults);
        world.server().listen(HERE, 8).unwrap();
        let (ours, theirs) = world.connected();
        let now = world.now;
        let (who, id) = if seed % 2 == 0 { (0, ours) } else { (1, theirs) };
        world.ends[who].disconnect(now, id).unwrap();
        assert_eq!(world.event(0), Event::Disconnected(ours));
        assert_eq!(world.event(1), Event::Disconnected(theirs));
        assert_eq!(world.event(0), Event::Released(ours));
        assert_eq!(world.event(1), Event::Released(theirs));
        let now = world.now;
        world.client().let_go(now, ours);
        world.server().let_go(now, theirs);
        while world.step() {}
        assert!(world.ends.iter().all(Manager::is_empty), "{:?}", world.ends);
        assert!(world.ends.iter_mut().all(|end| end.poll_event().is_none()));
    }
}

/// The same service, looked up under the same faults.
#[test]
fn services_are_looked_up_whatever_the_network_does() {
    let faults = Faults { lost: 250, repeated: 150, delay: 700 * MS };
    for seed in 0..300 {
        println!("seed {seed}");
        let mut world = World::new(seed, faults);
        world.server().listen(HERE, 8).unwrap();
        let now = world.now;
        let ours = world.client().ask(now, SERVER, SERVICE, b"who").unwrap();
        let Event::ServiceRequest { id: theirs, private, peer, .. } = world.event(1) else {
            panic!("a question comes first")
        };
        assert!(peer == CLIENT && private.starts_with(b"who\0"));
        let now = world.now;
        world.server().reply(now, theirs, sidr::VALID, 0x333, 0x1234, b"me").unwrap();
        let Event::Service { id, status, qpn, qkey, private } = world.event(0) else {
            panic!("the answer comes")
        };
        assert_eq!((id, status, qpn, qkey), (ours, sidr::VALID, 0x333, 0x1234));
        assert!(private.starts_with(b"me\0"));
        let now = world.now;
        world.client().let_go(now, ours);
        world.server().let_go(now, theirs);
        while world.step() {}
        assert!(world.ends.iter().all(Manager::is_empty), "{:?}", world.ends);
    }
}

#[test]
fn refusals_arrive_with_their_reason() {
    let mut world = World::new(1, NONE);
    let now = world.now;
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("nobody listens") };
    assert_eq!((id, reason), (ours, reason::INVALID_SERVICE_ID));
    world.server().listen(HERE, 1).unwrap();
    assert_eq!(world.server().listen(HERE, 1), Err(Refused::Taken(SERVICE)));
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("a request comes") };
    let crowded = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("the backlog is full") };
    assert_eq!((id, reason), (crowded, reason::NO_RESOURCES));
    assert_eq!(world.server().counters().crowded, 1);
    world.server().reject(now, theirs, reason::CONSUMER, b"no").unwrap();
    let Event::Rejected { id, reason, private } = world.event(0) else { panic!("it was refused") };
    assert!((id, reason) == (ours, reason::CONSUMER) && private.starts_with(b"no\0"));
    let mut wrong = offer(&[]);
    wrong.transport = 3;
    world.client().connect(now, &wrong).unwrap();
    assert!(matches!(
        world.event(0),
        Event::Rejected { reason: reason::INVALID_TRANSPORT, .. } | Event::Released(_)
    ));
    let long = [0; 93];
    assert!(matches!(world.client().connect(now, &offer(&long)), Err(Refused::Message(_))));
}

/// A request that the consumer took needs its listener no more: neither its backlog nor itself.
#[test]
fn what_was_taken_outlives_its_listener() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 1).unwrap();
    let now = world.now;
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(taken, _) = world.event(1) else { panic!("a request comes") };
    world.server().taken(taken);
    let left = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(untaken, _) = world.event(1) else { panic!("there is room for another") };
    let now = world.now;
    world.server().unlisten(now, HERE);
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("it is refused") };
    assert_eq!((id, reason), (left, reason::CONSUMER));
    assert_eq!(world.server().accept(now, untaken, &answer(&[])), Err(Refused::Unknown(untaken)));
    // The next listener's places are all free, and stay its own.
    world.server().listen(HERE, 1).unwrap();
    let next = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(waits, _) = world.event(1) else { panic!("a request comes") };
    world.server().accept(now, taken, &answer(&[])).unwrap();
    let Event::Answered(id, _) = world.event(0) else { panic!("an answer comes") };
    assert_eq!(id, ours);
    let crowded = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("the backlog is full") };
    assert_eq!((id, reason), (crowded, reason::NO_RESOURCES));
    world.server().accept(now, waits, &answer(&[])).unwrap();
    let Event::Answered(id, _) = world.event(0) else { panic!("an answer comes") };
    assert_eq!(id, next);
}

/// One port has a listener for each address; who names another, or none, is none's.
#[test]
fn listeners_of_one_port_are_told_apart_by_their_addresses() {
    let mut world = World::new(1, NONE);
    let [near, far] = [SERVER, STRANGER].map(|ip| Service { id: SERVICE, address: Some(ip) });
    let named = |dst| offer(&IpHeader { src_port: 9, src: CLIENT, dst }.bytes());
    world.server().listen(near, 1).unwrap();
    world.server().listen(far, 1).unwrap();
    assert_eq!(world.server().listen(far, 1), Err(Refused::Taken(SERVICE)));
    let now = world.now;
    for at in [far, near] {
        let asks = named(at.address.unwrap());
        let ours = world.client().connect(now, &asks).unwrap();
        let Event::Request(theirs, request) = world.event(1) else { panic!("a request comes") };
        assert_eq!(request.service, at);
        world.client().connect(now, &asks).unwrap();
        let Event::Rejected { reason, .. } = world.event(0) else { panic!("its backlog is full") };
        assert_eq!(reason, reason::NO_RESOURCES);
        world.server().reject(now, theirs, reason::CONSUMER, &[]).unwrap();
        assert!(matches!(world.event(0), Event::Rejected { id, .. } if id == ours));
    }
    for asks in [named(CLIENT), offer(&[])] {
        world.client().connect(now, &asks).unwrap();
        let told = world.event_but_released(0);
        let Event::Rejected { reason, .. } = told else { panic!("nobody listens there: {told:?}") };
        assert_eq!(reason, reason::INVALID_SERVICE_ID);
    }
    // A question for a UD service is heard by the same.
    let header = IpHeader { src_port: 9, src: CLIENT, dst: STRANGER };
    world.client().ask(now, SERVER, SERVICE, &header.bytes()).unwrap();
    let told = world.event_but_released(1);
    assert!(matches!(told, Event::ServiceRequest { service, .. } if service == far), "{told:?}");
    // Who listens for all of them hears what nobody else does.
    world.server().listen(HERE, 1).unwrap();
    world.client().connect(now, &named(CLIENT)).unwrap();
    let told = world.event_but_released(1);
    assert!(matches!(&told, Event::Request(_, it) if it.service == HERE), "{told:?}");
}

/// Who listens at all addresses of a family hears what names one of them, unless somebody listens at that one.
#[test]
fn listeners_of_one_port_are_told_apart_by_their_families() {
    let mut world = World::new(1, NONE);
    let at = |ip: &str| Service { id: SERVICE, address: Some(ip.parse().unwrap()) };
    let (of_v4, of_v6, one) = (at("0.0.0.0"), at("::"), at("10.0.0.9"));
    // Who listens one after another, and who hears of an address of each family then.
    let steps =
        [(HERE, HERE, HERE), (of_v4, of_v4, HERE), (of_v6, of_v4, of_v6), (one, one, of_v6)];
    for (listens, hears_v4, hears_v6) in steps {
        world.server().listen(listens, 8).unwrap();
        for (src, dst, hears) in [
            ("10.0.0.1", "10.0.0.9", hears_v4),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.9", hears_v4),
            ("fd00::1", "fd00::9", hears_v6),
        ] {
            let header =
                IpHeader { src_port: 9, src: src.parse().unwrap(), dst: dst.parse().unwrap() };
            let now = world.now;
            world.client().connect(now, &offer(&header.bytes())).unwrap();
            let told = world.event_but_released(1);
            let Event::Request(theirs, request) = told else { panic!("a request comes: {told:?}") };
            assert_eq!(request.service, hears, "{dst}, behind {listens:?}");
            world.server().reject(now, theirs, reason::CONSUMER, &[]).unwrap();
            assert!(matches!(world.event_but_released(0), Event::Rejected { .. }));
        }
    }
}

/// A program that stops listening between two connections loses none that is asked for meanwhile.
#[test]
fn who_listens_again_soon_hears_what_came_between() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 1).unwrap();
    world.connected();
    let now = world.now;
    world.server().unlisten(now, HERE);
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    while world.server().counters().unheard == 0 {
        assert!(world.step());
    }
    world.server().listen(HERE, 1).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("the request comes again") };
    assert_eq!(world.client().counters().resent, 1);
    let now = world.now;
    world.server().accept(now, theirs, &answer(&[])).unwrap();
    let Event::Answered(id, _) = world.event(0) else { panic!("an answer comes") };
    assert_eq!(id, ours);
    // One that stops for good refuses after a while, and remembers a bounded number of services.
    world.client().ready(ours, &[]).unwrap();
    assert_eq!(world.event(1), Event::Established(theirs));
    let now = world.now;
    world.server().unlisten(now, HERE);
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("nobody listens") };
    assert_eq!((id, reason), (ours, reason::INVALID_SERVICE_ID));
    let waited = world.now.ns_since(now);
    assert!((2_000 * MS..2_700 * MS).contains(&waited), "{waited} ns");
    for other in 0..1_000 {
        world.server().listen(Service::everywhere(other), 1).unwrap();
        world.server().unlisten(now, Service::everywhere(other));
    }
    world.client().connect(now, &offer(&[])).unwrap();
    assert!(matches!(world.event(0), Event::Rejected { .. }));
}

#[test]
fn who_is_not_there_is_given_up() {
    let mut world = World::new(1, Faults { lost: 1000, ..NONE });
    let ours = world.client().connect(Time::ZERO, &offer(&[])).unwrap();
    assert_eq!(world.event(0), Event::Unreachable(ours));
    // 16 messages, 537 ms each.
    assert_eq!(world.now.0, 16 * (4096 << 17));
    assert_eq!(world.client().counters().resent, 15);
}

#[test]
fn what_is_let_go_of_is_told_to_the_peer() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 8).unwrap();
    let (ours, theirs) = world.connected();
    let now = world.now;
    world.client().let_go(now, ours);
    assert_eq!(world.event(1), Event::Disconnected(theirs));
    world.server().let_go(now, theirs);
    // A request that is taken back before it is answered.
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("a request comes") };
    world.client().let_go(now, ours);
    let Event::Rejected { id, reason, .. } = world.event(1) else { panic!("it is taken back") };
    assert_eq!((id, reason), (theirs, reason::TIMEOUT));
    world.server().let_go(now, theirs);
    // A listener that goes, with a request that waits.
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(..) = world.event(1) else { panic!("a request comes") };
    world.server().unlisten(now, HERE);
    let Event::Rejected { id, reason, .. } = world.event(0) else { panic!("it is refused") };
    assert_eq!((id, reason), (ours, reason::CONSUMER));
    world.client().let_go(now, ours);
    while world.step() {}
    assert!(world.ends.iter().all(Manager::is_empty), "{:?}", world.ends);
}

/// Whatever was agreed with who is gone has ended, nothing is sent for it, and what he has not answered goes on.
#[test]
fn who_is_gone_ends_what_was_agreed_with_him() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 8).unwrap();
    let (ours, established) = world.connected();
    let now = world.now;
    let (_, ending) = world.connected();
    let answered = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(accepted, _) = world.event(1) else { panic!("a request comes") };
    world.server().accept(now, accepted, &answer(&[])).unwrap();
    assert!(matches!(world.event(0), Event::Answered(id, _) if id == answered));
    world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(requested, _) = world.event(1) else { panic!("a request comes") };
    world.server().disconnect(now, ending).unwrap();
    let unanswered = world.server().connect(now, &Offer { peer: CLIENT, ..offer(&[]) }).unwrap();
    while world.server().poll_transmit().is_some() {}

    world.server().gone(now, STRANGER);
    assert_eq!(world.server().poll_event(), None);
    world.server().gone(now, CLIENT);
    let mut told: Vec<Event> = std::iter::from_fn(|| world.server().poll_event()).collect();
    let rejected = |id| Event::Rejected { id, reason: reason::CONSUMER, private: Vec::new() };
    for event in [
        Event::Disconnected(established),
        Event::Disconnected(ending),
        rejected(accepted),
        rejected(requested),
    ] {
        let at = told.iter().position(|told| *told == event);
        told.remove(at.unwrap_or_else(|| panic!("{event:?} is not told")));
    }
    assert_eq!((told.len(), world.server().poll_transmit()), (0, None));
    assert_eq!(world.server().counters().orphaned, 4);
    // Once is enough.
    world.server().gone(now, CLIENT);
    assert_eq!(world.server().poll_event(), None);
    assert!(world.server().disconnect(now, unanswered).is_err(), "it waits still");
    world.client().gone(now, SERVER);
    let told: Vec<Event> = std::iter::from_fn(|| world.client().poll_event()).collect();
    assert!(
        told.contains(&Event::Disconnected(ours)) && told.contains(&rejected(answered)),
        "{told:?}"
    );
}

/// Data on a QP says what its RTU would.
#[test]
fn what_is_heard_establishes() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 8).unwrap();
    let ours = world.client().connect(Time::ZERO, &offer(&[])).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("a request comes") };
    world.server().accept(Time::ZERO, theirs, &answer(&[])).unwrap();
    assert!(matches!(world.event(0), Event::Answered(id, _) if id == ours));
    world.server().heard(theirs).unwrap();
    assert_eq!(world.event(1), Event::Established(theirs));
}

#[test]
fn requests_that_nobody_answers_expire() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 2).unwrap();
    for _ in 0..2 {
        world.client().connect(Time::ZERO, &offer(&[])).unwrap();
        assert!(matches!(world.event(1), Event::Request(..)));
    }
    assert!(matches!(world.event(1), Event::Expired(_)));
    assert!(world.now.0 >= 60_000 * MS);
    while world.step() {}
    assert_eq!(world.server().counters().expired, 2);
    // In a word that Linux hears too, from who has no number of ours.
    for _ in 0..2 {
        let told = world.event_but_released(0);
        let Event::Rejected { reason, .. } = told else { panic!("{told:?}") };
        assert_eq!(reason, reason::NO_RESOURCES);
    }
    // Their places are free.
    let now = world.now;
    world.client().connect(now, &offer(&[])).unwrap();
    while let Some(event) = world.server().poll_event() {
        assert!(matches!(event, Event::Expired(_) | Event::Released(_)), "{event:?}");
    }
    assert!(matches!(world.event(1), Event::Request(..)));
}

fn forged(message: Message<'_>) -> [u8; MAD_LEN] {
    Mad { transaction: 1, message }.write().unwrap()
}

/// Who is not the peer, or does not know both numbers, changes nothing.
/// A peer that asks for more time again and again is given it as often as it would have been asked again.
#[test]
fn nobody_is_waited_for_without_an_end() {
    let mut world = World::new(1, NONE);
    let id = world.client().connect(Time::ZERO, &offer(&[])).unwrap();
    let of = Rejected::Req;
    let mra = Message::Mra { local: 1, remote: id.0, of, service_timeout: 24, private: &[] };
    let mra = forged(mra);
    let mut asked = 0;
    while let Some(due) = world.client().due() {
        // Just before it would give up.
        world.client().receive(Time(due.0 - 1), SERVER, &mra);
        if world.client().due() == Some(due) {
            world.client().advance(due);
        }
        asked += 1;
        assert!(asked < 100, "it waits still at {due:?}");
    }
    assert_eq!(world.client().poll_event(), Some(Event::Unreachable(id)));
}

/// A peer that has forgotten the connection says so, and it has ended.
#[test]
fn who_does_not_know_what_is_ended_has_ended_it() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 1).unwrap();
    let (ours, theirs) = world.connected();
    while world.step() {}
    while world.client().poll_event().is_some() {}
    let now = world.now;
    world.client().disconnect(now, ours).unwrap();
    let (of, reason) = (Rejected::Other, reason::INVALID_COMMUNICATION_ID);
    let (info, private) = (&[][..], &[][..]);
    let rej = Message::Rej { local: theirs.0, remote: ours.0, of, reason, info, private };
    world.client().receive(now, SERVER, &forged(rej));
    assert_eq!(world.client().poll_event(), Some(Event::Disconnected(ours)));
}

#[test]
fn strangers_end_nothing() {
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 8).unwrap();
    let (ours, theirs) = world.connected();
    while world.step() {}
    let (local, remote) = (theirs.0, ours.0);
    let of = Rejected::Rep;
    let all = |local, remote| {
        [
            Message::Dreq { local, remote, remote_qpn: 0x111, private: &[] },
            Message::Drep { local, remote, private: &[] },
            Message::Rej { local, remote, of, reason: 28, info: &[], private: &[] },
            Message::Rtu { local, remote, private: &[] },
            Message::Mra { local, remote, of, service_timeout: 31, private: &[] },
        ]
    };
    let now = world.now;
    // All numbers are right, and the address is not.
    for message in all(local, remote) {
        world.client().receive(now, STRANGER, &forged(message));
    }
    // The address is right, and a number is not.
    for message in all(local ^ 1, remote).into_iter().chain(all(local, remote ^ 1)) {
        world.client().receive(now, SERVER, &forged(message));
    }
    // The numbers are right, and the QP is not.
    let wrong = Message::Dreq { local, remote, remote_qpn: 0x112, private: &[] };
    world.client().receive(now, SERVER, &forged(wrong));
    assert_eq!(world.client().poll_event(), None);
    world.client().disconnect(now, ours).unwrap();
    assert_eq!(world.event(1), Event::Disconnected(theirs), "the connection was still there");
}

/// What is kept of a connection for who speaks for a process that is killed ends it at the peer, whatever state it is in.
#[test]
fn what_parts_ends_the_connection_at_the_peer() {
    /// What is kept of a connection by now.
    fn kept(manager: &mut Manager, of: Id) -> (IpAddr, [u8; MAD_LEN]) {
        let changed: Vec<Id> = std::iter::from_fn(|| manager.poll_changed()).collect();
        assert!(changed.contains(&of), "who keeps it is told");
        manager.parting(of).expect("there is something to end")
    }
    let rejected = |event, of| matches!(event, Event::Rejected { id, .. } if id == of);

    // Asked for, and not answered.
    let mut world = World::new(1, NONE);
    world.server().listen(HERE, 1).unwrap();
    let ours = world.client().connect(Time::ZERO, &offer(&[])).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("a request comes") };
    let (to, bytes) = kept(world.client(), ours);
    assert_eq!(to, SERVER);
    // The same of the one that was asked, which the client hears first.
    let (to, back) = kept(world.server(), theirs);
    assert_eq!(to, CLIENT);
    let now = world.now;
    world.client().receive(now, SERVER, &back);
    assert!(rejected(world.event(0), ours));
    world.server().receive(now, CLIENT, &bytes);
    assert!(rejected(world.event(1), theirs));

    // Answered, and not known to be ready.
    let ours = world.client().connect(now, &offer(&[])).unwrap();
    let Event::Request(theirs, _) = world.event(1) else { panic!("a request comes") };
    let now = world.now;
    world.server().accept(now, theirs, &answer(&[])).unwrap();
    assert!(matches!(world.event(0), Event::Answered(..)));
    let ((_, bytes), (_, back)) = (kept(world.client(), ours), kept(world.server(), theirs));
    world.client().receive(now, SERVER, &back);
    assert!(rejected(world.event(0), ours));
    world.server().receive(now, CLIENT, &bytes);
    assert!(rejected(world.event(1), theirs));

    // Connected, from either side, and while the other end of it goes.
    for end in [0, 1] {
        let mut world = World::new(end as u64, NONE);
        world.server().listen(HERE, 1).unwrap();
        let (ours, theirs) = world.connected();
        let (id, other, from) = [(ours, theirs, CLIENT), (theirs, ours, SERVER)][end];
        let (_, bytes) = kept(&mut world.ends[end], id);
        let now = world.now;
        world.ends[1 - end].receive(now, from, &bytes);
        assert_eq!(world.ends[1 - end].poll_event(), Some(Event::Disconnected(other)));
        // What has ended needs no word more.
        world.ends[end].disconnect(now, id).unwrap();
        assert_eq!(world.event(end), Event::Disconnected(id));
        let changed = std::iter::from_fn(|| world.ends[end].poll_changed()).any(|it| it == id);
        assert!(changed && world.ends[end].parting(id).is_none());
    }
}

/// A REP from elsewhere answers nothing, and one that names nothing is refused.
#[test]
fn strangers_answer_nothing() {
    let mut client = manager(1);
    let ours = client.connect(Time::ZERO, &offer(&[])).unwrap();
    let (_, req) = client.poll_transmit().unwrap();
    let mut server = manager(2);
    server.listen(HERE, 1).unwrap();
    server.receive(Time::ZERO, CLIENT, &req);
    let Some(Event::Request(theirs, _)) = server.poll_event() else { panic!("a request comes") };
    server.accept(Time::ZERO, theirs, &answer(&[])).unwrap();
    let (_, rep) = server.poll_transmit().unwrap();
    client.receive(Time::ZERO, STRANGER, &rep);
    let (to, told) = client.poll_transmit().unwrap();
    assert_eq!(to, STRANGER);
    assert!(matches!(
        Mad::parse(&told).unwrap().message,
        Message::Rej { reason: reason::INVALID_COMMUNICATION_ID, .. }
    ));
    assert_eq!(client.poll_event(), None);
    client.receive(Time::ZERO, SERVER, &rep);
    assert!(matches!(client.poll_event(), Some(Event::Answered(id, _)) if id == ours));
}

/// A flood of requests holds as many places as there are, and no more; each of its packets is answered
/// with one at most, of the same length.
#[test]
fn a_flood_is_bounded_and_counted() {
    const BACKLOG: u32 = 16;
    const FLOOD: u32 = 5_000;
    let mut server = manager(1);
    server.listen(HERE, BACKLOG).unwrap();
    let mut flooder = manager(2);
    for _ in 0..FLOOD {
        flooder.connect(Time::ZERO, &offer(&[])).unwrap();
    }
    let mut answers = 0;
    while let Some((_, req)) = flooder.poll_transmit() {
        server.receive(Time::ZERO, STRANGER, &req);
        while server.poll_transmit().is_some() {
            answers += 1;
        }
    }
    assert_eq!(server.len(), BACKLOG as usize);
    assert_eq!(server.counters().crowded, u64::from(FLOOD - BACKLOG));
    assert_eq!(answers, FLOOD - BACKLOG);
    let (mut events, mut due) = (0, Time::ZERO);
    while let Some(next) = server.due() {
        due = next;
        server.advance(due);
        while server.poll_transmit().is_some() {}
    }
    while let Some(event) = server.poll_event() {
        events += 1;
        if let Event::Request(id, _) = event {
            server.let_go(due, id);
        }
    }
    assert_eq!((server.counters().expired, events), (u64::from(BACKLOG), 3 * BACKLOG));
    assert!(server.is_empty(), "{server:?}");
}

/// Who asks for an answer within 4 µs is not sent sixteen before one of them can have arrived.
#[test]
fn answers_are_not_sent_again_at_once() {
    let mut server = manager(1);
    server.listen(HERE, 1).unwrap();
    let hasty = Config { response_timeout: 0, ..Config::default() };
    let mut client = Manager::new(hasty, Rng::new(2));
    client.connect(Time::ZERO, &offer(&[])).unwrap();
    let (_, req) = client.poll_transmit().unwrap();
    server.receive(Time::ZERO, STRANGER, &req);
    let Some(Event::Request(id, _)) = server.poll_event() else { panic!("no request") };
    server.accept(Time::ZERO, id, &answer(&[])).unwrap();
    assert!(server.due().is_some_and(|due| due.0 >= MS), "{:?}", server.due());
}

/// What is refused at once, and what is taken back, keeps no place: the table has room for who is wanted.
#[test]
fn what_is_turned_away_or_taken_back_is_forgotten() {
    let config = Config { max_connections: 2, ..Config::default() };
    let mut server = Manager::new(config, Rng::new(1));
    server.listen(HERE, 8).unwrap();
    let mut stranger = manager(2);
    for round in 0..100 {
        let ours = stranger.connect(Time::ZERO, &offer(&[])).unwrap();
        let (_, req) = stranger.poll_transmit().unwrap();
        server.receive(Time::ZERO, STRANGER, &req);
        let Some(Event::Request(id, _)) = server.poll_event() else { panic!("a request comes") };
        if round % 2 == 0 {
            server.turn_away(id, reason::INVALID_PATH_MTU).unwrap();
            let (_, bytes) = server.poll_transmit().unwrap();
            let Message::Rej { remote, reason, .. } = Mad::parse(&bytes).unwrap().message else {
                panic!("a refusal comes")
            };
            assert_eq!((remote, reason), (ours.0, reason::INVALID_PATH_MTU));
            // The same comes again, and is as new.
            server.receive(Time::ZERO, STRANGER, &req);
            let Some(Event::Request(id, _)) = server.poll_event() else { panic!("it comes again") };
            server.turn_away(id, reason::INVALID_PATH_MTU).unwrap();
            assert_eq!(server.turn_away(id, 8), Err(Refused::Unknown(id)));
        } else {
            stranger.let_go(Time::ZERO, ours);
            let (_, rej) = stranger.poll_transmit().unwrap();
            server.receive(Time::ZERO, STRANGER, &rej);
            assert!(matches!(server.poll_event(), Some(Event::Rejected { .. })));
            server.let_go(Time::ZERO, id);
        }
        let asked = stranger.ask(Time::ZERO, SERVER, SERVICE, &[]).unwrap();
        let (_, question) = stranger.poll_transmit().unwrap_or_else(|| panic!("{round}"));
        server.receive(Time::ZERO, STRANGER, &question);
        let Some(Event::ServiceRequest { id, .. }) = server.poll_event() else { panic!("asked") };
        server.turn_away(id, reason::INVALID_SERVICE_ID).unwrap();
        let answers = std::iter::from_fn(|| server.poll_transmit()).last().unwrap().1;
        let Message::SidrRep(reply) = Mad::parse(&answers).unwrap().message else { panic!() };
        assert_eq!((reply.request, reply.status), (asked.0, sidr::UNSUPPORTED));
        assert!(server.is_empty(), "{server:?}");
    }
    assert_eq!(server.due(), None);
}

/// What nobody has any longer, and only answers what is late, gives way to who comes: the oldest first.
#[test]
fn in_a_full_table_what_is_over_gives_way() {
    let config = Config { max_connections: 2, ..Config::default() };
    let mut server = Manager::new(config, Rng::new(1));
    server.listen(HERE, 8).unwrap();
    let mut stranger = manager(2);
    let mut all = Vec::new();
    let mut now = Time::ZERO;
    for _ in 0..5 {
        now = now.saturating_add_ns(1);
        stranger.connect(now, &offer(&[])).unwrap();
        let (_, req) = stranger.poll_transmit().unwrap();
        server.receive(now, STRANGER, &req);
        let Some(Event::Request(id, _)) = server.poll_event() else { panic!("a request comes") };
        server.reject(now, id, reason::CONSUMER, &[]).unwrap();
        server.let_go(now, id);
        let _ = server.poll_transmit();
        all.push(req);
    }
    assert_eq!((server.len(), server.counters().displaced), (2, 3));
    // The youngest are still there, and answer what comes again.
    for req in &all[3..] {
        server.receive(now, STRANGER, req);
        assert_eq!(server.poll_event(), None);
        assert!(server.poll_transmit().is_some());
    }
    server.connect(now, &offer(&[])).unwrap();
    server.ask(now, STRANGER, SERVICE, &[]).unwrap();
    // What is wanted gives way to nobody.
    assert_eq!(server.connect(now, &offer(&[])), Err(Refused::Full(2)));
    server.receive(now, STRANGER, &all[0]);
    assert_eq!((server.poll_event(), server.counters().displaced), (None, 5));
}

#[test]
fn the_table_has_an_end() {
    let config = Config { max_connections: 2, ..Config::default() };
    let mut client = Manager::new(config, Rng::new(1));
    client.connect(Time::ZERO, &offer(&[])).unwrap();
    client.ask(Time::ZERO, SERVER, SERVICE, &[]).unwrap();
    assert_eq!(client.connect(Time::ZERO, &offer(&[])), Err(Refused::Full(2)));
}

/// Bytes of any kind, and bytes that are nearly messages.
#[test]
fn no_bytes_panic() {
    let mut rng = Rng::new(7);
    let mut world = World::new(3, NONE);
    world.server().listen(HERE, 4).unwrap();
    world.connected();
    let mut seen: Vec<[u8; MAD_LEN]> = Vec::new();
    let now = world.now;
    for _ in 0..16 {
        world.client().connect(now, &offer(&[])).unwrap();
    }
    while let Some((_, bytes)) = world.client().poll_transmit() {
        seen.push(bytes);
    }
    for round in 0..20_000 {
        let mut bytes = seen[rng.next_u32() as usize % seen.len()];
        bytes[17] = 0x0f + (rng.next_u32() % 12) as u8;
        for _ in 0..rng.next_u32() % 4 {
            bytes[rng.next_u32() as usize % MAD_LEN] = rng.next_u32() as u8;
        }
        let length = if round % 10 == 0 { rng.next_u32() as usize % MAD_LEN } else { MAD_LEN };
        world.server().receive(now, CLIENT, &bytes[..length]);
        while let Some((_, bytes)) = world.server().poll_transmit() {
            assert!(Mad::parse(&bytes).is_ok());
        }
        while let Some(event) = world.server().poll_event() {
            if let Event::Request(id, _) = event
                && round % 3 == 0
            {
                let _ = world.server().accept(now, id, &answer(&[]));
            }
        }
    }
    assert!(world.server().counters().malformed > 0);
}
