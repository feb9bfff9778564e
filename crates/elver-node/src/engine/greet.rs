//! Letting processes in: a greeting, a session of one's own or one that was made ahead, and the watch
//! for its end.

use std::io;
use std::os::fd::AsFd;

use elver_portal::{
    Answer, Command, First, Layout, Limits, Message, Peer, Received, RefusalCode, Socket,
    Violation, Welcome, parent_of,
};
use elver_verbs::{Device, Time};
use rustix::process::Pid;

use super::account::{Account, Customer};
use super::desk::{Desk, Tools};
use super::door::Door;
use super::heirs::Child;
use super::session::{Open, Session};
use super::sessions::GREETINGS_MAX;
use super::sessions::ends::End;
use super::translate::Refused;
use super::visits::Unseen;
use super::{BEGINNER_NS, Engine, NEWCOMER_NS, NEWCOMERS_MAX};

/// Times that a session may be woken while it is awake. Who is honest wakes one that sleeps, and is now
/// and then late.
const NEEDLESS_MAX: u32 = 4_096;
/// Messages that are read from a session's socket at a look.
const MESSAGES_MAX: usize = 4;

impl Engine {
    /// A process connected.
    pub(super) fn admit(&mut self, socket: Socket, now: Time) {
        let Ok(peer) = socket.peer() else {
            self.counters.sessions_rejected += 1;
            return;
        };
        let often = "processes of this user connect too often; wait a moment, and longer each time";
        let place = self.visits.place(&peer, self.host);
        if let Err(unseen) = self.visits.may_look(place, now) {
            let (count, text) = match unseen {
                Unseen::Often => (&mut self.counters.visits_refused, often),
                Unseen::Unknown => (
                    &mut self.counters.visits_unknown,
                    "processes connect too often from \
                        namespaces of which the node knows nobody yet; wait a moment, and longer each time",
                ),
            };
            *count += 1;
            return self.turn_away(Account::of_user(peer.uid), socket, text, now);
        }
        let most = self.config.quota.sessions_total as usize + GREETINGS_MAX as usize;
        let known = Customer::over(&socket, &peer, &self.config.quota, self.host);
        let Customer { account, is_trusted } = known.0;
        // Whoever could end the node need not be kept from its time.
        if !is_trusted && !self.visits.enter(account, place, now) {
            self.counters.visits_refused += 1;
            return self.turn_away(account, socket, often, now);
        }
        let all = self.sessions.len() + self.sessions.partings.len();
        if all >= most || self.sessions.is_crowded(account, now) {
            let text = "the node has no place for another session of this user's, those included that are \
                        beginning and those that have ended and left files unread; end some, or raise \
                        `quota.sessions` or `quota.sessions_total` of elverd";
            return self.turn_away(account, socket, text, now);
        }
        // Where it cannot be bounded it is as it was.
        let _ = socket.bound_unread();
        let (_, token) = self.sessions.insert(socket, peer, known, now);
        if self.newcomers.len() < NEWCOMERS_MAX {
            self.newcomers.push(token);
        } else {
            self.watch(token, now);
        }
    }

    /// Says why, and parts with a process before it has a place.
    #[cold]
    fn turn_away(&mut self, account: Account, socket: Socket, text: &str, now: Time) {
        self.counters.sessions_rejected += 1;
        // Who has gone need not hear it.
        let _ = socket.send(&Message::Rejected { text: text.to_string() }, None);
        self.sessions.partings.close(account, socket, now);
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
                    if self.sessions.was_awake(slot) >= NEEDLESS_MAX {
                        self.counters.violations_wakes += 1;
                        self.end(slot, End::Violation, now);
                    } else {
                        self.sessions.activate(slot, now);
                    }
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
                self.has_let_in = true;
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
        let spare = self.door.spares.take(layout, now)?;
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
fn child(session: &mut Session) -> Option<Child> {
    let Peer { pid, uid, .. } = session.peer;
    let pid = pid?;
    // Of the process itself: its number could be another's by now. And its end must be seen.
    let process = match session.process.take() {
        Some(process) => process,
        None => session.socket.peer_pidfd().ok()?,
    };
    let parent = parent_of(pid, session.process.insert(process)).ok()??;
    Some(Child { pid, parent, uid, customer: session.customer })
}
