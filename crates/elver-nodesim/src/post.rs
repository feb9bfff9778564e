//! Posting of send WRs, good ones and bad ones.

use elver_verbs::{
    BindMw, Mr, Mw, Payload, PostError, RemoteAddr, SendFlags, SendOp, SendOpcode, SendWr, Sge,
};

use crate::canary::Canary;
use crate::model::{
    ATOMIC_WORDS, ArenaIx, COUNTERS, ClientIx, Hold, Op, OpState, Phase, Piece, Planted, RegionIx,
    Violation, VqpIx, broken, bytes,
};
use crate::world::World;

/// Most WRs of one call.
const BATCH_MAX: u64 = 8;
/// Messages are no longer than this.
pub(crate) const MESSAGE_MAX: u64 = 12_000;
/// Of a hundred WRs, those that go to regions that are being taken back, if there are any.
const LATE_PERCENT: u32 = 20;
/// Longest payload that carries no id, so that immediate data must.
const ANONYMOUS: u32 = 7;

/// A WR before it is posted.
struct Draft {
    id: usize,
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    model: Op,
}

impl Draft {
    fn wr(&self) -> SendWr<'_> {
        let payload = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&self.sges),
        };
        let (op, flags) = (self.op, self.flags);
        SendWr { wr_id: (self.id as u64) << 1, op, flags, payload, dest: None }
    }
}

impl World {
    /// Posts some WRs on a VQP.
    pub(crate) fn post_some(&mut self, vqp: VqpIx) -> Result<(), Violation> {
        let count = self.posting.between(1, BATCH_MAX) as usize;
        let first = self.model.ops.len();
        let mut drafts = Vec::with_capacity(count);
        for _ in 0..count {
            let opcode = self.choose_opcode();
            let id = first + drafts.len();
            drafts.push(self.draft(vqp, id, opcode, None));
        }
        self.post_drafts(vqp, drafts)
    }

    /// Posts a WR, at this region if it needs one, or at any.
    pub(crate) fn post_at(
        &mut self,
        vqp: VqpIx,
        opcode: SendOpcode,
        region: Option<RegionIx>,
    ) -> Result<(), Violation> {
        let region = region.filter(|region| self.model.regions[*region].allows(opcode));
        let draft = self.draft(vqp, self.model.ops.len(), opcode, region);
        self.post_drafts(vqp, vec![draft])
    }

    /// Posts a signalled WR that must succeed; its id.
    pub(crate) fn post_sure(&mut self, vqp: VqpIx, opcode: SendOpcode) -> Result<usize, Violation> {
        let id = self.model.ops.len();
        let mut draft = self.draft(vqp, id, opcode, None);
        draft.flags |= SendFlags::SIGNALED;
        draft.model.signaled = true;
        draft.model.must_succeed = true;
        self.post_drafts(vqp, vec![draft])?;
        Ok(id)
    }

    fn choose_opcode(&mut self) -> SendOpcode {
        match self.posting.below(100) {
            0..22 => SendOpcode::Send,
            22..32 => SendOpcode::SendWithImm,
            32..54 => SendOpcode::Write,
            54..64 => SendOpcode::WriteWithImm,
            64..86 => SendOpcode::Read,
            86..94 => SendOpcode::FetchAdd,
            _ => SendOpcode::CompareSwap,
        }
    }

    fn choose_len(&mut self) -> u32 {
        let most = self.posting.pick(&[16, 64, 600, 600, 4_000, MESSAGE_MAX]);
        self.posting.below(most + 1) as u32
    }

    /// Makes a WR, wrong on purpose now and then.
    fn draft(&mut self, vqp: VqpIx, id: usize, opcode: SendOpcode, aim: Option<RegionIx>) -> Draft {
        let bad = !self.healed && self.posting.percent(self.plan.bad_percent);
        let mut len = self.choose_len();
        let needs_region = !matches!(opcode, SendOpcode::Send | SendOpcode::SendWithImm);
        let region = match aim {
            Some(_) => aim,
            None if needs_region => self.choose_region(vqp, opcode),
            None => None,
        };
        let opcode = if needs_region && region.is_none() { SendOpcode::Send } else { opcode };
        let mut remote = None;
        let mut operands = (0, 0);
        if let Some(index) = region {
            let region = &self.model.regions[index];
            let data = region.data_len();
            let offset = match opcode {
                SendOpcode::FetchAdd => data + 8 * self.posting.below(COUNTERS),
                SendOpcode::CompareSwap => {
                    data + 8 * self.posting.between(COUNTERS, ATOMIC_WORDS - 1)
                }
                _ => {
                    len = u64::from(len).min(data) as u32;
                    self.posting.below(data - u64::from(len) + 1)
                }
            };
            if opcode == SendOpcode::FetchAdd {
                operands.0 = self.posting.between(1, 1_000);
            } else if opcode == SendOpcode::CompareSwap {
                let word = (offset - data) / 8;
                operands = (region.last[word as usize], id as u64 + 1);
            }
            remote = Some((index, offset));
        }
        if matches!(opcode, SendOpcode::FetchAdd | SendOpcode::CompareSwap) {
            len = 8;
        }
        let fills =
            matches!(opcode, SendOpcode::Read | SendOpcode::FetchAdd | SendOpcode::CompareSwap);
        let opcode = match opcode {
            SendOpcode::Send if len <= ANONYMOUS => SendOpcode::SendWithImm,
            other => other,
        };
        let content = bytes(id as u64, len);
        let inlined = !fills && len <= self.plan.config.max_inline && self.posting.percent(40);
        let client = self.model.vqps[vqp].client;
        let pieces = if inlined { Vec::new() } else { self.pieces(client, len, fills) };
        let mut draft = Draft {
            id,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            sges: self.sges(&pieces),
            inline: inlined.then(|| content.clone()),
            model: Op {
                vqp,
                epoch: self.model.vqps[vqp].epoch,
                opcode,
                signaled: self.posting.percent(50),
                state: OpState::Outstanding,
                posted: 0,
                ended: None,
                len: if inlined { len } else { pieces.iter().map(|piece| piece.len).sum() },
                pieces,
                remote,
                planted: None,
                operands,
                delivered: false,
                must_succeed: false,
            },
        };
        if !inlined {
            self.shorten(&mut draft, &content);
        }
        draft.op = self.operation(&draft);
        if draft.model.signaled {
            draft.flags |= SendFlags::SIGNALED;
        }
        if self.posting.percent(10) {
            draft.flags |= SendFlags::FENCE;
        }
        draft.model.signaled |= self.model.vqps[vqp].init.sq_sig_all;
        if bad {
            self.spoil(&mut draft, client);
        }
        draft
    }

    /// Fits a WR to the local memory that there was room for, and writes its content there.
    fn shorten(&mut self, draft: &mut Draft, content: &[u8]) {
        let model = &mut draft.model;
        let atomic = matches!(model.opcode, SendOpcode::FetchAdd | SendOpcode::CompareSwap);
        if atomic && model.len != 8 {
            self.model.release(&model.pieces);
            model.pieces.clear();
            draft.sges.clear();
            (model.opcode, model.len, model.remote) = (SendOpcode::SendWithImm, 0, None);
        } else if model.opcode == SendOpcode::Send && model.len <= ANONYMOUS {
            model.opcode = SendOpcode::SendWithImm;
        }
        if model.fills() {
            return;
        }
        let mut from = 0;
        for piece in &model.pieces {
            let to = from + piece.len as usize;
            self.model.arenas[piece.arena].fill(piece.offset, &content[from..to]);
            from = to;
        }
    }

    fn operation(&self, draft: &Draft) -> SendOp {
        let imm = draft.id as u32;
        let remote =
            draft.model.remote.map_or(RemoteAddr { addr: 0, rkey: 0 }, |(index, offset)| {
                let region = &self.model.regions[index];
                RemoteAddr { addr: region.addr + offset, rkey: region.rkey }
            });
        let (first, second) = draft.model.operands;
        match draft.model.opcode {
            SendOpcode::SendWithImm => SendOp::SendWithImm(imm),
            SendOpcode::Write => SendOp::Write(remote),
            SendOpcode::WriteWithImm => SendOp::WriteWithImm(remote, imm),
            SendOpcode::Read => SendOp::Read(remote),
            SendOpcode::FetchAdd => SendOp::FetchAdd { remote, add: first },
            SendOpcode::CompareSwap => SendOp::CompareSwap { remote, compare: first, swap: second },
            _ => SendOp::Send,
        }
    }

    /// A region at the node that a VQP is connected to, which allows the operation.
    fn choose_region(&mut self, vqp: VqpIx, opcode: SendOpcode) -> Option<RegionIx> {
        let (node, _) = self.model.vqps[vqp].target?.place;
        let place = (node, self.nodes.get(node)?.boot);
        let find = |hold: Hold| -> Vec<RegionIx> {
            let fits = |index: &RegionIx| {
                let region = &self.model.regions[*index];
                let usable = !region.vanished || !self.healed;
                region.place == place && region.hold == hold && usable && region.allows(opcode)
            };
            (0..self.model.regions.len()).filter(fits).collect()
        };
        // Now and then one that its client wants back: it may work or not, until it is back.
        let late = !self.healed && self.posting.percent(LATE_PERCENT);
        let mut regions = if late { find(Hold::Dropping) } else { Vec::new() };
        if regions.is_empty() {
            regions = find(Hold::Open);
        }
        (!regions.is_empty()).then(|| self.posting.pick(&regions))
    }

    /// Local memory for a WR, in some pieces; less of it where there is no room.
    pub(crate) fn pieces(&mut self, client: ClientIx, len: u32, writable: bool) -> Vec<Piece> {
        let usable = |arena: &ArenaIx| self.model.arenas[*arena].hold == Hold::Open;
        let mut arenas = self.model.clients[client].arenas.clone();
        arenas.retain(usable);
        let count = self.posting.between(1, u64::from(self.plan.config.max_sge)) as u32;
        let mut pieces = Vec::new();
        let mut left = len;
        for rest in (1..=count).rev() {
            if left == 0 || arenas.is_empty() {
                break;
            }
            let part = if rest == 1 { left } else { self.posting.between(1, left.into()) as u32 };
            let arena = self.posting.pick(&arenas);
            let taken = self.model.arenas[arena].take(part, writable, &mut self.posting);
            let Some(offset) = taken else { break };
            pieces.push(Piece { arena, offset, len: part });
            left -= part;
        }
        pieces
    }

    pub(crate) fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        let sge = |piece: &Piece| {
            let arena = &self.model.arenas[piece.arena];
            Sge { addr: arena.addr + piece.offset, length: piece.len, lkey: arena.lkey }
        };
        pieces.iter().map(sge).collect()
    }

    /// Makes a WR wrong in one way.
    fn spoil(&mut self, draft: &mut Draft, client: ClientIx) {
        let nowhere = RemoteAddr { addr: 0, rkey: 0x1234_5678 };
        let mut planted = None;
        match self.posting.below(12) {
            0 => {
                draft.op = self.posting.pick(&[
                    SendOp::SendWithInv(1),
                    SendOp::LocalInv(1),
                    SendOp::BindMw(BindMw {
                        mw: Mw(1),
                        rkey: 1,
                        mr: Mr(1),
                        addr: 0,
                        length: 1,
                        access: elver_verbs::AccessFlags::empty(),
                    }),
                ]);
                planted = Some(Planted::Local("an opcode that VQPs lack"));
            }
            1 if !draft.sges.is_empty() => {
                draft.sges[0].lkey = self.foreign_lkey(client);
                planted = Some(Planted::Local("a foreign lkey"));
            }
            2 if !draft.sges.is_empty() => {
                let arena = &self.model.arenas[draft.model.pieces[0].arena];
                draft.sges[0].addr =
                    arena.addr + arena.size() - u64::from(draft.sges[0].length) + 1;
                planted = Some(Planted::Local("a piece over the end"));
            }
            3 if !draft.sges.is_empty() => {
                let more = self.plan.config.max_sge as usize + 1;
                draft.sges = vec![Sge { length: 1, ..draft.sges[0] }; more];
                planted = Some(Planted::Local("too many pieces"));
            }
            4 if !draft.model.fills() => {
                draft.inline = Some(vec![0; self.plan.config.max_inline as usize + 1]);
                planted = Some(Planted::Local("too many inline bytes"));
            }
            5 if draft.model.fills() && draft.model.len == 8 => {
                if let SendOp::FetchAdd { remote, .. } | SendOp::CompareSwap { remote, .. } =
                    &mut draft.op
                {
                    remote.addr += 1;
                    planted = Some(Planted::Local("a word that is not aligned"));
                }
            }
            6 | 7 => {
                if let Some(remote) = remote_of(&mut draft.op)
                    && draft.model.len > 0
                {
                    *remote = nowhere;
                    planted = Some(Planted::Remote("an rkey of no region"));
                }
            }
            8 | 9 => {
                let end = draft.model.remote.map(|(region, _)| {
                    let region = &self.model.regions[region];
                    region.addr + region.data_len() + 8 * ATOMIC_WORDS
                });
                if let (Some(remote), Some(end)) = (remote_of(&mut draft.op), end)
                    && draft.model.len > 0
                {
                    remote.addr = end - u64::from(draft.model.len) + 8;
                    planted = Some(Planted::Remote("addresses over the end"));
                }
            }
            _ => {
                let dropped = self.model.regions.iter().rfind(|region| region.hold == Hold::Back);
                if let (Some(remote), Some(dropped)) = (remote_of(&mut draft.op), dropped)
                    && draft.model.len > 0
                {
                    *remote = RemoteAddr { addr: dropped.addr, rkey: dropped.rkey };
                    planted = Some(Planted::Remote("a region that is gone"));
                }
            }
        }
        if matches!(planted, Some(Planted::Remote(_))) && self.planter.strikes(Canary::SkippedCheck)
        {
            draft.op = self.operation(draft);
        }
        draft.model.planted = planted;
    }

    /// A key of another client's memory at the same node, or of nobody's.
    fn foreign_lkey(&self, client: ClientIx) -> u32 {
        let place = self.model.clients[client].place;
        let foreign = self.model.arenas.iter().find(|arena| {
            arena.client != client && self.model.clients[arena.client].place == place
        });
        foreign.map_or(0x7777_7777, |arena| arena.lkey)
    }

    fn post_drafts(&mut self, vqp: VqpIx, drafts: Vec<Draft>) -> Result<(), Violation> {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let now = self.time_at(node);
        let Some(core) = self.core(node) else { return Ok(()) };
        let wrs: Vec<SendWr<'_>> = drafts.iter().map(Draft::wr).collect();
        let (taken, refused) = match core.post_send(owner, id, &wrs, now) {
            Ok(()) => (drafts.len(), None),
            Err((taken, error)) => (taken, Some(error)),
        };
        drop(wrs);
        let state = core.vqp_info(owner, id).map(|info| info.state);
        let step = self.model.tick();
        let outstanding = self.model.vqps[vqp].sends.len();
        let mut sent = Vec::new();
        for (position, draft) in drafts.into_iter().enumerate() {
            let mut op = draft.model;
            op.posted = step;
            if position < taken {
                if let Some(Planted::Local(what)) = op.planted {
                    broken!("VQP {vqp}: WR {} with {what} was taken", draft.id);
                }
                self.note(format_args!(
                    "VQP {vqp}: WR {} {:?} of {} bytes{}{}{}",
                    draft.id,
                    op.opcode,
                    op.len,
                    op.remote
                        .map(|(region, at)| format!(" at {at} of region {region}"))
                        .unwrap_or_default(),
                    if op.signaled { ", signalled" } else { "" },
                    match op.planted {
                        Some(Planted::Remote(what)) => format!(", with {what}"),
                        _ => String::new(),
                    }
                ));
                if let Some((region, offset)) = op.remote
                    && matches!(op.opcode, SendOpcode::Write | SendOpcode::WriteWithImm)
                    && op.planted.is_none()
                {
                    self.model.regions[region].add_write(draft.id, offset, op.len.into());
                }
                self.model.vqps[vqp].sends.push_back(draft.id);
                if op.is_message() {
                    sent.push(draft.id);
                }
            } else {
                self.model.release(&op.pieces);
                op.state = OpState::Forgotten;
                if position == taken {
                    let local = match op.planted {
                        Some(Planted::Local(what)) => Some(what),
                        _ => None,
                    };
                    let full = outstanding + position;
                    let most = self.model.vqps[vqp].init.max_send_wr as usize;
                    let up = matches!(self.model.vqps[vqp].phase, Phase::Up | Phase::Connecting);
                    let right = match refused {
                        Some(PostError::QueueFull { .. }) => full >= most,
                        Some(PostError::State { .. }) => {
                            !up || state == Ok(elver_core::VqpState::Error)
                        }
                        Some(_) => local.is_some(),
                        None => false,
                    };
                    if !right {
                        broken!(
                            "VQP {vqp}: WR {} was refused: {refused:?}, bad: {local:?}, {full} \
                             outstanding, state {state:?}",
                            draft.id
                        );
                    }
                    self.count(if local.is_some() { "bad WR refused" } else { "WR refused" });
                    if local.is_some() {
                        self.plant_stuck_queue(node)?;
                    }
                }
            }
            self.model.ops.push(op);
        }
        for op in sent {
            self.message_sent(vqp, op);
        }
        Ok(())
    }
}

fn remote_of(op: &mut SendOp) -> Option<&mut RemoteAddr> {
    match op {
        SendOp::Write(remote)
        | SendOp::WriteWithImm(remote, _)
        | SendOp::Read(remote)
        | SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. } => Some(remote),
        _ => None,
    }
}
