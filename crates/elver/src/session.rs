use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver_portal::{Command, First, Limits, VqpInfo, VqpOptions, WARM_GIDS_MAX};
use elver_verbs::{AccessFlags, Gid};

use crate::fork::Origin;
use crate::inner::{Outcome, UNEXPECTED};
use crate::link::Link;
use crate::mr::Kind;
use crate::path::Paths;
use crate::vqp::info;
use crate::wait::Wait;
use crate::{
    Closing, Connecting, Cq, Destination, Error, Mr, Placement, Session, SessionOptions,
    SharedMemory, Vqp,
};

impl Session {
    /// Opens a session at the node that listens at a path.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if none does; [`Error::Connect`] if it may not be connected to;
    /// [`Error::Rejected`] if it takes no more sessions; [`Error::Version`] if it is of another major
    /// version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Session, Error> {
        let paths = Paths(vec![path.as_ref().into()]);
        Session::open(&paths, SessionOptions::default())
    }

    /// Opens a session at the host's node: at the socket that the environment names
    /// ([`crate::SOCKET_VARIABLE`]), else `/run/elver/elverd.sock`, else `elver/elverd.sock` below
    /// the user's runtime directory, or in `/tmp/elver-UID` without one.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if none listens there; else as [`Session::connect`].
    pub fn connect_default() -> Result<Session, Error> {
        Session::open(&Paths::default_ones(), SessionOptions::default())
    }

    /// As [`Session::connect`], or without a path as [`Session::connect_default`].
    ///
    /// # Errors
    /// As those.
    pub fn connect_with(path: Option<&Path>, options: SessionOptions) -> Result<Session, Error> {
        let paths = path.map_or_else(Paths::default_ones, |path| Paths(vec![path.into()]));
        Session::open(&paths, options)
    }

    /// Opens a session as [`Session::connect_with`], and with it its first VQP, which is being connected: the
    /// node makes both in one turn, and looks the peer up while this process maps the session's memory. What
    /// else is needed, memory for one, is best made before the connect's end is waited for. The session is
    /// [`Vqp::session`].
    ///
    /// # Errors
    /// As [`Session::connect_with`] and [`Session::create_vqp`]; of the connect, [`Connecting`] tells.
    pub fn dial(
        path: Option<&Path>,
        options: SessionOptions,
        to: &Destination,
    ) -> Result<(Vqp, Connecting), Error> {
        let paths = path.map_or_else(Paths::default_ones, |path| Paths(vec![path.into()]));
        let &Destination { gid, port, connect, options: vqp } = to;
        let link =
            Link::connect(&paths, options, Some(First { options: vqp, gid, port, connect }))?;
        let is_begun = link.welcome.first;
        let session = Session::of(link);
        if is_begun {
            return Vqp::first(&session, to);
        }
        // A node of an older version.
        let vqp = session.create_vqp(vqp)?;
        let connecting = vqp.qconnect_start(gid, port, connect)?;
        Ok((vqp, connecting))
    }

    fn open(paths: &Paths, options: SessionOptions) -> Result<Session, Error> {
        Ok(Session::of(Link::connect(paths, options, None)?))
    }

    /// The node's GID: how peers name it.
    pub fn gid(&self) -> Gid {
        self.inner.borrow().link.welcome.gid
    }

    /// What this session may do.
    pub fn limits(&self) -> Limits {
        self.inner.borrow().link.welcome.limits
    }

    /// How long its node may say nothing ([`SessionOptions::patience`]).
    pub fn patience(&self) -> Duration {
        self.inner.borrow().link.patience
    }

    /// Allocates `len` bytes at the node and registers them: the node works on them without a copy
    /// or a system call. They are zeroed, and begin at a cache line; from 4096 bytes on at a page.
    ///
    /// The first small regions stand in an arena of [`elver_portal::ARENA_BYTES`] that the session
    /// has from its beginning, and cost a microsecond or two; others get a file in memory each, for
    /// some tens of microseconds.
    ///
    /// # Errors
    /// [`Error::Refused`] if a quota is reached or memory is short: the text names the option.
    pub fn alloc(&self, len: u64, access: AccessFlags) -> Result<Mr, Error> {
        match Mr::carve(self, len, access)? {
            Some(mr) => Ok(mr),
            None => Mr::alloc(self, len, access, Kind::default()),
        }
    }

    /// As [`Session::alloc`], in a file of its own however small it is. Processes of this user at this node
    /// reach such memory themselves, with its key (docs/node.md, "The direct way"); what stands in the arena, they reach
    /// through the node.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub fn alloc_apart(&self, len: u64, access: AccessFlags) -> Result<Mr, Error> {
        Mr::alloc(self, len, access, Kind::default())
    }

    /// As [`Session::alloc`], from huge pages if the system has enough of them set aside. A daemon
    /// gives them to processes of root's and of its own user only: whoever has one can give it back
    /// behind the daemon's back, whose next access would kill it.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub fn alloc_huge(&self, len: u64, access: AccessFlags) -> Result<Mr, Error> {
        Mr::alloc(self, len, access, Kind { huge: true, ..Kind::default() })
    }

    /// As [`Session::alloc`], where its placement says: near the calling thread, unless it says otherwise. Small regions too
    /// have a file of their own then; but on a machine with one NUMA node they stand in the arena, as without. Small
    /// pages that are given back and made anew lie there as well; huge ones lie where the system puts them then.
    ///
    /// The node has no say where the system gives it none (a container without `mbind`, a daemon whose set of nodes has another
    /// one) or where it is of an older version: the memory then lies anywhere. `regions_unplaced` of `elver status` counts the
    /// first; of a wish that was taken, `/proc/self/numa_maps` tells what came of it.
    ///
    /// # Errors
    /// As [`Session::alloc`]; [`crate::RefusalCode::OutOfRange`] for a [`crate::Numa::Node`] that has no memory, where the
    /// daemon knows which have.
    pub fn alloc_placed(
        &self,
        len: u64,
        access: AccessFlags,
        placement: Placement,
    ) -> Result<Mr, Error> {
        let Placement { huge, apart, numa } = placement;
        let near = numa.near();
        if !(huge || apart || near.is_some())
            && let Some(mr) = Mr::carve(self, len, access)?
        {
            return Ok(mr);
        }
        let is_named = matches!(numa, crate::Numa::Node(_));
        Mr::alloc(self, len, access, Kind { huge, near, is_named, ..Kind::default() })
    }

    /// As [`Session::alloc`], for memory that other sessions of this process, of other threads, register too: send them
    /// what [`Mr::share`] gives. It costs a file of its own, some tens of microseconds. Reads and writes of the region
    /// ([`Mr::read`], [`Mr::write`]) are made of whole words of 8 bytes, so that threads that do them at once see old and
    /// new words, and no half ones; who takes turns sees all.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub fn alloc_shared(&self, len: u64, access: AccessFlags) -> Result<Mr, Error> {
        Mr::alloc(self, len, access, Kind { shared: true, ..Kind::default() })
    }

    /// Registers memory once more that another session of this process has, or this one with other rights. The region
    /// has keys of its own, and is deregistered by itself; the memory keeps its content until the last of its regions
    /// goes. Its bytes count on the quota for each.
    ///
    /// # Errors
    /// [`crate::RefusalCode::NoSuchMr`] if the region that was shared is registered no more, is another node's, or another
    /// process's; [`crate::RefusalCode::Limit`] for a quota; [`crate::RefusalCode::Unsupported`] by an older node.
    pub fn attach(&self, memory: &SharedMemory, access: AccessFlags) -> Result<Mr, Error> {
        Mr::attach(self, memory, access)
    }

    /// Registers memory of this process's. The node copies to and from it by system calls, which
    /// cost about half a microsecond each: prefer [`Session::alloc`] where you can choose. Remote
    /// atomics are not possible on such memory.
    ///
    /// Where the system lets processes of one user not look into each other (Yama,
    /// `/proc/sys/kernel/yama/ptrace_scope` is 1), this makes an exception of a node of this
    /// process's user: `prctl(PR_SET_PTRACER)`, of which a process has one.
    ///
    /// # Safety
    /// `start .. start + len` must stay mapped, and nothing may hold a reference to it while the
    /// node or a peer may write it, until [`Mr::deregister`] has returned.
    ///
    /// # Errors
    /// [`crate::RefusalCode::Permission`] if the system does not let the node at this process's
    /// memory; the text says what to change.
    pub unsafe fn register(
        &self,
        start: *mut u8,
        len: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { Mr::register(self, start, len, access) }
    }

    /// Creates a virtual queue pair (KRCORE, Algorithm 1).
    ///
    /// # Errors
    /// [`Error::Refused`] if a quota is reached, or the class or a queue's length is not allowed.
    pub fn create_vqp(&self, options: VqpOptions) -> Result<Vqp, Error> {
        Vqp::create(self, options, None)
    }

    /// As [`Session::create_vqp`], with its completions in a CQ of this session's that VQPs share.
    ///
    /// # Errors
    /// As [`Session::create_vqp`]; [`Error::Invalid`] if the CQ is another session's.
    pub fn create_vqp_on(&self, options: VqpOptions, cq: &Cq) -> Result<Vqp, Error> {
        if !Rc::ptr_eq(&self.inner, &cq.0.session.inner) {
            return Err(Error::Invalid { what: "the CQ is of another session" });
        }
        Vqp::create(self, options, Some(cq.0.id))
    }

    /// As [`Vqp::info`] of each of several VQPs of this session, in their order, with one wait for the node for all: for as
    /// long as [`SessionOptions::patience`] says.
    ///
    /// # Errors
    /// Of each as [`Vqp::info`], [`Error::Refused`] of one that is gone, and [`Error::TimedOut`] of those that a node has not
    /// told of by then.
    pub fn infos<'a>(
        &self,
        vqps: impl IntoIterator<Item = &'a Vqp>,
    ) -> Vec<Result<VqpInfo, Error>> {
        // The caller's: it may ask the session itself.
        let vqps: Vec<_> = vqps.into_iter().map(Vqp::id).collect();
        let mut inner = self.inner.borrow_mut();
        let deadline = Instant::now().checked_add(inner.link.patience);
        let ask = |vqp| inner.ask_until(deadline, &Command::QueryVqp { vqp });
        let asked: Vec<_> = vqps.into_iter().map(ask).collect();
        let mut answer = |request| info(inner.outcome(request, Wait::until(deadline))?);
        asked.into_iter().map(|request| answer(request?)).collect()
    }

    /// Gets the metadata of many peers at once, ahead of connecting. Returns how many were found,
    /// and how many not.
    ///
    /// # Errors
    /// [`Error::Refused`] if too many look-ups wait.
    pub fn warm(&self, gids: &[Gid]) -> Result<(u32, u32), Error> {
        let (mut ready, mut failed) = (0, 0);
        for gids in gids.chunks(WARM_GIDS_MAX) {
            match self.inner.borrow_mut().call(&Command::Warm { gids })? {
                Outcome::Warmed { ready: more, failed: none } => {
                    ready += more;
                    failed += none;
                }
                _ => return Err(UNEXPECTED),
            }
        }
        Ok((ready, failed))
    }

    /// In a child of the process that opened it: has no part in the session's memory and socket any more, which `fork` gave
    /// to both, so that nothing the child writes anywhere harms the session. [`crate::Heirs::take`] does it. To be called by
    /// a child that takes none, before it runs what it does not trust; again changes nothing.
    ///
    /// Regions that stand in the session's arena ([`Session::alloc`]) are zeros in the child from then on, and [`Mr::read`]
    /// and [`Mr::write`] of them fail with [`Error::Forked`]. Memory in files of its own stays mapped in both.
    ///
    /// # Errors
    /// [`Error::Invalid`] in the process that opened the session; [`Error::System`].
    pub fn leave_to_parent(&self) -> Result<(), Error> {
        self.inner.leave()
    }

    /// The process that it belongs to.
    pub fn origin(&self) -> Origin {
        self.inner.borrow().origin()
    }

    /// Takes what the node told; whether there was something. Completions are kept for
    /// [`Vqp::poll_cq`].
    ///
    /// # Errors
    /// [`Error::NodeGone`] once all is taken that it told.
    pub fn poll(&self) -> Result<bool, Error> {
        self.inner.borrow_mut().poll()
    }

    /// Ends the session, and returns when the node has nothing left of it. What the session made
    /// must be dropped before, or fails from here on.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of the process that opened it. [`Error::Silent`] of a node that stands still, or
    /// of one of an older version that takes longer than [`SessionOptions::patience`]: the session ends all the same.
    pub fn close(self) -> Result<(), Error> {
        match self.close_start() {
            Ok(closing) => closing.wait_through(),
            Err(Error::NodeGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`Session::close`], and does not wait.
    ///
    /// # Errors
    /// [`Error::NodeGone`], and as [`Session::close`].
    pub fn close_start(&self) -> Result<Closing, Error> {
        let request = self.inner.borrow_mut().ask(&Command::Goodbye)?;
        Ok(Closing::begun(self, request))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("gid", &self.gid()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use elver_portal::Message::{Rejected, Wake};
    use elver_portal::Received;
    use elver_testkit::wait_for;
    use elver_verbs::QpState;

    use super::*;
    use crate::VqpOptions;
    use crate::silent::{self, Gives};

    /// The flag by which it asked to be woken was taken down before the message went: it heard of nothing then until it looked
    /// by itself. And what it was to be woken for counted as refused, though it did it: whoever gave it took back what it
    /// needs, or gave it again.
    #[test]
    fn what_a_node_could_not_be_woken_for_is_given_and_it_is_woken_later() {
        let sleeps: Gives = |session, _| {
            let mut wait = Wait::for_an_answer();
            while !session.inner.borrow_mut().link.rest(&mut wait).unwrap() {}
        };
        let arms: Gives = |session, _| assert!(session.arm().unwrap());
        let gives_and_wakes: [(Gives, Gives); 4] = [
            (silent::commands, silent::commands),
            (silent::sends, sleeps),
            (silent::receives, arms),
            (silent::sends, |session, _| {
                let owes = || session.inner.borrow().link.owes_waking();
                wait_for("a look to wake it", || {
                    session.poll().unwrap();
                    (!owes()).then_some(())
                });
            }),
        ];
        for (give, wakes) in gives_and_wakes {
            let (session, node, end) = silent::session();
            let vqp = silent::vqp(&session);
            assert!(end.sleep());
            let connected = silent::cut(&session);
            give(&session, &vqp);
            assert!(!session.arm().unwrap(), "it may be woken by nobody");
            session.socket.leave(&connected).unwrap();
            wakes(&session, &vqp);
            assert!(matches!(node.receive(true), Ok(Received::Message(Wake, None))));
        }
    }

    /// A look that came with a retry took what the node had said last, and told only that it is gone.
    #[test]
    fn why_the_node_ends_a_session_is_told_also_where_it_could_not_be_woken() {
        let (session, node, end) = silent::session();
        assert!(end.sleep());
        let connected = silent::cut(&session);
        session.inner.borrow_mut().tell_only(&Command::QueryVqp { vqp: 1 }).unwrap();
        session.socket.leave(&connected).unwrap();
        node.send(&Rejected { text: "enough".into() }, None).unwrap();
        drop((connected, node));
        let why = wait_for("the end", || session.poll().err());
        assert!(matches!(&why, Error::Rejected { text } if text == "enough"), "{why:?}");
    }

    /// Each question, and each answer, was waited for by itself: without an end, where the node stands still.
    #[test]
    fn a_node_that_hangs_is_asked_of_many_vqps_in_one_bound() {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let (session, _socket, _node) = silent::session_with(silent::impatient());
            let options = VqpOptions::default();
            // More than there is room for in the ring.
            let vqp = |id| Vqp::inherited(&session, id, QpState::Rts, &options, None);
            let vqps: Vec<Vqp> = (1..=80).map(vqp).collect();
            let infos = session.infos(&vqps);
            let timed_out = |info: &Result<_, _>| matches!(info, Err(Error::TimedOut));
            assert_eq!((infos.len(), infos.iter().all(timed_out)), (80, true), "{:?}", infos[0]);
            tell.send(()).unwrap();
        });
        // Much less than one bound each.
        told.recv_timeout(40 * silent::impatient().patience).unwrap();
    }
}
