//! How the ranks of a group come together: each connects to those below it, and takes those above it.

use std::time::{Duration, Instant};

use elver::Session;
use elver_ring::{Carrier, Connecting, Listener};

use crate::closing::Closing;
use crate::error::Unwanted;
use crate::link::Link;
use crate::protocol::{Fault, GREETING_BYTES, Greeting, Header, Kind, Outlet};
use crate::{Address, Error, Options};

/// Most strangers that are listened to at a time, beside the ranks.
const STRANGERS_MAX: usize = 16;
/// Most that are taken in until those are heard that are there, and the time is looked at.
const ACCEPTS_AT_ONCE: usize = 16;
/// How long one has to say who it is.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Until a rank that was not there is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// The longest sleep: what a peer writes wakes nobody yet.
const LOOK: Duration = Duration::from_millis(1);

/// The ranks, together.
pub(crate) struct Joined {
    pub(crate) rank: u32,
    /// All but this one, and what each takes.
    pub(crate) peers: Vec<Option<(Link, Greeting)>>,
    pub(crate) addresses: Vec<Address>,
}

/// Who a rank is, and where the others are.
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) addresses: Vec<Address>,
    pub(crate) token: u128,
}

/// Brings them together.
pub(crate) fn join(
    session: &Session,
    listener: &Listener,
    place: Place,
    options: &Options,
) -> Result<Joined, Error> {
    let Place { rank, addresses, token } = place;
    let size = addresses.len() as u32;
    let mut joining = Joining {
        session,
        own: Greeting::new(rank, size, options.limits, token),
        peers: (0..size).map(|_| None).collect(),
        calls: (0..rank).map(|_| Call::At(Instant::now())).collect(),
        greeted: Vec::new(),
        closing: Closing::new(),
        last: String::new(),
        refused: None,
    };
    let began = Instant::now();
    loop {
        for to in 0..rank {
            joining.call(to, addresses[to as usize], options)?;
        }
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(ends) = listener.try_accept()? else { break };
            joining.greet(Link::new(ends), None);
        }
        joining.listen();
        joining.keep();
        joining.closing.look();
        if let Some((who, why)) = joining.refused {
            return Err(Error::Unwanted { who: format!("rank {who}"), why });
        }
        let missing = joining.missing();
        if missing.is_empty() {
            let peers = std::mem::take(&mut joining.peers);
            return Ok(Joined { rank, peers, addresses });
        }
        if began.elapsed() >= options.join {
            let seconds = options.join.as_secs();
            return Err(Error::Join { seconds, what: told(&missing), why: joining.last.clone() });
        }
        match session.wait_ready(Some(LOOK)) {
            Ok(_) | Err(elver::Error::TimedOut | elver::Error::Woken) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Who does not come, for people.
fn told(missing: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = missing.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if missing.len() > SHOWN { ", …" } else { "" };
    format!("{} ranks are missing: {}{more}", missing.len(), shown.join(", "))
}

/// A connection to a lower rank.
enum Call {
    /// To be tried, from then on.
    At(Instant),
    Under(Box<Connecting>),
    Made,
}

struct Joining<'a> {
    session: &'a Session,
    own: Greeting,
    peers: Vec<Option<(Link, Greeting)>>,
    /// To the lower ranks.
    calls: Vec<Call>,
    /// The oldest first.
    greeted: Vec<Greeted>,
    /// Those that were told why they are not wanted.
    closing: Closing,
    /// What went wrong last.
    last: String,
    /// A rank that does not want this one, or is none of its group.
    refused: Option<(u32, Unwanted)>,
}

/// An end that was greeted and has not answered.
struct Greeted {
    link: Link,
    /// Which rank it must be: one that was called.
    rank: Option<u32>,
    since: Instant,
}

impl Joining<'_> {
    /// Connects to a lower rank, as far as it goes now.
    fn call(&mut self, to: u32, at: Address, options: &Options) -> Result<(), Error> {
        let call = &mut self.calls[to as usize];
        let made = match call {
            Call::At(when) if Instant::now() < *when => return Ok(()),
            Call::At(_) => {
                // What this end lacks is no matter of the other's.
                let started = Connecting::start(self.session, at.gid, at.port, options.rings())?;
                *call = Call::Under(Box::new(started));
                return Ok(());
            }
            Call::Under(connecting) => connecting.poll(),
            Call::Made => return Ok(()),
        };
        match made {
            Ok(None) => {}
            Ok(Some(ends)) => {
                self.calls[to as usize] = Call::Made;
                self.greet(Link::new(ends), Some(to));
            }
            Err(error) => {
                // It may not be there yet.
                self.last = format!("; rank {to} at {at}: {error}");
                self.call_again(Some(to));
            }
        }
        Ok(())
    }

    /// Tries a lower rank once more, if this end had called it.
    fn call_again(&mut self, called: Option<u32>) {
        if let Some(to) = called {
            self.calls[to as usize] = Call::At(Instant::now() + RETRY);
        }
    }

    /// Says who this is.
    fn greet(&mut self, mut link: Link, rank: Option<u32>) {
        if self.greeted.len() >= self.peers.len() + STRANGERS_MAX
            && let Some(stranger) = self.greeted.iter().position(|greeted| greeted.rank.is_none())
        {
            // Who comes now may be a rank, which speaks at once.
            self.greeted.remove(stranger).link.wire().hurry();
        }
        let own = self.own.encode();
        let header = Header::new(Kind::Hello, 0);
        let put = link.out.put(&header, GREETING_BYTES, |body| body.copy_from_slice(&own));
        match put.and_then(|_| link.out.flush()) {
            Ok(()) => self.greeted.push(Greeted { link, rank, since: Instant::now() }),
            Err(error) => {
                link.wire().hurry();
                self.last = format!("; {error}");
                self.call_again(rank);
            }
        }
    }

    /// Hears who the others are.
    fn listen(&mut self) {
        let mut at = 0;
        while let Some(greeted) = self.greeted.get_mut(at) {
            let heard = match greeted.link.incoming.try_next() {
                Ok(Some(len)) => Some(greeted.link.incoming.frame(len).to_vec()),
                Ok(None)
                    if !greeted.link.incoming.is_ended()
                        && greeted.since.elapsed() < GREETING_TIME =>
                {
                    at += 1;
                    continue;
                }
                Ok(None) => None,
                Err(error) => {
                    self.last = format!("; {error}");
                    None
                }
            };
            let Greeted { mut link, rank, .. } = self.greeted.remove(at);
            let Some(frame) = heard else {
                // Strangers who let nothing through would take the time of who waits for ranks.
                link.wire().hurry();
                self.call_again(rank);
                continue;
            };
            match self.judge(&frame, rank) {
                Ok(greeting) => self.peers[greeting.rank as usize] = Some((link, greeting)),
                Err(Answer::Told(why)) => {
                    link.wire().hurry();
                    self.refuse(rank, why);
                }
                Err(Answer::Tell(why)) => {
                    self.last = format!("; this rank refused somebody: {why}");
                    // Both may find out, and either may be the first.
                    self.refuse(rank, why);
                    let header = Header { more: why as u32, ..Header::new(Kind::Refused, 0) };
                    // It may be gone.
                    let _ = link.out.put(&header, 0, |_| {}).and_then(|_| link.out.flush());
                    self.closing.push(link);
                }
            }
        }
    }

    /// Whether a first frame is that of a rank that is awaited.
    fn judge(&self, frame: &[u8], called: Option<u32>) -> Result<Greeting, Answer> {
        let nonsense = |_: Fault| Answer::Tell(Unwanted::Nonsense);
        let (header, body) = Header::decode(frame).map_err(nonsense)?;
        match header.kind {
            Kind::Hello => {}
            Kind::Refused => return Err(Answer::Told(Unwanted::of(header.more))),
            _ => return Err(Answer::Tell(Unwanted::Nonsense)),
        }
        if Greeting::version_of(body).map_err(nonsense)?.0 != self.own.version.0 {
            return Err(Answer::Tell(Unwanted::Version));
        }
        let greeting = Greeting::decode(body).map_err(nonsense)?;
        if greeting.token != self.own.token {
            return Err(Answer::Tell(Unwanted::Group));
        }
        if greeting.size != self.own.size {
            return Err(Answer::Tell(Unwanted::Size));
        }
        // Who comes is above this one; who was called is who was meant.
        let is_it = called.map_or(greeting.rank > self.own.rank, |rank| rank == greeting.rank);
        if !is_it || self.peers[greeting.rank as usize].is_some() {
            return Err(Answer::Tell(Unwanted::Rank));
        }
        Ok(greeting)
    }

    /// Takes what the node tells of the ranks that are here, or each wait would be over at once with that.
    fn keep(&self) {
        for (link, _) in self.peers.iter().flatten() {
            // One that has gone again is missed when something is wanted of it.
            let _ = link.wire().poll();
        }
    }

    /// Where this end has called, there is no such rank.
    fn refuse(&mut self, called: Option<u32>, why: Unwanted) {
        self.refused = self.refused.or(called.map(|rank| (rank, why)));
    }

    fn missing(&self) -> Vec<u32> {
        let all =
            (0..).zip(&self.peers).filter(|(rank, peer)| *rank != self.own.rank && peer.is_none());
        all.map(|(rank, _)| rank).collect()
    }
}

impl Drop for Joining<'_> {
    /// Strangers are not waited for. Those that were told something hear it, and the ranks that are here, if not all came, that
    /// this one goes: all together, since each may let nothing through.
    fn drop(&mut self) {
        self.greeted.iter().for_each(|greeted| greeted.link.wire().hurry());
        let peers = std::mem::take(&mut self.peers);
        self.closing.finish(self.session, peers.into_iter().flatten().map(|(link, _)| link));
    }
}

/// What becomes of who does not fit.
enum Answer {
    /// It said so itself.
    Told(Unwanted),
    Tell(Unwanted),
}
