//! The direct way: processes that read and write memory of other processes of their user themselves.
//!
//! Who may is said once, when a region's key is first used over a VQP that is connected to this node: a process of the
//! same user, in the same namespaces and with the same capabilities, as the one that has the region, for a region
//! whose memory is a file that the node made for it. It gets that file, to be read only unless the region may be
//! written, and a door of its gate ([`elver_portal::ClientGate`]). What it does there the node does not see.
//!
//! # Taking back
//! A region's doors are shut when its deregistration begins, and when its session ends; a session's, when that ends.
//! Who is inside then is waited for until his epoch has moved or his process is no more, and only then the
//! deregistration is answered, and the memory given back. A process that stands still inside is waited for as long as
//! the node's patience. Then its session ends, and the deregistration is refused: it stands all the same, but for that
//! one access.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use elver_core::{ClientId, Core, OpenRegion, VqpId};
use elver_portal::{
    Answer, GateCounts, Message, Reach, RefusalCode, Socket, Space, VqpState, memfd,
};
use elver_soft::SoftDevice;
use elver_verbs::{AccessFlags, Time};
use rustc_hash::FxHashMap;

use super::gate::{Access, Gate, GateEnd};
use super::room::Backing;
use super::session::Session;
use super::sessions::Sessions;
use super::translate::Refused;
use crate::config::DirectConfig;

#[cfg(test)]
mod tests;

/// Time between two looks at those who are waited for, and the same where there are more than a few.
const LOOK_NS: u64 = 500_000;
const LOOK_NS_MANY: u64 = 5_000_000;
const FEW: usize = 64;
/// Of those whose sessions have ended so many are waited for: others could have one after the other end so, each with
/// descriptors of the node's.
const LINGERING_MAX: usize = 64;

/// Who reaches which regions, and who is waited for.
pub(super) struct Directs {
    is_on: bool,
    patience_ns: u64,
    /// Of the door that was opened last.
    generation: u64,
    /// Doors that are open, by the keys of their regions.
    doors: FxHashMap<u32, Vec<Door>>,
    /// Of a goodbye one for each deregistration that it goes on with.
    waits: FxHashMap<Whose, Vec<Wait>>,
    /// Of sessions that have ended, those whose processes were inside then, oldest first.
    lingering: VecDeque<Lingering>,
    settled_at: Time,
    /// What sessions did that have ended.
    counts: GateCounts,
}

/// A door that is open, or through which somebody may still be inside whose session has ended.
struct Door {
    end: Arc<GateEnd>,
    door: u32,
    generation: u64,
}

/// A session's end did not end the access that its process was in.
struct Lingering {
    accesses: Vec<Access>,
    end: Arc<GateEnd>,
    /// The keys of the regions that were open to it.
    lkeys: Vec<u32>,
    since: Time,
}

/// Something that waits for accesses to end.
struct Wait {
    accesses: Vec<Access>,
    since: Time,
    /// Its answer is due but for these.
    is_due: bool,
    /// The node's patience was over.
    is_late: bool,
}

impl Wait {
    fn new(accesses: Vec<Access>, since: Time) -> Wait {
        Wait { accesses, since, is_due: false, is_late: false }
    }
}

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// The deregistration that a session asked for with a request.
    Region {
        /// The session's token.
        token: u64,
        request: u32,
    },
    /// A client's goodbye.
    Goodbye(ClientId),
}

/// What has become of waits.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Deregistrations to be answered: of which session, which request, and whether nobody was left inside.
    pub(super) regions: Vec<(u64, u32, bool)>,
    /// Sessions to be ended, whose processes stand still inside.
    pub(super) stuck: Vec<u64>,
}

impl Directs {
    pub(super) fn new(config: &DirectConfig) -> Directs {
        Directs {
            is_on: config.enabled,
            patience_ns: config.patience_ms.saturating_mul(1_000_000),
            generation: 0,
            doors: FxHashMap::default(),
            waits: FxHashMap::default(),
            lingering: VecDeque::new(),
            settled_at: Time::ZERO,
            counts: GateCounts::default(),
        }
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waits.is_empty() && self.lingering.is_empty()
    }

    /// Lets a session reach a region: sends the file of its gate, if it has none yet, and the region's.
    pub(super) fn reach(
        &mut self,
        (slot, request): (u32, u32),
        (vqp, rkey): (u32, u32),
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) -> Result<Answer<'static>, Refused> {
        if !self.is_on {
            let text = "the node lets no process reach memory of others itself: `direct.enabled` \
                        of elverd is false";
            return Err(Refused::new(RefusalCode::Unsupported, text));
        }
        let client = sessions.open(slot).ok_or_else(ended)?.client;
        let info = core.vqp_info(client, VqpId(vqp))?;
        if info.state != VqpState::Connected || info.peer.is_none_or(|(gid, _)| gid != core.gid()) {
            let text = format!("VQP {vqp:#x} is not connected to this node");
            return Err(Refused::new(RefusalCode::State, text));
        }
        // Whose it is, and why he does not get it, is nothing to tell.
        let no_such = || {
            let text = format!("no region of rkey {rkey:#x} can be reached but through the node");
            Refused::new(RefusalCode::NoSuchMr, text)
        };
        let region = core.open_region(client, rkey, now).ok_or_else(no_such)?;
        let OpenRegion { lkey, addr, length: len, access, .. } = region;
        let file = file_for(sessions, slot, &region).ok_or_else(no_such)?;
        let session = sessions.get(slot).ok_or_else(ended)?;
        let token = session.token(slot);
        let Session { socket, process, customer, open: Some(open), .. } = session else {
            return Err(ended());
        };
        let gate = match &mut open.gate {
            Some(gate) => gate,
            none => {
                let gate = Gate::make(token, process.as_ref())?;
                gate.file.is_had_by(customer.account);
                none.insert(gate)
            }
        };
        if !gate.is_taken {
            socket.send(&Message::Memory { request }, Some(gate.file.as_fd()))?;
        }
        let doors = self.doors.entry(lkey).or_default();
        if let Some(door) = gate.door_of(lkey) {
            gate.vqps.insert(vqp);
            let own = doors.iter().find(|one| one.door == door && Arc::ptr_eq(&one.end, &gate.end));
            let generation = own.map_or(0, |one| one.generation);
            let reach = Reach { door, generation, addr, len, access, file_bytes: 0 };
            return Ok(Answer::Reached(reach));
        }
        let door = gate.take_door(lkey).ok_or_else(|| {
            let text = "the session reaches as many regions itself as it may";
            Refused::new(RefusalCode::Limit, text)
        })?;
        if let Err(error) = send(socket, request, &file, access) {
            // Its process hears of a refusal, and takes no gate with that: it comes again with the next region. It stays, since
            // who unmaps a file that a process was sent may have to wait for that.
            gate.free_door(door);
            return Err(error.into());
        }
        gate.is_taken = true;
        gate.vqps.insert(vqp);
        self.generation += 1;
        let generation = self.generation;
        gate.end.open(door, generation);
        doors.push(Door { end: gate.end.clone(), door, generation });
        Ok(Answer::Reached(Reach { door, generation, addr, len, access, file_bytes: len }))
    }

    /// A region is deregistered: nobody reaches it from now on. Who is inside is waited for.
    pub(super) fn shut(
        &mut self,
        lkey: u32,
        whose: Option<Whose>,
        sessions: &mut Sessions,
        now: Time,
    ) {
        let Some(doors) = self.doors.remove(&lkey) else { return };
        let mut accesses = Vec::new();
        for Door { end, door, .. } in doors {
            accesses.extend(end.shut(door));
            let holder = sessions.of_token(end.token).and_then(|slot| sessions.open(slot));
            if let Some(gate) = holder.and_then(|open| open.gate.as_mut()) {
                gate.free_door(door);
            }
        }
        let Some(whose) = whose.filter(|_| !accesses.is_empty()) else { return };
        self.waits.entry(whose).or_default().push(Wait::new(accesses, now));
    }

    /// A session has ended: nobody hears what becomes of its deregistrations, and its process reaches nothing by its
    /// gate any more.
    pub(super) fn ended(&mut self, token: u64, gate: Option<&Gate>, now: Time) {
        let is_its = |whose| matches!(whose, Whose::Region { token: of, .. } if of == token);
        self.waits.retain(|whose, _| !is_its(*whose));
        let Some(gate) = gate else { return };
        let GateCounts { reads, writes, bytes } = gate.end.counts();
        self.counts.reads = self.counts.reads.saturating_add(reads);
        self.counts.writes = self.counts.writes.saturating_add(writes);
        self.counts.bytes = self.counts.bytes.saturating_add(bytes);
        let lkeys: Vec<u32> = gate.regions().collect();
        let mut accesses = Vec::new();
        for lkey in &lkeys {
            let doors = self.doors.get(lkey).into_iter().flatten();
            let own = doors.filter(|one| Arc::ptr_eq(&one.end, &gate.end));
            accesses.extend(own.filter_map(|one| one.end.shut(one.door)));
        }
        // Who waits for it already waits on, and hears of its process's end.
        let waited = self.waits.values().flatten().flat_map(|wait| &wait.accesses);
        let own = waited.filter(|one| Arc::ptr_eq(&one.end, &gate.end) && !one.has_ended());
        accesses.extend(own.cloned());
        if gate.end.is_orphan() {
            accesses.clear();
        }
        let lingering = Lingering { accesses, end: gate.end.clone(), lkeys, since: now };
        if lingering.accesses.is_empty() {
            return self.forget(&lingering);
        }
        // Its doors stay in the lists, so that who takes a region back waits for it.
        self.lingering.push_back(lingering);
        if self.lingering.len() > LINGERING_MAX
            && let Some(oldest) = self.lingering.pop_front()
        {
            self.forget(&oldest);
        }
    }

    /// A session says goodbye: that waits for what its deregistrations waited for, of which it hears no more.
    pub(super) fn leaves(&mut self, token: u64, client: ClientId) {
        let is_its =
            |whose: &Whose| matches!(whose, Whose::Region { token: of, .. } if *of == token);
        let its: Vec<Vec<Wait>> =
            self.waits.extract_if(|whose, _| is_its(whose)).map(|(_, waits)| waits).collect();
        if !its.is_empty() {
            self.waits.entry(Whose::Goodbye(client)).or_default().extend(its.into_iter().flatten());
        }
    }

    /// Nobody is waited for behind a session's end any more.
    fn forget(&mut self, lingering: &Lingering) {
        lingering.end.give_up();
        for lkey in &lingering.lkeys {
            let Some(doors) = self.doors.get_mut(lkey) else { continue };
            doors.retain(|one| !Arc::ptr_eq(&one.end, &lingering.end));
            if doors.is_empty() {
                self.doors.remove(lkey);
            }
        }
    }

    /// All else that a deregistration or a goodbye waits for is over: whether somebody is still inside, so that
    /// [`Directs::settle`] tells when it is done.
    pub(super) fn holds(&mut self, whose: Whose) -> Held {
        let Some(waits) = self.waits.get_mut(&whose) else { return Held::Free };
        waits.retain_mut(|wait| {
            wait.accesses.retain(|access| !access.has_ended());
            !wait.accesses.is_empty()
        });
        let held = if waits.is_empty() { Held::Free } else { Held::Late };
        if waits.iter().all(|wait| wait.is_late) {
            self.waits.remove(&whose);
            return held;
        }
        waits.iter_mut().for_each(|wait| wait.is_due = true);
        Held::Back
    }

    /// Whether a client's goodbye waits for somebody.
    pub(super) fn keeps(&self, client: ClientId) -> bool {
        self.waits
            .get(&Whose::Goodbye(client))
            .is_some_and(|waits| waits.iter().any(|wait| !wait.is_late))
    }

    /// Looks at those who are waited for.
    pub(super) fn settle(&mut self, now: Time) -> Settled {
        let mut settled = Settled::default();
        let patience_ns = self.patience_ns;
        let apart = if self.waits.len() > FEW { LOOK_NS_MANY } else { LOOK_NS };
        if now.ns_since(self.settled_at) < apart {
            return settled;
        }
        self.settled_at = now;
        let count = self.lingering.len();
        for _ in 0..count {
            let Some(mut one) = self.lingering.pop_front() else { break };
            one.accesses.retain(|access| !access.has_ended());
            let is_late = now.ns_since(one.since) >= patience_ns;
            if one.accesses.is_empty() || is_late || one.end.is_orphan() {
                self.forget(&one);
            } else {
                self.lingering.push_back(one);
            }
        }
        self.waits.retain(|whose, waits| {
            waits.retain_mut(|wait| {
                wait.accesses.retain(|access| !access.has_ended());
                let is_over = wait.accesses.is_empty();
                let is_late = now.ns_since(wait.since) >= patience_ns
                    || wait.accesses.iter().all(Access::is_given_up);
                if !is_over && !wait.is_late && is_late {
                    wait.is_late = true;
                    settled.stuck.extend(wait.accesses.iter().map(|access| access.end.token));
                }
                match *whose {
                    Whose::Region { token, request }
                        if wait.is_due && (is_over || wait.is_late) =>
                    {
                        settled.regions.push((token, request, is_over));
                        false
                    }
                    Whose::Region { .. } => !is_over,
                    Whose::Goodbye(_) => !is_over && !wait.is_late,
                }
            });
            !waits.is_empty()
        });
        settled
    }

    /// What all sessions have done so, as they say.
    pub(super) fn counts(&self, sessions: &Sessions) -> GateCounts {
        let gates = sessions.iter().filter_map(|one| one.open.as_ref()?.gate.as_ref());
        gates.fold(self.counts, |sum, gate| {
            let GateCounts { reads, writes, bytes } = gate.end.counts();
            GateCounts {
                reads: sum.reads.saturating_add(reads),
                writes: sum.writes.saturating_add(writes),
                bytes: sum.bytes.saturating_add(bytes),
            }
        })
    }
}

/// Whether something may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nobody is inside.
    Free,
    /// Somebody is, and it is told later.
    Back,
    /// Somebody is whom the node has waited for long enough.
    Late,
}

/// The file of a region that a session may have: of one user, in the same places, and made by the node.
fn file_for(sessions: &Sessions, slot: u32, region: &OpenRegion) -> Option<Backing> {
    let asks = sessions.at(slot)?;
    let has = sessions.at(sessions.of_client(region.owner)?)?;
    let spaces = [asks.standing.users, asks.standing.pids];
    let seen =
        has.peer.pid.is_some() && asks.peer.pid.is_some() && !spaces.contains(&Space::Unseen);
    let one_user = has.peer.uid == asks.peer.uid
        && has.customer == asks.customer
        && has.standing == asks.standing;
    let backing = has.open.as_ref()?.regions.get(&region.lkey)?.backing.clone()?;
    // A huge page may be gone when it is touched next, which ends a process that is no node.
    let is_small = !memfd::is_huge(backing.as_fd()).ok()?;
    (seen && one_user && is_small && region.length > 0).then_some(backing)
}

fn send(socket: &Socket, request: u32, file: &Backing, access: AccessFlags) -> std::io::Result<()> {
    let message = Message::Memory { request };
    if access.contains(AccessFlags::REMOTE_WRITE) {
        return socket.send(&message, Some(file.as_fd()));
    }
    let read = memfd::reopen(file.as_fd())?;
    socket.send(&message, Some(read.as_fd()))
}

fn ended() -> Refused {
    Refused::new(RefusalCode::State, "the session has ended")
}
