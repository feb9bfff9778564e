//! WRs on their way from a VQP's user into the ring, or done here.

use std::time::Duration;

use elver_portal::{Command, Limits, PushError, VqpState};
use elver_verbs::{
    Payload, PostError, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, WrLimits,
};

use super::awaited::next;
use super::{Entry, Inner};
use crate::direct::{self, Tried};
use crate::regions::Regions;
use crate::wait::Wait;
use crate::{Error, PostFailed};

const GONE: Error = Error::Invalid { what: "the VQP is destroyed" };

impl Inner {
    /// Posts send WRs; where the session's ring is full, waits for room so long.
    pub(crate) fn post_send(
        &mut self,
        vqp: u32,
        wrs: &[SendWr<'_>],
        at_most: Duration,
    ) -> Result<(), PostFailed> {
        let (mut posted, mut told) = (0, false);
        let mut result = self.check_own();
        while result.is_ok() && posted < wrs.len() {
            let tells = self.post_one(vqp, &wrs[posted], at_most);
            posted += usize::from(tells.is_ok());
            told |= *tells.as_ref().unwrap_or(&false);
            result = tells.map(drop);
        }
        let rung = if told { self.ring() } else { Ok(()) };
        if !self.direct.done.is_empty() {
            // The node does not wake them for these.
            self.rouse();
        }
        result.and(rung).map_err(|error| PostFailed { posted, error })
    }

    /// Posts a WR; whether the node has something to take for it.
    #[inline]
    fn post_one(&mut self, vqp: u32, wr: &SendWr<'_>, at_most: Duration) -> Result<bool, Error> {
        let limits = self.link.welcome.limits;
        let mut wait = None;
        loop {
            let entry = self.vqps.get_mut(&vqp).ok_or(GONE)?;
            if let Err(error) = entry.check(wr, &limits, &mut self.regions) {
                return Err(entry.explain(vqp, error));
            }
            let signalled = entry.signal_all || wr.flags.contains(SendFlags::SIGNALED);
            let is_off = self.is_armed || self.link.is_gone();
            if entry.may_be_direct() && !is_off {
                match self.direct.execute(wr, entry.way, &self.regions) {
                    Tried::Done(bytes) => {
                        entry.sends.post(signalled);
                        if signalled {
                            let wc = direct::completion(vqp, wr, bytes);
                            self.direct.done.push_back((vqp, wc));
                        }
                        return Ok(false);
                    }
                    Tried::Ask(rkey) => {
                        let request = next(&mut self.last_request);
                        if self.link.command(request, &Command::Reach { vqp, rkey })? {
                            self.direct.asked(request, vqp, rkey);
                        }
                    }
                    Tried::No => {}
                }
            }
            match self.link.send(vqp, wr) {
                Ok(()) => {
                    entry.sends.post(signalled);
                    entry.sends.at_node = entry.sends.posted;
                    return Ok(true);
                }
                Err(PushError::Full) => {
                    self.make_room(wait.get_or_insert_with(|| Wait::new(Some(at_most))))?;
                }
                Err(PushError::Post(error)) => return Err(error.into()),
                Err(PushError::Violation(violation)) => return Err(violation.into()),
            }
        }
    }

    pub(crate) fn post_recv(&mut self, vqp: u32, wrs: &[RecvWr<'_>]) -> Result<(), PostFailed> {
        let mut posted = 0;
        let mut result = self.check_own();
        while result.is_ok() && posted < wrs.len() {
            result = self.receive_one(vqp, &wrs[posted]);
            posted += usize::from(result.is_ok());
        }
        let rung = if posted > 0 { self.ring() } else { Ok(()) };
        result.and(rung).map_err(|error| PostFailed { posted, error })
    }

    fn receive_one(&mut self, vqp: u32, wr: &RecvWr<'_>) -> Result<(), Error> {
        let max_sge = self.link.welcome.limits.max_sge;
        let mut wait = None;
        loop {
            let entry = self.vqps.get_mut(&vqp).ok_or(GONE)?;
            if entry.receives >= entry.max_recv_wr {
                let capacity = entry.max_recv_wr;
                return Err(Error::QueueFull { capacity, unsignalled: 0, receives: true });
            }
            wr.check_shape(max_sge)?;
            for sge in wr.sges {
                self.regions.check(sge, true)?;
            }
            match self.link.receive(vqp, wr) {
                Ok(()) => {
                    entry.receives += 1;
                    return Ok(());
                }
                Err(PushError::Full) => {
                    let wait = wait.get_or_insert_with(|| self.link.patient());
                    self.make_room(wait)?;
                }
                Err(PushError::Post(error)) => return Err(error.into()),
                Err(PushError::Violation(violation)) => return Err(violation.into()),
            }
        }
    }
}

impl Entry {
    /// A refusal in the words of a VQP.
    #[cold]
    fn explain(&self, vqp: u32, error: PostError) -> Error {
        match error {
            PostError::QueueFull { capacity } => {
                let last = self.sends.signalled.back().copied().unwrap_or(self.sends.completed);
                let unsignalled = u32::try_from(self.sends.posted - last).unwrap_or(u32::MAX);
                Error::QueueFull { capacity, unsignalled, receives: false }
            }
            PostError::State { state, .. } => {
                let state = match state {
                    QpState::Err => VqpState::Error,
                    QpState::Init => VqpState::Connecting,
                    QpState::Rts => VqpState::Connected,
                    _ => VqpState::Idle,
                };
                Error::NotConnected { vqp, state }
            }
            PostError::Opcode { opcode, .. } => Error::Opcode { opcode },
            error => Error::Post(error),
        }
    }

    /// What the node would refuse, told at once: over the ring it could tell only by a completion, and
    /// the VQP would fail with it.
    #[inline]
    fn check(
        &self,
        wr: &SendWr<'_>,
        limits: &Limits,
        regions: &mut Regions,
    ) -> Result<(), PostError> {
        let (qp_type, opcode) = (QpType::Rc, wr.op.opcode());
        if self.state != QpState::Rts {
            return Err(PostError::State { qp_type, state: self.state });
        }
        if self.sends.posted - self.sends.completed >= u64::from(self.max_send_wr) {
            return Err(PostError::QueueFull { capacity: self.max_send_wr });
        }
        if wr.dest.is_some() {
            return Err(PostError::Destination { qp_type });
        }
        if matches!(wr.op, SendOp::SendWithInv(_) | SendOp::BindMw(_) | SendOp::LocalInv(_)) {
            return Err(PostError::Opcode { qp_type, opcode });
        }
        let limits = WrLimits {
            max_sge: limits.max_sge,
            max_inline: limits.max_inline,
            max_length: limits.message_bytes,
            confirm_sends: self.confirm_sends,
        };
        wr.check_shape(&limits)?;
        wr.op.check_alignment()?;
        if let Payload::Sges(sges) = wr.payload {
            let writes = matches!(
                wr.op,
                SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
            );
            sges.iter().try_for_each(|sge| regions.check(sge, writes))?;
        }
        Ok(())
    }
}
