//! Greetings that a listener takes, and whose answer waits until a VQP of the listener's own is connected to who has sent
//! them ([`crate::ListenerOptions::policy`]).

use std::time::Duration;

use elver::{Connecting, Gid, Policy, RefusalCode, Session, SessionCell, Vqp, VqpOptions};

use crate::Error;
use crate::connect::by;
use crate::error::Refusal;
use crate::greeting::Place;
use crate::inbox::Bell;
use crate::protocol::Config;
use crate::shares::Share;
use crate::wire::SENDS_MAX;

/// VQPs that are being connected at a time, and of these to one node, which may be cut off: others wait in the inbox, which
/// has its bound.
const UNDER_WAY_MAX: usize = 64;
const UNDER_WAY_OF_ONE_MAX: usize = 8;
/// How long one of them is waited for before the others, and what else came, are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What somebody asks for, which may be.
pub(crate) struct Answer {
    /// The VQP back to it.
    pub(crate) source: Vqp,
    pub(crate) there: Config,
    pub(crate) back: Config,
    pub(crate) peer: Place,
    pub(crate) token: u64,
    pub(crate) share: Share,
    pub(crate) bell: Bell,
}

/// What can be answered now.
pub(crate) struct Due {
    pub(crate) answer: Answer,
    pub(crate) vqp: Result<Vqp, Refusal>,
}

/// Those that wait.
pub(crate) struct Answering(SessionCell<Vec<UnderWay>>);

struct UnderWay {
    answer: Answer,
    vqp: Vqp,
    asked: Connecting,
}

impl UnderWay {
    /// Who asks is gone: its VQP may be long in being connected.
    fn is_gone(&self) -> bool {
        self.answer.source.failure().is_some()
    }
}

impl Answering {
    pub(crate) fn new(session: &Session) -> Answering {
        Answering(SessionCell::new(session, Vec::new()))
    }

    /// Whether one more may be connected to a node.
    pub(crate) fn has_room(&self, to: Gid) -> bool {
        let under_way = self.0.borrow();
        let of_one = under_way.iter().filter(|one| one.answer.share.gid() == to).count();
        under_way.len() < UNDER_WAY_MAX && of_one < UNDER_WAY_OF_ONE_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Begins to connect a VQP to the node of who asks. It is for WRITEs alone, and goes to no port.
    pub(crate) fn begin(
        &self,
        session: &Session,
        answer: Answer,
        policy: Policy,
    ) -> Result<(), Refusal> {
        let options =
            VqpOptions { max_send_wr: SENDS_MAX + 1, max_recv_wr: 1, ..VqpOptions::default() };
        let vqp = session.create_vqp(options).map_err(|_| Refusal::Memory)?;
        let asked = vqp.qconnect_start(answer.share.gid(), 0, by(policy));
        let asked = asked.map_err(|_| Refusal::Unreachable)?;
        self.0.borrow_mut().push(UnderWay { answer, vqp, asked });
        Ok(())
    }

    /// The next that can be answered: by a VQP, or with a refusal, which one hears who is still there.
    pub(crate) fn next(&self) -> Result<Option<Due>, Error> {
        let mut ended = None;
        // One borrow for both: a task that runs when it ends may take the same one.
        let mut under_way = self.0.borrow_mut();
        for (at, one) in under_way.iter().enumerate() {
            let connected = match one.asked.poll() {
                _ if one.is_gone() => Err(Refusal::Unreachable),
                Ok(None) => continue,
                Ok(Some(_)) => Ok(()),
                Err(elver::Error::Refused { code: RefusalCode::Limit, .. }) => {
                    Err(Refusal::Connection)
                }
                Err(elver::Error::Refused { .. }) => Err(Refusal::Unreachable),
                Err(error) => return Err(error.into()),
            };
            ended = Some((at, connected));
            break;
        }
        let Some((at, connected)) = ended else { return Ok(None) };
        let UnderWay { answer, vqp, .. } = under_way.remove(at);
        Ok(Some(Due { answer, vqp: connected.map(|()| vqp) }))
    }

    /// Waits for one of them, at most so long; false if none is under way.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> Result<bool, Error> {
        let under_way = self.0.borrow();
        let Some(first) = under_way.first() else { return Ok(false) };
        match first.asked.wait(Some(at_most.unwrap_or(LOOK).min(LOOK))) {
            // What became of it is told to who asks for the next.
            Ok(_) | Err(elver::Error::TimedOut | elver::Error::Refused { .. }) => Ok(true),
            // A node that stands still may go on.
            Err(elver::Error::Silent) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether one can be answered.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_due(&self) -> bool {
        self.0.borrow().iter().any(|one| !matches!(one.asked.poll(), Ok(None)) || one.is_gone())
    }

    /// Answers none of them: who has sent them.
    pub(crate) fn give_up(&self) -> Vec<Vqp> {
        let given_up = std::mem::take(&mut *self.0.borrow_mut());
        given_up.into_iter().map(|one| one.answer.source).collect()
    }
}
