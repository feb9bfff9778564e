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
pub(super) mod preparing;
mod taking;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use elver_core::{ClientId, Core};
use elver_portal::{HeirsLayout, NodeEnd, NodeRecords, Via};
use elver_soft::SoftDevice;
use elver_verbs::{AccessFlags, Time};
use rustc_hash::FxHashMap;
use rustix::process::Pid;

use self::leaving::Leaving;
use self::plan::{Assignments, Planned};
use super::account::{Account, Customer};
use super::orders::Place;
use super::quota::Usage;
use super::room::Backing;
use super::session::Open;
use super::sessions::Sessions;

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
    /// The request that prepares it, until its file is there.
    preparing: Option<u32>,
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

    /// A session says goodbye: those of its sets end that are not there, or not sealed; the requests by which they were to be.
    pub(super) fn part(
        &mut self,
        token: u64,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) -> Vec<u32> {
        let waits = |set: &Set| set.preparing.or(set.sealing).is_some();
        let own = |(number, set): (&u32, &Set)| {
            (set.parent.token == token && waits(set)).then_some(*number)
        };
        let own: Vec<u32> = self.all.iter().filter_map(own).collect();
        own.into_iter().filter_map(|set| self.dissolve(set, sessions, core, now)).collect()
    }

    /// A set ends. What children have they keep. The request that waited for it is returned, to be answered.
    fn dissolve(
        &mut self,
        number: u32,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) -> Option<u32> {
        let set = self.all.remove(&number)?;
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
        set.preparing.or(set.sealing)
    }
}
