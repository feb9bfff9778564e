//! VQPs and CQs as the client knows them.

use std::collections::VecDeque;
use std::rc::Weak;

use elver_portal::{RefusalCode, VqpOptions};
use elver_verbs::{QpState, Wc, WcOpcode, WcStatus};

use super::awaited::{Before, Outcome};
use super::{CqHandle, Entry, Handle, Of, Queue, ROOM, Sends};
use crate::direct::Way;

impl Entry {
    pub(crate) fn new(handle: Weak<Handle>, state: QpState, options: &VqpOptions) -> Entry {
        let &VqpOptions { max_send_wr, max_recv_wr, .. } = options;
        Entry {
            handle,
            completions: VecDeque::with_capacity(ROOM),
            messages: VecDeque::new(),
            accepted: VecDeque::new(),
            failure: None,
            failure_told: false,
            connect: 0,
            kept_by: None,
            cq: None,
            listed: false,
            state,
            signal_all: options.sq_sig_all,
            confirm_sends: options.confirm_sends,
            sends: Sends::new(),
            receives: 0,
            max_send_wr,
            max_recv_wr,
            // The node says it of one that a message, or a parent, has connected.
            way: Way::Unknown,
        }
    }

    /// Its completions go to a CQ.
    pub(crate) fn share(&mut self, cq: u32) {
        self.cq = Some(cq);
    }

    /// Notes that it has something to take.
    #[inline]
    pub(crate) fn list(&mut self, id: u32, ready: &mut VecDeque<Of>) {
        if !std::mem::replace(&mut self.listed, true) {
            ready.push_back(Of::Vqp(id));
        }
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether nobody but a bound VQP has it: what is told of it is for no user.
    #[inline]
    pub(crate) fn is_unheld(&self) -> bool {
        self.kept_by.is_some() && self.handle.strong_count() == 1
    }

    /// Whether it still has something to take.
    pub(crate) fn stays_listed(&mut self) -> bool {
        if self.is_unheld() {
            // Else nobody would take it, and no wait would ever sleep again.
            self.completions.clear();
            self.listed = false;
            return false;
        }
        self.listed = !self.completions.is_empty()
            || !self.messages.is_empty()
            || self.failure.is_some() && !self.failure_told;
        self.listed
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state == QpState::Rts
    }

    /// It is connected, or being connected, to this node or to another.
    pub(crate) fn goes_to(&mut self, is_own_node: bool) {
        self.way = if is_own_node { Way::Unknown } else { Way::Node };
    }

    /// Whether a WR may be done without the node: nothing is on its way there. A first one goes through the node, since
    /// to ask for a region takes longer than a READ, and who posts one alone would wait for both.
    #[inline]
    pub(super) fn may_be_direct(&self) -> bool {
        match self.way {
            Way::Node => false,
            Way::Unknown => self.sends.posted > 0 && self.sends.are_here(),
            Way::Direct => self.sends.are_here(),
        }
    }

    /// A connect is asked for: until the node has answered nothing can be posted.
    pub(super) fn begin_connect(&mut self, request: u32, is_own_node: bool) -> Before {
        self.connect = request;
        let before = Before {
            state: std::mem::replace(&mut self.state, QpState::Init),
            failure: self.failure.take(),
            failure_told: self.failure_told,
            way: self.way,
        };
        self.goes_to(is_own_node);
        before
    }

    /// How a connect ended. One that a later one has cancelled says nothing of the VQP.
    pub(super) fn end_connect(&mut self, request: u32, outcome: &Outcome, before: Option<Before>) {
        if request != self.connect {
            return;
        }
        match (outcome, before) {
            // It was not begun: WRs are outstanding.
            (Outcome::Refused { code: RefusalCode::State, .. }, Some(before)) => {
                let Before { state, failure, failure_told, way } = before;
                (self.state, self.failure, self.failure_told, self.way) =
                    (state, failure, failure_told, way);
                return;
            }
            (Outcome::Connected(_), _) => self.state = QpState::Rts,
            _ => self.state = QpState::Reset,
        }
        // What was outstanding was so over the connection that there was.
        self.sends.clear();
    }

    #[inline]
    pub(super) fn complete(&mut self, wc: &Wc) {
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            self.receives = self.receives.saturating_sub(1);
        } else if wc.status == WcStatus::Success {
            self.sends.complete();
        } else {
            self.state = QpState::Err;
        }
    }
}

impl Queue {
    pub(crate) fn new(handle: Weak<CqHandle>) -> Queue {
        Queue { handle, completions: VecDeque::new(), listed: false }
    }

    /// Takes a completion in; whether the CQ must be listed as ready now.
    #[inline]
    pub(crate) fn push(&mut self, wc: Wc) -> bool {
        self.completions.push_back(wc);
        !std::mem::replace(&mut self.listed, true)
    }

    /// Takes completions out, oldest first; returns how many.
    #[inline]
    pub(crate) fn take(&mut self, wcs: &mut [Wc]) -> usize {
        let count = self.completions.len().min(wcs.len());
        for (wc, completion) in wcs.iter_mut().zip(self.completions.drain(..count)) {
            *wc = completion;
        }
        count
    }

    /// Whether it still has something to take.
    pub(crate) fn stays_listed(&mut self) -> bool {
        self.listed = !self.completions.is_empty();
        self.listed
    }
}

impl Sends {
    pub(super) fn new() -> Sends {
        Sends { posted: 0, completed: 0, at_node: 0, signalled: VecDeque::with_capacity(ROOM) }
    }

    /// Nothing is outstanding any more.
    pub(super) fn clear(&mut self) {
        (self.posted, self.completed, self.at_node) = (0, 0, 0);
        self.signalled.clear();
    }

    /// Whether none is on its way through the node.
    #[inline]
    pub(super) fn are_here(&self) -> bool {
        self.at_node <= self.completed
    }

    #[inline]
    pub(super) fn post(&mut self, signalled: bool) {
        self.posted += 1;
        if signalled {
            self.signalled.push_back(self.posted);
        }
    }

    #[inline]
    pub(super) fn complete(&mut self) {
        if let Some(position) = self.signalled.pop_front() {
            self.completed = position;
        }
    }
}
