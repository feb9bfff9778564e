use elver_core::ClientId;
use elver_portal::{ARENA_BYTES, Answer, Layout, Peer, Socket, Violation};
use elver_soft::SoftMemory;
use elver_verbs::Time;
use rustc_hash::FxHashMap;

use super::counters::EngineCounters;
use super::maker::Maker;
use super::quota::{Quotas, Usage};
use super::session::{Open, Owed, Region, Session};
use super::translate::Refused;
use crate::config::QuotaConfig;
use crate::status::{SessionStatus, UserStatus};

/// A process that connected must say hello within this.
const GREETING_NS_MAX: u64 = 1_000_000_000;
/// Processes beyond the number of sessions, of all users and of each, that may be about to say hello.
pub(super) const GREETINGS_MAX: u32 = 64;

/// All sessions: by place, by client, and those that are looked at.
pub(super) struct Sessions {
    slots: Vec<Option<Session>>,
    free: Vec<u32>,
    active: Vec<u32>,
    clients: FxHashMap<ClientId, u32>,
    /// Ended sessions of which the core still has something.
    ghosts: FxHashMap<ClientId, Ghost>,
    pub(super) quotas: Quotas,
    pub(super) limits: QuotaConfig,
    /// The largest rings that a session gets.
    pub(super) most: Layout,
    next_serial: u32,
    /// Sessions that have not said hello.
    greeting: u32,
    /// These by user.
    greeting_users: FxHashMap<u32, u32>,
    /// Sessions that have said goodbye.
    leaving: u32,
}

struct Ghost {
    uid: u32,
    usage: Usage,
    memory: Vec<(SoftMemory, u64)>,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its process closed it, or died.
    Closed,
    /// It was turned away.
    Rejected,
    /// It broke a rule.
    Violation,
}

impl Sessions {
    pub(super) fn new(limits: QuotaConfig, most: Layout) -> Sessions {
        Sessions {
            slots: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            clients: FxHashMap::default(),
            ghosts: FxHashMap::default(),
            quotas: Quotas::new(limits.clone()),
            limits,
            most,
            next_serial: 0,
            greeting: 0,
            greeting_users: FxHashMap::default(),
            leaving: 0,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Gives a process a place; its token tells it from all others.
    pub(super) fn insert(&mut self, socket: Socket, peer: Peer, now: Time) -> (u32, u64) {
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        *self.greeting_users.entry(peer.uid).or_default() += 1;
        let session = Session { serial, socket, peer, process: None, since: now, open: None };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(session);
                slot
            }
            None => {
                self.slots.push(Some(session));
                self.slots.len() as u32 - 1
            }
        };
        self.greeting += 1;
        (slot, u64::from(serial) << 32 | u64::from(slot))
    }

    /// The place of a token, if the session is still there.
    pub(super) fn of_token(&self, token: u64) -> Option<u32> {
        let (slot, serial) = (token as u32, (token >> 32) as u32);
        let session = self.slots.get(slot as usize)?.as_ref()?;
        (session.serial == serial).then_some(slot)
    }

    #[inline]
    pub(super) fn of_client(&self, client: ClientId) -> Option<u32> {
        self.clients.get(&client).copied()
    }

    /// Whether a client is none of ours, and never was.
    pub(super) fn is_foreign(&self, client: ClientId) -> bool {
        !self.clients.contains_key(&client) && !self.ghosts.contains_key(&client)
    }

    #[inline]
    pub(super) fn get(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// A session, and what its user may have.
    #[inline]
    pub(super) fn get_with_quotas(&mut self, slot: u32) -> Option<(&mut Session, &mut Quotas)> {
        Some((self.slots.get_mut(slot as usize)?.as_mut()?, &mut self.quotas))
    }

    #[inline]
    pub(super) fn open(&mut self, slot: u32) -> Option<&mut Open> {
        self.get(slot)?.open.as_mut()
    }

    /// Whether a user has all the sessions that it may have, and many more that have not said hello:
    /// so that it leaves places to others. Root may have as many as it likes.
    pub(super) fn is_crowded(&self, uid: u32) -> bool {
        let greeting = self.greeting_users.get(&uid).copied().unwrap_or(0);
        let most = self.limits.sessions.saturating_add(GREETINGS_MAX);
        uid != 0 && self.quotas.sessions(uid).saturating_add(greeting) >= most
    }

    fn greeted(&mut self, uid: u32) {
        self.greeting -= 1;
        if let Some(count) = self.greeting_users.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.greeting_users.remove(&uid);
            }
        }
    }

    /// How many have begun.
    pub(super) fn begun(&self) -> usize {
        self.clients.len()
    }

    /// A session begins, if its user may have one more.
    pub(super) fn begin(&mut self, slot: u32, open: Open) -> Result<(), Refused> {
        let client = open.client;
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return Ok(()) };
        quotas.take(session.peer.uid, Usage::SESSION)?;
        session.open = Some(open);
        let uid = session.peer.uid;
        self.greeted(uid);
        self.clients.insert(client, slot);
        Ok(())
    }

    /// The place of the active session of this number.
    #[inline]
    pub(super) fn active(&self, index: usize) -> Option<u32> {
        self.active.get(index).copied()
    }

    /// Whether there are active sessions.
    #[inline]
    pub(super) fn any_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Looks at a session from now on.
    #[inline]
    pub(super) fn activate(&mut self, slot: u32, now: Time) {
        let Some(open) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let Some(open) = open.open.as_mut() else { return };
        open.last = now;
        if !open.active {
            open.active = true;
            open.end.awake();
            self.active.push(slot);
        }
    }

    /// Puts those to rest that were silent for so long.
    pub(super) fn rest_idle(&mut self, idle_ns: u64, now: Time) {
        self.put_to_rest(|open| now.ns_since(open.last) >= idle_ns);
    }

    /// Puts all to rest; false if one has put something in.
    pub(super) fn all_sleep(&mut self) -> bool {
        self.put_to_rest(|_| true);
        // Those that do not take what they are told stay, and are not waited for.
        let slots = &self.slots;
        self.active.iter().all(|&slot| opened(slots, slot).is_some_and(is_stuck))
    }

    /// Whether there are sessions that must be looked at though nobody tells of them.
    pub(super) fn needs_watching(&self) -> bool {
        !self.active.is_empty() || !self.ghosts.is_empty() || self.leaving + self.greeting > 0
    }

    fn put_to_rest(&mut self, which: impl Fn(&Open) -> bool) {
        let slots = &mut self.slots;
        self.active.retain(|&slot| {
            let Some(open) = slots[slot as usize].as_mut().and_then(|one| one.open.as_mut()) else {
                return false;
            };
            let rests = which(open) && !is_stuck(open) && open.end.sleep();
            open.active = !rests;
            !rests
        });
    }

    /// Puts a reply into a session's ring, or keeps it until there is room.
    pub(super) fn reply(&mut self, slot: u32, owed: Owed) -> Result<(), Violation> {
        self.open(slot).map_or(Ok(()), |open| open.reply(owed))
    }

    /// Answers a command that was pending.
    pub(super) fn answer_later(
        &mut self,
        slot: u32,
        request: u32,
        answer: Result<Answer<'static>, Refused>,
    ) -> Result<(), Violation> {
        let Some(open) = self.open(slot) else { return Ok(()) };
        open.pending = open.pending.saturating_sub(1);
        open.reply(match answer {
            Ok(answer) => Owed::Answer { request, answer },
            Err(refused) => Owed::Refused { request, refused },
        })
    }

    /// A deregistration is done: the memory goes, and counts no more.
    pub(super) fn region_gone(&mut self, slot: u32, request: u32, maker: &Maker) {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return };
        let region = session.open.as_mut().and_then(|open| open.leaving.remove(&request));
        if let Some(Region { usage, memory }) = region {
            quotas.give_back(session.peer.uid, usage);
            if let Some(memory) = memory {
                maker.give_back(memory, usage.bytes);
            }
        }
    }

    /// A session said goodbye: its client is closed, and it hears when all of it is gone.
    pub(super) fn leave(&mut self, slot: u32, request: u32) {
        if let Some(open) = self.open(slot) {
            open.goodbye = Some(request);
            self.leaving += 1;
        }
    }

    /// Ends a session. Returns its client, if that is still to be closed.
    pub(super) fn end(
        &mut self,
        slot: u32,
        how: End,
        counters: &mut EngineCounters,
    ) -> Option<ClientId> {
        let session = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.active.retain(|&other| other != slot);
        counters.sessions_ended += 1;
        match how {
            End::Closed => counters.sessions_closed += 1,
            End::Rejected => counters.sessions_rejected += 1,
            End::Violation => {}
        }
        let uid = session.peer.uid;
        let Some(open) = session.open else {
            self.greeted(uid);
            return None;
        };
        self.quotas.give_back(uid, Usage::SESSION);
        self.clients.remove(&open.client);
        // A process that keeps the mapping must not keep memory that counts for nobody.
        open.end.discard();
        if let Some(process) = &open.process {
            // What is still in flight must not reach into a process that has no session.
            process.revoke();
        }
        let usage = Usage { sessions: 0, ..open.usage() };
        let regions = open.regions.into_values().chain(open.leaving.into_values());
        let memory = regions
            .filter_map(|region| region.memory.map(|memory| (memory, region.usage.bytes)))
            .chain([(open.arena, ARENA_BYTES)])
            .collect();
        self.ghosts.insert(open.client, Ghost { uid, usage, memory });
        if open.goodbye.is_some() {
            self.leaving -= 1;
            return None;
        }
        Some(open.client)
    }

    /// Forgets ended sessions of which nothing is left; gives those places whose goodbye is done.
    pub(super) fn forget_gone(
        &mut self,
        is_gone: impl Fn(ClientId) -> bool,
        maker: &Maker,
    ) -> Vec<u32> {
        let quotas = &mut self.quotas;
        self.ghosts.retain(|&client, ghost| {
            if !is_gone(client) {
                return true;
            }
            quotas.give_back(ghost.uid, ghost.usage);
            for (memory, bytes) in ghost.memory.drain(..) {
                maker.give_back(memory, bytes);
            }
            false
        });
        if self.leaving == 0 {
            return Vec::new();
        }
        let left = |(slot, session): (usize, &Option<Session>)| {
            let open = session.as_ref()?.open.as_ref()?;
            (open.goodbye.is_some() && is_gone(open.client)).then_some(slot as u32)
        };
        self.slots.iter().enumerate().filter_map(left).collect()
    }

    /// Answers a goodbye.
    pub(super) fn say_goodbye(&mut self, slot: u32, maker: &Maker) -> Result<(), Violation> {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return Ok(()) };
        let uid = session.peer.uid;
        let Some(open) = &mut session.open else { return Ok(()) };
        let Some(request) = open.goodbye.take() else { return Ok(()) };
        quotas.give_back(uid, Usage { sessions: 0, ..open.usage() });
        for (_, region) in open.regions.drain().chain(open.leaving.drain()) {
            if let Some(memory) = region.memory {
                maker.give_back(memory, region.usage.bytes);
            }
        }
        open.vqps.clear();
        let result = open.reply(Owed::Answer { request, answer: Answer::Done });
        self.leaving -= 1;
        result
    }

    /// Those that have connected and not said hello for too long.
    pub(super) fn silent(&self, now: Time) -> Vec<u32> {
        if self.greeting == 0 {
            return Vec::new();
        }
        let silent = |(slot, session): (usize, &Option<Session>)| {
            let session = session.as_ref()?;
            let late = now.ns_since(session.since) >= GREETING_NS_MAX;
            (session.open.is_none() && late).then_some(slot as u32)
        };
        self.slots.iter().enumerate().filter_map(silent).collect()
    }

    /// Wakes those processes that sleep and were told something; how many.
    pub(super) fn wake(&mut self) -> u64 {
        let mut woken = 0;
        for &slot in &self.active {
            let Some(session) = self.slots[slot as usize].as_mut() else { continue };
            let Some(open) = session.open.as_mut() else { continue };
            if std::mem::take(&mut open.touched) && open.end.must_wake() {
                // If it is gone, its socket tells so.
                let _ = session.socket.wake();
                woken += 1;
            }
        }
        woken
    }

    /// All that have begun, as `elver status` shows them.
    pub(super) fn describe(&self) -> Vec<SessionStatus> {
        let describe = |session: &Option<Session>| {
            let session = session.as_ref()?;
            let open = session.open.as_ref()?;
            let usage = open.usage();
            Some(SessionStatus {
                client: open.client.0,
                pid: session.peer.pid,
                uid: session.peer.uid,
                vqps: usage.vqps,
                mrs: usage.mrs,
                bytes: usage.bytes,
                active: open.active,
            })
        };
        self.slots.iter().filter_map(describe).collect()
    }

    /// What each user has.
    pub(super) fn users(&self) -> Vec<UserStatus> {
        let describe = |(uid, usage): (u32, &Usage)| UserStatus {
            uid,
            sessions: usage.sessions,
            vqps: usage.vqps,
            mrs: usage.mrs,
            bytes: usage.bytes,
        };
        let mut users: Vec<_> = self.quotas.users().map(describe).collect();
        users.sort_by_key(|user| user.uid);
        users
    }
}

fn opened(slots: &[Option<Session>], slot: u32) -> Option<&Open> {
    slots[slot as usize].as_ref()?.open.as_ref()
}

/// Whether a session does not take what it is told.
#[inline]
fn is_stuck(open: &Open) -> bool {
    open.owes() || open.stalled
}
