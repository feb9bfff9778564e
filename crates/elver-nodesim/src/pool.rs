//! The pool of a node: its queue pairs, what connections take, and the regions of its clients.

use elver_core::{Config, ConnectOptions, Holdings, Policy, Via};
use elver_verbs::{Device, QpAttr, QpState, QpType};

use crate::canary::Canary;
use crate::model::{ClientPhase, Hold, Pending, Phase, Region, Violation, VqpIx, broken};
use crate::node::Most;
use crate::world::World;

impl World {
    /// What must hold whenever a node has run: no shared QP stays in its error state, and connections
    /// take no more than they may.
    pub(crate) fn check_step(&mut self, number: usize) -> Result<(), Violation> {
        self.check_strangers(number)?;
        self.check_refusals(number)?;
        let node = &mut self.nodes[number];
        let Some(core) = node.engine.inspect() else { return Ok(()) };
        node.most.see(&core.stats());
        let bytes = core.connection_bytes() + node.kept_bytes;
        let config = core.config().clone();
        let device = core.device();
        let mut wrs = 0;
        for qp in device.qps() {
            let Ok((attr, init)) = device.query_qp(qp) else { continue };
            let sends = u64::from(init.cap.max_send_wr);
            match init.qp_type {
                QpType::Dci => {
                    // What was on it has come back by now, and the core has set it going again.
                    let errored = device.errored_streams(qp).unwrap_or(0) > 0;
                    if errored || attr.qp_state == QpState::Err {
                        broken!("node {number}: DCI {:#x} stays in its error state", qp.0);
                    }
                    wrs += sends;
                }
                QpType::Rc => wrs += sends,
                _ => {}
            }
        }
        if wrs > send_wrs_max(&config) {
            let most = send_wrs_max(&config);
            broken!("node {number}: its queues hold {wrs} WRs, at most {most}");
        }
        let most = wrs * wqe_bytes(&config) + table_bytes_max(&config, &node.most);
        if bytes > most {
            broken!("node {number}: connections take {bytes} bytes, at most {most}");
        }
        Ok(())
    }

    /// What a node's device refuses, its core would have: leases see to it.
    fn check_refusals(&mut self, number: usize) -> Result<(), Violation> {
        // Memory that is gone is refused by the device alone, and so is what somebody forges.
        let vanished = |region: &Region| region.vanished && region.place.0 == number;
        let vanished = self.model.regions.iter().any(vanished);
        let excused = vanished || self.forge.is_some() || self.was_held_up();
        let node = &mut self.nodes[number];
        let Some(core) = node.engine.inspect() else { return Ok(()) };
        let counters = core.device().counters();
        // Who was forgotten is told so, by the same.
        let forgets = counters.dc_reclaimed > 0;
        let refused = counters.nak_fatal_sent;
        if refused > node.refused && !excused && !forgets {
            broken!(
                "node {number}: a request that its region does not allow has come to the device"
            );
        }
        node.refused = refused;
        Ok(())
    }

    /// The pool of a node: as many of everything as its configuration and its core say, and no shared
    /// QP in error because of a client.
    pub(crate) fn check_pool(&mut self, number: usize) -> Result<(), Violation> {
        // Also what is aimed at memory that is gone breaks queue pairs, at both ends, and what waited in a send
        // queue for longer than its lease.
        let disturbed = self.disturbed(number)
            || self.model.regions.iter().any(|region| region.vanished)
            || self.was_held_up();
        let quiet = self.quiet;
        let forge = self.forge.as_deref();
        let node = &mut self.nodes[number];
        let Some(held) = node.engine.audit() else { return Ok(()) };
        let held = held.map_err(|what| Violation(format!("node {number}: {what}")))?;
        let Some(core) = node.engine.inspect() else { return Ok(()) };
        node.most.see_all(&held);
        let stats = core.stats();
        let faults = [stats.completions_unknown, stats.device_refusals, stats.device_faults];
        if faults != [0; 3] {
            broken!(
                "node {number}: {faults:?} completions of nothing, refusals by the device and \
                 failed queues"
            );
        }
        let device = core.device();
        let (mut dcis, mut rc_qps, mut rc_errored, mut other_qps) = (0, 0, 0, 0);
        for qp in device.qps() {
            let Ok((attr, init)) = device.query_qp(qp) else { continue };
            let errored = match init.qp_type {
                QpType::Dci => device.errored_streams(qp).unwrap_or(0) > 0,
                _ => false,
            };
            let members = forge.is_some_and(|forge| forge.is(attr.ah_attr.dgid));
            let in_error = attr.qp_state == QpState::Err || errored;
            if in_error && (!disturbed || quiet) && !members {
                broken!("node {number}: {} QP {:#x} is in error", init.qp_type, qp.0);
            }
            match init.qp_type {
                QpType::Dci => dcis += 1,
                QpType::Rc => {
                    rc_qps += 1;
                    rc_errored += u32::from(attr.qp_state == QpState::Err);
                }
                _ => other_qps += 1,
            }
        }
        // A call may break queue pairs of the node to itself at once: its core learns of it when it
        // runs next.
        let ran = !node.called;
        if ran && rc_errored > held.rc_qps_changing {
            broken!("node {number}: {rc_errored} RC QPs are in error, and not all of them go");
        }
        let (mrs, ahs) = (device.mr_count(), device.ah_count());
        let found = Holdings { dcis, rc_qps, other_qps, mrs, ahs, ..held };
        if found != held || dcis != core.config().dc_qps {
            broken!("node {number}: its device has {found:?}, its core {held:?}");
        }
        Ok(())
    }

    /// What backs the VQPs of a node now is what their policies permit: who leases an RC QP goes on
    /// without it when it fails, but nobody else comes to have one.
    pub(crate) fn check_vias(&mut self, number: usize) -> Result<(), Violation> {
        let Some(core) = self.nodes[number].engine.core() else { return Ok(()) };
        for client in &self.nodes[number].clients {
            let client = &self.model.clients[*client];
            for vqp in &client.vqps {
                let known = &self.model.vqps[*vqp];
                let info = core.vqp_info(client.id, known.id);
                let via = info.ok().and_then(|info| info.via).filter(|_| known.phase == Phase::Up);
                if via == Some(Via::Leased) && !leases(&known.options) {
                    let options = known.options;
                    broken!("VQP {vqp}: {via:?} backs it, but its connect was {options:?}");
                }
            }
        }
        Ok(())
    }

    /// A VQP was connected.
    pub(crate) fn check_via(
        &mut self,
        vqp: VqpIx,
        via: Via,
        at_once: bool,
    ) -> Result<Via, Violation> {
        let options = self.model.vqps[vqp].options;
        let mut via = via;
        if self.planter.strikes(Canary::ExcludedVia) {
            via = if leases(&options) { Via::Rc } else { Via::Leased };
        }
        let (number, _) = self.model.place(vqp);
        let peer = self.model.vqps[vqp].peer().unwrap_or(number);
        let dc = self.plan.has_dc(number) && self.plan.has_dc(peer);
        if !permits(&options, via, at_once, dc) {
            broken!("VQP {vqp}: it is connected by {via:?}, at once: {at_once}, for {options:?}");
        }
        if self.planter.strikes(Canary::GrowingPool) {
            let config = &self.plan.config;
            self.nodes[number].kept_bytes += u64::from(config.sq_depth) * wqe_bytes(config);
        }
        Ok(via)
    }

    /// Plants what a node would do that lets a client's bad WR through: a shared QP is in error, and
    /// its core knows nothing of it.
    pub(crate) fn plant_stuck_queue(&mut self, number: usize) -> Result<(), Violation> {
        if !self.plan.has_dc(number) || !self.planter.strikes(Canary::StuckQueue) {
            return Ok(());
        }
        let Some(core) = self.core(number) else { return Ok(()) };
        let device = core.device();
        let is_dci = |qp: &elver_verbs::Qp| {
            device.query_qp(*qp).is_ok_and(|(_, init)| init.qp_type == QpType::Dci)
        };
        let Some(dci) = device.qps().find(is_dci) else { broken!("node {number} has no DCI") };
        let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        let moved = device.advance_qp(dci, &error);
        moved.map_err(|error| Violation::new(format!("no DCI in error: {error}")))
    }

    /// A node has the regions that its clients have, and none that they have got back.
    pub(crate) fn check_regions(&mut self, number: usize) -> Result<(), Violation> {
        let Some(core) = self.nodes[number].engine.core() else { return Ok(()) };
        let found = core.stats().mrs;
        let place = self.nodes[number].place(number);
        // A client that was told too early does not know that its node still has them.
        let untold = |pending: &&Pending| match pending {
            Pending::DropArena { client, arena } => {
                self.model.clients[*client].place == place
                    && self.model.arenas[*arena].hold == Hold::Back
            }
            Pending::DropRegion { client, region } => {
                self.model.clients[*client].place == place
                    && self.model.regions[*region].hold == Hold::Back
            }
            _ => false,
        };
        let (mut open, mut going) = (0, self.model.pending.values().filter(untold).count() as u64);
        for client in self.model.clients.iter().filter(|client| client.place == place) {
            let arenas = client.arenas.iter().map(|arena| self.model.arenas[*arena].hold);
            let regions = client.regions.iter().map(|region| self.model.regions[*region].hold);
            for hold in arenas.chain(regions) {
                match (client.phase, hold) {
                    (ClientPhase::Gone, _) | (_, Hold::Back) => {}
                    (ClientPhase::Open, Hold::Open) => open += 1,
                    // They go, and may have gone already.
                    _ => going += 1,
                }
            }
        }
        if !(open..=open + going).contains(&found) {
            broken!(
                "node {number}: it has {found} regions, its clients {open}, and {going} are on \
                 their way out"
            );
        }
        Ok(())
    }
}

/// Whether a policy lets a VQP be connected like this: `at_once`, or after it has waited; over `dc`,
/// or where there is none.
fn permits(options: &ConnectOptions, via: Via, at_once: bool, dc: bool) -> bool {
    let cached = at_once && !options.uncached;
    match (options.policy, via) {
        (Policy::Leased, via) => via == Via::Leased && !at_once,
        (Policy::Lite, via) if options.uncached => via == Via::Leased && !at_once,
        (Policy::Lite, via) => via == Via::Rc,
        (Policy::Shared | Policy::RpcMeta, via) if !dc => {
            via == Via::Rc && !(at_once && options.uncached)
        }
        // Who waits waits for a look-up.
        (Policy::Shared | Policy::RpcMeta, Via::DcLookup) => !at_once,
        (Policy::Shared | Policy::RpcMeta, Via::Rc | Via::DcCached) => cached,
        (Policy::Shared | Policy::RpcMeta, Via::Leased) => false,
    }
}

/// Whether a VQP has an RC QP of its own.
fn leases(options: &ConnectOptions) -> bool {
    permits(options, Via::Leased, false, true)
}

/// Send WRs that the queues of the shared and the leased QPs of a node hold, at most.
fn send_wrs_max(config: &Config) -> u64 {
    let shared = config.dc_qps + config.transfer.rc_qps_max + META_LINKS_MAX;
    let depth = config.sq_depth + RESERVED;
    // The other ends of peers' leased QPs hold one each, which nothing is ever sent from.
    let ends = config.transfer.leased_wrs_max / RESERVED;
    u64::from(shared * depth + config.transfer.leased_wrs_max + ends)
}

/// Bytes of a WR in a send queue, as [`elver_core::Core::connection_bytes`] counts it.
fn wqe_bytes(config: &Config) -> u64 {
    64 + 16 * u64::from(config.max_sge)
}

/// What the tables of connections may take besides, which grow by doubling and keep their room.
fn table_bytes_max(config: &Config, most: &Most) -> u64 {
    let dc_lanes = u64::from(config.dc_qps << config.log_dc_streams);
    let cached_mrs = u64::from(config.max_cached_mrs).min(REGIONS);
    let grown = [
        (most.peers, PEER_BYTES),
        (most.rc_qps, LANE_BYTES + LINK_BYTES),
        (most.vqps, TURN_BYTES),
        (most.under_way + UNDER_WAY_UNSEEN, OP_BYTES),
        (cached_mrs, CACHED_MR_BYTES),
    ];
    dc_lanes * LANE_BYTES + 2 * grown.into_iter().map(|(count, bytes)| count * bytes).sum::<u64>()
}

/// RC QPs to meta servers, which come on top of those of the configuration.
const META_LINKS_MAX: u32 = 8;
/// Places that each queue has for the core's own operations.
const RESERVED: u32 = 16;
/// Regions of others that a node may have come to know of in a short run.
const REGIONS: u64 = 64;
/// Operations of the core's own that come and go between two looks: a burst of messages that are read
/// or refused makes one each.
const UNDER_WAY_UNSEEN: u64 = 160;
/// Bytes of a peer (docs/krcore.md, figure 15a).
const PEER_BYTES: u64 = 600;
/// Bytes of a lane with its lists and of its QP's entry, of a link, of a VQP's turn on a lane, of an
/// operation of the core's own, and of a region that was looked up.
const LANE_BYTES: u64 = 240;
const LINK_BYTES: u64 = 160;
const TURN_BYTES: u64 = 16;
const OP_BYTES: u64 = 200;
const CACHED_MR_BYTES: u64 = 72;
