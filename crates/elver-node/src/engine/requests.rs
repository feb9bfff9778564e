//! What processes ask for: to be let in, commands, posts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use elver_core::{Core, VqpId};
use elver_portal::{
    ARENA_BYTES, Answer, Command, First, Layout, Limits, Message, Peer, Received, Receives,
    RecvBatch, RefusalCode, Request, SendBatch, Socket, Violation, Welcome, parent_of,
};
use elver_soft::{Copier, ProcessMemory, SoftDevice, SoftMemory};
use elver_verbs::{AccessFlags, Device, Gid, Time, Wc, WcOpcode, WcStatus};
use rustix::process::{Pid, getpid};

use super::account::{Account, Customer};
use super::directs::Whose;
use super::door::Door;
use super::heirs::{Child, Ordered, Parent, SetOrder};
use super::held::Held;
use super::looks::{Look, Looks};
use super::maker::Maker;
use super::orders::{Made, Order, Piece};
use super::quota::{Quotas, Usage};
use super::session::{Open, Owed, Region, Session};
use super::sessions::{End, GREETINGS_MAX, Sessions};
use super::shares::Share;
use super::translate::{self, Refused};
use super::{BEGINNER_NS, Engine, NEWCOMER_NS, NEWCOMERS_MAX};

/// Requests that are taken from a session at a turn.
const REQUESTS_MAX: usize = 64;
/// Commands of a session whose answer is to come.
const PENDING_MAX: u32 = 65_536;
/// Bytes of the largest region that the node allocates: no machine has as many, and sums of them
/// stay in range.
const ALLOC_BYTES_MAX: u64 = 1 << 46;
/// What a command counts for among WRs, and one that makes or looks at memory.
const WRS_PER_COMMAND: u32 = 8;
const WRS_PER_SLOW: u32 = 64;
/// Messages that are read from a session's socket at a look.
const MESSAGES_MAX: usize = 4;

/// What a command comes to: an answer now, or later.
type Outcome = Result<Option<Answer<'static>>, Refused>;

impl Engine {
    /// A process connected.
    pub(super) fn admit(&mut self, socket: Socket, now: Time) {
        let Ok(peer) = socket.peer() else {
            self.counters.sessions_rejected += 1;
            return;
        };
        // Who is too much is told so when it has said hello: before, it would not hear.
        let most = self.config.quota.sessions_total as usize + GREETINGS_MAX as usize;
        let known = Customer::over(&socket, &peer, &self.config.quota, self.host);
        if self.sessions.len() >= most || self.sessions.is_crowded(known.0.account) {
            self.counters.sessions_rejected += 1;
            return;
        }
        let (_, token) = self.sessions.insert(socket, peer, known, now);
        if self.newcomers.len() < NEWCOMERS_MAX {
            self.newcomers.push(token);
        } else {
            self.watch(token, now);
        }
    }

    /// Looks whether processes that have just connected have said hello, and watches those that did
    /// a while ago, or did not in time.
    #[cold]
    pub(super) fn meet(&mut self, now: Time) {
        let mut index = 0;
        while let Some(&token) = self.newcomers.get(index) {
            if self.unwatched(token).is_some_and(|session| session.open.is_none()) {
                self.attend(token, now);
            }
            let is_settled = self.unwatched(token).is_none_or(|session| {
                let patience = if session.open.is_some() { BEGINNER_NS } else { NEWCOMER_NS };
                now.ns_since(session.since) >= patience
            });
            if is_settled {
                self.newcomers.swap_remove(index);
                self.watch(token, now);
            } else {
                index += 1;
            }
        }
    }

    /// A session that is there and not watched.
    fn unwatched(&mut self, token: u64) -> Option<&mut Session> {
        let slot = self.sessions.of_token(token)?;
        self.sessions.get(slot).filter(|session| !session.watched)
    }

    /// Watches a session's socket and its process, from now on.
    pub(super) fn watch(&mut self, token: u64, now: Time) {
        let Some(slot) = self.sessions.of_token(token) else { return };
        let own = self.host.pid;
        let watched = self.sessions.get(slot).map(|one| watch(&self.door, one, token, own));
        if !matches!(watched, Some(Ok(()))) {
            self.end(slot, End::Rejected, now);
        }
    }

    /// A session's process has ended, whoever else holds its socket.
    pub(super) fn bereave(&mut self, token: u64, now: Time) {
        if let Some(slot) = self.sessions.of_token(token) {
            self.end(slot, End::Closed, now);
        }
    }

    /// Reads what a session's socket has.
    pub(super) fn attend(&mut self, token: u64, now: Time) {
        for _ in 0..MESSAGES_MAX {
            let Some(slot) = self.sessions.of_token(token) else { return };
            let Some(session) = self.sessions.get(slot) else { return };
            let begun = session.open.is_some();
            match session.socket.receive(false) {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(Message::Hello { layout, first }, _)) if !begun => {
                    // It has nothing more to say before it is welcome.
                    return self.welcome(slot, layout, first, now);
                }
                Ok(Received::Message(Message::Inherit { set, heir }, _)) if !begun => {
                    self.inherit(slot, set, heir, now);
                }
                Ok(Received::Message(Message::Wake, _)) if begun => {
                    self.sessions.activate(slot, now);
                }
                Ok(Received::Message(..)) => {
                    self.counters.violations_message += 1;
                    self.end(slot, End::Violation, now);
                }
                Ok(Received::Invalid(error)) => {
                    self.counters.violations_message += 1;
                    let text = error.to_string();
                    let _ = session.socket.send(&Message::Rejected { text }, None);
                    self.end(slot, End::Violation, now);
                }
                Ok(Received::Closed) | Err(_) => self.end(slot, End::Closed, now),
            }
        }
    }

    /// A process said hello.
    fn welcome(&mut self, slot: u32, layout: Layout, first: Option<First>, now: Time) {
        match self.begin(slot, layout, first, now) {
            Ok(()) => {
                self.counters.sessions_opened += 1;
                self.opened_at = now;
                self.has_told = true;
                self.sessions.activate(slot, now);
            }
            Err(refused) => {
                if let Some(session) = self.sessions.get(slot) {
                    let text = refused.text;
                    let _ = session.socket.send(&Message::Rejected { text }, None);
                }
                self.end(slot, End::Rejected, now);
            }
        }
    }

    /// A process says that it takes a session over which its parent prepared.
    fn inherit(&mut self, slot: u32, set: u32, heir: Option<u32>, now: Time) {
        let Some(session) = self.sessions.get(slot) else { return };
        let child = child(session);
        match self.sets.inherit(set, heir, child) {
            Ok((child, open)) => {
                if let Some((set, heir)) = open.heir {
                    self.sets.begun((set, heir), child.pid);
                    // If it is gone, its socket tells so.
                    let _ = session.socket.send(&Message::Inherited { heir }, None);
                }
                self.sessions.take_over(slot, open, child.parent);
                self.sessions.activate(slot, now);
                self.counters.sessions_opened += 1;
                self.opened_at = now;
            }
            Err(refused) => {
                let text = refused.text;
                let _ = session.socket.send(&Message::Rejected { text }, None);
                self.end(slot, End::Rejected, now);
            }
        }
    }

    fn begin(
        &mut self,
        slot: u32,
        wanted: Layout,
        first: Option<First>,
        now: Time,
    ) -> Result<(), Refused> {
        let quota = &self.sessions.limits;
        let (total, alloc_bytes) = (quota.sessions_total, quota.bytes);
        if self.sessions.begun() >= total as usize {
            let text = format!(
                "the node has {total} sessions already; end some or raise `quota.sessions_total` \
                 of elverd"
            );
            return Err(Refused::new(RefusalCode::Limit, text));
        }
        let layout = wanted.granted(self.sessions.most);
        let spare = self.door.memory(layout)?;
        let Some(session) = self.sessions.get(slot) else { return Ok(()) };
        let account = session.account();
        let limits = self.sessions.client_limits(account);
        let message_bytes = u64::from(self.core.device().query_port().max_msg_sz);
        let pool = &self.config.pool;
        let welcome = Welcome {
            layout,
            gid: self.core.gid(),
            limits: Limits {
                max_sge: pool.max_sge,
                max_inline: pool.max_inline,
                max_vqp_wr: pool.max_vqp_wr,
                vqps: limits.vqps,
                mrs: limits.mrs,
                completions: limits.completions,
                message_bytes,
                alloc_bytes,
            },
            first: first.is_some(),
        };
        let client = self.core.client_open(limits)?;
        let open = Open::new(client, spare, now);
        if let Err(refused) = self.sessions.begin(slot, open) {
            self.core.client_close(client, now);
            return Err(refused);
        }
        if let Some(first) = first {
            // Before the process is told, which maps its memory while the peer is looked up.
            let begun = self.begin_first(slot, first, now);
            self.settle(slot, begun, now);
        }
        let Some(session) = self.sessions.get(slot) else { return Ok(()) };
        let Some(open) = &session.open else { return Ok(()) };
        session.socket.send(&Message::Welcome(welcome), Some(open.backing.as_fd()))?;
        Ok(())
    }

    /// Makes the VQP that a greeting asked for, and begins to connect it.
    fn begin_first(&mut self, slot: u32, first: First, now: Time) -> Result<(), Violation> {
        let Engine { core, sessions, counters, maker, looks, copier, .. } = self;
        let tools = Tools { core, maker, looks, copier };
        let Some(mut desk) = Desk::of(sessions, slot, tools, now) else { return Ok(()) };
        let First { options, gid, port, connect } = first;
        let created = desk.command(First::CREATE, Command::CreateVqp(options));
        counters.commands += 1;
        let vqp = match &created {
            Ok(Some(Answer::Vqp(vqp))) => Some(*vqp),
            _ => None,
        };
        let connected = vqp.map(|vqp| {
            counters.commands += 1;
            let command = Command::Connect { vqp, gid, port, options: connect };
            desk.command(First::CONNECT, command)
        });
        counters.commands_refused += desk.open.conclude(First::CREATE, created)?;
        if let Some(connected) = connected {
            counters.commands_refused += desk.open.conclude(First::CONNECT, connected)?;
        }
        Ok(())
    }

    /// Takes what a session has put in, up to a bound and about `most` WRs; whether there was anything,
    /// and how many WRs.
    #[inline]
    pub(super) fn serve_one(&mut self, slot: u32, most: u32, now: Time) -> (bool, u32) {
        let mut wrs = 0;
        let result = self.serve_rings(slot, most, &mut wrs, now);
        let busy = !matches!(result, Ok(false));
        self.settle(slot, result.map(|_| ()), now);
        (busy, wrs)
    }

    #[inline]
    fn serve_rings(
        &mut self,
        slot: u32,
        most: u32,
        taken: &mut u32,
        now: Time,
    ) -> Result<bool, Violation> {
        let Some(open) = self.sessions.open(slot) else { return Ok(false) };
        open.repay()?;
        if open.owes() {
            return Ok(open.touched);
        }
        if open.stalled {
            if open.completions_room()? == 0 {
                return Ok(false);
            }
            self.hand_out(slot, now);
        }
        let Engine {
            core, sessions, scratch, counters, maker, looks, copier, sets, directs, ..
        } = self;
        let tools = Tools { core, maker, looks, copier };
        let Some(mut desk) = Desk::of(sessions, slot, tools, now) else { return Ok(true) };
        if desk.open.goodbye.is_some() {
            return Ok(false);
        }
        desk.open.last = now;
        let mut busy = false;
        for _ in 0..REQUESTS_MAX {
            if desk.open.owes() || *taken >= most {
                break;
            }
            let Some(Receives { vqp, wrs }) = desk.open.end.next_receives(scratch)? else { break };
            busy = true;
            counters.receives += wrs.len() as u64;
            *taken += wrs.len() as u32;
            counters.posts_refused += desk.open.post_receives(desk.tools.core, vqp, wrs, now)?;
        }
        let (mut goodbye, mut share, mut ordered) = (None, None, None);
        let (mut reach, mut shut) = (None, None);
        for _ in 0..REQUESTS_MAX {
            if desk.open.owes() || *taken >= most {
                break;
            }
            let Some(request) = desk.open.end.next_request(scratch)? else { break };
            busy = true;
            match request {
                Request::Sends { vqp, wrs } => {
                    counters.sends += wrs.len() as u64;
                    *taken += wrs.len() as u32;
                    counters.posts_refused +=
                        desk.open.post_sends(desk.tools.core, vqp, wrs, now)?;
                }
                Request::Unknown { request, kind } => {
                    counters.commands_refused += 1;
                    *taken += WRS_PER_COMMAND;
                    let text = format!(
                        "elverd {} does not know the command {kind}; update it and restart it",
                        env!("CARGO_PKG_VERSION")
                    );
                    let refused = Refused::new(RefusalCode::Unsupported, text);
                    desk.open.reply(Owed::Refused { request, refused })?;
                }
                Request::Command { request, command: Command::Goodbye } => {
                    goodbye = Some((desk.open.client, request));
                    break;
                }
                Request::Command { request, command: Command::ShareMr { lkey, addr, access } } => {
                    counters.commands += 1;
                    // All sessions are looked through: the others' turn.
                    *taken += WRS_PER_SLOW;
                    share = Some((request, Share { lkey, addr, access }));
                    break;
                }
                Request::Command { request, command: Command::Reach { vqp, rkey } } => {
                    counters.commands += 1;
                    *taken += WRS_PER_SLOW;
                    reach = Some((request, (vqp, rkey)));
                    break;
                }
                Request::Command { request, command } => {
                    counters.commands += 1;
                    if let Some(order) = SetOrder::of(&command) {
                        *taken += WRS_PER_SLOW;
                        let parent = desk.who.as_parent();
                        ordered = Some((request, order, parent));
                        break;
                    }
                    let is_slow =
                        matches!(command, Command::AllocMr { .. } | Command::RegisterMr { .. });
                    *taken += if is_slow { WRS_PER_SLOW } else { WRS_PER_COMMAND };
                    let outcome = desk.command(request, command);
                    if let (Command::DeregisterMr { lkey }, Ok(None)) = (command, &outcome) {
                        shut = Some((lkey, Whose::Region { token: desk.who.token(), request }));
                    }
                    counters.commands_refused += desk.open.conclude(request, outcome)?;
                    // It took the time of many: the others' turn. A region that goes is shut to others first.
                    if is_slow || shut.is_some() {
                        break;
                    }
                }
            }
        }
        desk.open.wrs += u64::from(*taken);
        if let Some((lkey, whose)) = shut {
            directs.shut(lkey, Some(whose), sessions, now);
        }
        if let Some((request, whom)) = reach {
            let reply = match directs.reach((slot, request), whom, sessions, core, now) {
                Ok(answer) => Owed::Answer { request, answer },
                Err(refused) => {
                    counters.commands_refused += 1;
                    Owed::Refused { request, refused }
                }
            };
            sessions.reply(slot, reply)?;
        }
        if let Some((request, share)) = share {
            let reply = match sessions.share(slot, share, core) {
                Ok(answer) => Owed::Answer { request, answer },
                Err(refused) => {
                    counters.commands_refused += 1;
                    Owed::Refused { request, refused }
                }
            };
            sessions.reply(slot, reply)?;
        }
        if let Some((request, order, parent)) = ordered {
            let ordered = sets.order(order, parent, request, sessions, core, now);
            let reply = ordered.and_then(|ordered| sessions.hand_set(slot, request, ordered));
            let reply = match reply {
                Ok(None) => return Ok(busy),
                Ok(Some(answer)) => Owed::Answer { request, answer },
                Err(refused) => {
                    counters.commands_refused += 1;
                    Owed::Refused { request, refused }
                }
            };
            sessions.reply(slot, reply)?;
        }
        if let Some((client, request)) = goodbye {
            core.client_close(client, now);
            for lkey in sessions.regions_of(slot) {
                directs.shut(lkey, Some(Whose::Goodbye(client)), sessions, now);
            }
            sessions.leave(slot, request);
        }
        Ok(busy)
    }

    /// Large memory that a session asked for has been made.
    pub(super) fn deliver(&mut self, made: Made, now: Time) {
        let Made { order, result } = made;
        let token = u64::from(order.serial) << 32 | u64::from(order.slot);
        let Some(slot) = self.sessions.of_token(token) else {
            // The process died meanwhile; what it had asked for is counted no more.
            if let Ok(piece) = result {
                self.maker.give_back(piece.memory, piece.bytes);
            }
            return;
        };
        let Engine { core, sessions, counters, .. } = self;
        let Some((session, quotas)) = sessions.get_with_quotas(slot) else { return };
        let account = session.account();
        let Session { socket, open: Some(open), .. } = session else { return };
        let request = order.request;
        let reserved = open.leaving.remove(&request).map_or(Usage::default(), |one| one.usage);
        let outcome = result
            .map_err(NotHanded::from)
            .and_then(|piece| hand_over(core, socket, open, &order, piece, reserved))
            .map_err(|NotHanded { refused, kept }| {
                counters.commands_refused += 1;
                if !kept {
                    quotas.give_back(account, reserved);
                }
                refused
            });
        let result = sessions.answer_later(slot, request, outcome);
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }
}

impl Engine {
    /// Memory that a session registers was looked at.
    pub(super) fn register(&mut self, look: Look, memory: Result<SoftMemory, Refused>, now: Time) {
        let Look { slot, serial, request, addr, access, .. } = look;
        let token = u64::from(serial) << 32 | u64::from(slot);
        // The process may have died meanwhile; then it is counted no more.
        let Some(slot) = self.sessions.of_token(token) else { return };
        let Engine { core, sessions, counters, .. } = self;
        let Some((session, quotas)) = sessions.get_with_quotas(slot) else { return };
        let account = session.account();
        let Some(open) = &mut session.open else { return };
        let usage = open.leaving.remove(&request).map_or(Usage::default(), |one| one.usage);
        let client = open.client;
        let outcome = memory.and_then(|memory| {
            let info = core.reg_mr(client, memory, Some(addr), access)?;
            open.regions.insert(info.lkey, Region { usage, memory: None, backing: None });
            Ok(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: 0 })
        });
        if outcome.is_err() {
            counters.commands_refused += 1;
            quotas.give_back(account, usage);
        }
        let result = sessions.answer_later(slot, request, outcome);
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }
}

impl Open {
    /// Tells what a command came to, unless that is still to be seen; whether it was refused, as a number.
    fn conclude(&mut self, request: u32, outcome: Outcome) -> Result<u64, Violation> {
        match outcome {
            Ok(Some(answer)) => self.reply(Owed::Answer { request, answer })?,
            Ok(None) => self.pending += 1,
            Err(refused) => {
                self.reply(Owed::Refused { request, refused })?;
                return Ok(1);
            }
        }
        Ok(0)
    }

    /// Posts receives; returns how many were refused.
    fn post_receives(
        &mut self,
        core: &mut Core<SoftDevice>,
        vqp: u32,
        wrs: &RecvBatch,
        now: Time,
    ) -> Result<u64, Violation> {
        let mut refused = 0;
        wrs.with(|mut rest| {
            while !rest.is_empty()
                && let Err((done, error)) = core.post_recv(self.client, VqpId(vqp), rest, now)
            {
                refused += 1;
                let status = translate::refused_status(&error);
                self.refuse_wr(vqp, rest[done].wr_id, WcOpcode::Recv, status)?;
                core.refuse_recv(self.client, VqpId(vqp), now);
                rest = &rest[done + 1..];
            }
            Ok(refused)
        })
    }

    /// Posts send WRs; returns how many were refused.
    #[inline]
    fn post_sends(
        &mut self,
        core: &mut Core<SoftDevice>,
        vqp: u32,
        wrs: &SendBatch,
        now: Time,
    ) -> Result<u64, Violation> {
        let mut refused = 0;
        wrs.with(|mut rest| {
            while !rest.is_empty()
                && let Err((done, error)) = core.post_send(self.client, VqpId(vqp), rest, now)
            {
                refused += 1;
                let wr = &rest[done];
                let named = (wr.wr_id, wr.op.opcode());
                let status = translate::refused_status(&error);
                if let Err(status) = core.refuse_send(self.client, VqpId(vqp), named, status, now) {
                    self.refuse_wr(vqp, wr.wr_id, wr.op.opcode().wc_opcode(), status)?;
                }
                rest = &rest[done + 1..];
            }
            Ok(refused)
        })
    }

    /// Completes a WR that was refused and has no place among its VQP's others: it comes at once, ahead
    /// of what is still in flight.
    #[cold]
    fn refuse_wr(
        &mut self,
        vqp: u32,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
    ) -> Result<(), Violation> {
        let wc = Wc { wr_id, status, opcode, qp_num: vqp, ..Wc::default() };
        self.reply(Owed::Completion(elver_portal::Completion { vqp, source: None, wc }))
    }
}

/// Watches a session's socket and its process.
fn watch(door: &Door, session: &mut Session, token: u64, own_pid: Pid) -> io::Result<()> {
    if session.watched {
        return Ok(());
    }
    door.watch(&session.socket, token)?;
    session.watched = true;
    let pid = session.peer.pid;
    match &session.process {
        Some(process) => door.watch_process(process, token),
        // This process need not watch itself, and one in another namespace cannot be found before Linux
        // 6.5: the end of its socket must do.
        None if pid.is_none_or(|pid| pid == own_pid) => Ok(()),
        // It could not be had when it connected: there was no descriptor left, or it had ended.
        None => {
            let process = session.socket.peer_pidfd()?;
            door.watch_process(session.process.insert(process), token)
        }
    }
}

/// Who wants to take a session over, if the system shows whose child he is.
fn child(session: &Session) -> Option<Child> {
    let Peer { pid, uid, .. } = session.peer;
    let pid = pid?;
    // Of the process itself: its number could be another's by now.
    let parent = session.socket.peer_pidfd().and_then(|pidfd| parent_of(pid, pidfd)).ok()??;
    Some(Child { pid, parent, uid, customer: session.customer })
}

/// What the engine has for the commands of all sessions.
struct Tools<'a> {
    core: &'a mut Core<SoftDevice>,
    maker: &'a Maker,
    looks: &'a mut Looks,
    copier: &'a Arc<Copier>,
}

/// Where the commands of one session are dealt with, one after the other.
struct Desk<'a> {
    tools: Tools<'a>,
    quotas: &'a mut Quotas,
    socket: &'a Socket,
    open: &'a mut Open,
    process: Option<&'a OwnedFd>,
    who: Who,
    now: Time,
}

/// Whose command it is.
#[derive(Clone, Copy)]
struct Who {
    pid: Option<Pid>,
    uid: u32,
    gid: u32,
    account: Account,
    is_trusted: bool,
    slot: u32,
    serial: u32,
}

impl Who {
    fn of(peer: Peer, customer: Customer, slot: u32, serial: u32) -> Who {
        let (Peer { pid, uid, gid }, Customer { account, is_trusted }) = (peer, customer);
        Who { pid, uid, gid, account, is_trusted, slot, serial }
    }

    fn customer(&self) -> Customer {
        Customer { account: self.account, is_trusted: self.is_trusted }
    }

    /// What tells the session from all others.
    fn token(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    fn as_parent(&self) -> Parent {
        let Who { pid, uid, gid, .. } = *self;
        Parent { token: self.token(), pid, uid, gid, customer: self.customer() }
    }
}

impl<'a> Desk<'a> {
    /// That of a session which has begun.
    fn of(sessions: &'a mut Sessions, slot: u32, tools: Tools<'a>, now: Time) -> Option<Desk<'a>> {
        let (session, quotas) = sessions.get_with_quotas(slot)?;
        let who = Who::of(session.peer, session.customer, slot, session.serial);
        let Session { socket, process, open, .. } = session;
        let (open, process) = (open.as_mut()?, process.as_ref());
        Some(Desk { tools, quotas, socket, open, process, who, now })
    }

    fn command(&mut self, request: u32, command: Command<'_>) -> Outcome {
        let (client, now) = (self.open.client, self.now);
        if self.open.pending >= PENDING_MAX {
            let text = format!("{PENDING_MAX} commands wait for their answer already");
            return Err(Refused::new(RefusalCode::Busy, text));
        }
        let token = u64::from(request);
        match command {
            Command::CreateVqp(options) => self.create_vqp(options),
            Command::DestroyVqp { vqp } => {
                self.tools.core.vqp_destroy(client, VqpId(vqp), now)?;
                if self.open.vqps.remove(&vqp) {
                    self.quotas.give_back(self.who.account, Usage::VQP);
                }
                if self.open.bound.remove(&vqp) {
                    self.quotas.give_back(self.who.account, Usage::PORT);
                }
                self.open.goes_direct_no_more(vqp);
                Ok(Some(Answer::Done))
            }
            Command::Bind { vqp, port } => self.bind(vqp, port),
            Command::Connect { vqp, gid, port, options } => {
                self.open.goes_direct_no_more(vqp);
                let via =
                    self.tools.core.qconnect(client, VqpId(vqp), gid, port, options, token, now)?;
                Ok(via.map(Answer::Connected))
            }
            Command::Warm { gids } => self.warm(gids, request),
            Command::AllocMr { len, addr, access, huge } => {
                self.alloc(request, (len, addr), access, huge)
            }
            Command::CarveMr { len, offset, addr, access } => self.carve(len, offset, addr, access),
            Command::RegisterMr { addr, len, access } => {
                self.register(request, (len, addr), access)
            }
            Command::DeregisterMr { lkey } => self.deregister(request, lkey),
            Command::QueryVqp { vqp } => {
                let info = self.tools.core.vqp_info(client, VqpId(vqp))?;
                Ok(Some(Answer::Info(translate::vqp_info(&info))))
            }
            // They concern more than one session, or its end, and are done where all are at hand.
            Command::ShareMr { .. }
            | Command::Goodbye
            | Command::Prepare { .. }
            | Command::PrepareVqp { .. }
            | Command::Seal { .. }
            | Command::Disown { .. }
            | Command::Reach { .. } => {
                Err(Refused::new(RefusalCode::State, "the session has said goodbye already"))
            }
        }
    }

    fn create_vqp(&mut self, options: elver_portal::VqpOptions) -> Outcome {
        let class = self.quotas.class_of(
            self.who.customer(),
            (self.who.uid, self.who.gid),
            options.class,
        )?;
        self.quotas.take(self.who.account, Usage::VQP)?;
        match self.tools.core.vqp_create(self.open.client, translate::vqp_init(options, class)) {
            Ok(VqpId(vqp)) => {
                self.open.vqps.insert(vqp);
                Ok(Some(Answer::Vqp(vqp)))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, Usage::VQP);
                Err(error.into())
            }
        }
    }

    fn bind(&mut self, vqp: u32, port: u16) -> Outcome {
        self.quotas.take(self.who.account, Usage::PORT)?;
        match self.tools.core.qbind(self.open.client, VqpId(vqp), port) {
            Ok(port) => {
                self.open.bound.insert(vqp);
                Ok(Some(Answer::Port(port)))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, Usage::PORT);
                Err(error.into())
            }
        }
    }

    fn warm(&mut self, gids: &[Gid], request: u32) -> Outcome {
        self.tools.core.warm(self.open.client, gids, request.into(), self.now)?;
        Ok(None)
    }

    fn alloc(
        &mut self,
        request: u32,
        (len, addr): (u64, u64),
        access: AccessFlags,
        huge: bool,
    ) -> Outcome {
        self.fresh_request(request)?;
        if len > ALLOC_BYTES_MAX {
            let text = format!("{len} bytes in one region, and at most {ALLOC_BYTES_MAX} can be");
            return Err(Refused::new(RefusalCode::OutOfRange, text));
        }
        let (slot, serial) = (self.who.slot, self.who.serial);
        // Who maps a huge page can give it back, and where no other is free the node's next access
        // would kill it.
        let huge = huge && self.who.is_trusted;
        let held = (!self.quotas.is_exempt(self.who.account))
            .then(|| self.quotas.of(self.who.account).bytes);
        let order = Order { slot, serial, request, len, addr, access, huge, held };
        let usage = Usage::region(order.bytes());
        self.quotas.take(self.who.account, usage)?;
        let made =
            self.tools.maker.make(order).map_err(NotHanded::from).and_then(|made| match made {
                Some(piece) => {
                    hand_over(self.tools.core, self.socket, self.open, &order, piece, usage)
                        .map(Some)
                }
                None => {
                    // Among what is leaving, so that it counts if the process dies now.
                    self.open
                        .leaving
                        .insert(request, Region { usage, memory: None, backing: None });
                    Ok(None)
                }
            });
        made.map_err(|NotHanded { refused, kept }| {
            if !kept {
                self.quotas.give_back(self.who.account, usage);
            }
            refused
        })
    }

    fn register(&mut self, request: u32, (len, addr): (u64, u64), access: AccessFlags) -> Outcome {
        let process = match &self.open.process {
            Some(process) => process.clone(),
            None => self.open.process.insert(self.process()?).clone(),
        };
        if !process.is_guarded() {
            let memory = SoftMemory::of_process(process, addr, len)?;
            return self.register_as(memory, addr, access);
        }
        self.fresh_request(request)?;
        let usage = Usage::region(0);
        self.quotas.take(self.who.account, usage)?;
        let (slot, serial) = (self.who.slot, self.who.serial);
        let payer = self.who.account.number();
        let look = Look { slot, serial, request, addr, access, payer };
        if let Err(error) = self.tools.looks.begin(look, process, len) {
            self.quotas.give_back(self.who.account, usage);
            return Err(error.into());
        }
        // Among what is leaving, so that it counts if the process dies now.
        self.open.leaving.insert(request, Region { usage, memory: None, backing: None });
        Ok(None)
    }

    /// Registers a piece of the arena. Its bytes count with the session.
    fn carve(&mut self, len: u64, offset: u64, addr: u64, access: AccessFlags) -> Outcome {
        let memory = self.open.arena.part(offset, len).map_err(|_| {
            let text = format!(
                "{len} bytes at offset {offset} do not lie in a session's arena of {ARENA_BYTES}"
            );
            Refused::new(RefusalCode::OutOfRange, text)
        })?;
        self.register_as(memory, addr, access)
    }

    /// Registers memory whose bytes count for nobody.
    fn register_as(&mut self, memory: SoftMemory, addr: u64, access: AccessFlags) -> Outcome {
        let usage = Usage::region(0);
        self.quotas.take(self.who.account, usage)?;
        match self.tools.core.reg_mr(self.open.client, memory, Some(addr), access) {
            Ok(info) => {
                let region = Region { usage, memory: None, backing: None };
                self.open.regions.insert(info.lkey, region);
                Ok(Some(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: 0 }))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, usage);
                Err(error.into())
            }
        }
    }

    fn process(&self) -> Result<Arc<ProcessMemory>, Refused> {
        let unseen = || {
            let text =
                "the process is none that the node can see: it runs in another PID namespace";
            Refused::new(RefusalCode::Permission, text)
        };
        let pid = self.who.pid.ok_or_else(unseen)?;
        let is_own = pid == getpid();
        let memory = match self.process {
            // Not by its number, which another process may have by now.
            Some(process) => ProcessMemory::open(pid, self.who.uid, process)?,
            None if is_own => ProcessMemory::open(pid, self.who.uid, self.socket.peer_pidfd()?)?,
            None => return Err(unseen()),
        };
        // Whoever drives its own node waits for its own pages.
        if is_own {
            return Ok(Arc::new(memory));
        }
        let payer = self.who.account.number();
        if self.tools.copier.refuses(payer) {
            let text = "memory of a process of this user's took too long to read; try again later, or \
                        allocate it at the node instead (Mr::alloc)";
            return Err(Refused::new(RefusalCode::Busy, text));
        }
        let copier = self.tools.copier.clone();
        Ok(Arc::new(if self.who.is_trusted {
            memory.guarded_where_absent(copier, payer)
        } else {
            memory.guarded(copier, payer)
        }))
    }

    fn deregister(&mut self, request: u32, lkey: u32) -> Outcome {
        self.fresh_request(request)?;
        self.tools.core.dereg_mr(self.open.client, lkey, request.into(), self.now)?;
        if let Some(region) = self.open.regions.remove(&lkey) {
            self.open.leaving.insert(request, region);
        }
        Ok(None)
    }

    /// Two commands that wait must not have one number, or one would take the other's place.
    fn fresh_request(&self, request: u32) -> Result<(), Refused> {
        if self.open.leaving.contains_key(&request) {
            let text = format!("a command of number {request} waits already");
            return Err(Refused::new(RefusalCode::State, text));
        }
        Ok(())
    }
}

/// Registers memory that was made, and sends its file. `usage` is taken from the user's quota
/// already.
fn hand_over(
    core: &mut Core<SoftDevice>,
    socket: &Socket,
    open: &mut Open,
    order: &Order,
    piece: Piece,
    usage: Usage,
) -> Result<Answer<'static>, NotHanded> {
    let memory = piece.memory.clone();
    let info = core
        .reg_mr(open.client, memory, Some(order.addr), order.access)
        .map_err(|error| NotHanded { refused: error.into(), kept: false })?;
    let memory = Some(Held::new(piece.memory, order.addr));
    let backing = Some(piece.file.clone());
    open.regions.insert(info.lkey, Region { usage, memory, backing });
    let message = Message::Memory { request: order.request };
    // A client that does not read its socket keeps the region, unusable, until it ends.
    socket
        .send(&message, Some(piece.file.as_fd()))
        .map_err(|error| NotHanded { refused: error.into(), kept: true })?;
    Ok(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: piece.bytes })
}

impl Sessions {
    /// Hands a process what its order about sets came to; the answer, if it is due now.
    fn hand_set(
        &mut self,
        slot: u32,
        request: u32,
        ordered: Ordered,
    ) -> Result<Option<Answer<'static>>, Refused> {
        let Some(session) = self.get(slot) else { return Ok(None) };
        let Session { socket, open: Some(open), .. } = session else { return Ok(None) };
        Ok(match ordered {
            Ordered::Answer(answer) => Some(answer),
            Ordered::Begun { set, file, bytes } => {
                socket.send(&Message::Memory { request }, Some(file.as_fd()))?;
                Some(Answer::Prepared { set, file_bytes: bytes })
            }
            Ordered::Later => {
                open.pending += 1;
                None
            }
        })
    }
}

/// Why memory was not handed over, and whether it counts all the same.
struct NotHanded {
    refused: Refused,
    kept: bool,
}

impl From<io::Error> for NotHanded {
    fn from(error: io::Error) -> NotHanded {
        NotHanded { refused: error.into(), kept: false }
    }
}
