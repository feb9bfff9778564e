//! All sessions of processes: their places, and what is done with one or with all.

mod described;
pub(super) mod ends;
mod ghosts;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use elver_core::{ClientId, ClientLimits};
use elver_portal::{Answer, Layout, Message, Peer, Socket, Standing, Violation};
use elver_verbs::Time;
use rustc_hash::FxHashMap;
use rustix::process::Pid;

use self::ghosts::Ghosts;
use super::account::{Account, Customer};
use super::counters::EngineCounters;
use super::held::Held;
use super::maker::Maker;
use super::orders::{Awaiting, Cleared, Leavings};
use super::partings::Partings;
use super::quota::{Quotas, Usage, is_modest};
use super::room::Backing;
use super::session::{Open, Owed, Region, Session};
use super::translate::Refused;
use super::turns::Turns;
use crate::config::QuotaConfig;

/// A process that connected must say hello within this.
const GREETING_NS_MAX: u64 = 1_000_000_000;
/// Processes beyond the number of sessions, of all users and of each, that may be about to say hello.
pub(super) const GREETINGS_MAX: u32 = 64;

/// All sessions: by place, by client, and those that are looked at.
pub(super) struct Sessions {
    slots: Vec<Option<Session>>,
    free: Vec<u32>,
    /// Those that are looked at.
    pub(super) turns: Turns,
    clients: FxHashMap<ClientId, u32>,
    /// What is left of ended ones.
    pub(super) ghosts: Ghosts,
    pub(super) quotas: Quotas,
    pub(super) limits: QuotaConfig,
    /// The largest rings that a session gets.
    pub(super) most: Layout,
    next_serial: u32,
    /// Sessions that have not said hello.
    greeting: u32,
    /// These by account.
    greeting_accounts: FxHashMap<Account, u32>,
    /// Sessions that have said goodbye.
    leaving: u32,
    /// Sockets of sessions that have ended.
    pub(super) partings: Partings,
}

impl Sessions {
    pub(super) fn new(limits: QuotaConfig, total: Usage, most: Layout) -> Sessions {
        Sessions {
            slots: Vec::new(),
            free: Vec::new(),
            turns: Turns::default(),
            clients: FxHashMap::default(),
            ghosts: Ghosts::default(),
            quotas: Quotas::new(limits.clone(), total),
            limits,
            most,
            next_serial: 0,
            greeting: 0,
            greeting_accounts: FxHashMap::default(),
            leaving: 0,
            partings: Partings::default(),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Gives a process a place; its token tells it from all others.
    pub(super) fn insert(
        &mut self,
        socket: Socket,
        peer: Peer,
        (customer, standing, process): (Customer, Standing, Option<OwnedFd>),
        now: Time,
    ) -> (u32, u64) {
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        *self.greeting_accounts.entry(customer.account).or_default() += 1;
        let session = Session {
            serial,
            socket,
            peer,
            customer,
            standing,
            process,
            watched: false,
            since: now,
            parent: None,
            open: None,
        };
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

    /// The process of a client.
    pub(super) fn pid_of(&self, client: ClientId) -> Option<Pid> {
        let slot = self.of_client(client)?;
        self.slots.get(slot as usize)?.as_ref()?.peer.pid
    }

    /// Whether a client is none of ours, and never was.
    pub(super) fn is_foreign(&self, client: ClientId) -> bool {
        !self.clients.contains_key(&client) && self.ghosts.has_forgotten(client)
    }

    #[inline]
    pub(super) fn get(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The session at a place.
    pub(super) fn at(&self, slot: u32) -> Option<&Session> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// All that there are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().flatten()
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

    /// Whether an account has all the sessions that it may have, and many more that have not said
    /// hello, or more of all than leaves places to others. Root may have as many as it likes.
    pub(super) fn is_crowded(&self, account: Account, now: Time) -> bool {
        if self.quotas.is_exempt(account) {
            return false;
        }
        let greeting = self.greeting_accounts.get(&account).copied().unwrap_or(0);
        let parting = self.partings.of(account);
        let parting = parting.saturating_add(self.ghosts.clearing(account, now));
        let has = self.quotas.of(account).sessions.saturating_add(greeting).saturating_add(parting);
        let places = (self.limits.sessions_total as usize + GREETINGS_MAX as usize) as u64;
        let all = self.len() + self.partings.len();
        has >= self.limits.sessions.saturating_add(GREETINGS_MAX)
            || !is_modest(u64::from(has) + 1, all as u64 + 1, places)
    }

    fn greeted(&mut self, account: Account) {
        self.greeting -= 1;
        if let Some(count) = self.greeting_accounts.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                self.greeting_accounts.remove(&account);
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
        let account = session.account();
        quotas.take(account, Usage::SESSION)?;
        open.backing.is_had_by(account);
        session.open = Some(open);
        self.greeted(account);
        self.clients.insert(client, slot);
        Ok(())
    }

    /// A process goes on with a session that was made ahead, of which its account has the quota.
    pub(super) fn take_over(&mut self, slot: u32, open: Open, parent: Pid) {
        let Some(session) = self.get(slot) else { return };
        let (account, client) = (session.account(), open.client);
        (session.open, session.parent) = (Some(open), Some(parent));
        self.greeted(account);
        self.clients.insert(client, slot);
    }

    /// What a client of the core may have that is for a session of an account's.
    pub(super) fn client_limits(&self, account: Account) -> ClientLimits {
        ClientLimits {
            vqps: self.limits.session_vqps,
            accepts_per_peer: self.limits.session_accepts_per_peer,
            mrs: self.limits.session_mrs,
            completions: self.limits.session_completions,
            account: account.number(),
        }
    }

    /// Keeps what a session leaves, or one that was made ahead, until the core has nothing of it.
    pub(super) fn retire(&mut self, account: Account, open: Open) {
        self.ghosts.retire(account, open, &mut self.quotas);
    }

    /// Whether there are active sessions.
    #[inline]
    pub(super) fn any_active(&self) -> bool {
        !self.turns.is_empty()
    }

    /// A session is woken; how many times it was awake then, since it slept last.
    pub(super) fn was_awake(&mut self, slot: u32) -> u32 {
        let Some(open) = self.open(slot) else { return 0 };
        open.needless = if open.active { open.needless.saturating_add(1) } else { 0 };
        open.needless
    }

    /// Looks at a session from now on.
    #[inline]
    pub(super) fn activate(&mut self, slot: u32, now: Time) {
        let Some(session) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let account = session.account();
        let Some(open) = session.open.as_mut() else { return };
        open.last = now;
        if !open.active {
            open.active = true;
            open.end.awake();
            self.turns.insert(account, slot);
        }
    }

    /// Puts those to rest that were silent for so long.
    pub(super) fn rest_idle(&mut self, idle_ns: u64, now: Time) {
        self.put_to_rest(|open| now.ns_since(open.last) >= idle_ns);
    }

    /// Puts all to rest; false if one has put something in.
    pub(super) fn all_sleep(&mut self) -> bool {
        self.put_to_rest(|_| true);
        // Those that do not take what they are told, or are not woken yet, stay, and are not waited for.
        let slots = &self.slots;
        self.turns.iter().all(|slot| opened(slots, slot).is_some_and(is_stuck))
    }

    /// Whether there are sessions that must be looked at though nobody tells of them.
    pub(super) fn needs_watching(&self) -> bool {
        !self.turns.is_empty() || !self.ghosts.is_empty() || self.leaving + self.greeting > 0
    }

    fn put_to_rest(&mut self, which: impl Fn(&Open) -> bool) {
        let slots = &mut self.slots;
        self.turns.retain(|slot| {
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

    /// Sends the file that a request asked for.
    pub(super) fn send_memory(
        &mut self,
        token: u64,
        request: u32,
        file: &Backing,
    ) -> io::Result<()> {
        let session = self.of_token(token).and_then(|slot| self.get(slot));
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let message = Message::Memory { request };
        session.ok_or_else(gone)?.socket.send(&message, Some(file.as_fd()))
    }

    /// Answers a command of a session that may have ended meanwhile.
    pub(super) fn answer_token(
        &mut self,
        token: u64,
        request: u32,
        answer: Result<Answer<'static>, Refused>,
        now: Time,
    ) {
        let Some(slot) = self.of_token(token) else { return };
        // A ring that is broken ends the session when it is served.
        let _ = self.answer_later(slot, request, answer);
        self.activate(slot, now);
    }

    /// A deregistration is done: the memory goes, and counts no more when it has gone. Whether it has; else that is told.
    pub(super) fn region_gone(
        &mut self,
        slot: u32,
        (request, is_free): (u32, bool),
        maker: &Maker,
    ) -> bool {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return true };
        let (account, token) = (session.account(), session.token(slot));
        let region = session.open.as_mut().and_then(|open| open.leaving.remove(&request));
        let Some(Region { usage, memory, backing }) = region else { return true };
        let Some(memory) = memory.and_then(Held::into_last) else {
            quotas.give_back(account, usage);
            return true;
        };
        let files = backing.into_iter().collect();
        let leavings = Leavings { memory: vec![memory], files, ..Leavings::default() };
        let awaited_by = Awaiting::Region { token, request, is_free };
        maker.clear(leavings, Cleared { account, usage, awaited_by });
        false
    }

    /// A VQP is gone that counted for the session's account, if its process had heard of it.
    pub(super) fn vqp_gone(&mut self, slot: u32, vqp: u32) {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return };
        let account = session.account();
        let Some(open) = &mut session.open else { return };
        if open.vqps.remove(&vqp).is_some() {
            quotas.give_back(account, Usage::VQP);
        }
        quotas.give_back(account, open.leases.end(vqp));
        open.goes_direct_no_more(vqp);
    }

    /// A connect has failed: a leased queue pair that it asked for counts no more.
    pub(super) fn lease_failed(&mut self, slot: u32, vqp: u32, connect: u32) {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return };
        let account = session.account();
        let Some(open) = &mut session.open else { return };
        if let Some(less) = open.leases.failed(vqp, connect) {
            quotas.give_back(account, less);
        }
    }

    /// Whether a VQP's process does READs and WRITEs itself.
    pub(super) fn goes_direct(&self, client: ClientId, vqp: u32) -> bool {
        let session = self.of_client(client).and_then(|slot| self.at(slot));
        let gate = session.and_then(|session| session.open.as_ref()?.gate.as_ref());
        gate.is_some_and(|gate| gate.vqps.contains(&vqp) && gate.regions().next().is_some())
    }

    /// The keys of a session's regions.
    pub(super) fn regions_of(&self, slot: u32) -> Vec<u32> {
        let open = self.at(slot).and_then(|session| session.open.as_ref());
        open.map_or_else(Vec::new, |open| open.regions.keys().copied().collect())
    }

    /// Those that share memory with the node that is lost.
    pub(super) fn bereft(&self) -> Vec<u32> {
        let bereft = |(slot, session): (usize, &Option<Session>)| {
            let open = session.as_ref()?.open.as_ref()?;
            open.has_lost_memory().then_some(slot as u32)
        };
        self.slots.iter().enumerate().filter_map(bereft).collect()
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

    /// Wakes those processes that sleep and were told something: how many there were that were told
    /// something. Who could not be woken is the next time.
    pub(super) fn wake(&mut self, counters: &mut EngineCounters) -> u64 {
        let mut told = 0;
        for slot in self.turns.iter() {
            let Some(session) = self.slots[slot as usize].as_mut() else { continue };
            let Some(open) = session.open.as_mut() else { continue };
            if !std::mem::take(&mut open.touched) {
                continue;
            }
            told += 1;
            if !open.end.must_wake() {
                continue;
            }
            match session.socket.wake() {
                Ok(()) => counters.wakes += 1,
                // Its socket tells so.
                Err(error) if is_gone(&error) => {}
                // The system has no memory, for one.
                Err(_) => {
                    open.end.not_woken();
                    open.touched = true;
                    counters.wakes_failed += 1;
                }
            }
        }
        told
    }
}

fn opened(slots: &[Option<Session>], slot: u32) -> Option<&Open> {
    slots[slot as usize].as_ref()?.open.as_ref()
}

/// Whether a session does not take what it is told, or is still to be woken for it.
#[inline]
fn is_stuck(open: &Open) -> bool {
    open.owes() || open.stalled || open.touched
}

/// Whether the other end of a socket has closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
