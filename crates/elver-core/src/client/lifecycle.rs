//! Clients and their VQPs: coming and going.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use elver_verbs::{Device, Policy, Time};

use crate::client::Client;
use crate::client::accept::Accepted;
use crate::client::all::Clients;
use crate::client::ports::Ports;
use crate::ids::{MaybeVqp, PeerId};
use crate::keep_alive::Watched;
use crate::memory::mr::LocalHit;
use crate::rc::suspect::Suspect;
use crate::vqp::credit::Credit;
use crate::vqp::phase::Phase;
use crate::vqp::recv_ring::RecvRing;
use crate::vqp::send_ring::SendRing;
use crate::vqp::seq::{RecvSeq, SendSeq};
use crate::vqp::{Vqp, Wait};
use crate::{ClientId, ClientLimits, Core, CoreError, Event, VqpId, VqpInit};

/// Accepted VQPs that are looked at for one to give way.
const EVICTIONS_LOOKED_AT: usize = 64;

/// Whose accepted VQPs one is to give way among.
#[derive(Clone, Copy, Debug)]
enum Scope {
    /// A client's, perhaps only those of a peer.
    Client(ClientId, Option<PeerId>),
    /// All.
    Node,
}

impl Clients {
    /// The accepted VQPs of a scope.
    fn accepted_in(&mut self, scope: Scope) -> Option<&mut Accepted> {
        match scope {
            Scope::Client(client, peer) => self.all.get_mut(client)?.accepted.in_order(peer),
            Scope::Node => Some(self.accepts.in_order()),
        }
    }
}

impl<D: Device> Core<D> {
    /// Admits a client.
    ///
    /// # Errors
    ///
    /// [`CoreError::Limit`] if the node has as many clients as it may.
    #[inline(never)]
    pub fn client_open(&mut self, limits: ClientLimits) -> Result<ClientId, CoreError> {
        let limit = u64::from(self.clients.all.limit());
        let id = self.clients.all.insert(&mut self.rng, |_| Client::new(limits));
        let full = CoreError::Limit { what: "clients", limit, setting: "clients" };
        id.ok_or(full)
    }

    /// The client is gone: its VQPs and regions go, as soon as nothing in flight needs them.
    #[inline(never)]
    pub fn client_close(&mut self, client: ClientId, now: Time) {
        // Closed twice is closed.
        let Ok(entry) = self.clients.open_client(client) else { return };
        entry.closed = true;
        entry.completions.clear();
        let vqps = entry.vqps.clone();
        let is_bound =
            |core: &Core<D>, id| core.vqps.get(id).is_some_and(|vqp| vqp.bound.is_some());
        // Then those that were made for senders are known to go for good.
        let (bound, others): (Vec<VqpId>, Vec<VqpId>) =
            vqps.into_iter().partition(|id| is_bound(self, *id));
        for vqp in bound.into_iter().chain(others) {
            self.destroy(vqp, now);
        }
        self.close_mrs_of(client, now);
        self.clients.forget_client(client);
        self.apply(now);
    }

    /// Whether nothing of a closed client is left.
    pub fn client_is_gone(&self, client: ClientId) -> bool {
        self.clients.all.get(client).is_none()
    }

    /// Creates a VQP (Algorithm 1, `vqp_create`). If the client has as many as it may, one that a
    /// message made and that it never used gives way.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchClient`]; [`CoreError::OutOfRange`] if `init` asks for what no VQP has; [`CoreError::Limit`] if
    /// the client, or the node, has as many VQPs as it may.
    #[inline(never)]
    pub fn vqp_create(&mut self, client: ClientId, init: VqpInit) -> Result<VqpId, CoreError> {
        let entry = self.clients.open_client(client)?;
        if entry.vqps.len() as u32 >= entry.limits.vqps {
            self.evict_accepted(Scope::Client(client, None));
        } else if self.vqps.is_full() {
            self.evict_accepted(Scope::Node);
        }
        self.create(client, init)
    }

    /// Creates a VQP for a sender of messages, at a peer. Others may make a client hold no more of
    /// these than half of what it may have, and the node no more than [`crate::Config::accepts`]; and
    /// no peer makes either hold more than its share.
    pub(crate) fn create_accepted(
        &mut self,
        client: ClientId,
        peer: PeerId,
        init: VqpInit,
    ) -> Option<VqpId> {
        let entry = self.clients.open_client(client).ok()?;
        let limits = entry.limits;
        let full =
            entry.vqps.len() as u32 >= limits.vqps || entry.accepted.now() >= limits.accepts();
        let share = entry.accepted.of(peer) >= limits.accepts_of_peer();
        let of_node = self.peers.get(peer).map_or(0, |entry| entry.accepted);
        let share = share || of_node >= self.config.accepts_of_peer();
        let node_full = self.clients.accepts.now() >= self.config.accepts() || self.vqps.is_full();
        // One of its own that gives way makes room for all.
        let room = if share {
            self.evict_accepted(Scope::Client(client, Some(peer)))
        } else if full {
            self.evict_accepted(Scope::Client(client, None))
        } else {
            !node_full || self.evict_accepted(Scope::Node)
        };
        let id = if room { self.create(client, init).ok() } else { None };
        let Some(id) = id else {
            self.stats.accepts_refused += 1;
            return None;
        };
        Some(id)
    }

    /// Has an accepted VQP give way that failed or that its client has not used, the oldest first;
    /// whether there was one.
    fn evict_accepted(&mut self, scope: Scope) -> bool {
        let looked_at = self.clients.accepted_in(scope).map_or(0, |accepted| accepted.listed());
        for _ in 0..looked_at.min(EVICTIONS_LOOKED_AT) {
            let Some(accepted) = self.clients.accepted_in(scope) else {
                bug!("VQPs that were accepted are of nobody");
                return false;
            };
            let Some(id) = accepted.pop() else {
                bug!("an accepted VQP is in no order");
                return false;
            };
            let Some(vqp) = self.vqps.get(id) else { continue };
            if vqp.phase == Phase::Destroyed || vqp.accepted.is_none() {
                continue;
            }
            let unused = vqp.sq.tail == SendSeq::FIRST
                && vqp.rq.tail == RecvSeq::FIRST
                && vqp.backlog.is_none();
            let failed = vqp.phase.is_over();
            if vqp.bound.is_none() && vqp.sq.len() == 0 && vqp.reads == 0 && (unused || failed) {
                self.stats.accepted_evicted += 1;
                let client = vqp.client;
                self.events.push_back(Event::GaveWay { client, vqp: id });
                // It has nothing outstanding, and goes at once.
                self.destroy(id, self.arrivals.heard.now());
                return true;
            }
            if let Some(accepted) = self.clients.accepted_in(scope) {
                accepted.put_back(id);
            }
        }
        false
    }

    fn create(&mut self, client: ClientId, init: VqpInit) -> Result<VqpId, CoreError> {
        let max = u64::from(self.config.max_vqp_wr);
        let sizes = [("max_send_wr", init.max_send_wr), ("max_recv_wr", init.max_recv_wr)];
        for (name, value) in sizes {
            let value = u64::from(value);
            if value > max {
                return Err(CoreError::OutOfRange { name, value, min: 0, max });
            }
        }
        let limit = self.vqps.limit();
        let entry = self.clients.open_client(client)?;
        let quota = entry.limits.vqps;
        if entry.vqps.len() as u32 >= quota {
            let limit = u64::from(quota);
            return Err(CoreError::Limit { what: "VQPs of a client", limit, setting: "vqps" });
        }
        let client_at = entry.vqps.len() as u32;
        let (max_sge, max_inline) = (self.config.max_sge, self.pool.max_inline);
        let nonce = self.rng.next_u32();
        let made = self.vqps.insert(&mut self.rng, |id| {
            Box::new(Vqp {
                id,
                client,
                client_at,
                class: init.class,
                sig_all: init.sq_sig_all,
                confirm_sends: init.confirm_sends,
                phase: Phase::Idle,
                via: None,
                bound: None,
                peer: None,
                beside: Default::default(),
                peer_port: None,
                peer_vqp: MaybeVqp::default(),
                lane: None,
                dest: None,
                sq: SendRing::new(init.max_send_wr, max_sge, max_inline),
                rq: RecvRing::new(init.max_recv_wr, max_sge),
                reads: 0,
                inflight: 0,
                wait: Wait::Nothing,
                credit: Credit::NEW,
                policy: Policy::Shared,
                lease: None,
                ready: false,
                rewound: false,
                unsure: false,
                suspect: Suspect::default(),
                fault: None,
                deficit: 0,
                room: 0,
                read_from: 0,
                attempt: 0,
                nonce,
                read_until: None,
                token: 0,
                transfers: 0,
                peer_tag: 0,
                watched: Watched::Unknown,
                newcomer: false,
                backlog: None,
                accepted: None,
                local: LocalHit::NONE,
                remote_key: Vqp::NO_REMOTE.0,
                remote: Vqp::NO_REMOTE.1,
            })
        });
        let full = CoreError::Limit { what: "VQPs", limit: u64::from(limit), setting: "max_vqps" };
        let id = made.ok_or(full)?;
        self.clients.open_client(client)?.vqps.push(id);
        Ok(id)
    }

    /// Destroys a VQP. What it has outstanding completes to nobody.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchVqp`], also if it is another client's.
    #[inline(never)]
    pub fn vqp_destroy(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        now: Time,
    ) -> Result<(), CoreError> {
        self.own_vqp(client, vqp)?;
        self.destroy(vqp, now);
        self.apply(now);
        Ok(())
    }

    /// Lets messages to `port` of this node come to the VQP. Port 0 takes a free one; returns the
    /// port.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchVqp`], also if it is another client's; [`CoreError::State`] if it is bound already;
    /// [`CoreError::PortInUse`]; [`CoreError::Limit`] if no port is free.
    #[inline(never)]
    pub fn qbind(&mut self, client: ClientId, vqp: VqpId, port: u16) -> Result<u16, CoreError> {
        let entry = self.own_vqp(client, vqp)?;
        if entry.bound.is_some() {
            return Err(CoreError::State { state: "bound", call: "qbind" });
        }
        let port = match port {
            0 => self.clients.ports.any_free(&mut self.rng).ok_or(CoreError::Limit {
                what: "free ports",
                limit: Ports::FREE.len() as u64,
                setting: "ports",
            })?,
            port if self.clients.ports.bound_to(port).is_some() => {
                return Err(CoreError::PortInUse { port });
            }
            port => port,
        };
        self.clients.ports.bind(port, vqp);
        self.own_vqp(client, vqp)?.bound = NonZeroU16::new(port);
        Ok(port)
    }
}
