//! The engine: the one thread that owns the device, the core and all sessions.
//!
//! A round ([`Engine::poll`]) drives the core, hands out what it completed, takes what active
//! sessions have put into their rings, and now and then looks at the sockets. A session that was
//! silent for a while is not looked at until it sends a message to say that there is something:
//! what a round costs depends on the sessions that do something, and on nothing else.
//!
//! While there is nothing to do the engine spins, or yields, for a time and then sleeps
//! ([`Engine::rest`]); a packet, a session's message, a new process or a [`Notice`] wakes it.

mod account;
mod asides;
mod counters;
mod desk;
mod directs;
mod door;
mod endings;
mod gate;
mod greet;
mod heirs;
mod held;
mod jobs;
mod leases;
mod looks;
mod maker;
mod membership;
mod news;
mod notice;
mod orders;
mod partings;
mod pieces;
mod quota;
mod requests;
mod room;
mod session;
mod sessions;
mod shares;
mod shelf;
mod spares;
mod tell;
#[cfg(test)]
mod tests;
mod translate;
mod turns;
mod visits;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use elver_core::{ClientId, Completion, Core, Event, VqpId, VqpInfo};
use elver_portal::{Layout, Listener, RefusalCode, Scratch};
use elver_soft::{Copier, SoftDevice};
use elver_verbs::{Time, Wc};
use rustix::process::Pid;

pub(crate) use counters::EngineCounters;
pub(crate) use notice::{Inlet, Notice, Outlet, channel};

use self::account::Host;
use self::directs::Directs;
use self::door::{Door, EVENTS_MAX, INLET, LISTENER, PROCESS};
use self::heirs::Sets;
use self::looks::Looks;
use self::maker::Maker;
use self::membership::Membership;
use self::notice::NOTICES_MAX;
use self::quota::Usage;
use self::sessions::Sessions;
use self::sessions::ends::End;
use self::translate::Refused;
use self::visits::Visits;
use crate::NodeError;
use crate::capture::{NAMES_MAX, VqpName};
use crate::clock::now;
use crate::config::Config;
use crate::pulse::Pulse;
use crate::slow::RegistryView;
use crate::status::Status;

/// Looks of a thread at the sessions' rings for one at the device, while nothing happens: a look at
/// the device is a system call.
const LOOKS: u32 = 8;
/// Time between two looks at the sockets, while awake: it is a system call too, for which a round
/// without work is a good moment.
const SOCKETS_NS: u64 = 5_000;
/// The same for a thread of which no session wants anything: whoever comes is the only one that
/// waits.
const SOCKETS_NS_ALONE: u64 = 1_000;
/// The same where nobody can come.
const SOCKETS_NS_CLOSED: u64 = 200_000;
/// The longest time that this waits for such a round.
const SOCKETS_NS_MAX: u64 = 20_000;
/// Time between two rounds of tidying.
const TIDY_NS: u64 = 200_000;
/// So long after a process has got its session it begins to use it, and is not kept waiting for what others may need, or
/// have left: a session's memory takes the kernel long to make and to give back.
const BEGINS_NS: u64 = 1_000_000;
/// The longest time that what others have left waits for such a moment.
const CLEAR_NS_MAX: u64 = 20_000_000;
/// Time between two looks at the files that processes have, where memory is short.
const ROOM_NS: u64 = 10_000_000;
/// Processes that are let in at a look.
const ACCEPTS_MAX: usize = 16;
/// So long after a process connected its hello is looked for in every round, and only then is its
/// socket watched: most say it at once, and should not wait for that.
const NEWCOMER_NS: u64 = 20_000;
/// Processes of which the hello is looked for, or that said it just now.
const NEWCOMERS_MAX: usize = 16;
/// So long after it connected a process is watched that has said hello. Until then its rings are looked at
/// in every round in any case, and what it asks for first should not wait for that.
const BEGINNER_NS: u64 = 300_000;
/// Completions that are handed to a session at a turn.
const COMPLETIONS_MAX: usize = 64;
/// The longest sleep while something must be looked at that nobody tells of: a session that takes
/// its completions, the end of a lease.
const SLEEP_NS_WATCHFUL: u64 = 1_000_000;

/// Ports that the core gives to those who ask for any.
const FREE_PORTS: u32 = 16_384;

/// Who drives an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// A thread that does nothing else.
    Thread,
    /// The owner of the node, which as a rule is also the one whose requests there are.
    Client,
}

pub(crate) struct Engine {
    core: Core<SoftDevice>,
    config: Config,
    sessions: Sessions,
    /// Sessions that are made ahead for children of processes.
    sets: Sets,
    /// Processes that reach memory of others themselves.
    directs: Directs,
    door: Door,
    /// Processes that connected just now, by their tokens: not watched yet.
    newcomers: Vec<u64>,
    visits: Visits,
    /// The last round has told a process something.
    has_told: bool,
    /// The last round has let a process in.
    has_let_in: bool,
    host: Host,
    membership: Membership,
    scratch: Scratch,
    completions: Vec<Completion>,
    /// Events of clients that the node's owner opened.
    events: VecDeque<Event>,
    counters: EngineCounters,
    looked_at: Time,
    tidied_at: Time,
    busy_at: Time,
    opened_at: Time,
    cleared_at: Time,
    room_at: Time,
    // The maker's thread may wait for room in the inlet, which must go first.
    inlet: Inlet,
    maker: Maker,
    looks: Looks,
    /// Copies for users who could keep the engine waiting.
    copier: Arc<Copier>,
    /// What the registry beside this meta server has seen.
    registry: Option<RegistryView>,
    /// Says to other threads that the engine turns, and its rounds so far.
    pulse: Arc<Pulse>,
    turns: u64,
    /// Mappings that this process had lost when that was last looked at.
    faults: u64,
}

impl Engine {
    pub(crate) fn new(
        core: Core<SoftDevice>,
        config: Config,
        listener: Option<Listener>,
        inlet: Inlet,
        outlet: Outlet,
        pulse: Arc<Pulse>,
    ) -> Result<Engine, NodeError> {
        let system = |call| move |reason| NodeError::System { call, reason };
        let spares = config.socket.spare_sessions as usize;
        let door =
            Door::new(listener, inlet.as_fd(), spares).map_err(system("preparing sessions"))?;
        let looks = Looks::new(outlet.clone());
        let maker = Maker::start(outlet).map_err(system("starting a thread"))?;
        let most = Layout {
            command_slots: config.socket.command_slots,
            receive_slots: config.socket.receive_slots,
            completion_slots: config.socket.completion_slots,
        };
        let total = Usage {
            sessions: config.quota.sessions_total,
            vqps: config.pool.max_vqps,
            ports: FREE_PORTS,
            mrs: config.memory.max_mrs,
            bytes: u64::MAX,
            mappings: room::mappings(config.memory.max_mappings),
            leased_wrs: config.transfer.leased_wrs_max,
        };
        let mut sessions = Sessions::new(config.quota.clone(), total, most);
        sessions.quotas.classes = config.classes()?;
        let directs = Directs::new(&config.direct);
        let copier = Arc::new(Copier::new(Duration::from_millis(config.memory.patience_ms)));
        let none = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
        Ok(Engine {
            core,
            config,
            sessions,
            sets: Sets::default(),
            directs,
            door,
            newcomers: Vec::with_capacity(NEWCOMERS_MAX),
            visits: Visits::default(),
            has_told: false,
            has_let_in: false,
            host: Host::own(),
            membership: Membership::default(),
            scratch: Scratch::default(),
            completions: vec![none; COMPLETIONS_MAX],
            events: VecDeque::new(),
            counters: EngineCounters::default(),
            looked_at: Time::ZERO,
            tidied_at: Time::ZERO,
            busy_at: Time::ZERO,
            opened_at: Time::ZERO,
            cleared_at: Time::ZERO,
            room_at: Time::ZERO,
            inlet,
            maker,
            looks,
            copier,
            registry: None,
            pulse,
            turns: 0,
            faults: elver_soft::fault::faults(),
        })
    }

    /// The status shows where the node is to register, and what its own registry has seen.
    pub(crate) fn show_registries(&mut self, all: &[SocketAddr], own: Option<RegistryView>) {
        self.membership.registries = all.to_vec();
        self.registry = own;
    }

    pub(crate) fn core(&mut self) -> &mut Core<SoftDevice> {
        &mut self.core
    }

    /// Takes an event of a client that is none of the engine's sessions.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// One round; whether anything happened.
    #[inline]
    pub(crate) fn poll(&mut self, driver: Driver) -> bool {
        let now = now();
        self.has_told = false;
        self.has_let_in = false;
        self.turns += 1;
        self.pulse.turned(self.turns);
        // What the driver itself asks for stands there already, and may be done at once; nothing
        // more can come while it waits.
        let mut busy = driver == Driver::Client && self.serve(now);
        busy |= self.core.poll(now);
        busy |= self.tell(now);
        let mut looks = match driver {
            Driver::Client => 0,
            // What came in is answered before the device is asked again.
            Driver::Thread if busy => 1,
            Driver::Thread => LOOKS,
        };
        while looks > 0 && self.sessions.any_active() {
            if self.serve(now) {
                busy = true;
                self.tell(now);
                break;
            }
            looks -= 1;
            if looks > 0 {
                std::hint::spin_loop();
            }
        }
        let patience = match driver {
            _ if self.sessions.len() == 0 && !self.door.is_open() => SOCKETS_NS_CLOSED,
            _ if busy => SOCKETS_NS_MAX,
            Driver::Thread if !self.sessions.any_active() => SOCKETS_NS_ALONE,
            _ => SOCKETS_NS,
        };
        if now.ns_since(self.looked_at) >= patience {
            busy |= self.look(now);
        }
        if !self.newcomers.is_empty() {
            self.meet(now);
        }
        for _ in 0..NOTICES_MAX {
            let Some(notice) = self.inlet.next() else { break };
            self.heed(notice, now);
            busy = true;
        }
        if busy {
            self.busy_at = now;
            self.wake_clients();
        }
        if now.ns_since(self.tidied_at) >= TIDY_NS {
            self.tidy(now);
        }
        busy
    }

    /// Whether the last round has told a process something.
    #[inline]
    pub(crate) fn has_told(&self) -> bool {
        self.has_told
    }

    /// Whether the last round has let a process in.
    #[inline]
    pub(crate) fn has_let_in(&self) -> bool {
        self.has_let_in
    }

    /// Sleeps until there is something to do, at most so long. Returns at once if there is already.
    pub(crate) fn rest(&mut self, at_most: Duration) -> Result<(), NodeError> {
        let now = now();
        while let Some(token) = self.newcomers.pop() {
            self.watch(token, now);
        }
        if !self.sessions.all_sleep() {
            return Ok(());
        }
        let mut wait = at_most;
        for due in self.core.poll_timeout().into_iter().chain(self.sets.due()) {
            wait = wait.min(Duration::from_nanos(due.ns_since(now)));
        }
        if self.sessions.needs_watching()
            || self.sets.is_busy()
            || self.door.is_paused()
            || self.sessions.quotas.is_parting()
            || !self.directs.is_idle()
        {
            wait = wait.min(Duration::from_nanos(SLEEP_NS_WATCHFUL));
        }
        self.counters.sleeps += 1;
        let slept = self.core.device().wait_beside(wait, Some(self.door.as_fd()));
        slept.map_err(NodeError::Device)?;
        // So that the next round looks at the sockets.
        self.looked_at = Time::ZERO;
        Ok(())
    }

    /// Whether the memory that ended sessions had by themselves is given back now: not while a process is about to begin; but then, as they come
    /// without an end, all the same.
    fn may_clear(&mut self, now: Time) -> bool {
        let begins = now.ns_since(self.opened_at) < BEGINS_NS;
        let may = !begins || now.ns_since(self.cleared_at) >= CLEAR_NS_MAX;
        if may {
            self.cleared_at = now;
        }
        may
    }

    /// Takes what active sessions have put in.
    #[inline]
    fn serve(&mut self, now: Time) -> bool {
        let mut busy = false;
        self.sessions.turns.begin();
        while let Some((slot, most)) = self.sessions.turns.next() {
            let Some(open) = self.sessions.open(slot) else { continue };
            if !open.owes() && !open.stalled && open.end.is_idle() {
                continue;
            }
            let (something, wrs) = self.serve_one(slot, most, now);
            busy |= something;
            self.sessions.turns.took(wrs);
        }
        busy
    }

    /// Looks at the sockets: new processes, messages, the ends of sessions.
    #[cold]
    fn look(&mut self, now: Time) -> bool {
        self.looked_at = now;
        let mut tokens = [0; EVENTS_MAX];
        let count = self.door.ready(&mut tokens);
        for &token in &tokens[..count] {
            match token {
                LISTENER => self.accept(now),
                INLET => self.inlet.hush(),
                token if token & PROCESS != 0 => self.bereave(token & !PROCESS, now),
                token => self.attend(token, now),
            }
        }
        count > 0
    }

    fn accept(&mut self, now: Time) {
        for _ in 0..ACCEPTS_MAX {
            match self.door.accept() {
                Ok(Some(socket)) => {
                    self.admit(socket, now);
                    // Its hello is most often there by now.
                    self.meet(now);
                    if self.has_told {
                        // It goes first, and whoever else waits is seen at the next look.
                        self.looked_at = Time::ZERO;
                        return;
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    // Out of descriptors: who waits is let in when there are some again.
                    self.counters.accepts_failed += 1;
                    self.door.pause();
                    return;
                }
            }
        }
    }

    fn heed(&mut self, notice: Notice, now: Time) {
        match notice {
            Notice::News(news) => self.membership.take(news, &mut self.core, now),
            Notice::Put { gid, record, answer } => {
                let put = self.core.meta_put(gid, record).map_err(|error| error.to_string());
                // Who asked may have given up.
                let _ = answer.try_send(put);
            }
            Notice::Remove { gid } => {
                self.core.meta_remove(gid);
            }
            Notice::Status { answer } => {
                let _ = answer.try_send(self.status());
            }
            Notice::Tap { tap, answer } => {
                let device = self.core.device();
                device.set_tap(Some(tap));
                let _ = answer.try_send((device.link_type(), device.config().name.clone()));
            }
            Notice::Untap { answer } => {
                self.core.device().set_tap(None);
                let _ = answer.try_send(());
            }
            Notice::Names { answer } => {
                let _ = answer.try_send(self.names());
            }
            Notice::Adopt { socket } => self.admit(socket, now),
            Notice::Made(made) => self.deliver(made, now),
            Notice::Filed(filed) => {
                let tools = (&mut self.core, &self.maker);
                self.sets.filed(filed, &mut self.sessions, tools, now);
            }
            Notice::Cleared(cleared) => self.cleared(cleared, now),
            Notice::Readied(readied) => {
                let tools = (&mut self.core, &self.maker);
                self.sets.readied(*readied, &mut self.sessions, tools, now);
            }
            Notice::Looked(looked) => {
                if let Some((look, found)) = self.looks.end(looked) {
                    self.register(look, found.map_err(Into::into), now);
                }
            }
        }
    }

    /// What is done now and then: silent sessions are put to rest, and ended ones forgotten.
    #[cold]
    fn tidy(&mut self, now: Time) {
        self.tidied_at = now;
        self.visits.forget(now);
        self.door.resume();
        for look in self.looks.overdue(|payer| self.copier.overdue(payer), now) {
            let text = "reading it took too long; keep it in a file system that answers, or allocate \
                        it at the node instead (Session::alloc)";
            self.register(look, Err(Refused::new(RefusalCode::Permission, text)), now);
        }
        if elver_soft::fault::faults() != self.faults {
            self.mourn(now);
        }
        self.door.spares.tend(now);
        let idle_ns = self.config.engine.session_idle_us.saturating_mul(1_000);
        self.sessions.rest_idle(idle_ns, now);
        self.sessions.partings.tend(now);
        if !self.directs.is_idle() {
            self.settle_directs(now);
        }
        self.sets.give_back_places(&self.maker);
        let may_clear = self.may_clear(now);
        let (core, directs) = (&self.core, &self.directs);
        self.sessions.quotas.tend(|client, vqp| core.is_going(client, vqp));
        let is_gone = |client| core.client_is_gone(client) && !directs.keeps(client);
        let Sessions { ghosts, quotas, .. } = &mut self.sessions;
        ghosts.clear_gone(is_gone, (&self.maker, !may_clear), quotas, now);
        for slot in self.sessions.left(is_gone) {
            let result = self.sessions.say_goodbye(slot, &self.maker);
            self.sessions.activate(slot, now);
            self.settle(slot, result, now);
        }
        let asides = &self.maker.asides;
        asides.tend(now);
        if now.ns_since(self.room_at) >= ROOM_NS {
            self.room_at = now;
            room::tend(|account, look| asides.run(account, move |_| look.finish()));
        }
        self.sets.tend(&mut self.sessions, (&mut self.core, &self.maker), now);
        for slot in self.sessions.silent(now) {
            self.counters.greetings_missed += 1;
            self.end(slot, End::Rejected, now);
        }
        self.wake_clients();
    }

    /// Ends the sessions that share memory with the node no more.
    #[cold]
    fn mourn(&mut self, now: Time) {
        // First: what is lost meanwhile is found the next time.
        self.faults = elver_soft::fault::faults();
        for slot in self.sessions.bereft() {
            self.counters.sessions_lost_memory += 1;
            self.end(slot, End::Violation, now);
        }
    }

    /// Wakes the processes that sleep and have something to take.
    fn wake_clients(&mut self) {
        let told = self.sessions.wake(&mut self.counters);
        self.has_told |= told > 0;
    }

    /// Which VQPs send on which queue pairs: the first of them.
    fn names(&self) -> Vec<VqpName> {
        let named = |vqp: VqpInfo| {
            let (peer, port) = vqp.peer?;
            let (qpn, peer_qpn) = self.core.qp_of(vqp.vqp)?;
            let pid = self.sessions.pid_of(vqp.client).map(Pid::as_raw_pid);
            Some(VqpName { vqp: vqp.vqp.0, pid, peer: peer.to_ip(), port, qpn, peer_qpn })
        };
        self.core.vqps().take(NAMES_MAX).filter_map(named).collect()
    }

    /// How the node is.
    pub(crate) fn status(&mut self) -> Status {
        let mut status = Status::of(&self.core);
        let by_name = |(name, value): (&str, u64)| (name.to_string(), value);
        status.engine = self.counters.iter().map(by_name).collect();
        status.device = self.core.device().counters().iter().map(by_name).collect();
        status.meta_servers =
            self.membership.servers.iter().map(|server| server.gid.to_ip()).collect();
        status.registries.clone_from(&self.membership.registries);
        status.registered = self.membership.registered as u32;
        status.refusals = self.membership.refused_by.clone();
        status.engine.insert("registrations_refused".to_string(), self.membership.refusals);
        let elver_soft::CopierCounters { waited, given_up, bans, refused } = self.copier.counters();
        let waiting = self.core.device().waiting_bytes();
        let asides = self.maker.asides.counts();
        let heirs = self.sets.counts;
        for (name, value) in [
            ("copies_waited", waited),
            ("copies_given_up", given_up),
            ("copies_banned", bans),
            ("copies_refused", refused),
            ("memory_bytes_waiting", waiting),
            ("mappings", self.sessions.quotas.mappings().into()),
            ("leases_refused_user", self.sessions.quotas.leases_refused),
            ("asides_standing", asides.standing),
            ("asides_waiting", asides.waiting),
            ("asides_put_off", asides.put_off),
            ("heirs_prepared", heirs.prepared),
            ("heirs_inherited", heirs.inherited),
            ("heirs_returned", heirs.returned),
            ("heirs_refused", heirs.refused),
            ("heirs_free", self.sets.free()),
            ("regions_unplaced", self.maker.unplaced()),
        ] {
            status.engine.insert(name.to_string(), value);
        }
        status.engine.insert("hangs".to_string(), self.pulse.hangs());
        status.engine.insert("rounds".to_string(), self.turns);
        if let Some(registry) = &self.registry {
            // Who panicked while it wrote has left it whole.
            let seen = *registry.lock().unwrap_or_else(PoisonError::into_inner);
            status.registry = seen.iter().map(by_name).collect();
        }
        let counts = self.directs.counts(&self.sessions);
        for (name, value) in [
            ("direct_reads", counts.reads),
            ("direct_writes", counts.writes),
            ("direct_bytes", counts.bytes),
        ] {
            status.engine.insert(name.to_string(), value);
        }
        for vqp in &mut status.vqps {
            if self.sessions.goes_direct(ClientId(vqp.client), vqp.vqp) {
                vqp.way = "direct".to_string();
            }
        }
        status.sessions = self.sessions.describe(&self.core);
        status.users = self.sessions.users();
        status
    }
}
