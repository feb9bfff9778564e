//! Sessions are told what has completed, and what has happened to them.

use elver_core::{ClientId, ConnectError, Event, VqpId, VqpInit};
use elver_portal::{Answer, RefusalCode, Violation};
use elver_verbs::{Time, VqpState, WcStatus};

use super::directs::{Held, Whose};
use super::orders::{Awaiting, Cleared};
use super::quota::Usage;
use super::session::Owed;
use super::sessions::ends::End;
use super::translate::{self, Refused};
use super::{COMPLETIONS_MAX, Engine};

/// Events for clients that are none of the engine's sessions; older ones give way.
const EVENTS_KEPT_MAX: usize = 4_096;

/// Where completions go for which the session's ring has no room.
#[derive(Clone, Copy)]
enum Room {
    /// Nowhere: the core keeps them.
    InRing,
    /// The session is owed them.
    Kept,
}

impl Engine {
    /// Hands out completions and events.
    #[inline]
    pub(super) fn tell(&mut self, now: Time) -> bool {
        let mut told = false;
        while let Some(client) = self.core.poll_ready() {
            told = true;
            if let Some(slot) = self.sessions.of_client(client) {
                self.hand_out(slot, now);
            }
        }
        while let Some(event) = self.core.poll_event() {
            told = true;
            self.report(event, now);
        }
        told
    }

    /// Hands a session's completions out, as many as there is room for.
    pub(super) fn hand_out(&mut self, slot: u32, now: Time) {
        let result = self.try_hand_out(slot, Room::InRing);
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }

    /// A VQP is to be connected anew: what it was until now is told before, whether or not there is room.
    #[cold]
    pub(super) fn tell_before(&mut self, slot: u32, vqp: u32) -> Result<(), Violation> {
        self.try_hand_out(slot, Room::Kept)?;
        let Some(client) = self.sessions.open(slot).map(|open| open.client) else { return Ok(()) };
        match self.core.take_failure(client, VqpId(vqp)) {
            Some(cause) => self.sessions.reply(slot, Owed::Failed { vqp, cause: cause.into() }),
            None => Ok(()),
        }
    }

    fn try_hand_out(&mut self, slot: u32, within: Room) -> Result<(), Violation> {
        let Some((session, quotas)) = self.sessions.get_with_quotas(slot) else { return Ok(()) };
        let account = session.account();
        let Some(open) = &mut session.open else { return Ok(()) };
        loop {
            let room = match within {
                Room::InRing => open.completions_room()?.min(COMPLETIONS_MAX),
                Room::Kept => COMPLETIONS_MAX,
            };
            open.stalled = room == 0;
            if room == 0 {
                return Ok(());
            }
            let count = self.core.poll_completions(open.client, &mut self.completions[..room]);
            self.counters.completions += count as u64;
            let mut result = Ok(());
            for completion in &self.completions[..count] {
                let mut failed = None;
                if let Some(VqpId(accepted)) = completion.source
                    && !open.vqps.contains_key(&accepted)
                    && let Ok(info) = self.core.vqp_info(open.client, VqpId(accepted))
                {
                    open.vqps.insert(accepted, VqpInit::default().max_send_wr);
                    quotas.count(account, Usage::VQP);
                    // While its message waited: the process could do nothing with that event.
                    failed = (info.state == VqpState::Error).then_some((accepted, info.peer));
                }
                // The reason comes with the first error.
                if completion.wc.status != WcStatus::Success
                    && let Some(cause) = self.core.take_failure(open.client, completion.vqp)
                {
                    let (VqpId(vqp), cause) = (completion.vqp, cause.into());
                    result = result.and(open.reply(Owed::Failed { vqp, cause }));
                }
                let owed = Owed::Completion(translate::completion(completion));
                result = result.and(open.reply(owed));
                if let Some((vqp, peer)) = failed {
                    let gid = peer.map(|(gid, _)| gid).unwrap_or_default();
                    let cause = self.core.take_failure(open.client, VqpId(vqp));
                    let cause = cause.unwrap_or(ConnectError::PeerGone { gid }).into();
                    result = result.and(open.reply(Owed::Failed { vqp, cause }));
                }
            }
            if result.is_err() || count < room {
                return result;
            }
        }
    }

    /// Tells a session of an event.
    fn report(&mut self, event: Event, now: Time) {
        if let Event::Connected { client, vqp, result: Err(error), .. } = &event {
            self.counters.leases_refused += u64::from(translate::is_out_of_leases(error));
            if translate::is_more_than_share(error) && self.asks_for_lease(*client, vqp.0) {
                self.counters.leases_refused_peer += 1;
            }
        }
        let client = match &event {
            Event::Connected { client, .. }
            | Event::Warmed { client, .. }
            | Event::Deregistered { client, .. }
            | Event::Failed { client, .. }
            | Event::GaveWay { client, .. } => *client,
        };
        let Some(slot) = self.sessions.of_client(client) else {
            if self.heirs_report(&event, now) {
                return;
            }
            if self.sessions.is_foreign(client) {
                if self.events.len() == EVENTS_KEPT_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(event);
            }
            return;
        };
        let result = match event {
            Event::Connected { token, vqp, result, .. } => {
                if result.is_err() {
                    self.sessions.lease_failed(slot, vqp.0, (token >> 32) as u32);
                }
                let via = result.map(Answer::Connected);
                self.sessions.answer_later(slot, token as u32, via.map_err(Into::into))
            }
            Event::Warmed { token, ready, failed, .. } => {
                let answer = Answer::Warmed { ready, failed };
                self.sessions.answer_later(slot, token as u32, Ok(answer))
            }
            Event::Deregistered { token: request, .. } => {
                let request = request as u32;
                let token = self.sessions.at(slot).map_or(0, |session| session.token(slot));
                match self.directs.holds(Whose::Region { token, request }) {
                    // It is told when nobody is inside any more.
                    Held::Back => return,
                    held => self.deregistered(slot, request, held == Held::Free),
                }
            }
            Event::GaveWay { vqp: VqpId(vqp), .. } => return self.sessions.vqp_gone(slot, vqp),
            Event::Failed { vqp, cause, .. } => {
                self.sessions.reply(slot, Owed::Failed { vqp: vqp.0, cause: cause.into() })
            }
        };
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }

    /// Whether a VQP, of a session or of one that waits for a child, is connecting by a leased queue pair.
    fn asks_for_lease(&self, client: ClientId, vqp: u32) -> bool {
        let open = match self.sessions.of_client(client) {
            Some(slot) => self.sessions.at(slot).and_then(|session| session.open.as_ref()),
            None => self.sets.being_made(client),
        };
        open.is_some_and(|open| open.leases.of(vqp) != Usage::NONE)
    }

    /// A region is gone, and nobody touches it any more; or one who stands still, whom the node has waited for long
    /// enough.
    fn deregistered(&mut self, slot: u32, request: u32, is_free: bool) -> Result<(), Violation> {
        if !self.sessions.region_gone(slot, (request, is_free), &self.maker) {
            return Ok(());
        }
        self.answer_deregistered(slot, request, is_free)
    }

    fn answer_deregistered(
        &mut self,
        slot: u32,
        request: u32,
        is_free: bool,
    ) -> Result<(), Violation> {
        let answer = if is_free {
            Ok(Answer::Done)
        } else {
            let text = "a process of this user's was stopped while it reached for the region; its session \
                        was ended, and it ends that access when it goes on";
            Err(Refused::new(RefusalCode::Busy, text))
        };
        self.sessions.answer_later(slot, request, answer)
    }

    /// Memory was given back to the system, and counts no more: who waits for that is told.
    pub(super) fn cleared(&mut self, cleared: Cleared, now: Time) {
        let Cleared { account, usage, awaited_by } = cleared;
        let kept = match awaited_by {
            Awaiting::Session(client) => self.sets.keep_place(client),
            _ => Usage::NONE,
        };
        self.sessions.quotas.give_back(account, usage.minus(kept));
        let (slot, result) = match awaited_by {
            Awaiting::Region { token, request, is_free } => {
                let Some(slot) = self.sessions.of_token(token) else { return };
                (slot, self.answer_deregistered(slot, request, is_free))
            }
            Awaiting::Goodbye { token, request } => {
                let Some(slot) = self.sessions.of_token(token) else { return };
                (slot, self.sessions.reply(slot, Owed::Answer { request, answer: Answer::Done }))
            }
            Awaiting::Session(client) => return self.sessions.ghosts.forget(client),
            Awaiting::Nobody => return,
        };
        self.sessions.activate(slot, now);
        self.settle(slot, result, now);
    }

    /// Looks at processes that were inside of memory when it was taken back.
    #[cold]
    pub(super) fn settle_directs(&mut self, now: Time) {
        let settled = self.directs.settle(now);
        for (token, request, is_free) in settled.regions {
            let Some(slot) = self.sessions.of_token(token) else { continue };
            let result = self.deregistered(slot, request, is_free);
            self.sessions.activate(slot, now);
            self.settle(slot, result, now);
        }
        for token in settled.stuck {
            if let Some(slot) = self.sessions.of_token(token) {
                self.counters.direct_stuck += 1;
                self.end(slot, End::Violation, now);
            }
        }
    }

    /// Tells of an event to a session that waits for a child; whether it is one's.
    #[cold]
    fn heirs_report(&mut self, event: &Event, now: Time) -> bool {
        let Engine { sets, sessions, core, .. } = self;
        match event {
            Event::Connected { client, token, result, .. } => {
                let result = result.clone().map_err(Into::into);
                sets.connected(*client, *token, result, sessions, core, now)
            }
            Event::Failed { client, vqp, cause, .. } => {
                sets.failed(*client, *vqp, cause.clone().into())
            }
            Event::Warmed { .. } | Event::Deregistered { .. } | Event::GaveWay { .. } => false,
        }
    }
}
