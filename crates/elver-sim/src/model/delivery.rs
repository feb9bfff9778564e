//! Receives: which message each got, that it got it once and in order, and all of it.

use std::net::IpAddr;

use elver_verbs::{QpType, SendOpcode, Wc, WcFlags, WcOpcode, WcStatus};

use super::completion::state_of;
use super::{
    EndpointId, GRH_LEN, Model, NUMBERED_LEN, Op, OpId, Planted, RecvId, State, View, Violation,
    message_id,
};
use crate::pattern::Stream;

impl Model {
    /// Whether a completion is that of a receive whose message asked for a solicited event.
    pub(crate) fn is_solicited(&self, wc: &Wc) -> bool {
        let recv = (wc.wr_id & 1 == 1).then(|| self.recvs.get((wc.wr_id >> 1) as RecvId));
        let got = recv.flatten().and_then(|recv| recv.got);
        got.is_some_and(|(op, _)| self.ops[op].solicited)
    }

    /// Takes the completion of a receive.
    pub(super) fn received(
        &mut self,
        endpoint: EndpointId,
        wc: &Wc,
        view: &View<'_>,
    ) -> Result<(), Violation> {
        let recv = (wc.wr_id >> 1) as RecvId;
        self.take_receive(endpoint, recv)?;
        self.recvs[recv].state = State::Done(wc.status);
        match wc.status {
            WcStatus::Success => self.delivered(endpoint, recv, wc, view),
            WcStatus::WrFlushErr => {
                let state = state_of(view.rnic, &self.endpoints[endpoint])?;
                self.justify_flush(endpoint, state)
            }
            status => self.refused(endpoint, recv, status),
        }
    }

    /// Takes a receive off its queue: the oldest one, or any of an SRQ, whose receives are taken in
    /// order but filled side by side.
    fn take_receive(&mut self, endpoint: EndpointId, recv: RecvId) -> Result<(), Violation> {
        let queue = self.endpoints[endpoint].queue;
        let known = self.recvs.get(recv).is_some_and(|recv| Some(recv.queue) == queue);
        let (Some(queue), true) = (queue, known) else {
            return Err(Violation::new(format!(
                "a completion names receive {recv}, which was not posted to its QP"
            )));
        };
        let queue = &mut self.queues[queue];
        let at = queue.outstanding.iter().position(|waiting| *waiting == recv);
        match at {
            Some(at) if at == 0 || queue.srq.is_some() => {
                queue.outstanding.remove(at);
                Ok(())
            }
            Some(_) => Err(Violation::new(format!(
                "receive {recv} completed before others that were posted earlier"
            ))),
            None => Err(Violation::new(format!("receive {recv} completed twice"))),
        }
    }

    fn delivered(
        &mut self,
        endpoint: EndpointId,
        recv: RecvId,
        wc: &Wc,
        view: &View<'_>,
    ) -> Result<(), Violation> {
        let is_ud = self.endpoints[endpoint].qp_type == QpType::Ud;
        let head = if is_ud { GRH_LEN } else { 0 };
        let Some(len) = wc.byte_len.checked_sub(head) else {
            return Err(Violation::new(format!(
                "receive {recv} says {} bytes, fewer than a GRH",
                wc.byte_len
            )));
        };
        let id = self.identify(endpoint, recv, wc, head, len)?;
        self.check_fields(id, recv, wc, len)?;
        let in_buffer = wc.opcode == WcOpcode::Recv;
        if in_buffer && !self.holds(recv, head, id, len) {
            return Err(Violation::new(format!(
                "receive {recv} holds other bytes than those that WR {id} sent"
            )));
        }
        if is_ud {
            self.check_grh(id, recv, view)?;
        }
        self.recvs[recv].got = Some((id, head));
        self.count_delivery(endpoint, id, view)?;
        if self.ops[id].opcode == SendOpcode::WriteWithImm {
            self.check_written(id)?;
        }
        Ok(())
    }

    /// Which WR a message is of: by its number, or, where it is too short to carry one, by its turn.
    fn identify(
        &self,
        endpoint: EndpointId,
        recv: RecvId,
        wc: &Wc,
        head: u32,
        len: u32,
    ) -> Result<OpId, Violation> {
        let number = if wc.flags.contains(WcFlags::WITH_IMM) {
            u64::from(wc.imm_data)
        } else if len >= NUMBERED_LEN && wc.opcode == WcOpcode::Recv {
            let bytes = self.receive_bytes(recv, head, NUMBERED_LEN);
            bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        } else {
            return self.next_short(endpoint, recv, wc, len);
        };
        let id = number.wrapping_sub(1) as OpId;
        if self.ops.get(id).is_some_and(|op| op.dest == endpoint && op.takes_receive()) {
            return Ok(id);
        }
        Err(Violation::new(format!(
            "receive {recv} got a message of {len} bytes with number {number:#x}, which nobody sent there"
        )))
    }

    fn next_short(
        &self,
        endpoint: EndpointId,
        recv: RecvId,
        wc: &Wc,
        len: u32,
    ) -> Result<OpId, Violation> {
        let peer = self.endpoints[endpoint].peer;
        let lane = peer.and_then(|peer| self.endpoints[peer].lanes.first());
        let inverse = wc.flags.contains(WcFlags::WITH_INV);
        for id in lane.into_iter().flat_map(|lane| &self.lanes[*lane].inbound) {
            let op = &self.ops[*id];
            let kind_fits = match op.opcode {
                SendOpcode::Send => !inverse,
                SendOpcode::SendWithInv => inverse,
                _ => false,
            };
            if kind_fits && op.len == len && op.planted.is_none() {
                return Ok(*id);
            }
            if !op.may_be_void() {
                break;
            }
        }
        Err(Violation::new(format!(
            "receive {recv} got a message of {len} bytes, which is not what comes next"
        )))
    }

    fn check_fields(&self, id: OpId, recv: RecvId, wc: &Wc, len: u32) -> Result<(), Violation> {
        let op = &self.ops[id];
        let source = self.source(id);
        let (opcode, flags, imm) = match op.opcode {
            SendOpcode::WriteWithImm => {
                (WcOpcode::RecvRdmaWithImm, WcFlags::WITH_IMM, message_id(id))
            }
            SendOpcode::SendWithImm => (WcOpcode::Recv, WcFlags::WITH_IMM, message_id(id)),
            SendOpcode::SendWithInv => {
                (WcOpcode::Recv, WcFlags::WITH_INV, op.invalidates.unwrap_or(0))
            }
            _ => (WcOpcode::Recv, WcFlags::empty(), wc.imm_data),
        };
        let is_ud = source.qp_type == QpType::Ud;
        let flags = if is_ud { flags | WcFlags::GRH } else { flags };
        let names_source = matches!(source.qp_type, QpType::Ud | QpType::Dci);
        if op.planted.is_some() {
            return Err(Violation::new(format!(
                "receive {recv} got WR {id} in spite of {:?}",
                op.planted
            )));
        }
        if wc.opcode != opcode
            || wc.flags != flags
            || wc.imm_data != imm
            || len != op.len
            || (names_source && wc.src_qp != source.qpn)
        {
            return Err(Violation::new(format!(
                "receive {recv} got WR {id}, {:?} of {} bytes from QPN {:#x}, but says {wc:?}",
                op.opcode, op.len, source.qpn
            )));
        }
        Ok(())
    }

    /// Counts a message as received, if it may be received now.
    fn count_delivery(
        &mut self,
        endpoint: EndpointId,
        id: OpId,
        view: &View<'_>,
    ) -> Result<(), Violation> {
        let lane = self.ops[id].lane;
        let reliable = self.source(id).qp_type.is_reliable();
        let twice = self.ops[id].delivered > 0;
        self.ops[id].delivered += 1;
        if reliable {
            return if twice {
                Err(Violation::new(format!("WR {id} was received twice")))
            } else {
                self.take_inbound(id)
            };
        }
        let (source, target) = (self.source(id).host, self.endpoints[endpoint].host);
        let copies = view.network.copies(self.endpoints[endpoint].qpn);
        if twice {
            let received = &mut self.endpoints[endpoint].received_copies;
            *received += 1;
            if *received > copies {
                return Err(Violation::new(format!(
                    "WR {id} was received twice, but the network made no copy of it"
                )));
            }
        } else if self.lanes[lane].latest.get(&endpoint).is_some_and(|latest| *latest > id)
            && copies == 0
            && !view.network.disturbed(source, target)
        {
            return Err(Violation::new(format!(
                "WR {id} was received after a later one, but the network kept the order"
            )));
        }
        let latest = self.lanes[lane].latest.entry(endpoint).or_insert(id);
        *latest = (*latest).max(id);
        Ok(())
    }

    /// Takes a message off those that are to come from its lane, with those before it that failed.
    fn take_inbound(&mut self, id: OpId) -> Result<(), Violation> {
        let (lane, dest) = (self.ops[id].lane, self.ops[id].dest);
        let inbound = &self.lanes[lane].inbound;
        let Some(at) = inbound.iter().position(|waiting| *waiting == id) else {
            return Err(Violation::new(format!(
                "WR {id} was received on a connection that began after it was posted"
            )));
        };
        let before = inbound.iter().take(at).copied();
        for earlier in before.filter(|earlier| self.ops[*earlier].dest == dest) {
            if !self.ops[earlier].may_be_void() {
                return Err(Violation::new(format!(
                    "WR {id} was received before WR {earlier}, which was posted earlier"
                )));
            }
        }
        let ops = &self.ops;
        let mut position = 0;
        self.lanes[lane].inbound.retain(|waiting| {
            position += 1;
            position > at + 1 || ops[*waiting].dest != dest
        });
        Ok(())
    }

    /// A receive that failed: there must be a bad WR that did it.
    fn refused(
        &mut self,
        endpoint: EndpointId,
        recv: RecvId,
        status: WcStatus,
    ) -> Result<(), Violation> {
        let leads_to = |op: &Op| match status {
            WcStatus::LocLenErr => op.planted == Some(Planted::TooLong),
            // Memory may be found gone when the receive for its immediate data is taken already.
            WcStatus::LocAccessErr if op.opcode == SendOpcode::WriteWithImm => {
                op.planted == Some(Planted::RemoteVanished)
            }
            WcStatus::LocAccessErr => op.planted == Some(Planted::InvalidateNothing),
            _ => false,
        };
        match status {
            WcStatus::LocLenErr | WcStatus::LocAccessErr => {}
            _ => {
                return Err(Violation::new(format!(
                    "receive {recv} failed with {status}, which no WR can lead to"
                )));
            }
        }
        let guilty =
            self.ops.iter_mut().find(|op| op.dest == endpoint && leads_to(op) && op.delivered == 0);
        match guilty {
            Some(op) => {
                op.delivered = 1;
                Ok(())
            }
            None => Err(Violation::new(format!(
                "receive {recv} failed with {status}, but no WR was wrong in that way"
            ))),
        }
    }

    /// The GRH names the host that sent the datagram, and ours.
    fn check_grh(&self, id: OpId, recv: RecvId, view: &View<'_>) -> Result<(), Violation> {
        let grh = self.receive_bytes(recv, 0, GRH_LEN);
        let source = view.network.address(self.source(id).host);
        let target = view.network.address(self.target(id).host);
        let fits = match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                grh[32..36] == source.octets() && grh[36..40] == target.octets()
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                grh[8..24] == source.octets() && grh[24..40] == target.octets()
            }
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(Violation::new(format!("the GRH of receive {recv} names other hosts than WR {id}")))
    }

    /// Bytes of a receive, from `skip` on.
    fn receive_bytes(&self, recv: RecvId, skip: u32, len: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((skip + len) as usize);
        for range in &self.recvs[recv].ranges {
            bytes.extend(self.arena(*range).read(*range));
            if bytes.len() >= (skip + len) as usize {
                break;
            }
        }
        bytes.truncate((skip + len) as usize);
        bytes.split_off(skip as usize)
    }

    /// Whether a receive holds a WR's message behind `head` bytes.
    fn holds(&self, recv: RecvId, head: u32, id: OpId, len: u32) -> bool {
        let message = Stream::Payload(u64::from(message_id(id)));
        let (mut at, end) = (0, head + len);
        for range in &self.recvs[recv].ranges {
            let (from, to) = (at.max(head), (at + range.len).min(end));
            if from < to {
                let part = range.part(from - at, to - from);
                let offset = u64::from(from - head);
                if !self.arena(part).look(part, |bytes| message.matches(offset, bytes)) {
                    return false;
                }
            }
            at += range.len;
        }
        at >= end
    }
}
