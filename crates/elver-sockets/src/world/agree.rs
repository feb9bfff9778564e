//! How the two ends of a connection come to agree on a stream, or on TCP.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use elver_stream::{Shutdown, Stream};
use rustix::net::RecvFlags;

use super::World;
use crate::brief::LASTING;
use crate::carried::{Carried, Done, refuse};
use crate::conn::{Conn, Phase};
use crate::frame::{Frame, Nonce};
use crate::link::{Link, now_ns};
use crate::log::Why;
use crate::meeting::{Heard, Meeting, Offer, patience};
use crate::tcp::Failure;
use crate::tuple::Side;
use crate::{own, real, tcp};

/// Most ends that look for their peers at once: each has a descriptor of its own meanwhile, and so many of the process's
/// descriptors are the program's for each.
const UNDECIDED_MAX: u64 = 1_024;
const LIMIT_PER_UNDECIDED: u64 = 8;
/// How long a process without a node does not look for one again.
const NO_NODE: Duration = Duration::from_secs(1);

impl World {
    /// The program reads or writes: its end can be found from the first time on, or when it lasts where others did not.
    pub(crate) fn touch(&mut self, id: u32) {
        let count = self.undecided.len() as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.calls = conn.calls.saturating_add(1);
        if !matches!(conn.phase, Phase::Fresh) && conn.calls > LASTING {
            return;
        }
        let is_due = self.brief.is_due(conn.tuple.server, conn.calls);
        if !is_due || !matches!(conn.phase, Phase::Fresh) {
            return;
        }
        if count >= UNDECIDED_MAX.min(own::limit() / LIMIT_PER_UNDECIDED) {
            return self.stay(id, Why::Crowded, "");
        }
        match Meeting::open(conn.tuple, conn.side) {
            Ok(meeting) => {
                conn.phase = Phase::Meeting(meeting, Instant::now() + patience());
                self.undecided.push(id);
            }
            Err(error) => self.stay(id, Why::NameTaken, &error.to_string()),
        }
    }

    /// Goes on with what was not agreed yet: with the connection that a call is of, and now and then with all.
    pub(crate) fn progress(&mut self, own: Option<u32>) {
        if !self.closing.is_empty() {
            self.let_go();
        }
        if self.undecided.is_empty() && !self.link.as_ref().is_some_and(Link::has_pending) {
            return;
        }
        let began = Instant::now();
        if self.turn.is_due(self.undecided.len(), began) {
            for id in self.undecided.clone() {
                self.advance(id);
            }
            self.turn.looked(began, Instant::now());
        } else if let Some(own) = own {
            self.advance(own);
        }
        self.accept();
    }

    fn advance(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (now, fd) = (Instant::now(), conn.socket());
        match &mut conn.phase {
            Phase::Meeting(meeting, until) => {
                let (side, late) = (conn.side, now > *until);
                let heard = meeting.hear();
                // Who speaks by the addresses of one that has ended may be the peer of another.
                let speaks = matches!(heard, Some(Heard::Hello | Heard::Offer(_)));
                if speaks && !tcp::stands(fd) {
                    return self.stay(id, Why::Ended, "");
                }
                match heard {
                    Some(Heard::Hello) if side == Side::Acceptor => self.offer(id),
                    Some(Heard::Offer(offer)) if side == Side::Connector => {
                        self.connect(id, &offer)
                    }
                    // Also while somebody goes on saying what leads nowhere.
                    _ if late => self.stay(id, Why::NoPeer, ""),
                    Some(Heard::Hello) => drop(meeting.hello()),
                    Some(_) | None => {}
                }
            }
            // It said it once, and may have come again.
            Phase::Offered { meeting, until_ns, .. } => {
                let late = now_ns() > *until_ns;
                meeting.hear();
                if late && !self.link.as_ref().is_some_and(|link| link.may_have(*until_ns)) {
                    // Who has connected says it ahead of all: now nobody does.
                    conn.phase = Phase::Fresh;
                    self.stay(id, Why::Late, "");
                }
            }
            Phase::Connecting { connecting, until_ns, .. } => {
                let (polled, late) = in_time(|| connecting.poll(), now_ns, *until_ns);
                match polled {
                    polled if late => {
                        polled.ok().flatten().into_iter().for_each(refuse);
                        self.stay(id, Why::Late, "");
                    }
                    Ok(Some(stream)) => self.connected(id, stream),
                    Ok(None) => {}
                    Err(error) => self.stay(id, Why::Refused, &error.to_string()),
                }
            }
            Phase::Fresh | Phase::Carried(_) | Phase::Parents | Phase::Over => {}
        }
    }

    /// The accepting end was greeted.
    fn offer(&mut self, id: u32) {
        let Some(link) = self.open_link(id) else { return };
        let (gid, port) = link.place();
        let Some(nonce) = nonce() else {
            self.stay(id, Why::Refused, "the system has no random bytes");
            return;
        };
        let until_ns = now_ns() + patience().as_nanos() as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Phase::Meeting(meeting, _) = std::mem::replace(&mut conn.phase, Phase::Fresh) {
            meeting.offer(&Offer { gid, port, nonce, until_ns });
            conn.phase = Phase::Offered { meeting, nonce, until_ns };
        }
    }

    /// The connecting end was made an offer.
    fn connect(&mut self, id: u32, offer: &Offer) {
        let Some(link) = self.open_link(id) else { return };
        match link.connect(offer) {
            Ok(connecting) => {
                let connecting = Box::new(connecting);
                let &Offer { nonce, until_ns, .. } = offer;
                // Nobody has to offer for longer.
                let until_ns = until_ns.min(now_ns() + patience().as_nanos() as u64);
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.phase = Phase::Connecting { connecting, nonce, until_ns };
                }
            }
            Err(error) => self.stay(id, Why::Refused, &error.to_string()),
        }
    }

    /// The way to the node. Without one the connection stays with TCP.
    fn open_link(&mut self, id: u32) -> Option<&Link> {
        self.leave_dead_node();
        if self.link.as_ref().is_some_and(Link::is_orphan) {
            self.stay(id, Why::NoNode, "it has gone, and what it carried is not closed yet");
            return None;
        }
        if self.link.is_none() {
            let known = self.failed.take().filter(|(when, _)| when.elapsed() < NO_NODE);
            match known.map_or_else(Link::open, |(_, text)| Err(text)) {
                Ok(link) => self.link = Some(link),
                Err(text) => {
                    self.stay(id, Why::NoNode, &text);
                    self.failed = Some((Instant::now(), text));
                    return None;
                }
            }
        }
        self.link.as_ref()
    }

    /// The connecting end has a stream: from here on it writes to it.
    fn connected(&mut self, id: u32, stream: Stream) {
        let Some(conn) = self.conns.get_mut(&id) else { return refuse(stream) };
        let Phase::Connecting { nonce, .. } = conn.phase else { return refuse(stream) };
        match Carried::begin(stream, nonce, conn.by_tcp()) {
            Ok(carried) => self.carry(id, carried),
            Err(error) => self.stay(id, Why::Refused, &error.to_string()),
        }
    }

    /// The accepting end takes streams, and those that were offered to be taken.
    pub(super) fn accept(&mut self) {
        while let Some((stream, frame)) = self.link.as_mut().and_then(Link::accept) {
            let of_nonce = |conn: &Conn| match &conn.phase {
                Phase::Offered { nonce, .. } => *nonce == frame.nonce,
                _ => false,
            };
            let found = self.undecided.iter().find(|id| self.conns.get(id).is_some_and(of_nonce));
            let Some(&id) = found else {
                // Its connection was closed meanwhile, or a stranger guesses.
                crate::log::line(format_args!("a stream of no connection was refused"));
                refuse(stream);
                continue;
            };
            let Frame { nonce, by_tcp } = frame;
            let own = self.conns.get(&id).map_or(Frame::STAYS, Conn::by_tcp);
            self.carry(id, Carried::answer(stream, nonce, own, by_tcp));
        }
    }

    fn carry(&mut self, id: u32, mut carried: Carried) {
        self.undecided.retain(|other| *other != id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.reads_no_more() {
            // It sends nothing, so that it does not fail.
            let _ = carried.shutdown(Shutdown::Read);
        }
        conn.phase = Phase::Carried(Box::new(carried));
        self.counts.carried(&conn.tuple, conn.side);
        // Its readiness is told from here.
        for watched in self.epolls.values() {
            let Some(epoll) = watched.fds.first() else { continue };
            if !watched.entries().iter().any(|entry| entry.conn == id) {
                continue;
            }
            for fd in &conn.fds {
                // SAFETY: a deletion needs no event. A copy that the program has not put there is not there.
                unsafe { real::epoll_ctl(*epoll, libc::EPOLL_CTL_DEL, *fd, std::ptr::null_mut()) };
            }
        }
        self.wake_all();
    }

    /// Reads; none if it is the kernel's alone. TCP's end is none as long as more may come by a stream: whoever has
    /// connected one was answered by this process, and says next which connection it is of.
    pub(crate) fn read(
        &mut self,
        id: u32,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        failure: Failure,
    ) -> Option<Done> {
        let done = self.conns.get_mut(&id)?.read(bufs, flags, failure);
        let is_end = matches!(done, Done::Bytes(0)) && bufs.iter().any(|buf| !buf.is_empty());
        let Phase::Offered { until_ns, .. } = self.conns.get(&id)?.phase else { return Some(done) };
        if !is_end {
            return Some(done);
        }
        self.accept();
        let conn = self.conns.get_mut(&id)?;
        if conn.is_carried() {
            return Some(conn.read(bufs, flags, failure));
        }
        conn.keeps_end = self.link.as_ref().is_some_and(|link| link.may_have(until_ns));
        Some(if conn.keeps_end { Done::Wait } else { done })
    }
}

/// What a poll says, and whether the time has passed by then: who was stopped before it may find what was made too late.
pub(super) fn in_time<T>(
    poll: impl FnOnce() -> T,
    now_ns: impl FnOnce() -> u64,
    until_ns: u64,
) -> (T, bool) {
    let polled = poll();
    (polled, now_ns() > until_ns)
}

/// What nobody can guess.
fn nonce() -> Option<Nonce> {
    let mut nonce = Nonce::default();
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    (filled == Ok(nonce.len())).then_some(nonce)
}
