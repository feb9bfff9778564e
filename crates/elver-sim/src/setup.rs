//! Making QPs, connecting them, and bringing them back after they failed.

use elver_verbs::{
    AddressVector, DciInit, Mtu, QpAttr, QpAttrMask as M, QpCap, QpInit, QpState, QpType, SrqInit,
    VerbsError,
};

use crate::attributes::{attributes, masks};
use crate::faults::Fault;
use crate::host::Host;
use crate::model::{Endpoint, EndpointId, GRH_LEN, LaneId, Phase, QueueId, RecvQueue, Violation};
use crate::network::LIFETIME_NS;
use crate::options::Transport;
use crate::plan::{LOG_STREAMS_MAX, Setup, mtu};
use crate::trace::Event;
use crate::world::{World, refused};

/// Longest message of a receive queue.
const RECV_BYTES_MAX: u64 = 5_000;
/// Receives that a queue holds at most.
const RECV_WRS: u32 = 48;
/// Connections in a hundred whose second QP stays in RTR until it hears the first.
const LISTENING_PERCENT: u32 = 25;
/// Bits of a PSN.
const PSN_BITS: u32 = 24;
/// A slow engine stands still no longer than this.
pub(crate) const PAUSE_NS: u64 = 300_000;
/// After this long nothing of an old connection is on its way any more: neither in the network nor
/// in front of a slow engine.
pub(crate) const QUIET_NS: u64 = LIFETIME_NS + PAUSE_NS;

impl World {
    /// Makes the QPs that the plan asks for.
    pub(crate) fn make_endpoints(&mut self) -> Result<(), Violation> {
        for transport in self.plan.transports.clone() {
            match transport {
                Transport::Rc => self.make_connections(QpType::Rc, 3)?,
                Transport::Uc => self.make_connections(QpType::Uc, 2)?,
                Transport::Ud => {
                    for host in 0..self.making.between(2, 3) as usize {
                        let ud = self.make(host % self.plan.hosts, QpType::Ud, None)?;
                        self.start(ud)?;
                        self.uds.push(ud);
                    }
                }
                Transport::Dc => {
                    for _ in 0..self.making.between(1, 2) {
                        let host = self.making.index(self.plan.hosts);
                        let dct = self.make(host, QpType::Dct, None)?;
                        self.start(dct)?;
                        self.dcts.push(dct);
                    }
                    for _ in 0..self.making.between(1, 2) {
                        let host = self.making.index(self.plan.hosts);
                        let dci = self.make(host, QpType::Dci, None)?;
                        self.start(dci)?;
                        self.dcis.push(dci);
                    }
                }
            }
        }
        Ok(())
    }

    fn make_connections(&mut self, qp_type: QpType, most: u64) -> Result<(), Violation> {
        for _ in 0..self.making.between(1, most) {
            let a = self.making.index(self.plan.hosts);
            let step = if self.making.percent(15) {
                0
            } else {
                1 + self.making.index(self.plan.hosts - 1)
            };
            let b = (a + step) % self.plan.hosts;
            let a = self.make(a, qp_type, None)?;
            let b = self.make(b, qp_type, None)?;
            self.connect(a, b)?;
            self.connections.push((a, b));
        }
        Ok(())
    }

    /// Makes a QP in RESET, with the sizes of `like` or of its own.
    pub(crate) fn make(
        &mut self,
        host: usize,
        qp_type: QpType,
        like: Option<Setup>,
    ) -> Result<EndpointId, Violation> {
        let setup = like.unwrap_or_else(|| self.plan.setup(&mut self.making));
        let id = self.model.endpoints.len();
        let queue = self.make_queue(host, qp_type, id)?;
        let log_streams = if qp_type == QpType::Dci {
            self.making.between(0, u64::from(LOG_STREAMS_MAX)) as u8
        } else {
            0
        };
        let dci = DciInit {
            log_num_concurrent: log_streams,
            log_num_errored: self.making.between(0, u64::from(log_streams)) as u8,
        };
        let own_queue = queue.filter(|queue| self.model.queues[*queue].srq.is_none());
        let Host { rnic, pd, cq, arena, .. } = &mut self.hosts[host];
        let init = QpInit {
            srq: queue.and_then(|queue| self.model.queues[queue].srq),
            cap: QpCap {
                max_send_wr: setup.max_send_wr,
                max_recv_wr: own_queue.map_or(0, |_| RECV_WRS),
                max_send_sge: setup.max_send_sge,
                max_recv_sge: own_queue.map_or(0, |queue| self.model.queues[queue].max_sge),
                max_inline_data: setup.max_inline_data,
            },
            dc_access_key: if qp_type == QpType::Dct { setup.access_key } else { 0 },
            dci,
            ..QpInit::new(qp_type, *pd, *cq)
        };
        let qp = rnic.create_qp(init).map_err(refused("create_qp"))?;
        let arena = *arena;
        self.model.endpoints.push(Endpoint {
            host,
            arena,
            qp,
            qpn: qp.0,
            qp_type,
            mtu: 0,
            peer: None,
            lanes: Vec::new(),
            queue,
            phase: Phase::Down,
            may_fail: false,
            interrupted: false,
            ever_interrupted: false,
            impatient: setup.impatient(),
            rnr_bounded: setup.rnr_bounded(),
            errored_streams_max: 1 << dci.log_num_errored,
            received_copies: 0,
            down_since: 0,
            sq_psn: 0,
            listens_from: None,
            setup,
        });
        if qp_type.has_send_queue() {
            for stream in 0..1 << log_streams {
                self.model.add_lane(id, stream);
            }
        }
        Ok(id)
    }

    /// The receive queue of a new QP: one of its own, or an SRQ, which RC QPs of a host share.
    fn make_queue(
        &mut self,
        host: usize,
        qp_type: QpType,
        endpoint: EndpointId,
    ) -> Result<Option<QueueId>, Violation> {
        let shared = match qp_type {
            QpType::Dci | QpType::XrcSend | QpType::XrcRecv => return Ok(None),
            QpType::Dct => true,
            QpType::Rc => self.making.percent(40),
            QpType::Uc | QpType::Ud => self.making.percent(20),
        };
        if shared && qp_type == QpType::Rc {
            let found = self
                .model
                .queues
                .iter()
                .position(|queue| queue.host == host && queue.shared_by_rc && !queue.gone);
            if found.is_some() {
                return Ok(found);
            }
        }
        let max_sge = self.making.between(1, 3) as u32;
        let Host { rnic, pd, .. } = &mut self.hosts[host];
        let srq = if shared {
            let init = SrqInit { pd: *pd, max_wr: RECV_WRS, max_sge };
            Some(rnic.create_srq(init).map_err(refused("create_srq"))?)
        } else {
            None
        };
        let id = self.model.queues.len();
        self.model.queues.push(RecvQueue {
            host,
            srq,
            shared_by_rc: shared && qp_type == QpType::Rc,
            endpoint,
            outstanding: Default::default(),
            capacity: GRH_LEN + self.making.between(16, RECV_BYTES_MAX) as u32,
            max_wr: RECV_WRS,
            max_sge,
            late: self.making.percent(30),
            posted: 0,
            aimed: 0,
            gone: false,
            overflown: false,
            limit: 0,
        });
        Ok(Some(id))
    }

    /// Connects two QPs in RESET.
    pub(crate) fn connect(&mut self, a: EndpointId, b: EndpointId) -> Result<(), Violation> {
        let path_mtu = mtu(&mut self.making);
        let mut psn = || self.making.below(1 << PSN_BITS) as u32;
        let (psn_a, psn_b) = (psn(), psn());
        let listens = self.making.percent(LISTENING_PERCENT);
        for (id, peer, sq_psn, rq_psn) in [(a, b, psn_a, psn_b), (b, a, psn_b, psn_a)] {
            let (there, here) = (&self.model.endpoints[peer], &self.model.endpoints[id]);
            let attr = QpAttr {
                path_mtu,
                sq_psn,
                rq_psn,
                dest_qp_num: there.qpn,
                ah_attr: AddressVector { dgid: self.gids[there.host], ..AddressVector::default() },
                max_rd_atomic: here.setup.max_rd_atomic,
                max_dest_rd_atomic: there.setup.max_rd_atomic,
                ..attributes(here)
            };
            self.bring_up(id, &attr, listens && id == b)?;
            self.model.endpoints[id].peer = Some(peer);
            self.model.endpoints[id].sq_psn = sq_psn;
        }
        Ok(())
    }

    /// Brings up a QP that has no peer.
    pub(crate) fn start(&mut self, id: EndpointId) -> Result<(), Violation> {
        let endpoint = &self.model.endpoints[id];
        let path_mtu =
            if endpoint.qp_type == QpType::Ud { Mtu::Mtu4096 } else { mtu(&mut self.making) };
        let attr = QpAttr {
            path_mtu,
            max_rd_atomic: endpoint.setup.max_rd_atomic,
            ah_attr: AddressVector { dgid: self.gids[endpoint.host], ..AddressVector::default() },
            ..attributes(endpoint)
        };
        self.bring_up(id, &attr, false)
    }

    /// Brings up a QP; one that `listens` only to RTR.
    fn bring_up(&mut self, id: EndpointId, attr: &QpAttr, listens: bool) -> Result<(), Violation> {
        let (init, rtr, rts) = masks(self.model.endpoints[id].qp_type);
        let rts = rts.filter(|_| !listens);
        for (qp_state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            if let Some(mask) = mask {
                self.modify(id, &QpAttr { qp_state, ..*attr }, mask)?;
            }
        }
        let endpoint = &mut self.model.endpoints[id];
        let host = &self.hosts[endpoint.host];
        endpoint.qpn = host.rnic.qp_num(endpoint.qp).map_err(refused("qp_num"))?;
        endpoint.mtu = attr.path_mtu.bytes();
        endpoint.phase = Phase::Up;
        endpoint.listens_from = listens.then_some(self.model.ops.len());
        endpoint.may_fail = false;
        endpoint.interrupted = false;
        let (key, qpn) = ((endpoint.host, endpoint.qpn), endpoint.qpn);
        if self.model.by_qpn.insert(key, id).is_some_and(|before| before != id) {
            return Err(Violation::new(format!("QPN {qpn:#x} was given to two QPs")));
        }
        if self.model.endpoints[id].qp_type.is_connected() {
            for lane in self.model.endpoints[id].lanes.clone() {
                self.model.lanes[lane].inbound.clear();
                self.model.lanes[lane].latest.clear();
            }
        }
        Ok(())
    }

    /// Moves a QP to ERR, as a program may at any time.
    pub(crate) fn stop(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.act("moved to ERR", id);
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        self.modify(id, &attr, M::STATE)?;
        let now = self.now;
        let endpoint = &mut self.model.endpoints[id];
        endpoint.may_fail = true;
        endpoint.take_down(now);
        self.hosts[self.model.endpoints[id].host].wake(now);
        Ok(())
    }

    /// Moves a QP to RESET: what it had outstanding is forgotten.
    pub(crate) fn reset(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.act("moved to RESET", id);
        self.poll(self.model.endpoints[id].host)?;
        self.take_events(self.model.endpoints[id].host)?;
        self.check_flushed(id)?;
        let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        let Endpoint { host, qp, .. } = self.model.endpoints[id];
        let time = self.time(host);
        match self.hosts[host].rnic.modify_qp(time, qp, &attr, M::STATE) {
            Err(VerbsError::InUse { .. }) if self.model.late_memory => {
                self.finish_errands(host)?;
                self.modify(id, &attr, M::STATE)?;
            }
            done => done.map_err(refused("modify_qp"))?,
        }
        self.forget(id)?;
        let now = self.now;
        if self.model.endpoints[id].phase != Phase::Down {
            self.model.endpoints[id].take_down(now);
        }
        Ok(())
    }

    /// The model forgets what an endpoint had outstanding, and its windows are freed.
    fn forget(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.model.close(id);
        let bound = self.model.windows.iter().any(|window| window.owner == id);
        if self.model.late_memory && bound {
            // What was written through a window is written.
            self.finish_errands(self.model.endpoints[id].host)?;
        }
        let rnic = &mut self.hosts[self.model.endpoints[id].host].rnic;
        for window in self.model.windows.iter_mut().filter(|window| window.owner == id) {
            if let Some(mw) = window.mw.take() {
                rnic.dealloc_mw(mw).map_err(refused("dealloc_mw"))?;
            }
        }
        if let Some(queue) = self.model.endpoints[id].queue
            && self.model.queues[queue].srq.is_none()
        {
            self.model.queues[queue].posted = 0;
            self.model.queues[queue].aimed = 0;
        }
        Ok(())
    }

    fn destroy(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.act("destroyed", id);
        let number = self.model.endpoints[id].host;
        self.poll(number)?;
        self.take_events(number)?;
        self.check_flushed(id)?;
        self.remove(id)
    }

    /// Destroys a QP, and the model forgets what it had.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Result<(), Violation> {
        let Endpoint { host, qp, .. } = self.model.endpoints[id];
        let time = self.time(host);
        let mut destroyed = self.hosts[host].rnic.destroy_qp(time, qp);
        if self.model.late_memory && matches!(destroyed, Err(VerbsError::InUse { .. })) {
            self.finish_errands(host)?;
            destroyed = self.hosts[host].rnic.destroy_qp(time, qp);
        }
        destroyed.map_err(refused("destroy_qp"))?;
        self.forget(id)?;
        self.vanish(id);
        Ok(())
    }

    /// Destroys a DCT, whatever its initiators have on their way to it, and makes another.
    pub(crate) fn replace_dct(&mut self, index: usize) -> Result<(), Violation> {
        let id = self.dcts[index];
        let Endpoint { host, queue, .. } = self.model.endpoints[id];
        self.network.count(Fault::DestroyDct);
        self.destroy(id)?;
        if let Some(queue) = queue {
            self.abandon_queue(queue)?;
        }
        let fresh = self.make(host, QpType::Dct, None)?;
        self.start(fresh)?;
        self.dcts[index] = fresh;
        Ok(())
    }

    /// Gives up a receive queue, and the SRQ if it is one.
    pub(crate) fn abandon_queue(&mut self, queue: QueueId) -> Result<(), Violation> {
        self.model.queues[queue].gone = true;
        self.model.forget_receives(queue);
        let RecvQueue { host, srq, .. } = self.model.queues[queue];
        match srq {
            Some(srq) => self.hosts[host].rnic.destroy_srq(srq).map_err(refused("destroy_srq")),
            None => Ok(()),
        }
    }

    fn vanish(&mut self, id: EndpointId) {
        let now = self.now;
        let endpoint = &mut self.model.endpoints[id];
        endpoint.take_down(now);
        endpoint.phase = Phase::Gone;
        let key = (endpoint.host, endpoint.qpn);
        if self.model.by_qpn.get(&key) == Some(&id) {
            self.model.by_qpn.remove(&key);
        }
    }

    /// Brings a connection back whose QPs failed: first both are stopped, and when nothing of it is
    /// outstanding or on its way they are connected anew.
    pub(crate) fn repair(&mut self, index: usize) -> Result<(), Violation> {
        let (a, b) = self.connections[index];
        self.resume_errored_queue(a)?;
        self.resume_errored_queue(b)?;
        let phase = |world: &World, id: EndpointId| world.model.endpoints[id].phase;
        if [a, b].iter().all(|id| phase(self, *id).is_up()) {
            return Ok(());
        }
        for id in [a, b] {
            if phase(self, id).is_up() {
                self.stop(id)?;
            }
            if self.has_failed_cq(id)? {
                return Ok(());
            }
        }
        let ends = [&self.model.endpoints[a], &self.model.endpoints[b]];
        let since = ends.iter().map(|end| end.down_since).max().unwrap_or(0);
        if self.now < since + QUIET_NS || ends.iter().any(|end| !self.is_drained(end)) {
            return Ok(());
        }
        let anew = self.making.percent(50);
        for id in [a, b] {
            match phase(self, id) {
                Phase::Gone => {}
                _ if anew => self.destroy(id)?,
                _ => self.reset(id)?,
            }
        }
        for id in [a, b] {
            // What others waited for was done meanwhile, and may have filled it.
            if self.has_failed_cq(id)? {
                return Ok(());
            }
        }
        let mut fresh = |id: EndpointId| match self.model.endpoints[id] {
            Endpoint { phase: Phase::Gone, host, qp_type, setup, .. } => {
                self.make(host, qp_type, Some(setup))
            }
            _ => Ok(id),
        };
        let (a, b) = (fresh(a)?, fresh(b)?);
        self.connections[index] = (a, b);
        self.connect(a, b)?;
        self.act("connected anew", a);
        Ok(())
    }

    fn is_drained(&self, endpoint: &Endpoint) -> bool {
        endpoint.lanes.iter().all(|lane| self.model.lanes[*lane].outstanding.is_empty())
    }

    /// Brings back a QP without a peer that is down.
    pub(crate) fn revive(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.resume_errored_queue(id)?;
        if self.has_failed_cq(id)? {
            return Ok(());
        }
        let endpoint = &self.model.endpoints[id];
        if endpoint.phase == Phase::Down && self.is_drained(endpoint) {
            self.reset(id)?;
            self.start(id)?;
            self.act("brought up again", id);
        }
        Ok(())
    }

    /// Takes a UC or UD QP from SQE back to RTS when everything of it was flushed, and errored
    /// streams of a DCI likewise.
    fn resume_errored_queue(&mut self, id: EndpointId) -> Result<(), Violation> {
        let endpoint = &self.model.endpoints[id];
        if endpoint.phase != Phase::Up {
            return Ok(());
        }
        let number = endpoint.host;
        self.poll(number)?;
        self.take_events(number)?;
        let endpoint = &self.model.endpoints[id];
        if endpoint.phase != Phase::Up {
            return Ok(());
        }
        let qp_type = endpoint.qp_type;
        let idle = |lane: &&LaneId| {
            let lane = &self.model.lanes[**lane];
            lane.failed && lane.outstanding.is_empty()
        };
        for lane in endpoint.lanes.iter().filter(idle).copied().collect::<Vec<_>>() {
            match qp_type {
                QpType::Uc | QpType::Ud => {
                    let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
                    self.modify(id, &attr, M::STATE)?;
                }
                QpType::Dci => {
                    let Endpoint { host, qp, .. } = self.model.endpoints[id];
                    let (time, stream) = (self.time(host), self.model.lanes[lane].stream);
                    let rnic = &mut self.hosts[host].rnic;
                    rnic.reset_dci_stream(time, qp, stream).map_err(refused("reset_dci_stream"))?;
                }
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::Dct => continue,
            }
            self.act("send queue resumed", id);
            self.model.restart_lane(lane);
        }
        Ok(())
    }

    /// Lets a QP finish what it has started, and start nothing.
    pub(crate) fn drain(&mut self, id: EndpointId) -> Result<(), Violation> {
        self.act("moved to SQD", id);
        let attr =
            QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        self.model.endpoints[id].phase = Phase::Draining;
        self.modify(id, &attr, M::EN_SQD_ASYNC_NOTIFY)?;
        self.take_events(self.model.endpoints[id].host)
    }

    /// Checks that a QP in ERR holds no receive: each must have been flushed.
    pub(crate) fn check_flushed(&self, id: EndpointId) -> Result<(), Violation> {
        let endpoint = &self.model.endpoints[id];
        let Some(queue) = endpoint.queue.map(|queue| &self.model.queues[queue]) else {
            return Ok(());
        };
        let held = queue.outstanding.len();
        let tells = queue.srq.is_none() && !self.hosts[endpoint.host].cq_failed;
        if !tells || held == 0 || self.state(id)? != QpState::Err {
            return Ok(());
        }
        Err(Violation::new(format!(
            "{} QPN {:#x} of host {} is in ERR and did not flush {held} receives",
            endpoint.qp_type, endpoint.qpn, endpoint.host
        )))
    }

    /// A host loses its device and its memory, and comes back.
    pub(crate) fn crash(&mut self, number: usize) -> Result<(), Violation> {
        self.poll(number)?;
        self.trace.add(self.now, Event::Fault { what: "crash", from: number, to: number });
        self.network.count(Fault::Crash);
        self.network.disturb(number);
        let (arena, now) = (self.hosts[number].arena, self.now);
        self.model.arenas[arena].lost = true;
        let of_it = |endpoint: &Endpoint| endpoint.host == number && endpoint.phase != Phase::Gone;
        let lost: Vec<EndpointId> = (0..self.model.endpoints.len())
            .filter(|id| of_it(&self.model.endpoints[*id]))
            .collect();
        for id in lost {
            self.model.close(id);
            self.vanish(id);
        }
        for queue in 0..self.model.queues.len() {
            if self.model.queues[queue].host == number {
                self.model.queues[queue].gone = true;
                self.model.forget_receives(queue);
            }
        }
        self.hosts[number] = self.make_host(number)?;
        self.hosts[number].wake(now);
        self.replace_all_lost()
    }

    /// Makes anew the QPs without peers that are gone.
    pub(crate) fn replace_all_lost(&mut self) -> Result<(), Violation> {
        self.uds = self.replace_lost(self.uds.clone())?;
        self.dcis = self.replace_lost(self.dcis.clone())?;
        self.dcts = self.replace_lost(self.dcts.clone())?;
        Ok(())
    }

    fn replace_lost(&mut self, mut ids: Vec<EndpointId>) -> Result<Vec<EndpointId>, Violation> {
        for id in &mut ids {
            let Endpoint { phase, host, qp_type, .. } = self.model.endpoints[*id];
            if phase == Phase::Gone {
                *id = self.make(host, qp_type, None)?;
                self.start(*id)?;
            }
        }
        Ok(ids)
    }
}
