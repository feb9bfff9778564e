//! The hosts and the network under one clock.

use elver_rnic::{MAX_PACKET, Time};
use elver_verbs::{Gid, QpAttr, QpAttrMask as M, QpState, VerbsError};

use crate::canary::Canary;
use crate::forge::Forge;
use crate::host::{Host, Objects};
use crate::model::{Arena, Endpoint, EndpointId, Model, Violation};
use crate::network::Network;
use crate::options::Options;
use crate::plan::Plan;
use crate::planting::Planter;
use crate::rng::Rng;
use crate::trace::{Event, Trace};

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) plan: Plan,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    pub(crate) planter: Planter<Canary>,
    pub(crate) gids: Vec<Gid>,
    /// RC and UC connections.
    pub(crate) connections: Vec<(EndpointId, EndpointId)>,
    pub(crate) uds: Vec<EndpointId>,
    pub(crate) dcis: Vec<EndpointId>,
    pub(crate) dcts: Vec<EndpointId>,
    /// Randomness of what the harness makes, posts, injects and polls, and what memory is lost.
    pub(crate) making: Rng,
    pub(crate) posting: Rng,
    pub(crate) meddling: Rng,
    pub(crate) polling: Rng,
    pub(crate) losing: Rng,
    /// Who forges, if anybody does.
    pub(crate) forge: Option<Forge>,
    /// Faults are over.
    pub(crate) healed: bool,
    pub(crate) buffer: Vec<u8>,
}

/// A call that the verbs allow was refused.
pub(crate) fn refused(call: &'static str) -> impl Fn(VerbsError) -> Violation {
    move |error| Violation::new(format!("{call} was refused: {error}"))
}

impl World {
    /// Hosts without QPs.
    pub(crate) fn new(seed: u64, options: &Options) -> Result<World, Violation> {
        let root = Rng::new(seed);
        let plan = Plan::generate(options, &mut root.split("plan"));
        let addresses: Vec<_> = (0..plan.hosts).map(|host| plan.address(host)).collect();
        let gids = addresses.iter().map(|address| Gid::from(*address)).collect();
        let mut world = World {
            now: 0,
            network: Network::new(addresses, &plan.faults, root.split("network")),
            hosts: Vec::new(),
            model: Model {
                crowded: plan.crowded,
                late_memory: plan.late_memory_percent > 0,
                ..Model::default()
            },
            trace: Trace::new(options.trace),
            planter: Planter::new(options.canary, root.split("canary")),
            gids,
            connections: Vec::new(),
            uds: Vec::new(),
            dcis: Vec::new(),
            dcts: Vec::new(),
            making: root.split("making"),
            posting: root.split("posting"),
            meddling: root.split("meddling"),
            polling: root.split("polling"),
            losing: root.split("losing"),
            forge: None,
            healed: false,
            buffer: vec![0; MAX_PACKET],
            plan,
        };
        if options.forger && world.plan.forge_percent > 0 {
            world.forge = Some(Forge::new(root.split("forge"), world.plan.forge_percent));
            world.network.overhear();
        }
        for number in 0..world.plan.hosts {
            let host = world.make_host(number)?;
            world.hosts.push(host);
        }
        Ok(world)
    }

    /// The time by a host's clock.
    pub(crate) fn time(&self, host: usize) -> Time {
        Time(self.now + self.hosts[host].ahead)
    }

    /// A host with a new device and new memory.
    pub(crate) fn make_host(&mut self, number: usize) -> Result<Host, Violation> {
        let config = self.plan.config(number);
        let (seed, cqe) = (self.making.next_u64(), self.plan.cq_entries);
        let objects = Objects::make(&config, &self.gids, cqe, seed)
            .map_err(refused("making a device and its first objects"))?;
        let arena = self.model.arenas.len();
        let late = self.plan.late_memory_percent;
        self.model.arenas.push(Arena::new(arena, number, objects.pd, objects.foreign, late));
        Ok(Host::new(config, objects, cqe, arena))
    }

    /// The state that the device says an endpoint is in.
    pub(crate) fn state(&self, id: EndpointId) -> Result<QpState, Violation> {
        let endpoint = &self.model.endpoints[id];
        let rnic = &self.hosts[endpoint.host].rnic;
        let (attr, _) = rnic.query_qp(endpoint.qp).map_err(refused("query_qp"))?;
        Ok(attr.qp_state)
    }

    /// The endpoint of a QP handle.
    pub(crate) fn find(&self, host: usize, qp: u32) -> Option<EndpointId> {
        let ours = |id: &&EndpointId| self.model.endpoints[**id].qp.0 == qp;
        let mut here = self.model.by_qpn.range((host, 0)..(host + 1, 0)).map(|(_, id)| id);
        here.find(ours).copied()
    }

    pub(crate) fn modify(
        &mut self,
        id: EndpointId,
        attr: &QpAttr,
        mask: M,
    ) -> Result<(), Violation> {
        let endpoint = &self.model.endpoints[id];
        let time = self.time(endpoint.host);
        let rnic = &mut self.hosts[endpoint.host].rnic;
        rnic.modify_qp(time, endpoint.qp, attr, mask | M::STATE).map_err(refused("modify_qp"))
    }

    /// Notes in the trace what is done to a QP.
    pub(crate) fn act(&mut self, what: &'static str, id: EndpointId) {
        let Endpoint { host, qpn, .. } = self.model.endpoints[id];
        self.trace.add(self.now, Event::Act { what, host, qpn });
    }
}
