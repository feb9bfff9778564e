//! Heirs are made, in the places of those that have gone, and told of when they are there.

use elver_core::{ClientId, Core, VqpId};
use elver_portal::{
    ARENA_BYTES, Answer, HeirsLayout, NodeEnd, NodeHeir, NodeRecords, RefusalCode, Via,
};
use elver_soft::{SoftDevice, SoftMemory};
use elver_verbs::{AccessFlags, Time};

use super::plan::Made;
use super::{Heir, Ready, Sets, State};
use crate::engine::maker::Maker;
use crate::engine::notice::Notice;
use crate::engine::orders::{Awaiting, Cleared, Place, Readied};
use crate::engine::quota::Usage;
use crate::engine::room::Backing;
use crate::engine::session::{Open, Owed, Region};
use crate::engine::sessions::Sessions;
use crate::engine::spares::Spare;
use crate::engine::translate::Refused;

/// Heirs that are made at a turn: each takes some tens of microseconds, for which others wait.
const MADE_AT_ONCE: usize = 4;
/// Places of heirs that are asked for at a turn.
const ASKED_AT_ONCE: usize = 64;
/// After so long one that could not be made is tried again.
pub(super) const RETRY_NS: u64 = 1_000_000;
/// The longest time that this becomes.
pub(super) const RETRY_NS_MAX: u64 = 1_000_000_000;

impl Sets {
    /// Makes heirs in the places of those that have gone.
    pub(in crate::engine) fn tend(
        &mut self,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) {
        self.give_back_files(maker);
        let mut back = Vec::new();
        self.leaving.retain_mut(|one| {
            let waited = one.look_at().is_some();
            let has_ended = one.has_ended(now);
            if waited && has_ended {
                sessions.quotas.give_back(one.account(), Usage::DESCRIPTOR);
            }
            let client = one.client();
            let gone =
                has_ended && core.client_is_gone(client) && sessions.ghosts.has_forgotten(client);
            if gone {
                back.push(one.place());
            }
            !gone
        });
        for (number, at) in back {
            let heir = self.all.get_mut(&number).and_then(|set| set.heirs.get_mut(at as usize));
            if let Some(heir) = heir {
                heir.state = State::Vacant;
                heir.times += 1;
                self.counts.returned += 1;
                self.vacant.push_back((number, at));
            }
        }
        while let Some(&first) = self.put_off.first()
            && first.0 <= now
        {
            self.put_off.pop_first();
            self.vacant.push_back((first.1, first.2));
        }
        let mut made = 0;
        for _ in 0..ASKED_AT_ONCE {
            if made == MADE_AT_ONCE {
                return;
            }
            let Some((number, at)) = self.vacant.pop_front() else { return };
            match self.make(number, at, sessions, (core, maker), now) {
                Ok(is_made) => made += usize::from(is_made),
                Err(refused) => self.fail(number, at, refused, sessions, core, now),
            }
        }
    }

    /// An heir could not be made. The first time its set fails with it; later it is tried again, after
    /// twice as long each time.
    fn fail(
        &mut self,
        number: u32,
        at: u32,
        refused: Refused,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) {
        let Some(set) = self.all.get_mut(&number) else { return };
        if set.sealing.is_none() {
            let Some(heir) = set.heirs.get_mut(at as usize) else { return };
            let wait = RETRY_NS.saturating_mul(1 << heir.failures.min(16)).min(RETRY_NS_MAX);
            heir.failures += 1;
            self.put_off.insert((now.saturating_add_ns(wait), number, at));
            return;
        }
        let token = set.parent.token;
        if let Some(request) = self.dissolve(number, sessions, core, now) {
            sessions.answer_token(token, request, Err(refused), now);
        }
    }

    /// Makes an heir, or has its place made ready for it; whether it is made.
    fn make(
        &mut self,
        number: u32,
        at: u32,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) -> Result<bool, Refused> {
        let Some(set) = self.all.get_mut(&number) else { return Ok(false) };
        let (account, each) = (set.parent.customer.account, set.each);
        let Some(files) = &set.files else { return Ok(false) };
        let heir = &mut set.heirs[at as usize];
        // Before there is any work, which a user could have done again and again without it.
        if !heir.is_paid {
            let kept = if heir.is_kept { Usage::PLACE } else { Usage::NONE };
            let taken = sessions.quotas.take(account, each.minus(kept));
            heir.is_kept = false;
            if let Err(refused) = taken {
                if let Some(place) = heir.place.take() {
                    // It counts until it has gone, though its heir does not.
                    let (usage, awaited_by) = (Usage::PLACE, Awaiting::Nobody);
                    sessions.quotas.count(account, usage.minus(kept));
                    maker.unmap((place, heir.rings.take()), Cleared { account, usage, awaited_by });
                }
                return Err(refused);
            }
            heir.is_paid = true;
        }
        if heir.last.is_some_and(|client| !sessions.ghosts.has_forgotten(client)) {
            // What is given back of its would be the next one's.
            self.put_off.insert((now.saturating_add_ns(RETRY_NS), number, at));
            return Ok(false);
        }
        let Some(end) = heir.rings.take() else {
            let (token, layout) = (set.parent.token, set.layout);
            let (file, records) = (files.file.clone(), files.records.clone());
            let place = heir.place.take();
            heir.is_asked = true;
            maker.asides.run(account, move |outlet| {
                let result = ready(place, (&file, &records), layout, at);
                // Or else it would count as somebody's for a moment.
                drop(file);
                let readied = Readied { set: number, token, account, heir: at, result };
                // Without an engine nobody waits for it.
                let _ = outlet.send(Notice::Readied(Box::new(readied)));
            });
            return Ok(false);
        };
        let Some(place) = &heir.place else { return Ok(false) };
        let file = files.file.clone();
        let client = core.client_open(sessions.client_limits(account))?;
        heir.last = Some(client);
        // From here on it counts by what it has.
        heir.is_paid = false;
        let spare = Spare { file, end, arena: place.arena.clone() };
        let mut ready =
            Ready { open: Open::new(client, spare, now), keys: (0, 0), vqps: Vec::new() };
        let mut pending = 0;
        // Kept as what an heir has, so that it goes with it.
        ready.open.heir = Some((number, at));
        let fails = set.sealing.is_some() && set.must_connect;
        let addr = set.addr.wrapping_add(set.layout.arena_offset(at));
        let made = register(&mut ready, set.mr, addr, core).and_then(|()| {
            for (index, planned) in set.plan.iter().enumerate() {
                let assigned = heir.assigned.get(index as u32);
                let lease = planned.lease(assigned, core.config().sq_depth);
                let may_lease = |more| sessions.quotas.take(account, more);
                let (vqp, made) = planned.make(client, index, assigned, may_lease, core, now)?;
                ready.open.vqps.insert(vqp.0, planned.options.max_send_wr);
                ready.vqps.push((vqp.0, None));
                if let (Some(wrs), false) = (lease, matches!(made, Made::Unpaid(_))) {
                    let connect = ready.open.leases.next();
                    ready.open.leases.begin(vqp.0, wrs, connect);
                }
                match made {
                    Made::Idle => {}
                    Made::Connected(via) => ready.vqps[index].1 = Some(via),
                    Made::Connecting => pending += 1,
                    Made::Failed(cause) | Made::Unpaid(cause) if fails => return Err(cause),
                    // A peer may be away: the child's to see.
                    Made::Failed(cause) | Made::Unpaid(cause) => {
                        sessions.quotas.give_back(account, ready.open.leases.end(vqp.0));
                        heir.assigned.forget(index as u32);
                        ready.tell_failed(index, cause);
                    }
                }
            }
            Ok(())
        });
        if let Err(refused) = made {
            sessions.quotas.give_back(account, each.minus(ready.open.usage()));
            sessions.retire(account, ready.open);
            core.client_close(client, now);
            self.past.insert(client, (number, at));
            return Err(refused);
        }
        heir.failures = 0;
        self.clients.insert(client, (number, at));
        heir.state = State::Making { ready: Box::new(ready), pending };
        self.publish(number, at, sessions, now);
        Ok(true)
    }

    /// The place of an heir is empty, and it can be made; or not.
    pub(in crate::engine) fn readied(
        &mut self,
        readied: Readied,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) {
        let Readied { set: number, token, account, heir: at, result } = readied;
        let set = self.all.get_mut(&number).filter(|set| set.parent.token == token);
        let heir = set.and_then(|set| set.heirs.get_mut(at as usize)).filter(|heir| heir.is_asked);
        let Some(heir) = heir else {
            // Its set has ended. It counts until it has gone, and what is unmapped may keep waiting who does it.
            let usage = Usage::PLACE;
            match result {
                Ok(made) => {
                    let awaited_by = Awaiting::Nobody;
                    maker.unmap(made, Cleared { account, usage, awaited_by });
                }
                Err(_) => sessions.quotas.give_back(account, usage),
            }
            return;
        };
        heir.is_asked = false;
        match result {
            Ok((place, end)) => {
                (heir.place, heir.rings) = (Some(place), Some(end));
                self.vacant.push_front((number, at));
            }
            Err(refused) => self.fail(number, at, refused, sessions, core, now),
        }
    }

    /// Lets a child take an heir that waits for no connect.
    fn publish(&mut self, number: u32, at: u32, sessions: &mut Sessions, now: Time) {
        let Some(set) = self.all.get_mut(&number) else { return };
        let heir = &mut set.heirs[at as usize];
        match std::mem::take(&mut heir.state) {
            State::Making { ready, pending: 0 } => {
                if let Some(place) = &heir.place {
                    place.heir.free(ready.keys, &ready.vqps, heir.times);
                }
                heir.state = State::Free(ready);
                self.counts.prepared += u64::from(heir.times == 0);
            }
            other => heir.state = other,
        }
        // A child may have taken one already.
        let is_there = |heir: &Heir| heir.times > 0 || heir.state.is_made();
        let all = || set.heirs.iter().all(is_there);
        if set.sealing.is_some() && all() {
            let (token, request) = (set.parent.token, set.sealing.take());
            if let Some(request) = request {
                sessions.answer_token(token, request, Ok(Answer::Done), now);
            }
        }
    }

    /// What an heir has so far that waits for connects.
    pub(in crate::engine) fn being_made(&self, client: ClientId) -> Option<&Open> {
        let (number, at) = self.clients.get(&client)?;
        match &self.all.get(number)?.heirs.get(*at as usize)?.state {
            State::Making { ready, .. } => Some(&ready.open),
            State::Vacant | State::Free(_) | State::Taken(_) => None,
        }
    }

    /// A connect of an heir's has ended. False if the client is none of theirs.
    pub(in crate::engine) fn connected(
        &mut self,
        client: ClientId,
        token: u64,
        result: Result<Via, Refused>,
        sessions: &mut Sessions,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) -> bool {
        let Some(&(number, at)) = self.clients.get(&client) else { return false };
        let Some(set) = self.all.get_mut(&number) else { return true };
        let fails = set.sealing.is_some() && set.must_connect;
        let account = set.parent.customer.account;
        let heir = &mut set.heirs[at as usize];
        let State::Making { ready, pending } = &mut heir.state else { return true };
        *pending = pending.saturating_sub(1);
        match result {
            Ok(via) => {
                if let Some(vqp) = ready.vqps.get_mut(token as usize) {
                    vqp.1 = Some(via);
                }
            }
            Err(cause) if fails => self.fail(number, at, cause, sessions, core, now),
            Err(cause) => {
                heir.assigned.forget(token as u32);
                if let Some((vqp, _)) = ready.vqps.get(token as usize) {
                    sessions.quotas.give_back(account, ready.open.leases.end(*vqp));
                }
                ready.tell_failed(token as usize, cause);
            }
        }
        self.publish(number, at, sessions, now);
        true
    }

    /// A VQP of an heir's has failed while nobody has it: who takes it hears of it, and who chooses sees that it is not
    /// connected. False if the client is none of theirs.
    pub(in crate::engine) fn failed(
        &mut self,
        client: ClientId,
        VqpId(vqp): VqpId,
        cause: Refused,
    ) -> bool {
        let Some(&(number, at)) = self.clients.get(&client) else { return false };
        let heir = self.all.get_mut(&number).and_then(|set| set.heirs.get_mut(at as usize));
        let Some(Heir { state, place, .. }) = heir else { return true };
        let is_free = matches!(state, State::Free(_));
        let (State::Making { ready, .. } | State::Free(ready)) = state else { return true };
        if let Some(at) = ready.vqps.iter().position(|(number, _)| *number == vqp) {
            ready.vqps[at].1 = None;
            if let Some(place) = place.as_ref().filter(|_| is_free) {
                place.heir.failed(at, vqp);
            }
        }
        // What it holds back is bounded by the VQPs, which fail once each.
        let _ = ready.open.reply(Owed::Failed { vqp, cause });
        true
    }
}

impl State {
    /// Whether a child may take it, or has.
    fn is_made(&self) -> bool {
        matches!(self, State::Free(_) | State::Taken(_))
    }
}

impl Ready {
    /// Who takes it will hear that a VQP could not be connected.
    fn tell_failed(&mut self, index: usize, cause: Refused) {
        if let Some(&(vqp, _)) = self.vqps.get(index) {
            // Broken rings show when the session is served.
            let _ = self.open.reply(Owed::Failed { vqp, cause });
        }
    }
}

/// Registers the region that an heir has from its beginning.
fn register(
    ready: &mut Ready,
    (len, access): (u64, AccessFlags),
    addr: u64,
    core: &mut Core<SoftDevice>,
) -> Result<(), Refused> {
    if len == 0 {
        return Ok(());
    }
    let memory = ready
        .open
        .arena
        .part(0, len)
        .map_err(|error| Refused::new(RefusalCode::OutOfRange, error.to_string()))?;
    let info = core.reg_mr(ready.open.client, memory, Some(addr), access)?;
    ready.keys = (info.lkey, info.rkey);
    let region = Region { usage: Usage::region(0), memory: None, backing: None };
    ready.open.regions.insert(info.lkey, region);
    Ok(())
}

/// Maps the place of an heir, if that was not done before, and makes it empty.
fn ready(
    place: Option<Place>,
    (file, records): (&Backing, &NodeRecords),
    layout: HeirsLayout,
    heir: u32,
) -> Result<(Place, NodeEnd), Refused> {
    let place = match place {
        Some(place) => place,
        None => {
            let mapped = NodeHeir::map(file, records, heir)?;
            let arena = SoftMemory::map_file_from(file, layout.arena_at(heir), ARENA_BYTES)?;
            Place { heir: mapped, arena }
        }
    };
    let end = place.heir.anew();
    place.arena.discard();
    Ok((place, end))
}
