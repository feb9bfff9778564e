//! What the node tells is taken in, and waited for.

use std::collections::VecDeque;
use std::rc::Weak;

use elver_portal::{Answer, Completion, First, RefusalCode, Reply, VqpOptions};
use elver_verbs::QpState;
use rustc_hash::{FxHashMap, FxHashSet};

use super::awaited::{Awaited, Outcome};
use super::{Entry, Inner, Of, Queue};
use crate::Error;
use crate::arena::{Arena, Piece};
use crate::wait::Wait;

impl Inner {
    /// Takes all that the node told; whether there was something. That it is gone is told behind that, by the next look.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<bool, Error> {
        self.check_own()?;
        if let Some(end) = self.end.take() {
            return Err(end);
        }
        let mut any = self.tell_done();
        let taken = match self.take_told(&mut any) {
            Err(end) if any => {
                self.end = Some(end);
                Ok(())
            }
            taken => taken,
        };
        if self.direct.was_told() {
            self.take_ways();
        }
        if any | self.link.took_waking() {
            self.rouse();
        }
        if !self.late.is_empty() {
            match self.tell_late() {
                // That it is gone is told behind what it said before.
                Ok(()) | Err(Error::NodeGone) => {}
                told => told?,
            }
        }
        taken.map(|()| any)
    }

    /// Takes in what the node told, and looks for something in it. What was told before is there also when the node has
    /// gone.
    #[inline]
    pub(crate) fn poll_for<R>(
        &mut self,
        mut found: impl FnMut(&mut Inner) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        match self.poll() {
            Ok(_) => Ok(found(self)),
            Err(error) => {
                self.check_own()?;
                match found(self) {
                    Some(found) => {
                        self.end = Some(error);
                        Ok(Some(found))
                    }
                    None => Err(error),
                }
            }
        }
    }

    /// Whether the next look tells why the node tells nothing more.
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    #[inline]
    fn take_told(&mut self, any: &mut bool) -> Result<(), Error> {
        while let Some(reply) = self.link.next()? {
            *any = true;
            self.is_unheard = false;
            self.heard += 1;
            match reply {
                Reply::Completion(completion) => {
                    if let Some(source) = completion.source
                        && self.vqps.contains_key(&completion.vqp)
                    {
                        *self.untaken.entry(source).or_default() += 1;
                    }
                    complete(&mut self.vqps, &mut self.cqs, &mut self.ready, &completion);
                }
                Reply::Answer { request, answer } if self.direct.hears(request, &answer) => {}
                Reply::Answer { request, answer } => {
                    let Inner { awaited, vqps, let_go_later, .. } = self;
                    let in_vain = answered(awaited, vqps, let_go_later, request, &answer);
                    if !self.leaving.is_empty() {
                        left(&mut self.leaving, &mut self.arena, request, &answer);
                    }
                    if let Some((outcome, piece)) = in_vain {
                        self.undo(request, &outcome, piece)?;
                    }
                }
                // Until the node has answered, it tells of what the VQP was connected to before.
                Reply::VqpFailed { vqp, cause } if connects(&self.awaited, vqp) => {
                    let failure = (cause.code, cause.text.to_string());
                    failed_before(&mut self.awaited, vqp, failure);
                }
                Reply::VqpFailed { vqp, cause } => {
                    let failure = (cause.code, cause.text.to_string());
                    self.failed(vqp, failure);
                }
            }
        }
        Ok(())
    }

    /// Tells of the WRs that this process has done itself; whether there were any.
    #[inline]
    pub(crate) fn tell_done(&mut self) -> bool {
        let any = !self.direct.done.is_empty();
        while let Some((vqp, wc)) = self.direct.done.pop_front() {
            let completion = Completion { vqp, source: None, wc };
            complete(&mut self.vqps, &mut self.cqs, &mut self.ready, &completion);
        }
        any
    }

    /// Takes in what the node said of what this process may reach itself.
    #[cold]
    fn take_ways(&mut self) {
        let link = &mut self.link;
        if let Some((vqp, way)) = self.direct.take_in(|request| link.file(request).ok())
            && let Some(entry) = self.vqps.get_mut(&vqp)
        {
            entry.way = way;
        }
    }

    /// The node tells that a VQP has failed.
    #[cold]
    fn failed(&mut self, vqp: u32, failure: (RefusalCode, String)) {
        if !self.vqps.contains_key(&vqp) && self.untaken.contains_key(&vqp) {
            // Whoever takes the message that names it is to hear of it.
            let nobody = Entry::new(Weak::new(), QpState::Err, &VqpOptions::default());
            self.vqps.insert(vqp, nobody);
        }
        let Some(entry) = self.vqps.get_mut(&vqp) else { return };
        (entry.state, entry.failure, entry.failure_told) = (QpState::Err, Some(failure), false);
        entry.list(vqp, &mut self.ready);
        if self.may_go_later(vqp) {
            self.let_go_later.insert(vqp);
        }
    }

    /// Lets a VQP back to a sender go that has failed, if nobody needs it: neither who will take a message that names it, and
    /// is to hear of the failure, nor its user, if he holds it. Whether it is to be tried again.
    #[cold]
    fn may_go_later(&mut self, vqp: u32) -> bool {
        if self.untaken.contains_key(&vqp) {
            return true;
        }
        let Some(entry) = self.vqps.get_mut(&vqp).filter(|entry| entry.failure.is_some()) else {
            return false;
        };
        let Some(bound) = entry.kept_by else { return false };
        if !entry.is_unheld() {
            return true;
        }
        // It is there until this call is over, and what is told of it is for nobody.
        (entry.kept_by, entry.failure_told) = (None, true);
        entry.completions.clear();
        if let Some(bound) = self.vqps.get_mut(&bound)
            && let Some(at) = bound.accepted.iter().position(|handle| handle.id == vqp)
        {
            self.released.extend(bound.accepted.remove(at));
        }
        false
    }

    /// Lets those go whose messages were taken, and that nobody holds any more.
    #[cold]
    pub(crate) fn let_taken_go(&mut self) {
        let mut later = std::mem::take(&mut self.let_go_later);
        later.retain(|vqp| self.may_go_later(*vqp));
        self.let_go_later = later;
    }

    /// Polls until `done` says so.
    #[inline]
    pub(crate) fn wait<R>(
        &mut self,
        mut wait: Wait,
        done: impl FnMut(&mut Inner) -> Option<R>,
    ) -> Result<R, Error> {
        self.wait_on(&mut wait, done)
    }

    /// As [`Inner::wait`], for who looks at the wait behind it.
    #[inline]
    pub(crate) fn wait_on<R>(
        &mut self,
        wait: &mut Wait,
        mut done: impl FnMut(&mut Inner) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            if let Some(result) = self.poll_for(&mut done)? {
                return Ok(result);
            }
            if self.has_end() {
                continue;
            }
            wait.heard(self.heard);
            let slept = self.link.rest(wait);
            if !matches!(slept, Ok(false)) {
                // The way by which the node wakes was used by this one.
                self.rouse();
            }
            slept?;
        }
    }
}

#[inline]
fn complete(
    vqps: &mut FxHashMap<u32, Entry>,
    cqs: &mut FxHashMap<u32, Queue>,
    ready: &mut VecDeque<Of>,
    completion: &Completion,
) {
    // A VQP that was destroyed meanwhile has no entry: nobody waits for this.
    let Some(entry) = vqps.get_mut(&completion.vqp) else { return };
    entry.complete(&completion.wc);
    match (completion.source, entry.cq) {
        (Some(source), _) => entry.messages.push_back((completion.wc, source)),
        (None, None) if entry.is_unheld() => return,
        (None, None) => entry.completions.push_back(completion.wc),
        (None, Some(cq)) => {
            // One that is gone is missed by nobody.
            if cqs.get_mut(&cq).is_some_and(|queue| queue.push(completion.wc)) {
                ready.push_back(Of::Cq(cq));
            }
            return;
        }
    }
    entry.list(completion.vqp, ready);
}

/// Frees the piece of a region that nobody can touch any more. One whose deregistration is refused
/// stays in use.
#[cold]
fn left(leaving: &mut Vec<(u32, Piece)>, arena: &mut Arena, request: u32, answer: &Answer<'_>) {
    let Some(at) = leaving.iter().position(|(of, _)| *of == request) else { return };
    let (_, piece) = leaving.swap_remove(at);
    if matches!(answer, Answer::Done) {
        arena.give_back(piece);
    }
}

/// Whether the node has not answered a connect of a VQP's.
fn connects(awaited: &[Awaited], vqp: u32) -> bool {
    awaited.iter().any(|awaited| awaited.connects == Some(vqp) && awaited.outcome.is_none())
}

/// A VQP failed before the node took up that it be connected anew: the failure stands if it does not.
#[cold]
fn failed_before(awaited: &mut [Awaited], vqp: u32, failure: (RefusalCode, String)) {
    let asked = awaited.iter_mut().filter(|awaited| awaited.connects == Some(vqp));
    for before in asked.filter_map(|awaited| awaited.before.as_mut()) {
        before.state = QpState::Err;
        before.failure = Some(failure.clone());
        before.failure_told = false;
    }
}

/// Takes an answer in. What it says, if nobody waits for it any more.
fn answered(
    awaited: &mut Vec<Awaited>,
    vqps: &mut FxHashMap<u32, Entry>,
    let_go_later: &mut FxHashSet<u32>,
    request: u32,
    answer: &Answer<'_>,
) -> Option<(Outcome, Option<Piece>)> {
    let at = awaited.iter().position(|awaited| awaited.request == request)?;
    let Awaited { connects, creates, .. } = awaited[at];
    let outcome = match *answer {
        Answer::Done => Outcome::Done,
        Answer::Vqp(vqp) => Outcome::Vqp(vqp),
        Answer::Port(port) => Outcome::Port(port),
        Answer::Connected(via) => Outcome::Connected(via),
        Answer::Warmed { ready, failed } => Outcome::Warmed { ready, failed },
        Answer::Mr { lkey, rkey, file_bytes } => Outcome::Mr { lkey, rkey, file_bytes },
        Answer::Info(info) => Outcome::Info(info),
        Answer::Prepared { set, file_bytes } => Outcome::Prepared { set, file_bytes },
        // An answer to no command that is waited for.
        Answer::Reached(_) => return None,
        Answer::Refused(refusal) => {
            Outcome::Refused { code: refusal.code, text: refusal.text.to_string() }
        }
    };
    let before = awaited[at].before.take();
    if let Some(vqp) = connects
        && let Some(entry) = vqps.get_mut(&vqp)
    {
        entry.end_connect(request, &outcome, before);
        if entry.failure.is_some() && entry.kept_by.is_some() {
            // It was not connected anew, and goes as if nobody had asked for that.
            let_go_later.insert(vqp);
        }
    }
    if awaited[at].abandoned {
        let piece = awaited.swap_remove(at).piece;
        return Some((outcome, piece));
    }
    awaited[at].outcome = Some(outcome);
    if let (&Answer::Vqp(vqp), Some(options)) = (answer, creates) {
        // What is told of it next may come before anybody has looked.
        let mut entry = Entry::new(Weak::new(), QpState::Init, &options);
        entry.connect = First::CONNECT;
        vqps.insert(vqp, entry);
        let connect = awaited.iter_mut().find(|awaited| awaited.request == First::CONNECT);
        if let Some(connect) = connect {
            connect.connects = Some(vqp);
        }
    }
    None
}

#[cfg(test)]
mod tests;
