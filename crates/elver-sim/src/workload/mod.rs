//! What the programs of a run post.

mod aim;
mod ranges;
mod relay;
mod submit;
mod window;

use std::collections::BTreeSet;

use elver_verbs::{Dest, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendOpcode, Sge};

use crate::model::{
    ArenaId, CellKind, Effect, EndpointId, GRH_LEN, LaneId, NUMBERED_LEN, Op, OpId, Owner, Planted,
    QueueId, Range, Recv, State, Violation, WindowId, WindowState, message_id, recv_wr_id,
    send_wr_id,
};
use crate::pattern::Stream;
use crate::trace::Event;
use crate::world::World;

/// Longest message of an operation that takes no receive.
const ONE_SIDED_BYTES_MAX: u32 = 12_000;
/// Bytes of an atomic's operand.
const WORD: u32 = 8;
/// Bit of a key that belongs to its chance part: with it flipped the key opens nothing.
const KEY_FLIP: u32 = 1 << 31;
/// How many one-sided WRs in a hundred aim at memory that has gone, where there is some.
const AT_LOST_PERCENT: u32 = 40;
/// Receives posted at once when a queue has too few.
const TOP_UP: u64 = 4;

/// A WR whose parts live long enough to be posted.
pub(crate) struct Prepared {
    id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    dest: Option<Dest>,
}

/// The local side of a WR.
#[derive(Default)]
struct Local {
    /// Where what it fetches goes.
    fetched: Vec<Range>,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
}

/// What a WR does at its target, and by which key.
struct Aim {
    effect: Effect,
    remote: RemoteAddr,
    window: Option<WindowId>,
    /// The chunk there, if it may be deregistered meanwhile.
    mortal: Option<(ArenaId, usize)>,
}

const NOWHERE: Aim = Aim {
    effect: Effect::None,
    remote: RemoteAddr { addr: 0, rkey: 0 },
    window: None,
    mortal: None,
};

impl World {
    /// Posts up to `count` WRs on a lane, in one call.
    pub(crate) fn post(&mut self, lane: LaneId, count: u64) -> Result<(), Violation> {
        let mut prepared = Vec::new();
        for _ in 0..count {
            if !self.has_room(lane) {
                break;
            }
            prepared.extend(self.prepare(lane)?);
        }
        self.submit(self.model.lanes[lane].endpoint, &prepared)
    }

    /// Makes a WR that the lane's transport allows, if there is anything to aim at.
    fn prepare(&mut self, lane: LaneId) -> Result<Option<Prepared>, Violation> {
        let endpoint = self.model.lanes[lane].endpoint;
        let qp_type = self.model.endpoints[endpoint].qp_type;
        let Some(dest) = self.choose_dest(endpoint) else { return Ok(None) };
        let local = [SendOpcode::BindMw, SendOpcode::LocalInv];
        let mut choices = SendOpcode::ALL.to_vec();
        choices.retain(|opcode| qp_type.supports(*opcode) && !local.contains(opcode));
        let mut opcode = self.posting.pick(&choices);
        let mut window = None;
        if opcode == SendOpcode::SendWithInv {
            window = self.window_to_close(endpoint, dest, true);
            // Without a window of the peer's there is nothing that may be invalidated.
            if window.is_none() && !(self.plan.bad_percent > 0 && self.posting.percent(20)) {
                opcode = SendOpcode::Send;
            }
        }
        let planted = self.plant(opcode, qp_type, window.is_some());
        let planted = planted.or_else(|| self.plant_loss(opcode, dest));
        if !self.ensure_receive(dest, opcode)? {
            return Ok(None);
        }
        self.build(lane, dest, opcode, planted, window).map(Some)
    }

    fn choose_dest(&mut self, endpoint: EndpointId) -> Option<EndpointId> {
        match self.model.endpoints[endpoint].qp_type {
            QpType::Rc | QpType::Uc | QpType::XrcSend => self.model.endpoints[endpoint].peer,
            QpType::Ud => Some(self.posting.pick(&self.uds)),
            QpType::Dci => Some(self.posting.pick(&self.dcts)),
            QpType::XrcRecv | QpType::Dct => None,
        }
    }

    /// What is to be wrong with a WR, if anything.
    fn plant(&mut self, opcode: SendOpcode, qp_type: QpType, closes: bool) -> Option<Planted> {
        use SendOpcode as O;
        if opcode == O::SendWithInv && !closes {
            return Some(Planted::InvalidateNothing);
        }
        if closes || !self.posting.percent(self.plan.bad_percent) {
            return None;
        }
        let remote = [
            Planted::RemoteKey,
            Planted::RemoteRange,
            Planted::RemoteRights,
            Planted::RemoteDomain,
            Planted::RemoteDeregistered,
            Planted::StaleWindow,
        ];
        let mut choices = Vec::new();
        match opcode {
            O::Send | O::SendWithImm => choices.extend([Planted::TooLong, Planted::LocalKey]),
            O::Write => choices.extend(remote.into_iter().chain([Planted::LocalKey])),
            O::WriteWithImm => choices.extend(&remote[..5]),
            O::Read => choices.extend(remote.into_iter().chain([Planted::LocalKey])),
            O::CompareSwap | O::FetchAdd => {
                choices.extend(remote[..5].iter().copied().chain([Planted::Misaligned]));
            }
            O::SendWithInv | O::BindMw | O::LocalInv => {}
        }
        match qp_type {
            QpType::Dci => choices.push(Planted::AccessKey),
            QpType::Ud => choices.push(Planted::QKey),
            _ => {}
        }
        let chosen = if choices.is_empty() { None } else { Some(self.posting.pick(&choices)) };
        chosen.filter(|planted| {
            let windows = qp_type == QpType::Rc && self.plan.windows;
            *planted != Planted::StaleWindow || windows
        })
    }

    /// Has a WR aim at memory that has gone, now and then, if there is some at its target.
    fn plant_loss(&mut self, opcode: SendOpcode, dest: EndpointId) -> Option<Planted> {
        use SendOpcode as O;
        let one_sided =
            matches!(opcode, O::Write | O::WriteWithImm | O::Read | O::CompareSwap | O::FetchAdd);
        let aims =
            one_sided && self.vanished(dest).is_some() && self.posting.percent(AT_LOST_PERCENT);
        aims.then_some(Planted::RemoteVanished)
    }

    /// Sees to it that a message finds a receive, unless receives are late on purpose. False if
    /// there is no room for one.
    fn ensure_receive(&mut self, dest: EndpointId, opcode: SendOpcode) -> Result<bool, Violation> {
        let takes_receive = matches!(
            opcode,
            SendOpcode::Send
                | SendOpcode::SendWithImm
                | SendOpcode::SendWithInv
                | SendOpcode::WriteWithImm
        );
        let endpoint = &self.model.endpoints[dest];
        let Some(queue) = endpoint.queue.filter(|_| takes_receive) else { return Ok(true) };
        let served = endpoint.phase.is_up();
        let state = &self.model.queues[queue];
        if state.late || !served || state.posted > state.aimed {
            return Ok(true);
        }
        let room = u64::from(state.max_wr) - state.outstanding.len() as u64;
        self.post_receives(queue, TOP_UP.min(room))?;
        if room == 0 {
            self.recount(queue)?;
        }
        Ok(self.model.queues[queue].posted > self.model.queues[queue].aimed)
    }

    /// Messages that were lost took no receives: when nothing is on its way, those that are left
    /// can be counted.
    fn recount(&mut self, queue: QueueId) -> Result<(), Violation> {
        if !self.is_idle() {
            return Ok(());
        }
        self.poll(self.model.queues[queue].host)?;
        let model = &self.model;
        let to_come = model.lanes.iter().flat_map(|lane| &lane.outstanding).filter(|id| {
            let op = &model.ops[**id];
            op.takes_receive() && model.endpoints[op.dest].queue == Some(queue)
        });
        let to_come = to_come.count() as u64 + self.unseen(queue);
        let queue = &mut self.model.queues[queue];
        queue.aimed = queue.posted - queue.outstanding.len() as u64 + to_come;
        Ok(())
    }

    /// Messages to a queue whose senders are gone, and which may come all the same: they are on no wire,
    /// but may wait in the receiver's device for memory.
    fn unseen(&self, queue: QueueId) -> u64 {
        let model = &self.model;
        let of_queue = model.recvs.iter().filter(|recv| recv.queue == queue);
        let come: BTreeSet<OpId> = of_queue.filter_map(|recv| Some(recv.got?.0)).collect();
        let forgotten = (0..model.ops.len()).filter(|id| {
            let op = &model.ops[*id];
            op.state == State::Forgotten
                && op.takes_receive()
                && model.endpoints[op.dest].queue == Some(queue)
                && !come.contains(id)
        });
        forgotten.count() as u64
    }

    /// Whether no packet is on its way to anyone.
    fn is_idle(&self) -> bool {
        self.network.next().is_none() && self.hosts.iter().all(|host| host.inbox.is_empty())
    }

    /// Posts receives on a queue.
    pub(crate) fn post_receives(&mut self, queue: QueueId, count: u64) -> Result<(), Violation> {
        let (number, srq, owner) = {
            let queue = &self.model.queues[queue];
            (queue.host, queue.srq, queue.endpoint)
        };
        let mut posted = Vec::new();
        for _ in 0..count {
            let (capacity, max_sge) =
                (self.model.queues[queue].capacity, self.model.queues[queue].max_sge);
            let id = self.model.recvs.len();
            // Into memory that is not at hand nothing is received.
            let ranges = self.scatter(number, capacity, max_sge, true)?;
            let mut skip = 0;
            for range in &ranges {
                self.model.arenas[range.arena].claim(*range, Owner::Received { recv: id, skip });
                skip += range.len;
            }
            let sges: Vec<Sge> = ranges.iter().map(|range| self.sge(*range)).collect();
            self.model.recvs.push(Recv { queue, ranges, state: State::Outstanding, got: None });
            self.model.queues[queue].outstanding.push_back(id);
            self.model.queues[queue].posted += 1;
            posted.push((id, sges));
        }
        let wrs: Vec<RecvWr<'_>> =
            posted.iter().map(|(id, sges)| RecvWr { wr_id: recv_wr_id(*id), sges }).collect();
        let time = self.time(number);
        self.trace.add(self.now, Event::Received { host: number, count: wrs.len() });
        let host = &mut self.hosts[number];
        let done = match srq {
            Some(srq) => host.rnic.post_srq_recv(time, srq, &wrs),
            None => host.rnic.post_recv(time, self.model.endpoints[owner].qp, &wrs),
        };
        done.map_err(|(index, error)| {
            Violation::new(format!("receive {} was refused: {error}", wrs[index].wr_id >> 1))
        })
    }

    /// Builds a WR, notes it in the model, and prepares its memory.
    fn build(
        &mut self,
        lane: LaneId,
        dest: EndpointId,
        opcode: SendOpcode,
        planted: Option<Planted>,
        closes: Option<WindowId>,
    ) -> Result<Prepared, Violation> {
        let id = self.model.ops.len();
        let len = self.length(lane, dest, opcode, planted);
        // A datagram longer than some receives does not fit a packet: then it is a good one.
        let planted = planted
            .filter(|planted| *planted != Planted::TooLong || len > self.most_received(lane, dest));
        let aim = self.aim(lane, dest, opcode, len, planted)?;
        let len = match aim.effect {
            Effect::Overwrite(cell) => self.model.cells[cell].range.len,
            Effect::Write(range) => range.len,
            _ => len,
        };
        let Local { fetched, sges, inline } = self.local(id, lane, opcode, len, planted)?;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.posting.percent(60));
        flags.set(SendFlags::SOLICITED, self.posting.percent(30));
        // What a peer invalidates must not be in use by READs that are still answered.
        flags.set(SendFlags::FENCE, closes.is_some() || self.posting.percent(15));
        let invalidates = match (opcode, closes) {
            (SendOpcode::SendWithInv, Some(window)) => Some(self.model.windows[window].rkey),
            (SendOpcode::SendWithInv, None) => Some(self.key_not_to_invalidate(dest)),
            _ => None,
        };
        let imm = message_id(id);
        let Aim { effect, remote, window, mortal } = aim;
        let op = match opcode {
            SendOpcode::SendWithImm => SendOp::SendWithImm(imm),
            SendOpcode::SendWithInv => SendOp::SendWithInv(invalidates.unwrap_or(0)),
            SendOpcode::Write => SendOp::Write(remote),
            SendOpcode::WriteWithImm => SendOp::WriteWithImm(remote, imm),
            SendOpcode::Read => SendOp::Read(remote),
            SendOpcode::CompareSwap => self.swap(remote, &effect),
            SendOpcode::FetchAdd => match effect {
                Effect::Add { add, .. } => SendOp::FetchAdd { remote, add },
                _ => SendOp::FetchAdd { remote, add: 1 },
            },
            SendOpcode::Send | SendOpcode::BindMw | SendOpcode::LocalInv => SendOp::Send,
        };
        if let Some(window) = closes {
            self.model.windows[window].state = WindowState::Closing;
        }
        let noted = Op {
            opcode,
            lane,
            epoch: self.model.lanes[lane].epoch,
            dest,
            len,
            mtu: self.model.endpoints[self.model.lanes[lane].endpoint].mtu,
            content: (Stream::Payload(u64::from(message_id(id))), 0),
            signaled: flags.contains(SendFlags::SIGNALED),
            solicited: flags.contains(SendFlags::SOLICITED),
            effect,
            local: fetched,
            planted,
            window: closes.or(window),
            mortal,
            invalidates,
            state: State::Outstanding,
            delivered: 0,
        };
        let wrong_key = matches!(planted, Some(Planted::AccessKey | Planted::QKey));
        let address = self.address(lane, dest, wrong_key);
        self.note(noted);
        Ok(Prepared { id: send_wr_id(id), op, flags, sges, inline, dest: address })
    }

    fn swap(&mut self, remote: RemoteAddr, effect: &Effect) -> SendOp {
        let Effect::Swap { cell, expected } = *effect else {
            return SendOp::CompareSwap { remote, compare: 0, swap: 0 };
        };
        let hits = self.posting.percent(70);
        let compare = if hits { expected } else { !expected };
        let swap = self.posting.next_u64();
        if let CellKind::Swapped { values, .. } = &mut self.model.cells[cell].kind {
            values.push(if hits { swap } else { expected });
        }
        SendOp::CompareSwap { remote, compare, swap }
    }

    /// Where a WR goes, on a transport whose WRs say so.
    fn address(&self, lane: LaneId, dest: EndpointId, wrong_key: bool) -> Option<Dest> {
        let source = &self.model.endpoints[self.model.lanes[lane].endpoint];
        let target = &self.model.endpoints[dest];
        let ah = self.hosts[source.host].ahs[target.host];
        match source.qp_type {
            QpType::Ud => {
                let remote_qkey = target.setup.qkey ^ u32::from(wrong_key);
                Some(Dest::Ud { ah, remote_qpn: target.qpn, remote_qkey })
            }
            QpType::Dci => Some(Dest::Dc {
                ah,
                remote_dctn: target.qpn,
                dc_access_key: target.setup.access_key ^ u64::from(wrong_key),
                stream_id: self.model.lanes[lane].stream,
            }),
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv | QpType::Dct => None,
        }
    }

    /// How long a message is.
    fn length(
        &mut self,
        lane: LaneId,
        dest: EndpointId,
        opcode: SendOpcode,
        planted: Option<Planted>,
    ) -> u32 {
        let source = &self.model.endpoints[self.model.lanes[lane].endpoint];
        let (mtu, qp_type) = (source.mtu, source.qp_type);
        let fits = self.most_received(lane, dest);
        if planted == Some(Planted::TooLong) {
            let longer = fits + self.posting.between(1, u64::from(mtu)) as u32;
            return if qp_type == QpType::Ud { longer.min(mtu) } else { longer };
        }
        let (least, most) = match opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => return WORD,
            SendOpcode::Send | SendOpcode::SendWithInv if qp_type != QpType::Rc => {
                (NUMBERED_LEN, fits)
            }
            SendOpcode::Send | SendOpcode::SendWithInv | SendOpcode::SendWithImm => (0, fits),
            _ => (0, ONE_SIDED_BYTES_MAX),
        };
        let most = if qp_type == QpType::Ud { most.min(mtu) } else { most };
        let least = if planted.is_some() { least.max(1) } else { least };
        let wanted = match self.posting.below(8) {
            0 => 0,
            1..=3 => self.posting.between(1, 64) as u32,
            4 => mtu * self.posting.between(1, 3) as u32,
            5 => mtu * self.posting.between(1, 3) as u32 + 1,
            6 => mtu * self.posting.between(1, 3) as u32 - 1,
            _ => self.posting.below(u64::from(most) + 1) as u32,
        };
        wanted.clamp(least, most)
    }

    /// The longest message that the receives of a WR's target hold.
    fn most_received(&self, lane: LaneId, dest: EndpointId) -> u32 {
        let source = &self.model.endpoints[self.model.lanes[lane].endpoint];
        let head = if source.qp_type == QpType::Ud { GRH_LEN } else { 0 };
        let queue = self.model.endpoints[dest].queue;
        queue.map_or(0, |queue| self.model.queues[queue].capacity - head)
    }

    /// The local side of a WR: memory that holds its message, or takes what it fetches.
    fn local(
        &mut self,
        id: usize,
        lane: LaneId,
        opcode: SendOpcode,
        len: u32,
        planted: Option<Planted>,
    ) -> Result<Local, Violation> {
        let endpoint = &self.model.endpoints[self.model.lanes[lane].endpoint];
        let (host, setup) = (endpoint.host, endpoint.setup);
        let message = Stream::Payload(u64::from(message_id(id)));
        let fetches =
            matches!(opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd);
        let wrong_key = planted == Some(Planted::LocalKey);
        let inline = !fetches && !wrong_key && len <= setup.max_inline_data;
        if inline && self.posting.percent(40) {
            let mut bytes = vec![0; len as usize];
            message.write(0, &mut bytes);
            return Ok(Local { inline: Some(bytes), ..Local::default() });
        }
        if len == 0 {
            return Ok(Local::default());
        }
        let ranges = self.scatter(host, len, setup.max_send_sge, false)?;
        let mut skip = 0;
        for range in &ranges {
            let arena = &mut self.model.arenas[range.arena];
            if fetches {
                arena.claim(*range, Owner::Fetched { op: id, skip });
            } else {
                arena.claim(*range, Owner::Message { op: id, skip });
                arena.put(*range, message, skip)?;
            }
            skip += range.len;
        }
        let mut sges: Vec<Sge> = ranges.iter().map(|range| self.sge(*range)).collect();
        if wrong_key {
            for sge in &mut sges {
                sge.lkey ^= KEY_FLIP;
            }
        }
        let fetched = if fetches { ranges } else { Vec::new() };
        Ok(Local { fetched, sges, inline: None })
    }

    /// Posts a signalled WR behind unsignalled ones, so that a completion tells of them.
    pub(crate) fn post_end(&mut self, lane: LaneId) -> Result<(), Violation> {
        let Some(last) = self.model.lanes[lane].outstanding.back() else { return Ok(()) };
        let endpoint = self.model.lanes[lane].endpoint;
        if self.model.ops[*last].signaled {
            return Ok(());
        }
        let is_ud = self.model.endpoints[endpoint].qp_type == QpType::Ud;
        let (opcode, len) =
            if is_ud { (SendOpcode::Send, NUMBERED_LEN) } else { (SendOpcode::Write, 0) };
        let local =
            matches!(self.model.ops[*last].opcode, SendOpcode::BindMw | SendOpcode::LocalInv);
        let dest = match self.model.endpoints[endpoint].peer {
            Some(peer) if local => peer,
            _ => self.model.ops[*last].dest,
        };
        if !self.ensure_receive(dest, opcode)? && !self.is_idle() {
            return Ok(());
        }
        let id = self.model.ops.len();
        let Local { fetched, sges, inline } = self.local(id, lane, opcode, len, None)?;
        let op = if is_ud { SendOp::Send } else { SendOp::Write(NOWHERE.remote) };
        let address = self.address(lane, dest, false);
        self.note(Op {
            opcode,
            lane,
            epoch: self.model.lanes[lane].epoch,
            dest,
            len,
            mtu: self.model.endpoints[self.model.lanes[lane].endpoint].mtu,
            content: (Stream::Payload(u64::from(message_id(id))), 0),
            signaled: true,
            solicited: false,
            effect: Effect::None,
            local: fetched,
            planted: None,
            window: None,
            mortal: None,
            invalidates: None,
            state: State::Outstanding,
            delivered: 0,
        });
        let flags = SendFlags::SIGNALED;
        let wr = Prepared { id: send_wr_id(id), op, flags, sges, inline, dest: address };
        self.submit(endpoint, &[wr])
    }
}
