//! What a core tells of itself: its VQPs, its peers, its counters, and what they take.

use core::num::NonZeroU16;

use elver_control::NodeRecord;
use elver_verbs::{Device, Gid};

use crate::pool::lane::LaneKind;
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::{ClientId, Core, CoreError, PeerInfo, Stats, VqpId, VqpInfo};

impl<D: Device> Core<D> {
    /// A VQP's state.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchVqp`], also if it is another client's.
    pub fn vqp_info(&self, client: ClientId, vqp: VqpId) -> Result<VqpInfo, CoreError> {
        let entry = self.vqps.get(vqp).filter(|entry| entry.is_of(client));
        entry.map(|entry| self.info_of(entry)).ok_or(CoreError::NoSuchVqp(vqp))
    }

    /// Whether a VQP that its client is done with stays, since something of it is on its way.
    pub fn is_going(&self, client: ClientId, vqp: VqpId) -> bool {
        let entry = self.vqps.get(vqp).filter(|entry| entry.client == client);
        entry.is_some_and(|entry| entry.phase == Phase::Destroyed)
    }

    /// All VQPs.
    pub fn vqps(&self) -> impl Iterator<Item = VqpInfo> + '_ {
        self.vqps
            .iter()
            .filter(|(_, vqp)| vqp.phase != Phase::Destroyed)
            .map(|(_, vqp)| self.info_of(vqp))
    }

    /// VQPs of a client, those included that messages made, without those that it is done with.
    pub fn vqps_of(&self, client: ClientId) -> u32 {
        self.clients.all.get(client).map_or(0, |client| client.vqps.len() as u32)
    }

    /// VQPs that their clients are done with, and that stay until nothing of theirs is on its way.
    pub fn vqps_going(&self) -> u32 {
        self.clients.all.iter().map(|(_, client)| client.zombies).sum()
    }

    /// All peers that are remembered.
    pub fn peers(&self) -> impl Iterator<Item = PeerInfo> + '_ {
        self.peers.slots.iter().map(|(_, peer)| PeerInfo {
            gid: peer.gid,
            vqps: peer.vqps,
            rc_qps: peer.rc.iter().flatten().count() as u32,
            ops: peer.ops,
            bytes: peer.bytes,
        })
    }

    /// What is known of a node: what a meta server told of it, or the node itself.
    pub fn record_of(&self, gid: Gid) -> Option<NodeRecord> {
        self.peers.find(&gid).and_then(|peer| self.peers.get(peer)?.record)
    }

    /// The counters.
    #[inline(never)]
    pub fn stats(&self) -> Stats {
        Stats {
            clients: u64::from(self.clients.all.len()),
            vqps: u64::from(self.vqps.len()),
            mrs: self.regions.local.iter().count() as u64,
            peers: u64::from(self.peers.slots.len()),
            rc_qps: u64::from(self.links.rc.len()),
            ends_untold: self.links.untold(),
            ends_given_up: self.links.reminders.given_up(),
            dcis_down: self.datapath.outages.len() as u64,
            accepted: self.clients.accepts.now().into(),
            control_resent: self.links.control.stats().retransmitted
                + self.links.control.stats().answered_again,
            completions: self.clients.told.count,
            control_busy: self.links.control.stats().busy,
            bugs: elver_verbs::bug::count(),
            control_stray: self.stats.control_stray + self.links.control.stats().stray,
            ..self.stats
        }
    }

    /// Bytes that connections take: the pool, the peers, the caches; without message buffers, as
    /// KRCORE counts them (section 5.2, figure 15a).
    #[inline(never)]
    pub fn connection_bytes(&self) -> u64 {
        // What a QP's send queue holds at the device: a WQE of 64 bytes and an SGE of 16 for each
        // piece, which is what mlx5 takes.
        let wqe = 64 + 16 * u64::from(self.config.max_sge);
        let queues: u64 = self.lanes.qps.iter().map(|(_, qp)| u64::from(qp.depth) * wqe).sum();
        let tables = self.lanes.bytes() + self.peers.bytes() + self.regions.of_peers.bytes();
        queues
            + tables
            + self.datapath.ops.bytes()
            + self.discovery.lookups.bytes()
            + self.links.bytes()
    }

    /// Bytes that all VQPs take, their queues included. One that is connected and was never used
    /// takes at most 512 bytes, and one that had a few requests outstanding at most 1,200; its
    /// queues grow with what is outstanding at once, and stay.
    pub fn vqp_bytes(&self) -> u64 {
        let each = |vqp: &Vqp| size_of::<Vqp>() as u64 + vqp.sq.bytes() + vqp.rq.bytes();
        self.vqps.bytes() + self.vqps.iter().map(|(_, vqp)| each(vqp)).sum::<u64>()
    }

    /// The queue pair that a VQP sends on: its QPN, and that of the peer's end if it is an RC QP.
    pub fn qp_of(&self, vqp: VqpId) -> Option<(u32, Option<u32>)> {
        let lane = self.vqps.get(vqp)?.lane?;
        let lane = &self.lanes.lanes[lane];
        let qp = self.lanes.qps[lane.qp].qp;
        let peer_end = match lane.kind {
            LaneKind::Rc { .. } => Some(self.device.query_qp(qp).ok()?.0.dest_qp_num),
            LaneKind::Dc { .. } => None,
        };
        Some((self.device.qp_num(qp).ok()?, peer_end))
    }

    fn info_of(&self, vqp: &Vqp) -> VqpInfo {
        VqpInfo {
            vqp: vqp.id,
            client: vqp.client,
            state: vqp.phase.state(),
            bound: vqp.bound.map(NonZeroU16::get),
            peer: vqp.peer.map(|peer| (self.peers.gid_of(peer), vqp.peer_port())),
            via: vqp.via,
            class: vqp.class,
            outstanding: vqp.sq.len(),
            sends: vqp.sq.tail.bits(),
            sends_done: vqp.sq.head.bits(),
            receives: vqp.rq.tail.bits(),
            receives_done: vqp.rq.head.bits(),
            transfers: vqp.transfers,
        }
    }
}
