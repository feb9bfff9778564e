//! What a core counts, against what it counts: for those who test it.
//!
//! Nothing of this is on any path of a running node. A count that went wrong shows here at the next
//! look, and not when a pool that leaked has run dry.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::{Class, Device};
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use crate::Core;
use crate::VqpId;
use crate::datapath::ops::{Op, OpKind, Work};
use crate::discovery::lookups::turns::Region;
use crate::discovery::peer::{Peer, PeerLookup, Waiter};
use crate::ids::OpId;
use crate::messaging::backlog::cost_of;
use crate::pool::lane::{LaneKind, LaneState};
use crate::rc::links::audit::Tally;
use crate::vqp::phase::Phase;
use crate::vqp::seq::SendSeq;
use crate::vqp::{Vqp, Wait};

/// Regions of the core's own: its buffers, those of its UD QP, and ValidMR.
const OWN_MRS: u32 = 3;

/// What a core has at its device, and what it has under way. See [`Core::audit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// DC initiators.
    pub dcis: u32,
    /// RC QPs.
    pub rc_qps: u32,
    /// Of these, the ones that are being made, left or closed, or whose peer is asked how far it got.
    pub rc_qps_changing: u32,
    /// Of these, the ones of single VQPs, and the other ends of peers' ones.
    pub rc_qps_leased: u32,
    /// Other QPs: for control, and the DC target.
    pub other_qps: u32,
    /// Regions: those of clients, pieces of long messages, and the core's own.
    pub mrs: u32,
    /// Of these, pieces of long messages.
    pub mrs_shared: u32,
    /// Address handles.
    pub ahs: u32,
    /// Receive buffers that stand, or will stand after the next poll, in the shared receive queue.
    pub receives: u32,
    /// Messages and READs of the core's own that are under way.
    pub ops: u32,
    /// Messages of the core's own that wait for a send slot, or for a look-up.
    pub pending_notes: u32,
    /// Senders that wait until VQPs hold fewer messages.
    pub senders_waiting: u32,
    /// Send slots that hold a message.
    pub send_slots: u32,
    /// WRs on the pool's QPs.
    pub posted: u32,
    /// Requests of ours to other cores that have no answer, or of others that we have not answered.
    pub requests: u32,
    /// VQPs, those going included.
    pub vqps: u32,
    /// Look-ups and connects that wait.
    pub waiting: u32,
}

/// Ends the function unless two counts agree.
macro_rules! agree {
    ($found:expr, $counted:expr, $($what:tt)*) => {
        let (found, counted) = ($found, $counted);
        if found != counted {
            let what = format!($($what)*);
            return Err(format!("{what}: {found:?}, counted as {counted:?}"));
        }
    };
}

impl<D: Device> Core<D> {
    /// Counts everything anew that the core keeps count of, and looks for what waits for nothing.
    /// Takes time with all that there is.
    ///
    /// # Errors
    /// What does not agree: a fault of the core.
    #[inline(never)]
    pub fn audit(&self) -> Result<Holdings, String> {
        self.audit_vqps()?;
        self.audit_waits()?;
        self.audit_clients()?;
        self.audit_regions()?;
        self.audit_lanes()?;
        self.audit_peers()?;
        self.audit_lookups()?;
        let told = self.datapath.ops.iter().filter_map(|(_, op)| match &op.kind {
            OpKind::Message(note) => Some((op.peer, note)),
            _ => None,
        });
        self.messaging.notes.audit(told)?;
        self.messaging.refusals.audit()?;
        let Tally { changing, leased, requests } = self.audit_links()?;
        let slots = self.audit_buffers()?;
        let open = self.regions.local.openings.count();
        let addresses = self.peers.slots.iter().filter(|(_, peer)| peer.ah.is_some()).count();
        let rc_qps = self.links.rc.len();
        Ok(Holdings {
            dcis: self.lanes.dcis
                - self.datapath.outages.iter().filter(|one| one.destroyed).count() as u32,
            rc_qps,
            rc_qps_changing: changing,
            rc_qps_leased: leased,
            other_qps: 1 + u32::from(self.pool.dct.is_some()),
            mrs: OWN_MRS
                + u32::from(self.discovery.served.is_some())
                + self.regions.local.iter().count() as u32
                + open,
            mrs_shared: open,
            ahs: addresses as u32 + self.links.ud.addresses(),
            receives: self.pool.recvs.count,
            ops: self.datapath.ops.len(),
            pending_notes: self.messaging.notes.iter().count() as u32,
            senders_waiting: self.senders_waiting(),
            send_slots: slots,
            posted: self.lanes.qps.iter().map(|(_, qp)| qp.posted).sum(),
            requests,
            vqps: self.vqps.len(),
            waiting: self.discovery.lookups.waiting
                + self.discovery.lookups.under_way()
                + self.links.strangers.held() as u32,
        })
    }

    fn senders_waiting(&self) -> u32 {
        let backlogs = self.vqps.iter().filter_map(|(_, vqp)| vqp.backlog.as_ref());
        backlogs.map(|backlog| backlog.halted.len() as u32).sum()
    }

    fn audit_vqps(&self) -> Result<(), String> {
        let high = self.vqps.iter().filter(|(_, vqp)| vqp.class == Class::High);
        let inflight: u32 = high.map(|(_, vqp)| vqp.inflight).sum();
        agree!(inflight, self.datapath.qos.high_inflight(), "WRs of the high class on lanes");
        for (id, vqp) in self.vqps.iter() {
            let physical: u32 = (0..vqp.sq.posted.since(vqp.sq.done))
                .map(|n| vqp.sq.entry(vqp.sq.done.after(n)).cost())
                .sum();
            if !vqp.rewound && vqp.phase.is_connected() {
                agree!(physical, vqp.inflight, "WRs of VQP {id:#x} on its lane");
            }
            if vqp.inflight > 0 && vqp.lane.is_none() {
                return Err(format!("VQP {id:#x} has WRs on no lane"));
            }
            let reads = |kind: &OpKind| matches!(kind, OpKind::Gather(gather) if gather.is_of(id));
            let reads = self.datapath.ops.iter().filter(|(_, op)| reads(&op.kind)).count() as u32;
            let lands =
                self.messaging.landings.iter().filter(|(_, landing)| landing.is_of(id)).count()
                    as u32;
            agree!(reads + lands, vqp.reads, "messages on their way to receives of VQP {id:#x}");
            if let Some(port) = vqp.bound.filter(|_| vqp.phase != Phase::Destroyed) {
                agree!(self.clients.ports.bound_to(port.get()), Some(id), "port {port}");
            }
        }
        let mut watched = BTreeMap::new();
        for key in self.vqps.iter().filter_map(|(_, vqp)| vqp.watched_node()) {
            *watched.entry(key).or_insert(0) += 1;
        }
        agree!(watched, self.keep_alive.counts().collect(), "VQPs that count for their nodes");
        let waits = |id: &VqpId| self.vqps.get(*id).is_some_and(|vqp| vqp.newcomer);
        let newcomers = self.vqps.iter().filter(|(_, vqp)| vqp.newcomer).count();
        self.keep_alive.audit_newcomers(newcomers, waits)?;
        let accepted = self.vqps.iter().filter(|(_, vqp)| vqp.accepted.is_some()).count() as u32;
        agree!(accepted, self.clients.accepts.now(), "accepted VQPs");
        if accepted > self.config.accepts() {
            return Err(format!("{accepted} accepted VQPs"));
        }
        let bound = |vqp: &Vqp| vqp.bound.is_some() && vqp.phase != Phase::Destroyed;
        let bound = self.vqps.iter().filter(|(_, vqp)| bound(vqp)).count();
        agree!(bound, self.clients.ports.len(), "ports");
        for (key, id) in self.clients.accepts.iter() {
            let vqp = self.vqps.get(id).and_then(|vqp| vqp.accepted).map(|accepted| accepted.key);
            agree!(vqp, Some(*key), "accepted VQP {id:#x}");
        }
        let backlogs = self.vqps.iter().filter_map(|(_, vqp)| vqp.backlog.as_ref());
        let held = |(_, bytes): &(_, Vec<u8>)| cost_of(bytes.len());
        let held: u64 = backlogs.flat_map(|backlog| backlog.messages.iter().map(held)).sum();
        agree!(held, self.messaging.held.bytes(), "cost of messages that wait for receives");
        self.messaging.held.audit()?;
        Ok(())
    }

    /// Whatever stops a VQP must be what brings it back.
    fn audit_waits(&self) -> Result<(), String> {
        let unread: HashSet<(VqpId, SendSeq), FxBuildHasher> =
            self.messaging.unread.iter().collect();
        for (id, vqp) in self.vqps.iter() {
            let mut seqs = (0..vqp.sq.len()).map(|n| vqp.sq.head.after(n));
            let is_left = |seq: &SendSeq| vqp.awaits(*seq) && !unread.contains(&(id, *seq));
            if let Some(seq) = seqs.find(is_left) {
                return Err(format!("nobody looks after {seq:?} of VQP {id:#x}"));
            }
        }
        for (id, vqp) in self.vqps.iter() {
            let comes = match vqp.wait {
                Wait::Nothing => true,
                Wait::Mr => vqp.peer.is_some_and(|peer| self.discovery.lookups.awaits(peer, id)),
                Wait::Slot => self.datapath.slot_waiters.contains(&id),
                Wait::Tokens => self.datapath.qos.holds(id),
                Wait::Credit => vqp.asks_for_credit(),
            };
            if !comes {
                return Err(format!("VQP {id:#x} waits for {:?}, and nothing brings it", vqp.wait));
            }
            let moved = self.links.moved.contains(&id);
            if self.is_to_move(vqp) && vqp.inflight == 0 && !moved {
                return Err(format!("VQP {id:#x} moves, and nobody moves it"));
            }
            let listed = self.messaging.credit_probes.audit(id, vqp.credit)?;
            if vqp.asks_for_credit() && !listed {
                return Err(format!("VQP {id:#x} asks for credit, and not again"));
            }
            if vqp.backlog.as_ref().is_some_and(|held| held.messages.is_empty()) {
                return Err(format!("VQP {id:#x} holds no message, and has room for them"));
            }
            let front = vqp.backlog.as_ref().and_then(|held| held.messages.front());
            if let Some((incoming, _)) = front.filter(|_| vqp.rq.has_next()) {
                let looked_up = |peer: &Peer| peer.waiting.contains(&Waiter::Reader(id));
                let waits = self.peers.get(incoming.from.0).is_some_and(looked_up)
                    || self.messaging.held.awaits(id);
                if !waits && vqp.phase.is_connected() {
                    return Err(format!("VQP {id:#x} has a receive for what it holds"));
                }
            }
            if moved && vqp.inflight > 0 {
                return Err(format!("VQP {id:#x} cannot move yet, and each poll looks at it"));
            }
            let idle = vqp.may_post() && vqp.sq.unposted() > 0 && !vqp.ready && !vqp.rewound;
            if idle {
                return Err(format!("VQP {id:#x} may post, and nobody gives it a turn"));
            }
        }
        Ok(())
    }

    fn audit_clients(&self) -> Result<(), String> {
        for (id, client) in self.clients.all.iter() {
            let of = || self.vqps.iter().filter(|(_, vqp)| vqp.client == id);
            let own = of().filter(|(_, vqp)| vqp.phase != Phase::Destroyed).count();
            agree!(own, client.vqps.len(), "VQPs of client {id:#x}");
            let zombies = of().filter(|(_, vqp)| vqp.phase == Phase::Destroyed).count() as u32;
            agree!(zombies, client.zombies, "VQPs of client {id:#x} that go");
            let accepted = of().filter(|(_, vqp)| vqp.accepted.is_some()).count() as u32;
            agree!(accepted, client.accepted.now(), "accepted VQPs of client {id:#x}");
            for (peer, of_peer) in client.accepted.peers() {
                let key = |vqp: &Vqp| vqp.accepted.is_some_and(|accepted| accepted.key.1 == peer);
                let accepted = of().filter(|(_, vqp)| key(vqp)).count() as u32;
                agree!(accepted, of_peer, "accepted VQPs of client {id:#x} and peer {peer:#x}");
            }
            let mrs = self.regions.local.iter().filter(|(_, mr)| mr.owner == id).count() as u32;
            agree!(mrs, client.mrs, "regions of client {id:#x}");
            let posted: u32 = of().map(|(_, vqp)| vqp.sq.len() + vqp.rq.len()).sum();
            if !client.closed {
                let pending = posted + client.completions.len() as u32;
                agree!(pending, client.pending, "WRs and completions of client {id:#x}");
            }
        }
        Ok(())
    }

    fn audit_regions(&self) -> Result<(), String> {
        for (slot, mr) in self.regions.local.iter() {
            let mut refs = 0;
            for (_, vqp) in self.vqps.iter() {
                for seq in (0..vqp.sq.len()).map(|n| vqp.sq.head.after(n)) {
                    refs += u32::from(vqp.sq.entry(seq).mr.get() == Some(slot));
                    let sges = vqp.sq.sges(seq).iter().enumerate();
                    for (at, sge) in sges.filter(|(_, sge)| sge.length > 0) {
                        let uses = self.regions.local.slot_of(sge.lkey) == Some(slot);
                        refs += u32::from(uses && at > 0);
                    }
                }
            }
            for (_, op) in self.datapath.ops.iter() {
                if let OpKind::Gather(gather) = &op.kind {
                    refs += gather.uses(slot);
                }
            }
            refs +=
                self.messaging.landings.iter().map(|(_, landing)| landing.uses(slot)).sum::<u32>();
            agree!(refs, mr.refs, "WRs that use region {:#x}", mr.info.lkey);
            let open =
                self.regions.local.openings.iter().filter(|(_, opening)| opening.slot == slot);
            agree!(open.count() as u32, mr.pieces, "open pieces of region {:#x}", mr.info.lkey);
        }
        self.audit_openings()
    }

    fn audit_openings(&self) -> Result<(), String> {
        let openings = &self.regions.local.openings;
        let count = openings.iter().count() as u32;
        agree!(count, openings.count(), "open pieces of messages");
        for (message, opening) in openings.iter() {
            if let Some((id, seq)) = message
                && !self
                    .vqps
                    .get(id)
                    .is_some_and(|vqp| vqp.sq.holds(seq) && vqp.sq.entry(seq).was_shared())
            {
                return Err(format!("{opening:?} of {seq:?} of VQP {id:?} stays open"));
            }
        }
        for (id, vqp) in self.vqps.iter() {
            let mut seqs = (0..vqp.sq.len()).map(|n| vqp.sq.head.after(n));
            if let Some(seq) = seqs.find(|seq| vqp.awaits(*seq) && !openings.has(id, *seq)) {
                return Err(format!("{seq:?} of VQP {id:?} is not open to its receiver"));
            }
        }
        Ok(())
    }

    fn audit_lanes(&self) -> Result<(), String> {
        for (id, op) in self.datapath.ops.iter().filter(|(_, op)| op.lane.is_none()) {
            if !self.links.laneless_ops().any(|other| other == id) {
                return Err(format!("operation {id:#x} has no lane, and waits for none: {op:?}"));
            }
        }
        for (at, lane) in self.lanes.lanes.iter() {
            let on = || self.vqps.iter().filter(|(_, vqp)| vqp.lane == Some(at));
            agree!(on().count() as u32, lane.vqps, "VQPs on lane {at}");
            let posted: u32 = on().map(|(_, vqp)| vqp.inflight).sum();
            let ops = self.datapath.ops.iter().filter(|(_, op)| op.lane == Some(at)).count();
            let ops = (ops - lane.ops.len()) as u32;
            // The first packet over an RC QP is nobody's.
            let greetings = match lane.kind {
                LaneKind::Dc { .. } => 0,
                LaneKind::Rc { .. } => 1,
            };
            let least = posted + ops;
            if !(least..=least + greetings).contains(&lane.uncompleted) {
                let counted = lane.uncompleted;
                return Err(format!("WRs on lane {at}: {least}, counted as {counted}"));
            }
            for id in &lane.ready {
                let stands =
                    self.vqps.get(*id).is_some_and(|vqp| vqp.ready && vqp.lane == Some(at));
                if !stands {
                    return Err(format!("VQP {id:#x} has a turn on lane {at}, and should not"));
                }
            }
            let ready = on().filter(|(_, vqp)| vqp.ready).count();
            agree!(ready, lane.ready.len(), "VQPs with a turn on lane {at}");
            let rewound = on().filter(|(_, vqp)| vqp.rewound).count();
            agree!(rewound, lane.rewound.len(), "VQPs that post again on lane {at}");
            if lane.state != LaneState::Failing && !lane.rewound.is_empty() {
                return Err(format!("lane {at} runs, and VQPs wait for it to be set going"));
            }
            if lane.state == LaneState::Failing && lane.uncompleted == 0 {
                let qp = &self.lanes.qps[lane.qp];
                if (!qp.broken || qp.posted == 0) && !self.is_down(at) {
                    return Err(format!("lane {at} has failed, and nobody sets it going"));
                }
            }
            let waits = !lane.ready.is_empty() || !lane.ops.is_empty();
            if waits && lane.state == LaneState::Running && !lane.waiting {
                return Err(format!("lane {at} has something to post, and gets no turn"));
            }
        }
        for (at, qp) in self.lanes.qps.iter() {
            let lanes = self.lanes.lanes.iter().filter(|(_, lane)| lane.qp == at);
            let posted: u32 = lanes.map(|(_, lane)| lane.uncompleted).sum();
            agree!(posted, qp.posted, "WRs on QP {at} of the pool");
            if posted > qp.depth {
                return Err(format!(
                    "{posted} WRs on QP {at} of the pool, which holds {}",
                    qp.depth
                ));
            }
        }
        Ok(())
    }

    fn audit_peers(&self) -> Result<(), String> {
        for (id, peer) in self.peers.slots.iter() {
            let gid = peer.gid;
            let vqps = self.vqps.iter().filter(|(_, vqp)| vqp.peer == Some(id)).count() as u32;
            agree!(vqps, peer.vqps, "VQPs connected to {gid}");
            let of_peer = |vqp: &Vqp| vqp.accepted.is_some_and(|accepted| accepted.key.1 == id);
            let accepted = self.vqps.iter().filter(|(_, vqp)| of_peer(vqp)).count() as u32;
            agree!(accepted, peer.accepted, "accepted VQPs of {gid}");
            let listed = self.vqps_to(id).filter(|(_, vqp)| vqp.peer == Some(id)).count() as u32;
            agree!(listed, peer.vqps, "VQPs in the list of {gid}");
            let servers = self.discovery.lookups.servers.peers().filter(|peer| *peer == id).count();
            let ops = self.datapath.ops.iter().filter(|(_, op)| op.peer == id).count();
            let reads = |op: &Op| op.peer == id && matches!(op.kind, OpKind::Gather(_));
            let reads = self.datapath.ops.iter().filter(|(_, op)| reads(op)).count() as u32;
            agree!(reads, peer.reads, "messages of {gid} that are being read");
            let links = self.links.rc.iter().filter(|(_, link)| link.peer == id).count();
            let pins = servers + ops + links + usize::from(gid == self.gid);
            agree!(pins as u32, peer.pins, "reasons to remember {gid}");
            for lane in peer.rc.into_iter().flatten() {
                if !self.links.rc.iter().any(|(_, link)| link.lane == Some(lane) && link.peer == id)
                {
                    return Err(format!("lane {lane} to {gid} is of no RC QP"));
                }
            }
            if peer.lookup == PeerLookup::None && !peer.waiting.is_empty() {
                return Err(format!("{:?} wait for {gid}, which nobody looks up", peer.waiting));
            }
        }
        Ok(())
    }

    fn audit_lookups(&self) -> Result<(), String> {
        if let Some((gid, peer)) = self.messaging.sender_last
            && self.peers.get(peer).is_some_and(|entry| entry.gid != gid)
        {
            return Err(format!("the last sender, {gid}, is taken for peer {peer:#x}"));
        }
        let connecting = self.vqps.iter().filter(|(_, vqp)| vqp.phase == Phase::Connecting);
        agree!(connecting.count() as u32, self.discovery.lookups.waiting, "connects that wait");
        let peers = || self.peers.slots.iter().map(|(_, peer)| peer.lookup);
        let running = peers().filter(|lookup| matches!(lookup, PeerLookup::Running { .. }));
        let queued = peers().filter(|lookup| *lookup == PeerLookup::Queued).count();
        for peer in self.messaging.notes.unaddressed() {
            let waits = |peer: &Peer| peer.waiting.contains(&Waiter::Notes);
            if !self.peers.get(peer).is_some_and(waits) {
                return Err(format!("{peer:#x} is to be told something, and is not looked up"));
            }
        }
        for gid in self.links.strangers.awaited() {
            let peer = self.peers.find(&gid).and_then(|peer| self.peers.get(peer));
            if !peer.is_some_and(Peer::is_looked_up) {
                return Err(format!("a request of {gid} waits for a look-up that there is not"));
            }
        }
        let reads = |op: &Op| matches!(op.kind, OpKind::Mr { .. });
        let mut mrs = BTreeMap::new();
        for (_, op) in self.datapath.ops.iter().filter(|(_, op)| reads(op)) {
            *mrs.entry(op.peer).or_insert(0) += 1;
        }
        for (id, peer) in self.peers.slots.iter() {
            let regions = |waiter: &&Waiter| matches!(waiter, Waiter::Region { .. });
            let waiting = peer.waiting.iter().filter(regions).count() as u32;
            if waiting > 0 {
                *mrs.entry(id).or_insert(0) += waiting;
            }
        }
        let (count, of_peers) = self.discovery.lookups.mrs_under_way();
        agree!(mrs.values().sum::<u32>(), count, "look-ups of regions under way");
        agree!(mrs, of_peers.collect(), "look-ups of regions under way at peers");
        let runs = |(peer, key): Region, id: OpId| {
            let op = self.datapath.ops.get(id).filter(|op| op.peer == peer && !op.abandoned);
            op.is_some_and(|op| matches!(op.kind, OpKind::Mr { rkey, .. } if rkey == key))
        };
        let looked_up = |(peer, key): Region| {
            let is_its =
                |waiter: &Waiter| matches!(waiter, Waiter::Region { rkey, .. } if *rkey == key);
            self.peers.get(peer).is_some_and(|peer| peer.waiting.iter().any(is_its))
        };
        self.discovery.lookups.audit_mrs(runs, looked_up)?;
        self.discovery.lookups.agree(running.count() as u32, queued)
    }

    /// The send slots that are taken.
    fn audit_buffers(&self) -> Result<u32, String> {
        let entries = self.vqps.iter().flat_map(|(_, vqp)| {
            (0..vqp.sq.len()).map(|n| vqp.sq.entry(vqp.sq.head.after(n)).slot)
        });
        let of_vqps = entries.filter(|slot| slot.get().is_some()).count() as u32;
        let ops = |which: fn(&Work) -> bool| {
            self.datapath.ops.iter().filter(|(_, op)| which(&op.work)).count() as u32
        };
        let of_ops = ops(|work| matches!(work, Work::Send { .. }));
        let sends = &self.pool.sends;
        agree!(of_vqps + of_ops, sends.count - sends.available(), "send slots");
        let reads = &self.pool.reads;
        let taken = ops(|work| matches!(work, Work::Read { .. }));
        agree!(taken, reads.count - reads.available(), "buffers of look-ups");
        if self.has_effects() {
            return Err("something was left to be done, or messages to be sent".into());
        }
        Ok(of_vqps + of_ops)
    }
}
