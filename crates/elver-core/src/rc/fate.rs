//! Whether what an RC QP flushed was executed: found out from the peer, never guessed.
//!
//! An RC QP also fails for what its *peer* asks, in the middle of our own work. What is flushed then
//! was executed up to some point that nobody here saw. To post it again would execute it twice, so
//! it waits, neither done nor failed, until the peer has told how far its end got:
//!
//! ```text
//!   our end fails ──▶ Failing: what is flushed is kept, in order ──▶ all is back ─┐
//!        │                                                                        ▼
//!        └─ RcFate, with how far our end got ──▶ peer: its end to ERR        each WR: executed,
//!           Fate, with how far its end got   ◀── its rq_psn, now final  ──▶  or posted again
//! ```
//!
//! Both ends learn both numbers in one exchange, whoever begins. A number is a PSN (IBTA vol. 1,
//! 9.7.1): a WR takes as many as it has packets, a READ as many as its response has. So the sum over
//! all that was posted on a QP gives the PSN behind the last WR, and what was flushed, counted back
//! from there, the PSNs of each: nothing is kept for a WR while all goes well.
//!
//! A WR that was executed completes with success. What was not is posted again, and so is a READ
//! whose data went nowhere, as a responder reads anew for one that is sent again (9.7.5.1.3), and a
//! SEND of which only the beginning arrived, which nobody has seen. An atomic whose result is lost
//! ends with `RespTimeoutErr`, and so does what stands in the middle of a WRITE: a reader may have taken back
//! already what its first half has set. If the peer does not know, or does not
//! answer, all but READs ends so.
//!
//! Both ends may refuse something at once, and then neither hears the refusal: its QP has failed by
//! then. What was refused would be posted again for ever. It can only be the first WR that was not
//! executed, or the first READ without an answer: one that has been that on `SUSPECTED_MAX` RC QPs in
//! a row ends like one whose fate is unknown.

use elver_control::PSN_MASK;
use elver_verbs::{Device, SendOpcode, Time};

use crate::Core;
use crate::VqpId;
use crate::datapath::Datapath;
use crate::datapath::ops::{OpKind, Work};
use crate::datapath::wr_id::WrId;
use crate::effects::Effect;
use crate::ids::{LaneIx, OpId};
use crate::rc::link::Reached;
use crate::rc::path::Flushed;
use crate::vqp::seq::{LowSeq, SendSeq};

/// What became of a WR that was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Executed,
    /// Some of its packets were.
    Begun,
    Not,
    Unknown,
}

/// Whether the one is known for which an RC QP may have failed.
#[derive(Debug, Default)]
struct Suspicion {
    /// The first that was not executed.
    stopped: bool,
    /// The first that reads and has no answer.
    unanswered: bool,
}

impl Suspicion {
    /// Whether the next one of what was flushed is suspected. `waits`: it reads, and may not get that.
    fn falls_on(&mut self, who: WrId, fate: Fate, waits: bool) -> bool {
        // The first packet over an RC QP is nobody's, and nobody refuses it. Where it was not executed
        // either, since it was lost and the peer has heard what came behind it, it must not take the
        // suspicion off that.
        if !matches!(who, WrId::User { .. } | WrId::Op(_)) {
            return false;
        }
        match fate {
            Fate::Not | Fate::Begun => !core::mem::replace(&mut self.stopped, true),
            Fate::Executed | Fate::Unknown => {
                waits && !core::mem::replace(&mut self.unanswered, true)
            }
        }
    }
}

impl<D: Device> Core<D> {
    /// A WR of a VQP was flushed from an RC QP, and may have been executed. `behind` counts from the
    /// VQP's first WR that is not done.
    pub(crate) fn user_flushed(&mut self, id: VqpId, behind: u32, second: bool, now: Time) {
        let Core { vqps, pool, lanes, datapath: Datapath { qos, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP with WRs on a lane is gone") };
        let seq = vqp.sq.done.after(behind);
        let Some(lane) = vqp.lane else { return bug!("a VQP with WRs on a lane has none") };
        let mut count = 0;
        // The first one that comes back tells of those before it.
        if !vqp.unsure && behind < vqp.sq.posted.since(vqp.sq.done) {
            vqp.unsure = true;
            count = vqp.execute(pool, behind, qos, now);
            let entry = vqp.sq.entry_mut(vqp.sq.done);
            if second && !core::mem::replace(&mut entry.first_done, true) {
                vqp.off_lane(1, qos, now);
                count += 1;
            }
        }
        let Some(path) = &lanes.lanes[lane].path else {
            return bug!("the fate of a WR over DC is asked for");
        };
        let psns = path.psns_of(&vqp.sq, seq, second);
        self.account(lane, count);
        if count > 0 {
            self.retire(id, now);
        }
        self.hold_flushed(lane, WrId::User { vqp: id, seq: seq.low(), second }, psns);
    }

    /// Keeps what was flushed until its fate is known.
    pub(crate) fn hold_flushed(&mut self, lane: LaneIx, who: WrId, psns: u32) {
        self.lanes.lanes[lane].flushed.push(Flushed { who, psns });
        self.effects.push(Effect::Restart(lane));
    }

    /// All that was on an RC QP has come back: what was flushed is told or posted again, if its fate
    /// is known. Returns whether it is.
    pub(crate) fn settle_flushed(&mut self, lane: LaneIx, now: Time) -> bool {
        if self.lanes.lanes[lane].flushed.is_empty() {
            return true;
        }
        let link = self.links.rc.by_lane(lane).and_then(|link| self.links.rc.get(link));
        let reached = link.map(|link| link.reached);
        if matches!(reached, Some(Reached::Unasked | Reached::Asked)) {
            return false;
        }
        // A device that copies between its own QPs counts no PSNs, so that it is not known how far it got. It
        // copies a WR whole, or in steps behind which the others have their turns: what was flushed was not
        // begun, or was flushed between two steps, and is copied once more from its beginning.
        let own = |psn: u32| {
            link.is_some_and(|link| {
                let gid = self.peers.get(link.peer).map(|peer| peer.gid);
                gid == Some(self.gid) && psn == link.psn
            })
        };
        let reached = match reached {
            Some(Reached::Psn(psn)) if own(psn) => Some(None),
            Some(Reached::Psn(psn)) => Some(Some(psn)),
            _ => None,
        };
        let entry = &mut self.lanes.lanes[lane];
        let flushed = core::mem::take(&mut entry.flushed);
        // More than 32 bits hold, where hundreds of WRs have 2 GB each.
        let all: u64 = flushed.iter().map(|one| u64::from(one.psns)).sum();
        let Some(path) = &entry.path else {
            bug!("the fate of what was flushed over DC is asked for");
            return true;
        };
        let first = path.psn.wrapping_sub(all as u32);
        let done = match reached {
            Some(Some(psn)) => Some(u64::from(psn.wrapping_sub(first) & PSN_MASK)),
            Some(None) => Some(0),
            None => None,
        };
        // It cannot have got further than what it was sent.
        let done = done.filter(|done| *done <= all);
        let (mut at, mut suspicion) = (0, Suspicion::default());
        for Flushed { who, psns } in flushed {
            let psns = u64::from(psns);
            let fate = match done {
                None => Fate::Unknown,
                Some(done) if at + psns <= done => Fate::Executed,
                Some(done) if at >= done => Fate::Not,
                Some(_) => Fate::Begun,
            };
            at += psns;
            let suspect = suspicion.falls_on(who, fate, self.may_wait_for_ever(who, fate));
            self.account(lane, 1);
            match who {
                WrId::User { vqp, seq, second } => {
                    self.settle_user(vqp, seq, second, (fate, suspect), now);
                }
                WrId::Op(op) => self.settle_op(op, lane, (fate, suspect)),
                WrId::Recv(_) | WrId::Control(_) | WrId::Landing(_) => {}
            }
        }
        true
    }

    /// Whether something that was flushed waits for what it reads, and may not get it.
    fn may_wait_for_ever(&self, who: WrId, fate: Fate) -> bool {
        match who {
            WrId::User { vqp, seq, .. } => self.vqps.get(vqp).is_some_and(|vqp| {
                vqp.phase.is_connected()
                    && vqp.sq.entry(vqp.sq.seq_of(seq)).opcode == SendOpcode::Read
            }),
            WrId::Op(op) => self.datapath.ops.get(op).is_some_and(|op| match op.work {
                Work::Gather => true,
                // What was executed is answered, and the core's own memory takes every answer.
                Work::Read { .. } => fate == Fate::Unknown,
                Work::Send { .. } => false,
            }),
            WrId::Recv(_) | WrId::Control(_) | WrId::Landing(_) => false,
        }
    }

    /// The fate of a VQP's WR is known.
    fn settle_user(
        &mut self,
        id: VqpId,
        seq: LowSeq,
        second: bool,
        (fate, suspect): (Fate, bool),
        now: Time,
    ) {
        let Core { vqps, pool, stats, datapath: Datapath { qos, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP with WRs on a lane is gone") };
        vqp.unsure = false;
        if !vqp.phase.is_connected() {
            vqp.off_lane(1, qos, now);
            return self.drained(id, now);
        }
        let seq = vqp.sq.seq_of(seq);
        let entry = vqp.sq.entry_mut(seq);
        let sends = second || entry.is_send();
        let atomic = matches!(entry.opcode, SendOpcode::FetchAdd | SendOpcode::CompareSwap);
        let again = match fate {
            Fate::Not => true,
            Fate::Begun if sends => true,
            _ => entry.opcode == SendOpcode::Read,
        };
        // Of a VQP's WRs the first one counts.
        let cleared = !suspect || vqp.rewound || vqp.suspect.is_cleared(seq);
        if again && cleared {
            vqp.off_lane(1, qos, now);
            self.rewind(id);
        } else if !again && fate == Fate::Executed && !atomic && !vqp.rewound {
            stats.wrs_executed_unseen += 1;
            let pair = entry.opcode == SendOpcode::WriteWithImm;
            if pair && !second {
                entry.first_done = true;
                vqp.off_lane(1, qos, now);
            } else {
                if seq != vqp.sq.done {
                    bug!("WRs do not settle in order");
                }
                vqp.execute(pool, 1, qos, now);
                self.retire(id, now);
            }
        } else {
            // Also what was executed behind a READ that must be done again: its turn would come
            // before the READ's. And what may be what RC QPs fail for.
            vqp.off_lane(1, qos, now);
            self.fail_unsure(id, now);
        }
        self.drained(id, now);
    }

    /// The fate of an operation of the core's own is known.
    fn settle_op(&mut self, id: OpId, lane: LaneIx, (fate, suspect): (Fate, bool)) {
        let suspected = suspect
            && self
                .datapath
                .ops
                .get_mut(id)
                .is_some_and(|op| !op.suspect.is_cleared(SendSeq::FIRST));
        let tells =
            self.datapath.ops.get(id).is_some_and(|op| matches!(op.kind, OpKind::Message(_)));
        match fate {
            Fate::Executed if tells => self.effects.push(Effect::Conclude { op: id, ok: true }),
            Fate::Unknown if !self.datapath.is_repeatable(id) => {
                self.effects.push(Effect::Conclude { op: id, ok: false });
            }
            _ if suspected => {
                self.stats.ops_unsure += 1;
                self.effects.push(Effect::Conclude { op: id, ok: false });
            }
            _ => self.lanes.op_again(id, lane),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use super::*;
    use crate::ids::Id;

    /// The first packet over an RC QP was suspected, and what stood behind it and broke one RC QP after
    /// the other was not.
    #[test]
    fn what_is_nobodys_is_not_suspected() {
        let greeting = WrId::Control(1);
        let user = |n| WrId::User { vqp: VqpId(1), seq: LowSeq::of(n), second: false };
        let mut suspicion = Suspicion::default();
        let flushed = [
            (greeting, false),
            (user(0), false),
            (user(1), false),
            (user(2), true),
            (WrId::Op(OpId::of(NonZeroU32::MIN)), true),
        ];
        let suspected = flushed.map(|(who, reads)| suspicion.falls_on(who, Fate::Not, reads));
        assert_eq!(suspected, [false, true, false, false, false]);
        let mut suspicion = Suspicion::default();
        let fates = [Fate::Executed, Fate::Executed, Fate::Executed, Fate::Begun, Fate::Not];
        let mut fates = fates.into_iter();
        let suspected = flushed
            .map(|(who, reads)| suspicion.falls_on(who, fates.next().unwrap_or(Fate::Not), reads));
        assert_eq!(suspected, [false, false, false, true, false], "the first that was begun");
    }
}
