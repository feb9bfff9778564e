//! What sessions put into their rings: commands and posts; and what was made for them meanwhile.

use elver_core::{Core, VqpId};
use elver_portal::{
    Answer, Command, Receives, RecvBatch, RefusalCode, Request, Scratch, SendBatch, Violation,
};
use elver_soft::{SoftDevice, SoftMemory};
use elver_verbs::{Time, Wc, WcOpcode, WcStatus};

use super::Engine;
use super::desk::{Desk, NotHanded, Tools, hand_over};
use super::directs::Whose;
use super::heirs::preparing::{Ordered, SetOrder};
use super::looks::Look;
use super::orders::{Awaiting, Cleared, Made, Piece};
use super::quota::Usage;
use super::session::{Open, Owed, Region, Session};
use super::shares::Share;
use super::translate::{self, Refused};

/// Requests that are taken from a session at a turn.
const REQUESTS_MAX: usize = 64;
/// What a command counts for among WRs, and one that makes or looks at memory.
const WRS_PER_COMMAND: u32 = 8;
const WRS_PER_SLOW: u32 = 64;

/// What comes behind a session's goodbye is done for nobody; who asks hears so, and that the node lives.
#[cold]
fn refuse_all(
    open: &mut Open,
    scratch: &mut Scratch,
    taken: &mut u32,
    most: u32,
) -> Result<bool, Violation> {
    let mut busy = false;
    for _ in 0..REQUESTS_MAX {
        if open.owes() || *taken >= most {
            break;
        }
        if let Some(Receives { wrs, .. }) = open.end.next_receives(scratch)? {
            *taken += wrs.len() as u32;
        } else {
            match open.end.next_request(scratch)? {
                Some(Request::Sends { wrs, .. }) => *taken += wrs.len() as u32,
                Some(Request::Command { request, .. } | Request::Unknown { request, .. }) => {
                    *taken += WRS_PER_COMMAND;
                    let refused = Refused::parted();
                    open.reply(Owed::Refused { request, refused })?;
                }
                None => break,
            }
        }
        busy = true;
    }
    Ok(busy)
}

impl Engine {
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
        if desk.open.is_parted {
            return refuse_all(desk.open, scratch, taken, most);
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
        let (mut reach, mut shut, mut connect) = (None, None, None);
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
                Request::Command {
                    request,
                    command: Command::Connect { vqp, gid, port, options },
                } if desk.tools.core.is_to_hear(desk.open.client, VqpId(vqp)) => {
                    counters.commands += 1;
                    *taken += WRS_PER_COMMAND;
                    connect = Some((request, Command::Connect { vqp, gid, port, options }, vqp));
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
                    let is_slow = matches!(
                        command,
                        Command::AllocMr { .. }
                            | Command::AllocMrNear { .. }
                            | Command::RegisterMr { .. }
                    );
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
        if let Some((request, command, vqp)) = connect {
            self.tell_before(slot, vqp)?;
            let Engine { core, sessions, counters, maker, looks, copier, .. } = self;
            let tools = Tools { core, maker, looks, copier };
            let Some(mut desk) = Desk::of(sessions, slot, tools, now) else { return Ok(true) };
            let outcome = desk.command(request, command);
            counters.commands_refused += desk.open.conclude(request, outcome)?;
            return Ok(true);
        }
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
            let ordered = sets.order(order, parent, request, sessions, (core, maker), now);
            let reply = match ordered {
                Ok(Ordered::Later) => {
                    if let Some(open) = sessions.open(slot) {
                        open.pending += 1;
                    }
                    return Ok(busy);
                }
                Ok(Ordered::Disowned { waited }) => {
                    sessions.reply(slot, Owed::Answer { request, answer: Answer::Done })?;
                    if let Some(request) = waited {
                        let text = "the set was ended before it was there";
                        let refused = Refused::new(RefusalCode::State, text);
                        sessions.answer_later(slot, request, Err(refused))?;
                    }
                    return Ok(busy);
                }
                Ok(Ordered::Answer(answer)) => Owed::Answer { request, answer },
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
            let token = sessions.at(slot).map_or(0, |session| session.token(slot));
            directs.leaves(token, client);
            sessions.leave(slot, request);
            for waited in sets.part(token, sessions, core, now) {
                sessions.answer_later(slot, waited, Err(Refused::parted()))?;
            }
            for look in looks.forget(token) {
                self.register(look, Err(Refused::parted()), now);
            }
        }
        Ok(busy)
    }

    /// Large memory that a session asked for has been made.
    pub(super) fn deliver(&mut self, made: Made, now: Time) {
        let Made { order, result } = made;
        let (account, request, usage) = (order.account, order.request, order.usage());
        let Engine { core, sessions, counters, maker, .. } = self;
        let slot = sessions.of_token(order.token());
        let waits = slot.filter(|slot| {
            sessions.open(*slot).is_some_and(|open| open.ordered.remove(&request).is_some())
        });
        let Some((slot, (session, quotas))) =
            waits.and_then(|slot| Some((slot, sessions.get_with_quotas(slot)?)))
        else {
            // The session has ended meanwhile, or said goodbye. It counts until it has gone again.
            let cleared = Cleared { account, usage, awaited_by: Awaiting::Nobody };
            let gives = |piece: Piece| maker.give_back(piece.memory, piece.bytes, cleared);
            if result.map_or(true, gives) {
                sessions.quotas.give_back(account, usage);
            }
            return;
        };
        let Session { socket, open: Some(open), .. } = session else { return };
        let outcome = result
            .map_err(NotHanded::from)
            .and_then(|piece| hand_over((core, maker), socket, open, &order, piece, usage))
            .map_err(|NotHanded { refused, kept }| {
                counters.commands_refused += 1;
                if !kept {
                    quotas.give_back(account, usage);
                }
                refused
            });
        let result = sessions.answer_later(slot, request, outcome);
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }

    /// Memory that a session registers was looked at.
    pub(super) fn register(&mut self, look: Look, memory: Result<SoftMemory, Refused>, now: Time) {
        let Look { request, addr, access, .. } = look;
        // The process may have died meanwhile; then it is counted no more.
        let Some(slot) = self.sessions.of_token(look.token()) else { return };
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
