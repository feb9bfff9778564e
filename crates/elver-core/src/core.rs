pub(crate) mod arrivals;
mod heard;
mod info;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use elver_control::{MRS_ADDR, NodeRecord, Terms, mrs_id, mrs_layout};
use elver_kv::{Layout, Table, TableId};
use elver_verbs::{AccessFlags, Device, Gid, Intake, MrInfo, Time, VerbsError, Wc, WcStatus};

use self::arrivals::{Arrivals, BATCH};
use crate::client::Client;
use crate::client::all::Clients;
use crate::datapath::Datapath;
use crate::datapath::wr_id::WrId;
use crate::discovery::Discovery;
use crate::discovery::lookups::Lookups;
use crate::discovery::peer::Peers;
use crate::effects::Effects;
use crate::keep_alive::KeepAlive;
use crate::latency::{Histogram, Latency, WrKind};
use crate::memory::Regions;
use crate::memory::valid_mrs::ValidMrs;
use crate::messaging::Messaging;
use crate::pool::Pool;
use crate::pool::create::{check_config, create};
use crate::pool::lanes::Lanes;
use crate::rc::links::Links;
use crate::rc::ud::Ud;
use crate::slots::Slots;
use crate::vqp::Vqp;
use crate::{ClientId, Completion, Config, ConnectError, CoreError, Event, Stats, VqpId};
use elver_random::{Rng, Seed};

/// Batches of one poll.
const BATCHES_MAX: u32 = 16;

/// The node's heart: all VQPs of all clients on one device and one pool of physical QPs.
///
/// It does no IO and has no clock. Its host calls [`Core::poll`] whenever there may be something to
/// do, and at [`Core::poll_timeout`]; takes completions with [`Core::poll_completions`] and events
/// with [`Core::poll_event`].
//
// What others call and is more than a few lines is never inlined: rustc then compiles it, and all behind it, once for a kind
// of device, in the lowest crate that calls it, and not again in each.
pub struct Core<D: Device> {
    pub(crate) device: D,
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    pub(crate) gid: Gid,
    pub(crate) record: NodeRecord,
    pub(crate) pool: Pool<D::Memory>,
    pub(crate) lanes: Lanes,
    pub(crate) links: Links<D::Memory>,
    pub(crate) peers: Peers,
    pub(crate) discovery: Discovery<D::Memory>,
    pub(crate) clients: Clients,
    pub(crate) vqps: Slots<VqpId, Box<Vqp>>,
    pub(crate) datapath: Datapath,
    pub(crate) messaging: Messaging,
    pub(crate) regions: Regions<D::Memory>,
    /// Whether the peers of VQPs are there.
    pub(crate) keep_alive: KeepAlive,
    pub(crate) arrivals: Arrivals,
    /// What parts have left to be done.
    pub(crate) effects: Effects,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: Stats,
    pub(crate) latency: Latency,
}

impl<D: Device> Core<D> {
    /// A core on a device that is its own. `seed` gives all its randomness: keys, ids. It is
    /// 32 bytes of the operating system's generator, unless a run must replay.
    ///
    /// # Errors
    ///
    /// [`CoreError::OutOfRange`] if a number of the configuration cannot be; [`CoreError::Device`] if the device does not
    /// make what the core needs.
    #[inline(never)]
    pub fn new(
        mut device: D,
        config: Config,
        seed: impl Into<Seed>,
        now: Time,
    ) -> Result<Core<D>, CoreError> {
        check_config(&config)?;
        let mut rng = Rng::new(seed);
        let gid = device.query_gid(0)?;
        let (pool, lanes) = create(&mut device, &config, &mut rng)?;
        let log_mrs_max = config.max_mrs.next_power_of_two().ilog2() as u8;
        let (layout, id) = (layout(mrs_layout(log_mrs_max))?, mrs_id(pool.dc_key));
        let (valid_mrs, mr) = create_table(&mut device, pool.pd, layout, id, Some(MRS_ADDR))?;
        let record = NodeRecord {
            dctn: pool.dctn,
            dc_key: pool.dc_key,
            control_qpn: pool.ud_qpn,
            mrs_rkey: mr.rkey,
            log_mrs_max,
            terms: Terms::new(config.mr_lease_ns, config.flight_ns(), pool.rooms().0),
        };
        let ud = Ud::new(&mut device, pool.pd, pool.ud)?;
        let peers = Peers::new(config.max_peers, &mut rng);
        let lookups = Lookups::new(pool.reads.count);
        let mut core = Core {
            record,
            gid,
            pool,
            lanes,
            links: Links::new(&config, ud),
            peers,
            discovery: Discovery::new(lookups),
            clients: Clients::new(),
            vqps: Slots::new(config.max_vqps),
            datapath: Datapath::new(&config.qos),
            messaging: Messaging::new(record.tag()),
            regions: Regions::new(&config, ValidMrs::new(valid_mrs)),
            keep_alive: KeepAlive::new(config.keep_alive_ns),
            arrivals: Arrivals::new(now),
            effects: Effects::default(),
            events: VecDeque::new(),
            stats: Stats::default(),
            latency: Latency::new(),
            device,
            config,
            rng,
        };
        // Its own record needs no look-up, and stays.
        if let Some(own) = core.peer_of(gid)
            && let Some(peer) = core.peers.get_mut(own)
        {
            peer.set_record(Some(record));
            peer.pins += 1;
        }
        Ok(core)
    }

    /// The device, to drive and to ask; its objects are the core's.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// This node's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// What others must know of this node.
    pub fn record(&self) -> NodeRecord {
        self.record
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes completions of all VQPs of a client, oldest first; returns how many.
    #[inline(never)]
    pub fn poll_completions(&mut self, client: ClientId, into: &mut [Completion]) -> usize {
        let Some(client) = self.clients.all.get_mut(client) else { return 0 };
        let count = client.completions.len().min(into.len());
        for (slot, completion) in into.iter_mut().zip(client.completions.drain(..count)) {
            *slot = completion;
        }
        if client.completions.is_empty() {
            // From the start again, where what was there last is still in a near cache.
            client.completions.clear();
        }
        count_off!(client.pending, count as u32);
        count
    }

    /// How long send WRs took that were followed, by what they do.
    pub fn latencies(&self) -> impl Iterator<Item = (WrKind, &Histogram)> {
        self.latency.iter()
    }

    /// Takes an event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Why a VQP has failed, ahead of the other events: for who tells a completion in error of it. None if no event says
    /// so, or it was taken.
    #[inline(never)]
    pub fn take_failure(&mut self, client: ClientId, vqp: VqpId) -> Option<ConnectError> {
        let at = self.events.iter().position(|event| event.is_failure_of(client, vqp))?;
        match self.events.remove(at) {
            Some(Event::Failed { cause, .. }) => Some(cause),
            _ => None,
        }
    }

    /// Whether a client has something to hear of what one of its VQPs was until now: completions, or why it has failed. Who
    /// connects that one anew tells it before, or it would be taken for the new connection's.
    #[inline]
    pub fn is_to_hear(&self, client: ClientId, vqp: VqpId) -> bool {
        let own = self.vqps.get(vqp).filter(|entry| entry.is_of(client));
        own.is_some_and(|entry| !entry.is_fresh()) && self.has_untold(client, vqp)
    }

    #[cold]
    fn has_untold(&self, client: ClientId, vqp: VqpId) -> bool {
        let completed = |client: &Client| !client.completions.is_empty();
        self.clients.all.get(client).is_some_and(completed)
            || self.events.iter().any(|event| event.is_failure_of(client, vqp))
    }

    /// A client that has completions to take, each once until more come: what a host that serves
    /// many asks instead of looking at all.
    #[inline(never)]
    pub fn poll_ready(&mut self) -> Option<ClientId> {
        while let Some(id) = self.clients.told.next_ready() {
            if let Some(client) = self.clients.all.get_mut(id) {
                client.ready = false;
                if !client.completions.is_empty() {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Drives the device, takes what it completed and does what is due. Returns whether anything
    /// happened.
    #[inline(never)]
    pub fn poll(&mut self, now: Time) -> bool {
        let mut busy = false;
        self.arrivals.heard.polled(now);
        // What it has found since the last poll it has found at a time that is not known here.
        let _ = self.device.intake();
        let mut wcs = core::mem::take(&mut self.arrivals.wcs);
        let mut looks_on = false;
        for _ in 0..BATCHES_MAX {
            if looks_on {
                // Completions that wait are given without a look at the network.
                self.device.progress();
            }
            // What was kept may bring another QP to its end: what that leaves is older, too, than what
            // the device tells next.
            while !self.links.kept.is_empty() {
                self.complete_kept(now);
                busy = true;
            }
            // One queue for all, and it drives the device when there is nothing: a poll looks at
            // the network once.
            let Ok(count) = self.device.poll_cq(self.pool.cq, &mut wcs) else {
                self.stats.device_faults += 1;
                break;
            };
            for wc in &wcs[..count] {
                self.complete(wc, now);
            }
            busy |= count > 0;
            self.repost_receives();
            self.serve_dirty(now);
            // Notes come before VQPs that wait for slots.
            self.apply(now);
            self.serve_slot_waiters(now);
            if count == BATCH || !self.links.kept.is_empty() {
                continue;
            }
            let intake = self.device.intake();
            self.arrivals.heard.take(intake);
            looks_on = intake == Intake::Behind && self.arrivals.heard.is_behind();
            if !looks_on {
                break;
            }
        }
        self.arrivals.wcs = wcs;
        self.regions.of_peers.flush(now);
        busy | self.attend(now)
    }

    /// What completed before a QP was destroyed.
    #[cold]
    fn complete_kept(&mut self, now: Time) {
        for wc in core::mem::take(&mut self.links.kept) {
            self.complete(&wc, now);
        }
    }

    /// One completion of the device's.
    #[inline(always)] // What was kept is rare.
    fn complete(&mut self, wc: &Wc, now: Time) {
        match WrId::decode(wc.wr_id) {
            Some(WrId::User { vqp, seq, second }) => {
                self.complete_user(vqp, seq, second, wc.status, now);
            }
            Some(WrId::Op(op)) => self.complete_op(op, wc.status, now),
            Some(WrId::Recv(buffer)) => {
                if wc.status == WcStatus::Success {
                    self.received(buffer, wc.byte_len, wc.src_gid, now);
                }
                self.arrivals.read_buffers.push(buffer);
            }
            Some(WrId::Control(slot)) => self.complete_control(slot, wc, now),
            Some(WrId::Landing(id)) => self.piece_landed(id, wc.status, now),
            None => self.stats.completions_unknown += 1,
        }
    }

    /// Gives receive buffers back that were read.
    fn repost_receives(&mut self) {
        if self.arrivals.read_buffers.is_empty() {
            return;
        }
        if self.pool.post_receives(&mut self.device, &self.arrivals.read_buffers).is_err() {
            self.stats.device_refusals += 1;
        }
        self.arrivals.read_buffers.clear();
    }
}

/// A table in registered memory that peers may read, at this address if there is one.
pub(crate) fn create_table<D: Device>(
    device: &mut D,
    pd: elver_verbs::Pd,
    layout: Layout,
    id: TableId,
    addr: Option<u64>,
) -> Result<(Table<D::Memory>, MrInfo), CoreError> {
    let memory = device.alloc_memory(layout.table_bytes())?;
    // What a device allocates is zeroed.
    let table = Table::create_in_zeros(memory.clone(), layout, id).map_err(|_| no_table())?;
    let mr = device.reg_mr(pd, memory, addr, AccessFlags::REMOTE_READ)?;
    Ok((table, mr))
}

/// A layout, or what is wrong with the number that it was asked for.
pub(crate) fn layout(made: Result<Layout, elver_kv::LayoutError>) -> Result<Layout, CoreError> {
    made.map_err(|error| CoreError::OutOfRange {
        name: error.name,
        value: error.value,
        min: error.min,
        max: error.max,
    })
}

pub(crate) fn no_table() -> VerbsError {
    VerbsError::InvalidArgument { what: "the device's memory does not hold a table" }
}
