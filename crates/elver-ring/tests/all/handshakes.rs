//! Pairs that are being made: one side dies between the offer and its answer, or more of one node come than are answered
//! at a time. Whoever is still there goes on with others, and has nothing of those that are gone.

use std::net::UdpSocket;
use std::sync::mpsc;
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::common::{PLACE, TestNode, WAIT, cluster, session_at};
use elver::tokio::AsyncSession;
use elver::{
    AccessFlags, EmbeddedNode, Gid, Payload, Policy, RecvWr, RefusalCode, SendFlags, SendOp,
    SendWr, Session, SessionOptions, VqpOptions,
};
use elver_ring::{Connecting, Ends, Error, Listener, ListenerOptions, Options, Refusal, connect};
use elver_testkit::{Launch, PATIENCE, Process, Role, impatient, role, stay, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Pairs that are offered at once by who dies, and how many of one node are answered at a time by a policy of their own.
const CROWD: usize = 12;
const AT_A_TIME: u64 = 8;
/// What the others say of their pair.
const HONEST: u64 = 1;

/// Clusters of which a host dies: who offers, and who listens.
const OFFERS: u8 = 83;
const LISTENS: u8 = 85;

/// What a node has of its processes' own: VQPs, but for those that messages have made, and regions.
fn held(node: &TestNode) -> [u64; 2] {
    let core = node.thread.status().unwrap().core;
    [core["vqps"] - core["accepted"], core["mrs"]]
}

/// Waits until messages of so many VQPs have come to a node's processes.
fn wait_for_offers(node: &TestNode, count: usize) {
    wait_for("the offers to come", || {
        let accepted = node.thread.status().unwrap().core["accepted"];
        // Whoever has waited for long asks by another.
        (accepted >= count as u64).then_some(())
    });
}

fn crowd(session: &Session, gid: Gid, port: u16, count: usize) -> Vec<Connecting> {
    let start = |_| Connecting::start(session, gid, port, Options::default()).unwrap();
    (0..count).map(start).collect()
}

/// Does what offers need that nobody answers, until it is told to stand still.
fn look_after(offered: &mut [Connecting], told: &mpsc::Receiver<()>, drive: impl Fn()) {
    while told.try_recv() == Err(mpsc::TryRecvError::Empty) {
        drive();
        // One that has come to the listener would ask for its answer by and by.
        for connecting in offered.iter_mut().filter(|connecting| connecting.deadline().is_none()) {
            assert!(connecting.poll().unwrap().is_none(), "nobody answers");
        }
        std::thread::yield_now();
    }
}

/// Offers pairs, and stands still when it is told to.
fn offer(session: &Session, gid: Gid, port: u16, drive: impl Fn()) {
    let mut offered = crowd(session, gid, port, CROWD);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        stay();
        tell.send(())
    });
    look_after(&mut offered, &told, drive);
    eprintln!("stands");
    stay();
}

/// A host of this process, at a node of its own that its thread drives: it offers pairs, and stands still when it is told to.
/// Dropped, as by what fails beside it, it ends, so that nobody waits for it.
struct Host {
    tell: mpsc::Sender<()>,
    stands: mpsc::Receiver<()>,
}

impl Host {
    /// It offers so many pairs to a listener; told to go on, it does so with these.
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        group: u8,
        (gid, port): (Gid, u16),
        pairs: usize,
        goes_on: impl FnOnce(Vec<Connecting>) + Send + 'scope,
    ) -> Host {
        let (tell, told) = mpsc::channel();
        let (say, stands) = mpsc::channel();
        scope.spawn(move || {
            let node = EmbeddedNode::new(PLACE.driven(group, 3));
            let session = node.session(SessionOptions::default()).unwrap();
            let mut offered = crowd(&session, gid, port, pairs);
            look_after(&mut offered, &told, || {
                node.poll();
            });
            say.send(()).unwrap();
            told.recv().unwrap();
            goes_on(offered);
        });
        Host { tell, stands }
    }

    fn stand(&self) {
        self.tell.send(()).unwrap();
        self.stands.recv().unwrap();
    }

    fn go_on(&self) {
        self.tell.send(()).unwrap();
    }
}

/// Not a test of its own: it offers pairs, beside the node of who listens.
#[test]
fn process_that_offers() {
    let Some(Role { socket, knows }) = role() else { return };
    let session = Session::connect(socket).unwrap();
    offer(&session, session.gid(), knows.parse().unwrap(), || ());
}

/// Not a test of its own: it offers pairs at a node of its own, which stands still with it, and dies with it.
#[test]
fn host_that_offers() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = EmbeddedNode::new(PLACE.driven(OFFERS, 3));
    let session = node.session(SessionOptions::default()).unwrap();
    let gid = PLACE.address(OFFERS, 1).into();
    offer(&session, gid, knows.parse().unwrap(), || {
        node.poll();
    });
}

/// Does what waits in a task of a runtime of its own.
fn in_runtime<R>(session: &Session, task: impl AsyncFnOnce(&AsyncSession) -> R) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { task(&AsyncSession::new(session.clone()).unwrap()).await })
}

/// How a listener waits for the next pair.
type Accept = fn(&Session, &Listener) -> Ends;

fn blocking(_: &Session, listener: &Listener) -> Ends {
    listener.accept(WAIT).unwrap()
}

fn in_a_task(session: &Session, listener: &Listener) -> Ends {
    in_runtime(session, async |session| {
        let accepted = tokio::time::timeout(PATIENCE, listener.accept_async(session));
        accepted.await.expect("a pair in time").unwrap()
    })
}

/// Connects, says something, and hears it again.
fn is_served(session: &Session, gid: Gid, port: u16) {
    let options = Options { token: HONEST, ..Options::default() };
    let mut ends = connect(session, gid, port, options, WAIT).unwrap();
    ends.sender.send(b"said", WAIT).unwrap();
    ends.sender.flush().unwrap();
    assert_eq!(ends.receiver.recv(WAIT).unwrap().unwrap().to_vec(), b"said");
    ends.sender.finish(WAIT).unwrap();
}

/// The other end of one that is served.
fn serve(ends: &mut Ends) {
    let said = ends.receiver.recv(WAIT).unwrap().unwrap().to_vec();
    ends.sender.send(&said, WAIT).unwrap();
    ends.sender.flush().unwrap();
    assert!(ends.receiver.recv(WAIT).unwrap().is_none());
    ends.sender.finish(WAIT).unwrap();
}

/// Who offers is killed before the listener has looked, or, where the listener has a policy, while it answers. The next is
/// at `other`.
fn offers_that_die(node: &TestNode, other: &TestNode, test: &str, policy: Policy, accept: Accept) {
    let empty = held(node);
    let session = session_at(node);
    let options = ListenerOptions { policy, ..ListenerOptions::default() };
    let listener = Listener::bind(&session, 0, options).unwrap();
    let listening = held(node);
    let port = listener.port();
    let test = format!("handshakes::{test}");
    let mut process = Launch::new(&test, &node.path).knows(port).start();
    wait_for_offers(node, CROWD);
    process.goes();
    assert_eq!(process.says(), "stands");
    std::thread::scope(|scope| {
        scope.spawn(|| is_served(&session_at(other), node.gid, port));
        wait_for_offers(node, CROWD + 1);
        if policy != Policy::Shared {
            let before = held(node);
            let elsewhere = u64::from(node.gid != other.gid);
            // The node may not have handed the last one over yet.
            wait_for("as many to be answered as may be", || {
                assert!(listener.try_accept().unwrap().is_none() && listener.is_answering());
                (held(node) == [before[0] + AT_A_TIME + elsewhere, before[1]]).then_some(())
            });
        }
        process.kill();
        let mut dead = Vec::new();
        let mut honest = loop {
            let ends = accept(&session, &listener);
            if ends.token == HONEST {
                break ends;
            }
            dead.push(ends);
        };
        serve(&mut honest);
        for ends in &mut dead {
            let gone = ends.receiver.recv(WAIT).map(drop).unwrap_err();
            assert!(matches!(gone, Error::Carrier(_)), "{gone}");
        }
        let accepted = dead.len() as u64 + 1;
        drop((dead, honest));
        wait_for("the listener to be done with who is gone", || {
            assert!(listener.try_accept().unwrap().is_none());
            (!listener.is_answering() && held(node) == listening).then_some(())
        });
        let counters = listener.counters();
        assert_eq!(counters.accepted, accepted);
        let all = counters.accepted + counters.refused + counters.dropped;
        assert_eq!(all, CROWD as u64 + 1, "{counters:?}");
    });
    drop((listener, session));
    wait_for("all to be given back", || {
        let accepted = node.thread.status().unwrap().core["accepted"];
        (accepted == 0 && held(node) == empty).then_some(())
    });
}

#[test]
fn a_process_that_dies_with_its_offers_leaves_the_listener_to_others() {
    let node = TestNode::start(PLACE.alone(82));
    for policy in [Policy::Shared, Policy::Leased] {
        for accept in [blocking as Accept, in_a_task] {
            offers_that_die(&node, &node, "process_that_offers", policy, accept);
        }
    }
}

#[test]
fn a_host_that_dies_with_its_offers_leaves_the_listener_to_others() {
    let (meta, other) = cluster(OFFERS);
    for policy in [Policy::Shared, Policy::Leased] {
        for accept in [blocking as Accept, in_a_task] {
            offers_that_die(&meta, &other, "host_that_offers", policy, accept);
        }
    }
}

/// Whoever likes to greets: however many come together, their node is asked, and waited for, once.
#[test]
fn a_crowd_that_comes_together_costs_one_question() {
    let node = TestNode::start(PLACE.alone(91));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let port = listener.port();
    let others = session_at(&node);
    let mut offered = crowd(&others, node.gid, port, CROWD);
    wait_for("the offers to come", || {
        assert!(offered.iter_mut().all(|offer| offer.poll().unwrap().is_none()), "nobody answers");
        offered.iter().all(|offer| offer.deadline().is_some()).then_some(())
    });
    let mut pairs = Vec::new();
    wait_for("all of them to be answered", || {
        let before = listener.counters().asked;
        pairs.extend(listener.try_accept().unwrap());
        assert!(listener.counters().asked <= before + 1, "{:?}", listener.counters());
        (pairs.len() == CROWD).then_some(())
    });
    assert!(listener.counters().asked < CROWD as u64, "{:?}", listener.counters());
}

/// A node that stands still keeps no more answers waiting than are begun to one at a time: others are answered meanwhile, and
/// its ninth pair when another has been.
#[test]
fn the_ninth_pair_of_one_node_waits_for_its_turn() {
    const PAIRS: usize = AT_A_TIME as usize + 1;
    // Who stands still is waited for.
    let (meta, other) = PLACE.cluster(86, |config| {
        (config.pool.timeout, config.pool.keep_alive_ms) = (20, 0);
    });
    let session = session_at(&meta);
    let options = ListenerOptions { policy: Policy::Leased, ..ListenerOptions::default() };
    let listener = Listener::bind(&session, 0, options).unwrap();
    let (gid, port) = (meta.gid, listener.port());
    std::thread::scope(|scope| {
        let host = Host::start(scope, 86, (gid, port), PAIRS, |offered| {
            let pairs = offered.into_iter().map(|connecting| connecting.wait(WAIT));
            let pairs: Vec<Result<Ends, Error>> = pairs.collect();
            // Who has stood still for a second, on a busy machine, is told so.
            let is_told = |pair: &Result<_, Error>| match pair {
                Ok(_) | Err(Error::Refused { reason: Refusal::Unreachable }) => true,
                Err(_) => false,
            };
            assert!(pairs.iter().all(is_told), "{pairs:?}");
        });
        wait_for_offers(&meta, PAIRS);
        scope.spawn(|| is_served(&session_at(&other), gid, port));
        wait_for_offers(&meta, PAIRS + 1);
        host.stand();
        let [vqps, regions] = held(&meta);
        // The node may not have handed the last one over yet.
        wait_for("as many to be answered as may be", || {
            assert!(listener.try_accept().unwrap().is_none() && listener.is_answering());
            (held(&meta) == [vqps + AT_A_TIME + 1, regions]).then_some(())
        });
        let mut honest = listener.accept(WAIT).unwrap();
        assert_eq!(honest.token, HONEST);
        serve(&mut honest);
        // Each has a VQP, and those that wait for one: as long as none that is refused is going.
        let mut pairs = vec![honest];
        let is_within = |pairs: &[Ends]| {
            let own = held(&meta)[0] - vqps;
            own <= AT_A_TIME + pairs.len() as u64 || listener.counters().refused > 0
        };
        assert!(is_within(&pairs) && (listener.is_answering() || listener.counters().refused > 0));
        host.go_on();
        wait_for("all of them to be answered", || {
            pairs.extend(listener.try_accept().unwrap());
            assert!(is_within(&pairs), "more than {AT_A_TIME} at a time");
            let refused = listener.counters().refused as usize;
            (pairs.len() + refused > PAIRS && !listener.is_answering()).then_some(())
        });
        assert_eq!(listener.counters().dropped, 0);
    });
}

/// How an offer waits for its answer.
type Offer = fn(&Session, Connecting) -> Result<Ends, Error>;

fn waits(_: &Session, connecting: Connecting) -> Result<Ends, Error> {
    connecting.wait(None)
}

fn waits_in_a_task(session: &Session, connecting: Connecting) -> Result<Ends, Error> {
    in_runtime(session, async |session| connecting.wait_async(session).await)
}

/// As an event loop waits: it looks when the session's descriptor tells something, and when that is due, and never else.
fn waits_by_the_descriptor(session: &Session, mut connecting: Connecting) -> Result<Ends, Error> {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "nothing is told");
        if let Some(ends) = connecting.poll()? {
            return Ok(ends);
        }
        let deadline = connecting.deadline().unwrap_or(began + PATIENCE);
        if session.arm()? {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap();
            poll(&mut [PollFd::new(session, PollFlags::IN)], Some(&left)).unwrap();
            session.disarm()?;
        }
    }
}

/// Leaves no room in the socket of a node that stands still: what others send it is lost.
fn fill_socket(group: u8, host: u8) {
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = (PLACE.address(group, host), PLACE.udp_ports + u16::from(group));
    // Where long ones find no room short ones may.
    for length in [60_000, 1_000, 8] {
        for _ in 0..2_000 {
            stranger.send_to(&vec![0; length], to).unwrap();
        }
    }
}

/// A host stands still, and what others send it is lost, while it is answered: with the answer it loses the pair. It once
/// waited for ever, if it had no limit.
#[test]
fn an_answer_that_is_lost_is_asked_for() {
    let (meta, _other) = PLACE.cluster(88, impatient);
    let session = session_at(&meta);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let at = (meta.gid, listener.port());
    let empty = held(&meta);
    std::thread::scope(|scope| {
        let host = Host::start(scope, 88, at, 1, |mut offered| {
            let told = offered.remove(0).wait(None).map(drop).unwrap_err();
            assert!(matches!(told, Error::Refused { reason: Refusal::Lost }), "{told}");
        });
        wait_for_offers(&meta, 1);
        host.stand();
        fill_socket(88, 3);
        let mut ends = listener.accept(WAIT).unwrap();
        let lost = ends.receiver.recv(WAIT).map(drop).unwrap_err();
        assert!(matches!(lost, Error::Carrier(_)), "{lost}");
        drop(ends);
        host.go_on();
        wait_for("it to ask", || {
            assert!(listener.try_accept().unwrap().is_none());
            (listener.counters().lost == 1).then_some(())
        });
    });
    assert_eq!((listener.counters().accepted, listener.counters().refused), (1, 1));
    wait_for("all to be given back", || (held(&meta) == empty).then_some(()));
}

/// A listener goes while the host that offers stands still, to which that cannot be told: its node says it once. The port is
/// nobody's then, by which the question is refused; it was asked for ever.
#[test]
fn a_listener_that_went_unheard_is_missed() {
    let (meta, _other) = PLACE.cluster(109, |config| {
        impatient(config);
        // Nobody is given up who stands still.
        config.pool.keep_alive_ms = 0;
    });
    let session = session_at(&meta);
    let unbound = held(&meta);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let at = (meta.gid, listener.port());
    std::thread::scope(|scope| {
        let host = Host::start(scope, 109, at, 1, |mut offered| {
            let told = offered.remove(0).wait(WAIT).map(drop).unwrap_err();
            let Error::Carrier(elver::Error::Refused { code, .. }) = told else { panic!("{told}") };
            assert_eq!(code, RefusalCode::NoSuchPort);
        });
        wait_for_offers(&meta, 1);
        host.stand();
        fill_socket(109, 3);
        let lost = || meta.thread.status().unwrap().core["messages_lost"];
        let before = lost();
        drop(listener);
        wait_for("its end to be told to nobody", || {
            let accepted = meta.thread.status().unwrap().core["accepted"];
            (accepted == 0 && held(&meta) == unbound && lost() > before).then_some(())
        });
        host.go_on();
    });
}

/// Nothing is due before the offer is there, and then its deadline is a second away at most, however often it looks.
#[test]
fn a_deadline_comes_with_the_offer_and_stays() {
    let node = TestNode::start(PLACE.alone(90));
    let session = session_at(&node);
    let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let began = Instant::now();
    let mut connecting = crowd(&session, node.gid, listener.port(), 1).remove(0);
    assert_eq!(connecting.deadline(), None);
    let deadline = wait_for("the offer to be there", || {
        assert!(connecting.poll().unwrap().is_none(), "nobody answers");
        connecting.deadline()
    });
    assert!(deadline >= began + Duration::from_secs(1));
    assert!(deadline <= Instant::now() + Duration::from_secs(1));
    while Instant::now() < deadline {
        assert!(connecting.poll().unwrap().is_none(), "nobody answers");
        if Instant::now() < deadline {
            assert_eq!(connecting.deadline(), Some(deadline), "it is put off by no look");
        }
        std::thread::yield_now();
    }
    // It asks: whether there is an answer is looked for now and then until it asks again.
    assert!(connecting.poll().unwrap().is_none(), "nobody answers");
    let looks = connecting.deadline().unwrap();
    assert!(looks > deadline && looks <= Instant::now() + Duration::from_secs(2) / 64);
}

/// Whoever waits, and however: it asks after a second, and what it is told ends that.
#[test]
fn who_waits_for_long_asks() {
    let node = TestNode::start(PLACE.alone(89));
    let session = session_at(&node);
    let bound = session.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let mr = session.alloc(512, AccessFlags::LOCAL_WRITE).unwrap();
    let receive = |index: u64| {
        let sges = [mr.sge(256 * index, 256)];
        bound.post_recv(&[RecvWr { wr_id: index, sges: &sges }]).unwrap();
    };
    (0..2).for_each(receive);
    // An offer, and a question; and the answer to that.
    let head = u64::from(u32::from_le_bytes(*b"RB2R")) | 4 << 32;
    let (hello, waiting) = (head | 1 << 48, head | 4 << 48);
    let mut words = [0; 15];
    (words[0], words[9]) = (head | 3 << 48, 11);
    let lost: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let (op, payload) = (SendOp::Send, Payload::Inline(&lost));
    let lost = SendWr { wr_id: 1, op, flags: SendFlags::empty(), payload, dest: None };
    for offer in [waits as Offer, waits_in_a_task, waits_by_the_descriptor] {
        std::thread::scope(|scope| {
            let told = scope.spawn(|| {
                let session = session_at(&node);
                let connecting = crowd(&session, node.gid, port, 1).remove(0);
                offer(&session, connecting).map(drop).unwrap_err()
            });
            let (mut offers, mut questions) = (0, 0);
            while !told.is_finished() {
                for message in bound.qpop_msgs().unwrap() {
                    let first = mr.read_u64(256 * message.wc.wr_id).unwrap();
                    receive(message.wc.wr_id);
                    // A question of the one before, which it asked a second time, is nobody's.
                    if first == hello {
                        offers += 1;
                    } else if offers > 0 {
                        assert_eq!(first, waiting);
                        questions += 1;
                        // Who asked may have asked anew since.
                        let _ = message.source.post_send(&[lost]);
                    }
                }
                std::thread::yield_now();
            }
            let told = told.join().unwrap();
            assert!(matches!(told, Error::Refused { reason: Refusal::Lost }), "{told}");
            assert!(offers == 1 && questions > 0, "{offers} offers, {questions} questions");
        });
    }
}

/// Listens by a policy, and answers nobody: it says when somebody is there, or is being answered.
fn listen(session: &Session, policy: Policy) {
    let options = ListenerOptions { policy, ..ListenerOptions::default() };
    let listener = Listener::bind(session, 0, options).unwrap();
    eprintln!("{}", listener.port());
    session.wait_ready(WAIT).unwrap();
    if policy != Policy::Shared {
        assert!(listener.try_accept().unwrap().is_none() && listener.is_answering());
    }
    eprintln!("offered");
    stay();
}

fn policy(knows: &str) -> Policy {
    Policy::from_code(knows.parse().unwrap()).unwrap()
}

/// Not a test of its own: it listens, beside the node of who connects.
#[test]
fn process_that_listens() {
    let Some(Role { socket, knows }) = role() else { return };
    listen(&Session::connect(socket).unwrap(), policy(&knows));
}

/// Not a test of its own: it listens at a node of its own, which dies with it.
#[test]
fn host_that_listens() {
    let Some(Role { knows, .. }) = role() else { return };
    let node = PLACE.member(LISTENS, 3, |_| ());
    let session = session_at(&node);
    // Nobody does it when this is killed.
    std::fs::remove_file(&node.path).unwrap();
    listen(&session, policy(&knows));
}

/// How who connects waits for the answer.
type Wait = fn(Connecting) -> Result<Ends, Error>;

fn asleep(connecting: Connecting) -> Result<Ends, Error> {
    connecting.wait(WAIT)
}

fn task(connecting: Connecting) -> Result<Ends, Error> {
    let session = connecting.session().clone();
    in_runtime(&session, async |session| {
        let answered = tokio::time::timeout(PATIENCE, connecting.wait_async(session));
        answered.await.expect("an answer in time")
    })
}

/// A listener is killed before it has answered; who connected hears it, and is served by another.
fn listeners_that_die(node: &TestNode, gid: Gid, test: &str, policy: Policy, wait: Wait) {
    let empty = held(node);
    let test = format!("handshakes::{test}");
    let mut process: Process = Launch::new(&test, &node.path).knows(policy.code()).start();
    let port = process.says().parse().unwrap();
    let session = session_at(node);
    let mut connecting = Connecting::start(&session, gid, port, Options::default()).unwrap();
    // Until it has offered.
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let process = &mut process;
        scope.spawn(move || {
            assert_eq!(process.says(), "offered");
            tell.send(()).unwrap();
        });
        look_after(std::slice::from_mut(&mut connecting), &told, || ());
    });
    process.kill();
    let gone = wait(connecting).map(drop).unwrap_err();
    assert!(matches!(gone, Error::Carrier(_)), "{gone}");
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            let session = session_at(node);
            let listener = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
            tell.send(listener.port()).unwrap();
            serve(&mut listener.accept(WAIT).unwrap());
        });
        is_served(&session, node.gid, told.recv().unwrap());
    });
    drop(session);
    wait_for("all to be given back", || (held(node) == empty).then_some(()));
}

#[test]
fn a_process_that_dies_before_it_answers_is_missed() {
    let node = TestNode::start(PLACE.alone(84));
    for policy in [Policy::Shared, Policy::Leased] {
        for wait in [asleep as Wait, task] {
            listeners_that_die(&node, node.gid, "process_that_listens", policy, wait);
        }
    }
}

#[test]
fn a_host_that_dies_before_it_answers_is_missed() {
    let (meta, _other) = cluster(LISTENS);
    let gid = PLACE.address(LISTENS, 3).into();
    for policy in [Policy::Shared, Policy::Leased] {
        for wait in [asleep as Wait, task] {
            listeners_that_die(&meta, gid, "host_that_listens", policy, wait);
        }
    }
}
