//! What clients ask of their nodes besides moving data.

use elver_core::{Class, ClientLimits, ConnectOptions, CoreError, Policy, VqpInit};
use elver_verbs::{AccessFlags, Device, Gid};

use crate::canary::Canary;
use crate::model::{
    ATOMIC_BYTES, Addressee, Arena, Client, ClientIx, ClientPhase, Hold, Pending, Phase, Region,
    RegionIx, Target, Violation, VqpIx, broken,
};
use crate::world::World;

/// Bytes of a client's local memories.
const ARENA_BYTES: u64 = 192 * 1024;
/// Local memories that a client has at first.
const ARENAS: usize = 2;
/// Bytes of regions that are open to peers, without the words for atomics.
const REGION_BYTES: [u64; 3] = [512, 4_096, 16_384];
/// Most regions of a client.
const REGIONS_MAX: usize = 6;
/// First content of regions: no WR has such an id.
const INITIAL: u64 = 1 << 40;
/// A GID of no node.
pub(crate) const NOWHERE: Gid = Gid([0xfd, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);

impl World {
    pub(crate) fn open_client(&mut self, node: usize) -> Result<ClientIx, Violation> {
        let limits = ClientLimits::default();
        let Some(core) = self.core(node) else { broken!("node {node} is down") };
        let id = match core.client_open(limits) {
            Ok(id) => id,
            Err(error) => broken!("node {node}: client_open was refused: {error}"),
        };
        let index = self.model.clients.len();
        let place = self.nodes[node].place(node);
        self.model.clients.push(Client {
            place,
            id,
            phase: ClientPhase::Open,
            vqps: Default::default(),
            arenas: Vec::new(),
            regions: Vec::new(),
        });
        self.nodes[node].clients.push(index);
        self.note(format_args!("node {node}: client {index} comes"));
        self.count("client opened");
        for _ in 0..ARENAS {
            self.add_arena(index)?;
        }
        let regions = self.making.between(1, 3);
        for _ in 0..regions {
            self.add_region(index)?;
        }
        let vqp = self.create_vqp(index)?;
        if let Some(vqp) = vqp {
            self.bind(vqp)?;
        }
        Ok(index)
    }

    /// A client dies; its node learns of it.
    pub(crate) fn kill_client(&mut self, client: ClientIx) {
        let (node, _) = self.model.clients[client].place;
        let (id, now) = (self.model.clients[client].id, self.time_at(node));
        self.note(format_args!("node {node}: client {client} dies"));
        self.count("client died");
        self.nodes[node].clients.retain(|open| *open != client);
        self.nodes[node].dying.push(client);
        self.nodes[node].ready.remove(&id);
        self.model.client_died(client);
        if self.planter.strikes(Canary::ZombieClient) {
            return;
        }
        if let Some(core) = self.core(node) {
            core.client_close(id, now);
        }
    }

    pub(crate) fn add_arena(&mut self, client: ClientIx) -> Result<(), Violation> {
        let (node, id) = self.at(client);
        let Some(core) = self.core(node) else { return Ok(()) };
        let memory = core.device().alloc_memory(ARENA_BYTES);
        let memory = memory.map_err(|error| Violation::new(format!("no memory: {error}")))?;
        self.recede(&memory);
        let Some(core) = self.core(node) else { return Ok(()) };
        match core.reg_mr(id, memory.clone(), None, AccessFlags::LOCAL_WRITE) {
            Ok(mr) => {
                let index = self.model.arenas.len();
                self.model.arenas.push(Arena::new(client, memory, mr.addr, mr.lkey));
                self.model.clients[client].arenas.push(index);
                Ok(())
            }
            Err(CoreError::Limit { .. }) => Ok(()),
            Err(error) => broken!("node {node}: reg_mr was refused: {error}"),
        }
    }

    /// Clients' memory is not at hand, in some runs.
    fn recede(&self, memory: &elver_sim::SimMemory) {
        if self.plan.late_memory_percent > 0 {
            let seed = elver_verbs::Memory::base_addr(memory);
            let rng = elver_sim::Rng::new(seed);
            memory.recede(self.plan.late_memory_percent, self.plan.late_memory_ns(), rng);
        }
    }

    /// A region that peers may use, in some ways or all.
    pub(crate) fn add_region(&mut self, client: ClientIx) -> Result<(), Violation> {
        if self.model.clients[client].regions.len() >= REGIONS_MAX {
            return Ok(());
        }
        let (node, id) = self.at(client);
        let full =
            AccessFlags::REMOTE_READ | AccessFlags::REMOTE_CHANGES | AccessFlags::LOCAL_WRITE;
        let write = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        let access = if self.model.clients[client].regions.is_empty() {
            full
        } else {
            self.making.pick(&[full, full, AccessFlags::REMOTE_READ, write])
        };
        let len = self.making.pick(&REGION_BYTES);
        let Some(core) = self.core(node) else { return Ok(()) };
        let memory = core.device().alloc_memory(len + ATOMIC_BYTES);
        let memory = memory.map_err(|error| Violation::new(format!("no memory: {error}")))?;
        let index = self.model.regions.len();
        let initial = INITIAL + index as u64;
        let content = crate::model::bytes(initial, len as u32);
        elver_verbs::Memory::write(&memory, 0, &content)
            .map_err(|error| Violation::new(format!("no write: {error}")))?;
        self.recede(&memory);
        let Some(core) = self.core(node) else { return Ok(()) };
        let mr = match core.reg_mr(id, memory.clone(), None, access) {
            Ok(mr) => mr,
            Err(CoreError::Limit { .. }) => return Ok(()),
            Err(error) => broken!("node {node}: reg_mr was refused: {error}"),
        };
        let place = self.model.clients[client].place;
        let region = Region::new(place, memory, mr.addr, mr.lkey, mr.rkey, access, initial);
        self.model.regions.push(region);
        self.model.clients[client].regions.push(index);
        self.note(format_args!("client {client}: region {index}, rkey {:#x}", mr.rkey));
        self.count("region registered");
        Ok(())
    }

    /// A client takes a region back, whoever uses it.
    pub(crate) fn drop_region(&mut self, client: ClientIx) -> Result<(), Violation> {
        let open = |region: &RegionIx| self.model.regions[*region].hold == Hold::Open;
        let mut regions = self.model.clients[client].regions.clone();
        regions.retain(open);
        if regions.is_empty() {
            return Ok(());
        }
        let region = self.posting.pick(&regions);
        let lkey = self.model.regions[region].lkey;
        self.note(format_args!("client {client}: drops region {region}"));
        self.count("region dropped");
        self.model.regions[region].drop_asked();
        if self.planter.strikes(Canary::LeakedRegion) {
            let step = self.model.tick();
            self.model.regions[region].watch(step);
            self.model.clients[client].regions.retain(|other| *other != region);
            return Ok(());
        }
        let pending = Pending::DropRegion { client, region };
        self.deregister(client, lkey, pending)?;
        if self.planter.strikes(Canary::EarlyDeregistration) {
            let step = self.model.tick();
            self.model.regions[region].watch(step);
        }
        Ok(())
    }

    /// The memory of a region goes away beneath its registration.
    pub(crate) fn vanish(&mut self, client: ClientIx) {
        let open = |region: &RegionIx| {
            let region = &self.model.regions[*region];
            region.hold == Hold::Open && !region.vanished
        };
        let mut regions = self.model.clients[client].regions.clone();
        regions.retain(open);
        // Not all of it, so that there is something to aim at.
        if regions.len() < 2 {
            return;
        }
        let region = self.posting.pick(&regions);
        self.note(format_args!("client {client}: the memory of region {region} vanishes"));
        self.count("region vanished");
        self.model.regions[region].vanish();
    }

    /// A client takes local memory back, and gets other.
    pub(crate) fn drop_arena(&mut self, client: ClientIx) -> Result<(), Violation> {
        let mut arenas = self.model.clients[client].arenas.clone();
        arenas.retain(|arena| self.model.arenas[*arena].hold == Hold::Open);
        if arenas.is_empty() {
            return Ok(());
        }
        let arena = self.posting.pick(&arenas);
        let lkey = self.model.arenas[arena].lkey;
        self.note(format_args!("client {client}: drops local memory {arena}"));
        self.count("local memory dropped");
        self.model.arenas[arena].drop_asked();
        self.deregister(client, lkey, Pending::DropArena { client, arena })?;
        self.add_arena(client)
    }

    fn deregister(
        &mut self,
        client: ClientIx,
        lkey: u32,
        pending: Pending,
    ) -> Result<(), Violation> {
        let (node, id) = self.at(client);
        let (token, now) = (self.serial(), self.time_at(node));
        let Some(core) = self.core(node) else { return Ok(()) };
        if let Err(error) = core.dereg_mr(id, lkey, token, now) {
            broken!("node {node}: dereg_mr was refused: {error}");
        }
        self.model.pending.insert(token, pending);
        Ok(())
    }

    pub(crate) fn create_vqp(&mut self, client: ClientIx) -> Result<Option<VqpIx>, Violation> {
        let (node, id) = self.at(client);
        let init = VqpInit {
            class: if self.making.percent(30) { Class::High } else { Class::Low },
            max_send_wr: self.making.pick(&[5, 16, 64]),
            // The first VQP of each client is the one that others find at its port.
            max_recv_wr: if self.model.clients[client].vqps.is_empty() {
                64
            } else {
                self.making.pick(&[4, 16, 64])
            },
            sq_sig_all: self.making.percent(20),
            ..VqpInit::default()
        };
        let Some(core) = self.core(node) else { return Ok(None) };
        match core.vqp_create(id, init) {
            Ok(vqp) => {
                self.count("VQP created");
                Ok(Some(self.model.add_vqp(client, vqp, init, self.now)?))
            }
            Err(CoreError::Limit { .. }) => Ok(None),
            Err(error) => broken!("node {node}: vqp_create was refused: {error}"),
        }
    }

    /// Binds a VQP to a port that is free, and posts receives there.
    pub(crate) fn bind(&mut self, vqp: VqpIx) -> Result<(), Violation> {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let Some(core) = self.core(node) else { return Ok(()) };
        let port = match core.qbind(owner, id, 0) {
            Ok(port) => port,
            Err(error) => broken!("node {node}: qbind was refused: {error}"),
        };
        let place = self.model.clients[client].place;
        let before = self.model.ports.insert((place, port), Some(vqp));
        if before.flatten().is_some() {
            broken!("node {node}: port {port} was given twice");
        }
        let step = self.model.tick();
        self.model.vqps[vqp].bound = Some(port);
        self.model.vqps[vqp].bound_at = step;
        self.note(format_args!("client {client}: VQP {vqp} ({:#x}) at port {port}", id.0));
        self.count("VQP bound");
        if self.plan.late_receives {
            return Ok(());
        }
        self.supply(vqp, 6)
    }

    /// Binding where another VQP is bound must be refused.
    pub(crate) fn bind_taken(&mut self, client: ClientIx) -> Result<(), Violation> {
        let place = self.model.clients[client].place;
        let ports = self.model.ports.range((place, 0)..=(place, u16::MAX));
        let Some(port) = ports.filter(|(_, by)| by.is_some()).map(|((_, port), _)| *port).next()
        else {
            return Ok(());
        };
        let Some(vqp) = self.create_vqp(client)? else { return Ok(()) };
        let (node, owner) = self.at(client);
        let id = self.model.vqps[vqp].id;
        let Some(core) = self.core(node) else { return Ok(()) };
        match core.qbind(owner, id, port) {
            Err(CoreError::PortInUse { .. }) => self.destroy(vqp),
            other => broken!("node {node}: binding port {port} twice gave {other:?}"),
        }
    }

    /// Connects a VQP to a port of a node, or to where nobody is.
    pub(crate) fn connect(
        &mut self,
        vqp: VqpIx,
        node: Option<usize>,
        port: u16,
    ) -> Result<(), Violation> {
        let policy = self.making.pick(self.plan.policies());
        self.connect_by(policy, vqp, node, port)
    }

    pub(crate) fn connect_by(
        &mut self,
        policy: Policy,
        vqp: VqpIx,
        node: Option<usize>,
        port: u16,
    ) -> Result<(), Violation> {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (home, owner) = self.at(client);
        let gid = node.map_or(NOWHERE, |node| self.gids[node]);
        let uncached = self.making.percent(10) && self.plan.may_connect_uncached(policy);
        let options = ConnectOptions { policy, uncached };
        let (token, now) = (self.serial(), self.time_at(home));
        let place = node.map_or((usize::MAX, 0), |node| self.nodes[node].place(node));
        self.note(format_args!(
            "client {client}: VQP {vqp} ({:#x}) connects to node {node:?} port {port}, {policy:?}",
            id.0
        ));
        let Some(core) = self.core(home) else { return Ok(()) };
        let answer = core.qconnect(owner, id, gid, port, options, token, now);
        let busy = self.model.vqps[vqp].phase == Phase::Down;
        let refused = match &answer {
            Err(CoreError::State { .. }) => busy,
            Err(CoreError::Limit { .. }) => true,
            _ => false,
        };
        if refused {
            self.count("connect refused");
            return Ok(());
        }
        self.count("connect");
        let step = self.model.tick();
        let outdated = !self.settled_since(self.now);
        let known = &mut self.model.vqps[vqp];
        known.epoch += 1;
        known.connected_at = step;
        known.outdated = outdated;
        known.target = Some(Target { place, to: Addressee::Port(port) });
        known.options = options;
        let epoch = known.epoch;
        match answer {
            Ok(Some(via)) => {
                let via = self.check_via(vqp, via, true)?;
                if node.is_none() {
                    broken!("node {home}: VQP {vqp} is connected to a GID of no node");
                }
                self.note(format_args!("VQP {vqp} is connected at once, {via:?}"));
                self.count("connected at once");
                self.model.vqps[vqp].phase = Phase::Up;
            }
            Ok(None) => {
                self.model.vqps[vqp].phase = Phase::Connecting;
                let since = self.now;
                let pending = Pending::Connect { client, vqp, epoch, since, node, gid };
                self.model.pending.insert(token, pending);
            }
            Err(error) => broken!("node {home}: qconnect was refused: {error}"),
        }
        Ok(())
    }

    pub(crate) fn destroy(&mut self, vqp: VqpIx) -> Result<(), Violation> {
        let (client, id) = (self.model.vqps[vqp].client, self.model.vqps[vqp].id);
        let (node, owner) = self.at(client);
        let now = self.time_at(node);
        self.note(format_args!("client {client}: VQP {vqp} is destroyed"));
        self.count("VQP destroyed");
        self.model.forget(vqp);
        let Some(core) = self.core(node) else { return Ok(()) };
        match core.vqp_destroy(owner, id, now) {
            Ok(()) => Ok(()),
            Err(error) => broken!("node {node}: vqp_destroy was refused: {error}"),
        }
    }

    /// A client uses the handle of another's VQP, which must be refused.
    pub(crate) fn use_foreign(&mut self, client: ClientIx) -> Result<(), Violation> {
        let place = self.model.clients[client].place;
        let now = self.time_at(place.0);
        let mut all = self.model.by_vqp.range((place, elver_core::VqpId(0))..);
        let other =
            all.find(|((at, _), vqp)| *at == place && self.model.vqps[**vqp].client != client);
        let Some((&(_, id), _)) = other else { return Ok(()) };
        let (node, owner) = self.at(client);
        let Some(core) = self.core(node) else { return Ok(()) };
        let refused = [
            core.vqp_destroy(owner, id, now).is_err(),
            core.qbind(owner, id, 0).is_err(),
            core.vqp_info(owner, id).is_err(),
            core.post_send(owner, id, &[], now).is_err(),
        ];
        if refused.contains(&false) {
            broken!("node {node}: client {client} may use VQP {:#x} of another: {refused:?}", id.0);
        }
        self.count("foreign VQP refused");
        Ok(())
    }

    /// Gets the metadata of all nodes, and of one that is not there.
    pub(crate) fn warm(&mut self, client: ClientIx) -> Result<(), Violation> {
        let (node, owner) = self.at(client);
        let mut gids = self.gids.clone();
        if self.posting.percent(50) {
            gids.push(NOWHERE);
        }
        let (token, now) = (self.serial(), self.time_at(node));
        self.note(format_args!("client {client}: warms up {} peers", gids.len()));
        self.count("warm-up");
        let Some(core) = self.core(node) else { return Ok(()) };
        if let Err(error) = core.warm(owner, &gids, token, now) {
            broken!("node {node}: warm was refused: {error}");
        }
        let pending = Pending::Warm { client, peers: gids.len() as u32 };
        self.model.pending.insert(token, pending);
        Ok(())
    }
}
