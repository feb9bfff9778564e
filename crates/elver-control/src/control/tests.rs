use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use proptest::prelude::{ProptestConfig, proptest};

use super::calls::{PATIENCE_NS_MAX, RTO_NS, RTO_NS_MAX, TURN_NS};
use super::peer::PATIENCE_NS;
use super::serving::REPLY_NS;
use super::*;
use crate::message::CONTROL_BYTES_MAX;
use crate::message::tests::end;
use elver_verbs::Class;

const A: ControlAddr = ControlAddr { gid: Gid([1; 16]), qpn: 11, qkey: 1 };
const B: ControlAddr = ControlAddr { gid: Gid([2; 16]), qpn: 22, qkey: 2 };

const CONFIG: ControlConfig =
    ControlConfig { calls_max: 4, waiting_max: 100, serving_max: 3, replies_max: 64 };

fn control() -> Control {
    Control::new(CONFIG)
}

fn connect(qpn: u32) -> Request {
    Request::RcConnect { end: end(qpn), class: Class::Low, leased: false }
}

/// Takes in a datagram of a node that is known.
fn take(
    to: &mut Control,
    from: ControlAddr,
    bytes: &[u8],
    rng: &mut Rng,
    now: Time,
) -> Option<Served> {
    let ControlMessage { id, body } = to.read(bytes)?;
    match body {
        ControlBody::Request(request) => to.handle_request(from, id, request),
        ControlBody::Answer(answer) => {
            to.handle_answer((from.gid, from.qpn), id, answer, rng, now);
            None
        }
    }
}

/// The next datagram of `from`, as bytes, with where it goes.
fn datagram(from: &mut Control) -> Option<(ControlAddr, Vec<u8>)> {
    let (to, message) = from.poll_transmit()?;
    let mut bytes = [0; CONTROL_BYTES_MAX];
    let len = message.encode(&mut bytes);
    Some((to, bytes[..len].to_vec()))
}

/// One request's way from A to B.
fn deliver(from: &mut Control, to: &mut Control, rng: &mut Rng, now: Time) -> Option<Served> {
    let (_, bytes) = datagram(from).unwrap();
    take(to, A, &bytes, rng, now)
}

/// One answer's way from B to A.
fn reply(from: &mut Control, to: &mut Control, rng: &mut Rng, now: Time) {
    let (addr, bytes) = datagram(from).unwrap();
    assert_eq!(addr, A);
    assert_eq!(take(to, B, &bytes, rng, now), None);
}

#[test]
fn a_close_waits_for_no_turn() {
    let (mut a, mut rng) = (Control::new(ControlConfig { calls_max: 1, ..CONFIG }), Rng::new(1));
    for token in 0..2 {
        a.call(B, connect(5), token, &mut rng, Time(0)).unwrap();
    }
    let sent = |a: &mut Control| a.poll_transmit().map(|(_, message)| message.body);
    assert_eq!(sent(&mut a), Some(ControlBody::Request(connect(5))));
    assert_eq!(sent(&mut a), None, "one at once");
    // The peer may be waiting for just this before it answers.
    let close = Request::RcClose { qpn: 7, peer_qpn: 8 };
    let id = a.call(B, close, 2, &mut rng, Time(0)).unwrap();
    assert_eq!(sent(&mut a), Some(ControlBody::Request(close)));
    let answer = ControlMessage { id, body: ControlBody::Answer(Answer::Closed) };
    let mut bytes = [0; CONTROL_BYTES_MAX];
    let len = answer.encode(&mut bytes);
    take(&mut a, B, &bytes[..len], &mut rng, Time(5));
    assert_eq!(a.poll_done(), Some(Done { token: 2, answer: Some(Answer::Closed) }));
    assert_eq!(sent(&mut a), None, "it has made room for none");
    // It is given up as others are.
    a.call(B, close, 3, &mut rng, Time(6)).unwrap();
    while a.poll_done().is_none() {
        let due = a.poll_timeout().unwrap();
        assert!(due < Time(3_000_000_000));
        a.handle_timeout(&mut rng, due);
    }
}

/// A node that has gone had many RC QPs, and others are connected to meanwhile.
#[test]
fn closes_take_no_place_of_what_waits() {
    let config = ControlConfig { calls_max: 1, waiting_max: 1, ..CONFIG };
    let (mut a, mut rng) = (Control::new(config), Rng::new(1));
    for token in 0..9 {
        let close = Request::RcClose { qpn: token as u32, peer_qpn: 8 };
        a.call(B, close, token, &mut rng, Time(0)).unwrap();
    }
    assert_eq!(a.load(), (0, 2));
    let other = ControlAddr { gid: Gid([3; 16]), ..B };
    for token in 9..11 {
        a.call(other, connect(5), token, &mut rng, Time(0)).unwrap();
    }
    assert_eq!((a.call(other, connect(5), 11, &mut rng, Time(0)), a.load()), (None, (2, 2)));
    assert_eq!(a.audit(11, &[]), Ok(11));
    // They end, and are counted off.
    while a.calls() > 0 {
        let due = a.poll_timeout().unwrap();
        assert!(due < Time(9_000_000_000));
        a.handle_timeout(&mut rng, due);
    }
    assert_eq!((a.load(), a.audit(0, &[])), ((0, 2), Ok(0)));
}

#[test]
fn a_request_is_done_once_and_answered_each_time() {
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(1));
    a.call(B, connect(5), 77, &mut rng, Time(0)).unwrap();
    let served = deliver(&mut a, &mut b, &mut rng, Time(0)).unwrap();
    assert_eq!(served.request, connect(5));

    // It comes again before the answer is there.
    let due = a.poll_timeout().unwrap();
    assert!((750_000..1_250_000).contains(&due.0), "{due:?}");
    a.handle_timeout(&mut rng, due);
    assert_eq!(deliver(&mut a, &mut b, &mut rng, due), None);
    reply(&mut b, &mut a, &mut rng, due);
    assert_eq!(a.poll_done(), None, "working on it is no answer");

    // And after it.
    b.answer(served.ticket, Answer::Accepted(end(9)), due);
    let (_, lost) = datagram(&mut b).unwrap();
    let due = a.poll_timeout().unwrap();
    a.handle_timeout(&mut rng, due);
    assert_eq!(deliver(&mut a, &mut b, &mut rng, due), None);
    reply(&mut b, &mut a, &mut rng, due);
    let done = Done { token: 77, answer: Some(Answer::Accepted(end(9))) };
    assert_eq!((a.poll_done(), a.poll_done()), (Some(done), None));

    // An answer that comes again means nothing.
    take(&mut a, B, &lost, &mut rng, due);
    assert_eq!((a.poll_done(), a.poll_timeout(), a.calls()), (None, None, 0));
    assert_eq!(a.stats(), &ControlStats { retransmitted: 2, stray: 1, ..Default::default() });
    assert_eq!(b.stats().answered_again, 1);
}

#[test]
fn a_silent_peer_is_given_up_after_doubling_waits() {
    let (mut a, mut rng) = (control(), Rng::new(2));
    a.call(B, Request::Meta, 1, &mut rng, Time(0)).unwrap();
    let mut sent = Vec::new();
    let mut now = Time(0);
    while a.poll_done().is_none() {
        while a.poll_transmit().is_some() {
            sent.push(now.0);
        }
        now = a.poll_timeout().unwrap();
        a.handle_timeout(&mut rng, now);
    }
    assert!((PATIENCE_NS..PATIENCE_NS + 2 * RTO_NS_MAX).contains(&now.0), "{now:?}");
    for (n, pair) in sent.windows(2).enumerate() {
        let rto = (RTO_NS << n.min(16)).min(RTO_NS_MAX);
        let range = rto / 4 * 3..rto / 4 * 5 + 1;
        assert!(range.contains(&(pair[1] - pair[0])), "distance {n}: {pair:?}");
    }
}

#[test]
fn a_peer_that_only_works_on_it_is_given_up_too() {
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(3));
    a.call(B, connect(5), 1, &mut rng, Time(0)).unwrap();
    deliver(&mut a, &mut b, &mut rng, Time(0)).unwrap();
    let mut now = Time(0);
    while a.calls() > 0 {
        now = a.poll_timeout().unwrap();
        a.handle_timeout(&mut rng, now);
        while let Some((_, bytes)) = datagram(&mut a) {
            assert_eq!(take(&mut b, A, &bytes, &mut rng, now), None);
            reply(&mut b, &mut a, &mut rng, now);
        }
    }
    assert!((PATIENCE_NS_MAX..PATIENCE_NS_MAX + 2 * RTO_NS_MAX).contains(&now.0), "{now:?}");
    assert_eq!(a.poll_done(), Some(Done { token: 1, answer: None }));
}

/// It had all turns, for as long as it took to give it up, and then all but one again.
#[test]
fn a_peer_that_only_works_on_it_keeps_nobody_else_waiting() {
    const C: ControlAddr = ControlAddr { gid: Gid([3; 16]), qpn: 33, qkey: 3 };
    let (mut a, mut rng) = (control(), Rng::new(3));
    for token in 0..50 {
        a.call(B, connect(5), token, &mut rng, Time(0)).unwrap();
    }
    let (mut now, mut next, mut ended, mut slow) = (Time(0), 100, 0, 0);
    // As long as it is given up by and by, others have their turns.
    while ended + slow < 250 {
        if next < 300 && a.calls() < 60 {
            a.call(C, connect(5), next, &mut rng, now).unwrap();
            next += 1;
        }
        while let Some((to, message)) = a.poll_transmit() {
            let answer = if to == B { Answer::Working } else { Answer::Accepted(end(9)) };
            a.handle_answer((to.gid, to.qpn), message.id, answer, &mut rng, now);
        }
        while let Some(done) = a.poll_done() {
            if done.token >= 100 {
                ended += 1;
                assert!(now.0 < 2 * TURN_NS, "at {now:?}");
            } else {
                assert!(done.answer.is_none());
                slow += 1;
            }
        }
        assert!(a.calls.flying <= CONFIG.calls_max);
        if let Some(due) = a.poll_timeout() {
            now = due;
            a.handle_timeout(&mut rng, now);
        }
    }
    assert_eq!((ended, slow, a.calls.flying), (200, 50, 0));
    // Four at first, and then one each second.
    assert!((30 * TURN_NS..80 * TURN_NS).contains(&now.0), "{now:?}");
}

#[test]
fn numbers_are_bounded_on_both_sides() {
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(4));
    let most = CONFIG.calls_max + CONFIG.waiting_max;
    for token in 0..most as u64 {
        a.call(B, connect(5), token, &mut rng, Time(0)).unwrap();
    }
    assert_eq!(a.call(B, connect(5), 1_000, &mut rng, Time(0)), None);
    let sent: Vec<_> = core::iter::from_fn(|| datagram(&mut a)).collect();
    assert_eq!(sent.len(), CONFIG.calls_max);

    let served: Vec<_> =
        sent.iter().filter_map(|(_, bytes)| take(&mut b, A, bytes, &mut rng, Time(0))).collect();
    assert_eq!((served.len(), b.stats().busy), (CONFIG.serving_max, 1));
    // The one that is turned away rests, and the next takes its turn.
    reply(&mut b, &mut a, &mut rng, Time(0));
    assert_eq!(core::iter::from_fn(|| datagram(&mut a)).count(), 1);
}

#[test]
fn kept_answers_are_bounded_and_turn_nobody_away() {
    let (mut b, mut rng) = (control(), Rng::new(5));
    let ask = |b: &mut Control, rng: &mut Rng, id: u64, now| {
        let body = ControlBody::Request(connect(id as u32));
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = ControlMessage { id, body }.encode(&mut bytes);
        take(b, A, &bytes[..len], rng, now)
    };
    let most = CONFIG.replies_max as u64;
    // All at one time: far more than are kept for as long as their requests may come again.
    for id in 0..10 * most {
        let served = ask(&mut b, &mut rng, id, Time(0)).expect("nobody is turned away");
        b.answer(served.ticket, Answer::Closed, Time(0));
    }
    assert_eq!((b.stats().busy, b.serving.replies.len(), b.serving.reply_order.len()), (0, 64, 64));
    for id in 9 * most..10 * most {
        assert_eq!(ask(&mut b, &mut rng, id, Time(1)), None, "{id} was seen before");
    }
    // Those that can come no more are forgotten.
    let served = ask(&mut b, &mut rng, 10 * most, Time(REPLY_NS)).unwrap();
    b.answer(served.ticket, Answer::Closed, Time(REPLY_NS));
    assert_eq!((b.serving.replies.len(), b.serving.reply_order.len()), (1, 1));
}

#[test]
fn a_close_makes_room_and_is_never_turned_away() {
    let (mut b, mut rng) = (control(), Rng::new(7));
    let ask = |b: &mut Control, rng: &mut Rng, id: u64, request| {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = ControlMessage { id, body: ControlBody::Request(request) }.encode(&mut bytes);
        take(b, A, &bytes[..len], rng, Time(0))
    };
    let connects: Vec<_> = (0..CONFIG.serving_max as u64)
        .map(|id| ask(&mut b, &mut rng, id, connect(5)).unwrap())
        .collect();
    assert_eq!(ask(&mut b, &mut rng, 100, connect(5)), None);
    for id in 200..220 {
        let close = Request::RcClose { qpn: id, peer_qpn: id };
        assert!(ask(&mut b, &mut rng, id.into(), close).is_some());
    }
    assert_eq!(ask(&mut b, &mut rng, 101, connect(5)), None, "closes take nobody's place");
    assert_eq!(b.stats().busy, 2);
    b.answer(connects[0].ticket, Answer::Closed, Time(0));
    assert!(ask(&mut b, &mut rng, 100, connect(5)).is_some());
}

/// The peer's first answer wakes one of those that it turned away: no timer is waited for.
#[test]
fn who_was_turned_away_goes_on_with_the_first_answer() {
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(8));
    for token in 0..CONFIG.calls_max as u64 {
        a.call(B, connect(5), token, &mut rng, Time(0)).unwrap();
    }
    let sent: Vec<_> = core::iter::from_fn(|| datagram(&mut a)).collect();
    let served: Vec<_> =
        sent.iter().filter_map(|(_, bytes)| take(&mut b, A, bytes, &mut rng, Time(0))).collect();
    reply(&mut b, &mut a, &mut rng, Time(0));
    assert_eq!(datagram(&mut a), None, "the last one rests");
    b.answer(served[0].ticket, Answer::Accepted(end(9)), Time(1));
    reply(&mut b, &mut a, &mut rng, Time(1));
    let (_, again) = datagram(&mut a).expect("it goes at once");
    assert_eq!(again, sent[CONFIG.calls_max - 1].1);
}

#[test]
fn a_dead_peer_keeps_nobody_else_waiting() {
    const DEAD: ControlAddr = ControlAddr { gid: Gid([9; 16]), qpn: 99, qkey: 9 };
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(9));
    for token in 0..50 {
        a.call(DEAD, connect(5), token, &mut rng, Time(1)).unwrap();
    }
    for token in 100..140 {
        a.call(B, connect(5), token, &mut rng, Time(1)).unwrap();
    }
    let (mut now, mut ended) = (Time(1), Vec::new());
    while ended.len() < 90 {
        while let Some((to, bytes)) = datagram(&mut a) {
            if to == B
                && let Some(served) = take(&mut b, A, &bytes, &mut rng, now)
            {
                b.answer(served.ticket, Answer::Closed, now);
                reply(&mut b, &mut a, &mut rng, now);
            }
        }
        ended.extend(core::iter::from_fn(|| a.poll_done()).map(|done| (done, now)));
        if let Some(due) = a.poll_timeout() {
            now = due;
            a.handle_timeout(&mut rng, now);
        }
    }
    let (answered, lost) = ended.split_at(40);
    for (n, (done, at)) in answered.iter().enumerate() {
        assert_eq!((done.token, done.answer), (100 + n as u64, Some(Answer::Closed)), "in order");
        assert!(at.0 < 2 * RTO_NS, "{done:?} at {at:?} waited for the dead peer");
    }
    for (done, at) in lost {
        assert!(done.token < 50 && done.answer.is_none());
        assert!(at.0 < PATIENCE_NS + 2 * RTO_NS_MAX, "{done:?} at {at:?} was tried in vain");
    }
    assert_eq!(
        (a.calls(), a.calls.flying, a.calls.peers.len(), a.calls.timers.len()),
        (0, 0, 0, 0)
    );
}

#[test]
fn an_answer_from_elsewhere_means_nothing() {
    let (mut a, mut rng) = (control(), Rng::new(6));
    let id = a.call(B, Request::Meta, 1, &mut rng, Time(0)).unwrap();
    let body = ControlBody::Answer(Answer::Closed);
    let mut bytes = [0; CONTROL_BYTES_MAX];
    let len = ControlMessage { id, body }.encode(&mut bytes);
    for (gid, qpn) in [(A.gid, B.qpn), (B.gid, A.qpn)] {
        take(&mut a, ControlAddr { gid, qpn, ..B }, &bytes[..len], &mut rng, Time(0));
    }
    take(&mut a, B, &bytes[1..len], &mut rng, Time(0));
    assert_eq!((a.stats().stray, a.calls()), (3, 1));
}

/// Two cores over a channel that loses, doubles and reorders, in virtual time.
struct Channel {
    rng: Rng,
    /// Datagrams under way: when they arrive, a number that makes them distinct, whether they go to
    /// B, the bytes.
    flying: BTreeSet<(u64, u64, bool, Vec<u8>)>,
    count: u64,
    loss_percent: u64,
    doubled_percent: u64,
    delay_ns_max: u64,
}

impl Channel {
    fn put(&mut self, bytes: Vec<u8>, to_b: bool, now: u64) {
        let percent = |rng: &mut Rng| rng.next_u64() % 100;
        let copies = 1 + u64::from(percent(&mut self.rng) < self.doubled_percent);
        for _ in 0..copies {
            if percent(&mut self.rng) >= self.loss_percent {
                let delay = self.rng.next_u64() % self.delay_ns_max;
                self.count += 1;
                self.flying.insert((now + delay, self.count, to_b, bytes.clone()));
            }
        }
    }
}

/// Runs `requests` from A to B over such a channel; returns when the last one ended.
fn run(
    seed: u64,
    requests: u32,
    loss_percent: u64,
    doubled_percent: u64,
    delay_ns_max: u64,
) -> u64 {
    let (mut a, mut b, mut rng) = (control(), control(), Rng::new(seed));
    let mut channel = Channel {
        rng: Rng::new(!seed),
        flying: BTreeSet::new(),
        count: 0,
        loss_percent,
        doubled_percent,
        delay_ns_max,
    };
    for qpn in 0..requests {
        a.call(B, connect(qpn), qpn.into(), &mut rng, Time(0)).unwrap();
    }
    // B takes some time for each; and must not be given one twice.
    let mut working: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut tickets = BTreeMap::new();
    let mut ended = BTreeMap::new();
    let mut now = 0;
    while (ended.len() as u32) < requests {
        while let Some((_, bytes)) = datagram(&mut a) {
            channel.put(bytes, true, now);
        }
        while let Some((_, bytes)) = datagram(&mut b) {
            channel.put(bytes, false, now);
        }
        let next = [
            a.poll_timeout().map(|time| time.0),
            channel.flying.first().map(|(at, ..)| *at),
            working.first().map(|(at, _)| *at),
        ];
        now = next.into_iter().flatten().min().expect("something is due").max(now);
        a.handle_timeout(&mut rng, Time(now));
        if let Some((at, ..)) = channel.flying.first()
            && *at <= now
        {
            let (_, _, to_b, bytes) = channel.flying.pop_first().unwrap();
            if !to_b {
                take(&mut a, B, &bytes, &mut rng, Time(now));
            } else if let Some(served) = take(&mut b, A, &bytes, &mut rng, Time(now)) {
                let Request::RcConnect { end, .. } = served.request else { panic!("not asked") };
                assert!(tickets.insert(end.qpn, served.ticket).is_none(), "done twice");
                working.insert((now + rng.next_u64() % 3_000_000, end.qpn));
            }
        }
        if let Some((at, qpn)) = working.first().copied()
            && at <= now
        {
            working.pop_first();
            b.answer(tickets[&qpn], Answer::Accepted(end(qpn)), Time(now));
        }
        while let Some(done) = a.poll_done() {
            let expected = Answer::Accepted(end(done.token as u32));
            assert!(done.answer.is_none_or(|answer| answer == expected), "{done:?}");
            assert!(ended.insert(done.token, done.answer.is_some()).is_none(), "ended twice");
        }
        assert!(
            b.serving.working.len() <= CONFIG.serving_max && a.calls.flying <= CONFIG.calls_max
        );
        assert!(b.serving.replies.len() <= CONFIG.replies_max);
    }
    assert_eq!(
        (a.calls(), a.calls.flying, a.calls.timers.len(), a.calls.peers.len()),
        (0, 0, 0, 0)
    );
    assert!(ended.values().all(|answered| *answered), "a request failed");
    now
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each request is done at most once and ends exactly once, with its own answer.
    #[test]
    fn any_channel_that_lets_something_through_will_do(
        seed: u64,
        requests in 1..60u32,
        loss_percent in 0..40u64,
        doubled_percent in 0..50u64,
        delay_us_max in 1..3_000u64,
    ) {
        run(seed, requests, loss_percent, doubled_percent, delay_us_max * 1_000);
    }
}

#[test]
fn many_at_once_all_end() {
    let took = run(9, 64, 0, 0, 20_000);
    assert!(took < 1_000_000_000, "64 requests of at most 3 ms each, 3 at once, took {took} ns");
}
