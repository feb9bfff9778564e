//! Another process of this host and user, as it and this one have made themselves known to each other.

use std::fmt;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use elver_verbs::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, send, sendmsg, shutdown,
};
use rustix::process::{Pid, geteuid};

use crate::fork::Unshared;
use crate::identity::{Identity, credentials};

use super::lane::{Lane, LaneView};
use super::table::{MAGIC, Table, View};

/// Bytes of a greeting: what tables begin with, the address of a table in its process, and of the device.
const GREETING: usize = 32;

/// What the tables of all versions begin with.
const FAMILY: &[u8] = b"ELVERd";

/// What who asked says when it knows the other too.
const READY: &[u8] = b"ready";
/// What one says instead of its greeting who asks the other too, and is to be answered, or knows it already.
pub(super) const CROSSED: &[u8] = b"crossed";

/// Why a process is not reached directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another user, or another user or PID namespace.
    Stranger,
    /// It has this library in another version.
    Version(Other),
    /// It does not speak as one with this library does.
    Unknown,
    /// It has gone, or hung up.
    Gone,
    /// It did not answer in time.
    Silent,
    /// Both asked each other: it is met by what the other one asked.
    Crossed,
    /// This process has as many peers as it may have.
    Full,
    /// The system does not let this process reach the other's memory (Yama, seccomp).
    Forbidden,
}

/// A process that has this library in another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pid: Pid,
    /// What its table begins with.
    magic: u64,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [other, own] = [self.magic, MAGIC].map(u64::to_be_bytes);
        let version =
            |magic: &[u8; 8]| String::from_utf8_lossy(&magic[FAMILY.len()..]).into_owned();
        write!(
            f,
            "process {} has the library in another version ({}, this one is {}): data between the two goes by packets; \
             start both by the same `elver run`",
            self.pid.as_raw_nonzero(),
            version(&other),
            version(&own)
        )
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Refusal {
        match error {
            Errno::PERM | Errno::ACCESS | Errno::NOSYS => Refusal::Forbidden,
            Errno::INVAL => Refusal::Unknown,
            Errno::PIPE | Errno::CONNRESET | Errno::SRCH => Refusal::Gone,
            _ => Refusal::Silent,
        }
    }
}

/// A process.
pub(crate) struct Peer {
    pub(crate) identity: Identity,
    /// The address of its device.
    pub(crate) address: IpAddr,
    pub(crate) view: View,
    /// What this process sends it, and what it sends this one.
    pub(crate) lane: Lane,
    pub(crate) lane_view: LaneView,
    bell: OwnedFd,
    /// It hangs up when the process ends or becomes another program, whose children do not have it therefore.
    pub(crate) socket: Unshared,
    /// It is reached by packets from now on.
    closed: AtomicBool,
    /// No WR waits for it before then ([`Time`]): one has, and nothing came to its end meanwhile.
    waits_from: AtomicU64,
}

/// Whose socket it is, if that is a process that may reach this one's memory: of this user, and in the
/// same namespaces.
fn authenticate(socket: &OwnedFd) -> Result<Pid, Refusal> {
    let (pid, uid) = credentials(socket)?;
    let pid = Pid::from_raw(pid).filter(|_| uid == geteuid().as_raw()).ok_or(Refusal::Stranger)?;
    for kind in ["user", "pid"] {
        let own = fs::read_link(format!("/proc/self/ns/{kind}"));
        let other = fs::read_link(format!("/proc/{}/ns/{kind}", pid.as_raw_nonzero()));
        match (own, other) {
            (Ok(own), Ok(other)) if own == other => {}
            _ => return Err(Refusal::Stranger),
        }
    }
    Ok(pid)
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// What a process tells another of itself.
pub(crate) struct Own<'a> {
    pub(crate) table: &'a Table,
    /// The address of its device.
    pub(crate) address: IpAddr,
    /// An eventfd that wakes it.
    pub(crate) bell: &'a OwnedFd,
}

/// Sends a greeting, with the table, a lane and the bell.
pub(super) fn greet(socket: &OwnedFd, own: &Own<'_>, lane: OwnedFd) -> Result<(), Errno> {
    let Own { table, address, bell } = *own;
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    greeting[8..16].copy_from_slice(&table.address().to_ne_bytes());
    greeting[16..].copy_from_slice(&octets(address));
    let files = [table.file.as_fd(), lane.as_fd(), bell.as_fd()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// What a greeting says: where the table begins in its process, the device's address, and the table.
pub(super) struct Greeting {
    pub(super) table_at: u64,
    address: IpAddr,
    pub(super) view: View,
    pub(super) lane: LaneView,
    bell: OwnedFd,
}

pub(super) fn hear(socket: &OwnedFd, pid: Pid) -> Result<Greeting, Refusal> {
    let mut greeting = [0; GREETING + 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let heard = recvmsg(socket, &mut [IoSliceMut::new(&mut greeting)], &mut control, flags)?;
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let files = <[OwnedFd; 3]>::try_from(files.collect::<Vec<_>>());
    let word = |at: usize| -> [u8; 8] { std::array::from_fn(|byte| greeting[at + byte]) };
    if heard.bytes == 0 {
        return Err(Refusal::Gone);
    }
    if heard.bytes == CROSSED.len() && greeting.starts_with(CROSSED) {
        return Err(Refusal::Crossed);
    }
    let magic = u64::from_ne_bytes(word(0));
    // What another version says besides, nobody here knows.
    if magic != MAGIC && magic.to_be_bytes().starts_with(FAMILY) {
        return Err(Refusal::Version(Other { pid, magic }));
    }
    let whole = heard.bytes == GREETING && !heard.flags.contains(ReturnFlags::CTRUNC);
    let Ok([table, lane, bell]) = files else { return Err(Refusal::Unknown) };
    if !whole || magic != MAGIC || !is_eventfd(&bell) {
        return Err(Refusal::Unknown);
    }
    let address: [u8; 16] = std::array::from_fn(|byte| greeting[16 + byte]);
    Ok(Greeting {
        table_at: u64::from_ne_bytes(word(8)),
        address: Ipv6Addr::from(address).to_canonical(),
        view: View::new(table)?,
        lane: LaneView::new(lane)?,
        bell,
    })
}

/// Whether a descriptor is what wakes a process, and nothing whose writes somebody else can hold up: a file of a file
/// system in user space could.
fn is_eventfd(descriptor: &OwnedFd) -> bool {
    let kind = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
}

/// Whether this process can reach that one's memory: its table begins as all do.
pub(super) fn probe(pid: Pid, table_at: u64) -> Result<(), Refusal> {
    let mut found = [0_u8; 8];
    let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
    let remote =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(table_at as usize), iov_len: 8 };
    // SAFETY: it writes to 8 bytes of ours at most.
    let read = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    match read {
        8 if u64::from_ne_bytes(found) == MAGIC => Ok(()),
        0.. => Err(Refusal::Unknown),
        _ => Err(Refusal::Forbidden),
    }
}

impl Peer {
    /// Makes this process and the one at the other end of a fresh socket known to each other.
    pub(crate) fn ask(
        socket: Unshared,
        own: &Own<'_>,
        admit: impl FnOnce(Peer) -> Result<Arc<Peer>, Refusal>,
    ) -> Result<Arc<Peer>, Refusal> {
        let pid = authenticate(&socket)?;
        let (lane, file) = Lane::new()?;
        greet(&socket, own, file)?;
        let greeting = hear(&socket, pid)?;
        let peer = admit(Peer::new(socket, pid, lane, greeting)?)?;
        // From here on the other may reach for this one's memory: this one knows whom to wait for.
        send(&peer.socket, READY, SendFlags::NOSIGNAL)?;
        peer.open()
    }

    /// The same, of a process that asked; the one with an address is met if `begin` says so.
    pub(crate) fn answer(
        socket: Unshared,
        own: &Own<'_>,
        begin: impl FnOnce(IpAddr) -> bool,
        admit: impl FnOnce(Peer) -> Result<Arc<Peer>, Refusal>,
    ) -> Result<Arc<Peer>, Refusal> {
        let pid = authenticate(&socket)?;
        let heard = hear(&socket, pid);
        if matches!(heard, Err(Refusal::Version(_))) {
            // It is to know why, too; and who cannot be told has gone.
            let _ = send(&socket, &MAGIC.to_ne_bytes(), SendFlags::NOSIGNAL);
        }
        let greeting = heard?;
        if !begin(greeting.address) {
            let _ = send(&socket, CROSSED, SendFlags::NOSIGNAL);
            return Err(Refusal::Crossed);
        }
        let (lane, file) = Lane::new()?;
        let peer = admit(Peer::new(socket, pid, lane, greeting)?)?;
        greet(&peer.socket, own, file)?;
        let mut ready = [0; READY.len() + 1];
        let mut said = recv(&peer.socket, &mut ready, RecvFlags::empty());
        let mut unsaid = Refusal::Gone;
        if let Err(error) = said {
            unsaid = error.into();
            // It may have said so just now, and reach for this one's memory already; from here on it cannot.
            shutdown(&peer.socket, Shutdown::Read)?;
            said = recv(&peer.socket, &mut ready, RecvFlags::DONTWAIT);
        }
        match said?.0 {
            0 => Err(unsaid),
            len if len != READY.len() => Err(Refusal::Unknown),
            _ => Ok(()),
        }?;
        peer.open()
    }

    /// One that is reached by packets yet.
    fn new(socket: Unshared, pid: Pid, lane: Lane, greeting: Greeting) -> Result<Peer, Refusal> {
        let identity = Identity::of(&socket, pid)?;
        let Greeting { table_at, address, view, lane: lane_view, bell } = greeting;
        probe(pid, table_at)?;
        let (closed, waits_from) = (AtomicBool::new(true), AtomicU64::new(0));
        Ok(Peer { identity, address, view, lane, lane_view, bell, socket, closed, waits_from })
    }

    fn open(self: Arc<Peer>) -> Result<Arc<Peer>, Refusal> {
        self.closed.store(false, Ordering::Release);
        // What was probed is who has the socket: that one is still there. Asked behind the store, or who found meanwhile that
        // it is not would have closed it in vain.
        if self.has_ended() {
            self.close();
            return Err(Refusal::Gone);
        }
        Ok(self)
    }

    /// Whether it is reached by packets only.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Wakes it.
    #[cold]
    pub(crate) fn ring(&self) {
        // Whatever descriptor a peer gave, this process does not wait for it.
        let mut writes = [PollFd::new(&self.bell, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut writes, Some(&now)) == Ok(1) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// From when on WRs wait for it.
    #[inline]
    pub(crate) fn waits_from(&self) -> Time {
        Time(self.waits_from.load(Ordering::Relaxed))
    }

    pub(crate) fn wait_no_more_before(&self, time: Time) {
        self.waits_from.store(time.0, Ordering::Relaxed);
    }

    /// Whether the process has ended, or is another program by now.
    pub(crate) fn has_ended(&self) -> bool {
        self.identity.has_ended(&self.socket)
    }

    /// Its number, while that is the process's own and its program the one that was met: what that has told means nothing in
    /// another's memory.
    #[inline]
    pub(crate) fn pid(&self, now: Time) -> Option<Pid> {
        self.identity.pid(now, &self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::BELIEVED_NS;

    /// The kernel's word, on which [`Peer::answer`] relies.
    #[test]
    fn who_is_ready_in_the_last_moment_is_heard_or_knows_that_it_is_not() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        for in_time in [true, false] {
            let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            if in_time {
                send(&there, READY, SendFlags::NOSIGNAL).unwrap();
            }
            shutdown(&here, Shutdown::Read).unwrap();
            let heard = recv(&here, &mut [0; 8], RecvFlags::DONTWAIT).map(|(_, len)| len);
            assert_eq!(heard, Ok(if in_time { READY.len() } else { 0 }));
            assert_eq!(send(&there, READY, SendFlags::NOSIGNAL), Err(Errno::PIPE));
            // It takes nobody for ended.
            let mut socket = [PollFd::new(&there, PollFlags::HUP)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            assert_eq!(poll(&mut socket, Some(&now)), Ok(0));
        }
    }

    /// Another process may have its address at once, and is asked.
    #[test]
    fn who_hangs_up_is_told_from_who_is_silent() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        drop(there);
        let heard = hear(&here, rustix::process::getpid());
        assert!(matches!(heard, Err(Refusal::Gone)));
        let told = send(&here, READY, SendFlags::NOSIGNAL).unwrap_err();
        assert!(matches!(Refusal::from(told), Refusal::Gone));
        assert!(matches!(Refusal::from(Errno::AGAIN), Refusal::Silent));
    }

    /// Writes to what a peer may hold up are no way to wake it.
    #[test]
    fn a_bell_is_an_eventfd() {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let table = Table::new().unwrap();
        let (_reads, pipe) = rustix::pipe::pipe().unwrap();
        let file = fs::File::open("/dev/null").unwrap().into();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for (bell, taken) in [(pipe, false), (file, false), (bell, true)] {
            let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            let own = Own { table: &table, address: Ipv6Addr::LOCALHOST.into(), bell: &bell };
            greet(&there, &own, Lane::new().unwrap().1).unwrap();
            let heard = hear(&here, rustix::process::getpid());
            assert_eq!(heard.is_ok(), taken, "{bell:?}");
            assert!(matches!(heard, Ok(_) | Err(Refusal::Unknown)));
        }
    }

    /// Its number stays its own, and its memory is another's.
    #[test]
    fn a_process_that_becomes_another_program_is_reached_no_more() {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (table, pid) = (Table::new().unwrap(), rustix::process::getpid());
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let own = Own { table: &table, address: Ipv6Addr::LOCALHOST.into(), bell: &bell };
        greet(&there, &own, Lane::new().unwrap().1).unwrap();
        let Ok(greeting) = hear(&here, pid) else { panic!("no greeting") };
        let Ok(peer) =
            Peer::new(Unshared::of(|| Ok(here)).unwrap(), pid, Lane::new().unwrap().0, greeting)
        else {
            panic!("no peer")
        };
        let start = Time(7 * BELIEVED_NS);
        assert_eq!(peer.pid(start), Some(pid));
        // As `exec` closes it.
        drop(there);
        assert_eq!(peer.pid(start.saturating_add_ns(BELIEVED_NS - 1)), Some(pid));
        assert_eq!(peer.pid(start.saturating_add_ns(BELIEVED_NS)), None);
        assert!(peer.has_ended());
    }

    #[test]
    fn another_version_has_a_sentence() {
        let other = Other { pid: Pid::INIT, magic: u64::from_be_bytes(*b"ELVERd01") };
        let said = other.to_string();
        assert!(said.starts_with("process 1 has the library in another version (01, this one is "));
        assert!(said.ends_with("start both by the same `elver run`"), "{said}");
    }
}
