//! Sessions that are made ahead, for children of a process to take over (Swift, section 3.4).
//!
//! A set belongs to the session of the process that prepared it, and is on its account. Each of its
//! sessions, an *heir*, has a client of the core with connected VQPs before anybody has it. A child
//! takes one over by a connection of its own: by that the system says who it is. From then on it is
//! a session like any other, and ends like any other; but when nothing of it is left an heir is made
//! in its place: a new client, new keys, rings and memory that are zero again.

mod files;
mod leaving;
mod making;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use elver_core::{ClientId, Core};
use elver_portal::{
    ARENA_BYTES, Answer, Command, HeirsLayout, NodeEnd, NodeRecords, RefusalCode,
    VQPS_PER_HEIR_MAX, Via, VqpOptions,
};
use elver_soft::SoftDevice;
use elver_verbs::{AccessFlags, Gid, Time};
use rustc_hash::FxHashMap;
use rustix::process::Pid;

use self::leaving::Leaving;
use self::plan::{Assignments, Planned, Target};
use super::account::{Account, Customer};
use super::maker::Maker;
use super::orders::{Place, SetFile};
use super::quota::{Quotas, Usage};
use super::room::Backing;
use super::session::Open;
use super::sessions::Sessions;
use super::translate::Refused;

/// Heirs of a set.
const HEIRS_MAX: u32 = 65_536;
/// Sets of a session: each has a descriptor of the node's.
const SETS_MAX: usize = 64;

/// All sets.
#[derive(Default)]
pub(super) struct Sets {
    all: FxHashMap<u32, Set>,
    /// Clients of heirs that no child has.
    clients: FxHashMap<ClientId, (u32, u32)>,
    /// Clients of heirs that have gone, until their memory was given back.
    past: FxHashMap<ClientId, (u32, u32)>,
    /// Heirs that are to be made, in turn.
    vacant: VecDeque<(u32, u32)>,
    /// Those that could not be made, by when that is tried again.
    put_off: BTreeSet<(Time, u32, u32)>,
    /// Heirs whose session has ended, and which are not gone yet.
    leaving: Vec<Leaving>,
    /// Files of sets that have ended, of which children may still have sessions.
    outliving: Vec<Outliving>,
    /// Places of sessions that are made in them no more.
    places: Vec<Places>,
    last: u32,
    /// Heirs that were made, taken and given back; children that were refused.
    pub(super) counts: Counts,
}

/// What has happened to heirs. Each only grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) prepared: u64,
    pub(super) inherited: u64,
    pub(super) returned: u64,
    pub(super) refused: u64,
}

/// The process that a set belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    /// Token of its session.
    pub(super) token: u64,
    pub(super) pid: Option<Pid>,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) customer: Customer,
}

/// Who wants an heir: as the system shows him.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
    /// The process that made him.
    pub(super) parent: Pid,
    pub(super) uid: u32,
    pub(super) customer: Customer,
}

struct Set {
    parent: Parent,
    /// Once it was made.
    files: Option<Files>,
    layout: HeirsLayout,
    vqps: u32,
    mr: (u64, AccessFlags),
    /// What each heir has of its user's quota.
    each: Usage,
    /// Where the parent and its children have the first session mapped.
    addr: u64,
    plan: Vec<Planned>,
    /// The request of its seal, until all heirs are there.
    sealing: Option<u32>,
    sealed: bool,
    /// Whether it fails if a VQP cannot be connected when it is sealed.
    must_connect: bool,
    /// None before it is sealed.
    heirs: Vec<Heir>,
}

/// Places that go, and what of them counts until they have.
struct Places {
    account: Account,
    usage: Usage,
    all: Vec<Place>,
}

/// The file of a set, and the records in it.
struct Files {
    file: Backing,
    records: Arc<NodeRecords>,
}

/// The file of a set that has ended.
struct Outliving {
    account: Account,
    file: Backing,
    bytes: u64,
}

struct Heir {
    /// Its mappings, once it was made. Not while they are made empty.
    place: Option<Place>,
    /// The rings in them, which are empty, until it is made.
    rings: Option<NodeEnd>,
    /// A thread makes them, or makes them empty.
    is_asked: bool,
    /// Its place counts, though it has no session for which that counts.
    is_kept: bool,
    /// The client that had them last, of which something may be left.
    last: Option<ClientId>,
    state: State,
    /// Times that a child gave it back.
    times: u64,
    /// Where those of its VQPs are connected that its set names no destination for.
    assigned: Assignments,
    /// Its part of the quota is taken, and it has nothing that counts.
    is_paid: bool,
    /// Times in turn that it could not be made.
    failures: u32,
}

impl Heir {
    /// Whether it has a place, and no session counts for that.
    fn has_place_alone(&self) -> bool {
        self.place.is_some() && matches!(self.state, State::Vacant)
    }

    /// Of a set for which the quota was taken.
    fn paid() -> Heir {
        Heir {
            place: None,
            rings: None,
            is_asked: false,
            is_kept: false,
            last: None,
            state: State::Vacant,
            times: 0,
            assigned: Assignments::default(),
            is_paid: true,
            failures: 0,
        }
    }
}

#[derive(Default)]
enum State {
    /// To be made, or what a child left is still going.
    #[default]
    Vacant,
    /// It waits for so many connects.
    Making {
        ready: Box<Ready>,
        pending: u32,
    },
    Free(Box<Ready>),
    /// The process of this number has it.
    Taken(Pid),
}

/// What an heir is made of.
struct Ready {
    open: Open,
    keys: (u32, u32),
    vqps: Vec<(u32, Option<Via>)>,
}

/// A command about sets.
#[derive(Clone, Copy, Debug)]
pub(super) enum SetOrder {
    Prepare { heirs: u32, vqps: u32, mr: (u64, AccessFlags) },
    Vqp { set: u32, to: Option<Target>, options: VqpOptions },
    Assign { set: u32, heir: u32, at: u32, to: Option<Target> },
    Seal { set: u32, addr: u64, must_connect: bool },
    Disown { set: u32 },
}

impl SetOrder {
    /// The command as an order, if it is one.
    pub(super) fn of(command: &Command<'_>) -> Option<SetOrder> {
        Some(match *command {
            Command::Prepare { heirs, vqps, mr_len, access } => {
                SetOrder::Prepare { heirs, vqps, mr: (mr_len, access) }
            }
            Command::PrepareVqp { set, gid, port, connect, options } => {
                SetOrder::Vqp { set, to: Some(Target { gid, port, connect }), options }
            }
            Command::PrepareUnassigned { set, options } => SetOrder::Vqp { set, to: None, options },
            Command::Assign { set, heir, at, gid, port, connect } => {
                let to = (gid != Gid::default()).then_some(Target { gid, port, connect });
                SetOrder::Assign { set, heir, at, to }
            }
            Command::Seal { set, addr, must_connect } => SetOrder::Seal { set, addr, must_connect },
            Command::Disown { set } => SetOrder::Disown { set },
            _ => return None,
        })
    }
}

/// What an order comes to.
pub(super) enum Ordered {
    Answer(Answer<'static>),
    /// The answer comes when the file, or the heirs, are there.
    Later,
}

impl Sets {
    /// Whether something is to be made, or waits for what a child left to go.
    pub(super) fn is_busy(&self) -> bool {
        !self.places.is_empty()
            || !self.vacant.is_empty()
            || self.leaving.iter().any(|one| one.look_at().is_none())
    }

    /// When something is to be tried again, if it is.
    pub(super) fn due(&self) -> Option<Time> {
        let put_off = self.put_off.first().map(|(due, ..)| *due);
        self.leaving.iter().filter_map(Leaving::look_at).chain(put_off).min()
    }

    /// Heirs that a child may take now.
    pub(super) fn free(&self) -> u64 {
        let heirs = self.all.values().flat_map(|set| &set.heirs);
        heirs.filter(|heir| matches!(heir.state, State::Free(_))).count() as u64
    }

    /// Does what a process asks about its sets.
    pub(super) fn order(
        &mut self,
        order: SetOrder,
        parent: Parent,
        request: u32,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) -> Result<Ordered, Refused> {
        match order {
            SetOrder::Prepare { heirs, vqps, mr } => {
                let quotas = &mut sessions.quotas;
                self.begin((parent, request), (heirs, vqps, mr), quotas, maker)
            }
            SetOrder::Vqp { set, to, options } => {
                let class = sessions.quotas.class_of(
                    parent.customer,
                    (parent.uid, parent.gid),
                    options.class,
                )?;
                let set = self.own(set, parent.token)?;
                if set.sealed || set.plan.len() as u32 >= set.vqps {
                    let text = format!("the set is sealed, or has its {} VQPs already", set.vqps);
                    return Err(Refused::new(RefusalCode::State, text));
                }
                set.plan.push(Planned { to, options, class });
                Ok(Ordered::Answer(Answer::Done))
            }
            SetOrder::Assign { set: number, heir, at, to } => {
                let set = self.own(number, parent.token)?;
                let is_open = set.plan.get(at as usize).is_some_and(|vqp| vqp.to.is_none());
                let heir = set.heirs.get_mut(heir as usize).filter(|_| is_open);
                let heir = heir.ok_or_else(|| {
                    let text = format!(
                        "set {number} has no such session yet, or VQP {at} of its {} was prepared with a destination",
                        set.vqps
                    );
                    Refused::new(RefusalCode::State, text)
                })?;
                heir.assigned.set(at, to);
                Ok(Ordered::Answer(Answer::Done))
            }
            SetOrder::Seal { set: number, addr, must_connect } => {
                let set = self.own(number, parent.token)?;
                let is_there = set.files.is_some();
                if set.sealed || !is_there || set.plan.len() as u32 != set.vqps {
                    let text = format!(
                        "the set is sealed already, or not there, or {} of its {} VQPs were named",
                        set.plan.len(),
                        set.vqps
                    );
                    return Err(Refused::new(RefusalCode::State, text));
                }
                (set.sealed, set.sealing, set.addr) = (true, Some(request), addr);
                set.must_connect = must_connect;
                set.heirs = (0..set.layout.heirs).map(|_| Heir::paid()).collect();
                let all = 0..set.layout.heirs;
                self.vacant.extend(all.map(|heir| (number, heir)));
                Ok(Ordered::Later)
            }
            SetOrder::Disown { set } => {
                self.own(set, parent.token)?;
                self.dissolve(set, sessions, core, now);
                Ok(Ordered::Answer(Answer::Done))
            }
        }
    }

    /// Takes what the set needs off its user's quota, and has its file made.
    fn begin(
        &mut self,
        (parent, request): (Parent, u32),
        (heirs, vqps, mr): (u32, u32, (u64, AccessFlags)),
        quotas: &mut Quotas,
        maker: &Maker,
    ) -> Result<Ordered, Refused> {
        if heirs == 0 || heirs > HEIRS_MAX || vqps > VQPS_PER_HEIR_MAX || mr.0 > ARENA_BYTES {
            let text = format!(
                "{heirs} sessions with {vqps} VQPs and {} bytes each; there are 1 to {HEIRS_MAX}, with at \
                 most {VQPS_PER_HEIR_MAX} VQPs and {ARENA_BYTES} bytes: a child allocates more itself",
                mr.0
            );
            return Err(Refused::new(RefusalCode::OutOfRange, text));
        }
        if parent.pid.is_none() {
            let text = "the process is none that the node can see, nor would its children be: it runs \
                        in another PID namespace";
            return Err(Refused::new(RefusalCode::Permission, text));
        }
        let own = self.all.values().filter(|set| set.parent.token == parent.token);
        if own.count() >= SETS_MAX {
            let text = format!(
                "the session has {SETS_MAX} sets already; end some, or prepare more sessions in each"
            );
            return Err(Refused::new(RefusalCode::Limit, text));
        }
        let layout = HeirsLayout { heirs, vqps };
        let (account, bytes) = (parent.customer.account, layout.bytes());
        let held = (!quotas.is_exempt(account)).then(|| quotas.of(account).bytes);
        let each = Usage::heir(vqps, mr.0 > 0);
        let all = each.times(heirs).plus(Usage::file(bytes));
        quotas.take(account, all)?;
        while self.all.contains_key(&self.last) {
            self.last = self.last.wrapping_add(1);
        }
        let number = self.last;
        let token = parent.token;
        let file = SetFile { set: number, token, request, account, bytes, held };
        if let Err(error) = maker.make_file(file) {
            quotas.give_back(account, all);
            return Err(error.into());
        }
        self.last = self.last.wrapping_add(1);
        let set = Set {
            parent,
            files: None,
            layout,
            vqps,
            mr,
            each,
            addr: 0,
            plan: Vec::new(),
            sealing: None,
            sealed: false,
            must_connect: true,
            heirs: Vec::new(),
        };
        self.all.insert(number, set);
        Ok(Ordered::Later)
    }

    /// A set of the process that asks.
    fn own(&mut self, set: u32, token: u64) -> Result<&mut Set, Refused> {
        let own = self.all.get_mut(&set).filter(|set| set.parent.token == token);
        own.ok_or_else(|| {
            let text = format!("this session has prepared no set of number {set}");
            Refused::new(RefusalCode::State, text)
        })
    }

    /// Gives a child the heir that it wants. Its session is begun with what this returns.
    pub(super) fn inherit(
        &mut self,
        number: u32,
        wanted: Option<u32>,
        child: Option<Child>,
    ) -> Result<(Child, Open), Refused> {
        let unseen = || {
            let text = "a session goes to a child of the process that prepared it, and the node does not see whose \
                        child this one is: it runs in another PID namespace, or that process has ended";
            Refused::new(RefusalCode::Permission, text)
        };
        let given = child
            .ok_or_else(unseen)
            .and_then(|child| Ok((child, self.give(number, wanted, child)?)));
        match given {
            Ok(_) => self.counts.inherited += 1,
            Err(_) => self.counts.refused += 1,
        }
        given
    }

    fn give(&mut self, number: u32, wanted: Option<u32>, child: Child) -> Result<Open, Refused> {
        let refuse = |text: String| Refused::new(RefusalCode::Permission, text);
        let Child { pid, parent, uid, customer } = child;
        let unknown = || {
            refuse(format!(
                "no set of number {number} is process {parent}'s, whose child {pid} is; a session goes to \
                 a child of the process that prepared it, not to a child's child, and not once that \
                 process has ended or the node was started anew"
            ))
        };
        let set = self.all.get_mut(&number).ok_or_else(unknown)?;
        if Some(parent) != set.parent.pid {
            return Err(unknown());
        }
        if uid != set.parent.uid || customer != set.parent.customer {
            return Err(refuse(format!(
                "process {pid} is user {uid}'s, and the session was prepared by one of user {}'s; take it \
                 over before changing the user, the namespaces or the capabilities",
                set.parent.uid
            )));
        }
        let has = |heir: &Heir| matches!(heir.state, State::Taken(by) if by == pid);
        if let Some(at) = set.heirs.iter().position(has) {
            return Err(refuse(format!("process {pid} has session {at} of the set already")));
        }
        let at = match wanted {
            Some(at) => set.heirs.get(at as usize).map(|_| at),
            None => {
                let is_free = |heir: &Heir| matches!(heir.state, State::Free(_));
                set.heirs.iter().position(is_free).map(|at| at as u32)
            }
        };
        let none = |text: String| Refused::new(RefusalCode::Busy, text);
        let at = at.ok_or_else(|| match wanted {
            Some(at) => none(format!("there is no session {at}: the set has {}", set.layout.heirs)),
            None => none(format!(
                "all {} sessions of the set are taken, or being made",
                set.layout.heirs
            )),
        })?;
        let heir = &mut set.heirs[at as usize];
        match std::mem::take(&mut heir.state) {
            State::Free(ready) => {
                heir.state = State::Taken(pid);
                self.clients.remove(&ready.open.client);
                let mut open = ready.open;
                open.heir = Some((number, at));
                Ok(open)
            }
            other => {
                heir.state = other;
                Err(none(format!("session {at} of the set is taken, or being made")))
            }
        }
    }

    /// A child's session has begun: its record says so.
    pub(super) fn begun(&mut self, (number, at): (u32, u32), pid: Pid) {
        let heir = self.all.get_mut(&number).and_then(|set| set.heirs.get_mut(at as usize));
        if let Some(place) = heir.and_then(|heir| heir.place.as_ref()) {
            place.heir.taken(pid.as_raw_pid());
        }
    }

    /// A session has ended, perhaps before its process. If it was an heir, another is made when nothing is left of it; if
    /// sets were its own, they end.
    pub(super) fn ended(
        &mut self,
        token: u64,
        heir: Option<((u32, u32), ClientId, Option<OwnedFd>)>,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) {
        if let Some((place, client, process)) = heir
            && let Some(set) = self.all.get(&place.0)
        {
            let account = set.parent.customer.account;
            if process.is_some() {
                // While it is waited for it counts: the node has a descriptor of it.
                sessions.quotas.count(account, Usage::DESCRIPTOR);
            }
            self.past.insert(client, place);
            self.leaving.push(Leaving::new(place, client, (account, process), now));
        }
        let own: Vec<u32> =
            self.all.iter().filter(|(_, set)| set.parent.token == token).map(|(n, _)| *n).collect();
        for set in own {
            self.dissolve(set, sessions, core, now);
        }
    }

    /// The memory of an ended session is given back; what of it counts on, for its place is still there.
    pub(super) fn keep_place(&mut self, client: ClientId) -> Usage {
        let Some((number, at)) = self.past.remove(&client) else { return Usage::NONE };
        let heir = self.all.get_mut(&number).and_then(|set| set.heirs.get_mut(at as usize));
        match heir {
            Some(heir) if heir.place.is_some() && !heir.is_paid => {
                heir.is_kept = true;
                Usage::PLACE
            }
            _ => Usage::NONE,
        }
    }

    /// A set ends. What children have they keep.
    fn dissolve(
        &mut self,
        number: u32,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) {
        let Some(set) = self.all.remove(&number) else { return };
        self.vacant.retain(|(of, _)| *of != number);
        self.put_off.retain(|(_, of, _)| *of != number);
        let account = set.parent.customer.account;
        self.past.retain(|_, (of, _)| *of != number);
        // Nothing is made in their places, so that nobody need wait for who had them.
        let left = self.leaving.extract_if(.., |one| one.place().0 == number);
        let (mut gone, mut waited) = (0, 0);
        for one in left {
            gone += 1;
            waited += u32::from(one.look_at().is_some());
        }
        let count =
            |which: fn(&Heir) -> bool| set.heirs.iter().filter(|heir| which(heir)).count() as u32;
        let paid = if set.sealed { count(|heir| heir.is_paid) } else { set.layout.heirs };
        // What is mapped, or is being mapped, counts until it has gone; what a session has mapped counts with that.
        let mapped = Usage::PLACE.times(gone + count(Heir::has_place_alone));
        let asked = Usage::PLACE.times(count(|heir| heir.is_asked));
        sessions.quotas.count(account, mapped.plus(asked));
        let kept = Usage::PLACE.times(count(|heir| heir.is_kept));
        let counted = set.each.times(paid).plus(kept).plus(Usage::DESCRIPTOR.times(waited));
        sessions.quotas.give_back(account, counted);
        if let Some(Files { file, .. }) = set.files {
            let bytes = set.layout.bytes();
            self.outliving.push(Outliving { account, file, bytes });
        }
        let mut places = Vec::new();
        for heir in set.heirs {
            if let Some(place) = &heir.place
                && !matches!(heir.state, State::Taken(_))
            {
                place.heir.gone();
            }
            places.extend(heir.place);
            if let State::Making { ready, .. } | State::Free(ready) = heir.state {
                self.clients.remove(&ready.open.client);
                let client = ready.open.client;
                sessions.retire(account, ready.open);
                core.client_close(client, now);
            }
        }
        self.places.push(Places { account, usage: mapped, all: places });
    }
}
