//! The way to the node: its socket and the shared memory; and the node itself, where this thread drives
//! it.

mod rest;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elver_portal::{
    ClientEnd, Command, First, Layout, Message, Peer, PushError, Received, Reply, Scratch, Socket,
    Turns, Welcome,
};
use elver_verbs::{RecvWr, SendWr};
use rustix::io::Errno;
use rustix::process::{PTracer, set_ptracer};
use rustix::thread::sched_getaffinity;

use crate::clock::coarse_ns;
use crate::path::Paths;
use crate::wait::{SLEEP_MAX, Wait, sleep};
use crate::waker::Bell;
use crate::{Error, SessionOptions, fork};

/// The shortest time between two tries then.
pub(crate) const WAKE_PAUSE: Duration = Duration::from_millis(1);
/// How often the socket is looked at while polling finds nothing.
const SOCKET_NS: i64 = 50_000_000;
/// How long a greeting waits without letting other threads run, unless the node is among them: a node that is
/// awake answers within it, and what else wants to run here may take long.
pub(crate) const GREETING: Duration = Duration::from_micros(50);

/// Who drives the node.
#[derive(Clone)]
pub(crate) enum Host {
    /// Another process or another thread.
    Apart,
    /// This thread, whenever a call finds nothing.
    #[cfg(feature = "embedded")]
    Inline(std::rc::Rc<std::cell::RefCell<elver_node::Node>>),
}

pub(crate) struct Link {
    host: Host,
    pub(crate) socket: Rc<Socket>,
    /// Where the node listens, as this process names it, if it was found so.
    pub(crate) path: Option<PathBuf>,
    end: ClientEnd,
    /// Apart, since who makes a session moves it, over pages of the stack that a child of a fork has to copy.
    scratch: Box<Scratch>,
    pub(crate) welcome: Welcome,
    /// Files that came, with the requests that they are for.
    files: Vec<(u32, OwnedFd)>,
    pub(crate) spin: Duration,
    pub(crate) turns: Turns,
    /// The node has the only core that this thread has: it answers when it is let run, and not before.
    one_core: bool,
    end_on_signal: bool,
    /// How long it may be silent ([`SessionOptions::patience`]).
    pub(crate) patience: Duration,
    /// What ends waits, if somebody has it.
    bell: Option<Arc<Bell>>,
    /// What stands for the socket in children that leave the session, once it has prepared some for them.
    nobody: Option<Socket>,
    /// The system could not wake the node for what it was given, and is asked again.
    owes_waking: bool,
    /// When the system last could not wake it.
    tried_at: Option<Instant>,
    gone: bool,
    /// A look took a message that somebody else may sleep for.
    took_waking: bool,
    /// When the socket was looked at, by a coarse clock.
    looked_at_ns: i64,
}

impl Link {
    /// Connects to the first node that listens, and asks for something at once.
    pub(crate) fn connect(
        paths: &Paths,
        options: SessionOptions,
        first: Option<First>,
    ) -> Result<Link, Error> {
        let (path, socket) = reach(paths, options.patience)?;
        hello(&socket, options.layout, first)?;
        trusted(path, &socket)?;
        let path = std::path::absolute(path)
            .map_err(|reason| Error::System { call: "naming the node's socket", reason })?;
        let link = Link::welcomed(Host::Apart, socket, options)?;
        Ok(Link { path: Some(path), ..link })
    }

    /// Opens a session over a connected socket.
    #[cfg(feature = "embedded")]
    pub(crate) fn greet(
        host: Host,
        socket: Socket,
        options: SessionOptions,
    ) -> Result<Link, Error> {
        hello(&socket, options.layout, None)?;
        Link::welcomed(host, socket, options)
    }

    /// Waits for the node's answer to a hello.
    fn welcomed(host: Host, socket: Socket, options: SessionOptions) -> Result<Link, Error> {
        // While the node is at work.
        fork::watch_forks();
        let (began, mut turns) = (Instant::now(), Turns::default());
        let one_core = matches!(host, Host::Apart) && has_the_core_of(&socket);
        loop {
            if one_core && !turns.may_be_held() {
                turns.pass();
            }
            host.drive();
            match receive(&socket)? {
                Received::Message(Message::Welcome(welcome), Some(file)) => {
                    let end = ClientEnd::map(file, welcome.layout)
                        .map_err(|reason| Error::System { call: "mapping the rings", reason })?;
                    let link = Link::over(socket, end, welcome, options);
                    return Ok(Link { host, turns, one_core, ..link });
                }
                Received::Message(Message::Rejected { text }, _) => {
                    return Err(Error::Rejected { text });
                }
                Received::Invalid(error) => return Err(Error::Version(error)),
                Received::Closed => return Err(Error::NodeGone),
                Received::Message(..) | Received::Nothing => {}
            }
            let waited = began.elapsed();
            if waited > options.patience {
                return Err(Error::Silent);
            }
            if !matches!(host, Host::Apart) || waited < GREETING {
                continue;
            }
            if waited >= options.spin {
                sleep(&socket, None, SLEEP_MAX)?;
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// The way to a node apart, over rings that are mapped.
    pub(crate) fn over(
        socket: impl Into<Rc<Socket>>,
        end: ClientEnd,
        welcome: Welcome,
        options: SessionOptions,
    ) -> Link {
        Link {
            host: Host::Apart,
            socket: socket.into(),
            path: None,
            end,
            scratch: Box::default(),
            welcome,
            files: Vec::new(),
            spin: options.spin,
            turns: Turns::default(),
            one_core: false,
            end_on_signal: options.end_on_signal,
            patience: options.patience,
            bell: None,
            nobody: None,
            owes_waking: false,
            tried_at: None,
            gone: false,
            took_waking: false,
            looked_at_ns: coarse_ns(),
        }
    }

    /// How the session was opened, as far as others are to be opened so.
    pub(crate) fn options(&self) -> SessionOptions {
        let &Link { spin, end_on_signal, patience, .. } = self;
        SessionOptions { spin, end_on_signal, patience, ..SessionOptions::default() }
    }

    /// A wait for something that a node does at once.
    pub(crate) fn patient(&self) -> Wait {
        Wait::new(Some(self.patience))
    }

    /// The first byte of the session's arena, of [`elver_portal::ARENA_BYTES`], mapped while this
    /// lives.
    pub(crate) fn arena(&self) -> NonNull<u8> {
        self.end.arena()
    }

    /// Takes what the node told next. Now and then, when there is nothing, looks whether it lives; then
    /// [`Link::took_waking`] must be heeded.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Reply<'_>>, Error> {
        if self.is_silent() {
            let now = coarse_ns();
            if self.gone || now - self.looked_at_ns > SOCKET_NS {
                self.looked_at_ns = now;
                self.wake_if_owed()?;
                self.took_waking |= self.look()?;
                // The waking that it may have taken was for what is there now.
                if !self.end.is_idle() {
                    return Ok(self.end.next_reply(&mut self.scratch)?);
                }
            }
            return Ok(None);
        }
        Ok(self.end.next_reply(&mut self.scratch)?)
    }

    /// Whether [`Link::next`] has taken a waking since this was asked last: what it was for may have been taken before,
    /// and who has armed this end since is woken by nobody.
    #[inline]
    pub(crate) fn took_waking(&mut self) -> bool {
        std::mem::take(&mut self.took_waking)
    }

    /// Whether the node has told nothing new, not even when it was driven.
    #[inline]
    fn is_silent(&self) -> bool {
        self.end.is_idle() && (!self.host.drive() || self.end.is_idle())
    }

    /// Posts a send WR; [`Link::ring`] must follow.
    #[inline]
    pub(crate) fn send(&mut self, vqp: u32, wr: &SendWr<'_>) -> Result<(), PushError> {
        self.end.send(vqp, wr)
    }

    /// Posts a receive; [`Link::ring`] must follow.
    #[inline]
    pub(crate) fn receive(&mut self, vqp: u32, wr: &RecvWr<'_>) -> Result<(), PushError> {
        self.end.receive(vqp, wr)
    }

    /// Gives a command; false if there is no room. [`Link::ring`] must follow.
    pub(crate) fn command(&mut self, request: u32, command: &Command<'_>) -> Result<bool, Error> {
        Ok(self.end.command(request, command)?)
    }

    /// Wakes the node if it sleeps. One that the system cannot wake now has what it was given all the same, and is woken
    /// later: by the next that it is given, and before a sleep.
    #[inline]
    pub(crate) fn ring(&mut self) -> Result<(), Error> {
        if self.gone {
            return Err(Error::NodeGone);
        }
        if self.end.must_wake() {
            self.wake()?;
        }
        Ok(())
    }

    #[cold]
    fn wake(&mut self) -> Result<(), Error> {
        match self.socket.wake() {
            Ok(()) => {
                self.owes_waking = false;
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                // It may have said why.
                self.look()?;
                self.gone = true;
                Err(Error::NodeGone)
            }
            // For want of memory. What else may be wrong with the socket, each look at it tells.
            Err(_) => {
                self.end.not_woken();
                self.owes_waking = true;
                self.tried_at = Some(Instant::now());
                Ok(())
            }
        }
    }

    /// Wakes a node that could not be woken; false if it still cannot, or this was tried just now.
    #[inline]
    fn wake_if_owed(&mut self) -> Result<bool, Error> {
        if self.owes_waking && self.tried_at.is_none_or(|tried| tried.elapsed() >= WAKE_PAUSE) {
            self.owes_waking = false;
            match self.ring() {
                // That it is gone, a look tells, behind what the ring holds.
                Ok(()) | Err(Error::NodeGone) => {}
                // Why it has gone: the look that took it tells.
                rung => rung?,
            }
        }
        Ok(!self.owes_waking)
    }

    /// Takes the file that came for a request.
    pub(crate) fn file(&mut self, request: u32) -> Result<OwnedFd, Error> {
        self.look()?;
        let at = self.files.iter().position(|(of, _)| *of == request);
        let at = at.ok_or(Error::Invalid { what: "the node sent no file for the memory" })?;
        Ok(self.files.swap_remove(at).1)
    }

    /// Closes the file that came for a request, which nobody asks for any more.
    pub(crate) fn drop_file(&mut self, request: u32) -> Result<(), Error> {
        self.look()?;
        self.files.retain(|(of, _)| *of != request);
        Ok(())
    }

    /// Takes what came over the socket; whether something did.
    #[cold]
    fn look(&mut self) -> Result<bool, Error> {
        let mut came = false;
        while !self.gone {
            let received = receive(&self.socket)?;
            came |= matches!(received, Received::Message(..));
            match received {
                Received::Message(Message::Memory { request }, Some(file)) => {
                    self.files.push((request, file));
                }
                // What the ring holds comes first; only then the end.
                Received::Closed => self.gone = true,
                Received::Message(Message::Rejected { text }, _) => {
                    return Err(Error::Rejected { text });
                }
                Received::Message(..) => {}
                Received::Invalid(error) => return Err(Error::Version(error)),
                Received::Nothing => return Ok(came),
            }
        }
        if self.end.is_idle() { Err(Error::NodeGone) } else { Ok(came) }
    }

    /// Whether the node is to be woken, and could not be so far.
    #[inline]
    pub(crate) fn owes_waking(&self) -> bool {
        self.owes_waking
    }

    /// Whether the node is known to be gone.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether this thread drives the node.
    pub(crate) fn is_driven(&self) -> bool {
        !matches!(self.host, Host::Apart)
    }
}

impl Host {
    /// One round of a node that this thread drives; whether anything happened.
    #[inline]
    fn drive(&self) -> bool {
        match self {
            Host::Apart => false,
            #[cfg(feature = "embedded")]
            Host::Inline(node) => node.borrow_mut().poll(),
        }
    }
}

impl Link {
    /// Makes ready what children need to leave the session: so they need no descriptor for it, and fewer calls.
    pub(crate) fn expect_children(&mut self) -> Result<(), Error> {
        if self.nobody.is_none() {
            self.nobody = Some(unconnected()?);
        }
        Ok(())
    }

    /// Leaves rings, arena and socket to the process that this one is a child of.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        self.end.leave().map_err(|reason| Error::System { call: "unmapping the rings", reason })?;
        let left = match &self.nobody {
            Some(nobody) => self.socket.leave(nobody),
            None => self.socket.leave(&unconnected()?),
        };
        match left {
            // It was closed: then it is left.
            Err(reason) if reason.raw_os_error() == Some(libc::EBADF) => Ok(()),
            left => left.map_err(|reason| Error::System { call: "leaving the socket", reason }),
        }
    }

    /// Lets a node of this process's user look into its memory, where the system forbids that by
    /// default (Yama). False if that is not what forbids it.
    #[cold]
    pub(crate) fn let_in(&self) -> bool {
        // Its number is that of the process that made the socket; its children may as well.
        let Ok(Peer { pid: Some(pid), uid, .. }) = self.socket.peer() else { return false };
        // Without Yama the system does not know the call.
        uid == rustix::process::geteuid().as_raw() && set_ptracer(PTracer::ProcessID(pid)).is_ok()
    }
}

/// Whether the node at the other end can run on one core alone, the only one that this thread has too. Of a
/// thread of this process, or of a node that the system does not show, it is not known.
fn has_the_core_of(socket: &Socket) -> bool {
    let Some(own) = sched_getaffinity(None).ok().filter(|own| own.count() == 1) else {
        return false;
    };
    let node = socket.peer().ok().and_then(|peer| peer.pid);
    node.is_some_and(|node| sched_getaffinity(Some(node)).is_ok_and(|its| its == own))
}

/// Connects to the first socket at which somebody listens. One that this user may not reach is passed
/// over, and told of if there is no other: it need not be for him.
fn reach(paths: &Paths, patience: Duration) -> Result<(&Path, Socket), Error> {
    let mut refused = None;
    for path in &paths.0 {
        match Socket::connect(path, patience) {
            Ok(socket) => return Ok((path, socket)),
            Err(reason) => match Errno::from_io_error(&reason) {
                Some(Errno::NOENT | Errno::CONNREFUSED) => {}
                // As many wait to be let in as may.
                _ if reason.kind() == io::ErrorKind::TimedOut => return Err(Error::Silent),
                Some(Errno::ACCESS) => {
                    refused.get_or_insert(Error::Connect { path: path.clone(), reason });
                }
                _ => return Err(Error::Connect { path: path.clone(), reason }),
            },
        }
    }
    Err(refused.unwrap_or_else(|| Error::NoDaemon { paths: paths.clone() }))
}

fn unconnected() -> Result<Socket, Error> {
    Socket::unconnected().map_err(|reason| Error::System { call: "making a socket", reason })
}

/// Asks for a session.
fn hello(socket: &Socket, layout: Layout, first: Option<First>) -> Result<(), Error> {
    match socket.send(&Message::Hello { layout, first }, None) {
        Ok(()) => Ok(()),
        // A node that turns a process away may have said why before it hears anything.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(reason) => Err(Error::System { call: "greeting the node", reason }),
    }
}

/// Refuses a socket below `/tmp` that another user made.
pub(crate) fn trusted(path: &Path, socket: &Socket) -> Result<(), Error> {
    if !path.starts_with("/tmp") {
        return Ok(());
    }
    let peer = socket.peer().map_err(|reason| Error::System { call: "SO_PEERCRED", reason })?;
    if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let what = format!("it is user {}'s, and not root's or this user's", peer.uid);
    let reason = io::Error::new(io::ErrorKind::PermissionDenied, what);
    Err(Error::Connect { path: path.into(), reason })
}

pub(crate) fn receive(socket: &Socket) -> Result<Received, Error> {
    socket.receive(true).map_err(|reason| Error::System { call: "recvmsg", reason })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use elver_portal::Listener;

    use super::*;

    /// Root's tools once left `/run/elver` for root alone: users' own daemons were not found behind it.
    #[test]
    fn a_socket_that_is_for_others_hides_none_of_this_users() {
        let directory = std::env::temp_dir().join(format!("elver-reach-{}", std::process::id()));
        let locked = directory.join("locked");
        std::fs::create_dir_all(&locked).unwrap();
        let (theirs, own) = (locked.join("elverd.sock"), directory.join("elverd.sock"));
        let listeners = [&theirs, &own].map(|path| Listener::bind(path).unwrap());
        let modes = [(&directory, 0o755), (&own, 0o666), (&locked, 0o000)];
        for (path, mode) in modes {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let patience = SessionOptions::default().patience;
        let paths = Paths(vec![theirs.clone(), own.clone()]);
        let alone = Paths(vec![theirs.clone()]);
        let (found, told) = std::thread::spawn(move || {
            // SAFETY: the call has no memory to do with. It makes the files of root's what they are to
            // an ordinary user, for this thread alone, which ends.
            unsafe { libc::setfsuid(65_534) };
            let found = reach(&paths, patience).map(|(path, _)| path.to_path_buf());
            (found, reach(&alone, patience).map(drop))
        })
        .join()
        .unwrap();
        drop(listeners);
        let open = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&locked, open).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found.unwrap(), own);
        assert!(matches!(&told, Err(Error::Connect { path, .. }) if *path == theirs), "{told:?}");
    }
}
