//! All that this library knows, behind one lock ([`crate::lock`]). What waits does so without it ([`crate::wait`]).

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use elver_stream::{Shutdown, Stream};
use libc::epoll_event;
use rustix::net::RecvFlags;

use crate::carried::{Carried, Done, refuse};
use crate::conn::{Conn, Phase};
use crate::ending::Ending;
use crate::epolls::{Entry, Epoll};
use crate::frame::{Frame, Nonce};
use crate::link::{Link, now_ns};
use crate::log::{Counts, Why};
use crate::meeting::{Heard, Meeting, Offer};
use crate::own::{self, Own};
use crate::sleeper::{Sleeper, Watched};
use crate::tcp::{self, Failure};
use crate::tuple::{Side, Tuple};
use crate::turn::Turn;
use crate::{fds, real};

/// How long an end can be found, and how long an offer is good.
const MEETING: Duration = Duration::from_secs(1);
/// Most ends that look for their peers at once: each has a descriptor of its own meanwhile, and so many of the process's
/// descriptors are the program's for each.
const UNDECIDED_MAX: u64 = 1_024;
const LIMIT_PER_UNDECIDED: u64 = 8;
/// Where the numbers of closed copies begin.
const NOWHERE: RawFd = -2;
/// A number that no descriptor has: beyond what a process may have.
const CLOSED: RawFd = RawFd::MAX;
/// How long a process without a node does not look for one again.
const NO_NODE: Duration = Duration::from_secs(1);
/// The longest sleeps: of those who have nothing to wait for here, and while ends have not agreed.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);
const UNDECIDED: Duration = Duration::from_millis(100);
/// How long a call waits for what was written before the end of a stream to be on its way.
const CLOSING: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct World {
    link: Option<Link>,
    failed: Option<(Instant, String)>,
    conns: HashMap<u32, Conn>,
    last: u32,
    last_epoll: u32,
    /// Numbers of closed copies that epolls have, below all of descriptors.
    last_nowhere: RawFd,
    /// Those whose ends have not agreed.
    undecided: Vec<u32>,
    turn: Turn,
    /// By the numbers that their descriptors have.
    pub(crate) epolls: HashMap<u32, Epoll>,
    pub(crate) sleepers: Vec<Arc<Sleeper>>,
    /// What sleepers had to be woken by.
    pub(crate) bells: Vec<Own>,
    /// The session was disarmed while others sleep.
    pub(crate) unarmed: bool,
    pub(crate) counts: Counts,
    closing: Vec<Ending>,
    process: u32,
    /// Its number, which a child is known by that shares this memory.
    pid: u32,
}

/// Something was taken from the node that another thread may sleep for.
static NEWS: AtomicBool = AtomicBool::new(false);

struct News;

impl Wake for News {
    fn wake(self: Arc<News>) {
        NEWS.store(true, Ordering::Relaxed);
    }
}

impl World {
    pub(crate) fn new(process: u32) -> World {
        World { process, pid: std::process::id(), last_nowhere: NOWHERE, ..World::default() }
    }

    /// How many times the process that it is of is a child.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Whether a child calls that shares this memory until it runs another program (`vfork`).
    pub(crate) fn is_borrowed(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The program has a new connection.
    pub(crate) fn add(&mut self, fd: RawFd, tuple: Tuple, side: Side) {
        let former = fds::conn(fd).and_then(|id| self.conns.get(&id));
        let is_sole = side == Side::Acceptor
            || former.map_or_else(|| fds::is_sole(fd), |former| former.fds.len() == 1);
        let watched = match side {
            Side::Connector => self.take_watched(fd),
            // What had its number before was another's, which was closed by a call that is not known.
            Side::Acceptor => Vec::new(),
        };
        self.close(fd);
        if !is_sole && tuple.is_of_one_host() {
            return self.counts.stayed(&tuple, side, Why::Shared, "");
        }
        if !tuple.is_of_one_host() {
            return self.counts.stayed(&tuple, side, Why::OtherHost, "");
        }
        self.leave_former(&tuple, side);
        self.last = free_after(self.last, |number| self.conns.contains_key(&number));
        if !fds::set_conn(fd, self.last) {
            return self.counts.stayed(&tuple, side, Why::Descriptor, "");
        }
        self.conns.insert(self.last, Conn::new(side, tuple, fd));
        for (epoll, entry) in watched {
            self.watch(epoll, entry.of(self.last));
        }
    }

    /// What epolls have been asked about a socket that was not connected yet, or to somewhere else: to them it stays one.
    fn take_watched(&mut self, fd: RawFd) -> Vec<(u32, Entry)> {
        let early = self.take_early(fd);
        let early = early.into_iter().map(|(epoll, event)| (epoll, Entry::new(fd, 0, &event)));
        let before = |(number, epoll): (&u32, &mut Epoll)| Some((*number, epoll.remove(fd)?));
        self.epolls.iter_mut().filter_map(before).chain(early).collect()
    }

    /// One that had the addresses of a new connection has ended, and must not have its name, nor be found by its peer.
    fn leave_former(&mut self, tuple: &Tuple, side: Side) {
        let is_former = |id: &&u32| {
            self.conns.get(id).is_some_and(|conn| conn.tuple == *tuple && conn.side == side)
        };
        if let Some(id) = self.undecided.iter().find(is_former).copied() {
            self.stay(id, Why::Ended, "");
        }
    }

    /// What epolls have been asked about a socket that was not connected yet.
    fn take_early(&mut self, fd: RawFd) -> Vec<(u32, epoll_event)> {
        if !fds::is_early(fd) {
            return Vec::new();
        }
        fds::clear(fd);
        let early = |(number, epoll): (&u32, &mut Epoll)| Some((*number, epoll.take_early(fd)?));
        self.epolls.iter_mut().filter_map(early).collect()
    }

    /// An epoll was asked about a socket that is not connected yet, which may be ours when it is.
    pub(crate) fn early(&mut self, epoll: RawFd, fd: RawFd, event: Option<epoll_event>) {
        let Some(number) = self.epoll(epoll) else { return };
        let epoll = self.epolls.entry(number).or_default();
        match event {
            Some(event) if fds::set_early(fd) => epoll.put_early(fd, event),
            _ => drop(epoll.take_early(fd)),
        }
    }

    /// The number of an epoll, which it gets if it has none; none if there is no room for its descriptor.
    pub(crate) fn epoll(&mut self, fd: RawFd) -> Option<u32> {
        if let Some(number) = fds::epoll(fd) {
            return Some(number);
        }
        self.close(fd);
        self.last_epoll = free_after(self.last_epoll, |number| self.epolls.contains_key(&number));
        if !fds::set_epoll(fd, self.last_epoll, false) {
            return None;
        }
        self.epolls.entry(self.last_epoll).or_default().fds.push(fd);
        Some(self.last_epoll)
    }

    /// One that is no longer the kernel's alone; none of the others.
    pub(crate) fn conn(&mut self, id: u32) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    pub(crate) fn has_undecided(&self) -> bool {
        !self.undecided.is_empty()
    }

    /// What sleeps watch beside what they are for.
    pub(crate) fn meetings(&self) -> impl Iterator<Item = &Meeting> {
        self.undecided.iter().filter_map(|id| match &self.conns.get(id)?.phase {
            Phase::Meeting(meeting, _) | Phase::Offered { meeting, .. } => Some(meeting),
            _ => None,
        })
    }

    /// A descriptor is a copy of another.
    pub(crate) fn copied(&mut self, from: RawFd, to: RawFd) {
        self.close(to);
        if let Some(number) = fds::epoll(from) {
            // One that is beyond all that are known is told nothing of streams.
            if fds::set_epoll(to, number, fds::watching(from).is_some()) {
                self.epolls.entry(number).or_default().fds.push(to);
            }
            return;
        }
        let Some(id) = fds::conn(from) else { return fds::share(from) };
        if fds::set_conn(to, id) {
            self.conns.entry(id).and_modify(|conn| conn.fds.push(to));
        } else {
            self.stay(id, Why::Descriptor, "");
        }
    }

    /// A descriptor is closed, or about to be.
    pub(crate) fn close(&mut self, fd: RawFd) {
        if let Some(number) = fds::epoll(fd) {
            fds::clear(fd);
            let Some(epoll) = self.epolls.get_mut(&number) else { return };
            epoll.fds.retain(|other| *other != fd);
            if epoll.fds.is_empty() {
                self.epolls.remove(&number);
            }
            return;
        }
        self.take_early(fd);
        let id = fds::conn(fd);
        fds::clear(fd);
        let Some(id) = id else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.fds.len() == 1 {
            return self.end(id);
        }
        conn.fds.retain(|other| *other != fd);
        self.keep_watched(id, fd);
    }

    /// A copy of a connection is closed, which epolls may have: they have the connection until its last copy is closed.
    fn keep_watched(&mut self, id: u32, closed: RawFd) {
        let is_of_it = |entry: &Entry| entry.fd == closed || entry.conn == id && entry.is_nowhere();
        if !self.epolls.values().any(|epoll| epoll.entries().iter().any(is_of_it)) {
            return;
        }
        // The kernel's epolls could not be told later to leave it to a stream.
        let is_carried = self.conns.get(&id).is_some_and(Conn::is_carried);
        if !is_carried && self.may_stay(id, Why::Watched, "") {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for epoll in self.epolls.values_mut() {
            if let Some(entry) = epoll.remove(closed) {
                self.last_nowhere = self.last_nowhere.checked_sub(1).unwrap_or(NOWHERE);
                conn.nowhere.push(self.last_nowhere);
                epoll.put(entry.at(self.last_nowhere));
            }
            if !is_carried {
                // The kernel's tells of it until a stream does, or for good if none comes.
                epoll.watch_by(id, conn.fds[0], closed);
            }
        }
    }

    /// What was closed in the middle of a call is closed here.
    pub(crate) fn let_go_of_lost(&mut self) {
        if !fds::has_lost() || self.is_borrowed() {
            return;
        }
        fds::tell_lost();
        self.epolls.retain(|number, epoll| epoll.has_kept(*number));
        let is_lost = |(id, conn): (&u32, &Conn)| {
            conn.fds.iter().any(|fd| fds::conn(*fd) != Some(*id)).then_some(*id)
        };
        let lost: Vec<u32> = self.conns.iter().filter_map(is_lost).collect();
        for id in lost {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (kept, closed) = std::mem::take(&mut conn.fds)
                .into_iter()
                .partition(|fd| fds::conn(*fd) == Some(id));
            conn.fds = kept;
            if conn.fds.is_empty() {
                // What has its number may be another's.
                conn.fds.push(CLOSED);
                self.end(id);
            } else {
                let closed: Vec<RawFd> = closed;
                closed.into_iter().for_each(|fd| self.keep_watched(id, fd));
            }
        }
    }

    /// A connection's last descriptor is about to be closed.
    fn end(&mut self, id: u32) {
        if self.conns.get(&id).is_some_and(Conn::is_offered) {
            // Its peer may use the stream by now, and would wait for what it says.
            self.accept();
        }
        let resets = self.conns.get_mut(&id).is_some_and(Conn::ends_in_reset);
        let Some(Conn { phase: Phase::Carried(carried), .. }) = self.remove(id) else { return };
        self.close_stream(*carried, resets);
    }

    fn close_stream(&mut self, carried: Carried, resets: bool) {
        let (mut ending, since) = (Ending::new(carried.close(resets)), Instant::now());
        // A peer that lets nothing through keeps nobody for longer.
        while !ending.is_over() {
            if since.elapsed() > CLOSING {
                self.closing.push(ending);
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Lets go of streams that have ended, when all is on its way, or when that takes too long.
    fn let_go(&mut self) {
        self.closing.retain_mut(|ending| !ending.is_over());
    }

    fn remove(&mut self, id: u32) -> Option<Conn> {
        self.undecided.retain(|other| *other != id);
        let conn = self.conns.remove(&id)?;
        if let Some(carried) = conn.carried() {
            let (read, written) = carried.bytes();
            self.counts.ended(&conn.tuple, read, written);
        }
        conn.fds.iter().for_each(|fd| fds::clear(*fd));
        for epoll in self.epolls.values_mut() {
            for fd in conn.fds.iter().chain(&conn.nowhere) {
                epoll.remove(*fd);
            }
        }
        Some(conn)
    }

    /// A connection is the kernel's alone from here on, if it may still be; whether it is.
    #[must_use]
    pub(crate) fn may_stay(&mut self, id: u32, why: Why, text: &str) -> bool {
        match self.conns.get(&id) {
            Some(conn) if conn.is_bound() => false,
            Some(conn) => {
                self.counts.stayed(&conn.tuple, conn.side, why, text);
                if conn.keeps_end {
                    self.epolls.values().for_each(|epoll| epoll.tell_again(id, conn.fds[0]));
                }
                let fds = self.remove(id).map_or(Vec::new(), |conn| conn.fds);
                // Who waits for it goes on with the kernel.
                fds.into_iter().for_each(|fd| fds::set_stayed(fd, id));
                self.wake_all();
                true
            }
            None => true,
        }
    }

    /// As [`World::may_stay`], of one that may, or that nobody asks for.
    pub(crate) fn stay(&mut self, id: u32, why: Why, text: &str) {
        let _ = self.may_stay(id, why, text);
    }

    /// The program reads or writes: its end can be found from the first time on.
    pub(crate) fn touch(&mut self, id: u32) {
        let count = self.undecided.len() as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !matches!(conn.phase, Phase::Fresh) {
            return;
        }
        if count >= UNDECIDED_MAX.min(own::limit() / LIMIT_PER_UNDECIDED) {
            return self.stay(id, Why::Crowded, "");
        }
        match Meeting::open(conn.tuple, conn.side) {
            Ok(meeting) => {
                conn.phase = Phase::Meeting(meeting, Instant::now() + MEETING);
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
        let until_ns = now_ns() + MEETING.as_nanos() as u64;
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
                let until_ns = until_ns.min(now_ns() + MEETING.as_nanos() as u64);
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.phase = Phase::Connecting { connecting, nonce, until_ns };
                }
            }
            Err(error) => self.stay(id, Why::Refused, &error.to_string()),
        }
    }

    /// The way to the node. Without one the connection stays with TCP.
    fn open_link(&mut self, id: u32) -> Option<&Link> {
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
    fn accept(&mut self) {
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

    /// The program has tried to read, or to write.
    pub(crate) fn tried(&mut self, id: u32, reads: bool) {
        let Some(conn) = self.conns.get(&id) else { return };
        let mut news = false;
        for epoll in self.epolls.values_mut() {
            for fd in conn.fds.iter().chain(&conn.nowhere) {
                news |= epoll.tried(*fd, reads);
            }
        }
        // Whoever sleeps in one has not been armed for what it was told of already.
        if news {
            self.wake_all();
        }
    }

    /// Puts a connection into an epoll, or changes it there. Whoever waits in it by now comes back, and then waits here.
    pub(crate) fn watch(&mut self, number: u32, entry: Entry) {
        let epoll = self.epolls.entry(number).or_default();
        epoll.put(entry);
        if !epoll.is_stirred() {
            for fd in &epoll.fds {
                fds::set_epoll(*fd, number, true);
            }
            epoll.stir();
        }
        self.wake_all();
    }

    /// What an epoll has to tell of carried connections.
    pub(crate) fn tell_epoll(&mut self, epoll: u32, events: &mut [epoll_event]) -> usize {
        let World { epolls, conns, .. } = self;
        epolls.get_mut(&epoll).map_or(0, |epoll| epoll.tell(conns, events))
    }

    /// Asks for wakings before a sleep; how long it may be at most, or none if there is something to look at.
    pub(crate) fn arm(&mut self, watched: &[Watched]) -> Option<Duration> {
        self.unarmed = false;
        let mut at_most = SLEEP_MAX;
        for watched in watched {
            at_most = at_most.min(self.conns.get(&watched.id)?.arm(watched)?);
        }
        if self.has_undecided() || !self.closing.is_empty() {
            at_most = at_most.min(UNDECIDED);
        }
        let Some(link) = &self.link else { return Some(at_most) };
        let at_most = link.arm_pending(at_most)?;
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if link.arm() {
            return Some(at_most);
        }
        // Of connections that this sleep is not for: it stays there until they are looked at.
        self.conns.values().filter_map(Conn::carried).for_each(Carried::poll);
        self.accept();
        None
    }

    /// Something has changed that no stream tells.
    pub(crate) fn wake_all(&self) {
        self.sleepers.iter().for_each(|sleeper| sleeper.wake());
    }

    /// Who has the lock lets go of it: if it took from the node what others may sleep for, they are woken.
    pub(crate) fn pass_news(&mut self) {
        let news = NEWS.swap(false, Ordering::Relaxed);
        if !self.sleepers.is_empty() && (news || self.unarmed) {
            self.tell_sleepers();
        }
    }

    /// Has those woken who have something, since another took what was to wake them.
    fn tell_sleepers(&mut self) {
        self.unarmed = false;
        let Some(link) = &self.link else { return };
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if self.has_undecided() || !link.arm() {
            return self.wake_all();
        }
        for sleeper in &self.sleepers {
            let has_news = |watched: &Watched| {
                self.conns.get(&watched.id).is_none_or(|conn| conn.arm(watched).is_none())
            };
            if sleeper.watched.iter().any(has_news) {
                sleeper.wake();
            }
        }
    }

    /// The process forks: what its ends have not agreed stays with TCP, at both copies.
    pub(crate) fn leave_unbound_to_tcp(&mut self) {
        let unbound = |(id, conn): (&u32, &Conn)| (!conn.is_bound()).then_some(*id);
        let unbound: Vec<u32> = self.conns.iter().filter_map(unbound).collect();
        for id in unbound {
            self.stay(id, Why::Forked, "");
        }
    }

    /// This process is a child of the one that the world was of.
    pub(crate) fn become_child(&mut self, process: u32) {
        self.leave_unbound_to_tcp();
        for conn in self.conns.values_mut() {
            conn.phase = Phase::Parents;
        }
        let World { conns, epolls, last, last_epoll, last_nowhere, .. } = std::mem::take(self);
        *self = World { conns, epolls, last, last_epoll, last_nowhere, ..World::new(process) };
    }

    /// Ends all streams as if their sockets were closed. Who goes on with one of these, beside the end of the process, must
    /// not reach the kernel's socket, on which the peer expects nothing.
    pub(crate) fn finish(&mut self) {
        let ids: Vec<u32> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.carried().is_some()) else {
                continue;
            };
            let resets = conn.ends_in_reset();
            if let Phase::Carried(carried) = std::mem::replace(&mut conn.phase, Phase::Over) {
                let (read, written) = carried.bytes();
                self.counts.ended(&conn.tuple, read, written);
                self.close_stream(*carried, resets);
            }
        }
        while !self.closing.is_empty() {
            self.let_go();
            std::thread::yield_now();
        }
        std::mem::take(&mut self.counts).tell();
    }
}

/// What a poll says, and whether the time has passed by then: who was stopped before it may find what was made too late.
fn in_time<T>(poll: impl FnOnce() -> T, now_ns: impl FnOnce() -> u64, until_ns: u64) -> (T, bool) {
    let polled = poll();
    (polled, now_ns() > until_ns)
}

/// The number that is next to one, and none's.
fn free_after(last: u32, is_taken: impl Fn(u32) -> bool) -> u32 {
    let mut next = last % fds::NUMBER_MAX + 1;
    while is_taken(next) {
        next = next % fds::NUMBER_MAX + 1;
    }
    next
}

/// What nobody can guess.
fn nonce() -> Option<Nonce> {
    let mut nonce = Nonce::default();
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    (filled == Ok(nonce.len())).then_some(nonce)
}

#[cfg(test)]
mod tests;
