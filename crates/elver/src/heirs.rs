//! Sessions that a process prepares for its children, which take them over after `fork` (Swift,
//! section 3.4).

mod taking;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use elver_portal::{Command, ConnectOptions, HeirsLayout, Record, VqpOptions, Welcome};
use elver_verbs::{AccessFlags, Gid};

use crate::fork::generation;
use crate::inner::{Inner, Late, Outcome, UNEXPECTED};
use crate::wait::{Silence, Wait};
use crate::{Destination, Error, Mr, Session, SessionOptions, Vqp};

/// Why a node that was not found by a path prepares nothing.
const NO_PATH: Error = Error::Invalid {
    what: "the node was not found by a socket in the file system, by which children could reach it; prepare sessions at \
           a daemon (Session::connect)",
};

/// Bytes of the memory region that each session has, if nothing else is said (Swift, section 4.1.3).
const MR_LEN: u64 = 32 << 10;

/// What each session of a set has beside its VQPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareOptions {
    /// Bytes of its memory region, at most [`elver_portal::ARENA_BYTES`]; 0 for none. A child may
    /// allocate more ([`Session::alloc`]).
    pub mr_len: u64,
    /// What that permits. With none of the rights of peers the session comes back as soon as its
    /// child has ended; else once what peers know of the region has run out, a second by default.
    pub access: AccessFlags,
    /// VQPs that it has beside those to the destinations, and which go nowhere until a child connects them. Where they
    /// go when the session is made anew, [`Heirs::assign`] says (Swift, section 4.1.3: unassigned QPs). A node of
    /// before minor version 5 has none.
    pub unassigned: u32,
    /// How those of them are connected that [`Heirs::assign`] names a destination for.
    pub connect_assigned: ConnectOptions,
    /// Whether a destination that cannot be connected to refuses the set. If not, sessions are there
    /// without it, as those are that are made anew while a peer is away ([`Heir::vqps`]).
    pub must_connect: bool,
}

impl Default for PrepareOptions {
    fn default() -> PrepareOptions {
        let access = AccessFlags::LOCAL_WRITE;
        let connect_assigned = ConnectOptions::default();
        PrepareOptions {
            mr_len: MR_LEN,
            access,
            unassigned: 0,
            connect_assigned,
            must_connect: true,
        }
    }
}

/// Sessions that wait for this process's children. Dropped, those go that no child has; children keep
/// theirs until they end. The set ends so with this process, too.
///
/// A process has two mappings for all of them, and no other for each, so that a fork takes no longer for them: their records,
/// which nobody but the node writes, and the sessions, to which neither the process nor a child has access. A child gets
/// it to the one that it takes, and has nothing of the others from then on.
pub struct Heirs {
    parent: Session,
    set: u32,
    all: elver_portal::Heirs,
    destinations: Vec<Destination>,
    options: PrepareOptions,
    /// Where the node listens.
    path: PathBuf,
    welcome: Welcome,
    session: SessionOptions,
    generation: u32,
    /// The one that this process took; a child's own.
    taken: Cell<Option<u32>>,
    /// Where sessions have those of their VQPs that were prepared without a destination, by session and place.
    assigned: RefCell<BTreeMap<(u32, u32), Gid>>,
}

/// How a session of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeirState {
    /// The node makes it: what its last owner left is still going.
    Making,
    /// A child may take it.
    Free,
    /// A child has it.
    Taken {
        /// Its number, as the node sees it: in a PID namespace of its own it has another one there.
        pid: i32,
    },
}

/// What a child has taken over: a session like any other from here on.
#[derive(Debug)]
pub struct Heir {
    /// Which one of the set.
    pub number: u32,
    /// The session.
    pub session: Session,
    /// Its VQPs, as the set's destinations. One whose peer was away when the session was made anew is
    /// not connected: [`Vqp::failure`] says why, and it may be connected as any.
    pub vqps: Vec<Vqp>,
    /// Those that were prepared without a destination. One that was assigned to one is connected
    /// ([`Vqp::is_connected`]), unless the session was made before, or its peer was away.
    pub unassigned: Vec<Vqp>,
    /// Its memory region, zeroed; none if the set's have none.
    pub mr: Option<Mr>,
}

impl Session {
    /// Prepares `count` sessions for children of this process: each with a VQP to each destination,
    /// connected, and with a memory region. Returns when all are there.
    ///
    /// They count as sessions of this process's user, on each quota. When a child ends, at any
    /// instruction, the node makes its session anew: what was in flight is flushed, its keys, messages
    /// and completions are gone, its memory is zero, and the next child may take it.
    ///
    /// # Errors
    /// [`Error::Refused`] if a quota is reached, a destination cannot be connected to, or the node does
    /// not see this process; [`crate::RefusalCode::Unsupported`] by an older node. [`Error::Invalid`] if
    /// the node has no socket in the file system, as one in this process has none: children could not
    /// reach it.
    pub fn prepare(
        &self,
        count: u32,
        destinations: &[Destination],
        options: PrepareOptions,
    ) -> Result<Heirs, Error> {
        self.prepare_start(count, destinations, options)?.finish()
    }

    /// As [`Session::prepare`], and does not wait for the sessions to be there.
    ///
    /// # Errors
    /// As [`Session::prepare`]; what making them comes to, [`Preparing`] tells.
    pub fn prepare_start(
        &self,
        count: u32,
        destinations: &[Destination],
        options: PrepareOptions,
    ) -> Result<Preparing, Error> {
        let path = self.inner.borrow().link.path.clone().ok_or(NO_PATH)?;
        let vqps = u32::try_from(destinations.len()).unwrap_or(u32::MAX);
        let PrepareOptions { mr_len, access, unassigned, .. } = options;
        let vqps = vqps.saturating_add(unassigned);
        let mut inner = self.inner.borrow_mut();
        inner.link.expect_children()?;
        let command = Command::Prepare { heirs: count, vqps, mr_len, access };
        let request = inner.ask(&command)?;
        let Outcome::Prepared { set, file_bytes } =
            inner.outcome(request, Wait::for_an_answer())?
        else {
            return Err(UNEXPECTED);
        };
        let file = inner.link.file(request);
        inner.rouse();
        let (welcome, session) = (inner.link.welcome, inner.link.options());
        drop(inner);
        let layout = HeirsLayout { heirs: count, vqps };
        let is_whole = file_bytes == layout.bytes();
        let mapped = file.and_then(|file| if is_whole { Ok(file) } else { Err(UNEXPECTED) });
        let mapped = mapped.and_then(|file| {
            elver_portal::Heirs::map(file, layout)
                .map_err(|reason| Error::System { call: "mapping the sessions", reason })
        });
        let all = match mapped {
            Ok(all) => all,
            Err(error) => {
                self.inner.borrow_mut().let_go(Late::Set(set));
                return Err(error);
            }
        };
        let heirs = Heirs {
            parent: self.clone(),
            set,
            all,
            destinations: destinations.to_vec(),
            options,
            path,
            welcome: Welcome { layout: HeirsLayout::RINGS, ..welcome },
            session,
            generation: generation(),
            taken: Cell::new(None),
            assigned: RefCell::default(),
        };
        // If one of these fails the set is dropped, and ends.
        let mut inner = self.inner.borrow_mut();
        let request = heirs.name_all(&mut inner);
        drop(inner);
        Ok(Preparing { request: request?, silence: Cell::default(), heirs: Some(heirs) })
    }
}

/// Sessions that are being made for children. Dropped, they go.
#[derive(Debug)]
pub struct Preparing {
    request: u32,
    /// Of all waits for it together.
    silence: Cell<Silence>,
    /// None once they are there.
    heirs: Option<Heirs>,
}

impl Preparing {
    /// Whether all are there.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn poll(&self) -> Result<bool, Error> {
        let Some(heirs) = &self.heirs else { return Ok(true) };
        let mut inner = heirs.parent.inner.borrow_mut();
        let ended = inner.poll_for(|inner| inner.ended(self.request))?;
        ended.transpose().map(|outcome| outcome.is_some())
    }

    /// Waits until all are there, at most so long. What ends the wait before that does not end the preparing: wait again, or
    /// drop it.
    ///
    /// # Errors
    /// As [`Session::prepare`] and [`Session::wait_ready`].
    pub fn wait(&self, at_most: Option<Duration>) -> Result<(), Error> {
        let Some(heirs) = &self.heirs else { return Ok(()) };
        let mut wait = Wait::endable(at_most).of_an_answer(self.silence.get());
        let mut inner = heirs.parent.inner.borrow_mut();
        let ended = inner.wait_on(&mut wait, |inner| inner.ended(self.request));
        self.silence.set(wait.silence_after(&ended));
        ended?.map(drop)
    }

    /// Waits until all are there.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn finish(mut self) -> Result<Heirs, Error> {
        let heirs = self.heirs.take().ok_or(UNEXPECTED)?;
        heirs.parent.inner.borrow_mut().outcome(self.request, Wait::for_an_answer())?;
        Ok(heirs)
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        if let Some(heirs) = &self.heirs {
            heirs.parent.inner.borrow_mut().abandon(self.request);
        }
    }
}

impl Heirs {
    /// Says what is to be made; the request whose answer tells that it is.
    fn name_all(&self, inner: &mut Inner) -> Result<u32, Error> {
        let set = self.set;
        for &Destination { gid, port, connect, options } in &self.destinations {
            inner.call(&Command::PrepareVqp { set, gid, port, connect, options })?;
        }
        let PrepareOptions { must_connect, unassigned, .. } = self.options;
        for _ in 0..unassigned {
            let options = VqpOptions::default();
            inner.call(&Command::PrepareUnassigned { set, options })?;
        }
        inner.ask(&Command::Seal { set, addr: self.all.addr(), must_connect })
    }

    /// How many sessions there are.
    pub fn len(&self) -> u32 {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How a session is; in a child too. A look at memory, which costs nothing. None if there is none of
    /// this number.
    pub fn state(&self, heir: u32) -> Option<HeirState> {
        (heir < self.len()).then(|| match self.all.record(heir) {
            Record::Making => HeirState::Making,
            Record::Free => HeirState::Free,
            Record::Taken { pid } => HeirState::Taken { pid },
        })
    }

    /// Times that a child has given a session back; 0 if there is none of this number.
    pub fn returned(&self, heir: u32) -> u64 {
        if heir < self.len() && self.all.record(heir) != Record::Making {
            self.all.times(heir)
        } else {
            0
        }
    }

    /// The first session that a child may take now.
    pub fn first_free(&self) -> Option<u32> {
        (0..self.len()).find(|heir| self.all.record(*heir) == Record::Free)
    }

    /// Whether a session that a child may take has one of its VQPs connected, by its place: those to the destinations come
    /// first, then those that were prepared without one. A look at memory, which costs nothing. False for a session or a
    /// VQP that there is not, and for one that is being made.
    pub fn is_connected(&self, heir: u32, at: u32) -> bool {
        let vqps = (self.destinations.len() as u32).saturating_add(self.options.unassigned);
        self.state(heir) == Some(HeirState::Free) && at < vqps && self.all.vqp(heir, at).1.is_some()
    }

    /// Says where a session has one of its VQPs that were prepared without a destination, by its place among those: so it
    /// is whenever that session is made anew, until it cannot be connected there. With none it goes nowhere again. What
    /// a child has now is the child's to connect.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such session or VQP, or in a child; [`Error::NodeGone`].
    pub fn assign(&self, heir: u32, at: u32, to: Option<Gid>) -> Result<(), Error> {
        if heir >= self.len() || at >= self.options.unassigned || generation() != self.generation {
            let what = "a session or a VQP that the set has not, or a set of another process's";
            return Err(Error::Invalid { what });
        }
        let mut assigned = self.assigned.borrow_mut();
        match to {
            Some(to) => assigned.insert((heir, at), to),
            None => assigned.remove(&(heir, at)),
        };
        let Destination { gid, port, .. } = Destination::new(to.unwrap_or_default());
        let connect = self.options.connect_assigned;
        let (set, at) = (self.set, self.destinations.len() as u32 + at);
        // The node refuses nothing that is as it should be, and nobody waits for the answer.
        let command = Command::Assign { set, heir, at, gid, port, connect };
        self.parent.inner.borrow_mut().tell_only(&command)
    }
}

impl fmt::Debug for Heirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heirs").field("set", &self.set).field("count", &self.len()).finish()
    }
}

impl Drop for Heirs {
    fn drop(&mut self) {
        self.parent.inner.borrow_mut().let_go(Late::Set(self.set));
    }
}
