use std::collections::VecDeque;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

use super::backoff::Backoff;
use super::frame::Frame;
use super::seal::{Nonce, Seals};
use super::secret::Secret;

/// Heartbeats in a time to live: two may be lost.
const BEATS_PER_TTL: u64 = 3;
/// Looks, in the time between two heartbeats, for the proof that one is owed.
const PROOFS_PER_BEAT: u64 = 8;
/// The shortest time to live that is believed.
const TTL_NS_MIN: u64 = 10_000_000;
/// The longest.
const TTL_NS_MAX: u64 = 3_600_000_000_000;

/// Tries in a row, about half a second, after which it is worth a word that a server is not reached:
/// before, it may be starting with its nodes.
const UNREACHED_MIN: u32 = 6;

const SECRET_WANTED: &str = "the registry wants to know the cluster's secret, and this node has \
                             none: set `registry.secret_file`";
const SECRET_UNPROVEN: &str = "the registry does not prove that it knows the cluster's secret: set \
                               `registry.secret_file` there, unless it is an impostor";

/// One meta server as its client sees it: connecting, registering, keeping alive, and trying again.
/// It does no IO.
#[derive(Debug)]
pub(super) struct Session {
    state: State,
    secret: Option<Secret>,
    /// Of the connection.
    nonce: Nonce,
    /// The server asked for a proof; what it says from then on is sealed.
    challenged: bool,
    /// For its frames from now on.
    seals: Option<Seals>,
    backoff: Backoff,
    answer_ns_max: u64,
    ttl_ns: u64,
    beat_at: Time,
    heard_at: Time,
    /// The meta server as it last told.
    pub(super) server: Option<MetaServer>,
    pub(super) registered: bool,
    watching: bool,
    /// Why it last ended, in words for the user.
    pub(super) refusal: Option<String>,
    /// Times that it was refused.
    pub(super) refusals: u64,
    /// Times that there was something new to tell of why it is not registered.
    pub(super) tidings: u64,
    /// Tries in a row to which nobody answered.
    unreached: u32,
    outputs: VecDeque<Frame>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected; the next try is due then.
    Resting { until: Time },
    /// Connecting or waiting for the welcome, until then.
    Greeting { until: Time },
    /// Welcomed.
    Up,
}

/// What a session's owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect,
    Disconnect,
}

impl Session {
    /// A session that connects at once. The server must answer within so many nanoseconds.
    pub(super) fn new(
        backoff: Backoff,
        answer_ns_max: u64,
        secret: Option<Secret>,
        now: Time,
    ) -> Session {
        Session {
            state: State::Resting { until: now },
            secret,
            nonce: Nonce::default(),
            challenged: false,
            seals: None,
            backoff,
            answer_ns_max,
            ttl_ns: TTL_NS_MAX,
            beat_at: now,
            heard_at: now,
            server: None,
            registered: false,
            watching: false,
            refusal: None,
            refusals: 0,
            tidings: 0,
            unreached: 0,
            outputs: VecDeque::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Does what is due by the clock. A heartbeat is sent only if the engine turned since the last one
    /// (`turned`); if not, it is asked for again soon.
    pub(super) fn poll(&mut self, now: Time, turned: impl FnOnce() -> bool) -> Option<Step> {
        match self.state {
            State::Resting { until } if until <= now => {
                self.state = State::Greeting { until: now.saturating_add_ns(self.answer_ns_max) };
                Some(Step::Connect)
            }
            State::Greeting { until } if until <= now => {
                self.unreached(format!("no answer for {} ms", self.answer_ns_max / 1_000_000));
                Some(Step::Disconnect)
            }
            State::Up if now.ns_since(self.heard_at) >= self.ttl_ns => Some(Step::Disconnect),
            State::Up if self.beat_at <= now => {
                if turned() {
                    self.beat(now);
                    self.outputs.push_back(Frame::Heartbeat);
                } else {
                    let soon = self.ttl_ns / BEATS_PER_TTL / PROOFS_PER_BEAT;
                    self.beat_at = now.saturating_add_ns(soon);
                }
                None
            }
            _ => None,
        }
    }

    /// When [`Session::poll`] has something to do.
    pub(super) fn poll_timeout(&self) -> Time {
        match self.state {
            State::Resting { until } | State::Greeting { until } => until,
            State::Up => self.beat_at.min(self.heard_at.saturating_add_ns(self.ttl_ns)),
        }
    }

    /// Says hello, with a nonce that was never said before.
    pub(super) fn greet(&mut self, nonce: Nonce) {
        self.nonce = nonce;
        self.outputs.push_back(Frame::Hello { nonce });
    }

    /// Takes the seals of the connection, once: from then on all that is sent is sealed with them, and
    /// all that is received must be.
    pub(super) fn take_seals(&mut self) -> Option<Seals> {
        self.seals.take()
    }

    /// The connection ends for a reason that the user should know.
    pub(super) fn refuse(&mut self, reason: impl Into<String>) {
        self.refusal = Some(reason.into());
        self.refusals += 1;
        self.tidings += 1;
    }

    /// Nobody answers there, for this reason.
    pub(super) fn unreached(&mut self, reason: impl Into<String>) {
        self.unreached = self.unreached.saturating_add(1);
        let reason = Some(reason.into());
        if self.unreached >= UNREACHED_MIN && self.refusal != reason {
            self.refusal = reason;
            self.tidings += 1;
        }
    }

    /// The connection ended, or there never was one.
    pub(super) fn disconnected(&mut self, now: Time) {
        self.state = State::Resting { until: self.backoff.next(now) };
        self.challenged = false;
        self.seals = None;
        self.registered = false;
        self.watching = false;
        self.outputs.clear();
    }

    /// A frame came. Gives back what concerns the node; an error ends the connection.
    pub(super) fn handle(&mut self, frame: Frame, now: Time) -> Result<Option<Frame>, ()> {
        self.heard_at = now;
        match (self.state, frame) {
            (State::Greeting { .. }, Frame::Challenge { nonce }) if !self.challenged => {
                let Some(secret) = &self.secret else {
                    self.refuse(SECRET_WANTED);
                    return Err(());
                };
                self.seals = Some(Seals::of_node(secret, &self.nonce, &nonce));
                self.challenged = true;
                self.outputs.push_back(Frame::Proof);
                Ok(None)
            }
            (State::Greeting { .. }, Frame::Welcome { .. })
                if self.secret.is_some() && !self.challenged =>
            {
                self.refuse(SECRET_UNPROVEN);
                Err(())
            }
            (State::Greeting { .. }, Frame::Welcome { ttl_ms, server }) => {
                self.state = State::Up;
                self.ttl_ns = (u64::from(ttl_ms) * 1_000_000).clamp(TTL_NS_MIN, TTL_NS_MAX);
                self.server = Some(*server);
                self.beat(now);
                Ok(None)
            }
            (_, Frame::Refused { reason }) => {
                // It is shown on terminals.
                self.refuse(reason.replace(char::is_control, " "));
                Err(())
            }
            (State::Up, Frame::Registered) => {
                // Only now, so that a server that refuses is not asked without end.
                self.backoff.reset();
                self.refusal = None;
                self.unreached = 0;
                self.registered = true;
                Ok(None)
            }
            (State::Up, Frame::Heartbeat) => Ok(None),
            (State::Up, news @ (Frame::Node { .. } | Frame::ListBegin | Frame::ListEnd { .. })) => {
                Ok(self.watching.then_some(news))
            }
            _ => Err(()),
        }
    }

    pub(super) fn register(&mut self, gid: Gid, record: NodeRecord) {
        self.registered = false;
        self.outputs.push_back(Frame::Register { gid, record });
    }

    pub(super) fn leave(&mut self) {
        if self.is_up() {
            self.outputs.push_back(Frame::Leave);
        }
    }

    /// Asks for news, or for none.
    pub(super) fn watch(&mut self, on: bool) {
        if self.is_up() && self.watching != on {
            self.watching = on;
            self.outputs.push_back(Frame::Watch { on });
        }
    }

    /// Takes a frame that is to be sent.
    pub(super) fn poll_output(&mut self) -> Option<Frame> {
        self.outputs.pop_front()
    }

    fn beat(&mut self, now: Time) {
        self.beat_at = now.saturating_add_ns(self.ttl_ns / BEATS_PER_TTL);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::meta_server;
    use super::*;

    const MS: u64 = 1_000_000;

    fn session() -> Session {
        session_with(None)
    }

    fn session_with(secret: Option<Secret>) -> Session {
        Session::new(Backoff::new(100 * MS, 1_000 * MS, 1), 1_000 * MS, secret, Time(0))
    }

    fn welcome() -> Frame {
        Frame::Welcome { ttl_ms: 300, server: Box::new(meta_server(1)) }
    }

    #[test]
    fn it_greets_keeps_alive_and_notices_silence() {
        let mut session = session();
        assert_eq!(session.poll(Time(0), || true), Some(Step::Connect));
        session.greet([5; 32]);
        assert_eq!(session.poll_output(), Some(Frame::Hello { nonce: [5; 32] }));
        assert_eq!(session.handle(welcome(), Time(0)), Ok(None));
        assert!(session.is_up());
        assert_eq!(session.poll_timeout(), Time(100 * MS));
        assert_eq!(session.poll(Time(100 * MS), || true), None);
        assert_eq!(session.poll_output(), Some(Frame::Heartbeat));
        assert_eq!(session.poll(Time(299 * MS), || true), None);
        assert_eq!(session.poll(Time(300 * MS), || true), Some(Step::Disconnect));
        session.disconnected(Time(300 * MS));
        assert_eq!(session.poll(Time(301 * MS), || true), None);
        assert_eq!(session.poll(Time(430 * MS), || true), Some(Step::Connect));
    }

    /// Its thread lives, its engine hangs: nobody must take the node for alive.
    #[test]
    fn a_node_whose_engine_does_not_turn_sends_no_heartbeat() {
        let mut session = session();
        session.poll(Time(0), || true);
        session.greet([5; 32]);
        session.handle(welcome(), Time(0)).unwrap();
        session.poll_output();
        for now in (100 * MS..300 * MS).step_by(MS as usize) {
            session.handle(Frame::Heartbeat, Time(now)).unwrap();
            assert_eq!(session.poll(Time(now), || false), None);
            assert_eq!(session.poll_output(), None);
        }
        // It goes on: that is told soon, and not after the next interval.
        let due = session.poll_timeout();
        assert!(due <= Time(310 * MS), "{due:?}");
        assert_eq!(session.poll(due, || true), None);
        assert_eq!(session.poll_output(), Some(Frame::Heartbeat));
    }

    #[test]
    fn a_server_that_does_not_answer_is_left() {
        let mut session = session();
        session.poll(Time(0), || true);
        assert_eq!(session.poll(Time(999 * MS), || true), None);
        assert_eq!(session.poll(Time(1_000 * MS), || true), Some(Step::Disconnect));
    }

    /// One that starts a moment after its nodes is no news.
    #[test]
    fn that_nobody_answers_is_told_once_it_lasts() {
        let mut session = session();
        let mut tries = 0;
        for _ in 0..3 {
            while session.refusal.is_none() {
                let now = session.poll_timeout();
                match session.poll(now, || true) {
                    Some(Step::Connect) => tries += 1,
                    Some(Step::Disconnect) => session.disconnected(now),
                    None => {}
                }
            }
            assert_eq!((tries, session.tidings, session.refusals), (UNREACHED_MIN, 1, 0));
        }
        assert_eq!(session.refusal.as_deref(), Some("no answer for 1000 ms"));
        session.unreached("no answer for 1000 ms");
        assert_eq!(session.tidings, 1, "it is the same");
        session.unreached("Connection refused");
        assert_eq!(session.tidings, 2);
        let now = session.poll_timeout();
        session.disconnected(now);
        assert_eq!(session.poll(session.poll_timeout(), || true), Some(Step::Connect));
        session.handle(welcome(), now).unwrap();
        session.handle(Frame::Registered, now).unwrap();
        assert_eq!(session.refusal, None);
        session.unreached("Connection refused");
        assert_eq!(session.refusal, None, "it is counted anew");
    }

    #[test]
    fn a_server_that_breaks_the_rules_is_left() {
        for frame in [Frame::Registered, Frame::Proof, Frame::ListBegin] {
            let mut session = session();
            session.poll(Time(0), || true);
            assert_eq!(session.handle(frame, Time(0)), Err(()));
        }
        let mut session = session();
        session.poll(Time(0), || true);
        session.handle(welcome(), Time(0)).unwrap();
        assert_eq!(session.handle(welcome(), Time(0)), Err(()));
        let refused = Frame::Refused { reason: "full".to_string() };
        assert_eq!(session.handle(refused, Time(0)), Err(()));
        assert_eq!(session.refusal.as_deref(), Some("full"));
    }

    #[test]
    fn it_proves_itself_once_and_wants_the_same() {
        let secret = Some(Secret::new(b"of the cluster"));
        let mut session = session_with(secret);
        session.poll(Time(0), || true);
        assert_eq!(session.handle(welcome(), Time(0)), Err(()));
        assert_eq!(session.refusal.as_deref(), Some(SECRET_UNPROVEN));
        session.disconnected(Time(0));
        session.poll(Time(130 * MS), || true);
        let challenge = || Frame::Challenge { nonce: [6; 32] };
        assert_eq!(session.handle(challenge(), Time(130 * MS)), Ok(None));
        assert!(session.take_seals().is_some() && session.take_seals().is_none());
        assert_eq!(session.poll_output(), Some(Frame::Proof));
        assert_eq!(session.handle(challenge(), Time(130 * MS)), Err(()));
        assert_eq!(session.handle(welcome(), Time(130 * MS)), Ok(None));
        assert!(session.is_up());
        // What refused it before is of interest until it is registered.
        assert!(session.refusal.is_some());
        session.handle(Frame::Registered, Time(130 * MS)).unwrap();
        assert_eq!((session.refusal, session.refusals), (None, 1));
    }

    #[test]
    fn without_a_secret_it_says_what_is_missing() {
        let mut session = session();
        session.poll(Time(0), || true);
        let challenge = Frame::Challenge { nonce: [6; 32] };
        assert_eq!(session.handle(challenge, Time(0)), Err(()));
        assert_eq!(session.refusal.as_deref(), Some(SECRET_WANTED));
        let sly = Frame::Refused { reason: "\x1b[2Jno\n".to_string() };
        assert_eq!(session.handle(sly, Time(0)), Err(()));
        assert_eq!(session.refusal.as_deref(), Some(" [2Jno "));
    }
}
