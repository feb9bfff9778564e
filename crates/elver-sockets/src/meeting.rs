//! How the two ends of a connection find each other, if both have this library, and without a word by TCP.
//!
//! Each end has a datagram socket whose name is the connection's, in the kernel's abstract namespace, which is the
//! network namespace's as TCP's addresses are. Whoever comes second finds the first. The kernel says with each
//! datagram whose it is. An end connects its socket to the one that has the peer's name, and a secret is told to that
//! one alone, after it has proved its user: so one who takes a name, ahead of its owner or after him, learns
//! nothing, and keeps the connection on TCP at most.
//!
//! | datagram | from | means |
//! | --- | --- | --- |
//! | hello | both | this end has the library |
//! | offer | who accepted | where streams are taken, the nonce of this connection's, and how long it is good |

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;
use std::time::Duration;
use std::{io::IoSliceMut, mem::MaybeUninit};

use elver::Gid;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, recvmsg, send, socket_with, sockopt,
};

use crate::frame::Nonce;
use crate::own::Own;
use crate::owner;
use crate::tuple::{Side, Tuple};

/// How long an end can be found, and how long an offer is good; and what says how many milliseconds that is on a machine on
/// which a process may get no core for as long.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_VARIABLE: &str = "ELVER_STREAMS_PATIENCE_MS";
const PATIENCE_MS_MAX: u64 = 60_000;
const STREAM_MIN: Duration = Duration::from_secs(2);

const MAGIC: &[u8; 6] = b"ELVTCP";
const HELLO: u8 = 1;
const OFFER: u8 = 2;
const HEAD_BYTES: usize = 8;
const OFFER_BYTES: usize = HEAD_BYTES + 16 + 2 + 16 + 8;
const VERSION: u8 = 1;
/// Most datagrams that may stand in a socket before it is connected: twice what systems allow (`max_dgram_qlen`).
const BEFORE_MAX: u32 = 1_024;

/// How long one end waits for the other one until they have agreed.
pub(crate) fn patience() -> Duration {
    static WANTED: LazyLock<Duration> = LazyLock::new(|| {
        let told = std::env::var(PATIENCE_VARIABLE).ok();
        told.map_or(PATIENCE, |text| wanted(&text))
    });
    *WANTED
}

/// How long a stream may take to say what it carries, at either end: a node tells within a second that a peer is gone.
pub(crate) fn for_a_stream() -> Duration {
    (2 * patience()).max(STREAM_MIN)
}

fn wanted(text: &str) -> Duration {
    let ms = text.parse().ok().filter(|ms| (1..=PATIENCE_MS_MAX).contains(ms));
    ms.map_or(PATIENCE, Duration::from_millis)
}

/// What the accepting end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Where its process takes streams.
    pub(crate) gid: Gid,
    pub(crate) port: u16,
    pub(crate) nonce: Nonce,
    /// Until when a stream may be taken into use, by the host's monotonic clock, in nanoseconds.
    pub(crate) until_ns: u64,
}

/// A datagram of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Hello,
    Offer(Offer),
    /// Of a stranger, or none that is spoken here; it is as if it had not come.
    Nothing,
}

/// One end's socket.
#[derive(Debug)]
pub(crate) struct Meeting {
    socket: Own,
    tuple: Tuple,
    side: Side,
    peer: SocketAddrUnix,
    /// It is connected: nobody else is heard, and nobody else hears.
    is_connected: bool,
    /// Who spoke last, and whether he is believed.
    judged: Option<(u32, bool)>,
}

impl Meeting {
    /// Takes the end's name, and says hello to the peer's end if that is there.
    ///
    /// # Errors
    /// The system's: `ADDRINUSE` if another has it.
    pub(crate) fn open(tuple: Tuple, side: Side) -> Result<Meeting, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Own::new(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?);
        sockopt::set_socket_passcred(&socket, true)?;
        bind(&socket, &name(tuple, side)?)?;
        let peer = name(tuple, side.other())?;
        let mut meeting = Meeting { socket, tuple, side, peer, is_connected: false, judged: None };
        meeting.connect();
        Ok(meeting)
    }

    /// Connects to whoever has the peer's name, and says hello to it.
    fn connect(&mut self) {
        // What came before may be another's who had the name then. Who sends without end is not waited for.
        self.is_connected =
            connect(&self.socket, &self.peer).is_ok() && runs_dry(|| self.take().is_some());
        self.hello();
    }

    /// Says that this end has the library; whether the peer's end was there to hear it.
    pub(crate) fn hello(&self) -> bool {
        let [a, b, c, d, e, f] = *MAGIC;
        self.say(&[a, b, c, d, e, f, VERSION, HELLO])
    }

    /// Offers to take a stream.
    pub(crate) fn offer(&self, offer: &Offer) -> bool {
        let mut bytes = Vec::with_capacity(OFFER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, OFFER]);
        bytes.extend_from_slice(&offer.gid.0);
        bytes.extend_from_slice(&offer.port.to_le_bytes());
        bytes.extend_from_slice(&offer.nonce);
        bytes.extend_from_slice(&offer.until_ns.to_le_bytes());
        self.say(&bytes)
    }

    fn say(&self, bytes: &[u8]) -> bool {
        self.is_connected && send(&self.socket, bytes, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next datagram, if there is one.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        let heard = self.receive()?;
        if self.is_connected || heard == Heard::Nothing {
            return Some(heard);
        }
        // It will say so again when it is answered, as the one that is connected.
        self.connect();
        Some(Heard::Nothing)
    }

    fn receive(&mut self) -> Option<Heard> {
        let (heard, user) = self.take()?;
        let is_believed = |user| heard.is_some() && self.believes(user, Meeting::is_peer_s);
        Some(if user.is_some_and(is_believed) { heard? } else { Heard::Nothing })
    }

    /// Takes a datagram: what it says, if it is from the peer's name, and whose it is.
    fn take(&self) -> Option<(Option<Heard>, Option<u32>)> {
        let mut bytes = [0; 2 * OFFER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bufs = [IoSliceMut::new(&mut bytes)];
        let heard = recvmsg(&self.socket, &mut bufs, &mut control, RecvFlags::DONTWAIT).ok()?;
        let from = heard.address.and_then(|from| SocketAddrUnix::try_from(from).ok());
        let user = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(it) => Some(it.uid.as_raw()),
            _ => None,
        });
        let said = decode(&bytes[..heard.bytes]).filter(|_| from.as_ref() == Some(&self.peer));
        Some((said, user))
    }

    /// Whether a user is believed. He is judged once, since that may take long, and he may speak without end.
    fn believes(&mut self, user: u32, judge: impl FnOnce(&Meeting, u32) -> bool) -> bool {
        match self.judged {
            Some((judged, believed)) if judged == user => believed,
            _ => {
                let believed = judge(self, user);
                self.judged = Some((user, believed));
                believed
            }
        }
    }

    /// Whether a user may speak for the peer's end: root, this process's own, or whose socket that end is.
    fn is_peer_s(&self, user: u32) -> bool {
        let (own, peer) = self.tuple.seen_by(self.side);
        owner::is_known(user) && speaks_for(user, rustix::process::geteuid().as_raw(), peer, own)
    }
}

/// Takes what stands in a socket; whether that came to an end.
fn runs_dry(mut take: impl FnMut() -> bool) -> bool {
    (0..BEFORE_MAX).any(|_| !take())
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn speaks_for(user: u32, own: u32, peer: SocketAddr, here: SocketAddr) -> bool {
    user == 0 || user == own || owner::of(peer, here) == Some(user)
}

fn name(tuple: Tuple, side: Side) -> Result<SocketAddrUnix, Errno> {
    let end = if side == Side::Connector { "connected" } else { "accepted" };
    SocketAddrUnix::new_abstract_name(format!("elver-tcp/{end}/{tuple}").as_bytes())
}

fn decode(bytes: &[u8]) -> Option<Heard> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    if head[..6] != *MAGIC || head[6] != VERSION {
        return None;
    }
    match (head[7], rest.len()) {
        (HELLO, 0) => Some(Heard::Hello),
        (OFFER, len) if len == OFFER_BYTES - HEAD_BYTES => {
            let (gid, rest) = rest.split_first_chunk()?;
            let (port, rest) = rest.split_first_chunk()?;
            let (nonce, until) = rest.split_first_chunk()?;
            let (port, until_ns) =
                (u16::from_le_bytes(*port), u64::from_le_bytes(until.try_into().ok()?));
            Some(Heard::Offer(Offer { gid: Gid(*gid), port, nonce: *nonce, until_ns }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
        // No connection has these: nothing listens at the discard port of that address.
        Tuple { client: at("127.7.7.7", port), server: at("127.7.7.8", 9) }
    }

    const OFFERED: Offer = Offer { gid: Gid([7; 16]), port: 9, nonce: [3; 16], until_ns: 1 << 50 };

    #[test]
    fn a_patience_that_cannot_be_is_a_second() {
        assert_eq!(wanted("1"), Duration::from_millis(1));
        assert_eq!(wanted("60000"), Duration::from_secs(60));
        for none in ["", "0", "60001", "-5", "1s", "99999999999999999999"] {
            assert_eq!(wanted(none), Duration::from_secs(1), "{none}");
        }
    }

    /// What two ends say to each other until one of them is offered a stream, or one can say no more.
    fn agree(acceptor: &mut Meeting, connector: &mut Meeting) -> Option<Heard> {
        for _ in 0..8 {
            if acceptor.hear() == Some(Heard::Hello) {
                assert!(acceptor.offer(&OFFERED));
            }
            match connector.hear() {
                Some(Heard::Hello) => drop(connector.hello()),
                Some(Heard::Nothing) | None => {}
                offered => return offered,
            }
        }
        None
    }

    #[test]
    fn ends_find_each_other_whoever_is_first() {
        for (port, first) in [(1, Side::Acceptor), (2, Side::Connector)] {
            let mut one = Meeting::open(tuple(port), first).unwrap();
            assert!(!one.hello(), "nobody is there");
            assert!(one.hear().is_none());
            let mut other = Meeting::open(tuple(port), first.other()).unwrap();
            let (acceptor, connector) = match first {
                Side::Acceptor => (&mut one, &mut other),
                Side::Connector => (&mut other, &mut one),
            };
            assert_eq!(agree(acceptor, connector), Some(Heard::Offer(OFFERED)));
            let taken = Meeting::open(tuple(port), first);
            assert_eq!(taken.unwrap_err(), Errno::ADDRINUSE);
        }
    }

    /// Who had the name before is not whom the offer is for.
    #[test]
    fn a_name_that_changes_hands_is_told_nothing() {
        let mut end = Meeting::open(tuple(3), Side::Acceptor).unwrap();
        let before = Meeting::open(tuple(3), Side::Connector).unwrap();
        assert_eq!(end.hear(), Some(Heard::Nothing), "it connects first");
        assert!(before.hello());
        assert_eq!(end.hear(), Some(Heard::Hello));
        drop(before);
        let mut after = Meeting::open(tuple(3), Side::Connector).unwrap();
        assert!(!end.offer(&OFFERED));
        assert_eq!(after.hear(), None);
    }

    /// Whose socket an end is takes a look through all of the host's.
    #[test]
    fn who_speaks_without_end_is_judged_once() {
        let mut end = Meeting::open(tuple(6), Side::Acceptor).unwrap();
        for (user, is_new) in [(7, true), (7, false), (8, true), (8, false)] {
            let mut judged = 0;
            let believed = end.believes(user, |_, user| {
                judged += 1;
                user == 8
            });
            assert_eq!((believed, judged), (user == 8, u32::from(is_new)));
        }
    }

    #[test]
    fn who_sends_without_end_is_not_waited_for() {
        let mut taken = 0;
        let endless = || {
            taken += 1;
            assert!(taken < 1_000_000, "it is taken for ever");
            true
        };
        assert!(!runs_dry(endless));
        let mut some = 3;
        assert!(runs_dry(|| {
            some -= 1;
            some > 0
        }));
    }

    #[test]
    fn strangers_are_not_heard() {
        let mut end = Meeting::open(tuple(4), Side::Acceptor).unwrap();
        // Another connection's end, which says the right words.
        let other = Meeting::open(tuple(5), Side::Connector).unwrap();
        let peer = name(tuple(4), Side::Acceptor).unwrap();
        let mut stranger = Meeting { peer, ..other };
        stranger.connect();
        assert_eq!(end.hear(), Some(Heard::Nothing));
        assert!(end.hear().is_none() && stranger.hear().is_none());
        // The peer's end, with words that are none.
        let peer = Meeting::open(tuple(4), Side::Connector).unwrap();
        assert_eq!(end.hear(), Some(Heard::Nothing));
        for wrong in [
            &b""[..],
            b"ELVTCP",
            b"ELVTCP\x02\x01",
            b"ELVTCP\x01\x03",
            b"ELVTCP\x01\x01!",
            b"ELVTCP\x01\x02",
        ] {
            assert!(peer.say(wrong));
            assert_eq!(end.hear(), Some(Heard::Nothing), "{wrong:?}");
        }
        // And once it is heard, nobody else can speak.
        assert!(!stranger.hello());
        // Another user speaks for a socket only if it is his.
        let (own, there) = tuple(4).seen_by(Side::Acceptor);
        assert!(speaks_for(0, 1000, there, own) && speaks_for(1000, 1000, there, own));
        assert!(!speaks_for(1001, 1000, there, own));
    }
}
